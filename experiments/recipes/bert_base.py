"""BERT-orig of the SwishRNN paper, base: masked tokens alone, learned positions.

    python -m experiments.pretrain prepare bert_base corpora/512 --data-dir DIR --download
    python -m experiments.pretrain train bert_base runs/bert_base --corpus corpora/512

Lei et al. 2022, table 3: 12 layers, D 768, F 3072, 12 heads, dropout 0.1 and 0.1, Adam(0.9, 0.98),
peak learning rate 3e-4 after 20,000 steps, linear to 0 at 300,000, weight decay 0.01, 1,024
sequences of 512; 15% of the tokens are simply replaced by [MASK], no next sentences. Wikipedia and
books; BookCorpus is not in TensorFlow Datasets, PG-19 stands in for it. BERT's 30,522 word pieces,
trained here. Adam's epsilon is not said: 1e-6, BERT's. 32 micro-batches of 32 rows make an update
on one device.

Measured: not run at this size.
"""

from experiments.pretrain.recipe import PretrainingRecipe, VocabularyConfig
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.objectives import MaskingConfig
from macaron_tf.training.config import TrainingConfig

RECIPE = PretrainingRecipe(
    model="bert_base",
    corpus=CorpusConfig(("tfds:wikipedia/20230601.en", "tfds:pg19"), sequence_length=512),
    vocabulary=VocabularyConfig(size=30_522),
    masking=MaskingConfig(mask=1.0, random=0.0),
    batch_size=32,
    training=TrainingConfig(
        max_steps=300_000,
        learning_rate=3e-4,
        schedule="linear",
        warmup_steps=20_000,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-6,
        weight_decay=0.01,
        decay_vectors=False,
        accumulation_steps=32,
        dtype_policy="mixed_bfloat16",
        validate_every=5_000,
        best_metric="loss",
        best_mode="min",
    ),
)
