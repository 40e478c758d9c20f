"""Encoders of the two papers and of gMLP that learn masked tokens."""

from experiments.pretrain.recipe import PretrainingRecipe, VocabularyConfig
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.objectives import MaskingConfig
from macaron_tf.training.config import TrainingConfig


def bert_tiny() -> PretrainingRecipe:
    """BERT-orig, tiny: what one core pre-trains in a quarter of an hour or two.

    3 layers, D 128, F 384, 4 heads, 4,000 word pieces, rows of 64, 32 rows an update: 12 million
    tokens in all, each read once or less, hence no dropout. The objective and the optimizer are
    those of the SwishRNN paper (see `bert_base`); the learning rate, the schedule and the first
    matrices' deviation (see the catalog) are chosen for the size. A Transformer's loss rests at
    that of guessing by frequency, 6.5, for the first 1,500 updates or more; a schedule of 4,000
    updates leaves some models there, a peak of 2e-3 most. `bert_rab_tiny` adds T5's bias,
    `swish_rnn_tiny` recurrences for feed-forwards besides, `macaron_bert_tiny` is Macaron and, as
    the paper's, pre-norm: a comparison of the papers' models on one corpus at equal matrices and an
    equal budget.

    Measured: validation loss 5.32, 5.03 and 5.56 after 6,000 updates (seeds 1 to 3), 16 minutes on
    a core beside other work; see `experiments/results/encoders`.
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


def bert_base() -> PretrainingRecipe:
    """BERT-orig of the SwishRNN paper, base: masked tokens alone, learned positions.

    Lei et al. 2022, table 3: 12 layers, D 768, F 3072, 12 heads, dropout 0.1 and 0.1, Adam(0.9,
    0.98), peak learning rate 3e-4 after 20,000 steps, linear to 0 at 300,000, weight decay 0.01,
    1,024 sequences of 512; 15% of the tokens are simply replaced by [MASK], no next sentences.
    Wikipedia and books; BookCorpus is not in TensorFlow Datasets, PG-19 stands in for it. BERT's
    30,522 word pieces, trained here. Adam's epsilon is not said: 1e-6, BERT's. 32 micro-batches of
    32 rows make an update on one device.

    Measured: not run at this size.
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
    """BERT-orig of the SwishRNN paper, large.

    Lei et al. 2022, table 3: 24 layers, D 1024, F 4096, 16 heads, peak learning rate 2e-4 and 4,096
    sequences an update, here 128 micro-batches of 32. All else is `bert_base`.

    Measured: not run at this size.
    """
    return bert_base().changed(
        model="bert_large", training=dict(learning_rate=2e-4, accumulation_steps=128)
    )


def bert_rab_tiny() -> PretrainingRecipe:
    """BERT-rab, tiny: `bert_tiny` with T5's relative attention bias in every layer.

    Measured: validation loss 4.98, 4.62 and 4.53 after 6,000 updates (seeds 1 to 3); see
    `experiments/results/encoders`.
    """
    return bert_tiny().changed(model="bert_rab_tiny")


def bert_rab_base() -> PretrainingRecipe:
    """BERT-rab of the SwishRNN paper, base: `bert_base` with T5's bias in every layer.

    Measured: not run at this size.
    """
    return bert_base().changed(model="bert_rab_base")


def bert_rab_large() -> PretrainingRecipe:
    """BERT-rab of the SwishRNN paper, large: `bert_large` with T5's relative attention bias.

    Measured: not run at this size.
    """
    return bert_large().changed(model="bert_rab_large")


def swish_rnn_tiny() -> PretrainingRecipe:
    """SwishRNN, tiny: `bert_rab_tiny` with recurrences for feed-forwards, step sizes 1, 2, 4.

    Measured: validation loss 4.21, 4.19 and 4.15 after 6,000 updates (seeds 1 to 3), 18 minutes on
    a core beside other work; see `experiments/results/encoders`.
    """
    return bert_tiny().changed(model="swish_rnn_tiny")


def swish_rnn_base() -> PretrainingRecipe:
    """The SwishRNN model of Lei et al. 2022, base: BERT-rab with recurrences for feed-forwards.

    Inner width 2,048, step sizes 1, 2 and 4 in turn (`--set model.rnn_step_sizes=1` for the paper's
    first row of table 2). All else is `bert_base`. Paper, table 1, average of ten tasks: 84.0,
    against 81.0 (BERT-rab) and 81.9 (BERT-orig).

    Measured: not run at this size.
    """
    return bert_base().changed(model="swish_rnn_base")


def swish_rnn_large() -> PretrainingRecipe:
    """The SwishRNN model of Lei et al. 2022, large: inner width 2,752, step sizes 1, 2, 4.

    All else is `bert_large`. Paper, table 1, average of ten tasks: 88.4, against 86.3 (BERT-rab)
    and 87.8 (BERT-orig).

    Measured: not run at this size.
    """
    return bert_large().changed(model="swish_rnn_large")


def macaron_bert_tiny() -> PretrainingRecipe:
    """Macaron-BERT, tiny: `bert_tiny` with Macaron blocks of 192 + 192, pre-norm.

    Measured: validation loss 4.81, 4.78 and 4.71 after 6,000 updates (seeds 1 to 3); see
    `experiments/results/encoders`.
    """
    return bert_tiny().changed(model="macaron_bert_tiny")


def macaron_bert_base() -> PretrainingRecipe:
    """Macaron-BERT, base: masked tokens and next sentences, feed-forwards of 1,536 + 1,536.

    Lu et al. 2019, appendix B.2, which follows BERT, and their released code: 12 layers, D 768, 12
    heads, dropout 0.1 and 0.1, pre-norm, Adam(0.9, 0.999) with epsilon 1e-6, weight decay 0.01,
    peak learning rate 3e-4 linear to 0 at 800,000 updates of 128K tokens: 256 rows of 512, here 32
    micro-batches of 8. Warm-up is BERT's 10,000 steps. 15% of the tokens, of these 80% [MASK], 10%
    a random piece, 10% as they were, drawn anew each time; half of the pairs from another document;
    both losses are added. Lower-cased, 32,000 pieces (SentencePiece BPE); 1 row in 200 validates.
    The released code trains on rows of 384 at most: `--set corpus.sequence_length=384`. Paper,
    table 2, GLUE: 79.7, against 77.4 (BERT base, theirs).

    Measured: not run at this size.
    """
    return bert_base().changed(
        model="macaron_bert_base",
        corpus=dict(pairs="next_sentence"),
        vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000),
        masking=MaskingConfig(),
        batch_size=8,
        training=dict(max_steps=800_000, warmup_steps=10_000, beta_2=0.999, validate_every=10_000),
    )


def gmlp_tiny() -> PretrainingRecipe:
    """gMLP: matrices between positions and gates in place of attention, tiny.

    Liu et al. 2021 with `bert_tiny`'s width, tokens and schedule: six layers, which count as many
    parameters as BERT's three; no positions but those of the matrices, one weight a distance.

    Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (one seed), loss of tokens
    4.73; fine-tuned, SST-2 80.7 and CoNLL-2003 69.7; see `experiments/results/slides_encoders`.
    """
    return bert_tiny().changed(model="gmlp_tiny", masking=MaskingConfig())


def gmlp_base() -> PretrainingRecipe:
    """gMLP: matrices between positions and gates in place of attention, base.

    Liu et al. 2021, section 4: 48 layers, D 512, F 3072. The training is chosen here: BERT's
    million updates of 256 rows of 512, Adam(0.9, 0.999) with epsilon 1e-6, peak learning rate 7e-4
    after 10,000 of them, linear to 0, weight decay 0.01, 32,000 cased pieces. The paper's text is
    C4; Wikipedia and books stand in. 8 micro-batches of 32 rows make an update on one device.
    `--set model=gmlp_large` takes the large size.

    Measured: not run at this size.
    """
    return bert_base().changed(
        model="gmlp_base",
        vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000, lower_case=False),
        masking=MaskingConfig(),
        training=dict(
            max_steps=1_000_000,
            learning_rate=7e-4,
            warmup_steps=10_000,
            beta_2=0.999,
            accumulation_steps=8,
        ),
    )


def amlp_tiny() -> PretrainingRecipe:
    """aMLP: gMLP with one small head of attention in every layer, tiny.

    Liu et al. 2021; all else is `gmlp_tiny`.

    Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (one seed), loss of tokens
    4.65; fine-tuned, SST-2 81.1 and CoNLL-2003 69.5; see `experiments/results/slides_encoders`.
    """
    return gmlp_tiny().changed(model="amlp_tiny")


def amlp_base() -> PretrainingRecipe:
    """aMLP: gMLP with one small head of attention in every layer, base.

    Liu et al. 2021, section 4: 36 layers and an attention of 64, D 512, F 3072; trained as
    `gmlp_base`. `--set model=amlp_large` takes the large size.

    Measured: not run at this size.
    """
    return gmlp_base().changed(model="amlp_base")
