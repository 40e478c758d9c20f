"""Progress of a run: a bar or lines on stdout, `metrics.jsonl`, and TensorBoard event files."""

import contextlib
import importlib.util
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


class RunLog:
    """Log of a run in `metrics.jsonl` and `timing.jsonl`, and as curves for TensorBoard.

    A line is a JSON object with the fields `step` and `kind` (`"train"` or `"validation"`). NaN and
    infinity are written as null. Values that depend on the machine's speed go to `timing.jsonl`. A
    resumed run therefore writes the same `metrics.jsonl`, byte for byte, as an uninterrupted run.

    On a local disk, each line can be read as soon as it is written. In a bucket, lines appear with
    the next checkpoint, because each upload transfers the whole file.

    The folders `tensorboard/train` and `tensorboard/validation` have event files with the same
    values, if the package tensorboard is installed. A resumed run writes new event files. If both
    sessions report the same step, the metrics are equal, so their curves coincide.

    Args:
        step: number of updates so far. Later lines of an earlier session are dropped.
        validated_at: step of the last validation. Later validations are dropped.
    """

    def __init__(self, run_dir: str | os.PathLike, step: int = 0, validated_at: int = 0):
        self._folder = storage.as_path(run_dir)
        self._is_remote = storage.is_remote(run_dir)
        self._waiting = {"metrics": "", "timing": ""}  # lines that the files lack
        self._curves: dict[str, tf.summary.SummaryWriter] = {}
        # The command `train` needs the package; `fit` in Python goes without curves.
        self._has_curves = importlib.util.find_spec("tensorboard") is not None
        for name in self._waiting:
            path = self._folder / f"{name}.jsonl"
            lines = [
                json.dumps(line) + "\n"
                for line in read_lines(path)
                if line["step"] <= (validated_at if line["kind"] == VALIDATION else step)
            ]
            storage.write_atomic(path, "".join(lines).encode())

    def write(
        self,
        kind: str,
        step: int,
        metrics: Numbers,
        timing: Numbers | None = None,
        samples: Sequence[str] = (),
    ) -> None:
        """Writes the metrics of a validation, or of the updates since the last training line.

        A second run with the same settings reports the same `metrics`. `timing` differs from run to
        run. `samples` are outputs of the model as text.
        """
        for name, values in (("metrics", metrics), ("timing", timing)):
            if values is not None:
                line = {"step": step, "kind": kind, **dict(sorted(values.items()))}
                self._waiting[name] += json.dumps(finite(line)) + "\n"
        if not self._is_remote:
            self._append()
        if not self._has_curves:
            return
        folder = self._folder / "tensorboard" / kind
        with _writing(folder):
            if kind not in self._curves:
                self._curves[kind] = tf.summary.create_file_writer(str(folder))
            with self._curves[kind].as_default(step):
                for name, value in {**metrics, **(timing or {})}.items():
                    # tf.summary rejects a Python float beyond float32's range (a perplexity).
                    tf.summary.scalar(name, np.float64(value))
                if samples:
                    tf.summary.text("samples", samples)
            if kind == VALIDATION:
                self._curves[kind].flush()

    def sync(self) -> None:
        """Writes all lines and curves to disk, before a checkpoint and at the end."""
        self._append()
        for name in () if self._is_remote else self._waiting:
            with _writing(path := self._folder / f"{name}.jsonl"):
                storage.sync(path)
        for kind, curves in self._curves.items():
            with _writing(self._folder / "tensorboard" / kind):
                curves.flush()

    def _append(self) -> None:
        for name, lines in self._waiting.items():
            path = self._folder / f"{name}.jsonl"
            with _writing(path), path.open("a") as file:
                file.write(lines)
            self._waiting[name] = ""


def finite(value: Any) -> Any:
    """Returns a copy of a nested value for JSON, with `None` in place of NaN and infinity."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(path: str | os.PathLike) -> list[dict]:
    """Reads the valid lines of a `.jsonl` log as dicts; a killed process may have cut the last."""
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


class TrainingBar(contextlib.ExitStack):
    """Display of step, loss, perplexity, tokens per second, elapsed and remaining time.

    If the objective has no perplexity, the perplexity is left out. If the FLOPs of an update are
    known, a line before the first report has those of a token, and reports have the model FLOPs
    utilization (MFU) of devices whose peak is known. A terminal shows a progress bar.
    Any other stream gets a line for each training report. Both get a line for each validation.

    Args:
        max_minutes: time limit of the run in minutes; `None` means no limit.
        step: number of updates so far.
        stream: output stream; `None` means stdout.
    """

    def __init__(
        self, max_steps: int, max_minutes: float | None = None, step: int = 0, stream=None
    ):
        super().__init__()
        self._max_steps, self._first_step, self._began = max_steps, step, time.monotonic()
        self._max_seconds = max_minutes * 60 if max_minutes else float("inf")
        self._reports = 0
        self._text = " "  # shown between the first update and the first report
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
        if step:
            self._console.print(f"resuming after step {step:,}", soft_wrap=True)
        waiting = "compiling the first update"
        self._task = self._bar.add_task(waiting, total=max_steps, completed=step)
        if not self._bar.disable:
            self.enter_context(self._bar)
            self.enter_context(other_bar())

    def tick(self, step: int) -> None:
        self._bar.update(self._task, completed=step, description=self._text)

    def train(self, step: int, metrics: Numbers, timing: Numbers) -> None:
        seconds_a_step = (time.monotonic() - self._began) / max(step - self._first_step, 1)
        seconds_left = (self._max_steps - step) * seconds_a_step
        seconds_left = max(min(seconds_left, self._max_seconds - timing["seconds"]), 0.0)
        # Classification and regression have no perplexity.
        perplexity = f"ppl {short(metrics['perplexity'])}  " if "perplexity" in metrics else ""
        speed = f"{short(timing['tokens_per_second'])} tok/s"
        if "mfu" in timing:
            speed += f"  MFU {timing['mfu']:.0%}"
        if "flops_per_token" in timing and not self._reports:
            note = f"training takes {timing['flops_per_token'] / 1e6:,.4g} MFLOP a token"
            self._console.print(note, soft_wrap=True)
        self._reports += 1
        times = f"{clock(timing['seconds'])}, {clock(seconds_left)} left"
        text = f"loss {metrics['loss']:.3f}  {perplexity}{speed}  {times}"
        if metrics.get("skipped"):
            text += f"  updates skipped: {metrics['skipped']:.0f}"
        self._text = text
        self._bar.update(self._task, description=text)
        if self._bar.disable:
            self._console.print(f"step {step:,}/{self._max_steps:,}  {text}", soft_wrap=True)

    def validation(self, step: int, metrics: Numbers, is_best: bool) -> None:
        scores = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        text = f"step {step:,}  validation  {scores}{'  (best)' if is_best else ''}"
        self._console.print(text, soft_wrap=True)
