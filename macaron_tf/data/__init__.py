"""From text to batches of token ids.

`sources` read text, `corpus` packs and stores it for pre-training, `translation` cleans and
tokenizes pairs, `tasks` reads and encodes examples for fine-tuning, and `batches` deals what is
encoded into batches of a few static shapes. `service` takes batches from another process.
"""

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.data.sources.readers import documents, read_pairs, source_fingerprint
from macaron_tf.data.tasks.definitions import TASKS, Task, get_task
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.data.tasks.questions import Questions, read_questions
from macaron_tf.data.tasks.reading import Examples, read_examples
from macaron_tf.data.tasks.tags import TaggedSentences, read_tagged
from macaron_tf.data.translation import (
    BatchingConfig,
    BpeDropoutConfig,
    CleaningConfig,
    TranslationData,
    clean_pairs,
)
from macaron_tf.io.files import cache_directory
from macaron_tf.io.paths import write_aside
from macaron_tf.text.loading import (
    BytePairVocabulary,
    SentencePieceEncoderVocabulary,
    WordPieceVocabulary,
    load_encoder_vocabulary,
)
from macaron_tf.text.normalization import NormalizationConfig, normalize, normalize_lines
from macaron_tf.text.sentencepiece import interleave
from macaron_tf.text.vocabulary import (
    Vocabulary,
    check_vocabulary,
)

__all__ = [
    "TASKS",
    "BatchingConfig",
    "BpeDropoutConfig",
    "BytePairVocabulary",
    "CleaningConfig",
    "CorpusConfig",
    "CorpusSource",
    "ExampleBatches",
    "Examples",
    "NormalizationConfig",
    "PretrainingCorpus",
    "Questions",
    "SentencePieceEncoderVocabulary",
    "TaggedSentences",
    "Task",
    "TranslationData",
    "Vocabulary",
    "WordPieceVocabulary",
    "cache_directory",
    "check_vocabulary",
    "clean_pairs",
    "documents",
    "encode_pairs",
    "get_task",
    "interleave",
    "load_encoder_vocabulary",
    "normalize",
    "normalize_lines",
    "prepare",
    "read_examples",
    "read_pairs",
    "read_questions",
    "read_tagged",
    "source_fingerprint",
    "write_aside",
]
