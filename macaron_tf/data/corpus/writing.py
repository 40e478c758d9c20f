"""Preparation of a corpus: shards written one by one, resumed after a kill with the same bytes."""

import dataclasses
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf
from etils import epath

from macaron_tf.data.corpus import reading
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import (
    CorpusDocument,
    MixedDocument,
    blocks,
    chunked,
    corpus_mixture,
    count_corpus,
    identify_source,
    open_source,
)
from macaron_tf.data.corpus.packing import PackedBlock, Packer, RecordFormat
from macaron_tf.data.processes import Processes
from macaron_tf.data.sources.names import Source
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import only_writer, same_contents
from macaron_tf.io.progress import Progress
from macaron_tf.text.base import PieceVocabulary, check_vocabulary

SCRATCH = "scratch"  # a pipeline's folder in the corpus's


def prepare(
    config: CorpusConfig,
    vocabulary: PieceVocabulary,
    out: str | os.PathLike,
    *,
    tfds: Tfds | None = None,
    processes: int = 1,
    write: Callable[[Packer, epath.Path, dict, Tfds | None], None] | None = None,
) -> reading.PretrainingCorpus:
    """Writes a corpus as shards of rows of one length, or resumes an unfinished one.

    Killed at any moment, the same call goes on after the last whole shard, reading past the
    documents before it without tokenizing them, and ends with the same bytes. A finished corpus
    of the same settings and sources is only opened.

    A row of a document that is read again (see `mixed_documents`) is never a validation row, and
    where it equals one of them it is left out. Pairs hold out whole documents, which are kept
    out of the training rows whenever they are read. The halves of a translation pair that is held
    out may stand in the running text of their languages.

    Args:
        processes: number of processes that cut documents and pack rows, each of about half a
            gigabyte. The bytes are the same whatever their number, which may change when an
            unfinished corpus is resumed.
        write: writes the corpus in place of these processes, such as `beam.write`, which takes
            nothing from an unfinished one.

    Raises:
        UserError: a source that cannot be read; a folder that cannot be written, that another
            process is writing (on disk: a bucket has no locks), or that holds a corpus of other
            settings, sources or vocabulary; no text; next-sentence pairs of fewer than four
            documents, sentence-order pairs of fewer than two.
    """
    out = storage.as_path(out)
    if tfds and tfds.download:
        for source in config.sources:
            open_source(source, tfds)
    settings = corpus_settings(config, vocabulary, tfds)
    # A finished corpus needs no lock: its folder may be read-only.
    if not _finished(out, settings):
        with only_writer(out, "preparing a corpus"):
            # Another process may have finished it since.
            if not _finished(out, settings):
                packer = Packer(config, vocabulary)
                begun = begun_state(out, settings, packer.record)
                if not begun.documents:
                    vocabulary.save(out)
                if write is not None:
                    write(packer, out, settings, tfds)
                else:
                    _write(packer, out, settings, begun, tfds, processes)
                return reading.PretrainingCorpus.open(out, verify=False)
    return reading.PretrainingCorpus.open(out)


def _finished(out: epath.Path, settings: dict) -> bool:
    """Whether there is a whole corpus, which is then of these settings."""
    if not (out / reading.INDEX).exists():
        return False
    check_settings(reading.read_index(out)[1], settings, out)
    remove_leftovers(out)
    return True


def _write(packer: Packer, out: epath.Path, settings: dict, begun, tfds, processes: int) -> None:
    config = packer.config
    mixture = corpus_mixture(config, tfds)
    writer = CorpusWriter(packer, out, settings, begun)
    with (
        Progress("preparing", "documents", count_corpus(config, tfds)) as progress,
        Processes(processes, packer) as pool,
    ):

        def tokenized(documents: Iterable[MixedDocument]) -> Iterator[CorpusDocument]:
            return itertools.chain.from_iterable(pool.map(Packer.tokenize, chunked(documents)))

        def held_out() -> Iterator[MixedDocument]:
            """The documents in the shards that validation pairs need at the end."""
            for document in itertools.islice(mixture, begun.documents):
                progress.advance(text="going on")
                if document.held_out:
                    yield document

        for document in tokenized(held_out()):
            writer.hold_out(document)
        start = time.monotonic()
        documents = map(writer.hold_out, tokenized(mixture))
        numbered = enumerate(blocks(documents, config), len(begun.train))
        for block in pool.map(Packer.pack, numbered):
            writer.write(block)
            state = writer.state
            rate = (state.tokens - begun.tokens) / max(time.monotonic() - start, 1e-9)
            progress.advance(
                block.documents,
                f"{state.rows:,} rows  {state.tokens:,} tokens  {rate:,.0f} tokens/s",
            )
    writer.finish()


@dataclasses.dataclass(eq=False)
class CorpusWriter:
    """Writes the shards of packed blocks and records each step.

    Running text is held out by the row, which goes into files of its own beside each shard, and
    all are gathered at the end. Pairs are held out by the document: those documents are kept in
    memory, in ids one in `validation_every` of the corpus, and paired among each other at the end.
    """

    packer: Packer
    out: epath.Path
    settings: dict
    state: reading.CorpusState

    def __post_init__(self):
        self._kept_documents: list[CorpusDocument] = []
        # Only documents that come again can bring a validation row into the training rows.
        begun = self.state.validation if self.packer.config.repeats else ()
        self._kept_rows: set[bytes] = set(read_records(self.out, begun))

    def hold_out(self, document: CorpusDocument) -> CorpusDocument:
        """Keeps a held-out document, once, for the pairs of the validation."""
        if document.held_out and not document.repeated:
            self._kept_documents.append(document)
        return document

    def write(self, block: PackedBlock) -> None:
        """Writes the shards of the next block."""
        state, config = self.state, self.packer.config
        train, held_out = block.divided(config, state.counted, self._kept_rows)
        validation = state.validation
        if not config.paired:
            validation += (write_part(self.out, len(validation), held_out),)
        self.state = reading.CorpusState(
            state.documents + block.documents,
            state.counted + block.counted,
            state.tokens + block.tokens,
            state.train + write_train(self.out, len(state.train), train),
            validation,
        )
        write_state(self.out, reading.PROGRESS, self.settings, self.state)

    def finish(self) -> None:
        """Writes the validation rows, then the index, which makes the corpus valid."""
        tokens = self.state.tokens
        if self.packer.config.paired:
            # Seeds of training shards have one number, this one two.
            block = self.packer.pack_pairs(self._kept_documents, [0, 1])
            records, tokens = iter(block.records), tokens + block.tokens
        elif self.state.rows:
            records = read_records(self.out, self.state.validation)
        else:
            raise UserError("the sources hold no text that the vocabulary can cut: give others")
        validation: list[reading.Shard] = []
        while chunk := list(itertools.islice(records, self.packer.config.rows_per_shard)):
            name = f"validation-{len(validation):05d}.tfrecord"
            validation.append(_write_shard(self.out, name, chunk))
        state = dataclasses.replace(self.state, tokens=tokens, validation=tuple(validation))
        write_state(self.out, reading.INDEX, self.settings, state)
        remove_leftovers(self.out)


def write_part(folder: epath.Path, number: int, records: Sequence[bytes]) -> reading.Shard:
    """The validation records of a block, in a file of their own until the corpus is finished."""
    return _write_shard(folder, f"part-{number:05d}.tfrecord", records)


def write_train(
    folder: epath.Path, first: int, records: dict[tuple[int, ...], list[bytes]]
) -> tuple[reading.Shard, ...]:
    """The training records of a block by their languages, in files numbered from `first` on."""
    return tuple(
        _write_shard(folder, f"train-{number:05d}.tfrecord", found, languages)
        for number, (languages, found) in enumerate(records.items(), first)
    )


def _write_shard(
    folder: epath.Path, name: str, records: Sequence[bytes], languages: tuple[int, ...] = ()
) -> reading.Shard:
    with storage.renamed_aside(folder / name) as aside:
        with tf.io.TFRecordWriter(aside) as writer:
            for record in records:
                writer.write(record)
        digest = storage.file_digest(aside)
    return reading.Shard(name, len(records), digest, languages)


def read_records(folder: epath.Path, shards: Iterable[reading.Shard]) -> Iterator[bytes]:
    """The records of shards, one after another."""
    paths = [str(folder / shard.name) for shard in shards if shard.rows]
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


def check_settings(found: dict, wanted: dict, out: epath.Path) -> None:
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


def begun_state(out: epath.Path, settings: dict, record: RecordFormat) -> reading.CorpusState:
    """Reads the state to resume from, a new one where nothing was begun.

    An unfinished corpus of other settings, or a damaged one, is refused.
    """
    path = out / reading.PROGRESS
    if not path.exists():
        return reading.CorpusState()
    mend = f"remove {path}, and the corpus begins anew"
    _, kept, state = reading.read_record(path, mend)
    check_settings(kept, settings, out)
    reading.check_shards(out, state.train + state.validation, record, verify=True, mend=mend)
    return state


def write_state(out: epath.Path, name: str, settings: dict, state: reading.CorpusState) -> None:
    """Records the shards that are complete; under the name `INDEX` it makes the corpus valid."""
    record = {"format": reading.FORMAT, "settings": settings, "state": dataclasses.asdict(state)}
    storage.write_aside(out / name, (json.dumps(record, indent=1) + "\n").encode())


def remove_leftovers(out: epath.Path) -> None:
    """Removes the files of an unfinished corpus; a kill may leave some beside a finished one."""
    patterns = ("part-*.tfrecord", ".tmp-*.tfrecord-*", ".tmp-*.json-*", reading.PROGRESS)
    for path in out.iterdir():
        if any(map(path.match, patterns)):
            path.unlink(missing_ok=True)
    if (scratch := out / SCRATCH).exists():
        scratch.rmtree()
