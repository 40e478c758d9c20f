"""From text to batches of token ids.

Translation: sources, cleaning, normalization, vocabulary, bucketing, batching.
Pre-training: documents (corpus_sources), tokenized_documents, packing (pair_packing), then the
files of a corpus: corpus_blocks, corpus_writer, corpus_files, corpus_reading; pretraining_corpus
prepares it.
Fine-tuning: tasks, task_data, then classification_data, question_data and question_windows,
tagging_data and tagging_windows, sentence_data; example_batches makes their batches.
Vocabularies of encoders: piece_vocabulary is what wordpiece, encoder_sentencepiece and byte_pairs
have in common.
"""

from macaron_tf.cache import cache_directory
from macaron_tf.data.batching import BatchingConfig, TranslationData
from macaron_tf.data.classification_data import ClassificationData
from macaron_tf.data.cleaning import CleaningConfig, clean_pairs
from macaron_tf.data.documents import documents
from macaron_tf.data.encoder_vocabulary import (
    BytePairVocabulary,
    SentencePieceEncoderVocabulary,
    WordPieceVocabulary,
    load_encoder_vocabulary,
)
from macaron_tf.data.normalization import NormalizationConfig, normalize, normalize_lines
from macaron_tf.data.pair_encoding import encode_pairs
from macaron_tf.data.pretraining_corpus import (
    CorpusConfig,
    CorpusSource,
    PretrainingCorpus,
    prepare,
)
from macaron_tf.data.question_data import Questions, read_questions
from macaron_tf.data.sentencepiece_training import interleave
from macaron_tf.data.sources import read_pairs, source_fingerprint
from macaron_tf.data.storage import write_aside
from macaron_tf.data.tagging_data import TaggedSentences, read_tagged
from macaron_tf.data.task_data import Examples, read_examples
from macaron_tf.data.tasks import TASKS, Task, get_task
from macaron_tf.data.tokenization import SamplingConfig
from macaron_tf.data.vocabulary import (
    Vocabulary,
    check_vocabulary,
)

__all__ = [
    "TASKS",
    "BatchingConfig",
    "BytePairVocabulary",
    "ClassificationData",
    "CleaningConfig",
    "CorpusConfig",
    "CorpusSource",
    "Examples",
    "NormalizationConfig",
    "PretrainingCorpus",
    "Questions",
    "SamplingConfig",
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
