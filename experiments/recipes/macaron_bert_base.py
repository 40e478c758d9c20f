"""Macaron-BERT, base: masked tokens and next sentences, feed-forwards of 1,536 + 1,536.

    python -m experiments.pretrain prepare macaron_bert_base corpora/pairs --data-dir DIR --download
    python -m experiments.pretrain train macaron_bert_base runs/macaron_bert --corpus corpora/pairs

Lu et al. 2019, appendix B.2, which follows BERT, and their released code: 12 layers, D 768, 12
heads, dropout 0.1 and 0.1, pre-norm, Adam(0.9, 0.999) with epsilon 1e-6, weight decay 0.01, peak
learning rate 3e-4 linear to 0 at 800,000 updates of 128K tokens: 256 rows of 512, here 32
micro-batches of 8. Warm-up is BERT's 10,000 steps. 15% of the tokens, of these 80% [MASK], 10% a
random piece, 10% as they were, drawn anew each time; half of the pairs from another document; both
losses are added. Lower-cased, 32,000 pieces (SentencePiece BPE); 1 row in 200 validates. The
released code trains on rows of 384 at most: `--set corpus.sequence_length=384`. Paper, table 2,
GLUE: 79.7, against 77.4 (BERT base, theirs).

Measured: not run at this size.
"""

from experiments.pretrain.recipe import PretrainingRecipe, VocabularyConfig
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.training.config import TrainingConfig

RECIPE = PretrainingRecipe(
    model="macaron_bert_base",
    corpus=CorpusConfig(
        ("tfds:wikipedia/20230601.en", "tfds:pg19"), sequence_length=512, pairs="next_sentence"
    ),
    vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000),
    batch_size=8,
    training=TrainingConfig(
        max_steps=800_000,
        learning_rate=3e-4,
        schedule="linear",
        warmup_steps=10_000,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        decay_vectors=False,
        accumulation_steps=32,
        dtype_policy="mixed_bfloat16",
        validate_every=10_000,
        best_metric="loss",
        best_mode="min",
    ),
)
