"""Data of the sequence tasks of Bai et al. 2018: generated sequences, music and images."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from functools import partial

import keras
import numpy as np
import scipy.io
import tensorflow as tf
from scipy.io.matlab import MatReadError

from macaron_tf.data.batches import ArrayBatches, Batches
from macaron_tf.data.sources.tfds import Tfds, read_columns
from macaron_tf.errors import UserError
from macaron_tf.text.token_rows import fingerprint

ADDING_LENGTH = 600
COPY_DISTANCE = 1000
NUM_SYMBOLS = 10  # number of symbols to remember
COPY_LENGTH = COPY_DISTANCE + 2 * NUM_SYMBOLS
_NUM_GENERATED = 1000  # number of generated sequences for validation, and also for test
_TRAIN, _VALIDATION, _TEST = range(3)  # index of the split, part of the seed of a generated batch

KEYS = 88
PIXELS = 28 * 28
_HELD_OUT_INTERVAL = 10  # every tenth training image is held out for validation

# Batch sizes of evaluation
SEQUENCE_BATCH_SIZE = 16  # for pieces of music and passages
_IMAGE_BATCH_SIZE = 250


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Data of a task, in batches for `SequenceObjective`.

    Attributes:
        train: function that returns an endless dataset of training batches. The argument is the
            index of the first micro-batch.
        validation: batches on which the best checkpoint is selected.
        test: batches on which the best checkpoint is evaluated; `None` means no test split.
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
        split_batches: batches of the training, validation and test split; the last element may be
            `None`.
        arguments: arguments of `TaskData` after `test`.
    """
    train, *held_out = split_batches
    evaluation_sets = (batches and batches.evaluation_dataset() for batches in held_out)
    return TaskData(partial(train.dataset, seed), *evaluation_sets, *arguments)


def adding_batch(size: int, seed: tf.Tensor, length: int = ADDING_LENGTH) -> dict[str, tf.Tensor]:
    """Generates a batch of the adding problem.

    A sequence has T random numbers from 0 to 1, and two of these numbers are marked. The target is
    the sum of the two marked numbers. `inputs (B, T, 2)` contains the numbers and the marks (0 or
    1), `targets (B, 1)` contains the sums, and `weight (B,)` is 1. `seed` is `(2,)` int64.
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
    zeros and the ten symbols. T, the `distance`, counts the positions between the last symbol and
    the first repeated symbol. The loss is averaged over all positions. A model without memory
    reaches a loss of 10 ln 8 / (T + 20), which is 0.0204 for T = 1000.

    `inputs (B, T + 20, 10)` contains one-hot vectors, `targets (B, T + 20)` contains symbols, and
    `weight (B, T + 20)` is 1. `seed` is `(2,)` int64.
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


def generated_data(draw: Callable, summary: str, recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of a task with generated sequences.

    Each training batch is generated with a different seed, so no sequence is repeated. `draw`
    generates a batch from the batch size and a seed `(2,)`.
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


def music_data(recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of polyphonic music, in which a model predicts the keys of the next frame."""
    train, validation, test = _pieces(recipe.data)
    frames = ("float32", (None, None, KEYS))
    shapes = {"inputs": frames, "targets": frames, "weight": ("float32", (None, None))}

    def batches(pieces: Sequence[np.ndarray], size: int) -> ArrayBatches | None:
        gather, lengths = partial(padded, pieces), list(map(len, pieces))
        return ArrayBatches(len(pieces), size, gather, shapes, lengths) if pieces else None

    held_out = (
        batches(sorted(pieces, key=len), SEQUENCE_BATCH_SIZE) for pieces in (validation, test)
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
    """
    if not path:
        raise UserError("data is missing: give --set data=FILE, the .mat file of the music")
    try:
        arrays = scipy.io.loadmat(path, appendmat=False)
    except (OSError, ValueError, NotImplementedError, MatReadError, zlib.error) as error:
        raise UserError(f"data={path} cannot be read as a MATLAB file ({error})") from error
    splits = []
    for name in ("traindata", "validdata", "testdata"):
        pieces = list(np.ravel(arrays.get(name, [])))
        is_matrix = all(np.ndim(piece) == 2 and piece.shape[1] == KEYS for piece in pieces)
        if not is_matrix or not all(np.isin(piece, (0, 1)).all() for piece in pieces):
            needed = f"must hold matrices with {KEYS} columns of zeros and ones"
            raise UserError(f"data={path}: {name!r} {needed}")
        splits.append([np.asarray(piece, "float32") for piece in pieces if len(piece) > 1])
        if not splits[-1] and name != "testdata":
            raise UserError(f"data={path}: {name!r} contains no piece of two frames or more")
    return tuple(splits)


def padded(pieces: Sequence[np.ndarray], indices: np.ndarray) -> dict[str, np.ndarray]:
    """Makes a batch of B pieces in which the target of each frame is the next frame.

    A piece of T frames is an array `(T, 88)`. L + 1 is the length of the longest piece. The batch
    has `inputs (B, L, 88)`, `targets (B, L, 88)` and `weight (B, L)`. `weight` is 1 at frames and 0
    at padding.
    """
    chosen = [pieces[index] for index in indices]

    def pad(sequences: list[np.ndarray]) -> np.ndarray:
        return keras.utils.pad_sequences(sequences, dtype="float32", padding="post")

    return {
        "inputs": pad([piece[:-1] for piece in chosen]),
        "targets": pad([piece[1:] for piece in chosen]),
        "weight": pad([np.ones(len(piece) - 1) for piece in chosen]),
    }


def image_data(permutation: np.ndarray, recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of MNIST, in which a model classifies a digit from a sequence of 784 pixels.

    `permutation (784,)` is the order in which the sequence contains the pixels.
    """
    shapes = {"inputs": ("float32", (None, PIXELS, 1))}
    shapes |= {"targets": ("int32", (None,)), "weight": ("float32", (None,))}

    def read(split: str) -> tuple[np.ndarray, np.ndarray]:
        values = read_columns("mnist", split, ("image", "label"), tfds)
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
