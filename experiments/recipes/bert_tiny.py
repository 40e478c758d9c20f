"""BERT-orig, tiny: what one core pre-trains in a quarter of an hour or two.

    python -m experiments.pretrain train bert_tiny runs/bert --data-dir DIR

3 layers, D 128, F 384, 4 heads, 4,000 word pieces, rows of 64, 32 rows an update: 12 million tokens
in all, each read once or less, hence no dropout. The objective and the optimizer are those of the
SwishRNN paper (see `bert_base`); the learning rate, the schedule and the first matrices' deviation
(see the catalog) are chosen for the size. A Transformer's loss rests at that of guessing by
frequency, 6.5, for the first 1,500 updates or more; a schedule of 4,000 updates leaves some models
there, a peak of 2e-3 most.
`bert_rab_tiny` adds T5's bias, `swish_rnn_tiny` recurrences for feed-forwards besides,
`macaron_bert_tiny` is Macaron and, as the paper's, pre-norm: a comparison of the papers' models on
one corpus at equal matrices and an equal budget.

Measured: validation loss 5.32, 5.03 and 5.56 after 6,000 updates (seeds 1 to 3), 16 minutes on a
core beside other work; see `experiments/results/encoders`.
"""

from experiments.pretrain.recipe import PretrainingRecipe, VocabularyConfig
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.objectives import MaskingConfig
from macaron_tf.training.config import TrainingConfig

RECIPE = PretrainingRecipe(
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
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-6,
        weight_decay=0.01,
        decay_vectors=False,
        validate_every=250,
        best_metric="loss",
        best_mode="min",
    ),
)
