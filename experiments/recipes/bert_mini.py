"""BERT-orig, mini: what two cores pre-train in minutes, on Wikipedia's and books' text.

    python -m experiments.pretrain train bert_mini runs/bert --data-dir DIR

4 layers, D 256, F 768, 4 heads, 8,000 word pieces, rows of 128, 32 rows an update; the objective
and the optimizer are those of the SwishRNN paper (see `bert_base`), the learning rate and the
schedule chosen for the size. `bert_rab_mini` adds T5's bias, `swish_rnn_mini` recurrences for
feed-forwards besides, `macaron_bert_mini` is Macaron and, as the paper's, pre-norm: a comparison of
the papers' models on one corpus at equal matrices and an equal budget.

Measured: not run to the end yet.
"""

from experiments.pretraining.recipe import PretrainingRecipe, VocabularyConfig
from macaron_tf.data.corpus_config import CorpusConfig
from macaron_tf.objectives.masking import MaskingConfig
from macaron_tf.training.config import TrainingConfig

RECIPE = PretrainingRecipe(
    model="bert_mini",
    corpus=CorpusConfig(("tfds:wikipedia/20230601.en", "tfds:pg19"), sequence_length=128),
    vocabulary=VocabularyConfig(size=8_000),
    masking=MaskingConfig(mask=1.0, random=0.0),
    batch_size=32,
    validation_batches=8,
    training=TrainingConfig(
        max_steps=2_000,
        learning_rate=1e-3,
        schedule="linear",
        warmup_steps=200,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-6,
        weight_decay=0.01,
        decay_vectors=False,
        validate_every=200,
        best_metric="loss",
        best_mode="min",
    ),
)
