"""Certificate of an export: deviation from the network, speed and score of each exported file."""

import contextlib
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
from macaron_tf.engines.exported import LiteTexts
from macaron_tf.engines.graph import SmallEngine, TaskGraph, under_policy
from macaron_tf.engines.lite import DECODER, NETWORK, LiteModel, LiteNetwork
from macaron_tf.engines.lite_decoding import LiteDecoder
from macaron_tf.engines.networks import OpenedNetwork
from macaron_tf.engines.onnx import OnnxNetwork
from macaron_tf.engines.openvino import OpenVinoNetwork
from macaron_tf.engines.session import SessionModel
from macaron_tf.engines.warm_up import typical
from macaron_tf.errors import UserError
from macaron_tf.io.serving import EXTRA, failed_check
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
_PATIENCE = 0.25  # seconds of timing per request size, after which no further run begins
_REFUSED = "the model rejects every test text"
# For comparing decoders: maximum number of prompt tokens to read one by one, and number of tokens
# to generate.
_PROMPT, _TOKENS = 64, 12
_ABSENT = -1e8  # outputs below this value belong to padding
_SERVED = "serving_default"


class Certificate:
    """Comparison of exported files with the network's answers to `TEXTS`.

    Create the certificate before the export changes the network's dtype policy, because the
    constructor computes the reference answers. The constructor runs the network eagerly, and in
    float32 unless the network is quantized.

    Args:
        task: task to export.
        accuracy: labelled examples on which each file is scored. `None` means no scores.

    Raises:
        UserError: computing the network fails.
    """

    def __init__(self, task: TaskKind, accuracy: Accuracy | None = None):
        self.task, self._accuracy, self._expected = task, accuracy, {}
        columns = [TEXTS[i:] + TEXTS[:i] for i in range(len(task.texts))]
        # `check` times the first text that the task accepts, so `LINE` comes first.
        self._asked = [(LINE,) * len(columns), *zip(*columns, strict=True)]
        self._known: list[tuple[tuple[str, ...], dict, np.ndarray, dict]] = []
        if not isinstance(task, OnePass):
            return
        self._quantized = any(layer.quantization_mode for layer in task.network._flatten_layers())
        with contextlib.nullcontext() if self._quantized else self._exact():
            for texts in self._asked:
                try:
                    rows, kept = task.prepare(*(tf.constant([text]) for text in texts))
                except tf.errors.InvalidArgumentError:  # the task does not accept the text
                    continue
                with _unless_refused():
                    computed = task.compute(rows)
                    answers = task.conclude(computed, kept)
                    self._known.append((texts, _arrays(rows), computed.numpy(), _arrays(answers)))
            if accuracy:
                self._expected = accuracy.of_network()

    def _exact(self) -> contextlib.AbstractContextManager[None]:
        return under_policy(self.task.network, "float32", "the network")

    def check(
        self,
        graph: TaskGraph,
        folder: pathlib.Path,
        lite: LiteNetwork | LiteDecoder | None,
        formats: Sequence[str],
    ) -> dict[str, Any]:
        """Opens, compares, times and scores each file in a version's folder.

        For a LiteRT file, this method also sets `lite.most_rows` to the largest request that LiteRT
        answers faster than the SavedModel.

        Args:
            graph: graphs that the SavedModel contains.
            folder: folder of the version.
            lite: opened LiteRT file, or `None`.
            formats: names of additional formats; see `write_version`.

        Returns:
            A dict for the record of an export, with these keys:
            - `certificate` is a list with a dict per file. Each dict has the keys `target` (a
              description of the file), `bytes`, `difference`, `ms_1` and `ms_32` (milliseconds per
              line for a batch of 1 or 32 lines), and `metrics` if files are scored. For a file that
              was not compared, the keys are `target`, `bytes` and `not_checked` (the reason).
            - `lite` is present if there is a LiteRT file. Its field `measured` is the result of
              `break_even`.
            - `check` is present if files are scored. It has the fields `source`, `examples`, and
              `metrics` (the scores of the network).

        Raises:
            UserError: a file cannot be opened, or differs by more than its bound in `BOUNDS`.
        """
        facts: dict[str, Any] = {}
        with contextlib.closing(SessionModel(folder)) as model:
            row, taken = self._saved_model(graph, folder, model)
            found, small = [row], None
            if isinstance(lite, LiteDecoder):
                small = LiteTexts(self.task.asking(lite))
                found.append(self._decoder(lite, small, taken, folder / EXTRA / DECODER))
            elif lite:
                small, files = LiteModel(lite, model), [folder / EXTRA / NETWORK]
                found.append(self._opened(f"LiteRT {lite.kind}", lite.kind, lambda: lite, files))
            if lite and small:
                ask = lambda count: self._request(taken[0], count)  # noqa: E731
                facts["lite"] = {"measured": break_even(model, lite, small, ask) if taken else []}
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
        if self._accuracy:
            facts["check"] = {**self._accuracy.facts(), "metrics": self._expected}
        return {"certificate": found, **facts}

    def _request(self, texts: Sequence[str], count: int) -> dict[str, np.ndarray]:
        """Returns the inputs of a `serving_default` request with `count` copies of one example.

        Args:
            texts: text of the example for each string input.
            count: number of rows.
        """
        strings = dict(zip(self.task.texts, texts, strict=True))
        specs = {
            key: tf.TensorSpec([count], dtype)
            for key, dtype in self.task.functions()[_SERVED][1].items()
        }
        return {key: typical(key, spec, strings.get(key, "")) for key, spec in specs.items()}

    def _saved_model(
        self, graph: TaskGraph, folder: pathlib.Path, model: SessionModel
    ) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
        """Compares, times and scores the SavedModel.

        Returns:
            A dict about the SavedModel with the keys that `check` documents, and a list of the
            examples that the SavedModel accepts.
        """
        kind = "bfloat16" if self.task.network.compute_dtype == "bfloat16" else "fp32"
        pairs, taken, metrics = [], [], {}
        if isinstance(self.task, OnePass):
            kind = "int8" if self._quantized else kind
            for texts, _, _, answers in self._known:
                pairs += _numbers(model.run(_SERVED, self._request(texts, 1)), answers)
                taken.append(texts)
            if self._accuracy:
                # Only bfloat16 can change the scores that the constructor computed.
                again = kind == "bfloat16"
                metrics = {"metrics": self._accuracy.of_network() if again else self._expected}
        else:  # for a model that generates text, the reference is the graph before the export
            for texts in self._asked:
                with _unless_refused():
                    given = self._request(texts, 1)
                    answers = graph.signatures[_SERVED](**_tensors(given))
                    pairs += _numbers(model.run(_SERVED, given), _arrays(answers))
                    taken.append(texts)
        files = [folder / "saved_model.pb", *(folder / "variables").iterdir()]
        facts = {"target": "SavedModel, from text to answer", "bytes": _bytes(files)}
        if not taken:
            return {**facts, "not_checked": _REFUSED}, taken
        judged = _judged("SavedModel", kind, pairs)
        given = {count: self._request(taken[0], count) for count in (1, 32)}
        timed = _timed(lambda count: model.run(_SERVED, given[count]))
        return {**facts, **judged, **timed, **metrics}, taken

    def _decoder(
        self, lite: LiteDecoder, small: LiteTexts, taken: Sequence, file: pathlib.Path
    ) -> dict[str, Any]:
        """Compares next-token logits of LiteRT and the network during greedy generation.

        Args:
            lite: opened LiteRT file.
            small: engine that answers requests with `lite`.
            taken: examples that the task accepts. The first example is timed.
            file: path of the LiteRT file.

        Returns:
            A dict about the LiteRT file with the keys that `check` documents, and three additional
            keys. `texts` is the number of compared texts. `parted` is the number of texts in which
            LiteRT and the network prefer different tokens at some step. `log_prob` is the largest
            difference in the log-probability of the network's preferred token.
        """
        target, task = f"LiteRT {lite.kind}, from text to answer", self.task.asking(lite)
        # `reduce_retracing` generalizes shapes after a few traces.
        step = tf.function(self.task.decoder.decode_step, autograph=False, reduce_retracing=True)
        pairs, count, parted, log_prob = [], 0, 0, 0.0
        for texts in self._asked:
            with self._exact(), _unless_refused(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras warns about a softmax over a single token
                try:
                    begun = [one.begin(tf.constant(texts)) for one in (task, self.task)]
                except tf.errors.InvalidArgumentError:  # the task does not accept the text
                    continue
                steps = [*_steps(begun, (lite.decode_step, step), lite.config.longest)]
            pairs += steps
            count += bool(steps)
            parted += any(found.argmax() != expected.argmax() for found, expected in steps)
            for found, expected in steps:
                own, exact = tf.nn.log_softmax([found, expected]).numpy()[:, expected.argmax()]
                log_prob = max(log_prob, float(abs(own - exact)))
        facts = {"target": target, "bytes": _bytes([file])}
        if not pairs:
            return {**facts, "not_checked": _REFUSED}
        judged = _judged(target, lite.kind, pairs)
        judged |= {"texts": count, "parted": parted, "log_prob": _rounded(log_prob)}
        given = {count: self._request(taken[0], count) for count in (1, 32)}
        return {**facts, **judged, **_timed(lambda count: small.serve(given[count]))}

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
        metrics = {"metrics": self._accuracy.of_engine(opened)} if self._accuracy else {}
        return {**facts, **judged, **_timed(lambda count: opened.compute(given[count])), **metrics}


@contextlib.contextmanager
def _unless_refused() -> Iterator[None]:
    """Skips the rest of the `with` block if a graph rejects a text as invalid.

    Raises:
        UserError: TensorFlow raises an error that has another cause.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if failed_check(error.message) is None:
            raise UserError(
                f"the network cannot compute its outputs ({error.message.splitlines()[0]:.200}): "
                "correct the network's layers, or train the network again"
            ) from error


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in arrays.items()}


def _steps(
    begun: Sequence[tuple[Prompts, Any, State]], functions: Sequence[Callable], longest: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields next-token logits `(V,)` of LiteRT and of the network at each step of generation.

    Both decoders continue with the token that the network prefers. This function yields nothing if
    a decoder would have to read more than `_PROMPT` tokens of the prompt one by one.

    Args:
        begun: results of `Decoding.begin` for LiteRT and for the network.
        functions: `decode_step` of LiteRT and of the network.
        longest: maximum number of tokens in a row; `None` means no limit.
    """
    ids = begun[1][0].ids[0].numpy().tolist()
    # `begin` may have read the first tokens of the prompt already, in one or both decoders.
    caches, read = [state.cache for *_, state in begun], [int(state.index) for *_, state in begun]
    last = min(len(ids) + _TOKENS, longest or np.inf)
    if len(ids) - min(read) > _PROMPT:
        return
    while (index := min(read)) < last:
        token, scores = tf.constant([[ids[index]]]), {}
        for number, (function, (_, context, _)) in enumerate(zip(functions, begun, strict=True)):
            if read[number] == index:
                given = token, tf.constant(index), context, caches[number]
                logits, caches[number] = function(*given)
                scores[number], read[number] = logits.numpy()[0, 0], index + 1
        if index + 1 == len(ids):
            yield scores[0], scores[1]
            ids.append(int(scores[1].argmax()))


def _arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _numbers(found: Mapping, expected: Mapping) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns a pair of the found and the expected value for each floating-point output."""
    return [(found[n], value) for n, value in expected.items() if value.dtype.kind == "f"]


def _bytes(files: Iterable[pathlib.Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _judged(
    target: str, kind: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
) -> dict[str, float]:
    """Compares outputs of an exported file with outputs of the network.

    Args:
        target: description of the file, for the error message.
        kind: key of `BOUNDS`.
        pairs: output of the file and output of the network, for each comparison.

    Returns:
        Dict that maps `"difference"` to the largest absolute difference in `pairs`, divided by the
        largest absolute output of the network.

    Raises:
        UserError: the difference exceeds `BOUNDS[kind]`.
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
            f"the outputs of {target} differ from the network's outputs by {difference:.2g} times "
            f"the largest output, but at most {BOUNDS[kind]:g} is allowed: leave this format out "
            "(nothing was written)"
        )
    return {"difference": _rounded(difference)}


def _timed(run: Callable[[int], Any]) -> dict[str, float]:
    """Measures the milliseconds per line for batches of 1 and 32 lines.

    Each time is the median of up to five runs, after a warm-up run.

    Args:
        run: function that processes a batch of the given number of lines.

    Returns:
        Dict with the keys `ms_1` and `ms_32`.
    """
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


def break_even(
    model: SessionModel,
    lite: LiteNetwork | LiteDecoder,
    small: SmallEngine,
    ask: Callable[[int], dict[str, np.ndarray]],
) -> list[dict[str, float]]:
    """Times requests of increasing size in LiteRT and in the graph, until the graph is faster.

    This function sets `lite.most_rows` to the size of the largest request for which LiteRT was
    faster than the graph. Each time is the minimum of a few interleaved runs, because other
    programs can only slow a run down.

    Args:
        model: SavedModel with the graph.
        lite: network in LiteRT.
        small: engine that answers requests with `lite`.
        ask: function that returns the inputs of a request with the given number of rows.

    Returns:
        List with a dict for each timed size in `ROWS`. The keys are `rows`, `lite` and `graph`; the
        last two are times in milliseconds per request. The list is empty if LiteRT does not accept
        a request.
    """
    found = []
    default, lite.most_rows = lite.most_rows, ROWS[-1]
    for rows in ROWS:
        given = ask(rows)
        if small.answer(given) is None:
            lite.most_rows = default
            return []
        model.run(_SERVED, given)
        times: list[tuple[float, float]] = []
        while not times or (len(times) < 5 and np.sum(times) < 2 * _PATIENCE):
            begin = time.perf_counter()
            small.answer(given)
            middle = time.perf_counter()
            model.run(_SERVED, given)
            times.append((middle - begin, time.perf_counter() - middle))
        least = 1000 * np.min(times, axis=0)
        found.append({"rows": rows, "lite": _rounded(least[0]), "graph": _rounded(least[1])})
        if least[0] >= least[1]:
            break
    lite.most_rows = max((row["rows"] for row in found if row["lite"] < row["graph"]), default=0)
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def certificate_text(record: Mapping[str, Any]) -> str:
    """Formats the result of `Certificate.check` as Markdown text.

    The text has a table of the files, and sentences about LiteRT and about the scores.
    """
    found = [certificate_table(record["certificate"])]
    lite, check = record.get("lite", {}), record.get("check")
    if lite.get("measured"):
        found.append(_switch(lite["measured"]))
    if check:
        found.append(
            f"The scores are for {check['examples']:,} examples of {check['source']}. Before the "
            f"export, the network scored {_metrics(check['metrics'])}.\n"
        )
    return "\n".join(found)


def certificate_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats the dicts in `certificate` (see `Certificate.check`) as a Markdown table."""
    scored = any("metrics" in row for row in rows)
    names = ("target", "largest difference", "ms per line, 1 line", "ms per line, 32 lines", "MB")
    names += ("score",) * scored
    lines = [names, ("---",) * len(names)]
    for row in rows:
        size = f"{row['bytes'] / 1e6:.3g}"
        if "not_checked" in row:
            cells = (row["target"], f"not checked: {row['not_checked']}", "", "", size)
        else:
            numbers = (f"{row[name]:g}" for name in ("difference", "ms_1", "ms_32"))
            target = row["target"]
            if "parted" in row:
                target += (
                    f" (log-probabilities differ by up to {row['log_prob']:g}, and tokens differ "
                    f"in {row['parted']} of {row['texts']} texts)"
                )
            cells = (target, *numbers, size)
        lines.append((*cells, *(_metrics(row.get("metrics", {})),) * scored))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _metrics(metrics: Mapping[str, float]) -> str:
    """Formats metrics in one line. Omits "score", which is the mean of the other metrics."""
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if name != "score")


def _switch(measured: Sequence[Mapping[str, float]]) -> str:
    """Describes in a sentence up to which size LiteRT answers requests.

    Args:
        measured: result of `break_even`, not empty.
    """
    last, shown = measured[-1], {}
    for row in measured:
        shown[row["rows"]] = f"{row['lite']:g} ms in LiteRT and {row['graph']:g} ms in the graph"
    if last["lite"] < last["graph"]:
        return f"LiteRT answers requests of up to {last['rows']} rows: {shown[last['rows']]}.\n"
    if len(measured) == 1:
        return f"The graph answers all requests: 1 row takes {shown[1]}.\n"
    most = measured[-2]["rows"]
    return (
        f"LiteRT answers requests of up to {most} rows: {most} take {shown[most]}, and "
        f"{last['rows']} take {shown[last['rows']]}.\n"
    )
