"""Preparation of a corpus: shards written one by one, resumed after a kill with the same bytes."""

import dataclasses
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.corpus import reading
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import (
    CorpusDocument,
    MixedDocument,
    blocks,
    corpus_documents,
    corpus_mixture,
    count_corpus,
    identify_source,
    open_source,
)
from macaron_tf.data.corpus.packing import RecordFormat, Row, Rows, pack_pairs, running_rows
from macaron_tf.data.sources.names import Source
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import only_writer, same_contents
from macaron_tf.io.progress import Progress
from macaron_tf.text.base import PieceVocabulary, check_vocabulary

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


def prepare(
    config: CorpusConfig,
    vocabulary: PieceVocabulary,
    out: str | os.PathLike,
    *,
    tfds: Tfds | None = None,
) -> reading.PretrainingCorpus:
    """Writes a corpus as shards of rows of one length, or resumes an unfinished one.

    Killed at any moment, the same call goes on after the last whole shard, reading past the
    documents before it without tokenizing them, and ends with the same bytes. A finished corpus
    of the same settings and sources is only opened.

    A row of a document that is read again (see `mixed_documents`) is never a validation row, and
    where it equals one of them it is left out. Pairs hold out whole documents, which are kept
    out of the training rows whenever they are read. The halves of a translation pair that is held
    out may stand in the running text of their languages.

    Raises:
        UserError: a source that cannot be read; a folder that cannot be written, that another
            process is writing (on disk: a bucket has no locks), or that holds a corpus of other
            settings, sources or vocabulary; no text; next-sentence pairs of fewer than four
            documents, sentence-order pairs of fewer than two.
    """
    out = os.fspath(out).rstrip("/") or "/"
    if tfds and tfds.download:
        for source in config.sources:
            open_source(source, tfds)
    settings = corpus_settings(config, vocabulary, tfds)
    # A finished corpus needs no lock: its folder may be read-only.
    if not _finished(out, settings):
        with only_writer(out, "preparing a corpus"):
            # Another process may have finished it since.
            if not _finished(out, settings):
                _write(config, vocabulary, out, settings, tfds)
                return reading.PretrainingCorpus.open(out, verify=False)
    return reading.PretrainingCorpus.open(out)


def _finished(out: str, settings: dict) -> bool:
    """Whether there is a whole corpus, which is then of these settings."""
    if not storage.exists(storage.join(out, reading.INDEX)):
        return False
    check_settings(reading.read_index(out)[1], settings, out)
    remove_leftovers(out)
    return True


def _write(config, vocabulary, out: str, settings: dict, tfds) -> None:
    record = RecordFormat.of(config, vocabulary.size)
    begun = begun_state(out, settings, record)
    if not begun.documents:
        vocabulary.save(out)
    mixture = corpus_mixture(config, tfds)
    writer = CorpusWriter(config, vocabulary, out, settings, record, begun)
    with Progress("preparing", "documents", count_corpus(config, tfds)) as progress:

        def held_out() -> Iterator[MixedDocument]:
            """The documents in the shards that validation pairs need at the end."""
            for document in itertools.islice(mixture, begun.documents):
                progress.advance(text="going on")
                if document.held_out:
                    yield document

        writer.hold_out(corpus_documents(held_out(), vocabulary, config))
        start = time.monotonic()
        for block in blocks(corpus_documents(mixture, vocabulary, config), config):
            writer.write(block)
            state = writer.state
            rate = (state.tokens - begun.tokens) / max(time.monotonic() - start, 1e-9)
            progress.advance(
                len(block), f"{state.rows:,} rows  {state.tokens:,} tokens  {rate:,.0f} tokens/s"
            )
    writer.finish()


@dataclasses.dataclass(eq=False)
class CorpusWriter:
    """Packs blocks of documents, writes their shards and records each step.

    Running text is held out by the row, which goes into files of its own beside each shard, and
    all are gathered at the end. Pairs are held out by the document: those documents are kept in
    memory, in ids one in `validation_every` of the corpus, and paired among each other at the end.
    """

    config: CorpusConfig
    vocabulary: PieceVocabulary
    out: str
    settings: dict
    record: RecordFormat
    state: reading.CorpusState

    def __post_init__(self):
        self._kept_documents: list[CorpusDocument] = []
        # Only documents that come again can bring a validation row into the training rows.
        begun = self.state.validation if self.config.repeats else ()
        self._kept_rows: set[bytes] = set(_records(self.out, begun))

    def hold_out(self, documents: Iterable[CorpusDocument]) -> None:
        """Keeps the held-out ones of some documents, each once, for the pairs of the validation."""
        self._kept_documents += [
            document for document in documents if document.held_out and not document.repeated
        ]

    def write(self, block: Sequence[CorpusDocument]) -> None:
        """Writes a block's shard; refuses too few documents to pair."""
        state, number = self.state, len(self.state.train)
        counted, train, validation = state.counted, state.train, state.validation
        if self.config.paired:
            self.hold_out(block)
            rows, records = self._pairs([d for d in block if not d.held_out], [number])
            kept = {(): records}
        else:
            rows = self._filled(running_rows(block, self.config))
            kept, held_out, count = self._divided(block, rows)
            counted += count
            name = f"part-{len(validation):05d}.tfrecord"
            validation = (*validation, _write_shard(self.out, name, held_out))
        for languages, records in sorted(kept.items()):
            name = f"train-{len(train):05d}.tfrecord"
            train = (*train, _write_shard(self.out, name, records, languages))
        documents, tokens = state.documents + len(block), state.tokens + _tokens(rows)
        self.state = reading.CorpusState(documents, counted, tokens, train, validation)
        write_state(self.out, reading.PROGRESS, self.settings, self.state)

    def finish(self) -> None:
        """Writes the validation rows, then the index, which makes the corpus valid."""
        tokens = self.state.tokens
        if self.config.paired:
            # Seeds of training shards have one number, this one two.
            rows, held_out = self._pairs(self._kept_documents, [0, 1])
            records, tokens = iter(held_out), tokens + _tokens(rows)
        elif self.state.rows:
            records = _records(self.out, self.state.validation)
        else:
            raise UserError("the sources hold no text that the vocabulary can cut: give others")
        validation: list[reading.Shard] = []
        while chunk := list(itertools.islice(records, self.config.rows_per_shard)):
            name = f"validation-{len(validation):05d}.tfrecord"
            validation.append(_write_shard(self.out, name, chunk))
        state = dataclasses.replace(self.state, tokens=tokens, validation=tuple(validation))
        write_state(self.out, reading.INDEX, self.settings, state)
        remove_leftovers(self.out)

    def _divided(
        self, block: Sequence[CorpusDocument], rows: Rows
    ) -> tuple[dict[tuple[int, ...], list[bytes]], list[bytes], int]:
        """Training records, by their languages where those have files of their own, validation
        records, and how many rows were counted to choose them."""
        records = self._encoded(block, rows)
        repeated = np.array([document.repeated for document in block])[rows.owners]
        numbers = self.state.counted + np.cumsum(~repeated) - 1
        runs = numbers // self.config.validation_run
        chosen = ~repeated & (runs % self.config.validation_every == 0)
        held_out = [records[i] for i in np.flatnonzero(chosen)]
        if self.config.repeats:
            self._kept_rows.update(held_out)
        apart = self.config.batch_alpha is not None
        kept: dict[tuple[int, ...], list[bytes]] = {} if apart else {(): []}
        for i in np.flatnonzero(~chosen):
            if not (repeated[i] and records[i] in self._kept_rows):
                languages = block[rows.owners[i]].languages if apart else ()
                kept.setdefault(languages, []).append(records[i])
        return kept, held_out, int((~repeated).sum())

    def _pairs(
        self, documents: Sequence[CorpusDocument], numbers: list[int]
    ) -> tuple[Rows, list[bytes]]:
        pairs = self.config.pairs
        least = 2 if pairs == "next_sentence" else 1
        if sum(len(document.sentences.ids) > 0 for document in documents) < least:
            raise UserError(_TOO_FEW[pairs])
        rows = pack_pairs(
            [document.sentences for document in documents],
            self.config.sequence_length,
            np.random.default_rng([self.config.seed, *numbers]),
            pairs,
            single_sentences=self.config.row_packing == "sentence_pair",
        )
        rows = self._filled(rows)
        return rows, self._encoded(documents, rows)

    def _filled(self, rows: Sequence[Row]) -> Rows:
        vocabulary = self.vocabulary
        return Rows.of(rows, self.config.sequence_length, vocabulary.cls_id, vocabulary.sep_id)

    def _encoded(self, documents: Sequence[CorpusDocument], rows: Rows) -> list[bytes]:
        languages = np.array([document.languages for document in documents])  # (documents, 2)
        return self.record.encoded(rows, languages[rows.owners])


def _tokens(rows: Rows) -> int:
    return int((rows.token_ids != 0).sum())


def _write_shard(
    folder: str, name: str, records: Sequence[bytes], languages: tuple[int, ...] = ()
) -> reading.Shard:
    with storage.renamed_aside(storage.join(folder, name)) as aside:
        with tf.io.TFRecordWriter(aside) as writer:
            for record in records:
                writer.write(record)
        digest = storage.file_digest(aside)
    return reading.Shard(name, len(records), digest, languages)


def _records(folder: str, shards: Iterable[reading.Shard]) -> Iterator[bytes]:
    paths = [storage.join(folder, shard.name) for shard in shards if shard.rows]
    if paths:
        for batch in tf.data.TFRecordDataset(paths).batch(1024).as_numpy_iterator():
            yield from batch


def corpus_settings(config: CorpusConfig, vocabulary: PieceVocabulary, tfds: Tfds | None) -> dict:
    """All that decides the bytes of a corpus, as JSON gives it back."""
    record = {
        "config": dataclasses.asdict(config),
        "vocabulary": vocabulary.hash,
        "sources": [identify_source(source, tfds) for source in config.sources],
    }
    if config.languages:
        record["languages"] = config.languages  # a position is an id
    return json.loads(json.dumps(record))


def check_settings(found: dict, wanted: dict, out: str) -> None:
    """Refuses a corpus in `out` whose settings are not the wanted ones; names the difference."""
    check_vocabulary(found["vocabulary"], wanted["vocabulary"], f"the corpus in {out}")
    for name, value in wanted["config"].items():
        theirs = found["config"].get(name)
        moved = name == "sources" and theirs and _contents(theirs) == _contents(value)
        if theirs != value and not moved:
            raise UserError(
                f"the corpus in {out} has {name} {theirs!r}, not {value!r}: "
                "take another folder or remove that one"
            )
    stamps = zip(found["sources"], wanted["sources"], strict=True)
    if not all(same_contents(known, now) for known, now in stamps):
        raise UserError(
            f"the files of the sources are not those that the corpus in {out} was begun with: "
            "take another folder or remove that one"
        )


def _contents(sources: list[dict]) -> list[dict]:
    """Sources without the names of files, which may be moved: stamps tell whether they changed."""
    named = [Source.of(source["source"]) for source in sources]
    names = [str(name) if name.is_embedded else name.kind for name in named]
    return [{**source, "source": name} for source, name in zip(sources, names, strict=True)]


def begun_state(out: str, settings: dict, record: RecordFormat) -> reading.CorpusState:
    """Reads the state to resume from, a new one where nothing was begun.

    An unfinished corpus of other settings, or a damaged one, is refused.
    """
    path = storage.join(out, reading.PROGRESS)
    if not storage.exists(path):
        return reading.CorpusState()
    mend = f"remove {path}, and the corpus begins anew"
    _, kept, state = reading.read_record(path, mend)
    check_settings(kept, settings, out)
    reading.check_shards(out, state.train + state.validation, record, verify=True, mend=mend)
    return state


def write_state(out: str, name: str, settings: dict, state: reading.CorpusState) -> None:
    """Records the shards that are complete; under the name `INDEX` it makes the corpus valid."""
    record = {"format": reading.FORMAT, "settings": settings, "state": dataclasses.asdict(state)}
    storage.write_aside(storage.join(out, name), (json.dumps(record, indent=1) + "\n").encode())


def remove_leftovers(out: str) -> None:
    """Removes the files of an unfinished corpus; a kill may leave some beside a finished one."""
    for pattern in ("part-*.tfrecord", ".tmp-*.tfrecord-*"):
        for path in storage.matching(out, pattern):
            storage.remove(path)
    storage.remove(storage.join(out, reading.PROGRESS))
