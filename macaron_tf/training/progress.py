"""What a person sees of a run: a bar in a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Mapping

import rich.console
import rich.progress

from macaron_tf.training.reporters import Reporter


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
