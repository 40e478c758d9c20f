"""Certificate of an export: deviation from the network, speed and score of each exported file."""

import contextlib
import functools
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.decoding.sampling import Prompts, State
from macaron_tf.engines.accuracy import Accuracy
from macaron_tf.engines.graph import TaskGraph, under_policy
from macaron_tf.engines.lite import DECODER, NETWORK, LiteModel, LiteNetwork
from macaron_tf.engines.lite_decoding import LiteDecoder
from macaron_tf.engines.lite_texts import LiteTexts
from macaron_tf.engines.networks import OnnxNetwork, OpenedNetwork, OpenVinoNetwork
from macaron_tf.engines.session import SessionModel
from macaron_tf.engines.warm_up import typical_inputs
from macaron_tf.errors import UserError, first_line
from macaron_tf.io.serving import EXTRA, cause_of, failed_check
from macaron_tf.tasks.base import OnePass, TaskKind

# Largest allowed differences, relative to the largest output. bfloat16 has rounding errors of up to
# 4e-3, int8 has 127 steps, and both errors accumulate over the layers. "default" stands for the
# default settings of OpenVINO, whose precision depends on the CPU.
BOUNDS = {"fp32": 1e-4, "bfloat16": 0.1, "int8": 0.25, "default": np.inf}
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
# For comparing decoders: maximum number of prompt tokens to read one by one, and number of tokens
# to generate.
_MAX_PROMPT, _NUM_TOKENS = 64, 12
_PADDING_BOUND = -1e8  # outputs below this value belong to padding
_SIGNATURE = "serving_default"
# Networks beside the SavedModel: the format, which is the folder in the version, the name in the
# table, the precision, and the function that opens the network in a version's folder.
NETWORKS = (
    ("onnx", "ONNX", "fp32", OnnxNetwork),
    ("openvino", "OpenVINO", "fp32", OpenVinoNetwork),
    (
        "openvino",
        "OpenVINO with its default settings",
        "default",
        functools.partial(OpenVinoNetwork, settings={}),
    ),
)


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
                batch of 1 or 32 lines), and `metrics` if files are scored; that of a LiteRT decoder
                has the further keys of `_decoder_row`, and that of a file that was not compared
                only `target`, `bytes` and `not_checked` (the reason). `lite` has the result of
                `break_even` in `measured`. `check` has `source`, `examples` (the count) and
                `metrics` (of the network).
        """
        facts: dict[str, Any] = {}
        with contextlib.closing(SessionModel(folder)) as model:
            self._answers = [*self._accepted(graph)]
            rows = [self._saved_model_row(folder, model)]
            engine: LiteTexts | LiteModel | None = None
            if isinstance(lite, LiteDecoder):
                engine = LiteTexts(self.task.with_decoder(lite))
                rows.append(self._decoder_row(lite, engine, folder / EXTRA / DECODER))
            elif lite:
                engine, target = LiteModel(lite, model), f"LiteRT {lite.precision}"
                files = [folder / EXTRA / NETWORK]
                rows.append(self._network_row(target, lite.precision, lambda: lite, files))
            if engine:
                measured = break_even(model, engine, self._request) if self._answers else []
                facts["lite"] = {"measured": measured}
        for name, target, precision, open_network in NETWORKS:
            if name in formats:
                files = [*(folder / name).iterdir()]
                open_here = functools.partial(open_network, folder)
                rows.append(self._network_row(target, precision, open_here, files))
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
                inputs = self._request(1, texts).items()
                tensors = {name: tf.constant(array) for name, array in inputs}
                yield texts, _to_arrays(graph.signatures[_SIGNATURE](**tensors))

    def _request(self, count: int, texts: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Returns `count` copies of an example, by default the first that the task accepts."""
        strings = dict(zip(self.task.texts, texts or self._answers[0][0], strict=True))
        inputs = self.task.functions()[_SIGNATURE][1].items()
        specs = {name: tf.TensorSpec([count], dtype) for name, dtype in inputs}
        return typical_inputs(specs, **strings)

    def _saved_model_row(self, folder: pathlib.Path, model: SessionModel) -> dict[str, Any]:
        in_bfloat16 = self.task.network.compute_dtype == "bfloat16"
        precision = "bfloat16" if in_bfloat16 else "int8" if self._quantized else "fp32"
        run, pairs = functools.partial(model.run, _SIGNATURE), []
        for texts, expected in self._answers:
            found = run(self._request(1, texts))
            pairs += [(found[n], value) for n, value in expected.items() if value.dtype.kind == "f"]
        files = [folder / "saved_model.pb", *(folder / "variables").iterdir()]
        row = _row("SavedModel, from text to answer", files, precision, pairs, run, self._request)
        if self._accuracy:  # only bfloat16 changes the scores of the constructor
            row["metrics"] = self._accuracy.metrics() if in_bfloat16 else self._expected
        return row

    def _decoder_row(
        self, lite: LiteDecoder, engine: LiteTexts, file: pathlib.Path
    ) -> dict[str, Any]:
        """Compares next-token logits of LiteRT and the network during greedy generation.

        The row also has `texts` (number of compared texts), `parted` (number of texts in which the
        two prefer different tokens at some step) and `log_prob` (largest difference in the
        log-probability of the network's preferred token).
        """
        target, task = f"LiteRT {lite.precision}, from text to answer", self.task.with_decoder(lite)
        # `reduce_retracing` generalizes shapes after a few traces.
        step = tf.function(self.task.decoder.decode_step, autograph=False, reduce_retracing=True)
        compared = []
        for texts in self._examples:
            with self._in_float32(), _skip_rejected(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras warns about a softmax over a single token
                searches = [each.begin(tf.constant(texts)) for each in (task, self.task)]
                steps = [*_steps(searches, (lite.decode_step, step), lite.config.longest)]
                compared += [steps] if steps else []
        pairs = [pair for steps in compared for pair in steps]
        row = _row(target, [file], lite.precision, pairs, engine.serve, self._request)
        if pairs:
            row["texts"] = len(compared)
            row["parted"] = sum(any(a.argmax() != b.argmax() for a, b in s) for s in compared)
            # (N, 2, V): log-probabilities of LiteRT and of the network at N steps
            log_probs = tf.nn.log_softmax(pairs).numpy()
            preferred = log_probs[:, 1:].argmax(-1)[..., None]  # the network's tokens (N, 1, 1)
            both = np.take_along_axis(log_probs, preferred, axis=-1)  # (N, 2, 1)
            row["log_prob"] = _round(float(np.abs(both[:, 0] - both[:, 1]).max()))
        return row

    def _network_row(
        self, target: str, precision: str, opened: Callable[[], OpenedNetwork], files: Iterable
    ) -> dict[str, Any]:
        try:
            network = opened()
        except UserError as error:
            if isinstance(error.__cause__, ImportError):
                return {**_file_row(target, files), "not_checked": str(error)}
            raise
        pairs = []
        for _, rows, expected, _ in self._references:
            if network.fits(rows).all():
                outputs = network.compute(rows)
                if isinstance(network, LiteNetwork):
                    # It pads the outputs for [MASK] tokens; no answer reads the padding.
                    outputs = outputs[tuple(map(slice, expected.shape))]
                pairs.append((outputs, expected))

        def rows_of(count: int) -> dict[str, np.ndarray]:
            texts = self._references[0][0]
            return _to_arrays(self.task.prepare(*(tf.fill([count], text) for text in texts))[0])

        row = _row(target, files, precision, pairs, network.compute, rows_of)
        if self._accuracy and pairs:
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


def _steps(
    searches: Sequence[tuple[Prompts, Any, State]],
    functions: Sequence[Callable],
    max_length: int | None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields next-token logits `(V,)` of LiteRT and of the network at each step of generation.

    Both continue with the token that the network prefers. Nothing is yielded for a prompt of which
    a decoder would have to read more than `_MAX_PROMPT` tokens one by one.
    """
    ids = searches[1][0].ids[0].numpy().tolist()
    # `begin` may have read the first tokens of the prompt already, in one or both decoders.
    caches = [state.cache for *_, state in searches]
    positions = [int(state.index) for *_, state in searches]
    last = min(len(ids) + _NUM_TOKENS, max_length or np.inf)
    if len(ids) - min(positions) > _MAX_PROMPT:
        return
    while (index := min(positions)) < last:
        token, scores = tf.constant([[ids[index]]]), {}
        for which, (function, (_, context, _)) in enumerate(zip(functions, searches, strict=True)):
            if positions[which] == index:
                logits, caches[which] = function(token, tf.constant(index), context, caches[which])
                scores[which], positions[which] = logits.numpy()[0, 0], index + 1
        if index + 1 == len(ids):
            yield scores[0], scores[1]
            ids.append(int(scores[1].argmax()))


def _to_arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _file_row(target: str, files: Iterable[pathlib.Path]) -> dict[str, Any]:
    return {"target": target, "bytes": sum(file.stat().st_size for file in files)}


def _compare(target: str, precision: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Returns the largest difference of an exported file, divided by the network's largest output.

    Padding is left out. The difference must not exceed `BOUNDS[precision]`.
    """
    worst = scale = 0.0
    for output, expected in pairs:
        if output.shape != expected.shape:
            worst = np.inf
            continue
        is_real = (expected > _PADDING_BOUND) & (output > _PADDING_BOUND)
        is_real |= np.isnan(output) & ~np.isnan(expected)
        if is_real.any():
            worst = np.maximum(worst, np.abs(output - expected)[is_real].max())
            scale = np.maximum(scale, np.abs(expected)[is_real].max())
        elif (expected > _PADDING_BOUND).any():
            worst = np.inf
    difference = float(worst / scale) if scale > 0 else float("inf" if worst else "0")
    if not np.isfinite(difference) or difference > BOUNDS[precision]:
        mend = "leave this format out"
        if target == "SavedModel":
            mend = "check that all layers of the network are deterministic"
            mend = "leave --bfloat16 out" if precision == "bfloat16" else mend
        raise UserError(
            f"the outputs of {target} differ from the network's by {difference:.2g} of the "
            f"largest, more than {BOUNDS[precision]:g}, so nothing was written: {mend}"
        )
    return _round(difference)


def _row(
    target: str,
    files: Iterable[pathlib.Path],
    precision: str,
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    run: Callable[[Any], Any],
    request: Callable[[int], Any],
) -> dict[str, Any]:
    """Compares outputs, and measures the milliseconds per line for batches of 1 and 32 lines.

    Each time is the median of up to five runs, after a warm-up run.
    """
    row = _file_row(target, files)
    if not pairs:
        return {**row, "not_checked": "the model rejects every test text"}
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
        size = f"{row['bytes'] / 1e6:.3g}"
        if "not_checked" in row:
            cells = (row["target"], f"not checked: {row['not_checked']}", "", "", size)
        else:
            measures = (f"{row[name]:g}" for name in ("difference", "ms_1", "ms_32"))
            target = row["target"]
            if "parted" in row:
                target += (
                    f" (log-probabilities differ by up to {row['log_prob']:g}, and tokens differ "
                    f"in {row['parted']} of {row['texts']} texts)"
                )
            cells = (target, *measures, size)
        lines.append((*cells, *(_format_metrics(row.get("metrics", {})),) * has_scores))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _format_metrics(metrics: Mapping[str, float]) -> str:
    """Formats metrics in one line. Omits "score", which is the mean of the main metrics."""
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if name != "score")
