"""JAX device meshes shard weights along the axes that layers declare."""

import json
import pathlib

import keras
import pytest

from macaron_tf.variables import declare, spec_of
from tests import walk
from tests.harness import rejects
from tests.toys.processes import on_jax, python


@pytest.mark.slow
def test_a_block_of_ones_own_is_cut_as_ours_are(tmp_path):
    pytest.importorskip("jax")
    walk.write_modules(tmp_path, pathlib.Path("docs/own_block.md").read_text())
    environment = {**on_jax(), "PYTHONPATH": str(tmp_path)}
    weights, moments = json.loads(python("-m", "tests.toys.own_block", **environment))
    assert weights == {
        "own/attention_0/attention/query_key_value/kernel": [None, "model"],
        "own/attention_0/attention/query_key_value/bias": ["model"],
        "own/attention_0/attention/output/kernel": ["model", None],
        "own/feed_forward_1/gates/both/kernel": [None, "model"],
        "own/feed_forward_1/gates/biases": [None, "model"],
        "own/feed_forward_1/gates/last/kernel": ["model", None],
    }
    assert sorted(map(str, moments.values())) == sorted(2 * [*map(str, weights.values())])


def test_axes_must_name_each_dimension():
    kernel = keras.Variable([[1.0, 2.0]], name="kernel")
    rejects(r"must name .* dimensions of kernel", declare, kernel, ("embed",))
    assert spec_of(kernel).axes == (None, None)
