"""The Penn Treebank's next word, or next character."""

import collections
import functools
from collections.abc import Sequence

import numpy as np
from etils import epath

from experiments.tcn.task_data import Source, TaskData
from macaron_tf.data.batches import ArrayBatches
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of

# Positions of a window, and how many of its last ones count (Bai et al.'s released code).
WORDS, CHARACTERS = (80, 40), (400, 320)
_STREAMS = 16  # of the evaluation
_END = "<eos>"
_SHAPES = {
    "inputs": ("int32", (None, None)),
    "targets": ("int32", (None, None)),
    "weight": ("float32", (None, None)),
}


def words(source: Source, size: int, seed: int) -> TaskData:
    """Words, of which the files have 10,000; a line's end is one."""
    return _task(source, size, WORDS, lambda line: [*line.split(), _END], "words")


def characters(source: Source, size: int, seed: int) -> TaskData:
    """Characters of the same lines, a space between two words and at a line's end its own."""
    return _task(source, size, CHARACTERS, lambda line: [*" ".join(line.split()), _END], "chars")


def _task(source: Source, size: int, window: tuple[int, int], cut, unit: str) -> TaskData:
    symbols = {split: _symbols(source, split, cut) for split in ("train", "valid", "test")}
    counts = collections.Counter(symbols["train"])
    # Frequent ones first; alike frequent ones by the alphabet, so that the ids are always the same.
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

    def once(split: str):
        return windows(ids[split], _STREAMS, window).evaluation_dataset()

    test = once("test") if len(ids["test"]) else None
    summary = f"{len(ids['train']):,} {unit}, {len(ids['valid']):,} to validate"
    return TaskData(train, once("valid"), test, summary, len(vocabulary))


def windows(ids: np.ndarray, streams: int, window: tuple[int, int]) -> ArrayBatches:
    """A text as parallel streams, read window by window; each overlaps with the one before.

    Args:
        ids: `(N,)`.
        streams: B, parts of the text that are read side by side.
        window: positions L, and how many of its last ones count. What comes before them was
            answered in the window before, and is there to be seen.

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
        place = slice(max(end - length, 0), end)
        weight = np.zeros(inputs[:, place].shape, "float32")
        weight[:, before - end :] = 1.0
        return {"inputs": inputs[:, place], "targets": targets[:, place], "weight": weight}

    return ArrayBatches(len(ends), 1, gather, _SHAPES, shuffle=False)


def _symbols(source: Source, split: str, cut) -> Sequence[str]:
    if not source.data:
        raise UserError("--data is missing: give the folder of train.txt.gz and valid.txt.gz")
    folder = epath.Path(source.data)
    found = [folder / f"{split}.txt{end}" for end in (".gz", "")]
    path = next((path for path in found if path.is_file()), None)
    if path is None:
        if split == "test":
            return []
        raise UserError(f"--data {source.data}: there is no {split}.txt.gz in it")
    return [symbol for line in lines_of(path) for symbol in cut(line)]
