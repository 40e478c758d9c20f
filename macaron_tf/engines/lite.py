"""Execution of a task's network in LiteRT, for small requests on CPUs.

For a single line, a TensorFlow graph spends most of the time on starting hundreds of operations.
LiteRT plans the whole network once, for fixed shapes. The file has one signature for each of
several row lengths, and all signatures share one set of weights. LiteRT cannot process strings. One
TensorFlow graph therefore converts texts to rows of token ids, and another TensorFlow graph
converts the network's outputs to answers.
"""

import json
import os
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from macaron_tf.engines.session import STEPS, SessionModel
from macaron_tf.errors import UserError, needed
from macaron_tf.io.noise import silenced
from macaron_tf.io.paths import read_json

NETWORK, RECORD = "network.tflite", "network.json"
DECODER = "decode.tflite"  # see `lite_decoding`
_THREADS = 4  # maximum; more threads do not speed up matrix products with few rows
_UNKNOWN = -1e9  # output at padded positions; evaluation uses the same value
Arrays = Mapping[str, np.ndarray]


def signature_of(length: int) -> str:
    """Returns the name of the signature for rows with `length` token ids."""
    return f"length_{length}"


def keep_rows(record: pathlib.Path, rows: int) -> None:
    """Writes the maximum number of rows in a request into the JSON file `record`."""
    kept = {**json.loads(record.read_text()), "rows": rows}
    record.write_text(json.dumps(kept, indent=2) + "\n")


class LiteNetwork:
    """Network in LiteRT, loaded from the files that `write_lite` writes.

    The network runs one row at a time, padded to one of the fixed `lengths`. All methods are
    thread-safe. A lock lets only one thread at a time use the interpreter.

    Args:
        folder: folder of the files `NETWORK` and `RECORD`.
        threads: number of threads for a matrix product; `None` means the number of CPUs available
            to this process, but at most 4.

    Attributes:
        kind: `"fp32"` or `"int8"`, as in `write_lite`.
        lengths: supported row lengths in ascending order. A row is padded to the shortest length
            that is sufficient.
        most_rows: maximum number of rows in a request that `takes` accepts.
        inputs: dict mapping input name to the input's shape for one row, with -1 for the length.

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike, threads: int | None = None):
        with needed("LiteRT"):
            from ai_edge_litert.interpreter import Interpreter

        mend = "export the model again"
        folder = pathlib.Path(folder)
        record = read_json(
            folder / RECORD, mend=mend, kind=str, lengths=list, rows=int, inputs=dict, output=list
        )
        self.kind, self.lengths, self._output = (record[n] for n in ("kind", "lengths", "output"))
        self.most_rows: int = record["rows"]
        self.inputs: Mapping[str, list[int]] = record["inputs"]
        threads = threads or min(len(os.sched_getaffinity(0)), _THREADS)
        try:
            with silenced():
                self._interpreter = Interpreter(str(folder / NETWORK), num_threads=threads)
                self._interpreter.allocate_tensors()  # XNNPACK prints a notice
                self._runners = {
                    length: self._interpreter.get_signature_runner(signature_of(length))
                    for length in self.lengths
                }
        except (ValueError, RuntimeError) as error:
            raise UserError(f"{folder / NETWORK} is damaged ({error}): {mend}") from error
        self._lock = threading.Lock()

    @property
    def output(self) -> list[int | None]:
        """Shape of the network's output for a batch, with `None` for an unknown dimension."""
        return [None, *(size if size >= 0 else None for size in self._output[1:])]

    def facts(self) -> dict[str, Any]:
        """Returns a dict with `kind`, `lengths` and `most_rows`, for the record of an export."""
        return {"kind": self.kind, "lengths": self.lengths, "rows": self.most_rows}

    def keep_most_rows(self, folder: pathlib.Path) -> None:
        """Writes `most_rows` into the record file in `folder`."""
        keep_rows(folder / RECORD, self.most_rows)

    def takes(self, rows: Mapping[str, np.ndarray]) -> bool:
        """Returns whether LiteRT should compute a request.

        The result is `True` for a request of 1 to `most_rows` rows that are all short enough for
        `compute` (see `fits`).
        """
        return 0 < len(rows["token_ids"]) <= self.most_rows and self.fits(rows).all()

    def fits(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns booleans `(B,)`: whether each row is at most as long as the last of `lengths`."""
        return _row_lengths(rows["token_ids"], self.inputs["token_ids"]) <= self.lengths[-1]

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Computes the network's outputs in float32 (see `OnePass.compute`).

        Args:
            rows: dict mapping input name to array. Each row must be short enough (see `fits`).
        """
        ids, shape = rows["token_ids"], self.inputs["token_ids"]
        length = ids.shape[shape.index(-1)]
        sizes = [length if size == -1 else size for size in self._output[1:]]
        computed = np.full((len(ids), *sizes), _UNKNOWN, np.float32)
        for row, own in enumerate(_row_lengths(ids, shape)):
            room = next(length for length in self.lengths if length >= own)
            given = {
                name: _fitted(rows[name][row], [room if n == -1 else n for n in sizes[1:]])
                for name, sizes in self.inputs.items()
            }
            with self._lock:
                found = self._runners[room](**given)["computed"][0]
            kept = tuple(map(slice, map(min, found.shape, computed.shape[1:])))
            computed[(row, *kept)] = found[kept]
        return computed


class LiteModel:
    """Engine that runs a task's network in LiteRT, between two TensorFlow graphs.

    The first graph converts texts to token ids, and the second converts outputs to answers.

    Args:
        network: network in LiteRT.
        model: SavedModel with the two signatures in `STEPS`, which run before and after the
            network.
        outputs: names of the outputs in the order in which `answer` returns the outputs; `None`
            means alphabetical order.
    """

    def __init__(
        self, network: LiteNetwork, model: SessionModel, outputs: Sequence[str] | None = None
    ):
        self.network, self._model = network, model
        self._outputs = outputs or sorted(model.signature_defs[STEPS[1]].outputs)

    def answer(self, inputs: Arrays) -> dict[str, np.ndarray] | None:
        """Computes the outputs of `OnePass.serve` for a small request.

        Returns `None` if the request has more than `network.most_rows` rows, or if a row is longer
        than the last of `network.lengths`.
        """
        prepare, conclude = STEPS
        found = self._model.run(prepare, inputs)
        if not self.network.takes(found):
            return None
        kept = {name: value for name, value in found.items() if name not in self.network.inputs}
        answers = self._model.run(conclude, {"computed": self.network.compute(found), **kept})
        return {name: answers[name] for name in self._outputs}


def _row_lengths(ids: np.ndarray, shape: list[int]) -> np.ndarray:
    """Returns the length of each row without the padding on its right, as an array `(B,)`.

    Args:
        ids: token ids of the rows, padded with 0.
        shape: shape of one row of `ids`, with -1 for the length.
    """
    axis = shape.index(-1)
    others = tuple(n for n in range(1, ids.ndim) if n != axis)
    real = (ids != 0).any(axis=others) if others else ids != 0  # (B, L)
    return real.shape[1] - np.argmax(real[:, ::-1], axis=1)


def _fitted(row: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Returns `row` as a batch `(1, *sizes)`, truncated or padded with zeros."""
    given = np.zeros((1, *sizes), row.dtype)
    kept = tuple(map(slice, map(min, row.shape, sizes)))
    given[(0, *kept)] = row[kept]
    return given
