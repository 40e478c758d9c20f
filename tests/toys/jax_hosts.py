"""Trains a small network on the JAX backend as one of the processes in TF_CONFIG.

    KERAS_BACKEND=jax python -m tests.toys.jax_hosts JOB [JOB ...]

JOB is RUN:MESH:STEP. Without TF_CONFIG there is one process. The run is interrupted after update
STEP without a last checkpoint; 0 trains to the end, and -1 trains without end. If RUN exists, it is
resumed.
"""

import contextlib
import dataclasses
import itertools
import os
import sys

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.distribution import read_cluster
from macaron_tf.distribution.hosts import join_hosts
from macaron_tf.distribution.mesh import parse_mesh, use_mesh
from macaron_tf.models import EncoderConfig, LanguageModel
from macaron_tf.training import build_fit_model, train
from tests.toys.jax_systems import CONFIG, objective
from tests.toys.training import SIGNATURE, StopAt, killed

STEPS = dataclasses.replace(CONFIG, max_steps=8, validate_every=4, save_every_steps=3)


def batches(start: int, stop: int | None = None) -> tf.data.Dataset:
    """Returns alternating batches of 4 and 3 rows; no mesh divides 3 rows evenly."""

    def batch(index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(index)
        ids = rng.integers(1, 16, (4 - index % 2, 5), dtype=np.int32)
        return {"source": ids, "target": ids}

    numbers = itertools.count(start) if stop is None else range(start, stop)
    return tf.data.Dataset.from_generator(lambda: map(batch, numbers), output_signature=SIGNATURE)


def judge(model, step):
    metrics = model.evaluate(batches(1000, 1002), return_dict=True, verbose=0)
    return {"loss": metrics["loss"]}


def run(folder: str, mesh: str, stop: int) -> None:
    use_mesh(parse_mesh(mesh))
    keras.utils.set_random_seed(CONFIG.seed)
    shape = EncoderConfig(16, 8, 24, 2, 1, causal=True, norm="pre", dropout=0.1)
    network = LanguageModel(shape)
    network.build()
    config = dataclasses.replace(STEPS, max_steps=10**6) if stop < 0 else STEPS
    model = build_fit_model(network, objective, config)
    with contextlib.suppress(KeyboardInterrupt):
        train(model, batches, folder, judge, callbacks=[StopAt(stop, killed)])


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        join_hosts(*read_cluster())
    for job in sys.argv[1:]:
        folder, mesh, stop = job.split(":")
        run(folder, mesh, int(stop))
