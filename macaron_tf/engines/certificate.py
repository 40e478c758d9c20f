"""The certificate of an export: each file is opened, compared with the network, and timed."""

import contextlib
import pathlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.engines.graph import TaskGraph, under_policy
from macaron_tf.engines.lite import NETWORK, LiteNetwork
from macaron_tf.engines.networks import OpenedNetwork
from macaron_tf.engines.onnx import OnnxNetwork
from macaron_tf.engines.openvino import OpenVinoNetwork
from macaron_tf.engines.warm_up import typical
from macaron_tf.errors import UserError
from macaron_tf.tasks.base import OnePass, TaskKind

# Largest differences allowed, relative to the largest output. bfloat16 rounds by up to 4e-3 and
# int8 has 127 steps; both errors add up over the layers. "default" stands for OpenVINO's default
# settings, whose precision depends on the CPU.
BOUNDS = {"fp32": 1e-4, "bfloat16": 0.1, "int8": 0.25, "default": np.inf}
# Hard texts: other scripts, emoji, control and zero-width characters, no words, long words; some
# have a gap to fill. A text that the task refuses is skipped.
TEXTS = (
    "",
    " \t [MASK] ",
    "A man is riding a bike in Rome, [MASK] is not.",
    "a\x00b\rc\x85d\u2028e\x7f [MASK]",
    "\u202b\u05e9\u05dc\u05d5\u05dd\u202c, \u0645\u0631\u062d\u0628\u0627\u200e! [MASK] [MASK]",
    "\U0001f469\U0001f3fd\u200d\U0001f680 \U0001f1e9\U0001f1ea 1\ufe0f\u20e3 [MASK]",
    "\u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a\u6587\u3002\u0e44\u0e17\u0e22 \ud55c\uad6d\uc5b4",
    "A\u030angstro\u0308m \ufeff\u2060\xad z\u035c\u0361 \ufb01\xbd\u2167 \xdf \u0130\u0131",
    "<s></s><pad>[SEP]##ing \u2581 don't ``1,234.5''\u2014 $5+5%",
    "the old cat saw \U0001f600 \u6f22\u5b57, " * 400,
    "a" * 2_000,
)
LINE = "A man in a blue shirt is riding a bike down the street, and a dog runs [MASK] him."
_PATIENCE = 0.25  # seconds spent timing each number; at least one run
_REFUSED = "the model refuses every test text"
_ABSENT = -1e8  # outputs below this belong to padding


class Certificate:
    """The network's own answers to `TEXTS`, the reference for the written files.

    Make it before an export changes the network's dtype policy. The answers are computed eagerly,
    not by the graphs that are written, and in float32 unless the network is quantized.
    """

    def __init__(self, task: TaskKind):
        self.task = task
        columns = [TEXTS[i:] + TEXTS[:i] for i in range(len(task.texts))]
        # `check` times the first text that the task accepts, `LINE` if it can.
        self._asked = [(LINE,) * len(columns), *zip(*columns, strict=True)]
        self._known: list[tuple[tuple[str, ...], dict, np.ndarray, dict]] = []
        if not isinstance(task, OnePass):
            return
        self._quantized = any(layer.quantization_mode for layer in task.network._flatten_layers())
        with contextlib.nullcontext() if self._quantized else self._exact():
            for texts in self._asked:
                with contextlib.suppress(tf.errors.InvalidArgumentError):
                    rows, kept = task.prepare(*(tf.constant([text]) for text in texts))
                    computed = task.compute(rows)
                    answers = task.conclude(computed, kept)
                    self._known.append((texts, _arrays(rows), computed.numpy(), _arrays(answers)))

    def _exact(self) -> contextlib.AbstractContextManager[None]:
        return under_policy(self.task.network, "float32", "the network")

    def check(
        self, graph: TaskGraph, folder: pathlib.Path, lite: str | None, formats: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Opens, compares and times each file in a version's folder.

        Returns:
            A dictionary for each file: `target`, `bytes`, and either `difference`, `ms_1` and
            `ms_32` (milliseconds per line in a batch of 1 and of 32), or `not_checked`, the reason.

        Raises:
            UserError: a file does not open, or differs by more than its bound in `BOUNDS`.
        """
        found = [self._saved_model(graph, folder)]
        if lite:
            place = folder / "assets.extra"
            files = [place / NETWORK]
            found.append(self._opened(f"LiteRT {lite}", lite, lambda: LiteNetwork(place), files))
        if "onnx" in formats:
            files = [*(folder / "onnx").iterdir()]
            found.append(self._opened("ONNX", "fp32", lambda: OnnxNetwork(folder), files))
        if "openvino" in formats:
            files = [*(folder / "openvino").iterdir()]
            opening = {"OpenVINO": "fp32", "OpenVINO with its default settings": "default"}
            for target, kind in opening.items():
                settings = ({},) if kind == "default" else ()
                open_it = lambda given=settings: OpenVinoNetwork(folder, *given)  # noqa: E731
                found.append(self._opened(target, kind, open_it, files))
        return found

    def _saved_model(self, graph: TaskGraph, folder: pathlib.Path) -> dict[str, Any]:
        name = "serving_default"
        loaded = tf.saved_model.load(str(folder)).signatures[name]
        inputs = self.task.functions()[name][1]

        def ask(function: Callable, texts: Sequence[str], count: int = 1) -> dict[str, np.ndarray]:
            strings = dict(zip(self.task.texts, texts, strict=True))
            specs = {key: tf.TensorSpec([count], dtype) for key, dtype in inputs.items()}
            given = {
                key: tf.constant(typical(key, spec, strings.get(key, "")))
                for key, spec in specs.items()
            }
            return _arrays(function(**given))

        kind = "bfloat16" if self.task.network.compute_dtype == "bfloat16" else "fp32"
        pairs, taken = [], []
        if isinstance(self.task, OnePass):
            kind = "int8" if self._quantized else kind
            for texts, _, _, answers in self._known:
                pairs += _numbers(ask(loaded, texts), answers)
                taken.append(texts)
        else:  # the reference is the same graph before it was written
            for texts in self._asked:
                with contextlib.suppress(tf.errors.InvalidArgumentError):
                    answers = ask(graph.signatures[name], texts)
                    pairs += _numbers(ask(loaded, texts), answers)
                    taken.append(texts)
        files = [folder / "saved_model.pb", *(folder / "variables").iterdir()]
        facts = {"target": "SavedModel, from text to answer", "bytes": _bytes(files)}
        if not taken:
            return {**facts, "not_checked": _REFUSED}
        judged = _judged("SavedModel", kind, pairs)
        return {**facts, **judged, **_timed(lambda count: ask(loaded, taken[0], count))}

    def _opened(
        self, target: str, kind: str, open_it: Callable[[], OpenedNetwork], files: Iterable
    ) -> dict[str, Any]:
        facts = {"target": target, "bytes": _bytes(files)}
        try:
            opened = open_it()
        except UserError as error:
            if isinstance(error.__cause__, ImportError):
                return {**facts, "not_checked": str(error)}
            raise
        pairs = []
        for _, rows, expected, _ in self._known:
            if not isinstance(opened, LiteNetwork):
                pairs.append((opened.compute(rows), expected))
            elif opened.takes(rows):
                # LiteRT pads the outputs of gaps to the row's length; no answer reads the padding.
                found = opened.compute(rows)[tuple(map(slice, expected.shape))]
                pairs.append((found, expected))
        if not pairs:
            return {**facts, "not_checked": _REFUSED}
        given = {
            count: _arrays(self.task.prepare(*(tf.fill([count], c) for c in self._known[0][0]))[0])
            for count in (1, 32)
        }
        judged = _judged(target, kind, pairs)
        return {**facts, **judged, **_timed(lambda count: opened.compute(given[count]))}


def _arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _numbers(found: Mapping, expected: Mapping) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of found and expected outputs, for the floating-point ones."""
    return [(found[n], value) for n, value in expected.items() if value.dtype.kind == "f"]


def _bytes(files: Iterable[pathlib.Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _judged(
    target: str, kind: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
) -> dict[str, float]:
    """The largest difference, relative to the largest output.

    Raises:
        UserError: the difference exceeds the bound of `kind`.
    """
    worst = scale = 0.0
    for found, expected in pairs:
        if found.shape != expected.shape:
            worst = np.inf
            continue
        real = (expected > _ABSENT) & (found > _ABSENT) | np.isnan(found) & ~np.isnan(expected)
        if real.any():
            worst = np.maximum(worst, np.abs(found - expected)[real].max())
            scale = np.maximum(scale, np.abs(expected)[real].max())
        elif (expected > _ABSENT).any():
            worst = np.inf
    difference = float(worst / scale) if scale > 0 else float("inf" if worst else "0")
    if not np.isfinite(difference) or difference > BOUNDS[kind]:
        raise UserError(
            f"{target}: its outputs differ from the network's by {difference:.2g} of the largest "
            f"output; {BOUNDS[kind]:g} is allowed: nothing was written; leave this format out"
        )
    return {"difference": _rounded(difference)}


def _timed(run: Callable[[int], Any]) -> dict[str, float]:
    """Milliseconds per line at 1 and 32 lines: medians of up to five runs after a first one."""
    found = {}
    for count in (1, 32):
        run(count)
        times: list[float] = []
        while not times or (len(times) < 5 and sum(times) < _PATIENCE):
            begin = time.perf_counter()
            run(count)
            times.append(time.perf_counter() - begin)
        found[f"ms_{count}"] = _rounded(1000 * statistics.median(times) / count)
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def certificate_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The facts of `Certificate.check` as a Markdown table, for files and for the terminal."""
    lines = [("target", "largest difference", "ms a line at 1", "ms a line at 32", "MB")]
    lines += [("---",) * 5]
    for row in rows:
        size = f"{row['bytes'] / 1e6:.3g}"
        if "not_checked" in row:
            lines.append((row["target"], f"not checked: {row['not_checked']}", "", "", size))
        else:
            numbers = (f"{row[name]:g}" for name in ("difference", "ms_1", "ms_32"))
            lines.append((row["target"], *numbers, size))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
