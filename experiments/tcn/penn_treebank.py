"""The Penn Treebank's next word, or next character."""

import collections
import functools
from collections.abc import Iterator, Sequence

import numpy as np
from etils import epath

from experiments.array_batches import from_batches
from experiments.tcn.task_data import Source, TaskData
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

    def batches(start: int):
        return from_batches(
            functools.partial(windows, ids["train"], size, window, start, True), _SHAPES
        )

    def once(split: str):
        return from_batches(functools.partial(windows, ids[split], _STREAMS, window), _SHAPES)

    test = once("test") if len(ids["test"]) else None
    summary = f"{len(ids['train']):,} {unit}, {len(ids['valid']):,} to validate"
    return TaskData(batches, once("valid"), test, summary, len(vocabulary))


def windows(
    ids: np.ndarray, streams: int, window: tuple[int, int], start: int = 0, repeat: bool = False
) -> Iterator[dict[str, np.ndarray]]:
    """A text as parallel streams, read window by window; each overlaps with the one before.

    Args:
        ids: `(N,)`.
        streams: B, parts of the text that are read side by side.
        window: positions L, and how many of its last ones count. What comes before them was
            answered in the window before, and is there to be seen.
        start: the first window.
        repeat: begin again at the end.

    Yields:
        `inputs`, `targets` (the next ids) and `weight (B, L)`, 1 where the answer counts.
    """
    length, counted = window
    streams = max(1, min(streams, (len(ids) - 1) // length))
    whole = (len(ids) - 1) // streams
    inputs = ids[: streams * whole].reshape(streams, whole)  # (B S,) -> (B, S)
    targets = ids[1 : streams * whole + 1].reshape(streams, whole)
    ends = [*range(min(length, whole), whole, counted), whole]
    while True:
        for end in ends[start % len(ends) :]:
            place = slice(max(end - length, 0), end)
            weight = np.zeros(inputs[:, place].shape, "float32")
            before = next((e for e in reversed(ends) if e < end), 0)
            weight[:, before - end :] = 1.0
            yield {"inputs": inputs[:, place], "targets": targets[:, place], "weight": weight}
        if not repeat:
            return
        start = 0


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
