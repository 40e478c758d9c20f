"""From text to batches of token ids: sources, cleaning, normalization, vocabulary, batching."""

from macaron_tf.data.batching import BatchingConfig, TranslationData
from macaron_tf.data.cleaning import CleaningConfig, clean_pairs
from macaron_tf.data.files import cache_directory, write_aside
from macaron_tf.data.normalization import NormalizationConfig, normalize, normalize_lines
from macaron_tf.data.sentencepiece_training import interleave
from macaron_tf.data.sources import read_pairs, source_fingerprint
from macaron_tf.data.tokenization import SamplingConfig
from macaron_tf.data.vocabulary import (
    Vocabulary,
    check_vocabulary,
)

__all__ = [
    "BatchingConfig",
    "CleaningConfig",
    "NormalizationConfig",
    "SamplingConfig",
    "TranslationData",
    "Vocabulary",
    "cache_directory",
    "check_vocabulary",
    "clean_pairs",
    "interleave",
    "normalize",
    "normalize_lines",
    "read_pairs",
    "source_fingerprint",
    "write_aside",
]
