"""Certificate of an export: deviation from the network, speed and score of each exported file."""

import contextlib
import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.engines.accuracy import Accuracy
from macaron_tf.engines.graph import TaskGraph, under_policy
from macaron_tf.engines.lite import DECODER, NETWORK, LiteModel, LiteNetwork
from macaron_tf.engines.lite_decoding import LiteDecoder
from macaron_tf.engines.lite_texts import LiteTexts
from macaron_tf.engines.networks import OnnxNetwork, OpenedNetwork, OpenVinoNetwork
from macaron_tf.engines.session import SessionModel, typical_inputs
from macaron_tf.errors import UserError, first_line
from macaron_tf.io.serving import EXTRA, cause_of, failed_check
from macaron_tf.tasks.base import OnePass, TaskKind

# Largest allowed differences, relative to the largest output. bfloat16 has rounding errors of up to
# 4e-3, int8 has 127 steps, and both errors accumulate over the layers.
BOUNDS = {"fp32": 1e-4, "bfloat16": 0.1, "int8": 0.25}
# Difficult texts: other scripts, emoji, control and zero-width characters, no words, long words.
# Some texts have a [MASK] to fill. Texts that the task rejects are skipped.
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
ROWS = (1, 2, 4, 8, 16, 32, 64)  # rows per request for timing LiteRT and the graph
_MAX_SECONDS = 0.25  # seconds of timing per request size, after which no further run begins
# Inputs for which text generators are compared. Later tokens may differ if two are almost equally
# likely.
_GREEDY = {"temperature": 0.0, "max_tokens": 1}
_PADDING_BOUND = -1e8  # outputs below this value belong to padding
_SIGNATURE = "serving_default"
# Name in the table, and class, of the network of each format in `FORMATS`.
NETWORKS = {"onnx": ("ONNX", OnnxNetwork), "openvino": ("OpenVINO", OpenVinoNetwork)}


class Certificate:
    """Comparison of exported files with the network's answers to `LINE` and `TEXTS`.

    Create the certificate before the export changes the network's dtype policy, because the
    constructor computes the reference answers. The constructor runs the network eagerly, and in
    float32 unless the network is quantized. For a model that generates text, the constructor
    computes nothing, and `check` computes the reference answers.
    """

    def __init__(self, task: TaskKind, accuracy: Accuracy | None = None):
        self.task, self._accuracy, self._expected = task, accuracy, {}
        columns = [TEXTS[i:] + TEXTS[:i] for i in range(len(task.texts))]
        # `check` times the first text that the task accepts, so `LINE` comes first.
        self._examples = [(LINE,) * len(columns), *zip(*columns, strict=True)]
        self._references: list[tuple[tuple[str, ...], dict, np.ndarray, dict]] = []
        self._quantized = False
        if not isinstance(task, OnePass):
            return
        self._quantized = any(layer.quantization_mode for layer in task.network._flatten_layers())
        with contextlib.nullcontext() if self._quantized else self._in_float32():
            for texts in self._examples:
                with _skip_rejected():
                    rows, kept = task.prepare(*(tf.constant([text]) for text in texts))
                    computed = task.compute(rows)
                    answers = _to_arrays(task.conclude(computed, kept))
                    self._references.append((texts, _to_arrays(rows), computed.numpy(), answers))
            if accuracy:
                self._expected = accuracy.metrics()

    def _in_float32(self) -> contextlib.AbstractContextManager[None]:
        return under_policy(self.task.network, "float32", "the network")

    def check(
        self,
        graph: TaskGraph,
        folder: pathlib.Path,
        lite: LiteNetwork | LiteDecoder | None,
        formats: Sequence[str],
    ) -> dict[str, Any]:
        """Opens, compares, times and scores each file in a version's folder.

        For a LiteRT file, this method also sets `lite.max_rows` (see `break_even`).

        Returns:
            A dict for the record of an export. `certificate` has a dict per file, with `target` (a
                description), `bytes`, `difference`, `ms_1` and `ms_32` (milliseconds per line for a
                batch of 1 or 32 lines), and `metrics` if files are scored. `lite` has the result of
                `break_even` in `measured`. `check` has `source`, `examples` (the count) and
                `metrics` (of the network).
        """
        facts: dict[str, Any] = {}
        with contextlib.closing(SessionModel(folder)) as model:
            self._answers = [*self._accepted(graph)]
            if not self._answers:
                raise UserError("the network accepts no text of a certificate: check its settings")
            in_bfloat16 = self.task.network.compute_dtype == "bfloat16"
            graph_precision = "int8" if self._quantized else "bfloat16" if in_bfloat16 else "fp32"
            files = [folder / "saved_model.pb", *(folder / "variables").iterdir()]
            run = functools.partial(model.run, _SIGNATURE)
            rows = [self._answers_row("SavedModel", graph_precision, run, files)]
            if self._accuracy:  # only bfloat16 changes the scores of the constructor
                rows[0]["metrics"] = self._accuracy.metrics() if in_bfloat16 else self._expected
            engine: LiteTexts | LiteModel | None = None
            if isinstance(lite, LiteDecoder):
                engine = LiteTexts(self.task.with_decoder(lite))
                precision = max(lite.precision, graph_precision, key=BOUNDS.__getitem__)
                files, target = [folder / EXTRA / DECODER], f"LiteRT {lite.precision}"
                rows.append(self._answers_row(target, precision, engine.serve, files))
            elif lite:
                engine = LiteModel(lite, model)
                files, target = [folder / EXTRA / NETWORK], f"LiteRT {lite.precision}"
                rows.append(self._network_row(target, lite.precision, lite, files))
            if engine:
                facts["lite"] = {"measured": break_even(model, engine, self._request)}
        for name in formats:
            target, network_class = NETWORKS[name]
            files = (folder / name).iterdir()
            rows.append(self._network_row(target, "fp32", network_class(folder), files))
        if self._accuracy:
            facts["check"] = {**self._accuracy.facts, "metrics": self._expected}
        return {"certificate": rows, **facts}

    def _accepted(self, graph: TaskGraph) -> Iterator[tuple[tuple[str, ...], dict]]:
        """Yields the examples that the task accepts, with the answers before the export."""
        if isinstance(self.task, OnePass):
            yield from ((texts, answers) for texts, _, _, answers in self._references)
            return
        for texts in self._examples:
            with _skip_rejected():
                inputs = self._greedy_request(texts).items()
                tensors = {name: tf.constant(array) for name, array in inputs}
                yield texts, _to_arrays(graph.signatures[_SIGNATURE](**tensors))

    def _request(self, count: int, texts: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Returns `count` copies of an example, by default the first that the task accepts."""
        strings = dict(zip(self.task.texts, texts or self._answers[0][0], strict=True))
        return typical_inputs(self.task.inputs, count=count, **strings)

    def _greedy_request(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        request = self._request(1, texts)
        for name in request.keys() & _GREEDY.keys():
            request[name][:] = _GREEDY[name]
        return request

    def _answers_row(
        self, target: str, precision: str, run: Callable, files: Iterable[pathlib.Path]
    ) -> dict[str, Any]:
        """Compares the numbers of answers to texts."""
        pairs = []
        for texts, expected in self._answers:
            found = run(self._greedy_request(texts))
            pairs += [(found[n], value) for n, value in expected.items() if value.dtype.kind == "f"]
        target = f"{target}, from text to answer"
        return _row(target, files, precision, pairs, run, self._request)

    def _network_row(
        self, target: str, precision: str, network: OpenedNetwork, files: Iterable
    ) -> dict[str, Any]:
        pairs = []
        for _, rows, expected, _ in self._references:
            if network.fits(rows).all():
                # LiteRT pads the outputs for [MASK] tokens; no answer reads the padding.
                outputs = network.compute(rows)[tuple(map(slice, expected.shape))]
                pairs.append((outputs, expected))

        def rows_of(count: int) -> dict[str, np.ndarray]:
            texts = self._references[0][0]
            return _to_arrays(self.task.prepare(*(tf.fill([count], text) for text in texts))[0])

        row = _row(target, files, precision, pairs, network.compute, rows_of)
        if self._accuracy:
            row["metrics"] = self._accuracy.metrics(network)
        return row


@contextlib.contextmanager
def _skip_rejected() -> Iterator[None]:
    """Skips the rest of the `with` block if the task rejects a text (see `tasks.base.require`)."""
    try:
        yield
    except tf.errors.OpError as error:
        if failed_check(error.message) is None:
            failure = f"the network fails ({first_line(error, cause_of(error)):.200})"
            mend = "check its layers, its vocabulary, and the free memory"
            raise UserError(f"{failure}: {mend}") from error


def _to_arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _compare(target: str, precision: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Returns the largest difference of an exported file, divided by the network's largest output.

    Padding is left out. The difference must not exceed `BOUNDS[precision]`.
    """
    worst = scale = 0.0
    for output, expected in pairs:
        is_real = expected > _PADDING_BOUND
        if output.shape != expected.shape:
            worst = np.inf
        elif is_real.any():
            worst = np.maximum(worst, np.abs(output - expected)[is_real].max())  # keeps NaN
            scale = np.maximum(scale, np.abs(expected)[is_real].max())
    difference = float(worst / scale) if scale > 0 else float(worst)
    if difference <= BOUNDS[precision]:
        return _round(difference)
    raise UserError(
        f"the outputs of {target} differ from the network's by {difference:.2g} of the largest, "
        f"more than {BOUNDS[precision]:g}, so nothing was written: leave this format (or "
        "--bfloat16) out, and check that all layers of the network are deterministic"
    )


def _row(
    target: str,
    files: Iterable[pathlib.Path],
    precision: str,
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    run: Callable[[Any], Any],
    request: Callable[[int], Any],
) -> dict[str, Any]:
    """Compares outputs, and measures milliseconds per line in batches of 1 and 32 (median of 5)."""
    row = {"target": target, "bytes": sum(file.stat().st_size for file in files)}
    row["difference"] = _compare(target.partition(",")[0], precision, pairs)
    for count in (1, 32):
        [times] = _timed(functools.partial(run, request(count))).T
        row[f"ms_{count}"] = _round(statistics.median(times) / count)
    return row


def _timed(*functions: Callable[[], Any]) -> np.ndarray:
    """Times functions, interleaved, in up to five rounds after the first: `(rounds, F)` ms."""
    times: list[list[float]] = []
    limit = 1000 * _MAX_SECONDS * len(functions)
    while len(times) < 2 or (len(times) < 6 and np.sum(times[1:]) < limit):
        times.append([])
        for function in functions:
            begin = time.perf_counter()
            function()
            times[-1].append(1000 * (time.perf_counter() - begin))
    return np.array(times[1:])


def break_even(
    model: SessionModel,
    engine: LiteModel | LiteTexts,
    make_request: Callable[[int], dict[str, np.ndarray]],
) -> list[dict[str, float]]:
    """Times requests of increasing size in LiteRT and in the graph, until LiteRT is no faster.

    It sets `max_rows` of the LiteRT file to the largest size in `ROWS` for which LiteRT was faster,
    or to 0. Each time is the minimum of up to five interleaved runs, because other programs can
    only slow a run down.

    Returns a dict of `rows`, `lite` and `graph` (milliseconds per request) for each timed size, or
    nothing if LiteRT does not accept a request from `make_request`.
    """
    measured: list[dict[str, float]] = []
    lite = engine.lite
    default, lite.max_rows = lite.max_rows, ROWS[-1]
    for rows in ROWS:
        inputs = make_request(rows)
        if engine.answer(inputs) is None:
            lite.max_rows = default
            return []
        fastest = _timed(
            functools.partial(engine.answer, inputs),
            functools.partial(model.run, _SIGNATURE, inputs),
        ).min(axis=0)
        measured.append({"rows": rows, "lite": _round(fastest[0]), "graph": _round(fastest[1])})
        if fastest[0] >= fastest[1]:
            break
    lite.max_rows = _faster_rows(measured)
    return measured


def _faster_rows(measured: Iterable[Mapping[str, Any]]) -> int:
    """Returns the size of the largest request for which LiteRT was faster, or 0."""
    return max((row["rows"] for row in measured if row["lite"] < row["graph"]), default=0)


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def certificate_text(record: Mapping[str, Any]) -> str:
    """Formats the result of `Certificate.check` as Markdown text."""
    parts = [certificate_table(record["certificate"])]
    measured, check = record.get("lite", {}).get("measured"), record.get("check")
    if measured:
        times = (f"{row['rows']}: {row['lite']:g} and {row['graph']:g} ms" for row in measured[-2:])
        parts.append(
            f"LiteRT answers requests of up to {_faster_rows(measured)} rows, and the graph larger "
            f"ones (rows: time in LiteRT and in the graph; {', '.join(times)}).\n"
        )
    if check:
        parts.append(
            f"The scores are for {check['examples']:,} examples of {check['source']}. Before the "
            f"export, the network scored {_format_metrics(check['metrics'])}.\n"
        )
    return "\n".join(parts)


def certificate_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats the dicts in `certificate` (see `Certificate.check`) as a Markdown table."""
    has_scores = any("metrics" in row for row in rows)
    names = ("target", "largest difference", "ms per line, 1 line", "ms per line, 32 lines", "MB")
    names += ("score",) * has_scores
    lines = [names, ("---",) * len(names)]
    for row in rows:
        measures = (f"{row[name]:g}" for name in ("difference", "ms_1", "ms_32"))
        cells = (row["target"], *measures, f"{row['bytes'] / 1e6:.3g}")
        lines.append((*cells, *(_format_metrics(row.get("metrics", {})),) * has_scores))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _format_metrics(metrics: Mapping[str, float]) -> str:
    """Formats metrics in one line. Omits "score", which is the mean of the main metrics."""
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if name != "score")
