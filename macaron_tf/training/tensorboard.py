"""TensorBoard: curves of training and validation, and sample outputs as text."""

import os
from collections.abc import Mapping

import tensorflow as tf

from macaron_tf.data import storage
from macaron_tf.training.reporters import Reporter


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
