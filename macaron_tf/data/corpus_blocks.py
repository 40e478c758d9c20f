"""The documents of a corpus as ids, by the shard, and the rows of running text they make."""

import collections
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from macaron_tf.data.cache import TokenRows
from macaron_tf.data.corpus_config import CorpusConfig
from macaron_tf.data.mixture import MixedDocument
from macaron_tf.data.packing import Rows, pack_rows
from macaron_tf.data.pair_packing import pack_translations
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.tokenized_documents import tokenized_documents


class CorpusDocument:
    """A document of ids.

    Args:
        sentences: its ids; of a translation pair the two halves.
        repeated: whether it has come before.
        held_out: whether all of it is for validation.
        languages: ids of its language and of its second half's, which is the same but in a
            translation pair; (0, 0) in a corpus that does not tell languages apart.
        room: ids of a row.

    Attributes:
        rows: how many rows of a training shard it is worth.
    """

    def __init__(
        self,
        sentences: TokenRows,
        repeated: bool,
        held_out: bool,
        languages: tuple[int, int],
        room: int,
    ):
        self.sentences = sentences
        self.repeated = repeated
        self.held_out = held_out
        self.languages = languages
        self.rows = 0 if held_out else -(-len(sentences.ids) // room)

    @property
    def is_translation(self) -> bool:
        """Whether it is a translation pair."""
        return self.languages[0] != self.languages[1]


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
    splitter = config.sentence_splitter if config.cuts_sentences else None
    room = config.sequence_length - (3 if config.paired else 2)
    known = config.languages
    languages = [
        (known.index(source.languages[0]), known.index(source.languages[-1])) if known else (0, 0)
        for source in config.sources
    ]
    # Of the documents that the tokenizer has taken: it runs ahead, by its group of them.
    taken: collections.deque[MixedDocument] = collections.deque()

    def texts() -> Iterator[str | tuple[str, str]]:
        for document in mixture:
            taken.append(document)
            yield document.text

    for sentences in tokenized_documents(texts(), vocabulary, splitter):
        document = taken.popleft()
        yield CorpusDocument(
            sentences, document.repeated, document.held_out, languages[document.source], room
        )


def blocks(
    documents: Iterable[CorpusDocument], config: CorpusConfig
) -> Iterator[list[CorpusDocument]]:
    """Documents by the shard: each block ends with the document that fills it.

    A block of pairs has a document to train on, and of next-sentence pairs two, so that one is
    there to draw from: it is held back until its successor has them too, and takes what is left at
    the end.

    Args:
        documents: all of them, in their order.
        config: says what a shard is.

    Yields:
        The documents of a shard, those that are held out among them.
    """
    least = 2 if config.pairs == "next_sentence" else 1
    held: list[CorpusDocument] = []
    block: list[CorpusDocument] = []
    usable = rows = 0  # of the block: documents with rows, and these
    for document in documents:
        block.append(document)
        usable += document.rows > 0
        rows += document.rows
        if usable >= least and rows >= config.rows_per_shard:
            if not config.paired:
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


def running_rows(
    block: Sequence[CorpusDocument], config: CorpusConfig, cls_id: int, sep_id: int
) -> Rows:
    """The rows of a block's running text and translation pairs.

    Args:
        block: documents.
        config: says what fills a row.
        cls_id, sep_id: the special ids.

    Returns:
        The rows, in the order of the documents that they begin with; none holds two languages but
        those of a translation pair.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for number, document in enumerate(block):
        groups.setdefault(document.languages, []).append(number)
    ids = (config.sequence_length, cls_id, sep_id)
    packed: list[Rows] = []
    for members in groups.values():
        sentences = [block[number].sentences for number in members]
        if block[members[0]].is_translation:
            rows = pack_translations(sentences, *ids)
        else:
            rows = pack_rows(
                sentences, *ids, config.crosses_documents, whole_sentences=config.cuts_sentences
            )
        packed.append(rows._replace(owners=np.array(members)[rows.owners]))
    rows = Rows(*map(np.concatenate, zip(*packed, strict=True)))
    order = np.argsort(rows.owners, kind="stable")
    return Rows(*(column[order] for column in rows))
