"""Data of the slides' tasks: drawn sequences, polyphonic music, the Penn Treebank, MNIST by pixels.

`adding`, `copy_memory`, `music`, `words`, `characters`, `in_order` and `permuted` take a `Source`,
the number of sequences of a micro-batch and the seed, and return `TaskData`.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.batches import ArrayBatches
from macaron_tf.data.sources.tfds import read_columns
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of

ADDING_LENGTH = 600
COPY_DISTANCE = 1000
COPIED = 10  # symbols to remember
COPY_LENGTH = COPY_DISTANCE + 2 * COPIED
_DRAWN = 1000  # sequences of the validation, and as many of the test
_TRAIN, _VALIDATION, _TEST = range(3)  # parts of the seed

KEYS = 88
# Positions of a window, and how many of its last ones count (Bai et al.'s released code).
WORDS, CHARACTERS = (80, 40), (400, 320)
_END = "<eos>"
PIXELS = 28 * 28
_HELD_OUT = 10  # one of so many images of the training set is for validation

# Sequences evaluated together: pieces of music, streams of text, images.
_PIECES, _STREAMS, _IMAGES = 16, 16, 250


@dataclasses.dataclass(frozen=True)
class Source:
    """The place of a task's data.

    Attributes:
        data: a file or folder, for the tasks that read one.
        data_dir, download: TensorFlow Datasets', for MNIST.
    """

    data: str | None = None
    data_dir: str | None = None
    download: bool = False


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task's batches, dicts as `SequenceObjective` takes them.

    Attributes:
        train: the endless dataset that begins with micro-batch number `start`.
        validation: chooses the best checkpoint.
        test: scores the best checkpoint; None = the data have no test split.
        summary: sizes, for people.
        vocab_size: of data that are ids.
    """

    train: Callable[[int], tf.data.Dataset]
    validation: tf.data.Dataset
    test: tf.data.Dataset | None
    summary: str
    vocab_size: int | None = None


def _shapes(length: int | None, width: int | None) -> dict[str, tuple[str, tuple]]:
    """Types and shapes of batches `(B, L)` of ids, or `(B, L, width)` of numbers."""
    kind, shape = ("int32", ()) if width is None else ("float32", (width,))
    return {
        "inputs": (kind, (None, length, *shape)),
        "targets": (kind, (None, length, *shape)),
        "weight": ("float32", (None, length)),
    }


def adding(source: Source, size: int, seed: int) -> TaskData:
    """Two of 600 uniform numbers are marked; the answer is their sum."""
    return _drawn(adding_batch, size, seed, f"sequences of {ADDING_LENGTH}")


def copy_memory(source: Source, size: int, seed: int) -> TaskData:
    """Ten symbols, which the model must repeat after 1000 positions without any."""
    summary = f"sequences of {COPY_LENGTH}, {COPIED} symbols to remember"
    return _drawn(copy_batch, size, seed, summary)


def adding_batch(size: int, seed: tf.Tensor, length: int = ADDING_LENGTH) -> dict[str, tf.Tensor]:
    """Sequences of (number, mark), the marks 1 at two positions and 0 elsewhere.

    Args:
        size: sequences B.
        seed: `(2,)` int64.
        length: T.

    Returns:
        `inputs (B, T, 2)`, `targets (B, 1)`, the sum of the marked numbers, and `weight (B,)`.
    """
    seeds = tf.random.split(seed, 2)
    numbers = tf.random.stateless_uniform((size, length), seeds[0])
    # The positions of the two greatest random keys: every pair is equally likely.
    keys = tf.random.stateless_uniform((size, length), seeds[1])
    positions = tf.math.top_k(keys, 2).indices  # (B, 2)
    marks = tf.reduce_sum(tf.one_hot(positions, length), axis=1)  # (B, 2, T) -> (B, T)
    return {
        "inputs": tf.stack([numbers, marks], axis=-1),
        "targets": tf.reduce_sum(numbers * marks, axis=1, keepdims=True),
        "weight": tf.ones(size),
    }


def copy_batch(size: int, seed: tf.Tensor, distance: int = COPY_DISTANCE) -> dict[str, tf.Tensor]:
    """Ten symbols 1 to 8, T - 1 zeros, eleven 9s; the answer is zeros, then the symbols.

    Args:
        size: sequences B.
        seed: `(2,)` int64.
        distance: T.

    Returns:
        `inputs (B, T + 20, 10)`, one-hot; `targets` and `weight (B, T + 20)`, all ones: the mean is
        over all positions, and a model without memory reaches 10 ln 8 / (T + 20) = 0.0204.
    """
    symbols = tf.random.stateless_uniform((size, COPIED), seed, 1, 9, tf.int32)
    blank = tf.zeros((size, distance - 1), tf.int32)
    ask = tf.fill((size, COPIED + 1), 9)
    ids = tf.concat([symbols, blank, ask], axis=1)  # (B, T + 20)
    silent = tf.zeros((size, distance + COPIED), tf.int32)
    return {
        "inputs": tf.one_hot(ids, 10),
        "targets": tf.concat([silent, symbols], axis=1),
        "weight": tf.ones((size, distance + 2 * COPIED)),
    }


def _drawn(draw: Callable, size: int, seed: int, summary: str) -> TaskData:
    def batch(part: int, number: tf.Tensor) -> dict[str, tf.Tensor]:
        # Validation and test are the same sequences for all seeds.
        first = tf.constant(3 * (seed if part == _TRAIN else 0) + part, tf.int64)
        return draw(size, tf.stack([first, number]))

    def train(start: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(start, 2**62)
        return numbers.map(lambda number: batch(_TRAIN, number)).prefetch(2)

    def held_out(part: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(-(-_DRAWN // size)).map(lambda number: batch(part, number))

    return TaskData(train, held_out(_VALIDATION), held_out(_TEST), f"{summary}, always new ones")


def music(source: Source, size: int, seed: int) -> TaskData:
    """The keys pressed in the next frame, in the pieces of a MATLAB file with the usual splits.

    Raises:
        UserError: no such file, or it holds no pieces.
    """
    train, validation, test = read_pieces(source.data)
    lengths, shapes = [len(piece) for piece in train], _shapes(None, KEYS)
    batches = ArrayBatches(len(train), size, functools.partial(padded, train), shapes, lengths)

    def once(pieces: Sequence[np.ndarray]) -> tf.data.Dataset:
        gather = functools.partial(padded, sorted(pieces, key=len))
        return ArrayBatches(len(pieces), _PIECES, gather, shapes).evaluation_dataset()

    summary = (
        f"{len(train)} pieces of {sum(lengths):,} frames, {len(validation)} to validate, "
        f"{len(test)} to test"
    )
    train_from = functools.partial(batches.dataset, seed)
    return TaskData(train_from, once(validation), once(test) if test else None, summary)


def read_pieces(path: str | None) -> tuple[list[np.ndarray], ...]:
    """The pieces `(T, 88)` of training, validation and test; an absent test is empty.

    Raises:
        UserError: no file is given, it cannot be read, or it holds no pieces.
    """
    if not path:
        raise UserError("--data is missing: give the .mat file of the pieces")
    try:
        import scipy.io
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise UserError("reading MATLAB files needs a package: pip install scipy") from error
    try:
        arrays = scipy.io.loadmat(path, appendmat=False)
    except FileNotFoundError as error:
        raise UserError(f"--data {path}: there is no such file; correct the path") from error
    except (OSError, ValueError, NotImplementedError, MatReadError) as error:
        raise UserError(f"--data {path} is no MATLAB file that can be read: {error}") from error
    splits = []
    for name in ("traindata", "validdata", "testdata"):
        pieces = list(np.ravel(arrays.get(name, [])))
        right = all(np.ndim(piece) == 2 and piece.shape[1] == KEYS for piece in pieces)
        if not right or (not pieces and name != "testdata"):
            raise UserError(
                f"--data {path}: {name!r} must hold pieces of {KEYS} columns; give another file"
            )
        splits.append([np.asarray(piece, "float32") for piece in pieces if len(piece) > 1])
    return tuple(splits)


def padded(pieces: Sequence[np.ndarray], numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Some pieces as a batch; the target of each frame is the next one.

    Args:
        pieces: `(T, 88)` each.
        numbers: the B chosen ones.

    Returns:
        `inputs` and `targets (B, L, 88)`, L the longest's T - 1, and `weight (B, L)`, 0 at padding.
    """
    chosen = [pieces[number] for number in numbers]
    shape = len(chosen), max(map(len, chosen)) - 1
    inputs, targets = np.zeros((2, *shape, KEYS), "float32")
    weight = np.zeros(shape, "float32")
    for row, piece in enumerate(chosen):
        inputs[row, : len(piece) - 1] = piece[:-1]
        targets[row, : len(piece) - 1] = piece[1:]
        weight[row, : len(piece) - 1] = 1.0
    return {"inputs": inputs, "targets": targets, "weight": weight}


def words(source: Source, size: int, seed: int) -> TaskData:
    """The Penn Treebank's next word; a line's end is a word."""
    return _text(source, size, WORDS, lambda line: [*line.split(), _END], "words")


def characters(source: Source, size: int, seed: int) -> TaskData:
    """The next character of the same lines, with a space between words and an end of each line."""
    return _text(source, size, CHARACTERS, lambda line: [*" ".join(line.split()), _END], "chars")


def _text(source: Source, size: int, window: tuple[int, int], cut, unit: str) -> TaskData:
    symbols = {split: _symbols(source, split, cut) for split in ("train", "valid", "test")}
    counts = collections.Counter(symbols["train"])
    # Frequent ones first, equally frequent ones by the alphabet: the ids are always the same.
    vocabulary = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    number = {symbol: i for i, symbol in enumerate(vocabulary)}
    ids = {}
    for split, found in symbols.items():
        unknown = sorted(set(found) - set(number))
        if unknown:
            raise UserError(
                f"--data {source.data}: {split}.txt has {unknown[0]!r}, which train.txt has not; "
                "give the splits of one corpus"
            )
        ids[split] = np.array([number[symbol] for symbol in found], "int32")

    train = functools.partial(windows(ids["train"], size, window).dataset, 0)

    def once(split: str) -> tf.data.Dataset:
        return windows(ids[split], _STREAMS, window).evaluation_dataset()

    test = once("test") if len(ids["test"]) else None
    summary = f"{len(ids['train']):,} {unit}, {len(ids['valid']):,} to validate"
    return TaskData(train, once("valid"), test, summary, len(vocabulary))


def _symbols(source: Source, split: str, cut) -> list[str]:
    if not source.data:
        raise UserError("--data is missing: give the folder of train.txt.gz and valid.txt.gz")
    files = [epath.Path(source.data) / f"{split}.txt{end}" for end in (".gz", "")]
    path = next((path for path in files if path.is_file()), None)
    if path is not None:
        return [symbol for line in lines_of(path) for symbol in cut(line)]
    if split != "test":
        raise UserError(f"--data {source.data}: there is no {split}.txt.gz in it")
    return []


def windows(ids: np.ndarray, streams: int, window: tuple[int, int]) -> ArrayBatches:
    """A text as parallel streams, read window by window; each overlaps with the one before.

    Args:
        ids: `(N,)`.
        streams: B, parts of the text that are read side by side.
        window: positions L, and how many of its last ones count. Earlier positions counted in the
            window before and serve as context.

    Returns:
        Batches of `inputs`, `targets` (the next ids) and `weight (B, L)`, 1 where the answer
        counts, always in the text's order.
    """
    length, counted = window
    streams = max(1, min(streams, (len(ids) - 1) // length))
    whole = (len(ids) - 1) // streams
    inputs = ids[: streams * whole].reshape(streams, whole)  # (B S,) -> (B, S)
    targets = ids[1 : streams * whole + 1].reshape(streams, whole)
    ends = [*range(min(length, whole), whole, counted), whole]

    def gather(numbers: np.ndarray) -> dict[str, np.ndarray]:
        (number,) = numbers
        end, before = ends[number], ends[number - 1] if number else 0
        part = slice(max(end - length, 0), end)
        weight = np.zeros(inputs[:, part].shape, "float32")
        weight[:, before - end :] = 1.0
        return {"inputs": inputs[:, part], "targets": targets[:, part], "weight": weight}

    return ArrayBatches(len(ends), 1, gather, _shapes(None, None), shuffle=False)


def in_order(source: Source, size: int, seed: int) -> TaskData:
    """MNIST's digits, a pixel at a time, row by row."""
    return _images(source, size, seed, np.arange(PIXELS))


def permuted(source: Source, size: int, seed: int) -> TaskData:
    """MNIST's pixels in one order, drawn once for all runs."""
    return _images(source, size, seed, np.random.default_rng(0).permutation(PIXELS))


def _images(source: Source, size: int, seed: int, permutation: np.ndarray) -> TaskData:
    def read(split: str) -> tuple[np.ndarray, np.ndarray]:
        names, place = ("image", "label"), (source.data_dir, source.download)
        values = read_columns("mnist", split, names, *place).values
        # (N, 28, 28, 1) uint8 -> (N, 784), and the digits (N,)
        return values["image"].reshape(-1, PIXELS), values["label"].astype("int32")

    def batch(pixels, digits, numbers):
        # The released code's normalization: mean 0.1307 and deviation 0.3081 of all pixels.
        inputs = (pixels[numbers][:, permutation, None] / 255 - 0.1307) / 0.3081
        weight = np.ones(len(numbers), "float32")
        return {"inputs": inputs.astype("float32"), "targets": digits[numbers], "weight": weight}

    shapes = {"inputs": ("float32", (None, PIXELS, 1))}
    shapes |= {"targets": ("int32", (None,)), "weight": ("float32", (None,))}

    def batches(pixels, digits, size: int) -> ArrayBatches:
        return ArrayBatches(len(digits), size, functools.partial(batch, pixels, digits), shapes)

    pixels, digits = read("train")
    held, test = np.arange(len(digits)) % _HELD_OUT == 0, read("test")
    return TaskData(
        functools.partial(batches(pixels[~held], digits[~held], size).dataset, seed),
        batches(pixels[held], digits[held], _IMAGES).evaluation_dataset(),
        batches(*test, _IMAGES).evaluation_dataset(),
        f"{(~held).sum():,} images, {held.sum():,} to validate, {len(test[1]):,} to test",
    )
