"""English-German in minutes: the text of a home-automation program's screens, a tiny Macaron.

    make demo

The corpus is the 24,000 English-German pairs of the wheel `homeassistant`, which pip alone can
fetch. A model this small on a text this plain learns to translate it in some 1,000 updates; the
learning rate is that of multi30k_macaron_tiny with the warm-up cut to fit. Any other of the
corpus's languages: `--set data.target_language=fr`.

Measured: experiments/results/demo.md.
"""

from experiments.translate.recipe import DataConfig, TranslationRecipe
from macaron_tf.data.translation import BatchingConfig, CleaningConfig
from macaron_tf.decoding.config import BeamSearchConfig
from macaron_tf.evaluation.translation import TranslationMetric
from macaron_tf.training.config import TrainingConfig

RECIPE = TranslationRecipe(
    model="macaron_tiny",
    model_options=(("dropout", 0.1), ("num_encoder_layers", 3), ("num_decoder_layers", 3)),
    data=DataConfig(
        source="homeassistant",
        source_language="en",
        target_language="de",
        vocabulary_size=6_000,
        cleaning=CleaningConfig(max_tokens=64, deduplicate=True),
        batching=BatchingConfig(max_tokens=2_048),
        validation_lines=200,
    ),
    training=TrainingConfig(
        max_steps=1_600,
        max_minutes=6.5,
        learning_rate=5e-3,
        warmup_steps=400,
        validate_every=400,
        save_every_steps=100,
        save_every_minutes=None,
        keep_last=8,
    ),
    decoding=BeamSearchConfig(beam_size=4, max_length=96),
    metric=TranslationMetric(language="de"),
    average_last=4,
)
