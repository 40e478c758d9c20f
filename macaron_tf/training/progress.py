"""What a person sees of a run: a bar in a terminal, a line now and then elsewhere."""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping

import rich.console
import rich.progress
import tensorflow as tf

from macaron_tf.io import paths as storage

TRAIN = "train"
VALIDATION = "validation"


class Reporter:
    """Somebody who is told how a run goes; every method may be left out."""

    def start(self, step: int, validated_at: int) -> None:
        """The run starts, or goes on after `step` updates, of which `validated_at` were judged."""

    def tick(self, step: int) -> None:
        """Update number `step` is done; called after each, so it must take microseconds."""

    def train(self, step: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        """Metrics over the updates since the last call, the last being `step`.

        Args:
            step: updates done.
            metrics: by name; the same in every repetition of the run.
            timing: `"seconds"` since the run began and `"tokens_per_second"`; never the same.
        """

    def validation(
        self, step: int, metrics: Mapping[str, float], samples: list[str], is_best: bool
    ) -> None:
        """A validation's metrics and sample outputs after `step` updates."""

    def sync(self) -> None:
        """A checkpoint is about to be written: what was told so far must outlive it."""

    def finish(self) -> None:
        """The run has ended, for whatever reason."""


class JsonLines(Reporter):
    """`metrics.jsonl`: one JSON object a line, `{"step", "kind", ...}`, and `timing.jsonl`.

    What depends on the machine's speed is in `timing.jsonl`, so that `metrics.jsonl` of a resumed
    run equals an uninterrupted one's to the byte. A NaN is written as null.

    On disk a line can be read at once, in a bucket after the next checkpoint: an object there is
    uploaded anew as a whole each time.

    Args:
        run_dir: the run's directory, `gs://` included.
    """

    def __init__(self, run_dir: str | os.PathLike):
        self.metrics_path = storage.as_path(run_dir) / "metrics.jsonl"
        self.timing_path = storage.as_path(run_dir) / "timing.jsonl"
        self._remote = storage.is_remote(run_dir)
        self._files: list = []
        self._open = contextlib.ExitStack()

    def start(self, step: int, validated_at: int) -> None:
        for path in (self.metrics_path, self.timing_path):
            kept = [
                json.dumps(line) + "\n"
                for line in read_lines(path)
                if line["step"] <= (validated_at if line["kind"] == VALIDATION else step)
            ]
            storage.write_aside(path, "".join(kept).encode())
            with _writing(path):
                # Open for as long as the run lasts; `finish` closes it.
                self._files.append(self._open.enter_context(path.open("a")))

    def train(self, step: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        self._append(0, step, TRAIN, metrics)
        self._append(1, step, TRAIN, timing)

    def validation(
        self, step: int, metrics: Mapping[str, float], samples: list[str], is_best: bool
    ) -> None:
        self._append(0, step, VALIDATION, metrics)

    def sync(self) -> None:
        for file in self._files:
            with _writing(file.name):
                file.flush()
                if not self._remote:
                    os.fsync(file.fileno())

    def finish(self) -> None:
        self._files = []
        with _writing(self.metrics_path):
            self._open.close()

    def _append(self, index: int, step: int, kind: str, values: Mapping[str, float]) -> None:
        finite = {k: v if math.isfinite(v) else None for k, v in sorted(values.items())}
        file = self._files[index]
        with _writing(file.name):
            file.write(json.dumps({"step": step, "kind": kind, **finite}) + "\n")
            if not self._remote:
                file.flush()


def read_lines(path: str | os.PathLike) -> list[dict]:
    """The lines of a `.jsonl` log in order, without one that a kill cut short; [] if none."""
    if not storage.as_path(path).exists():
        return []
    lines = []
    for text in storage.read_bytes(path).decode("utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int) and "kind" in line:
            lines.append(line)
    return lines


def _writing(place: str | os.PathLike) -> contextlib.AbstractContextManager[None]:
    mend = "check its permissions and the free space, and run the same command again"
    return storage.clear_errors(f"cannot write {place}", mend)


class Progress(Reporter):
    """Steps, loss, perplexity, tokens a second, time gone and left.

    A bar where standard output is a terminal, else a line with every training report.

    Args:
        max_steps: the run's last step.
        max_minutes: its budget of wall-clock time, if it has one.
        stream: where to write; standard output if None.
    """

    def __init__(self, max_steps: int, max_minutes: float | None = None, stream=None):
        self._max_steps = max_steps
        self._max_seconds = max_minutes * 60 if max_minutes else float("inf")
        self._stream = stream
        self._bar: rich.progress.Progress | None = None
        self._task = None
        self._first_step = 0
        self._began = 0.0

    def start(self, step: int, validated_at: int) -> None:
        self._stream = self._stream or sys.stdout
        self._first_step = step
        self._began = time.monotonic()
        if step:
            self._print(f"going on after step {step:,}")
        if not self._stream.isatty():
            return
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.description}"),
            console=rich.console.Console(file=self._stream),
            refresh_per_second=2,
        )
        self._task = self._bar.add_task("", total=self._max_steps, completed=step)
        self._bar.start()

    def tick(self, step: int) -> None:
        if self._bar:
            self._bar.update(self._task, completed=step)

    def train(self, step: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        # Of a classifier's loss or a squared error it would mean nothing.
        perplexity = f"ppl {metrics['perplexity']:.2f}  " if "perplexity" in metrics else ""
        text = (
            f"loss {metrics['loss']:.3f}  {perplexity}"
            f"{timing['tokens_per_second']:,.0f} tokens/s  "
            f"elapsed {_clock(timing['seconds'])}  left {_clock(self._left(step, timing))}"
        )
        if metrics.get("skipped"):
            text += f"  {metrics['skipped']:.0f} updates skipped (NaN)"
        if self._bar:
            self._bar.update(self._task, description=text)
        else:
            self._print(f"step {step:,}/{self._max_steps:,}  {text}")

    def validation(
        self, step: int, metrics: Mapping[str, float], samples: list[str], is_best: bool
    ) -> None:
        scores = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self._print(f"step {step:,}  validation  {scores}{'  (best)' if is_best else ''}")

    def finish(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _left(self, step: int, timing: Mapping[str, float]) -> float:
        seconds_a_step = (time.monotonic() - self._began) / max(step - self._first_step, 1)
        left = (self._max_steps - step) * seconds_a_step
        return max(min(left, self._max_seconds - timing["seconds"]), 0.0)

    def _print(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=self._stream, flush=True)


def _clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


class TensorBoard(Reporter):
    """Writes event files under RUN/tensorboard, `train/` and `validation/`.

    A resumed run adds files of its own; points that were written twice coincide.

    Args:
        run_dir: the run's directory, `gs://` included.
    """

    def __init__(self, run_dir: str | os.PathLike):
        self._path = storage.as_path(run_dir) / "tensorboard"
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def train(self, step: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        self._scalars("train", step, {**metrics, **timing})

    def validation(
        self, step: int, metrics: Mapping[str, float], samples: list[str], is_best: bool
    ) -> None:
        self._scalars("validation", step, metrics)
        if samples:
            with self._writer("validation").as_default(step):
                tf.summary.text("samples", samples)
        self.sync()

    def sync(self) -> None:
        with self._writing():
            for writer in self._writers.values():
                writer.flush()

    def finish(self) -> None:
        with self._writing():
            for writer in self._writers.values():
                writer.close()
        self._writers = {}

    def _writing(self):
        mend = "check its permissions and the free space, and run the same command again"
        return storage.clear_errors(f"cannot write {self._path}", mend)

    def _scalars(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        with self._writing(), self._writer(kind).as_default(step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def _writer(self, kind: str) -> tf.summary.SummaryWriter:
        if kind not in self._writers:
            self._writers[kind] = tf.summary.create_file_writer(str(self._path / kind))
        return self._writers[kind]
