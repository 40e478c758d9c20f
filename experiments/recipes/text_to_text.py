"""Recipes for encoder-decoders that restore corrupted text: T5 and BART.

The encoder and the decoder of a tiny model each have the sizes of `bert_tiny`. The rows and the
number of training tokens are also as in `bert_tiny`. `--set model.block=macaron` and `--set
model.block=swish_rnn` replace the blocks of the encoder and the decoder with Macaron or SwishRNN
blocks that have the same number of weights. Wikipedia and PG-19 replace the text of the papers.

Measured: the validation losses of the tiny models (`experiments/results/slides_decoders`) are from
runs with other settings than these recipes: 5,000 updates of 8 rows, and pre-norm. The recipes for
the base models were not run to the end.
"""

from experiments.recipes.bert import bert_base, bert_tiny
from experiments.recipes.bert_successors import roberta_8k_base
from macaron_tf.objectives import DenoisingObjective, SpanCorruptionObjective
from macaron_tf.runs.pretraining import PretrainingRecipe, VocabularyConfig


def t5_tiny() -> PretrainingRecipe:
    """Returns a recipe for a tiny T5, which predicts the spans that sentinel tokens replace.

    Settings from Raffel et al. 2020: sentinels replace 15% of the tokens, in spans of 3 tokens on
    average. The model has T5's relative attention bias and RMSNorm. Its dense layers have no
    biases. The optimizer is Adafactor with a learning rate of 1/sqrt(max(n, 10^4)) at update n.
    This learning rate is 0.01 for all 6,000 updates of this recipe. Relative attention biases are
    initialized as in the released code, with a normal distribution of standard deviation D^-1/2.

    Differences: the paper has a dropout of 0.1, and this recipe has no dropout. Text and vocabulary
    are the same as in `bert_tiny`.

    Measured with three seeds, zero-initialized relative attention biases and the settings that the
    docstring of this module names: a validation loss of 4.29 ± 0.01 nats. With Macaron blocks, the
    loss is 4.38 ± 0.07; with SwishRNN blocks, it is 3.98 ± 0.03.
    """
    return bert_tiny().changed(
        model="t5_tiny",
        model_options=(("dropout", 0.0), ("attention_dropout", 0.0), ("activation_dropout", 0.0)),
        objective=SpanCorruptionObjective(rate=0.15, mean_span=3.0),
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
    """Returns a recipe for T5 base, with 220 million parameters and encoder inputs of 512 tokens.

    Settings from Raffel et al. 2020, section 3.1: 2^19 updates of 128 encoder inputs of 512 tokens.
    Span corruption turns a row of 568 tokens into an encoder input of 512 tokens and a target of
    114 tokens. Dropout is 0.1, except after the last norm. The learning rate is 0.01 in the first
    10,000 updates, which the recipe expresses as a warm-up from 0.01 to 0.01.

    Wikipedia and PG-19 replace the paper's text, C4, which takes 750 GB. To train on C4, use `--set
    "data.sources=('tfds:c4/en',)"`. For version 1.1 of T5, which is pre-trained without dropout,
    use `--set model=t5_1_1_base --set model.dropout=0.0 --set model.attention_dropout=0.0 --set
    model.activation_dropout=0.0`.
    """
    tiny = t5_tiny()
    return tiny.changed(
        model="t5_base",
        model_options=(),
        data=dict(
            sequence_length=tiny.objective.text_length(512) + 2,  # with [CLS] and [SEP]
            vocabulary=VocabularyConfig(kind="unigram", size=32_000, lower_case=False),
        ),
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
    """Returns a recipe for a tiny BART, which restores shuffled sentences and masked spans.

    Settings from Lewis et al. 2020: text infilling replaces 30% of the words, in spans of 3 words
    on average (Poisson distribution), and sentences are shuffled. (Section 5.1 counts tokens, while
    the released code counts words.) To use another type of noise from the paper instead, set
    `objective.infilling=0`, `objective.shuffling=0`, and one of `objective.rotation=1.0`,
    `objective.masking=0.15` and `objective.deletion=0.15`.

    Measured with one seed and the settings that the docstring of this module names: a validation
    loss of 3.56 nats. With Macaron blocks, the loss is 3.48; with SwishRNN blocks, it is 1.97.
    """
    return bert_tiny().changed(model="bart_tiny", objective=DenoisingObjective())


def bart_base() -> PretrainingRecipe:
    """Returns a recipe for BART base, with 139 million parameters and texts of 512 tokens.

    Settings from Lewis et al. 2020, sections 2.2 and 5.1: 500,000 updates of 8,000 texts, and
    byte-level BPE as in GPT-2. The paper does not give the settings of the base model. The number
    of updates and the batch size are from the large model. The peak learning rate of 6e-4 and the
    warm-up of 24,000 updates are from RoBERTa base.

    Differences: the paper trains its large model without dropout in the last tenth of the updates.
    This recipe has dropout in all updates.
    """
    return roberta_8k_base().changed(
        model="bart_base",
        objective=DenoisingObjective(),
        data=dict(packing=bert_base().data.packing),
        training=dict(accumulation_steps=250),
    )
