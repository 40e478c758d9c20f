"""Encoder-decoders that restore damaged text: T5 and BART.

The tiny ones have the shapes, rows and tokens of `bert_tiny` in each of their two stacks; `--set
model.block=macaron` or `swish_rnn` gives both stacks other blocks with as many weights. Measured:
their losses on validation text in `experiments/results/slides_decoders`, whose settings differ. The
base ones were not run at their size. Wikipedia and books of TensorFlow Datasets replace the papers'
texts.
"""

from experiments.pretrain.run import PretrainingRecipe, VocabularyConfig
from experiments.recipes.bert import bert_base, bert_tiny
from macaron_tf.objectives import DenoisingConfig, MaskingConfig, SpanCorruptionConfig

_CORRUPTION = SpanCorruptionConfig(rate=0.15, mean_span=3.0)


def t5_tiny() -> PretrainingRecipe:
    """T5, tiny: an encoder-decoder predicts spans that sentinels replace.

    Raffel et al. 2020: 15% of the tokens in spans of 3 on average, T5's relative bias,
    root-mean-square norms, no biases, and the paper's optimizer: Adafactor at 1/sqrt(max(n, 10^4)),
    which is 0.01 until the end of this run. The paper's dropout of 0.1 is left out, as in
    `bert_tiny`. Relative biases are initialized as in its released code: normal, with standard
    deviation D^-1/2.

    Measured (three seeds; relative biases then started at 0): 4.29 ± 0.01; Macaron 4.38 ± 0.07;
    SwishRNN 3.98 ± 0.03.
    """
    return bert_tiny().changed(
        model="t5_tiny",
        model_options=(("dropout", 0.0), ("attention_dropout", 0.0), ("activation_dropout", 0.0)),
        objective="span_corruption",
        training=dict(
            optimizer="adafactor",
            learning_rate=0.01,
            schedule="inverse_sqrt",
            warmup_steps=10_000,
            warmup_start=0.01,
            weight_decay=0.0,
        ),
    )


def t5_base() -> PretrainingRecipe:
    """T5, base: 220 million parameters; predicts spans of texts of 512 tokens.

    Raffel et al. 2020, section 3.1: 2^19 updates of 128 sources of 512 tokens, which come from rows
    of 568 tokens and have targets of 114; dropout 0.1, but not after the last norm. The constant
    first part of Adafactor's schedule is written as a warm-up from 0.01 to 0.01. The paper's text,
    C4, has 750 GB: `--set "corpus.sources=('tfds:c4/en',)"`. Version 1.1 of T5: `--set
    model=t5_1_1_base --set model.dropout=0.0`.
    """
    return t5_tiny().changed(
        model="t5_base",
        model_options=(),
        corruption=_CORRUPTION,
        corpus=dict(sequence_length=_CORRUPTION.text_length(512) + 2),  # with [CLS] and [SEP]
        vocabulary=VocabularyConfig(kind="unigram", size=32_000, lower_case=False),
        masking=MaskingConfig(),
        training=dict(
            max_steps=524_288,
            epsilon=1e-8,
            decay_vectors=True,
            accumulation_steps=4,
            dtype_policy="mixed_bfloat16",
            validate_every=5_000,
        ),
    )


def bart_tiny() -> PretrainingRecipe:
    """BART, tiny: restores a text whose sentences are shuffled and whose spans are masked.

    Lewis et al. 2020: text infilling of 30% of the words (section 5.1 says tokens, the released
    code counts words) in spans of 3 on average (Poisson), and shuffled sentences. The paper's other
    kinds of noise are `--set denoising.rotation=1.0`, `denoising.masking=0.15` and
    `denoising.deletion=0.15`, each alone with `denoising.infilling=0` and `denoising.shuffling=0`.

    Measured: 3.56; Macaron 3.48; SwishRNN 1.97.
    """
    return bert_tiny().changed(model="bart_tiny", objective="denoising")


def bart_base() -> PretrainingRecipe:
    """BART, base: 139 million parameters; restores noised texts of 512 tokens.

    Lewis et al. 2020, sections 2.2 and 5.1: 500,000 updates of 8,000 texts, byte-level BPE as in
    GPT-2. The paper does not give settings for the base model. These are those of the large model,
    which follow RoBERTa, with the peak of RoBERTa-base, 6e-4. Dropout stays until the end, while
    the large model has none in the last tenth of the updates.
    """
    return bert_base().changed(
        model="bart_base",
        objective="denoising",
        denoising=DenoisingConfig(infilling=0.3, mean_span=3.0, shuffling=1.0),
        vocabulary=VocabularyConfig(kind="byte_bpe", size=50_265, lower_case=False),
        masking=MaskingConfig(),
        training=dict(
            max_steps=500_000, learning_rate=6e-4, warmup_steps=24_000, accumulation_steps=250
        ),
    )
