"""BERT's successors: RoBERTa, ModernBERT, ALBERT, SpanBERT, ELECTRA, XLM, gMLP, aMLP.

The tiny ones have the shapes, tokens and schedule of `bert_tiny`. Text that TensorFlow Datasets
lacks is replaced as in `bert_base`. Measured: the tiny ones after 5,000 updates of 8 rows, pre-norm
with T5's bias, with one seed or three (`experiments/results/slides_encoders`; ELECTRA's loss is
that of the generator). The others were not run at their size.

                     loss of tokens   fine-tuned: SST-2   CoNLL-2003
    roberta_tiny     5.49             80.1                62.6
    albert_tiny      5.92 ± 0.05      79.3 ± 0.9          47.9 ± 3.1   order of sentences right 53%
    span_bert_tiny   5.67             81.0                57.8         boundary loss 6.13
    electra_tiny     6.40 ± 0.05      74.4 ± 4.6          36.1 ± 2.0   0.6% of the replaced found
    xlm_tiny         6.26             74.6                40.5
    gmlp_tiny        4.73             80.7                69.7
    amlp_tiny        4.65             81.1                69.5
"""

from experiments.pretrain.run import PretrainingRecipe, VocabularyConfig
from experiments.recipes.bert import DEVLIN, bert_base, bert_tiny
from macaron_tf.data.corpus.config import CorpusSource
from macaron_tf.objectives import MaskingConfig


def _texts(source: str) -> list[CorpusSource]:
    """XLM's text in three languages."""
    return [CorpusSource(source.format(code), language=code) for code in ("en", "de", "fr")]


def roberta_tiny() -> PretrainingRecipe:
    """RoBERTa, tiny: dynamic masks, one segment, full sentences across documents.

    Liu et al. 2019, sections 3 and 4: byte-level BPE, rows of full sentences that continue with the
    next document, and 15% of the tokens predicted, of which 80% are masked and 10% random. `--set
    masking.duplicates=10` gives each row ten static masks, as in BERT's released data, to compare
    static with dynamic masks.

    Measured on a 40th of the text: dynamic masks 5.80 ± 0.05, ten static masks 5.78 ± 0.01.
    """
    return bert_tiny().changed(
        model="roberta_tiny",
        corpus=dict(packing="full_sentences"),
        vocabulary=VocabularyConfig(kind="byte_bpe", size=4_000, lower_case=False),
        masking=MaskingConfig(),
    )


def roberta_base() -> PretrainingRecipe:
    """RoBERTa, base: BERT's encoder with larger batches and without next-sentence prediction.

    Liu et al. 2019: 125,000 updates of 2,048 sequences of 512, which are as many tokens as BERT
    reads (its table 3), Adam(0.9, 0.98) (section 3.1), full sentences, dynamic masks. From its
    released command: the peak learning rate, 5e-4 (table 3 has 7e-4), after 10,000 updates, linear
    to 0, epsilon 1e-6, weight decay 0.01, and the number of pieces.
    """
    return bert_base().changed(
        model="roberta_base",
        corpus=dict(packing="full_sentences"),
        vocabulary=VocabularyConfig(kind="byte_bpe", size=50_265, lower_case=False),
        masking=MaskingConfig(),
        training=dict(
            max_steps=125_000, learning_rate=5e-4, warmup_steps=10_000, accumulation_steps=64
        ),
    )


def roberta_8k_base() -> PretrainingRecipe:
    """RoBERTa, base, as it was released: 500,000 updates of 8,192 rows.

    Liu et al. 2019, table 9: a peak of 6e-4 after 24,000 updates; otherwise as `roberta_base`. The
    paper's 160 GB of text are Wikipedia, books, news, web pages and stories; give your text by
    `corpus.sources`.
    """
    return roberta_base().changed(
        training=dict(
            max_steps=500_000, learning_rate=6e-4, warmup_steps=24_000, accumulation_steps=256
        )
    )


def roberta_8k_large() -> PretrainingRecipe:
    """RoBERTa, large, as `roberta_8k_base`: a peak of 4e-4 after 30,000 updates (table 9)."""
    return roberta_8k_base().changed(
        model="roberta_large",
        batch_size=8,
        training=dict(learning_rate=4e-4, warmup_steps=30_000, accumulation_steps=1024),
    )


def modern_bert_tiny() -> PretrainingRecipe:
    """ModernBERT, tiny: `bert_tiny` with modern layers, for two cores.

        python -m experiments.compare runs/encoders --data-dir DIR \\
            bert=bert_tiny modern=modern_bert_tiny macaron=modern_bert_tiny:model.block=macaron \\
            --equal parameters

    Warner et al. 2024, section 2.1: rotary positions, gated feed-forwards, no biases, a norm before
    each sub-layer, windows in two layers of three. Vocabulary, masks and schedule are those of
    `bert_tiny`, so that only the networks differ. The paper masks 30% of the tokens: `--set
    masking.rate=0.3`.

    Not measured yet.
    """
    return bert_tiny().changed(model="modern_bert_tiny", model_options=())


def modern_bert_base() -> PretrainingRecipe:
    """ModernBERT, base: the first of its three phases, on rows of 1,024.

    Warner et al. 2024, section 2.2, and the released `modernbert-base-pretrain.yaml`: 1,719 billion
    tokens in batches of 4,608 rows, 30% of the tokens masked, packed documents that do not see each
    other, a constant rate of 8e-4 after 3 billion tokens, betas 0.9 and 0.98, epsilon 1e-6, weight
    decay 1e-5, and a rotary base of 10,000 in all layers. (The later phases, on rows of 8,192,
    raise it to 160,000 in layers without a window.)

    Differences: Adam clipped at 1 instead of StableAdamW. No dropout instead of 0.1 on attention's
    outputs, because `model.dropout` applies to all sub-layers. Constant batches, while those of the
    paper grow over the first 50 billion tokens. Text and vocabulary are those of `roberta_base`,
    with 50,368 pieces. For `--set model=modern_bert_large` the paper's peak is 5e-4.
    """
    return roberta_base().changed(
        model="modern_bert_base",
        model_options=(("rotary_base", 10_000.0),),
        corpus=dict(sequence_length=1024, packing="full_text"),
        isolate_documents=True,
        vocabulary=dict(size=50_368),
        masking=MaskingConfig(rate=0.3),
        batch_size=8,
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
    """ALBERT, tiny: layers share weights; masked n-grams and sentence-order prediction.

    Lan et al. 2020: masks cover whole words in n-grams of up to 3, p(n) ~ 1/n. The embedding width
    E is 64 because of the size (the paper chooses 128 from 64, 128, 256 and 768). The paper's
    ablations: `--set corpus.pairs=next_sentence` or `none`, `--set model.sharing=attention`,
    `feed_forward` or `none`, `--set model.embedding_dim=128`.
    """
    return bert_tiny().changed(
        model="albert_tiny",
        corpus=dict(pairs="sentence_order"),
        masking=MaskingConfig(choice="ngrams"),
    )


def albert_base() -> PretrainingRecipe:
    """ALBERT, base: 12 million parameters; masked n-grams and sentence-order prediction.

    Lan et al. 2020, section 4.1: 30,000 SentencePiece pieces, rows of 512 tokens, of which a tenth
    are shorter, n-grams of up to 3 words, 125,000 updates of 4,096 rows. The paper uses LAMB at
    1.76e-3. This recipe uses Adam, for which that rate is too high: 1e-4, betas and weight decay
    are those of BERT, and the warm-up of 3,125 updates was chosen for it. Other sizes: `--set
    model=albert_large`, `albert_xlarge` or `albert_xxlarge`.
    """
    return bert_base().changed(
        model="albert_base",
        corpus=dict(pairs="sentence_order"),
        vocabulary=VocabularyConfig(kind="unigram", size=30_000),
        masking=MaskingConfig(choice="ngrams"),
        training=DEVLIN | dict(max_steps=125_000, warmup_steps=3_125, accumulation_steps=128),
    )


def span_bert_tiny() -> PretrainingRecipe:
    """SpanBERT, tiny: masked spans, which are also predicted from the tokens beside them.

    Joshi et al. 2020: one segment, and spans of 1 to 10 words with geometric lengths (p = 0.2). All
    tokens of a span are masked (80%), replaced by random ones (10%) or kept (10%) together. The
    loss is the sum of the masked language model's and the span boundary objective's.
    """
    return bert_tiny().changed(
        model="span_bert_tiny",
        objective="span_boundary",
        masking=MaskingConfig(choice="spans", fate="span", round_up=True),
    )


def span_bert_base() -> PretrainingRecipe:
    """SpanBERT, base: masked spans, which are also predicted from the tokens beside them.

    Joshi et al. 2020, section 4.2, for the large model: BERT's shapes, data and batches, cased word
    pieces, one segment of 512 tokens, 2.4 million updates, weight decay 0.1, Adam's epsilon 1e-8.
    """
    return bert_base().changed(
        model="span_bert_base",
        objective="span_boundary",
        vocabulary=dict(lower_case=False),
        masking=MaskingConfig(choice="spans", fate="span", round_up=True),
        training=DEVLIN | dict(max_steps=2_400_000, epsilon=1e-8, weight_decay=0.1),
    )


def electra_tiny() -> PretrainingRecipe:
    """ELECTRA, tiny: a discriminator detects which tokens a small generator has replaced.

    Clark et al. 2020. The generator is a quarter as wide as the discriminator, shares its
    embeddings, and learns to predict masked tokens, 15% of all. The discriminator classifies every
    token; its loss has the weight 50.
    """
    return bert_tiny().changed(
        model="electra_tiny",
        objective="replaced_tokens",
        masking=MaskingConfig(mask=1.0, random=0.0, round_up=True),
    )


def electra_small() -> PretrainingRecipe:
    """ELECTRA, small: 14 million parameters, for one GPU.

    Clark et al. 2020, table 6: D 256, embedding width 128, a generator a quarter as wide, peak
    learning rate 5e-4, 15% masked, weight 50 for the discriminator's loss. Section 3.3: 128 rows of
    128 tokens per update. Other settings are those of BERT.
    """
    return bert_base().changed(
        model="electra_small",
        objective="replaced_tokens",
        masking=MaskingConfig(mask=1.0, random=0.0, round_up=True),
        corpus=dict(sequence_length=128),
        batch_size=128,
        training=DEVLIN | dict(learning_rate=5e-4, accumulation_steps=1),
    )


def electra_base() -> PretrainingRecipe:
    """ELECTRA, base: BERT's shapes, and a generator a third as wide.

    Clark et al. 2020, table 6: 766,000 updates of 256 rows of 512 tokens, peak learning rate 2e-4;
    otherwise as `electra_small`.
    """
    return electra_small().changed(
        model="electra_base",
        generator_width=1 / 3,
        corpus=dict(sequence_length=512),
        batch_size=32,
        training=dict(max_steps=766_000, learning_rate=2e-4, accumulation_steps=8),
    )


def xlm_tiny() -> PretrainingRecipe:
    """XLM, tiny: MLM and TLM in turn, on text in three languages and on translation pairs.

    Conneau and Lample 2019: a joint BPE vocabulary from lines sampled with q_i ~ p_i^0.5 (section
    3.1); language embeddings instead of segments; batches of text in one language, sampled with q_i
    ~ p_i^0.7. Every second update (TLM) has pairs of a sentence and its translation, with masks in
    both, and positions restart at the translation (sections 3.3 to 3.5). A language's share p_i is
    that of its rows instead of its sentences. The text, in English, German and French, comes from
    the program `homeassistant`; it is short and read many times. To use captions instead:

        python -m experiments.pretrain train xlm_tiny runs/xlm --data-dir DIR --set \\
            'corpus.sources=(("tfds:multi30k/de-en", "train", None, "en"), ("tfds:multi30k/de-en",
            "train", None, "de"), ("tfds:multi30k/fr-en", "train", None, "fr"),
            ("tfds:multi30k/de-en", "train", None, ("de", "en")), ("tfds:multi30k/fr-en", "train",
            None, ("fr", "en")))'

    The loss in this module's table was measured with languages and pairs mixed in each batch.
    """
    return bert_tiny().changed(
        model="xlm_tiny",
        head_transform=False,
        corpus=dict(
            sources=(
                *_texts("homeassistant:{}"),
                CorpusSource("homeassistant:de", language=("en", "de")),
                CorpusSource("homeassistant:fr", language=("en", "fr")),
            ),
            packing="full_text",
            language_alpha=0.5,
            batch_alpha=0.7,
        ),
        vocabulary=VocabularyConfig(kind="sentencepiece", size=4_000, lower_case=False),
        masking=MaskingConfig(),
    )


def xlm_clm_tiny() -> PretrainingRecipe:
    """XLM, tiny, by CLM: a causal language model of three languages, without translations.

    Conneau and Lample 2019, section 3.2: predicts the next token of text in one language per batch,
    with language embeddings; otherwise as `xlm_tiny`. MLM only: `--set objective=masked_language
    --set model.causal=False`. To train on captions, which `generate complete runs/clm` can then
    continue:

        python -m experiments.pretrain train xlm_clm_tiny runs/clm --data-dir DIR --set \\
            'corpus.sources=(("tfds:multi30k/de-en", "train", None, "en"), ("tfds:multi30k/de-en",
            "train", None, "de"), ("tfds:multi30k/fr-en", "train", None, "fr"))'

    Measured: no more than 30 updates.
    """
    masked = xlm_tiny()
    return masked.changed(
        objective="causal_language",
        model_options=(*masked.model_options, ("causal", True)),
        corpus=dict(sources=tuple(_texts("homeassistant:{}"))),
    )


def xlm_captions_tiny() -> PretrainingRecipe:
    """XLM, tiny, on captions: MLM on the English of one half of Multi30k, the German of the other.

    No caption is read in both languages, so that unsupervised translation
    (`multi30k_unsupervised_tiny`) can start from it. Otherwise as `xlm_tiny`, but lower-cased, with
    more pieces, and with dropout and more updates, because the text is read 40 times.

        python -m experiments.pretrain train xlm_captions_tiny runs/captions --data-dir DIR
    """
    halves = (("train[:50%]", "en"), ("train[50%:]", "de"))
    return xlm_tiny().changed(
        model_options=(("attention_dropout", 0.0), ("dropout", 0.1)),
        corpus=dict(
            sources=tuple(
                CorpusSource("tfds:multi30k/de-en", split=split, language=code)
                for split, code in halves
            )
        ),
        vocabulary=dict(size=6_000, lower_case=True),
        training=dict(max_steps=8_000),
    )


def xlm_xnli() -> PretrainingRecipe:
    """XLM for XNLI: 12 layers, D 1024, 95,000 pieces, MLM and TLM in turn.

    Conneau and Lample 2019, section 5.1: Adam, linear warm-up, learning rates from 1e-4 to 5e-4,
    64 rows of 256 tokens on each device; Wikipedia of each language, and pairs with English, here
    WMT14's German and French. The number of updates, the warm-up, the decay to 0 and the betas are
    not from the paper. Lines of the vocabulary and batches are sampled as in `xlm_tiny`. Add
    languages by `corpus.sources`. Pairs are held in memory and take some gigabytes; of the French
    ones, only as many are read as there are German ones.
    """
    return bert_base().changed(
        model="xlm_xnli",
        head_transform=False,
        corpus=dict(
            sources=(
                *_texts("tfds:wikipedia/20230601.{}"),
                CorpusSource("tfds:wmt14_translate/de-en", language=("de", "en")),
                CorpusSource(
                    "tfds:wmt14_translate/fr-en", split="train[:4500000]", language=("fr", "en")
                ),
            ),
            sequence_length=256,
            packing="full_text",
            language_alpha=0.5,
            batch_alpha=0.7,
        ),
        vocabulary=VocabularyConfig(kind="sentencepiece", size=95_000, lower_case=False),
        masking=MaskingConfig(),
        batch_size=64,
        training=dict(learning_rate=1e-4, warmup_steps=30_000, beta_2=0.999, accumulation_steps=8),
    )


def gmlp_tiny() -> PretrainingRecipe:
    """gMLP, tiny: spatial gating units instead of attention.

    Liu et al. 2021: six layers, which have as many parameters as three of BERT. There are no
    position embeddings; the spatial matrices have a weight for each distance.
    """
    return bert_tiny().changed(model="gmlp_tiny", masking=MaskingConfig())


def gmlp_base() -> PretrainingRecipe:
    """gMLP, base: spatial gating units instead of attention.

    Liu et al. 2021, section 4: 48 layers, D 512, F 3072. The training is not from the paper: it is
    BERT's, with a peak learning rate of 7e-4 and 32,000 cased pieces. Wikipedia and books replace
    the paper's text, C4. A micro-batch has 16 rows, because 32 need 15.9 GiB and a core of a TPU v4
    has 15.25 GiB. The large size: `--set model=gmlp_large`.
    """
    return bert_base().changed(
        model="gmlp_base",
        vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000, lower_case=False),
        masking=MaskingConfig(),
        batch_size=16,
        training=DEVLIN | dict(learning_rate=7e-4, accumulation_steps=16),
    )


def amlp_tiny() -> PretrainingRecipe:
    """aMLP, tiny: gMLP with one small attention head in every layer."""
    return gmlp_tiny().changed(model="amlp_tiny")


def amlp_base() -> PretrainingRecipe:
    """aMLP, base: gMLP with one small attention head in every layer.

    Liu et al. 2021, section 4: 36 layers, attention width 64, D 512, F 3072; trained like
    `gmlp_base`. The large size: `--set model=amlp_large`.
    """
    return gmlp_base().changed(model="amlp_base")
