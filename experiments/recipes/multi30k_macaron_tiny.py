"""Multi30k English-German with a tiny Macaron: image captions, an hour and a half on two cores.

    python -m experiments.translate train multi30k_macaron_tiny runs/multi30k --data-dir DIR

Text: lower-cased, Moses-normalized, one joint BPE of 10,000 pieces. Model, dropout, learning rate
and warm-up are those of the Transformer-Tiny published for this set with 41.02 BLEU (tokenized,
lower-cased, Test2016), Wu et al. 2021, "Good for Misconceived Reasons", as recalled and not read
again: 4+4 layers, D 128, F 256, 4 heads, dropout 0.3, Adam(0.9, 0.98) with peak learning
rate 5e-3 after 2,000 steps, 4,096 tokens a batch, label smoothing 0.1, last 10 checkpoints
averaged, beam 5. The Macaron layer splits F into 128 + 128.

Measured: experiments/results/multi30k.md.
"""

from experiments.translate.recipe import DataConfig, TranslationRecipe
from macaron_tf.data.translation import BatchingConfig, CleaningConfig
from macaron_tf.decoding.config import BeamSearchConfig
from macaron_tf.evaluation.translation import TranslationMetric
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.training.config import TrainingConfig

RECIPE = TranslationRecipe(
    model="macaron_tiny",
    data=DataConfig(
        source="tfds:multi30k/de-en",
        source_language="en",
        target_language="de",
        vocabulary_size=10_000,
        normalization=NormalizationConfig(punctuation=True, lower_case=True),
        cleaning=CleaningConfig(max_length=175),
        batching=BatchingConfig(max_tokens=4096),
    ),
    training=TrainingConfig(
        # About 100 minutes on two cores at 0.6 s a step: 75 epochs of 113 steps.
        max_steps=8_500,
        learning_rate=5e-3,
        warmup_steps=2_000,
        validate_every=250,
        save_every_steps=125,
        save_every_minutes=None,
        keep_last=12,
    ),
    decoding=BeamSearchConfig(
        beam_size=5, length_penalty=1.0, length_penalty_name="fairseq", max_length_offset=20
    ),
    metric=TranslationMetric(language="de", lowercase=True, normalize_punctuation=True),
    average_last=10,
)
