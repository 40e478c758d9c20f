"""BERT's successors: RoBERTa, ALBERT, SpanBERT, ELECTRA, XLM."""

from experiments.pretrain.recipe import PretrainingRecipe, VocabularyConfig
from experiments.recipes.bert import bert_base, bert_tiny
from macaron_tf.data.corpus.config import CorpusSource
from macaron_tf.objectives import MaskingConfig

_LANGUAGES = ("en", "de", "fr")


def roberta_tiny() -> PretrainingRecipe:
    """RoBERTa, tiny: masks drawn anew each time, one segment, full sentences across documents.

    Liu et al. 2019, sections 3 and 4, in `bert_tiny`'s shapes, tokens and schedule: byte-level BPE,
    rows of full sentences that go on with the next document, no next sentences, 15% of the tokens,
    of which 80% are masked and 10% exchanged. `--set masking.duplicates=10` masks once and for all
    as BERT's released data do, ten ways for each row, for the slides' comparison of static and
    dynamic masks.

    Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (one seed), loss of tokens
    5.49; fine-tuned, SST-2 80.1 and CoNLL-2003 62.6. On a 40th of the text (three seeds), masks
    drawn anew 5.80 ± 0.05, ten masks a row 5.78 ± 0.01; see `experiments/results/slides_encoders`.
    """
    return bert_tiny().changed(
        model="roberta_tiny",
        corpus=dict(packing="full_sentences"),
        vocabulary=VocabularyConfig(kind="byte_bpe", size=4_000, lower_case=False),
        masking=MaskingConfig(),
    )


def roberta_base() -> PretrainingRecipe:
    """RoBERTa, base: BERT's encoder, trained longer, on larger batches, without next sentences.

    Liu et al. 2019: 125,000 updates of 2,048 sequences of 512, which are as many tokens as BERT's
    (its table 3), Adam(0.9, 0.98) with epsilon 1e-6 (section 3.1), full sentences, dynamic masks.
    Of its released command are the peak learning rate, 5e-4 (table 3 has 7e-4) after 10,000
    updates, linear to 0, the weight decay, 0.01, and the number of pieces. 64 micro-batches of 32
    rows make an update on one device.

    Measured: not run at this size.
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


def albert_tiny() -> PretrainingRecipe:
    """ALBERT, tiny: one layer's weights for all three, n-grams masked, the order of sentences.

    Lan et al. 2020 in `bert_tiny`'s shapes, tokens and schedule; E 64, whole words in n-grams of up
    to 3, p(n) ~ 1/n. For the slides' tables: `--set corpus.pairs=next_sentence` or `none`, `--set
    model.sharing=attention`, `feed_forward` or `none`, `--set model.embedding_dim=128`.

    Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (three seeds), loss of tokens
    5.92 ± 0.05; the order of sentences right 53%; fine-tuned, SST-2 79.3 ± 0.9 and CoNLL-2003 47.9
    ± 3.1; see `experiments/results/slides_encoders`.
    """
    return bert_tiny().changed(
        model="albert_tiny",
        corpus=dict(pairs="sentence_order"),
        masking=MaskingConfig(choice="ngrams"),
    )


def albert_base() -> PretrainingRecipe:
    """ALBERT, base: 12 million parameters, n-grams masked, the order of sentences.

    Lan et al. 2020, section 4.1: 30,000 SentencePiece pieces, rows of 512, a tenth of them shorter,
    n-grams of up to 3 words, 4,096 rows an update, 125,000 updates. The paper's LAMB at 1.76e-3 is
    Adam here, which does not bear that rate: 1e-4, the betas and the weight decay are BERT's, the
    3,125 updates of warm-up chosen here. `--set model=albert_large` (xlarge, xxlarge) takes the
    other sizes.

    Measured: not run at this size.
    """
    return bert_base().changed(
        model="albert_base",
        corpus=dict(pairs="sentence_order"),
        vocabulary=VocabularyConfig(kind="unigram", size=30_000),
        masking=MaskingConfig(choice="ngrams"),
        training=dict(
            max_steps=125_000,
            learning_rate=1e-4,
            warmup_steps=3_125,
            beta_2=0.999,
            accumulation_steps=128,
        ),
    )


def span_bert_tiny() -> PretrainingRecipe:
    """SpanBERT, tiny: spans masked, and predicted from their two neighbours besides.

    Joshi et al. 2020 in `bert_tiny`'s shapes, tokens and schedule: one segment, spans of 1 to 10
    words with geometric lengths (p 0.2), all tokens of a span masked (80%), exchanged (10%) or kept
    (10%) together, the boundary objective added to the masked language one.

    Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (one seed), loss of tokens
    5.67; boundary loss 6.13; fine-tuned, SST-2 81.0 and CoNLL-2003 57.8; see
    `experiments/results/slides_encoders`.
    """
    return bert_tiny().changed(
        model="span_bert_tiny",
        objective="span_boundary",
        masking=MaskingConfig(choice="spans", fate="span", round_up=True),
    )


def span_bert_base() -> PretrainingRecipe:
    """SpanBERT, base: spans masked, and predicted from their two neighbours besides.

    Joshi et al. 2020, section 4.2: BERT's shapes and data, one segment of 512, 256 rows an update,
    2.4 million updates, peak learning rate 1e-4 after 10,000 of them, linear to 0, weight decay
    0.1, Adam's epsilon 1e-8, dropout 0.1. 8 micro-batches of 32 rows make an update on one device.

    Measured: not run at this size.
    """
    return bert_base().changed(
        model="span_bert_base",
        objective="span_boundary",
        masking=MaskingConfig(choice="spans", fate="span", round_up=True),
        training=dict(
            max_steps=2_400_000,
            learning_rate=1e-4,
            warmup_steps=10_000,
            beta_2=0.999,
            epsilon=1e-8,
            weight_decay=0.1,
            accumulation_steps=8,
        ),
    )


def electra_tiny() -> PretrainingRecipe:
    """ELECTRA, tiny: which tokens has a small generator replaced?

    Clark et al. 2020 in `bert_tiny`'s shapes, tokens and schedule, the discriminator's that is: the
    generator is a quarter as wide, reads the same embeddings and learns masked tokens, 15% of them
    and all masked; the discriminator judges every token, with weight 50.

    Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (three seeds), loss of tokens
    6.40 ± 0.05 (the generator's); 0.6% of the replaced found; fine-tuned, SST-2 74.4 ± 4.6 and
    CoNLL-2003 36.1 ± 2.0; see `experiments/results/slides_encoders`.
    """
    return bert_tiny().changed(
        model="electra_tiny",
        objective="replaced_tokens",
        masking=MaskingConfig(mask=1.0, random=0.0, round_up=True),
    )


def electra_small() -> PretrainingRecipe:
    """ELECTRA, small: 14 million parameters, for one GPU.

    Clark et al. 2020, table 6: 12 layers, D 256, F 1024, 4 heads, E 128, a generator a quarter as
    wide, 128 rows of 128 an update, a million of them, peak learning rate 5e-4 after 10,000, linear
    to 0, Adam(0.9, 0.999) with epsilon 1e-6, weight decay 0.01, 15% masked, discriminator's weight
    50.

    Measured: not run at this size.
    """
    return bert_base().changed(
        model="electra_small",
        objective="replaced_tokens",
        masking=MaskingConfig(mask=1.0, random=0.0, round_up=True),
        corpus=dict(sequence_length=128),
        batch_size=128,
        training=dict(
            max_steps=1_000_000,
            learning_rate=5e-4,
            warmup_steps=10_000,
            beta_2=0.999,
            accumulation_steps=1,
        ),
    )


def electra_base() -> PretrainingRecipe:
    """ELECTRA, base: BERT's shapes, a generator a third as wide.

    Clark et al. 2020, table 6: 256 rows of 512 an update, 766,000 of them, peak learning rate 2e-4
    after 10,000, linear to 0; the rest as `electra_small`. 8 micro-batches of 32 rows make an
    update on one device.

    Measured: not run at this size.
    """
    return electra_small().changed(
        model="electra_base",
        generator_width=1 / 3,
        corpus=dict(sequence_length=512),
        batch_size=32,
        training=dict(max_steps=766_000, learning_rate=2e-4, accumulation_steps=8),
    )


def xlm_tiny() -> PretrainingRecipe:
    """XLM, tiny: masked tokens in three languages, and in pairs of a sentence and its translation.

    Conneau and Lample 2019 in `bert_tiny`'s shapes, tokens and schedule: one BPE vocabulary,
    language embeddings in place of segments, positions that begin again at a translation, languages
    drawn with q_i ~ p_i^0.5 (section 3.1). English, German and French, and English with both, out
    of the embedded corpus: screen texts, which are read over and over. Of the paper's three
    objectives this is MLM with TLM; CLM: `--set objective=causal_language --set model.causal=True`.

    Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (one seed), loss of tokens
    6.26; fine-tuned, SST-2 74.6 and CoNLL-2003 40.5; see `experiments/results/slides_encoders`.
    """
    return bert_tiny().changed(
        model="xlm_tiny",
        head_transform=False,
        corpus=dict(
            sources=(
                *(CorpusSource(f"homeassistant:{code}", language=code) for code in _LANGUAGES),
                *(
                    CorpusSource(f"homeassistant:{code}", language=("en", code))
                    for code in _LANGUAGES[1:]
                ),
            ),
            language_alpha=0.5,
        ),
        vocabulary=VocabularyConfig(kind="sentencepiece", size=4_000, lower_case=False),
        masking=MaskingConfig(),
    )


def xlm_xnli() -> PretrainingRecipe:
    """XLM for XNLI: 12 layers, D 1024, 95,000 pieces, masked tokens and translations.

    Conneau and Lample 2019, section 5.1: Adam, linear warm-up, learning rates from 1e-4 to 5e-4,
    rows of 256, 64 of them a device; Wikipedia of each language and pairs with English, for which
    WMT14's German and French stand in. The updates, their warm-up, the decay to 0 and the betas are
    chosen here. Languages are drawn with q_i ~ p_i^0.5. More of them: `corpus.sources`. Pairs are
    held in memory, of French as many as there are of German: some gigabytes.

    Measured: not run at this size.
    """
    return bert_base().changed(
        model="xlm_xnli",
        head_transform=False,
        corpus=dict(
            sources=(
                CorpusSource("tfds:wikipedia/20230601.en", language="en"),
                CorpusSource("tfds:wikipedia/20230601.de", language="de"),
                CorpusSource("tfds:wikipedia/20230601.fr", language="fr"),
                CorpusSource("tfds:wmt14_translate/de-en", language=("de", "en")),
                CorpusSource(
                    "tfds:wmt14_translate/fr-en", split="train[:4500000]", language=("fr", "en")
                ),
            ),
            sequence_length=256,
            language_alpha=0.5,
        ),
        vocabulary=VocabularyConfig(kind="sentencepiece", size=95_000, lower_case=False),
        masking=MaskingConfig(),
        batch_size=64,
        training=dict(learning_rate=1e-4, warmup_steps=30_000, beta_2=0.999, accumulation_steps=8),
    )
