"""Lines of our Python that are to blame: of a graph's ops, of exceptions, of XLA's refusals."""

import linecache
import pathlib
import re
import sysconfig
import traceback
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


class Sources:
    """Finds a `tf.Graph`'s ops by name, with those of its loops, conditions and inner functions."""

    def __init__(self, graph):
        self._ops, found = {}, [graph]
        for one in found:
            for op in one.get_operations():
                self._ops.setdefault(op.name, op)
            inner = [function.graph for function in one._functions.values()]
            found += [each for each in inner if each not in found]

    def of(self, name: str) -> str | None:
        """`file:line in function: code` of the op with that name, or None.

        Args:
            name: as TensorFlow and the compiler write it: outer functions may stand before it.
        """
        parts = name.split("/")
        for first in range(len(parts)):
            if op := self._ops.get("/".join(parts[first:])):
                return _innermost((f.filename, f.lineno, f.name) for f in op.traceback or [])
        return None


class Traced(NamedTuple):
    """A step's serialized HLO module, or the problems that stand in its way.

    Attributes:
        hlo: None with problems.
        sources: finds ops of the step's graph.
    """

    hlo: bytes | None
    problems: tuple[dict, ...] = ()
    sources: Sources | None = None


def problem(what: str, op: str | None = None, source: str | None = None) -> dict:
    """A reason that a step is not fit for a TPU: a sentence, the op to blame, and our line."""
    return {"what": what, "op": op, "source": source}


def of_exception(error: BaseException) -> str | None:
    """The line of ours that an exception came through last."""
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost((frame.filename, frame.lineno, frame.name) for frame in frames)


def _innermost(frames) -> str | None:
    """The code of the last frame (file, line, function) outside of libraries and Python."""
    ours = [
        frame
        for frame in frames
        if "site-packages" not in frame[0] and not frame[0].startswith(("<", *_LIBRARIES))
    ]
    if not ours:
        return None
    file, line, function = ours[-1]
    path = pathlib.Path(file)
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{shown}:{line} in {function}: {linecache.getline(file, line).strip()}"


def refused(message: str) -> list[tuple[str, str | None]]:
    """The refusals of TensorFlow's bridge to XLA in a message: a sentence and an op's name each."""
    lacking = re.findall(r"(\w+) \(No registered '\w+' OpKernel[^{]*\{\{node ([^}]+)\}\}", message)
    if lacking:
        return [(f"{kind} cannot be compiled by XLA", op) for kind, op in dict.fromkeys(lacking)]
    said = message.removeprefix("Failed getting HLO text: '").strip().partition("\n")[0]
    op = re.search(r"\{\{node ([^}]+)\}\}", message)
    return [(said, op[1] if op else None)]
