"""The shards of a corpus: what of a block of documents is trained on, and what is held out."""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.folder import (
    FORMAT,
    INDEX,
    PreparationState,
    RecordFormat,
    begun_state,
    check_settings,
    corpus_settings,
    read_index,
    read_records,
    remove_leftovers,
    write_shard,
    write_state,
)
from macaron_tf.data.corpus.mixture import MixedDocument, corpus_mixture
from macaron_tf.data.corpus.packing import (
    CorpusDocument,
    Rows,
    blocks,
    corpus_documents,
    pack_pairs,
    running_rows,
)
from macaron_tf.data.corpus.progress import CorpusProgress
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.sources.documents import count_source, open_source
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import only_writer
from macaron_tf.text.base import PieceVocabulary

_TOO_FEW = {
    "next_sentence": (
        "sentence pairs need four documents or more with text, two of them to hold out: "
        "half of the pairs take their second segment from another document of their split; "
        "give more documents, or separate them (text-paragraphs:, text-lines:)"
    ),
    "sentence_order": (
        "sentence pairs need two documents or more with text, one of them to hold out: "
        "give more documents, or separate them (text-paragraphs:)"
    ),
}


class CorpusWriter:
    """Packs blocks of documents, writes their shards and records each step.

    Running text is held out by the row, which goes into files of its own beside each shard, and
    all are gathered at the end. Pairs are held out by the document: those documents are kept in
    memory, in ids one in `validation_every` of the corpus, and paired among each other at the end.

    Args:
        config: what the corpus is made of.
        vocabulary: what it is cut with.
        out: its folder.
        settings: recorded beside it.
        record: its rows' format.
        state: how far it has come.
    """

    def __init__(
        self,
        config: CorpusConfig,
        vocabulary: PieceVocabulary,
        out: str,
        settings: dict,
        record: RecordFormat,
        state: PreparationState,
    ):
        self._config = config
        self._special = (vocabulary.cls_id, vocabulary.sep_id)
        self._out = out
        self._settings = settings
        self._record = record
        self.state = state
        self._kept_documents: list[CorpusDocument] = []
        # Only documents that come again can bring a validation row into the training rows.
        self._kept_rows: set[bytes] | None = None
        if config.repeats:
            self._kept_rows = set(read_records(out, state.validation))

    def hold_out(self, documents: Iterable[CorpusDocument]) -> None:
        """Keeps the documents that are held out, each once, for the pairs of the validation.

        Args:
            documents: these and others, in their order.
        """
        self._kept_documents += [
            document for document in documents if document.held_out and not document.repeated
        ]

    def write(self, block: Sequence[CorpusDocument]) -> None:
        """Writes a block's shard.

        Args:
            block: documents.

        Raises:
            UserError: the folder cannot be written, or too few documents to pair.
        """
        state, number = self.state, len(self.state.train)
        counted, held_out = 0, None
        if self._config.paired:
            self.hold_out(block)
            rows, kept = self._pairs([d for d in block if not d.held_out], [number])
        else:
            rows = running_rows(block, self._config, *self._special)
            kept, held_out, counted = self._divided(block, rows)
        train = (*state.train, write_shard(self._out, f"train-{number:05d}.tfrecord", kept))
        validation = state.validation
        if held_out is not None:
            part = write_shard(self._out, f"part-{number:05d}.tfrecord", held_out)
            validation = (*validation, part)
        self.state = PreparationState(
            documents=state.documents + len(block),
            counted=state.counted + counted,
            tokens=state.tokens + _tokens(rows),
            train=train,
            validation=validation,
        )
        write_state(self._out, self._settings, self.state)

    def finish(self) -> None:
        """Writes the validation rows and the index, which makes the corpus valid.

        Raises:
            UserError: no text at all, or too few documents to pair.
        """
        tokens = self.state.tokens
        if self._config.paired:
            # The training shards' numbers have no second part.
            rows, held_out = self._pairs(self._kept_documents, [0, 1])
            records, tokens = iter(held_out), tokens + _tokens(rows)
        elif self.state.rows:
            records = read_records(self._out, self.state.validation)
        else:
            raise UserError("the sources hold no text that the vocabulary can cut: give others")
        validation = []
        while chunk := list(itertools.islice(records, self._config.rows_per_shard)):
            name = f"validation-{len(validation):05d}.tfrecord"
            validation.append(write_shard(self._out, name, chunk))
        shards = {"train": self.state.train, "validation": validation}
        record = {
            "format": FORMAT,
            "settings": self._settings,
            "documents": self.state.documents,
            "tokens": tokens,
            "shards": {split: [dataclasses.asdict(s) for s in shards[split]] for split in shards},
        }
        storage.write_aside(storage.join(self._out, INDEX), _json(record))
        remove_leftovers(self._out)

    def _divided(
        self, block: Sequence[CorpusDocument], rows: Rows
    ) -> tuple[list[bytes], list[bytes], int]:
        """Training records, validation records, and how many of them were counted for that."""
        records = self._encoded(block, rows)
        repeated = np.array([document.repeated for document in block])[rows.owners]
        places = self.state.counted + np.cumsum(~repeated) - 1
        runs = places // self._config.validation_run
        chosen = ~repeated & (runs % self._config.validation_every == 0)
        held_out = [records[i] for i in np.flatnonzero(chosen)]
        kept = [records[i] for i in np.flatnonzero(~chosen)]
        if self._kept_rows is not None:
            self._kept_rows.update(held_out)
            again = repeated[~chosen]
            kept = [
                record
                for record, known in zip(kept, again, strict=True)
                if not (known and record in self._kept_rows)
            ]
        return kept, held_out, int((~repeated).sum())

    def _pairs(
        self, documents: Sequence[CorpusDocument], numbers: list[int]
    ) -> tuple[Rows, list[bytes]]:
        """Rows of pairs and their records."""
        pairs = self._config.pairs
        least = 2 if pairs == "next_sentence" else 1
        if sum(len(document.sentences.ids) > 0 for document in documents) < least:
            raise UserError(_TOO_FEW[pairs])
        rows = pack_pairs(
            [document.sentences for document in documents],
            self._config.sequence_length,
            *self._special,
            np.random.default_rng([self._config.seed, *numbers]),
            pairs,
            single_sentences=self._config.row_packing == "sentence_pair",
        )
        return rows, self._encoded(documents, rows)

    def _encoded(self, documents: Sequence[CorpusDocument], rows: Rows) -> list[bytes]:
        languages = np.array([document.languages for document in documents])  # (documents, 2)
        return self._record.encoded(rows, languages[rows.owners])


def _tokens(rows: Rows) -> int:
    return int((rows.token_ids != 0).sum())


def _json(record: dict) -> bytes:
    return (json.dumps(record, indent=1) + "\n").encode()


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
