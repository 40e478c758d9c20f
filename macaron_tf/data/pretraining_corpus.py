"""Preparing a pre-training corpus: text to shards of packed rows, resumable at any moment."""

import itertools
import os
from collections.abc import Iterator

from macaron_tf.data import storage
from macaron_tf.data.corpus_blocks import blocks, corpus_documents
from macaron_tf.data.corpus_config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus_files import INDEX, RecordFormat
from macaron_tf.data.corpus_index import read_index
from macaron_tf.data.corpus_mixture import corpus_mixture
from macaron_tf.data.corpus_progress import CorpusProgress
from macaron_tf.data.corpus_reading import PretrainingCorpus
from macaron_tf.data.corpus_sources import count_source, open_source
from macaron_tf.data.corpus_state import (
    begun_state,
    check_settings,
    corpus_settings,
    remove_leftovers,
)
from macaron_tf.data.corpus_writer import CorpusWriter
from macaron_tf.data.folder_lock import only_writer
from macaron_tf.data.mixture import MixedDocument
from macaron_tf.data.piece_vocabulary import PieceVocabulary

__all__ = ["CorpusConfig", "CorpusSource", "PretrainingCorpus", "prepare"]


def prepare(
    config: CorpusConfig,
    vocabulary: PieceVocabulary,
    out: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    stream=None,
) -> PretrainingCorpus:
    """Writes a corpus as shards of rows of one length, or goes on with what was begun.

    Killed at any moment, the same call goes on after the last whole shard, reading past the
    documents before it without tokenizing them, and ends with the same bytes. A finished corpus
    of the same settings and sources is only opened.

    A row of a document that is read again (see `mixed_documents`) is never a validation row, and
    where it equals one of them it is left out. Pairs hold out whole documents, which are kept
    out of the training rows whenever they are read. The halves of a translation pair that is held
    out may stand in the running text of their languages.

    Args:
        config: what it is made of.
        vocabulary: cuts the text; it is saved in the folder.
        out: the folder, `gs://` included.
        data_dir, download: as for `documents`.
        stream: where the progress is shown; standard error if None.

    Returns:
        The corpus.

    Raises:
        UserError: a source that cannot be read; a folder that cannot be written, that another
            process is writing (on disk: a bucket has no locks), or that holds a corpus of other
            settings, sources or vocabulary; no text; next-sentence pairs of fewer than four
            documents, sentence-order pairs of fewer than two.
    """
    out = os.fspath(out).rstrip("/") or "/"
    if download:
        for source in config.sources:
            open_source(source, data_dir, download)
    settings = corpus_settings(config, vocabulary, data_dir)
    # A finished corpus needs no lock: it may lie where nothing can be written.
    if not _finished(out, settings):
        with only_writer(out, "preparing a corpus"):
            # Another process may have finished it since.
            if not _finished(out, settings):
                _write(config, vocabulary, out, settings, data_dir, stream)
                return PretrainingCorpus.open(out, verify=False)
    return PretrainingCorpus.open(out)


def _finished(out: str, settings: dict) -> bool:
    """Whether there is a whole corpus, which is then of these settings."""
    if not storage.exists(storage.join(out, INDEX)):
        return False
    check_settings(read_index(out)["settings"], settings, out)
    remove_leftovers(out)
    return True


def _write(config, vocabulary, out: str, settings: dict, data_dir, stream) -> None:
    record = RecordFormat.of(config, vocabulary.size)
    state = begun_state(out, settings, record)
    if not state.documents:
        vocabulary.save(out)
    mixture = corpus_mixture(config, data_dir, stream=stream)
    writer = CorpusWriter(config, vocabulary, out, settings, record, state)
    with CorpusProgress(_total(config, data_dir), stream) as progress:

        def held_out() -> Iterator[MixedDocument]:
            """Those of the documents in the shards that the end needs."""
            for document in itertools.islice(mixture, state.documents):
                progress.skipped()
                if document.held_out:
                    yield document

        writer.hold_out(corpus_documents(held_out(), vocabulary, config))
        for block in blocks(corpus_documents(mixture, vocabulary, config), config):
            writer.write(block)
            progress.written(len(block), writer.state.rows, writer.state.tokens, state.tokens)
    writer.finish()


def _total(config: CorpusConfig, data_dir) -> int | None:
    if config.repeats:
        return None
    counts = [count_source(source, data_dir) for source in config.sources]
    return None if None in counts else sum(counts)
