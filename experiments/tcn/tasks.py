"""Sequence modelling tasks of Bai et al. 2018, and functions that read or generate their data."""

import argparse
import collections
import dataclasses
import hashlib
import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import scipy.io
import tensorflow as tf
from etils import epath
from scipy.io.matlab import MatReadError

from experiments.elmo.run import build_vocabulary, read_word_splits
from macaron_tf.data.batches import ArrayBatches, Batches
from macaron_tf.data.sources.tfds import read_columns
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of
from macaron_tf.text.token_rows import fingerprint
from macaron_tf.text.words import WordVocabulary, count_words, read_words

ADDING_LENGTH = 600
COPY_DISTANCE = 1000
NUM_SYMBOLS = 10  # number of symbols to remember
COPY_LENGTH = COPY_DISTANCE + 2 * NUM_SYMBOLS
_NUM_GENERATED = 1000  # number of generated sequences for validation, and also for test
_TRAIN, _VALIDATION, _TEST = range(3)  # index of the split, part of the seed of a generated batch

KEYS = 88
# Window length, and number of scored positions at the end of a window (from the code of the paper).
WORDS, CHARACTERS = (80, 40), (400, 320)
_END = "<eos>"
_WINDOWS = {"weight": ("float32", (None, None))} | dict.fromkeys(
    ("inputs", "targets"), ("int32", (None, None))
)
PIXELS = 28 * 28
_HELD_OUT_INTERVAL = 10  # every tenth training image is held out for validation

# Batch sizes of evaluation: for pieces of music or passages, for text streams, and for images.
_SEQUENCE_BATCH_SIZE, _TEXT_BATCH_SIZE, _IMAGE_BATCH_SIZE = 16, 16, 250


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Data of a task, in batches for `SequenceObjective`.

    Attributes:
        train: function that returns an endless dataset of training batches. The argument is the
            index of the first micro-batch.
        validation: batches on which the best checkpoint is selected.
        test: batches on which the best checkpoint is evaluated; `None` means no test split.
        summary: sizes of the splits, for printing.
        vocab_size: vocabulary size; `None` if the data are not token ids.
        fingerprint: SHA-256 digest (hex) of the training and validation data; "" for generated
            data.
    """

    train: Callable[[int], tf.data.Dataset]
    validation: tf.data.Dataset
    test: tf.data.Dataset | None
    summary: str
    vocab_size: int | None = None
    fingerprint: str = ""


def task_data(seed: int, split_batches: Sequence[Batches | None], *arguments) -> TaskData:
    """Makes a `TaskData` object from the batches of all splits.

    Args:
        seed: random seed for shuffling the training examples.
        split_batches: batches of the training, validation and test split; the last element may be
            `None`.
        arguments: arguments of `TaskData` after `test`.
    """
    train, *held_out = split_batches
    evaluation_sets = (batches and batches.evaluation_dataset() for batches in held_out)
    return TaskData(partial(train.dataset, seed), *evaluation_sets, *arguments)


@dataclasses.dataclass(frozen=True)
class Task:
    """A sequence modelling task, with its data, metric and published results.

    Attributes:
        title: heading of the report.
        slide: published result of each model in `MODELS`, for the column "slide" of the report;
            `None` means that no result was published.
        length: number of positions in the longest training sequence.
        read_data: function that reads or generates the data. Its arguments are the options of the
            command and the `SequenceRecipe`.
        unit: name and unit of the metric, for the report.
        loss: loss of `SequenceObjective`.
        metric: metric by which the best checkpoint is selected, and which the report shows.
        takes_data: whether the task reads the file or folder `--data`.
    """

    title: str
    slide: tuple[float | None, ...]
    length: int
    read_data: Callable[[argparse.Namespace, Any], TaskData]
    unit: str
    loss: str = "classes"
    metric: str = "loss"
    takes_data: bool = False


def adding_batch(size: int, seed: tf.Tensor, length: int = ADDING_LENGTH) -> dict[str, tf.Tensor]:
    """Generates a batch of the adding problem.

    A sequence has T random numbers from 0 to 1, and two of these numbers are marked. The target is
    the sum of the two marked numbers.

    Args:
        size: batch size B.
        seed: random seed `(2,)` int64.
        length: sequence length T.

    Returns:
        A dict. `inputs (B, T, 2)` contains the numbers and the marks (0 or 1), `targets (B, 1)`
        contains the sums, and `weight (B,)` is 1.
    """
    seeds = tf.random.split(seed, 2)
    numbers = tf.random.stateless_uniform((size, length), seeds[0])
    # Marks the positions of the two greatest random keys, so all pairs of positions are equally
    # likely.
    keys = tf.random.stateless_uniform((size, length), seeds[1])
    positions = tf.math.top_k(keys, 2).indices  # (B, 2)
    marks = tf.reduce_sum(tf.one_hot(positions, length), axis=1)  # (B, 2, T) -> (B, T)
    return {
        "inputs": tf.stack([numbers, marks], axis=-1),
        "targets": tf.reduce_sum(numbers * marks, axis=1, keepdims=True),
        "weight": tf.ones(size),
    }


def copy_batch(size: int, seed: tf.Tensor, distance: int = COPY_DISTANCE) -> dict[str, tf.Tensor]:
    """Generates a batch of the copy memory task, in which a model repeats ten symbols.

    The input is ten random symbols from 1 to 8, T - 1 zeros and eleven 9s. The target is T + 10
    zeros and the ten symbols. The loss is averaged over all positions. A model without memory
    reaches a loss of 10 ln 8 / (T + 20), which is 0.0204 for T = 1000.

    Args:
        size: batch size B.
        seed: random seed `(2,)` int64.
        distance: T, the number of positions between the last symbol and the first repeated symbol.

    Returns:
        A dict. `inputs (B, T + 20, 10)` contains one-hot vectors, `targets (B, T + 20)` contains
        symbols, and `weight (B, T + 20)` is 1.
    """
    symbols = tf.random.stateless_uniform((size, NUM_SYMBOLS), seed, 1, 9, tf.int32)
    blank = tf.zeros((size, distance - 1), tf.int32)
    ask = tf.fill((size, NUM_SYMBOLS + 1), 9)
    ids = tf.concat([symbols, blank, ask], axis=1)  # (B, T + 20)
    silent = tf.zeros((size, distance + NUM_SYMBOLS), tf.int32)
    return {
        "inputs": tf.one_hot(ids, 10),
        "targets": tf.concat([silent, symbols], axis=1),
        "weight": tf.ones((size, distance + 2 * NUM_SYMBOLS)),
    }


def generated_data(draw: Callable, summary: str, options: argparse.Namespace, recipe) -> TaskData:
    """Makes the data of a task with generated sequences.

    Each training batch is generated with a different seed, so no sequence is repeated.

    Args:
        draw: function that generates a batch. Its arguments are the batch size and a seed `(2,)`.
        summary: description of the sequences, for printing.
        options: options of the command, which are not used.
        recipe: the `SequenceRecipe`.
    """
    size, seed = recipe.batch_size, recipe.training.seed

    def batches(split: int, batch_indices: tf.data.Dataset) -> tf.data.Dataset:
        # The validation and test sequences are the same for all training seeds.
        first = tf.constant(3 * (seed if split == _TRAIN else 0) + split, tf.int64)
        return batch_indices.map(lambda index: draw(size, tf.stack([first, index])))

    held_out = tf.data.Dataset.range(-(-_NUM_GENERATED // size))
    return TaskData(
        lambda start: batches(_TRAIN, tf.data.Dataset.range(start, 2**62)).prefetch(2),
        batches(_VALIDATION, held_out),
        batches(_TEST, held_out),
        f"{summary}, all different",
    )


def music_data(options: argparse.Namespace, recipe) -> TaskData:
    """Makes the data of polyphonic music, in which a model predicts the keys of the next frame.

    Args:
        options: options of the command; `--data` names the MATLAB file.
        recipe: the `SequenceRecipe`.
    """
    train, validation, test = _pieces(options.data)
    frames = ("float32", (None, None, KEYS))
    shapes = {"inputs": frames, "targets": frames, "weight": ("float32", (None, None))}

    def batches(pieces: Sequence[np.ndarray], size: int) -> ArrayBatches | None:
        gather, lengths = partial(padded, pieces), list(map(len, pieces))
        return ArrayBatches(len(pieces), size, gather, shapes, lengths) if pieces else None

    held_out = (
        batches(sorted(pieces, key=len), _SEQUENCE_BATCH_SIZE) for pieces in (validation, test)
    )
    summary = (
        f"{len(train)} pieces of {sum(map(len, train)):,} frames, {len(validation)} to validate, "
        f"{len(test)} to test"
    )
    splits = batches(train, recipe.batch_size), *held_out
    digest = fingerprint([*train, *validation])
    return task_data(recipe.training.seed, splits, summary, None, digest)


def _pieces(path: str | None) -> tuple[list[np.ndarray], ...]:
    """Reads the training, validation and test pieces from a MATLAB file.

    A piece of T frames is a float32 array `(T, 88)`. Pieces with fewer than two frames are dropped.
    The list of test pieces is empty if the file has no test pieces.

    Raises:
        UserError: `path` is not set, or the file is missing, is damaged, or has no suitable pieces.
    """
    if not path:
        raise UserError("--data is missing: give the .mat file with the pieces of music")
    try:
        arrays = scipy.io.loadmat(path, appendmat=False)
    except FileNotFoundError as error:
        raise UserError(f"--data {path} does not exist: correct the path") from error
    except (OSError, ValueError, NotImplementedError, MatReadError, zlib.error) as error:
        raise UserError(
            f"--data {path} cannot be read as a MATLAB file ({error}): give another file"
        ) from error
    splits = []
    for name in ("traindata", "validdata", "testdata"):
        pieces = list(np.ravel(arrays.get(name, [])))
        is_matrix = all(np.ndim(piece) == 2 and piece.shape[1] == KEYS for piece in pieces)
        if not is_matrix or not all(np.isin(piece, (0, 1)).all() for piece in pieces):
            raise UserError(
                f"--data {path}: the pieces in {name!r} are not matrices with {KEYS} columns of "
                "zeros and ones, where 1 means a pressed key: give another file"
            )
        splits.append([np.asarray(piece, "float32") for piece in pieces if len(piece) > 1])
        if not splits[-1] and name != "testdata":
            raise UserError(
                f"--data {path}: {name!r} contains no piece with at least two frames: give "
                "another file"
            )
    return tuple(splits)


def padded(pieces: Sequence[np.ndarray], indices: np.ndarray) -> dict[str, np.ndarray]:
    """Makes a batch of pieces in which the target of each frame is the next frame.

    Args:
        pieces: all pieces; a piece of T frames is an array `(T, 88)`.
        indices: indices of the B pieces in the batch.

    Returns:
        A dict of `inputs (B, L, 88)`, `targets (B, L, 88)` and `weight (B, L)`, where L + 1 is the
        length of the longest piece in the batch. `weight` is 1 at frames and 0 at padding.
    """
    chosen = [pieces[index] for index in indices]

    def pad(sequences: list[np.ndarray]) -> np.ndarray:
        return keras.utils.pad_sequences(sequences, dtype="float32", padding="post")

    return {
        "inputs": pad([piece[:-1] for piece in chosen]),
        "targets": pad([piece[1:] for piece in chosen]),
        "weight": pad([np.ones(len(piece) - 1) for piece in chosen]),
    }


def text_data(
    tokenize: Callable, window: tuple[int, int], unit: str, options: argparse.Namespace, recipe
) -> TaskData:
    """Makes the data of next-word or next-character prediction on the Penn Treebank.

    Each line ends with the symbol <eos>.

    Args:
        tokenize: function that splits a line into words or characters.
        window: pair of the window length and the number of scored positions; see `windows`.
        unit: name of the symbols, for printing.
        options: options of the command; `--data` names the folder of the texts.
        recipe: the `SequenceRecipe`.

    Raises:
        UserError: the training or validation text is missing, or the validation or test text has a
            symbol that does not occur in the training text.
    """
    symbols = {
        split: [
            symbol for line in _lines(options.data, split) for symbol in [*tokenize(line), _END]
        ]
        for split in ("train", "valid", "test")
    }
    counts = collections.Counter(symbols["train"])
    # Symbols of equal frequency are sorted by code point, so the ids are deterministic.
    vocabulary = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    symbol_ids = {symbol: i for i, symbol in enumerate(vocabulary)}
    for split, split_symbols in symbols.items():
        if unknown := sorted(set(split_symbols) - set(symbol_ids)):
            raise UserError(
                f"--data {options.data}: {split}.txt contains {unknown[0]!r}, which does not "
                "occur in train.txt: give splits of the same corpus"
            )

    def batches(split: str, streams: int) -> ArrayBatches | None:
        ids = np.array([symbol_ids[symbol] for symbol in symbols[split]], "int32")
        return windows(ids, streams, window) if len(ids) else None

    splits = (
        batches("train", recipe.batch_size),
        *(batches(split, _TEXT_BATCH_SIZE) for split in ("valid", "test")),
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

    Raises:
        UserError: `folder` is not set, or the file of another split is missing or has no text.
    """
    if not folder:
        raise UserError(f"--data is missing: give the folder with {split}.txt.gz or {split}.txt")
    for suffix in (".gz", ""):
        if (path := epath.Path(folder) / f"{split}.txt{suffix}").is_file():
            lines = list(lines_of(path))
            if any(map(str.strip, lines)):
                return lines
            if split != "test":
                raise UserError(
                    f"--data {folder}: {path.name} contains no text: give another folder"
                )
            return []
    if split != "test":
        raise UserError(
            f"--data {folder} has neither {split}.txt.gz nor {split}.txt: give another folder"
        )
    return []


def windows(ids: np.ndarray, streams: int, window: tuple[int, int]) -> ArrayBatches:
    """Makes batches of overlapping windows over parallel streams of a text.

    The text is split into B streams of equal length. A batch has one window of each stream, and
    the batches are in text order.

    Args:
        ids: token ids of the text, `(N,)`.
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


def article_data(options: argparse.Namespace, recipe) -> TaskData:
    """Makes the data of next-word prediction on documents, such as Wikipedia articles.

    Words that are not in the vocabulary become <UNK>.

    Args:
        options: options of the command.
        recipe: the `SequenceRecipe`, whose `sources` name the documents.

    Raises:
        UserError: the training or held-out text is shorter than one window.
    """
    word_splits = read_word_splits(recipe, options.tfds)
    vocabulary = build_vocabulary(word_splits, recipe.vocabulary_size)
    train, validation = (word_ids(words, vocabulary) for words in word_splits)
    if min(len(train), len(validation)) <= WORDS[0]:
        raise UserError(
            f"each split needs more than {WORDS[0]} words, the length of a window, but the sources "
            f"contain only {len(train)} for training and {len(validation)} for validation: give "
            "sources with more text by --set sources=SOURCE, or, if only the validation text is "
            "too short, lower held_out"
        )
    splits = (
        windows(train, recipe.batch_size, WORDS),
        windows(validation, _TEXT_BATCH_SIZE, WORDS),
        None,
    )
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


def last_word_data(options: argparse.Namespace, recipe) -> TaskData:
    """Makes the data of LAMBADA, a last-word prediction task.

    A model is trained on next-word prediction in books, and evaluated on the last word of each
    passage. Passages whose last word is not in the vocabulary are left out.

    Args:
        options: options of the command; `--data` names the folder of the passages.
        recipe: the `SequenceRecipe`, whose `sources` name the books.

    Raises:
        UserError: no validation passage is left, or the passages or books cannot be read.
    """
    lines = {split: _lines(options.data, split) for split in ("dev", "test")}
    word_splits = read_word_splits(recipe, options.tfds, _normalize_book_text)
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

        return ArrayBatches(len(rows), _SEQUENCE_BATCH_SIZE, gather, _WINDOWS) if rows else None

    dev, test = passages("dev"), passages("test")
    if dev is None:
        raise UserError(
            f"--data {options.data}: no passage of dev.txt ends with one of the {vocabulary.size:,}"
            " vocabulary words, which come from the training text in sources: give a folder with "
            "the LAMBADA dataset, or more training text with --set sources=text:FILES"
        )
    train = windows(word_ids(words, vocabulary), recipe.batch_size, WORDS)
    summary = f"{len(words):,} words, {dev.count:,} passages to validate"
    digest = _digest([*words, *lines["dev"]])
    return task_data(0, (train, dev, test), summary, vocabulary.size, digest)


def image_data(permutation: np.ndarray, options: argparse.Namespace, recipe) -> TaskData:
    """Makes the data of MNIST, in which a model classifies a digit from a sequence of 784 pixels.

    Args:
        permutation: order in which the sequence contains the pixels, `(784,)`.
        options: options of the command.
        recipe: the `SequenceRecipe`.
    """
    shapes = {"inputs": ("float32", (None, PIXELS, 1))}
    shapes |= {"targets": ("int32", (None,)), "weight": ("float32", (None,))}

    def read(split: str) -> tuple[np.ndarray, np.ndarray]:
        values = read_columns("mnist", split, ("image", "label"), options.tfds).values
        # (N, 28, 28, 1) uint8 -> (N, 784), and the digits (N,)
        return values["image"].reshape(-1, PIXELS), values["label"].astype("int32")

    def batches(
        pixels: np.ndarray, digits: np.ndarray, size: int = _IMAGE_BATCH_SIZE
    ) -> ArrayBatches:
        def gather(indices: np.ndarray) -> dict[str, np.ndarray]:
            # All pixels have mean 0.1307 and standard deviation 0.3081. The paper's code uses these
            # values.
            inputs = (pixels[indices][:, permutation, None] / 255 - 0.1307) / 0.3081
            answers = {"targets": digits[indices], "weight": np.ones(len(indices), "float32")}
            return {"inputs": inputs.astype("float32"), **answers}

        return ArrayBatches(len(digits), size, gather, shapes)

    (pixels, digits), test = read("train"), read("test")
    is_held_out = np.arange(len(digits)) % _HELD_OUT_INTERVAL == 0
    train = batches(pixels[~is_held_out], digits[~is_held_out], recipe.batch_size)
    splits = train, batches(pixels[is_held_out], digits[is_held_out]), batches(*test)
    summary = (
        f"{(~is_held_out).sum():,} images, {is_held_out.sum():,} to validate, {len(test[1]):,} to "
        "test"
    )
    digest = fingerprint([pixels, digits])
    return task_data(recipe.training.seed, splits, summary, None, digest)


MODELS = ("tcn", "lstm", "gru", "rnn")
_MUSIC = dict(
    read_data=music_data,
    unit="negative log-likelihood, nats per frame",
    loss="bernoulli",
    takes_data=True,
)
_DIGITS = dict(length=PIXELS, unit="accuracy, percent", metric="accuracy")
_WORDS = dict(unit="perplexity", metric="perplexity")
_ROWS = np.arange(PIXELS)
_PERMUTED = np.random.default_rng(0).permutation(PIXELS)  # all runs use the same order

TASKS = {
    "adding": Task(
        "Adding problem, T = 600",
        (5.8e-5, 0.164, 5.3e-5, 0.177),
        ADDING_LENGTH,
        partial(generated_data, adding_batch, f"sequences of {ADDING_LENGTH}"),
        "mean squared error",
        loss="squared_error",
    ),
    "copy_memory": Task(
        "Copy memory, T = 1000",
        (3.5e-5, 0.0204, 0.0197, 0.0202),
        COPY_LENGTH,
        partial(
            generated_data,
            copy_batch,
            f"sequences of {COPY_LENGTH}, {NUM_SYMBOLS} symbols to remember",
        ),
        "nats per position",
    ),
    "jsb": Task("JSB Chorales", (8.10, 8.45, 8.43, 8.91), 128, **_MUSIC),
    "nottingham": Task("Nottingham", (3.07, 3.29, 3.46, 4.05), 1_787, **_MUSIC),
    "ptb_words": Task(
        "Penn Treebank, words",
        (88.68, 78.93, 92.48, 114.50),
        WORDS[0],
        partial(text_data, str.split, WORDS, "words"),
        takes_data=True,
        **_WORDS,
    ),
    "ptb_characters": Task(
        "Penn Treebank, characters",
        (1.31, 1.36, 1.37, 1.48),
        CHARACTERS[0],
        # Replaces runs of spaces by a single space.
        partial(text_data, lambda line: list(" ".join(line.split())), CHARACTERS, "chars"),
        "bits per character",
        metric="bits",
        takes_data=True,
    ),
    "wikitext": Task(
        "Wikipedia's words", (45.19, 48.4, None, None), WORDS[0], article_data, **_WORDS
    ),
    "lambada": Task(
        "LAMBADA, the last word",
        (1279, 4186, None, 14_725),
        WORDS[0],
        last_word_data,
        takes_data=True,
        **_WORDS,
    ),
    "mnist": Task(
        "Sequential MNIST",
        (99.0, 87.2, 96.2, 21.5),
        read_data=partial(image_data, _ROWS),
        **_DIGITS,
    ),
    "permuted_mnist": Task(
        "Permuted MNIST",
        (97.2, 85.7, 87.3, 25.3),
        read_data=partial(image_data, _PERMUTED),
        **_DIGITS,
    ),
}
