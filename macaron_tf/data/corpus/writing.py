"""Preparation of a corpus, shard by shard.

A killed run can resume, and then writes the same bytes as a run that was not killed.
"""

import dataclasses
import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from etils import epath

from macaron_tf.data.corpus import documents as texts
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import Document
from macaron_tf.data.corpus.packing import PackedBlock, Packer, row_bytes
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.processes import Processes
from macaron_tf.data.rows import INDEX, Store, read_rows, refuse_damage, take_rows
from macaron_tf.data.sampler import in_parts
from macaron_tf.data.sources.readers import source_stamps
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import content_stamps, only_writer, same_contents
from macaron_tf.io.progress import Progress, short
from macaron_tf.text.base import PieceVocabulary, check_vocabulary


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
            if not (store := _earlier(out, settings)).finished:
                packer = Packer(config, vocabulary)
                store.check()
                if not store.state["documents"]:
                    vocabulary.save(out)
                draw = tokenized and functools.partial(tokenized, config, out, tfds)
                _write(packer, store, tfds, processes, draw)
                return PretrainingCorpus.open(out, verify=False)
    return PretrainingCorpus.open(out)


def _earlier(out: epath.Path, settings: dict) -> Store:
    """Opens the store from which to resume, or returns an empty store for a new corpus."""
    if not (out / INDEX).exists():
        return Store(out, settings, {"documents": 0, "counted": 0})
    store = Store.open(out)
    with refuse_damage(out):
        check_settings(store.settings, settings, out)
    if store.finished:
        store.clean()
    return store


def _write(packer: Packer, store: Store, tfds, processes: int, draw: Callable | None) -> None:
    """Writes the shards, and the index after each block.

    If rows are held out, the validation rows of each block become a separate file, and these files
    are joined at the end. If documents are held out, their token ids stay in memory, and are packed
    into validation rows at the end.

    The state of the store is the number of documents in complete blocks and, among these, "counted"
    rows of documents that are not repeated, among which validation rows are chosen.
    """
    config, out, shards = packer.config, store.folder, store.shards
    mixture = draw() if draw else texts.corpus_mixture(config, texts.source_readers(config, tfds))
    held_out: list[Document] = []
    # Only a repeated document can put a validation row among the training rows.
    earlier = shards.get("part", ()) if config.repeats else ()
    validation_rows = {row for shard in earlier for row in row_bytes(shard.read(out))}
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
            for document in itertools.islice(mixture, store.state["documents"]):
                progress.advance(text="resuming")
                if document.held_out:
                    yield document

        list(tokenized(complete()))
        began, tokens = time.monotonic(), 0
        numbered = enumerate(texts.blocks(tokenized(mixture), config), len(shards.get("train", ())))
        for block in pool.map(Packer.pack, numbered):
            _write_block(block, config, store, validation_rows)
            tokens += block.tokens
            rate = tokens / max(time.monotonic() - began, 1e-9)
            progress.advance(block.documents, f"{short(rate)} tokens/s")
    if config.holds_out_documents:
        # The seed has two integers, because the seed of a training block has one integer.
        store.add("part", packer.pack_documents(held_out, [0, 1]).columns)
    parts = shards.pop("part", [])
    if not any(shard.rows for shard in [*parts, *shards.get("train", ())]):
        raise UserError("the sources gave no rows: give more text, or raise sequence_length")
    for part in in_parts(sum(part.rows for part in parts), config.rows_per_shard):
        rows = read_rows(store.folder, parts, np.arange(part.start, part.stop))
        store.add("validation", rows)
    # A file may have grown while it was being read.
    check_settings(store.settings, corpus_settings(config, packer.vocabulary, tfds), out)
    store.finished = True
    store.save()
    store.clean()


def _write_block(
    block: PackedBlock, config: CorpusConfig, store: Store, validation_rows: set[bytes]
) -> None:
    """Writes the shards of the next block, and the index."""
    is_trained, is_held_out = block.divide(config, store.state["counted"], validation_rows)
    if not config.holds_out_documents:
        store.add("part", take_rows(block.columns, is_held_out))
    if config.batch_alpha is None:
        store.add("train", take_rows(block.columns, is_trained))
    else:
        for pair in np.unique(block.languages[is_trained], axis=0):
            rows = is_trained & (block.languages == pair).all(axis=1)
            store.add("train", take_rows(block.columns, rows), tuple(pair.tolist()))
    store.state["documents"] += block.documents
    store.state["counted"] += int((~block.repeated).sum())
    store.save()


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
