"""BERT and the encoders of the SwishRNN and Macaron papers, which learn masked tokens.

Measured: the validation losses of the tiny ones with seeds 1 to 3 (`experiments/results/encoders`).
A run took 16 (BERT) to 18 minutes (SwishRNN) on a busy core. The others were not run at their size.

    bert_tiny           5.32, 5.03, 5.56        swish_rnn_tiny      4.21, 4.19, 4.15
    bert_rab_tiny       4.98, 4.62, 4.53        macaron_bert_tiny   4.81, 4.78, 4.71
"""

from experiments.pretrain.run import PretrainingRecipe, VocabularyConfig
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.objectives import MaskingConfig
from macaron_tf.training.config import TrainingConfig


def bert_tiny() -> PretrainingRecipe:
    """BERT-orig, tiny: pre-trains in 15 to 30 minutes on one core.

    The model reads 12 million tokens, none of them twice, so that it needs no dropout. Objective
    and optimizer are those of the SwishRNN paper (see `bert_base`); the learning rate, the schedule
    and the standard deviation of initial weights (see the catalog) are chosen for the size. For the
    first 1,500 updates or more, a Transformer's loss stays at 6.5, that of predicting tokens by
    their frequency. With a schedule of 4,000 updates some models stay there, with a peak of 2e-3
    most. The other tiny encoders differ by their blocks only, so that the papers' models can be
    compared on one corpus with equal matrices and updates.
    """
    return PretrainingRecipe(
        model="bert_tiny",
        model_options=(("dropout", 0.0), ("attention_dropout", 0.0)),
        corpus=CorpusConfig(("tfds:wikipedia/20230601.en", "tfds:pg19"), sequence_length=64),
        vocabulary=VocabularyConfig(size=4_000),
        masking=MaskingConfig(mask=1.0, random=0.0),
        batch_size=32,
        training=TrainingConfig(
            max_steps=6_000,
            learning_rate=1e-3,
            schedule="linear",
            warmup_steps=500,
            beta_2=0.98,
            epsilon=1e-6,
            weight_decay=0.01,
            decay_vectors=False,
            validate_every=250,
            best_metric="loss",
            best_mode="min",
        ),
    )


# Settings of Devlin et al. 2019, appendix A.2: a million updates of 256 rows, Adam(0.9, 0.999).
DEVLIN = dict(
    max_steps=1_000_000,
    learning_rate=1e-4,
    warmup_steps=10_000,
    beta_2=0.999,
    accumulation_steps=8,
)


def bert_base() -> PretrainingRecipe:
    """BERT-orig of the SwishRNN paper, base: masked tokens only, learned positions.

    Lei et al. 2022, table 3: 1,024 sequences of 512 tokens per update; 15% of the tokens are all
    replaced by [MASK], without next-sentence prediction. The text is Wikipedia and books; PG-19
    replaces BookCorpus, which TensorFlow Datasets lacks. The vocabulary has 30,522 word pieces like
    BERT's, and is trained on this text. The paper does not give Adam's epsilon; 1e-6 is BERT's.
    """
    return bert_tiny().changed(
        model="bert_base",
        model_options=(),
        corpus=dict(sequence_length=512),
        vocabulary=VocabularyConfig(size=30_522),
        training=dict(
            max_steps=300_000,
            learning_rate=3e-4,
            warmup_steps=20_000,
            accumulation_steps=32,
            dtype_policy="mixed_bfloat16",
            validate_every=5_000,
        ),
    )


def bert_large() -> PretrainingRecipe:
    """BERT-orig of the SwishRNN paper, large: 4,096 sequences per update (Lei et al., table 3)."""
    return bert_base().changed(
        model="bert_large",
        batch_size=8,
        training=dict(learning_rate=2e-4, accumulation_steps=512),
    )


def bert_devlin_128() -> PretrainingRecipe:
    """BERT of Devlin et al. 2019, base: the first 900,000 of its updates, on rows of 128.

    Appendix A.2: a million updates of 256 rows of 512, 90% of them on rows of 128 to save time;
    masked tokens (80% [MASK], 10% a random piece, 10% unchanged) and next-sentence prediction;
    Adam at 1e-4 after 10,000 updates, then linearly to 0 at a million updates. `schedule_end` is
    the rate at 900,000 updates. Adam's epsilon and the clipping are those of the released code. The
    updates on rows of 512 follow:

        python -m experiments.pretrain train bert_devlin_128 runs/bert128 --data-dir DIR
        python -m experiments.pretrain train bert_devlin_512 runs/bert --data-dir DIR \\
            --init runs/bert128

    The large model has the same updates: `--set model=bert_large`.
    """
    return bert_base().changed(
        corpus=dict(sequence_length=128, pairs="next_sentence"),
        masking=MaskingConfig(),
        batch_size=128,
        training=DEVLIN
        | dict(max_steps=900_000, schedule_end=1e-4 / 9.9, clip_norm=1.0, accumulation_steps=2),
    )


def bert_devlin_512() -> PretrainingRecipe:
    """BERT of Devlin et al. 2019, base: its last 100,000 updates, on rows of 512.

    It continues a run of `bert_devlin_128`; Adam's moments start from 0.
    """
    first = bert_devlin_128()
    return first.changed(
        corpus=dict(sequence_length=512),
        batch_size=32,
        training=dict(
            max_steps=100_000,
            learning_rate=first.training.schedule_end,
            schedule_end=0.0,
            warmup_steps=0,
            accumulation_steps=8,
        ),
    )


def bert_rab_tiny() -> PretrainingRecipe:
    """BERT-rab, tiny: `bert_tiny` with T5's relative attention bias in every layer."""
    return bert_tiny().changed(model="bert_rab_tiny")


def bert_rab_base() -> PretrainingRecipe:
    """BERT-rab of the SwishRNN paper, base: `bert_base` with T5's bias in every layer."""
    return bert_base().changed(model="bert_rab_base")


def bert_rab_large() -> PretrainingRecipe:
    """BERT-rab of the SwishRNN paper, large: `bert_large` with T5's relative attention bias."""
    return bert_large().changed(model="bert_rab_large")


def swish_rnn_tiny() -> PretrainingRecipe:
    """SwishRNN, tiny: `bert_rab_tiny` with recurrences as feed-forwards, step sizes 1, 2, 4."""
    return bert_tiny().changed(model="swish_rnn_tiny")


def swish_rnn_base() -> PretrainingRecipe:
    """The SwishRNN model of Lei et al. 2022, base: BERT-rab with recurrences as feed-forwards.

    Step sizes 1, 2 and 4 in turn (`--set model.rnn_step_sizes=1` for the first row of table 2).
    Paper, table 1, average of ten tasks: 84.0, against 81.0 (BERT-rab) and 81.9 (BERT-orig).
    """
    return bert_base().changed(model="swish_rnn_base")


def swish_rnn_large() -> PretrainingRecipe:
    """The SwishRNN model of Lei et al. 2022, large: inner width 2,752, step sizes 1, 2, 4.

    Paper, table 1, average of ten tasks: 88.4, against 86.3 (BERT-rab) and 87.8 (BERT-orig).
    """
    return bert_large().changed(model="swish_rnn_large")


def macaron_bert_tiny() -> PretrainingRecipe:
    """Macaron-BERT, tiny: `bert_tiny` with pre-norm Macaron blocks, feed-forwards of 192 + 192."""
    return bert_tiny().changed(model="macaron_bert_tiny")


def macaron_bert_base() -> PretrainingRecipe:
    """Macaron-BERT of the paper, base: masked tokens, next sentences, feed-forwards of 2 x 1,536.

    Lu et al. 2019, appendix B.2, which follows BERT: 15% of the tokens are predicted, of which 80%
    are [MASK], 10% a random piece and 10% unchanged, with new masks each time; half of the pairs
    have a segment from another document; both losses are added. The norm before each sub-layer,
    800,000 updates of 128K tokens (256 rows of 512) and the rate, 3e-4, are those of the released
    script; the warm-up of 10,000 updates is BERT's. The paper splits sentences by spaCy and
    tokenizes by Moses; here `corpus.sentence_splitter` splits them, and SentencePiece splits the
    lower-cased text without a tokenizer. GLUE in the paper's table 2: 79.7, against 77.4 (its BERT
    base).
    """
    return bert_base().changed(
        model="macaron_bert_base",
        corpus=dict(pairs="next_sentence"),
        vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000),
        masking=MaskingConfig(),
        batch_size=8,
        training=dict(max_steps=800_000, warmup_steps=10_000, beta_2=0.999, validate_every=10_000),
    )


def macaron_bert_released() -> PretrainingRecipe:
    """Macaron-BERT of the released code, base: its network and its training.

    The repository zhuohan123/macaron-net, bert/fairseq/models/transformer.py, has sinusoidal
    positions (with tensor2tensor's frequencies; here those of the paper), token embeddings times
    sqrt(D) without a LayerNorm after them, LayerNorms without scale and offset except in the head
    over masked tokens, and ReLU in the first feed-forward of a layer, GELU in the second. All
    matrices are initialized with standard deviation D^-1/2, as its embeddings and feed-forwards;
    its attention is Xavier-uniform. Its script train.sh has rows of at most 384 tokens, 20
    micro-batches of 6,400 tokens per update, and a rate that falls from the first update on. The
    text is that of `macaron_bert_base`, with 32,768 pieces.
    """
    return macaron_bert_base().changed(
        model_options=(
            ("scheme", "channels/2 with relu, tokens, channels/2 with gelu"),
            ("positions", "sinusoidal"),
            ("embedding_scale", True),
            ("embedding_norm", False),
            ("affine", False),
            ("epsilon", 1e-5),
            ("initializer_range", 768**-0.5),
        ),
        corpus=dict(sequence_length=384),
        vocabulary=dict(size=32_768),
        batch_size=16,
        training=dict(warmup_steps=0, accumulation_steps=20),
    )
