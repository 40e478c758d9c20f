"""WMT14 English-German with a base Macaron: Lu et al. 2019, table 1, 28.9 BLEU.

    python -m experiments.translate train wmt14_macaron_base runs/wmt14 --data-dir DIR

The Transformer of the same size has 27.3 there: `--set model=transformer_base`. Settings are the
paper's appendix B.1 and its released code: D 512, 8 heads, 6+6 layers, two feed-forwards of 1,024,
dropouts 0.1, 32,768 tokens an update (8 micro-batches of 4,096), Adam(0.9, 0.98) with peak
learning rate 1.5e-3 after 8,000 steps, no weight decay, joint BPE of 37,000 pieces, validation
newstest2013, test newstest2014, beam 4 with length penalty 0.6, the last 5 checkpoints averaged,
tokenized case-sensitive BLEU with compounds split at hyphens. 100,000 updates are those of
Vaswani et al. 2017 for this size; the greatest ratio of lengths, 1.5, is the IWSLT recipe's. The
set that TFDS downloads is plain text; for a tokenized copy add `--set metric.tokenized=True`.

Measured: not run to the end here. It needs several GPUs or a TPU.
"""

from experiments.translate.recipe import DataConfig, TranslationRecipe
from macaron_tf.data.translation import BatchingConfig, CleaningConfig
from macaron_tf.decoding.config import BeamSearchConfig
from macaron_tf.evaluation.translation import TranslationMetric
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.training.config import TrainingConfig

RECIPE = TranslationRecipe(
    model="macaron_base",
    data=DataConfig(
        source="tfds:wmt14_translate/de-en",
        source_language="en",
        target_language="de",
        vocabulary_size=37_000,
        normalization=NormalizationConfig(punctuation=True, remove_nonprinting=True),
        cleaning=CleaningConfig(max_length=80, max_ratio=1.5),
        batching=BatchingConfig(max_tokens=4_096, length_multiple=8),
    ),
    training=TrainingConfig(
        max_steps=100_000,
        learning_rate=1.5e-3,
        warmup_steps=8_000,
        accumulation_steps=8,
        validate_every=2_000,
        save_every_steps=2_000,
        save_every_minutes=None,
        keep_last=20,
    ),
    decoding=BeamSearchConfig(beam_size=4, length_penalty=0.6, length_penalty_name="gnmt"),
    metric=TranslationMetric(language="de", normalize_punctuation=True, split_compounds=True),
    average_last=5,
)
