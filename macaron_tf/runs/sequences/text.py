"""Texts of the sequence tasks of Bai et al. 2018: Penn Treebank, articles and LAMBADA."""

import collections
import hashlib
import itertools
from collections.abc import Callable, Iterable

import keras
import numpy as np
from etils import epath

from macaron_tf.data.batches import ArrayBatches
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of
from macaron_tf.runs.elmo import build_vocabulary, read_word_splits
from macaron_tf.runs.sequences.data import SEQUENCE_BATCH_SIZE, TaskData, task_data
from macaron_tf.text.words import WordVocabulary, count_words, read_words

# Window length, and number of scored positions at the end of a window (from the code of the paper).
WORDS, CHARACTERS = (80, 40), (400, 320)
_END = "<eos>"
_NUM_STREAMS = 16  # number of parallel streams in evaluation
_WINDOWS = {"weight": ("float32", (None, None))} | dict.fromkeys(
    ("inputs", "targets"), ("int32", (None, None))
)


def text_data(
    tokenize: Callable, window: tuple[int, int], unit: str, recipe, tfds: Tfds | None
) -> TaskData:
    """Makes the data of next-word or next-character prediction on the Penn Treebank.

    Each line ends with the symbol <eos>. `tokenize` splits a line into words or characters.
    `window` is explained in `windows`, and `unit` names the symbols, for printing.
    """
    symbols = {
        split: [symbol for line in _lines(recipe.data, split) for symbol in [*tokenize(line), _END]]
        for split in ("train", "valid", "test")
    }
    counts = collections.Counter(symbols["train"])
    # Symbols of equal frequency are sorted by code point, so the ids are deterministic.
    vocabulary = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    symbol_ids = {symbol: i for i, symbol in enumerate(vocabulary)}
    for split, split_symbols in symbols.items():
        if unknown := sorted(set(split_symbols) - set(symbol_ids)):
            raise UserError(f"{split}.txt contains {unknown[0]!r}, which train.txt lacks")

    def batches(split: str, streams: int) -> ArrayBatches | None:
        ids = np.array([symbol_ids[symbol] for symbol in symbols[split]], "int32")
        return windows(ids, streams, window) if len(ids) else None

    splits = (
        batches("train", recipe.batch_size),
        *(batches(split, _NUM_STREAMS) for split in ("valid", "test")),
    )
    summary = f"{len(symbols['train']):,} {unit}, {len(symbols['valid']):,} to validate"
    digest = _digest([*symbols["train"], *symbols["valid"]])
    return task_data(0, splits, summary, len(vocabulary), digest)


def _digest(symbols: Iterable[str]) -> str:
    """Computes the SHA-256 digest (hex) of a sequence of words or characters."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()


def _lines(folder: str | None, split: str) -> list[str]:
    """Reads the lines of FOLDER/SPLIT.txt.gz or, if this file is missing, FOLDER/SPLIT.txt.

    The result is empty if the split is "test" and the file is missing or has no text.
    """
    if not folder:
        raise UserError(f"data is missing: give --set data=DIR, the folder of {split}.txt[.gz]")
    paths = [epath.Path(folder) / f"{split}.txt{suffix}" for suffix in (".gz", "")]
    lines = next((list(lines_of(path)) for path in paths if path.is_file()), [])
    if any(map(str.strip, lines)):
        return lines
    if split != "test":
        raise UserError(f"data={folder} has no {split}.txt.gz or {split}.txt with text")
    return []


def windows(ids: np.ndarray, streams: int, window: tuple[int, int]) -> ArrayBatches:
    """Makes batches of overlapping windows over parallel streams of a text.

    The text is split into B streams of equal length. A batch has one window of each stream, and
    the batches are in text order.

    Args:
        streams: maximum number of streams. A short text has fewer streams, so that a window fits.
        window: pair of the window length L and the number of scored positions at the end of a
            window. The other positions were scored in earlier windows and serve as context. All
            positions of the first window are scored. The last window may have fewer scored
            positions.

    Returns:
        Batches of `inputs`, `targets` (the next ids) and `weight`, all `(B, L)`. The weight is 1 at
        scored positions and 0 elsewhere.
    """
    length, num_scored = window
    streams = max(1, min(streams, (len(ids) - 1) // length))
    stream_length = (len(ids) - 1) // streams
    inputs = ids[: streams * stream_length].reshape(streams, stream_length)  # (B S,) -> (B, S)
    targets = ids[1 : streams * stream_length + 1].reshape(streams, stream_length)
    ends = [*range(min(length, stream_length), stream_length, num_scored), stream_length]

    def gather(indices: np.ndarray) -> dict[str, np.ndarray]:
        (index,) = indices
        end, previous_end = ends[index], ends[index - 1] if index else 0
        part = slice(max(end - length, 0), end)
        weight = np.zeros(inputs[:, part].shape, "float32")
        weight[:, previous_end - end :] = 1.0
        return {"inputs": inputs[:, part], "targets": targets[:, part], "weight": weight}

    return ArrayBatches(len(ends), 1, gather, _WINDOWS, shuffle=False)


def word_ids(words: Iterable[str], vocabulary: WordVocabulary) -> np.ndarray:
    """Converts words to ids `(N,)` int32. A word that is not in the vocabulary gets the id 0."""
    indices = {word: index for index, word in enumerate(vocabulary.words)}
    return np.fromiter((indices.get(word, 0) for word in words), "int32")


def article_data(recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of next-word prediction on documents, such as Wikipedia articles.

    Words that are not in the vocabulary become <UNK>. The recipe's `sources` name the documents.
    """
    word_splits = read_word_splits(recipe, tfds)
    vocabulary = build_vocabulary(word_splits, recipe.vocabulary_size)
    train, validation = (word_ids(words, vocabulary) for words in word_splits)
    if min(len(train), len(validation)) <= WORDS[0]:
        found = f"the splits have {len(train)} and {len(validation)} words, but each needs"
        raise UserError(f"{found} more than {WORDS[0]} words, the length of a window")
    sizes = (train, recipe.batch_size), (validation, _NUM_STREAMS)
    splits = [*(windows(ids, streams, WORDS) for ids, streams in sizes), None]
    summary = f"{len(train):,} words, {len(validation):,} to validate"
    return task_data(0, splits, summary, vocabulary.size, _digest(itertools.chain(*word_splits)))


def _normalize_book_text(text: str) -> str:
    """Converts text to a common format of books and LAMBADA.

    The function replaces Penn Treebank quotes with straight quotes, joins " n't" to the preceding
    word, and lower-cases the text.
    """
    for mark, replacement in (("``", '"'), ("''", '"'), (" n't", "n't")):
        text = text.replace(mark, replacement)
    return text.lower()


def last_word_data(recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of LAMBADA, a last-word prediction task.

    A model is trained on next-word prediction in books, which the recipe's `sources` name, and
    evaluated on the last word of each passage. Passages whose last word is not in the vocabulary
    are left out.
    """
    lines = {split: _lines(recipe.data, split) for split in ("dev", "test")}
    word_splits = read_word_splits(recipe, tfds, _normalize_book_text)
    # These are the words of all documents, because the passages are held out.
    words = [*itertools.chain.from_iterable(word_splits)]
    vocabulary = count_words([words], recipe.vocabulary_size)

    def passages(split: str) -> ArrayBatches | None:
        passage_words = read_words(map(_normalize_book_text, lines[split]))
        # Drops the end token of the last sentence, and passages with an unknown last word.
        rows = [word_ids(words[:-1], vocabulary) for words in passage_words]
        rows = [row for row in rows if any(row[-1:])]
        lengths = np.array([len(row) for row in rows])
        ids = keras.utils.pad_sequences(rows, padding="post") if rows else None  # (N, L)

        def gather(indices: np.ndarray) -> dict[str, np.ndarray]:
            last = lengths[indices][:, None] - 1  # (B, 1)
            positions = np.arange(1, last.max() + 1)
            weight = (positions == last).astype("float32")
            chosen = ids[indices, : last.max() + 1]
            return {"inputs": chosen[:, :-1], "targets": chosen[:, 1:], "weight": weight}

        return ArrayBatches(len(rows), SEQUENCE_BATCH_SIZE, gather, _WINDOWS) if rows else None

    dev, test = passages("dev"), passages("test")
    if dev is None:
        found = f"data={recipe.data}: no passage of dev.txt ends with a word of the training text"
        raise UserError(f"{found}: give more text by --set sources=text:FILES")
    train = windows(word_ids(words, vocabulary), recipe.batch_size, WORDS)
    summary = f"{len(words):,} words, {dev.count:,} passages to validate"
    digest = _digest([*words, *lines["dev"]])
    return task_data(0, (train, dev, test), summary, vocabulary.size, digest)
