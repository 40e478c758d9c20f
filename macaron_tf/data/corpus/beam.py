"""Preparation of a corpus with an Apache Beam pipeline.

The pipeline writes the same files as `writing.prepare` without Beam. Workers read parts of the
sources, tokenize the documents in chunks, and store the chunks in a scratch folder inside the
folder of the corpus. A single worker groups the documents into blocks, for which it reads sizes of
documents, but no documents.
"""

import array
import dataclasses
import functools
import itertools
import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from macaron_tf.data.corpus import documents as texts
from macaron_tf.data.corpus import writing
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import Document
from macaron_tf.data.corpus.packing import PackedBlock, Packer
from macaron_tf.data.corpus.shards import CorpusState
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.plug_ins import find_sources
from macaron_tf.text import load_encoder_vocabulary

Key = tuple[int, int, int]  # source, part and chunk index; sorted keys are in document order
Block = tuple[int, CorpusState]  # index of a packed block, and its counts and files so far

_USER_ERROR = re.compile(rf"{UserError.__name__}: (.*?)(?: \[while running|\\n|\n|$)")


def write(
    packer: Packer, out: epath.Path, settings: dict, tfds: Tfds | None, options: Sequence[str]
):
    """Writes a corpus into the folder `out` with a Beam pipeline.

    Args:
        options: options of Beam, such as "runner=FlinkRunner". An option is `NAME=VALUE`, or `NAME`
            for a switch.
    """
    config = packer.config
    steps = _Steps(config, out, tfds)
    parts = [
        ((source_index, part_index), part)
        for source_index, source in enumerate(config.sources)
        for part_index, part in enumerate(texts.source_parts(source, tfds))
    ]
    try:
        pipeline = beam.Pipeline(options=PipelineOptions([f"--{option}" for option in options]))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"Apache Beam rejects --beam {' '.join(options)} ({reason})") from error
    try:
        with pipeline:
            _build(pipeline, steps, parts)
    except Exception as error:
        # A runner may report the UserError of a worker only as text inside a traceback.
        match = _USER_ERROR.search(f"{type(error).__name__}: {error}")
        if match is None:
            raise
        raise UserError(match[1]) from error
    packed_blocks: list[Block] = steps.load("blocks")
    state = sum((state for _, state in packed_blocks), CorpusState())
    writer = writing.CorpusWriter(packer, out, settings, state)
    for index, _ in packed_blocks if config.paired else ():
        for document in steps.load(f"held-out-{index}"):
            writer.hold_out(document)
    writer.finish()


def _build(pipeline: beam.Pipeline, steps: "_Steps", parts: list) -> None:
    """Adds the steps that prepare a corpus to a Beam pipeline."""
    once = pipeline | "once" >> beam.Create([None])
    chunks = (
        pipeline
        | "parts" >> beam.Create(parts)
        | "deal parts" >> beam.Reshuffle()
        | "read" >> beam.FlatMap(steps.read)
        | "deal text" >> beam.Reshuffle()
        | "tokenize" >> beam.Map(steps.tokenize)
    )
    packed = (
        once
        | "cut blocks" >> beam.FlatMap(steps.blocks, beam.pvalue.AsList(chunks))
        | "deal blocks" >> beam.Reshuffle()
        | "pack" >> beam.Map(steps.pack)
    )
    divided = packed | "hold out" >> beam.Map(steps.hold_out, beam.pvalue.AsList(packed))
    written = divided | "write" >> beam.Map(steps.write, beam.pvalue.AsList(divided))
    once | "record" >> beam.Map(steps.record, beam.pvalue.AsList(written))


class _Chunk(NamedTuple):
    """Sizes of the documents in a chunk that one worker tokenized, and their number of lines."""

    key: Key
    sizes: array.array
    lines: int


class _DocumentRef(NamedTuple):
    """Location of a document in a tokenized chunk, in place of its text, and number of its ids.

    Blocks are formed from these records, so that the worker that forms them reads no documents.
    """

    key: Key
    index: int
    size: int


@dataclasses.dataclass(frozen=True)
class _Steps:
    """Pipeline steps, which the Beam workers run.

    Beam may run a step twice. The second run replaces each file by the same bytes, in one atomic
    write per file.
    """

    config: CorpusConfig
    out: epath.Path
    tfds: Tfds | None

    def save(self, name: str, value: Any) -> None:
        path = self.out / writing.SCRATCH / name
        storage.write_atomic(path, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def load(self, name: str) -> Any:
        return pickle.loads(storage.read_bytes(self.out / writing.SCRATCH / name))

    def read(self, part: tuple) -> Iterator[tuple[Key, list[Document]]]:
        """Reads a part of a source, and yields the key and the documents of each chunk."""
        key, source = part  # the indices of the source and of the part, and a `CorpusSource`
        find_sources(source.source)  # the process that started the pipeline has checked the name
        found = texts.open_source(source, self.tfds)
        documents = (Document(text, False, False, key[0]) for text in found)
        for chunk_index, chunk in enumerate(texts.chunked(documents)):
            yield (*key, chunk_index), chunk

    def tokenize(self, keyed: tuple[Key, list[Document]]) -> _Chunk:
        key, documents = keyed
        tokenized = _packer(self.config, self.out).tokenize(documents)
        self.save(_chunk_name(key), tokenized)
        lines = sum(texts.count_lines(document.text) for document in documents)
        return _Chunk(key, array.array("q", [document.size for document in tokenized]), lines)

    def blocks(self, _, chunks: Sequence[_Chunk]) -> Iterator[tuple[int, list[Document]]]:
        """Yields the index and the documents of each block, with a `_DocumentRef` for each text."""
        chunks_by_source: list[list[_Chunk]] = [[] for _ in self.config.sources]
        for chunk in sorted(chunks, key=lambda chunk: chunk.key):
            chunks_by_source[chunk.key[0]].append(chunk)
        readers, sizes = [], []
        for chunks in chunks_by_source:
            readers.append(functools.partial(_document_refs, chunks))
            documents = sum(len(chunk.sizes) for chunk in chunks)
            sizes.append((documents, sum(chunk.lines for chunk in chunks)))
        drawn = texts.draw_documents(self.config, readers, sizes)
        yield from enumerate(texts.blocks(drawn, self.config))

    def pack(self, numbered: tuple[int, list[Document]]) -> Block:
        index, drawn = numbered
        chunks = {key: self.load(_chunk_name(key)) for key in {one.text.key for one in drawn}}
        block = [one._replace(text=chunks[one.text.key][one.text.index].text) for one in drawn]
        packed = _packer(self.config, self.out).pack((index, block))
        self.save(f"packed-{index}", packed)
        if self.config.paired:
            self.save(f"held-out-{index}", [document for document in block if document.held_out])
        return index, packed.state

    def hold_out(self, block: Block, blocks: Sequence[Block]) -> Block:
        """Chooses the validation rows of a block of running text, and writes them to a file."""
        index, state = block
        if self.config.paired:
            return block
        packed: PackedBlock = self.load(f"packed-{index}")
        _, validation_records = packed.divide(self.config, _counted(index, blocks), set())
        part = writing.write_shard(self.out, "part", index, validation_records)
        return index, dataclasses.replace(state, validation=(part,))

    def write(self, block: Block, blocks: Sequence[Block]) -> Block:
        """Writes the training rows of a block to files."""
        index, state = block
        packed: PackedBlock = self.load(f"packed-{index}")
        earlier = (other.validation for number, other in blocks if number < index)
        files = itertools.chain.from_iterable(earlier) if packed.repeated.any() else ()
        record_format = _packer(self.config, self.out).record_format
        records = writing.read_records(self.out, files, record_format)
        held_out = {record.tobytes() for record in records}
        training_records, _ = packed.divide(self.config, _counted(index, blocks), held_out)
        train = writing.write_train(self.out, index, training_records)
        return index, dataclasses.replace(state, train=train)

    def record(self, _, blocks: Sequence[Block]) -> None:
        self.save("blocks", sorted(blocks, key=lambda block: block[0]))


def _counted(index: int, blocks: Sequence[Block]) -> int:
    """Returns the sum of `CorpusState.counted` over all blocks before the block `index`."""
    return sum(state.counted for number, state in blocks if number < index)


@functools.cache
def _packer(config: CorpusConfig, out: epath.Path) -> Packer:
    """Returns the packer of the corpus in `out`. Each worker reads the vocabulary only once."""
    return Packer(config, load_encoder_vocabulary(out))


def _document_refs(chunks: Sequence[_Chunk]) -> Iterator[_DocumentRef]:
    for chunk in chunks:
        for index, size in enumerate(chunk.sizes):
            yield _DocumentRef(chunk.key, index, size)


def _chunk_name(key: Key) -> str:
    return "tokens-" + "-".join(map(str, key))
