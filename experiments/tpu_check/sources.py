"""Where in our Python an op of a TensorFlow graph comes from."""

import dataclasses
import linecache
import pathlib
import re
import sysconfig
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
_LIBRARIES = tuple(
    str(pathlib.Path(sysconfig.get_paths()[name])) for name in ("stdlib", "purelib", "platlib")
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a step is not fit for a TPU.

    Attributes:
        what: a sentence.
        op: name of the op, if one is to blame.
        source: `file:line in function: code` in our Python, if it could be found.
    """

    what: str
    op: str | None = None
    source: str | None = None


class Sources:
    """Finds a graph's ops by name, those of its loops, conditions and inner functions included.

    Args:
        graph: a `tf.Graph`, such as a concrete function's.
    """

    def __init__(self, graph):
        self._ops = {}
        self._add(graph, set())

    def of(self, name: str) -> str | None:
        """`file:line in function: code` of the op with that name, or None.

        Args:
            name: as TensorFlow and the compiler write it: outer functions may stand before it.
        """
        parts = name.split("/")
        for first in range(len(parts)):
            if op := self._ops.get("/".join(parts[first:])):
                frames = op.traceback or []
                return innermost((f.filename, f.lineno, f.name) for f in frames)
        return None

    def _add(self, graph, seen: set) -> None:
        if id(graph) in seen:
            return
        seen.add(id(graph))
        for op in graph.get_operations():
            self._ops.setdefault(op.name, op)
        for function in graph._functions.values():
            if inner := getattr(function, "graph", None):
                self._add(inner, seen)


def innermost(frames) -> str | None:
    """The last frame that lies neither in a library nor in Python's own: file, line and code.

    Args:
        frames: (file, line, function) from the outermost on.
    """
    ours = [frame for frame in frames if _is_ours(frame[0])]
    if not ours:
        return None
    file, line, function = ours[-1]
    path = pathlib.Path(file)
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{shown}:{line} in {function}: {linecache.getline(file, line).strip()}"


def of_exception(error: BaseException) -> str | None:
    """The line of ours that an exception came through last."""
    frames = traceback.extract_tb(error.__traceback__)
    return innermost((frame.filename, frame.lineno, frame.name) for frame in frames)


def refused(message: str) -> list[tuple[str, str | None]]:
    """What TensorFlow's bridge to XLA cannot take: a sentence and the name of the op, each.

    Args:
        message: of the exception.
    """
    lacking = re.findall(r"(\w+) \(No registered '\w+' OpKernel[^{]*\{\{node ([^}]+)\}\}", message)
    if lacking:
        return [(f"{kind} cannot be compiled by XLA", op) for kind, op in dict.fromkeys(lacking)]
    said = message.removeprefix("Failed getting HLO text: '").strip().partition("\n")[0]
    op = re.search(r"\{\{node ([^}]+)\}\}", message)
    return [(said, op[1] if op else None)]


def _is_ours(file: str) -> bool:
    if "site-packages" in file or file.startswith("<"):
        return False
    return not file.startswith(_LIBRARIES)
