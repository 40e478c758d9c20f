"""Packing of tokenized documents into rows of a fixed length."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import Document, tokenized_documents
from macaron_tf.errors import UserError
from macaron_tf.special import Special
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows, id_dtype


class Row(NamedTuple):
    """A row before encoding.

    Attributes:
        segments: token ids of each segment, without the [SEP] that follows in the encoded row.
        owner: index of the document with which the row begins.
        boundary: column where the second segment of a pair begins, or L for rows without pairs.
        label: 1 if the second segment comes from another document or the segments are swapped,
            otherwise 0.
    """

    segments: list[np.ndarray]
    owner: int
    boundary: int
    label: int = 0


def token_ids_of(rows: Sequence[Row], length: int, special: Special) -> np.ndarray:
    """Returns N rows `[CLS] segment [SEP] segment [SEP] ...` as ids `(N, L)` int32."""
    token_ids = np.full((len(rows), length), special.pad, np.int32)
    for row, filled in zip(rows, token_ids, strict=True):
        filled[0] = special.begin
        column = 1
        for ids in row.segments:
            filled[column : column + len(ids)] = ids
            column += len(ids) + 1
            filled[column - 1] = special.end
    return token_ids


def running_rows(block: Sequence[Document], config: CorpusConfig) -> list[Row]:
    """Packs the running text and the translation pairs of a block of documents.

    All documents in a row of running text have the same language. A row with a translation pair has
    two languages.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for index, document in enumerate(block):
        groups.setdefault(config.language_ids[document.source], []).append(index)
    length, rows = config.sequence_length, []
    for (first, second), indices in groups.items():
        sentences = [block[index].text for index in indices]
        if first != second:
            packed = pack_translations(sentences, length)
        else:
            packed = pack_rows(sentences, length, config.crosses_documents, config.cuts_sentences)
        rows += [row._replace(owner=indices[row.owner]) for row in packed]
    return sorted(rows, key=lambda row: row.owner)


def pack_rows(
    documents: Sequence[TokenRows],
    length: int,
    cross_documents: bool,
    whole_sentences: bool = False,
) -> list[Row]:
    """Packs running text into rows `[CLS] ids [SEP]`, or `[CLS] ids [SEP] ids [SEP]` and so on.

    Every token id is in exactly one row. Only a row that crosses documents has several segments.

    RoBERTa (Liu et al. 2019, section 4.2) calls whole sentences FULL-SENTENCES if rows cross
    documents, and DOC-SENTENCES otherwise. For DOC-SENTENCES, RoBERTa uses more rows per batch, so
    that all batches have about the same number of ids. This library keeps the number of rows per
    batch.

    Args:
        cross_documents: whether a row continues with the next document after a [SEP]. If only one
            column of a row is left, the next document begins a new row.
        whole_sentences: whether a row takes only whole sentences. A sentence that is longer than a
            row is cut, and its first part begins a row. `False` means that a sentence may continue
            in the next row.
    """
    capacity = length - 2
    rows: list[Row] = []
    free_columns = 0  # in the last row
    for index, document in enumerate(documents):
        start = 0
        if cross_documents and free_columns > 1:
            # One column is for the [SEP].
            start = _range_end(document, 0, free_columns - 1, whole_sentences)
            if start:
                rows[-1].segments.append(document.ids[:start])
                free_columns -= start + 1
        while start < len(document.ids):
            end = _range_end(document, start, capacity, whole_sentences)
            if end <= start:  # the sentence is longer than a row, and is cut
                end = start + capacity
            rows.append(Row([document.ids[start:end]], index, length))
            free_columns = capacity - (end - start)
            start = end
    return rows


def _range_end(document: TokenRows, start: int, max_ids: int, whole_sentences: bool) -> int:
    """Returns the end of the longest token range from `start` on that has at most `max_ids` ids."""
    if not whole_sentences:
        return min(start + max_ids, len(document.ids))
    ends = document.offsets
    return max(start, int(ends[np.searchsorted(ends, start + max_ids, side="right") - 1]))


def pack_pairs(
    documents: Sequence[TokenRows],
    length: int,
    rng: np.random.Generator,
    pairs: str = "next_sentence",
    short_probability: float = 0.1,
    single_sentences: bool = False,
) -> list[Row]:
    """Packs pairs of segments into rows `[CLS] a [SEP] b [SEP]` for BERT or ALBERT.

    Consecutive sentences of a document are collected until they reach a target length, as in BERT's
    `create_pretraining_data` (Devlin et al. 2019, appendix A.2). A random sentence boundary divides
    the collected sentences into the segments a and b. If the pair is too long for a row, ids are
    removed from random ends of the longer segment, and then from both segments alternately.

    With "next_sentence" (BERT), b is replaced by sentences from another document with a probability
    of 0.5, and the next pair begins with the replaced sentences. If only one sentence was
    collected, the sentence becomes a, and b always comes from another document. With short
    documents, b therefore comes from another document in more than half of the pairs.

    With "sentence_order" (ALBERT, Lan et al. 2020, section 3.1), a and b are consecutive segments
    of one document, and are swapped with a probability of 0.5. If only one sentence was collected,
    the sentence is divided at a random token. A sentence of a single token gives no pair. In
    ALBERT's released code, a single sentence instead becomes a, b comes from another document, and
    the pair gets the label 1 of a swapped pair. More than half of the labels are then 1, and a
    model can predict many labels from the change of topic.

    Args:
        documents: token ids of each document, one sentence per row of `TokenRows`. "next_sentence"
            needs at least two documents with text.
        short_probability: probability that the target length is drawn from 2 to L - 3 ids.
            Otherwise the target length is L - 3.
        single_sentences: whether each segment is a single sentence, as in SENTENCE-PAIR (Liu et al.
            2019, section 4.2). `short_probability` then has no effect.
    """
    make_pair = _PAIR_MAKERS[pairs]
    owners = [owner for owner, document in enumerate(documents) if len(document.ids)]
    usable = [documents[owner] for owner in owners]
    if len(usable) < (least := 2 if pairs == "next_sentence" else 1):
        raise UserError(f"{pairs} pairs need {least} or more documents with text for each split")
    capacity = length - 3
    rows: list[Row] = []
    for index, owner in enumerate(owners):
        offsets = usable[index].offsets
        first, count = 0, len(offsets) - 1
        while first < count:
            if single_sentences:
                target, end = 1, min(first + 2, count)
            else:
                target = capacity
                if rng.random() < short_probability:
                    target = int(rng.integers(2, capacity + 1))
                # Sentences `first` to `end - 1` are the fewest that reach the target length.
                reach = np.searchsorted(offsets, offsets[first] + target, side="left")
                end = min(max(int(reach), first + 1), count)
            a, b, label, first = make_pair(usable, index, first, end, target, rng)
            if len(a) and len(b):
                a, b = _trimmed(a, b, capacity, rng)
                rows.append(Row([a, b], owner, len(a) + 2, label))
    return rows


def pack_translations(documents: Sequence[TokenRows], length: int) -> list[Row]:
    """Packs each translation pair that fits into a row `[CLS] a [SEP] b [SEP]` of L ids.

    A pair that does not fit is left out, as in XLM (Conneau and Lample 2019, section 3.4), because
    trimmed halves would not be translations of each other. A pair with an empty half is also left
    out.
    """
    rows = []
    for index, pair in enumerate(documents):
        if len(pair.offsets) == 3 and len(pair.ids) <= length - 3:
            middle = pair.offsets[1]
            rows.append(Row([pair.ids[:middle], pair.ids[middle:]], index, middle + 2))
    return rows


def _next_sentence(usable, index, first, end, target, rng):
    """Makes a "next_sentence" pair from sentences `first` to `end - 1` of document `index`."""
    ids, offsets = usable[index].ids, usable[index].offsets
    cut = first + 1 if end - first < 2 else int(rng.integers(first + 1, end))
    a = ids[offsets[first] : offsets[cut]]
    if end - first < 2 or rng.random() < 0.5:
        other = int(rng.integers(len(usable) - 1))
        b = _random_sentences(usable[other + (other >= index)], target - len(a), rng)
        return a, b, 1, cut  # the sentences that b replaces begin the next pair
    return a, ids[offsets[cut] : offsets[end]], 0, end


def _sentence_order(usable, index, first, end, target, rng):
    """Makes a "sentence_order" pair from sentences `first` to `end - 1` of document `index`."""
    ids, offsets = usable[index].ids, usable[index].offsets
    start, stop = int(offsets[first]), int(offsets[end])
    if end - first > 1:
        cut = int(offsets[rng.integers(first + 1, end)])
    else:
        cut = int(rng.integers(start + 1, max(stop, start + 2)))
    a, b = ids[start:cut], ids[cut:stop]
    return (b, a, 1, end) if rng.random() < 0.5 else (a, b, 0, end)


_PAIR_MAKERS = {"next_sentence": _next_sentence, "sentence_order": _sentence_order}


def _random_sentences(document: TokenRows, target: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the ids of whole sentences from a random start, until they are `target` ids."""
    offsets = document.offsets
    start = int(rng.integers(len(offsets) - 1))
    reach = int(np.searchsorted(offsets, offsets[start] + target, side="left"))
    return document.ids[offsets[start] : offsets[min(max(reach, start + 1), len(offsets) - 1)]]


def _trimmed(a: np.ndarray, b: np.ndarray, max_ids: int, rng: np.random.Generator) -> tuple:
    """Trims two segments to at most `max_ids` ids in total.

    BERT's code removes ids one by one from a random end of the longer segment. The results of this
    function have the same distribution as the results of BERT's code, but this function draws the
    number of ids to remove at each end from a binomial distribution. Removing ids one by one would
    be slow for a segment that is a whole book without full stops.
    """
    keep_a = min(len(a), max(max_ids - len(b), (max_ids + 1) // 2))
    trimmed = []
    for ids, keep in ((a, keep_a), (b, min(len(b), max_ids - keep_a))):
        excess = len(ids) - keep
        front = int(rng.binomial(excess, 0.5)) if excess else 0
        trimmed.append(ids[front : front + keep])
    return trimmed[0], trimmed[1]


def row_bytes(columns: Mapping[str, np.ndarray]) -> list[bytes]:
    """Returns the bytes of each row of columns, which are equal for equal rows."""
    return [row.tobytes() for row in np.concatenate([*columns.values()], axis=1)]


@dataclasses.dataclass(frozen=True, eq=False)
class PackedBlock:
    """The N rows of a block of documents.

    Attributes:
        columns: columns as `Packer.columns` returns them.
        repeated: `(N,)` bool, True if the document with which a row begins is a repetition.
        languages: `(N, 2)` int64, language ids of the first and second half of each row.
    """

    documents: int
    tokens: int
    columns: dict[str, np.ndarray]
    repeated: np.ndarray
    languages: np.ndarray

    def divide(
        self, config: CorpusConfig, counted: int, validation_rows: set[bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns which rows are for training, and which for validation, `(N,)` bool each.

        Args:
            validation_rows: `row_bytes` of all earlier blocks' validation rows. If documents may be
                repeated, this method adds the validation rows of this block, and leaves out the
                training rows of repeated documents that equal a validation row.
        """
        if config.holds_out_documents:  # a block has only the other documents
            return np.ones_like(self.repeated), np.zeros_like(self.repeated)
        runs = (counted + np.cumsum(~self.repeated) - 1) // config.validation_run
        is_held_out = ~self.repeated & (runs % config.validation_every == 0)
        is_trained = ~is_held_out
        if config.repeats:
            rows = row_bytes(self.columns)
            validation_rows.update(rows[i] for i in np.flatnonzero(is_held_out))
            for i in np.flatnonzero(self.repeated):
                is_trained[i] = rows[i] not in validation_rows
        return is_trained, is_held_out


@dataclasses.dataclass(frozen=True, eq=False)
class Packer:
    """Tokenizer and packer of document blocks."""

    config: CorpusConfig
    vocabulary: PieceVocabulary

    def tokenize(self, documents: Sequence[Document]) -> list[Document]:
        """Tokenizes documents that were drawn from the sources of the corpus."""
        splitter = self.config.sentence_splitter if self.config.cuts_sentences else None
        texts = (document.text for document in documents)
        tokenized = tokenized_documents(texts, self.vocabulary, splitter)
        pairs = zip(documents, tokenized, strict=True)
        return [document._replace(text=rows) for document, rows in pairs]

    def columns(self, rows: Sequence[Row], languages: np.ndarray) -> dict[str, np.ndarray]:
        """Returns N rows and their `languages (N, 2)` as the columns of a shard.

        The columns are "token_ids" `(N, L)` and, if the corpus has such rows, "boundary",
        "pair_label", "language" and "second_language", `(N, 1)` each. An integer has two bytes if
        all ids and positions fit.
        """
        config, vocabulary = self.config, self.vocabulary
        columns = {"token_ids": token_ids_of(rows, config.sequence_length, vocabulary.special)}
        if config.paired or config.has_translations:
            columns["boundary"] = np.array([row.boundary for row in rows])[:, None]
        if config.paired:
            columns["pair_label"] = np.array([row.label for row in rows])[:, None]
        if config.languages:
            columns["language"] = languages[:, :1]
        if config.has_translations:
            columns["second_language"] = languages[:, 1:]
        dtype = id_dtype(max(config.sequence_length + 1, vocabulary.size))
        return {name: column.astype(dtype) for name, column in columns.items()}

    def pack(self, numbered: tuple[int, Sequence[Document]]) -> PackedBlock:
        """Packs a block of documents, without those that are held out."""
        index, block = numbered
        train = [document for document in block if not document.held_out]
        return self.pack_documents(train, [index], len(block))

    def pack_documents(
        self, documents: Sequence[Document], seeds: list[int], count: int = 0
    ) -> PackedBlock:
        """Packs documents of one split. `seeds` seed the draws for segment pairs."""
        config, special, length = self.config, self.vocabulary.special, self.config.sequence_length
        if config.paired:
            sentences = [document.text for document in documents]
            rng = np.random.default_rng([config.seed, *seeds])
            single = config.row_packing == "sentence_pair"
            rows = pack_pairs(sentences, length, rng, config.pairs, single_sentences=single)
        else:
            rows = running_rows(documents, config)
        owners = [documents[row.owner] for row in rows]
        repeated = np.array([document.repeated for document in owners], bool)
        languages = np.array(config.language_ids)[[document.source for document in owners]]
        columns = self.columns(rows, languages)
        tokens = int((columns["token_ids"] != special.pad).sum())
        return PackedBlock(count, tokens, columns, repeated, languages)
