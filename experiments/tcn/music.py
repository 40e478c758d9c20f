"""Polyphonic music: which of 88 keys are pressed in the next frame."""

import functools
from collections.abc import Sequence

import numpy as np

from experiments.tcn.task_data import Source, TaskData
from macaron_tf.data.batches import ArrayBatches
from macaron_tf.errors import UserError

KEYS = 88
_EVALUATED = 16  # pieces at once
_SPLITS = ("traindata", "validdata", "testdata")
_SHAPES = {
    "inputs": ("float32", (None, None, KEYS)),
    "targets": ("float32", (None, None, KEYS)),
    "weight": ("float32", (None, None)),
}


def music(source: Source, size: int, seed: int) -> TaskData:
    """The pieces of a MATLAB file with the usual splits.

    Raises:
        UserError: no such file, or it holds no pieces.
    """
    train, validation, test = read_pieces(source.data)
    lengths = [len(piece) for piece in train]
    batches = ArrayBatches(len(train), size, functools.partial(padded, train), _SHAPES, lengths)

    def once(pieces: Sequence[np.ndarray]):
        gather = functools.partial(padded, sorted(pieces, key=len))
        return ArrayBatches(len(pieces), _EVALUATED, gather, _SHAPES).evaluation_dataset()

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
    for name in _SPLITS:
        pieces = list(np.ravel(arrays.get(name, [])))
        right = all(np.ndim(piece) == 2 and piece.shape[1] == KEYS for piece in pieces)
        if not right or (not pieces and name != "testdata"):
            raise UserError(
                f"--data {path}: {name!r} must hold pieces of {KEYS} columns; give another file"
            )
        splits.append([np.asarray(piece, "float32") for piece in pieces if len(piece) > 1])
    return tuple(splits)


def padded(pieces: Sequence[np.ndarray], numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Some pieces as a batch: each frame is to be answered by the next.

    Args:
        pieces: `(T, 88)` each.
        numbers: which of them, B.

    Returns:
        `inputs` and `targets (B, L, 88)`, L the longest's T - 1, and `weight (B, L)`, 0 at padding.
    """
    chosen = [pieces[number] for number in numbers]
    length = max(map(len, chosen)) - 1
    batch = {
        "inputs": np.zeros((len(chosen), length, KEYS), "float32"),
        "targets": np.zeros((len(chosen), length, KEYS), "float32"),
        "weight": np.zeros((len(chosen), length), "float32"),
    }
    for row, piece in enumerate(chosen):
        batch["inputs"][row, : len(piece) - 1] = piece[:-1]
        batch["targets"][row, : len(piece) - 1] = piece[1:]
        batch["weight"][row, : len(piece) - 1] = 1.0
    return batch
