"""Tests of the counted FLOPs against closed formulas, on TensorFlow and JAX."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from macaron_tf.training import build_fit_model, train
from macaron_tf.training.flops import UpdateCost, _peak, forward_flops, update_cost
from macaron_tf.training.progress import read_lines
from tests.toys import training as toys
from tests.toys.flops import CASES, wrong


@pytest.mark.parametrize("case", CASES)
def test_counts_equal_the_formulas(case):
    assert not wrong(case)


@pytest.mark.thorough
def test_counts_on_jax_equal_the_formulas():
    command = [sys.executable, "-m", "tests.toys.flops"]
    env = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


def test_convolutions_and_branches():
    kernel, depthwise = tf.ones((3, 4, 6)), tf.ones((3, 1, 4, 1))

    def function(x):  # (2, 9, 4)
        y = tf.nn.conv1d(x, kernel, 1, "SAME")
        z = tf.nn.depthwise_conv2d(x[:, :, None], depthwise, (1, 1, 1, 1), "SAME")[:, :, 0]
        longer = lambda: tf.einsum("...e,de->...d", y, tf.ones((4, 6)))  # noqa: E731
        return tf.cond(tf.reduce_sum(x) > 0, lambda: z, longer)

    count = 2 * 2 * 9 * (3 * 4 * 6 + 3 * 4 + 6 * 4)
    assert forward_flops(function, tf.TensorSpec((2, 9, 4))) == count


def test_a_loop_that_ends_by_the_data_has_no_count():
    def halved(x):
        small = lambda x: tf.reduce_sum(x) > 1  # noqa: E731
        return tf.while_loop(small, lambda x: [x @ x / 2], [x], maximum_iterations=9)

    assert forward_flops(halved, tf.TensorSpec((3, 3))) is None
    assert forward_flops(lambda x: x @ x, tf.TensorSpec((None, None))) is None


def test_the_log_has_the_flops_of_an_update_and_of_a_token(tmp_path, capsys):
    network = toys.toy_network()
    model = build_fit_model(network, toys.toy_objective, toys.CONFIG)
    model.cost = update_cost(model, toys.toy_objective, toys.toy_dataset())
    # Two micro-batches of 2 x 5 tokens, three times the forward pass; a CPU's peak is not known.
    count = 2 * 3 * 2 * 10 * (8 * 8 + 8 * toys.VOCABULARY)
    assert model.cost == UpdateCost(count, None)
    model.cost = UpdateCost(count, 1e12)
    train(model, toys.toy_dataset, tmp_path)
    metrics = read_lines(tmp_path / "metrics.jsonl")
    lines = read_lines(tmp_path / "timing.jsonl")
    for line, metric in zip(lines, metrics, strict=True):
        assert line["flops_per_update"] == count and 0 < line["mfu"] < 1
        assert line["flops_per_token"] == pytest.approx(count / metric["tokens"])
    shown = capsys.readouterr().out
    assert shown.count("MFLOP a token") == 1
    assert f"training takes {lines[0]['flops_per_token'] / 1e6:,.4g} MFLOP a token" in shown
    assert shown.count("tok/s  MFU 0%") == len(lines)


def test_peaks_are_those_of_the_named_devices(monkeypatch):
    for name, peak in (
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("NVIDIA H100 PCIe", None),
    ):
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu"])
        details = lambda gpu, name=name: {"device_name": name}  # noqa: E731
        monkeypatch.setattr(tf.config.experimental, "get_device_details", details)
        assert _peak() == peak
