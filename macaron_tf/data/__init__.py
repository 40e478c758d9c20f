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

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.data.sources.readers import documents, read_pairs, source_fingerprint
from macaron_tf.data.tasks.classification import ClassificationData, Examples, read_examples
from macaron_tf.data.tasks.definitions import TASKS, Task, get_task
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.data.tasks.questions import Questions, read_questions
from macaron_tf.data.tasks.tags import TaggedSentences, read_tagged
from macaron_tf.data.translation.batching import BatchingConfig, TranslationData
from macaron_tf.data.translation.pairs import CleaningConfig, SamplingConfig, clean_pairs
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
