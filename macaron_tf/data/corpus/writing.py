"""Preparation of a corpus, shard by shard.

A killed run can resume, and then writes the same bytes as a run that was not killed.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from etils import epath

from macaron_tf.data.corpus import documents as texts
from macaron_tf.data.corpus import shards as store
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import Document
from macaron_tf.data.corpus.packing import PackedBlock, Packer
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.corpus.shards import INDEX, CorpusState, Shard, write_index
from macaron_tf.data.processes import Processes
from macaron_tf.data.sources.readers import source_stamps
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import content_stamps, only_writer, same_contents
from macaron_tf.io.progress import Progress, short
from macaron_tf.text.base import PieceVocabulary, check_vocabulary

SCRATCH = "scratch"  # folder of a Beam pipeline within the corpus's folder


def prepare(
    config: CorpusConfig,
    vocabulary: PieceVocabulary,
    out: str | os.PathLike,
    *,
    tfds: Tfds | None = None,
    processes: int = 1,
    tokenized: Callable[[CorpusConfig, epath.Path, Tfds | None], Iterator[Document]] | None = None,
) -> PretrainingCorpus:
    """Writes a corpus as shards of rows of equal length, and opens it.

    If the process is killed, the next call continues after the last complete block, and writes the
    same bytes as an uninterrupted call. The next call reads the documents of complete blocks again
    but tokenizes only those that are held out for segment pairs. If the folder has a finished
    corpus with the same settings, sources and vocabulary, the call only opens that corpus.

    For running text, rows are held out. A row of a repeated document (see `mixed_documents`) never
    becomes a validation row, and is left out if it equals a validation row. For segment pairs, and
    for repeated documents in rows that cross documents, whole documents are held out. A text that
    occurs in several documents, such as half of a translation pair, may be in both training and
    validation rows.

    Args:
        processes: number of processes that tokenize and pack. Each process takes about 0.5 GB of
            memory. The files do not depend on the number of processes, so that a call may resume a
            corpus with another number.
        tokenized: function that draws and tokenizes the documents instead of these processes, such
            as `beam.tokenized_mixture`. The function gets `config`, `out` and `tfds`. `None` means
            that the processes tokenize.
    """
    out = storage.as_path(out)
    settings = corpus_settings(config, vocabulary, tfds)
    # A finished corpus is opened without a lock, because its folder may be read-only.
    if not _earlier(out, settings).finished:
        with only_writer(out, "preparing a corpus"):
            # Another process may have finished the corpus in the meantime.
            if not (state := _earlier(out, settings)).finished:
                packer = Packer(config, vocabulary)
                for shard in state.train + state.validation:
                    packer.record_format.read(out, shard)
                if not state.documents:
                    vocabulary.save(out)
                draw = tokenized and functools.partial(tokenized, config, out, tfds)
                _write(packer, out, settings, state, tfds, processes, draw)
                return PretrainingCorpus.open(out, verify=False)
    return PretrainingCorpus.open(out)


def _earlier(out: epath.Path, settings: dict) -> CorpusState:
    """Returns the state from which to resume, or an empty state for a new corpus."""
    if not (out / INDEX).exists():
        return CorpusState()
    _, stored, state = store.read_index(out)
    check_settings(stored, settings, out)
    if state.finished:
        remove_leftovers(out)
    return state


def _write(
    packer: Packer, out: epath.Path, settings: dict, start: CorpusState, tfds, processes, draw
):
    """Writes the shards, and records the state of the corpus after each block.

    If rows are held out, the validation rows of each block become a separate file, and these files
    are joined at the end. If documents are held out, their token ids stay in memory, and are packed
    into validation rows at the end.
    """
    config, state = packer.config, start
    mixture = draw() if draw else texts.corpus_mixture(config, texts.source_readers(config, tfds))
    held_out: list[Document] = []
    # Only a repeated document can put a validation row among the training rows.
    earlier = _validation(packer, out, start) if config.repeats else ()
    validation_records = {record.tobytes() for record in earlier}
    with (
        Progress("preparing", "documents", texts.count_corpus(config, tfds)) as progress,
        Processes(processes, packer) as pool,
    ):

        def tokenized(documents: Iterable[Document]) -> Iterator[Document]:
            """Tokenizes documents, and keeps those that are held out, but no repetitions."""
            if not draw:
                chunks = pool.map(Packer.tokenize, texts.chunked(documents))
                documents = itertools.chain.from_iterable(chunks)
            for document in documents:
                if document.held_out and not document.repeated:
                    held_out.append(document)
                yield document

        def complete() -> Iterator[Document]:
            """Yields the held-out documents of complete blocks, for the validation rows."""
            for document in itertools.islice(mixture, start.documents):
                progress.advance(text="resuming")
                if document.held_out:
                    yield document

        list(tokenized(complete()))
        began = time.monotonic()
        numbered = enumerate(texts.blocks(tokenized(mixture), config), len(start.train))
        for block in pool.map(Packer.pack, numbered):
            state = _write_block(block, config, out, state, validation_records)
            write_index(out, settings, state)
            rate = (state.tokens - start.tokens) / max(time.monotonic() - began, 1e-9)
            progress.advance(block.documents, f"{short(rate)} tokens/s")
    records, validation = _validation(packer, out, state), []
    if config.holds_out_documents:
        # The seed has two integers, because the seed of a training block has one integer.
        last = packer.pack_documents(held_out, [0, 1])
        records, tokens = iter(last.records), state.tokens + last.tokens
        state = dataclasses.replace(state, tokens=tokens)
    elif not any(shard.rows for shard in state.train + state.validation):
        raise UserError("the sources gave no rows: give more text, or raise sequence_length")
    while chunk := list(itertools.islice(records, config.rows_per_shard)):
        validation.append(write_shard(out, "validation", len(validation), np.stack(chunk)))
    state = dataclasses.replace(state, validation=tuple(validation), finished=True)
    # A file may have grown while it was being read.
    check_settings(settings, corpus_settings(config, packer.vocabulary, tfds), out)
    write_index(out, settings, state)
    remove_leftovers(out)


def _validation(packer: Packer, out: epath.Path, state: CorpusState) -> Iterator[np.ndarray]:
    """Yields the validation records of all blocks so far."""
    for shard in state.validation:
        yield from packer.record_format.read(out, shard)


def _write_block(
    block: PackedBlock,
    config: CorpusConfig,
    out: epath.Path,
    state: CorpusState,
    validation_records: set[bytes],
) -> CorpusState:
    """Writes the shards of the next block, and returns the new state of the corpus."""
    is_trained, is_held_out = block.divide(config, state.counted, validation_records)
    index, validation, train = len(state.train), (), []
    if not config.holds_out_documents:
        index = len(state.validation)  # a block may have several training files
        validation = (write_shard(out, "part", index, block.records[is_held_out]),)
    if config.batch_alpha is None:
        train = [write_shard(out, "train", index, block.records[is_trained])]
    for pair in np.unique(block.languages[is_trained], axis=0) if not train else ():
        rows = block.records[is_trained & (block.languages == pair).all(axis=1)]
        train.append(write_shard(out, "train", index, rows, tuple(pair.tolist())))
    return CorpusState(
        state.documents + block.documents,
        state.counted + int((~block.repeated).sum()),
        state.tokens + block.tokens,
        (*state.train, *train),
        state.validation + validation,
    )


def write_shard(
    folder: epath.Path, kind: str, index: int, table: np.ndarray, languages: tuple[int, ...] = ()
) -> Shard:
    """Writes a file of a split, or of the validation rows of a block ("part")."""
    name = f"{'-'.join([kind, f'{index:05d}', *map(str, languages)])}.rows"
    content = table.tobytes()
    storage.write_atomic(folder / name, content)
    return Shard(name, len(table), hashlib.sha256(content).hexdigest(), languages)


def corpus_settings(config: CorpusConfig, vocabulary: PieceVocabulary, tfds: Tfds | None) -> dict:
    """Returns a JSON dict of everything that determines the bytes of a corpus."""
    stamps = [
        source_stamps(source.source, source.split, source.pair, tfds, content_stamps)
        for source in config.sources
    ]
    record = {"config": dataclasses.asdict(config), "vocabulary": vocabulary.hash}
    return json.loads(json.dumps({**record, "sources": stamps}))


def check_settings(stored: dict, expected: dict, out: epath.Path) -> None:
    """Raises a UserError that names the first difference of two corpora; file times may differ."""
    check_vocabulary(stored["vocabulary"], expected["vocabulary"], f"the corpus in {out}")
    for name, value in expected["config"].items():
        if (stored_value := stored["config"].get(name)) != value:
            raise UserError(f"{out} has data.{name}={stored_value!r}, not {value!r}")
    stamps = zip(stored["sources"], expected["sources"], strict=True)
    if not all(same_contents(before, after) for before, after in stamps):
        raise UserError(f"the source files of the corpus in {out} have changed: restore them")


def remove_leftovers(out: epath.Path) -> None:
    """Removes all files of the preparation that a finished corpus does not need."""
    for pattern in ("part-*.rows", ".tmp-*.rows-*", ".tmp-*.json-*"):
        for path in out.glob(pattern):
            path.unlink(missing_ok=True)
    if (scratch := out / SCRATCH).exists():
        scratch.rmtree()
