"""Recipes for BERT's successors: RoBERTa, ModernBERT, ALBERT, SpanBERT, ELECTRA, XLM, gMLP, aMLP.

Unless a docstring says otherwise, the tiny models have the sizes, the number of training tokens and
the schedule of `bert_tiny`, and Wikipedia and PG-19 replace the text of the papers.

Measured: the table has results of the tiny models after 5,000 updates of 8 rows
(`experiments/results/slides_encoders`). All models in the table used pre-norm, and all except gMLP
and aMLP used T5's relative attention bias. Rows with ± show the mean and standard deviation over
three seeds. The other rows show one seed. For ELECTRA, the token loss is the loss of the generator.
Fine-tuned scores are the accuracy on SST-2 and the F1 on CoNLL-2003. The recipes for the larger
models were not run to the end.

                     token loss       SST-2        CoNLL-2003   other results
    roberta_tiny     5.49             80.1         62.6
    albert_tiny      5.92 ± 0.05      79.3 ± 0.9   47.9 ± 3.1   sentence order: 53% correct
    span_bert_tiny   5.67             81.0         57.8         span boundary loss 6.13
    electra_tiny     6.40 ± 0.05      74.4 ± 4.6   36.1 ± 2.0   detects 0.6% of replaced tokens
    xlm_tiny         6.26             74.6         40.5
    gmlp_tiny        4.73             80.7         69.7
    amlp_tiny        4.65             81.1         69.5
"""

from experiments.recipes.bert import DEVLIN, bert_base, bert_tiny
from macaron_tf.data.corpus.config import CorpusSource
from macaron_tf.objectives import (
    CausalLanguageObjective,
    MaskedLanguageObjective,
    MaskingConfig,
    ReplacedTokenObjective,
    SpanBoundaryObjective,
)
from macaron_tf.runs.pretraining import PretrainingRecipe, VocabularyConfig

# Sampling of languages in XLM: q_i ~ p_i^0.5 for the vocabulary, and q_i ~ p_i^0.7 for batches.
_LANGUAGES = dict(packing="full_text", language_alpha=0.5, batch_alpha=0.7)


def _language_sources(source: str) -> list[CorpusSource]:
    """Returns one source for each of the languages English, German and French.

    Args:
        source: name of the source, with `{}` in place of the language code.
    """
    return [CorpusSource(source.format(code), language=code) for code in ("en", "de", "fr")]


def roberta_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny RoBERTa, with dynamic masking and without sentence pairs.

    Settings from Liu et al. 2019, sections 3 and 4: the vocabulary is byte-level BPE, and rows of
    full sentences continue with the next document. The model predicts 15% of the tokens. Of the
    predicted tokens, 80% are replaced by the mask token and 10% by random tokens. `--set
    objective.masking.duplicates=10` gives each row ten static masks, as in BERT's released data,
    for a comparison of static with dynamic masking.

    Measured over three seeds with the settings of this module's table, but on 1,818 rows, which
    training read about 22 times (`experiments/results/slides_encoders`): a validation loss of 5.80
    ± 0.05 with dynamic masking, and of 5.78 ± 0.01 with ten static masks.
    """
    return bert_tiny().changed(
        model="roberta_tiny",
        data=dict(
            packing="full_sentences",
            vocabulary=VocabularyConfig(kind="byte_bpe", size=4_000, lower_case=False),
        ),
        objective=MaskedLanguageObjective(),
    )


def roberta_base() -> PretrainingRecipe:
    """Returns a recipe for RoBERTa base: larger batches than BERT, and no next-sentence prediction.

    Settings from Liu et al. 2019: 125,000 updates of 2,048 sequences of 512 tokens (table 3),
    Adam(0.9, 0.98) (section 3.1), rows of full sentences, and dynamic masking. The number of
    training tokens is the same as for BERT. Settings from the released command: a peak learning
    rate of 5e-4 after 10,000 updates (table 3 has 7e-4), a linear decay to 0, epsilon 1e-6, weight
    decay 0.01, and the vocabulary size.
    """
    return bert_base().changed(
        model="roberta_base",
        data=dict(
            packing="full_sentences",
            vocabulary=VocabularyConfig(kind="byte_bpe", size=50_265, lower_case=False),
        ),
        objective=MaskedLanguageObjective(),
        training=dict(
            max_steps=125_000, learning_rate=5e-4, warmup_steps=10_000, accumulation_steps=64
        ),
    )


def roberta_8k_base() -> PretrainingRecipe:
    """Returns a recipe for the released RoBERTa base: 500,000 updates of 8,192 rows.

    Settings from Liu et al. 2019, table 9: a peak learning rate of 6e-4 after 24,000 updates. All
    other settings are the same as in `roberta_base`. The paper's 160 GB of text are Wikipedia,
    books, news, web pages and stories. To train on such text, set `data.sources`.
    """
    return roberta_base().changed(
        training=dict(
            max_steps=500_000, learning_rate=6e-4, warmup_steps=24_000, accumulation_steps=256
        )
    )


def roberta_8k_large() -> PretrainingRecipe:
    """Returns a recipe for the released RoBERTa large.

    The peak learning rate is 4e-4 after 30,000 updates (Liu et al. 2019, table 9). Except for the
    model, these two settings and the size of micro-batches, all settings are the same as in
    `roberta_8k_base`.
    """
    return roberta_8k_base().changed(
        model="roberta_large",
        data=dict(batch_size=8),
        training=dict(learning_rate=4e-4, warmup_steps=30_000, accumulation_steps=1024),
    )


def modern_bert_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny ModernBERT, which trains on two CPU cores.

        macaron compare runs/encoders --data-dir DIR \\
            bert=bert_tiny:model.norm=pre modern=modern_bert_tiny \\
            macaron-modern=modern_bert_tiny:model.block=macaron --equal parameters

    The model follows Warner et al. 2024, section 2.1: rotary position embeddings, gated
    feed-forward layers (here of width 256), no biases, pre-norm, and sliding-window attention in
    two of three layers. Vocabulary, masking and schedule are as in `bert_tiny`, so that the two
    recipes differ only in the network. The paper masks 30% of the tokens: `--set
    objective.masking.rate=0.3`.

    Measured: after 2,500 updates at a learning rate of 2e-3, a validation loss of 4.405 ± 0.051
    over three seeds. A pre-norm `bert_tiny` with 6.136 ± 0.231 has hardly begun to learn
    (experiments/results/encoders).
    """
    return bert_tiny().changed(model="modern_bert_tiny", model_options=())


def modern_bert_base() -> PretrainingRecipe:
    """Returns a recipe for ModernBERT base: the first of three phases, with rows of 1,024 tokens.

    Settings from Warner et al. 2024, section 2.2, and the released `modernbert-base-pretrain.yaml`:
    1,719 billion tokens in batches of 4,608 rows, and 30% masked tokens. Rows are packed with
    several documents, which do not attend to each other. The learning rate is 8e-4 after a warm-up
    over 3 billion tokens, and then stays constant. Adam has betas 0.9 and 0.98, epsilon 1e-6 and
    weight decay 1e-5. The rotary base is 10,000 in all layers. The later phases, with rows of 8,192
    tokens, raise the rotary base to 160,000 in the layers with full attention.

    Differences: Adam with gradient clipping at norm 1 replaces StableAdamW. In the paper, only the
    attention outputs have dropout, at a rate of 0.1. This recipe has no dropout, because
    `model.dropout` would apply to all sub-layers. The batch size is constant, while the paper's
    batch size grows over the first 50 billion tokens. The text is the same as in `roberta_base`.
    The vocabulary has the same type and 50,368 subword pieces.

    For `--set model=modern_bert_large`, the paper's peak learning rate is 5e-4.
    """
    return roberta_base().changed(
        model="modern_bert_base",
        model_options=(("rotary_base", 10_000.0),),
        data=dict(
            sequence_length=1024,
            packing="full_text",
            isolate_documents=True,
            vocabulary=dict(size=50_368),
            batch_size=8,
        ),
        objective=MaskedLanguageObjective(masking=MaskingConfig(rate=0.3)),
        training=dict(
            max_steps=364_000,
            learning_rate=8e-4,
            schedule="constant",
            warmup_steps=636,
            weight_decay=1e-5,
            clip_norm=1.0,
            accumulation_steps=576,
        ),
    )


def albert_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny ALBERT, with shared weights and sentence-order prediction.

    Settings from Lan et al. 2020: all layers share weights. Masks cover n-grams of 1 to 3 whole
    words. The probability of length n is proportional to 1/n. The paper compares embedding widths
    of 64, 128, 256 and 768, and uses 128. This recipe uses 64, because the model is small. For the
    paper's ablations, use `--set data.pairs=next_sentence` or `none`, `--set
    model.sharing=attention`, `feed_forward` or `none`, and `--set model.embedding_dim=128`.
    """
    return bert_tiny().changed(
        model="albert_tiny",
        data=dict(pairs="sentence_order"),
        objective=MaskedLanguageObjective(masking=MaskingConfig(choice="ngrams")),
    )


def albert_base() -> PretrainingRecipe:
    """Returns a recipe for ALBERT base, with 12 million parameters and sentence-order prediction.

    Settings from Lan et al. 2020, section 4.1: 30,000 SentencePiece pieces, masked n-grams of up to
    3 words, 125,000 updates of 4,096 rows, and rows of up to 512 tokens. A tenth of the rows are
    built with a shorter random length.

    Differences: the paper uses LAMB with a learning rate of 1.76e-3. This recipe uses Adam, for
    which that learning rate is too high. The learning rate of 1e-4, the betas and the weight decay
    are from BERT. The warm-up of 3,125 updates was chosen for this learning rate.

    For other sizes, use `--set model=albert_large`, `albert_xlarge` or `albert_xxlarge`.
    """
    return bert_base().changed(
        model="albert_base",
        data=dict(pairs="sentence_order", vocabulary=VocabularyConfig(kind="unigram", size=30_000)),
        objective=MaskedLanguageObjective(masking=MaskingConfig(choice="ngrams")),
        training=DEVLIN | dict(max_steps=125_000, warmup_steps=3_125, accumulation_steps=128),
    )


def span_bert_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny SpanBERT, which masks spans and adds a span boundary objective.

    Settings from Joshi et al. 2020: one segment, and spans of 1 to 10 words with geometrically
    distributed lengths (p = 0.2). All tokens of a span are masked (80%), replaced by random tokens
    (10%) or kept (10%) together. The loss is the sum of the masked language model loss and the span
    boundary loss, which predicts each masked token from the two tokens next to the span.
    """
    return bert_tiny().changed(
        model="span_bert_tiny",
        objective=SpanBoundaryObjective(),
    )


def span_bert_base() -> PretrainingRecipe:
    """Returns a recipe for SpanBERT base, which masks spans and adds a span boundary objective.

    The paper trains a large model, while this recipe has the sizes of BERT base. Settings from
    Joshi et al. 2020, section 4.2: cased WordPiece tokens, one segment of 512 tokens, 2.4 million
    updates, weight decay 0.1, and an Adam epsilon of 1e-8. Batches of 256 rows, the peak learning
    rate of 1e-4 and the warm-up are as in BERT.
    """
    return bert_base().changed(
        model="span_bert_base",
        objective=SpanBoundaryObjective(),
        data=dict(vocabulary=dict(lower_case=False)),
        training=DEVLIN | dict(max_steps=2_400_000, epsilon=1e-8, weight_decay=0.1),
    )


def electra_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny ELECTRA, which detects the tokens that a generator has replaced.

    Settings from Clark et al. 2020: the generator is a quarter as wide as the discriminator and
    shares its token embeddings. The generator learns to predict masked tokens (15%). The
    discriminator classifies every token as original or replaced, and its loss is weighted by 50.
    """
    return bert_tiny().changed(
        model="electra_tiny",
        objective=ReplacedTokenObjective(),
    )


def electra_small() -> PretrainingRecipe:
    """Returns a recipe for ELECTRA small, with 14 million parameters, for one GPU.

    Settings from Clark et al. 2020, table 6: width 256, embedding width 128, a generator a quarter
    as wide as the discriminator, a peak learning rate of 5e-4, 15% masked tokens, and a weight of
    50 for the discriminator loss. An update has 128 rows of 128 tokens (section 3.3). The text and
    the vocabulary are the same as in `bert_base`. The million updates, the warm-up over 10,000
    updates, and Adam's other settings are as in BERT.
    """
    return bert_base().changed(
        model="electra_small",
        objective=ReplacedTokenObjective(),
        data=dict(sequence_length=128, batch_size=128),
        training=DEVLIN | dict(learning_rate=5e-4, accumulation_steps=1),
    )


def electra_base() -> PretrainingRecipe:
    """Returns a recipe for ELECTRA base, whose discriminator has the sizes of BERT base.

    The generator is a third as wide as the discriminator. Settings from Clark et al. 2020, table 6:
    766,000 updates of 256 rows of 512 tokens, and a peak learning rate of 2e-4. All other settings
    are the same as in `electra_small`.
    """
    return electra_small().changed(
        model="electra_base",
        objective=dict(generator_width=1 / 3),
        data=dict(sequence_length=512, batch_size=32),
        training=dict(max_steps=766_000, learning_rate=2e-4, accumulation_steps=8),
    )


def xlm_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny XLM, trained on text in three languages and on translation pairs.

    Settings from Conneau and Lample 2019: a joint BPE vocabulary is trained on lines that are
    sampled with probabilities q_i ~ p_i^0.5, where p_i is the share of language i in the text
    (section 3.1). Language embeddings replace segment embeddings. Updates alternate between a
    masked language model (MLM) and a translation language model (TLM). An MLM batch has text in one
    language, which is sampled with q_i ~ p_i^0.7. A TLM batch has pairs of a sentence and its
    translation, with masks in the sentence and in the translation, and positions restart at the
    translation (sections 3.3 to 3.5).

    Differences: for batches, the share p_i is computed from rows instead of sentences. The training
    text is the user interface text of the program `homeassistant` in English, German and French.
    The text is short, so it is read many times. To train on image captions instead:

        macaron train xlm_tiny runs/xlm --data-dir DIR --set \\
            'data.sources=(("tfds:multi30k/de-en", "train", None, "en"), ("tfds:multi30k/de-en",
            "train", None, "de"), ("tfds:multi30k/fr-en", "train", None, "fr"),
            ("tfds:multi30k/de-en", "train", None, ("de", "en")), ("tfds:multi30k/fr-en", "train",
            None, ("fr", "en")))'

    The loss in the table of this module was measured with languages and pairs mixed in each batch.
    """
    return bert_tiny().changed(
        model="xlm_tiny",
        data=dict(
            sources=(
                *_language_sources("homeassistant:{}"),
                CorpusSource("homeassistant:de", language=("en", "de")),
                CorpusSource("homeassistant:fr", language=("en", "fr")),
            ),
            **_LANGUAGES,
            vocabulary=VocabularyConfig(kind="sentencepiece", size=4_000, lower_case=False),
        ),
        objective=MaskedLanguageObjective(head_transform=False),
    )


def xlm_clm_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny XLM that is a causal language model of three languages.

    The recipe follows Conneau and Lample 2019, section 3.2. The model has language embeddings and
    predicts the next token. Each batch has text in one language, and there are no translation
    pairs. All other settings are the same as in `xlm_tiny`. For a masked language model without
    translation pairs, use `--set objective=masked_language --set objective.head_transform=False
    --set model.causal=False`. The following command trains on image captions. `macaron predict
    runs/clm` can then complete a caption.

        macaron train xlm_clm_tiny runs/clm --data-dir DIR --set \\
            'data.sources=(("tfds:multi30k/de-en", "train", None, "en"), ("tfds:multi30k/de-en",
            "train", None, "de"), ("tfds:multi30k/fr-en", "train", None, "fr"))'

    Measured: there are no results, because the recipe was run for at most 30 updates.
    """
    masked = xlm_tiny()
    return masked.changed(
        objective=CausalLanguageObjective(),
        model_options=(*masked.model_options, ("causal", True)),
        data=dict(sources=tuple(_language_sources("homeassistant:{}"))),
    )


def xlm_captions_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny XLM, trained on English and German captions of different images.

        macaron train xlm_captions_tiny runs/captions --data-dir DIR

    The masked language model reads the English captions of one half of Multi30k and the German
    captions of the other half. No image has captions in both languages, so unsupervised translation
    (`multi30k_unsupervised_tiny`) can start from this model. There are no translation pairs. The
    text is lower-cased, and the vocabulary has 6,000 subword pieces. The 8,000 updates read the
    text 40 times, so this recipe has dropout. All other settings are the same as in `xlm_tiny`.
    """
    halves = (("train[:50%]", "en"), ("train[50%:]", "de"))
    return xlm_tiny().changed(
        model_options=(("attention_dropout", 0.0), ("dropout", 0.1)),
        data=dict(
            sources=tuple(
                CorpusSource("tfds:multi30k/de-en", split=split, language=code)
                for split, code in halves
            ),
            vocabulary=dict(size=6_000, lower_case=True),
        ),
        training=dict(max_steps=8_000),
    )


def xlm_xnli() -> PretrainingRecipe:
    """Returns a recipe for the XLM model of the XNLI experiments, with 12 layers and width 1024.

    Settings from Conneau and Lample 2019, section 5.1: Adam, a linear warm-up, learning rates from
    1e-4 to 5e-4, and 64 rows of 256 tokens per device. The text is the Wikipedia of each language,
    here English, German and French. The vocabulary has 95,000 subword pieces. Vocabulary lines and
    batches are sampled as in `xlm_tiny`, and updates alternate between MLM and TLM.

    Differences: the paper has 15 languages. The translation pairs are German-English and
    French-English, from WMT14. The number of updates, the warm-up length, the decay to 0 and the
    betas are not from the paper.

    To add languages, extend `data.sources`. The translation pairs are held in memory and take
    several gigabytes. The number of French pairs is limited to the number of German pairs.
    """
    return bert_base().changed(
        model="xlm_xnli",
        data=dict(
            sources=(
                *_language_sources("tfds:wikipedia/20230601.{}"),
                CorpusSource("tfds:wmt14_translate/de-en", language=("de", "en")),
                CorpusSource(
                    "tfds:wmt14_translate/fr-en", split="train[:4500000]", language=("fr", "en")
                ),
            ),
            sequence_length=256,
            **_LANGUAGES,
            vocabulary=VocabularyConfig(kind="sentencepiece", size=95_000, lower_case=False),
            batch_size=64,
        ),
        objective=MaskedLanguageObjective(head_transform=False),
        training=dict(learning_rate=1e-4, warmup_steps=30_000, beta_2=0.999, accumulation_steps=8),
    )


def gmlp_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny gMLP, with spatial gating units instead of attention.

    The model follows Liu et al. 2021. Its six layers have feed-forward width 416, and about as many
    parameters as the three layers of `bert_tiny`. There are no position embeddings, because the
    spatial projections have one weight for each distance between positions.
    """
    return bert_tiny().changed(model="gmlp_tiny", objective=MaskedLanguageObjective())


def gmlp_base() -> PretrainingRecipe:
    """Returns a recipe for gMLP base, with spatial gating units instead of attention.

    The sizes are from Liu et al. 2021, section 4: 48 layers, width 512, feed-forward width 3072.

    The vocabulary has 32,000 cased subword pieces, and the peak learning rate is 7e-4.

    Differences: all other training settings are from BERT instead of the paper. Wikipedia and PG-19
    replace C4.

    A micro-batch has 16 rows, because 32 rows need 15.9 GiB and a core of a TPU v4 has 15.25 GiB.
    For the large size, use `--set model=gmlp_large`.
    """
    return bert_base().changed(
        model="gmlp_base",
        data=dict(
            vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000, lower_case=False),
            batch_size=16,
        ),
        objective=MaskedLanguageObjective(),
        training=DEVLIN | dict(learning_rate=7e-4, accumulation_steps=16),
    )


def amlp_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny aMLP: gMLP with one small attention head in every layer."""
    return gmlp_tiny().changed(model="amlp_tiny")


def amlp_base() -> PretrainingRecipe:
    """Returns a recipe for aMLP base: gMLP with one small attention head in every layer.

    The sizes are from Liu et al. 2021, section 4: 36 layers, attention width 64, width 512,
    feed-forward width 3072. All settings except the model are the same as in `gmlp_base`. For the
    large size, use `--set model=amlp_large`.
    """
    return gmlp_base().changed(model="amlp_base")
