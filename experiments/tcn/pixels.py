"""MNIST a pixel at a time: which digit was it?"""

import functools

import numpy as np

from experiments.tcn.task_data import Source, TaskData
from macaron_tf.data.batches import ArrayBatches
from macaron_tf.data.sources.tfds import read_columns

PIXELS = 28 * 28
_EVALUATED = 250  # images at once
_HELD_OUT = 10  # one of so many images of the training set is for validation
_SHAPES = {
    "inputs": ("float32", (None, PIXELS, 1)),
    "targets": ("int32", (None,)),
    "weight": ("float32", (None,)),
}


def _images(source: Source, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels `(N, 784)` uint8 and digits `(N,)` of a split."""
    names = ("image", "label")
    values = read_columns("mnist", split, names, source.data_dir, source.download).values
    return values["image"].reshape(-1, PIXELS), values["label"].astype("int32")  # from (N, 28, 28)


def _task(source: Source, size: int, seed: int, permutation: np.ndarray) -> TaskData:
    pixels, digits = _images(source, "train")
    held = np.arange(len(digits)) % _HELD_OUT == 0
    test = _images(source, "test")

    def batch(pixels, digits, numbers):
        # As the released code has them: mean 0.1307 and deviation 0.3081 of all pixels.
        inputs = (pixels[numbers][:, permutation, None] / 255 - 0.1307) / 0.3081
        weight = np.ones(len(numbers), "float32")
        return {"inputs": inputs.astype("float32"), "targets": digits[numbers], "weight": weight}

    def batches(pixels, digits, size: int) -> ArrayBatches:
        return ArrayBatches(len(digits), size, functools.partial(batch, pixels, digits), _SHAPES)

    train = functools.partial(batches(pixels[~held], digits[~held], size).dataset, seed)
    validation, test_set = (
        batches(*images, _EVALUATED).evaluation_dataset()
        for images in ((pixels[held], digits[held]), test)
    )

    summary = f"{(~held).sum():,} images, {held.sum():,} to validate, {len(test[1]):,} to test"
    return TaskData(train, validation, test_set, summary)


def in_order(source: Source, size: int, seed: int) -> TaskData:
    """The pixels row by row."""
    return _task(source, size, seed, np.arange(PIXELS))


def permuted(source: Source, size: int, seed: int) -> TaskData:
    """The pixels in one order, drawn once for all runs."""
    return _task(source, size, seed, np.random.default_rng(0).permutation(PIXELS))
