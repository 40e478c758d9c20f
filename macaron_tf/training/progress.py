"""Progress reporters: a bar or lines on stdout, `metrics.jsonl`, and TensorBoard event files."""

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.progress
import rich.table
import tensorflow as tf

from macaron_tf.errors import parse_json
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import clock, other_bar, short

TRAIN = "train"
VALIDATION = "validation"

Numbers = Mapping[str, float]


class Reporter:
    """Base class of progress reporters. Its methods do nothing, and subclasses override them."""

    def start(self, step: int, validated_at: int) -> None:
        """Handles the start or the resumption of a run. Both steps are 0 for a new run."""

    def tick(self, step: int) -> None:
        """Handles the end of one or more updates, after which `step` updates have been made.

        Training waits for this method, which must be fast.
        """

    def train(self, step: int, metrics: Numbers, timing: Numbers) -> None:
        """Reports the training metrics of the updates since the last report.

        Args:
            metrics: dict mapping metric name to value. A second run with the same settings reports
                the same values.
            timing: dict with `"seconds"` (run time, including earlier sessions),
                `"tokens_per_second"` and, on Linux, `"memory_mib"` (peak main memory of this
                process in MiB). These values differ from run to run.
        """

    def validation(self, step: int, metrics: Numbers, samples: list[str], is_best: bool) -> None:
        """Reports the metrics of a validation.

        Args:
            samples: sample outputs of the model as text.
            is_best: whether this validation has the best score so far.
        """

    def sync(self) -> None:
        """Writes all earlier reports to disk. `train` calls this method before each checkpoint."""

    def finish(self) -> None:
        """Closes files and displays when the run ends, with or without an error."""


class JsonLines(Reporter):
    """Reporter that writes `metrics.jsonl` and `timing.jsonl`, one JSON object per line.

    Each object has the fields `step` and `kind` (`"train"` or `"validation"`). NaN and infinity are
    written as null. Values that depend on the machine's speed go to `timing.jsonl`. A resumed run
    therefore writes the same `metrics.jsonl`, byte for byte, as an uninterrupted run.

    On a local disk, each line can be read as soon as it is written. In a bucket, lines appear with
    the next checkpoint, because each upload transfers the whole file.
    """

    def __init__(self, run_dir: str | os.PathLike):
        self._folder = storage.as_path(run_dir)
        self._is_remote = storage.is_remote(run_dir)
        self._files: dict = {}
        self._open = contextlib.ExitStack()

    def start(self, step: int, validated_at: int) -> None:
        for name in ("metrics", "timing"):
            path = self._folder / f"{name}.jsonl"
            lines = [
                json.dumps(line) + "\n"
                for line in read_lines(path)
                if line["step"] <= (validated_at if line["kind"] == VALIDATION else step)
            ]
            storage.write_atomic(path, "".join(lines).encode())
            with _writing(path):
                self._files[name] = self._open.enter_context(path.open("a"))

    def train(self, step: int, metrics: Numbers, timing: Numbers) -> None:
        self._append("metrics", step, TRAIN, metrics)
        self._append("timing", step, TRAIN, timing)

    def validation(self, step: int, metrics: Numbers, samples: list[str], is_best: bool) -> None:
        self._append("metrics", step, VALIDATION, metrics)

    def sync(self) -> None:
        for file in self._files.values():
            with _writing(file.name):
                file.flush()
                if not self._is_remote:
                    os.fsync(file.fileno())

    def finish(self) -> None:
        with _writing(self._folder / "metrics.jsonl"):
            self._open.close()

    def _append(self, log: str, step: int, kind: str, values: Numbers) -> None:
        file = self._files[log]
        line = {"step": step, "kind": kind, **dict(sorted(values.items()))}
        with _writing(file.name):
            file.write(json.dumps(finite(line)) + "\n")
            if not self._is_remote:
                file.flush()


def finite(value: Any) -> Any:
    """Returns a copy of a value for JSON, with `None` in place of NaN and infinity.

    Dicts, lists and tuples may be nested. Tuples become lists.
    """
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(path: str | os.PathLike) -> list[dict]:
    """Reads the lines of a `.jsonl` log as dicts, or returns [] if the file does not exist.

    Skips invalid lines, because a killed process may have written only part of a line.
    """
    if not storage.as_path(path).exists():
        return []
    lines = []
    for text in storage.read_bytes(path).decode("utf-8", errors="replace").splitlines():
        try:
            lines.append(parse_json(text, step=int, kind=str))
        except ValueError:
            continue
    return lines


def _writing(path: str | os.PathLike) -> contextlib.AbstractContextManager[None]:
    mend = "check its permissions and the free space, and run the same command again"
    return storage.clear_errors(f"cannot write {path}", mend)


class TrainingBar(Reporter):
    """Reporter that shows step, loss, perplexity, tokens per second, elapsed and remaining time.

    If the objective has no perplexity, the perplexity is left out. On a terminal, the reporter
    shows a progress bar. To any other stream, it writes a line for each training report. In both
    cases, it writes a line for each validation.

    Args:
        max_minutes: time limit of the run in minutes; `None` means no limit.
        stream: output stream; `None` means stdout.
    """

    def __init__(self, max_steps: int, max_minutes: float | None = None, stream=None):
        self._max_steps = max_steps
        self._max_seconds = max_minutes * 60 if max_minutes else float("inf")
        self._console = rich.console.Console(
            file=stream, highlight=False, markup=False, emoji=False
        )
        one_line = rich.table.Column(no_wrap=True)
        self._bar = rich.progress.Progress(
            rich.progress.SpinnerColumn(),  # moves even during a long validation
            rich.progress.TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.description}", table_column=one_line),
            console=self._console,
            refresh_per_second=2,
            disable=not self._console.is_terminal,
        )

    def start(self, step: int, validated_at: int) -> None:
        self._first_step = step
        self._began = time.monotonic()
        if step:
            self._print(f"resuming after step {step:,}")
        self._text = " "  # shown between the first update and the first report
        waiting = "compiling the first update"
        self._task = self._bar.add_task(waiting, total=self._max_steps, completed=step)
        self._display = contextlib.ExitStack()
        if not self._bar.disable:
            self._display.enter_context(self._bar)
            self._display.enter_context(other_bar())

    def tick(self, step: int) -> None:
        self._bar.update(self._task, completed=step, description=self._text)

    def train(self, step: int, metrics: Numbers, timing: Numbers) -> None:
        # Classification and regression have no perplexity.
        perplexity = f"ppl {short(metrics['perplexity'])}  " if "perplexity" in metrics else ""
        speed = f"{short(timing['tokens_per_second'])} tok/s"
        times = f"{clock(timing['seconds'])}, {clock(self._seconds_left(step, timing))} left"
        text = f"loss {metrics['loss']:.3f}  {perplexity}{speed}  {times}"
        if metrics.get("skipped"):
            text += f"  updates skipped: {metrics['skipped']:.0f}"
        self._text = text
        self._bar.update(self._task, description=text)
        if self._bar.disable:
            self._print(f"step {step:,}/{self._max_steps:,}  {text}")

    def validation(self, step: int, metrics: Numbers, samples: list[str], is_best: bool) -> None:
        scores = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self._print(f"step {step:,}  validation  {scores}{'  (best)' if is_best else ''}")

    def finish(self) -> None:
        self._display.close()

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _seconds_left(self, step: int, timing: Numbers) -> float:
        seconds_a_step = (time.monotonic() - self._began) / max(step - self._first_step, 1)
        seconds_left = (self._max_steps - step) * seconds_a_step
        return max(min(seconds_left, self._max_seconds - timing["seconds"]), 0.0)


class TensorBoard(Reporter):
    """Reporter that writes event files to `tensorboard/train` and `tensorboard/validation`.

    A resumed run writes new event files next to the existing files. If the interrupted and the
    resumed session report the same step, the metrics are equal, so their curves coincide. Speed,
    time and memory may differ.
    """

    def __init__(self, run_dir: str | os.PathLike):
        self._path = storage.as_path(run_dir) / "tensorboard"
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def train(self, step: int, metrics: Numbers, timing: Numbers) -> None:
        self._write(TRAIN, step, {**metrics, **timing})

    def validation(self, step: int, metrics: Numbers, samples: list[str], is_best: bool) -> None:
        self._write(VALIDATION, step, metrics, samples)
        self.sync()

    def sync(self) -> None:
        with _writing(self._path):
            for writer in self._writers.values():
                writer.flush()

    def finish(self) -> None:
        with _writing(self._path):
            for writer in self._writers.values():
                writer.close()

    def _write(self, kind: str, step: int, values: Numbers, samples: Sequence[str] = ()) -> None:
        with _writing(self._path):
            if kind not in self._writers:
                self._writers[kind] = tf.summary.create_file_writer(str(self._path / kind))
            with self._writers[kind].as_default(step):
                for name, value in values.items():
                    # tf.summary rejects a Python float beyond float32's range (a perplexity).
                    tf.summary.scalar(name, np.float64(value))
                if samples:
                    tf.summary.text("samples", samples)
