"""Where a run's numbers go; `metrics.jsonl` is the record, the others are views of it."""

import contextlib
import json
import math
import os
from collections.abc import Mapping

from macaron_tf.data import storage

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
