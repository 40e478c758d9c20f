"""The documents of a corpus as ids, by the shard."""

import collections
from collections.abc import Iterable, Iterator

from macaron_tf.data.cache import TokenRows
from macaron_tf.data.corpus_config import CorpusConfig
from macaron_tf.data.mixture import MixedDocument
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.tokenized_documents import tokenized_documents


class CorpusDocument:
    """A document of ids.

    Args:
        sentences: its ids.
        repeated: whether it has come before.
        held_out: whether all of it is for validation.
        room: ids of a row.

    Attributes:
        rows: how many rows of a training shard it is worth.
    """

    def __init__(self, sentences: TokenRows, repeated: bool, held_out: bool, room: int):
        self.sentences = sentences
        self.repeated = repeated
        self.held_out = held_out
        self.rows = 0 if held_out else -(-len(sentences.ids) // room)


def corpus_documents(
    mixture: Iterable[MixedDocument], vocabulary: PieceVocabulary, config: CorpusConfig
) -> Iterator[CorpusDocument]:
    """Cuts the documents of a mixture into ids.

    Args:
        mixture: texts; it is read some documents ahead.
        vocabulary: cuts them.
        config: says whether they are cut into sentences, and how long a row is.

    Yields:
        The documents.
    """
    splitter = config.sentence_splitter if config.next_sentence else None
    room = config.sequence_length - (3 if config.next_sentence else 2)
    # Of the documents that the tokenizer has taken: it runs ahead, by its group of them.
    flags: collections.deque[tuple[bool, bool]] = collections.deque()

    def texts() -> Iterator[str]:
        for document in mixture:
            flags.append((document.repeated, document.held_out))
            yield document.text

    for sentences in tokenized_documents(texts(), vocabulary, splitter):
        yield CorpusDocument(sentences, *flags.popleft(), room)


def blocks(
    documents: Iterable[CorpusDocument], config: CorpusConfig
) -> Iterator[list[CorpusDocument]]:
    """Documents by the shard: each block ends with the document that fills it.

    A block of pairs has two documents to train on or more, so that one is there to draw from: it
    is held back until its successor has them too, and takes what is left at the end.

    Args:
        documents: all of them, in their order.
        config: says what a shard is.

    Yields:
        The documents of a shard, those that are held out among them.
    """
    least = 2 if config.next_sentence else 1
    held: list[CorpusDocument] = []
    block: list[CorpusDocument] = []
    usable = rows = 0  # of the block: documents with rows, and these
    for document in documents:
        block.append(document)
        usable += document.rows > 0
        rows += document.rows
        if usable >= least and rows >= config.rows_per_shard:
            if least == 1:
                yield block
            else:
                if held:
                    yield held
                held = block
            block, usable, rows = [], 0, 0
    if usable >= least:
        if held:
            yield held
        held = []
    if held or block:
        yield [*held, *block]
