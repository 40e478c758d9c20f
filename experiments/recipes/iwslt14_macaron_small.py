"""IWSLT14 German-English with a small Macaron: Lu et al. 2019, table 1, 35.4 BLEU.

    python -m experiments.translate train iwslt14_macaron_small runs/iwslt14 --data-dir DIR

The Transformer of the same size has 34.4 there: `--set model=transformer_small`. Settings are the
paper's appendix B.1 and its released code: D 512, 4 heads, 6+6 layers, two feed-forwards of 512
(the paper's text says 1,024: `--set model.feed_forward_dim=2048`), dropout 0.3 with 0.1 on
attention and activations, 4,096 tokens an update, Adam(0.9, 0.98) with peak learning rate 1.5e-3
after 8,000 steps and decoupled weight decay 1e-4, joint BPE of 10,000 pieces, beam 5 with length
penalty 1.0, tokenized case-insensitive BLEU. The number of updates is this project's choice: the
paper gives none. The set's text is Moses-tokenized, escaped and lower-cased, and is scored as such
(`metric.tokenized`; punctuation is normalized on both sides, since the vocabulary normalizes what
the model writes). Pieces are SentencePiece's on that text, where the paper ran BPE.

Measured: not run to the end here. The full set needs a GPU or TPU.
"""

from experiments.translate.recipe import DataConfig, TranslationRecipe
from macaron_tf.data.translation import CleaningConfig
from macaron_tf.decoding.config import BeamSearchConfig
from macaron_tf.evaluation.translation import TranslationMetric
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.training.config import TrainingConfig

RECIPE = TranslationRecipe(
    model="macaron_small",
    data=DataConfig(
        source="tfds:iwslt14/de-en",
        source_language="de",
        target_language="en",
        vocabulary_size=10_000,
        normalization=NormalizationConfig(punctuation=True, lower_case=True),
        cleaning=CleaningConfig(max_length=175, max_ratio=1.5),
    ),
    training=TrainingConfig(
        max_steps=60_000,
        learning_rate=1.5e-3,
        warmup_steps=8_000,
        weight_decay=1e-4,
        validate_every=1_000,
        save_every_steps=1_000,
        save_every_minutes=None,
        keep_last=10,
    ),
    decoding=BeamSearchConfig(beam_size=5, length_penalty=1.0, length_penalty_name="fairseq"),
    metric=TranslationMetric(
        language="en", lowercase=True, tokenized=True, normalize_punctuation=True
    ),
    average_last=10,
)
