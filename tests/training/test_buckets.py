"""A run that lives in a bucket, of which TensorFlow's file system in memory stands in for one."""

import contextlib
import dataclasses

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.io import paths as storage
from macaron_tf.training.checkpoints import (
    CheckpointDirectory,
    average_checkpoints,
    last_checkpoints,
)
from macaron_tf.training.progress import read_lines
from macaron_tf.training.state import load_network
from tests import ram_paths
from tests.training.test_train import CONFIG, StopAt, run
from tests.training.training_toy import toy_network

SHORT = dataclasses.replace(
    CONFIG, max_steps=4, log_every=1, validate_every=2, save_every_steps=1, keep_last=2
)


def killed():
    raise KeyboardInterrupt("stands for kill -9: nothing is saved")


def test_a_run_in_a_bucket_goes_on_to_the_bit(tmp_path):
    bucket = ram_paths.folder(tmp_path)
    with contextlib.suppress(KeyboardInterrupt):
        run(bucket, SHORT, callbacks=[StopAt(3, killed)])
    directory = CheckpointDirectory(bucket)
    assert directory.steps() == [1, 2]
    assert directory.best()["step"] == 2
    # The uploading of the next one was broken off.
    manifest = directory.of_step(3) / "manifest.json"
    storage.write_aside(directory.of_step(3) / "model.weights.h5", b"half")
    assert not manifest.exists()
    result, model = run(bucket, SHORT)
    assert (result.step, result.reason) == (4, "max_steps")
    assert str(result.checkpoint) == f"{bucket}/checkpoints/step-00000004"
    _, expected = run(tmp_path, SHORT)
    for ours, theirs in zip(model.network.weights, expected.network.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    metrics = storage.read_bytes(f"{bucket}/metrics.jsonl")
    assert metrics == (tmp_path / "metrics.jsonl").read_bytes()
    assert [line["step"] for line in read_lines(f"{bucket}/timing.jsonl")] == [1, 2, 3, 4]
    assert tf.io.gfile.glob(f"{bucket}/tensorboard/validation/events*")
    assert directory.steps() == CheckpointDirectory(tmp_path).steps()
    assert directory.best() == CheckpointDirectory(tmp_path).best()


def test_an_average_in_a_bucket(tmp_path):
    bucket = ram_paths.folder(tmp_path)
    run(bucket, SHORT)
    keras.utils.set_random_seed(3)
    network, expected = toy_network(), []
    sources = last_checkpoints(bucket, 2)
    averaged = average_checkpoints(sources, f"{bucket}/average")
    for source in sources:
        load_network(source, network, "", average=False)
        expected.append([weight.numpy().astype(np.float64) for weight in network.weights])
    assert load_network(averaged, network, "")["averaged_steps"] == [3, 4]
    for weight, values in zip(network.weights, zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(weight, np.mean(values, axis=0).astype(np.float32))
