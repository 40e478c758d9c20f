"""Tokenization of a corpus with an Apache Beam pipeline.

Workers read parts of the sources, tokenize the documents in chunks, and store the chunks in a
scratch folder inside the folder of the corpus. The process that started the pipeline then reads the
tokens and writes the corpus, as `writing.prepare` does without Beam. The files are the same.
"""

import functools
import operator
import pickle
import re
from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from macaron_tf.data.corpus import documents as texts
from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.documents import Document
from macaron_tf.data.corpus.packing import Packer
from macaron_tf.data.rows import SCRATCH
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.io import paths as storage
from macaron_tf.io.plug_ins import find_sources
from macaron_tf.text import load_encoder_vocabulary

Key = tuple[int, ...]  # source, part and chunk index; sorted keys are in document order


def tokenized_mixture(
    config: CorpusConfig, out: epath.Path, tfds: Tfds | None, options: Sequence[str]
) -> Iterator[Document]:
    """Tokenizes a corpus with a Beam pipeline, and draws its tokenized documents.

    Args:
        out: folder of the corpus, which has the vocabulary.
        options: options of Beam, such as "runner=FlinkRunner". An option is `NAME=VALUE`, or `NAME`
            for a switch.
    """
    scratch = out / SCRATCH
    if scratch.exists():  # of a pipeline that was stopped
        scratch.rmtree()
    parts = [
        ((source_index, part_index), part)
        for source_index, source in enumerate(config.sources)
        for part_index, part in enumerate(texts.source_parts(source, tfds))
    ]
    with beam.Pipeline(options=PipelineOptions([f"--{one}" for one in options])) as pipeline:
        (
            pipeline
            | "parts" >> beam.Create(parts)
            | "deal parts" >> beam.Reshuffle()
            | "read" >> beam.FlatMap(_read, tfds)
            | "deal text" >> beam.Reshuffle()
            | "tokenize" >> beam.Map(_tokenize, config, out)
        )
    names = (path.name for path in scratch.iterdir())
    keys = sorted(tuple(map(int, n.split("-"))) for n in names if re.fullmatch(r"[\d-]+", n))
    own = ([key for key in keys if key[0] == index] for index in range(len(config.sources)))
    readers = [functools.partial(_chunks, scratch, keys) for keys in own]
    mixture = texts.corpus_mixture(config, readers, operator.itemgetter(0))
    return (document._replace(text=document.text[1]) for document in mixture)


def _chunks(scratch: epath.Path, keys: Sequence[Key]) -> Iterator[tuple]:
    """Yields the number of lines and the token ids of each document in several chunks."""
    for key in keys:
        yield from pickle.loads(storage.read_bytes(scratch / "-".join(map(str, key))))


# Beam may run a step twice. The second run replaces each file by the same bytes, in one atomic
# write per file.


def _read(
    part: tuple[Key, CorpusSource], tfds: Tfds | None
) -> Iterator[tuple[Key, list[Document]]]:
    """Reads a part of a source, and yields the key and the documents of each chunk."""
    key, source = part  # the indices of the source and of the part, and a `CorpusSource`
    find_sources(source.source)  # the process that started the pipeline has checked the name
    documents = (Document(text, False, False, key[0]) for text in texts.open_source(source, tfds))
    for chunk_index, chunk in enumerate(texts.chunked(documents)):
        yield (*key, chunk_index), chunk


def _tokenize(keyed: tuple[Key, list[Document]], config: CorpusConfig, out: epath.Path) -> None:
    """Writes the line counts and the token ids of the documents of a chunk to a file."""
    key, documents = keyed
    lines = [texts.count_lines(document.text) for document in documents]
    rows = [document.text for document in _packer(config, out).tokenize(documents)]
    content = pickle.dumps(list(zip(lines, rows, strict=True)), pickle.HIGHEST_PROTOCOL)
    storage.write_atomic(out / SCRATCH / "-".join(map(str, key)), content)


@functools.cache
def _packer(config: CorpusConfig, out: epath.Path) -> Packer:
    """Returns the packer of the corpus in `out`. Each worker reads the vocabulary only once."""
    return Packer(config, load_encoder_vocabulary(out))
