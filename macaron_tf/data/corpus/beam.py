"""Preparation of a corpus with an Apache Beam pipeline.

The pipeline writes the same files as `writing.prepare` without Beam. Workers read parts of the
sources, tokenize the documents in chunks, and store the chunks in a scratch folder inside the
folder of the corpus. A single worker groups the documents into blocks, and a single worker numbers
the rows and files of the blocks. These steps read sizes and counts, but no documents.
"""

import array
import dataclasses
import functools
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from macaron_tf.data.corpus import writing
from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.documents import (
    CorpusDocument,
    MixedDocument,
    blocks,
    chunked,
    count_lines,
    draw_documents,
    open_source,
    source_parts,
)
from macaron_tf.data.corpus.packing import PackedBlock, Packer
from macaron_tf.data.corpus.shards import CorpusState, Shard
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.plug_ins import find_sources
from macaron_tf.text import load_encoder_vocabulary

Key = tuple[int, int, int]  # source, part and chunk index; sorted keys are in document order
Shards = tuple[Shard, ...]

_USER_ERROR = re.compile(rf"{UserError.__name__}: (.*?)(?: \[while running|\\n|\n|$)")


def write(
    packer: Packer, out: epath.Path, settings: dict, tfds: Tfds | None, options: Sequence[str]
):
    """Writes a corpus into the folder `out` with a Beam pipeline.

    Args:
        packer: packer of the corpus.
        out: folder of the corpus.
        settings: settings record that `writing.corpus_settings` returned.
        tfds: access to TensorFlow Datasets.
        options: options of Beam, such as "runner=FlinkRunner". An option is `NAME=VALUE`, or `NAME`
            for a switch.

    Raises:
        UserError: an option is invalid, a source cannot be read, a worker raised a `UserError`, or
            `CorpusWriter.finish` raised the error.
    """
    config = packer.config
    steps = _Steps(config, out, tfds)
    parts = [
        ((source_index, part_index), part)
        for source_index, source in enumerate(config.sources)
        for part_index, part in enumerate(source_parts(source, tfds))
    ]
    try:
        pipeline = beam.Pipeline(options=PipelineOptions([f"--{option}" for option in options]))
    except ValueError as error:
        raise UserError(
            f"Apache Beam rejects --beam {' '.join(options)} ({' '.join(str(error).split())})"
        ) from error
    try:
        with pipeline:
            _build(pipeline, steps, parts)
    except Exception as error:
        # A runner may report the UserError of a worker only as text inside a traceback.
        match = _USER_ERROR.search(f"{type(error).__name__}: {error}")
        if match is None:
            raise
        raise UserError(match[1]) from error
    packed_blocks: list[_Block] = steps.load("blocks")
    state = sum((block.state for block in packed_blocks), CorpusState())
    writer = writing.CorpusWriter(packer, out, settings, state)
    for block in packed_blocks if config.paired else ():
        for document in steps.load(f"held-out-{block.index}"):
            writer.hold_out(document)
    writer.finish()


def _build(pipeline: beam.Pipeline, steps: "_Steps", parts: list) -> None:
    """Adds the steps that prepare a corpus to a Beam pipeline.

    Args:
        parts: one tuple ((source index, part index), `CorpusSource` of the part) for each part of
            each source.
    """
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
    divided = (
        once
        | "number rows" >> beam.FlatMap(steps.number_rows, beam.pvalue.AsList(packed))
        | "deal rows" >> beam.Reshuffle()
        | "hold out" >> beam.Map(steps.hold_out)
    )
    written = (
        once
        | "number files" >> beam.FlatMap(steps.number_files, beam.pvalue.AsList(divided))
        | "deal files" >> beam.Reshuffle()
        | "write" >> beam.Map(steps.write)
    )
    once | "record" >> beam.Map(steps.record, beam.pvalue.AsList(written))


class _Chunk(NamedTuple):
    """Sizes of the documents in a chunk that one worker tokenized.

    Attributes:
        key: indices of source, part and chunk.
        sizes: number of token ids of each document.
        lines: total number of lines of the documents, or 0 if `CorpusConfig.draws_languages` is
            false.
    """

    key: Key
    sizes: array.array
    lines: int


class _DocumentRef(NamedTuple):
    """Location and size of a document in a tokenized chunk.

    Blocks are formed from these records, so that the worker that forms them reads no documents.

    Attributes:
        key: key of the chunk.
        index: index of the document in the chunk.
        size: number of token ids of the document.
        repeated, held_out: values of these attributes in the `MixedDocument`.
    """

    key: Key
    index: int
    size: int
    repeated: bool = False
    held_out: bool = False


@dataclasses.dataclass(frozen=True)
class _Block:
    """Counts and files of a packed block. Each later step of the pipeline fills in more fields.

    Attributes:
        index: index of the block.
        state: counts and files of the block. For segment pairs, `validation` stays empty. For
            running text, it has one file.
        before: sum of `state.counted` over all earlier blocks.
        files: number of training files of the block.
        first_file: index of the first training file of the block.
    """

    index: int
    state: CorpusState
    before: int = 0
    files: int = 0
    first_file: int = 0


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

    def read(
        self, part: tuple[tuple[int, int], CorpusSource]
    ) -> Iterator[tuple[Key, list[MixedDocument]]]:
        """Reads a part of a source, and yields the key and the documents of each chunk."""
        key, source = part
        find_sources(source.source)  # the process that started the pipeline has checked the name
        texts = open_source(source, self.tfds)
        documents = (MixedDocument(text, False, False, key[0]) for text in texts)
        for chunk_index, chunk in enumerate(chunked(documents)):
            yield (*key, chunk_index), chunk

    def tokenize(self, keyed: tuple[Key, list[MixedDocument]]) -> _Chunk:
        key, documents = keyed
        tokenized = _packer(self.config, self.out).tokenize(documents)
        self.save(_chunk_name(key), tokenized)
        lines = 0
        if self.config.draws_languages:
            lines = sum(count_lines(document.text) for document in documents)
        return _Chunk(key, array.array("q", [document.size for document in tokenized]), lines)

    def blocks(self, _, chunks: Sequence[_Chunk]) -> Iterator[tuple[int, list[_DocumentRef]]]:
        """Yields the index of each block and the `_DocumentRef` of each document in the block.

        The blocks depend only on the drawn documents' order and sizes, and on which documents are
        held out.
        """
        chunks_by_source: list[list[_Chunk]] = [[] for _ in self.config.sources]
        for chunk in sorted(chunks, key=lambda chunk: chunk.key):
            chunks_by_source[chunk.key[0]].append(chunk)
        readers = [functools.partial(_document_refs, chunks) for chunks in chunks_by_source]
        sizes = [
            (sum(len(chunk.sizes) for chunk in chunks), sum(chunk.lines for chunk in chunks))
            for chunks in chunks_by_source
        ]
        drawn = (
            ref._replace(repeated=repeated, held_out=held_out)
            for ref, repeated, held_out, _ in draw_documents(self.config, readers, sizes)
        )
        yield from enumerate(blocks(drawn, self.config))

    def pack(self, numbered: tuple[int, list[_DocumentRef]]) -> _Block:
        index, refs = numbered
        chunks = {key: self.load(_chunk_name(key)) for key in {ref.key for ref in refs}}
        block: list[CorpusDocument] = [
            dataclasses.replace(
                chunks[ref.key][ref.index], repeated=ref.repeated, held_out=ref.held_out
            )
            for ref in refs
        ]
        packed = _packer(self.config, self.out).pack((index, block))
        self.save(f"packed-{index}", packed)
        if self.config.paired:
            held_out = [document for document in block if document.held_out]
            self.save(f"held-out-{index}", held_out)
        return _Block(index, packed.state)

    def number_rows(self, _, unordered: Iterable[_Block]) -> Iterator[_Block]:
        rows_before = 0
        for block in _in_order(unordered):
            yield dataclasses.replace(block, before=rows_before)
            rows_before += block.state.counted

    def hold_out(self, block: _Block) -> _Block:
        """Chooses the validation rows of a block.

        The validation rows of running text are written to a file. A block of segment pairs has no
        validation rows. Returns the block with `files` and `state.validation` set.
        """
        packed: PackedBlock = self.load(f"packed-{block.index}")
        training_records, validation_records = packed.divide(self.config, block.before, set())
        state = block.state
        if not self.config.paired:
            part = writing.write_shard(self.out, "part", block.index, validation_records)
            state = dataclasses.replace(state, validation=(part,))
        return dataclasses.replace(block, files=len(training_records), state=state)

    def number_files(self, _, unordered: Iterable[_Block]) -> Iterator[tuple[_Block, Shards]]:
        """Yields each block with `first_file` set, and the validation files of all earlier blocks.

        Unless documents may be repeated, no step needs the validation files, and the tuple of files
        is empty.
        """
        first_file, earlier_files = 0, ()
        for block in _in_order(unordered):
            yield dataclasses.replace(block, first_file=first_file), earlier_files
            first_file += block.files
            earlier_files += block.state.validation if self.config.repeats else ()

    def write(self, block_and_files: tuple[_Block, Shards]) -> _Block:
        """Writes the training rows of a block to files, and sets the block's `state.train`."""
        block, earlier_files = block_and_files
        packed: PackedBlock = self.load(f"packed-{block.index}")
        files_to_compare = earlier_files if packed.repeated.any() else ()
        validation_records = set(writing.read_records(self.out, files_to_compare))
        training_records, _ = packed.divide(self.config, block.before, validation_records)
        train = writing.write_train(self.out, block.first_file, training_records)
        return dataclasses.replace(block, state=dataclasses.replace(block.state, train=train))

    def record(self, _, unordered: Iterable[_Block]) -> None:
        self.save("blocks", _in_order(unordered))


@functools.cache
def _packer(config: CorpusConfig, out: epath.Path) -> Packer:
    """Returns the packer of the corpus in `out`. Each worker reads the vocabulary only once."""
    return Packer(config, load_encoder_vocabulary(out))


def _document_refs(chunks: Sequence[_Chunk]) -> Iterator[_DocumentRef]:
    for chunk in chunks:
        for index, size in enumerate(chunk.sizes):
            yield _DocumentRef(chunk.key, index, size)


def _in_order(unordered: Iterable[_Block]) -> list[_Block]:
    return sorted(unordered, key=lambda block: block.index)


def _chunk_name(key: Key) -> str:
    return "tokens-" + "-".join(map(str, key))
