"""Keras callbacks from the command line, and profiler traces for TensorBoard."""

import os
import re
from collections.abc import Iterable

import keras
import tensorflow as tf

from macaron_tf.errors import UserError, warn
from macaron_tf.io.plug_ins import clear_errors, find, parse_call


def make_callbacks(
    calls: Iterable[str], profile: str | None, run_dir: str | os.PathLike
) -> list[keras.callbacks.Callback]:
    """Makes the callbacks that the user names by `--callback`, and the `Trace` of `--profile`.

    Such are `mine:Logger` or `mine:Logger(every=10)`, and `START:STOP` with updates counted from 1.
    """
    callbacks: list[keras.callbacks.Callback] = []
    for call in calls:
        name, arguments = parse_call(call)
        callback_class = find(name, keras.callbacks.Callback, trust_code=True)
        with clear_errors(name):
            callbacks.append(callback_class(**arguments))
    if profile is not None:
        match = re.fullmatch(r"(\d+):(\d+)", profile)
        first, last = map(int, match.groups()) if match else (0, 0)
        if not 1 <= first <= last:
            raise UserError(f"--profile {profile} is no range: write START:STOP, as in 10:14")
        callbacks.append(Trace(os.path.join(run_dir, "tensorboard"), first, last))
    return callbacks


class Trace(keras.callbacks.Callback):
    """Callback that writes a profiler trace of the updates `first` to `last` into a folder.

    The trace contains only those of the updates that this session makes. With `steps_per_call`
    above 1, the trace contains whole calls of the graph. The trace comes from JAX's profiler on
    Keras's JAX backend, and otherwise from TensorFlow's profiler.
    """

    def __init__(self, folder: str, first: int, last: int):
        super().__init__()
        self.folder, self.first, self.last = folder, first, last
        self._first_traced: int | None = None
        self._ended = False
        self._start, self._stop = tf.profiler.experimental.start, tf.profiler.experimental.stop
        if keras.backend.backend() == "jax":
            import jax

            self._start, self._stop = jax.profiler.start_trace, jax.profiler.stop_trace

    def on_train_batch_begin(self, batch, logs=None):
        step, is_jax = self.model.step, keras.backend.backend() == "jax"
        steps_per_call = 1 if is_jax else self.model.config.steps_per_call
        if self._first_traced is None and self.first - steps_per_call <= step < self.last:
            self._first_traced = step + 1
            self._start(self.folder)

    def on_train_batch_end(self, batch, logs=None):
        if self._first_traced and not self._ended and self.model.step >= self.last:
            self._end()

    def on_train_end(self, logs=None):
        if self._first_traced is None:
            reason = f"this session made none of these updates (the run is at {self.model.step})"
            warn(f"--profile {self.first}:{self.last} wrote no trace, because {reason}")
        elif not self._ended:
            self._end()

    def _end(self) -> None:
        self._ended = True
        # Wait for the device, which may still compute earlier updates.
        self.model.synchronize()
        int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        self._stop()
        updates = f"updates {self._first_traced} to {self.model.step}"
        print(f"trace of {updates} written: view it with tensorboard --logdir {self.folder}")
