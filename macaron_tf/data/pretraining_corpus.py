"""Preparing a pre-training corpus: text to shards of packed rows, resumable at any moment."""

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator

import numpy as np

from macaron_tf.data import storage
from macaron_tf.data.cache import TokenRows
from macaron_tf.data.corpus_config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus_files import (
    FORMAT,
    INDEX,
    RecordFormat,
    read_records,
    write_shard,
)
from macaron_tf.data.corpus_progress import CorpusProgress
from macaron_tf.data.corpus_reading import PretrainingCorpus, read_index
from macaron_tf.data.corpus_state import (
    PreparationState,
    begun_state,
    check_settings,
    corpus_settings,
    remove_leftovers,
    write_state,
)
from macaron_tf.data.documents import count_documents, documents
from macaron_tf.data.mixture import MixedDocument, mixed_documents
from macaron_tf.data.packing import Rows, pack_pairs, pack_rows
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.tokenized_documents import tokenized_documents
from macaron_tf.errors import UserError

__all__ = ["CorpusConfig", "CorpusSource", "PretrainingCorpus", "prepare"]


class _Document:
    """The ids of a document and how many rows they are worth."""

    def __init__(self, sentences: TokenRows, repeated: bool, room: int):
        self.sentences = sentences
        self.repeated = repeated
        self.rows = -(-len(sentences.ids) // room)


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
    where it equals one of them it is left out.

    Args:
        config: what it is made of.
        vocabulary: cuts the text; it is saved in the folder.
        out: the folder, `gs://` included.
        data_dir, download: as for `documents`.
        stream: where the progress is shown; standard error if None.

    Returns:
        The corpus.

    Raises:
        UserError: a source that cannot be read; a folder that cannot be written, or holds a corpus
            of other settings, sources or vocabulary; no text; pairs of fewer than two documents.
    """
    out = os.fspath(out).rstrip("/") or "/"
    if download:
        for source in config.sources:
            documents(source.source, source.split, data_dir, download)
    settings = corpus_settings(config, vocabulary, data_dir)
    if storage.exists(storage.join(out, INDEX)):
        check_settings(read_index(out)["settings"], settings, out)
        remove_leftovers(out)
        return PretrainingCorpus.open(out)
    record = RecordFormat.of(config.sequence_length, config.next_sentence, vocabulary.size)
    state = begun_state(out, settings, record)
    if not state.documents:
        vocabulary.save(out)
    readers = [
        functools.partial(documents, source.source, source.split, data_dir)
        for source in config.sources
    ]
    mixture = mixed_documents(readers, config.weights, config.seed)
    writer = _Writer(config, vocabulary, out, settings, record, state)
    with CorpusProgress(_total(config, data_dir), stream) as progress:
        for _ in itertools.islice(mixture, state.documents):
            progress.skipped()
        found = _tokenized(mixture, vocabulary, config)
        for block in _blocks(found, config):
            writer.write(block)
            progress.written(len(block), writer.state.counted, writer.state.tokens, state.tokens)
    writer.finish()
    return PretrainingCorpus.open(out, verify=False)


class _Writer:
    """Packs blocks of documents, writes their shards and records each step."""

    def __init__(self, config, vocabulary, out, settings, record, state: PreparationState):
        self._config = config
        self._vocabulary = vocabulary
        self._out = out
        self._settings = settings
        self._record = record
        self.state = state
        # Only documents that come again can bring a validation row into the training rows.
        self._held_out: set[bytes] | None = None
        if config.weights is not None:
            self._held_out = set(read_records(out, state.validation))

    def write(self, block: list[_Document]) -> None:
        state = self.state
        number = len(state.train)
        rows = self._packed(block, number)
        records = self._record.encoded(rows)
        repeated = np.array([document.repeated for document in block])[rows.owners]
        places = state.counted + np.cumsum(~repeated) - 1
        chosen = ~repeated & (places % self._config.validation_every == 0)
        held_out = [records[i] for i in np.flatnonzero(chosen)]
        kept = [records[i] for i in np.flatnonzero(~chosen)]
        if self._held_out is not None:
            self._held_out.update(held_out)
            again = repeated[~chosen]
            kept = [
                record
                for record, known in zip(kept, again, strict=True)
                if not (known and record in self._held_out)
            ]
        self.state = PreparationState(
            documents=state.documents + len(block),
            counted=state.counted + int((~repeated).sum()),
            tokens=state.tokens + int((rows.token_ids != 0).sum()),
            train=(*state.train, write_shard(self._out, f"train-{number:05d}.tfrecord", kept)),
            validation=(
                *state.validation,
                write_shard(self._out, f"part-{number:05d}.tfrecord", held_out),
            ),
        )
        write_state(self._out, self._settings, self.state)

    def finish(self) -> None:
        """Gathers the validation rows and writes the index, which makes the corpus valid."""
        if not sum(shard.rows for shard in self.state.train + self.state.validation):
            raise UserError("the sources hold no text that the vocabulary can cut: give others")
        records = read_records(self._out, self.state.validation)
        validation = []
        while chunk := list(itertools.islice(records, self._config.rows_per_shard)):
            name = f"validation-{len(validation):05d}.tfrecord"
            validation.append(write_shard(self._out, name, chunk))
        shards = {"train": self.state.train, "validation": validation}
        record = {
            "format": FORMAT,
            "settings": self._settings,
            "documents": self.state.documents,
            "tokens": self.state.tokens,
            "shards": {split: [dataclasses.asdict(s) for s in shards[split]] for split in shards},
        }
        storage.write_aside(storage.join(self._out, INDEX), _json(record))
        remove_leftovers(self._out)

    def _packed(self, block: list[_Document], number: int) -> Rows:
        ids = (self._config.sequence_length, self._vocabulary.cls_id, self._vocabulary.sep_id)
        if not self._config.next_sentence:
            texts = [document.sentences.ids for document in block]
            return pack_rows(texts, *ids, cross_documents=self._config.cross_documents)
        if sum(document.rows > 0 for document in block) < 2:
            raise UserError(
                "sentence pairs need two documents or more, for half of the pairs take their "
                "second segment from another one: give more documents, or separate them "
                "(text-paragraphs:, text-lines:)"
            )
        rng = np.random.default_rng([self._config.seed, number])
        return pack_pairs([document.sentences for document in block], *ids, rng)


def _tokenized(
    mixture: Iterable[MixedDocument], vocabulary: PieceVocabulary, config: CorpusConfig
) -> Iterator[_Document]:
    mixture, flags = itertools.tee(mixture)
    splitter = config.sentence_splitter if config.next_sentence else None
    # The tokenizer runs ahead of `flags`, by its group of documents: the tee holds their texts.
    found = tokenized_documents((document.text for document in mixture), vocabulary, splitter)
    room = config.sequence_length - (3 if config.next_sentence else 2)
    for sentences, document in zip(found, flags, strict=False):
        yield _Document(sentences, document.repeated, room)


def _blocks(found: Iterable[_Document], config: CorpusConfig) -> Iterator[list[_Document]]:
    """Documents by the shard: each block ends with the document that fills it.

    A block of pairs has two documents with text or more, so that one is there to draw from: it is
    held back until its successor has them too, and takes what is left at the end.
    """
    least = 2 if config.next_sentence else 1
    held: list[_Document] = []
    block: list[_Document] = []
    for document in found:
        block.append(document)
        usable = sum(member.rows > 0 for member in block)
        if usable >= least and sum(member.rows for member in block) >= config.rows_per_shard:
            if least == 1:
                yield block
            else:
                if held:
                    yield held
                held = block
            block = []
    if sum(member.rows > 0 for member in block) >= least:
        if held:
            yield held
        held = []
    if held or block:
        yield [*held, *block]


def _total(config: CorpusConfig, data_dir) -> int | None:
    if config.weights is not None:
        return None
    counts = [count_documents(s.source, s.split, data_dir) for s in config.sources]
    return None if None in counts else sum(counts)


def _json(record: dict) -> bytes:
    return (json.dumps(record, indent=1) + "\n").encode()
