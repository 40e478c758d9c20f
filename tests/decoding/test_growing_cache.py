"""A cache that grows gives what a cache of fixed size gives, in eager code, a graph and XLA."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.decoding import BeamSearchConfig, SamplingConfig, translate_ids
from macaron_tf.decoding.beam_search import loop_shapes
from macaron_tf.models import catalog
from tests.harness import ids


@pytest.fixture(scope="module")
def model():
    model = catalog.build(
        "macaron_tiny",
        vocab_size=24,
        hidden_dim=16,
        feed_forward_dim=32,
        num_encoder_layers=1,
        num_decoder_layers=2,
    )
    rng = np.random.default_rng(0)
    model.set_weights([w + rng.normal(0, 0.4, w.shape) for w in model.get_weights()])
    return model


def source():
    rows = ids(4, 6)
    rows[1, 4:] = 0
    return tf.constant(rows)


def test_cached_steps_of_a_growing_cache_equal_the_whole_model(model):
    rows, target = source(), ids(4, 5, seed=1)
    whole = np.asarray(model({"source": rows, "target": target}, training=False))
    context, cache = model.start(rows, 2)
    for t in range(5):
        tokens = tf.repeat(target[:, t : t + 1], 2, axis=1)
        logits, cache = model.step(tokens, t, context, cache)
        np.testing.assert_allclose(logits[:, 0], whole[:, t], atol=1e-5)
        np.testing.assert_allclose(logits[:, 1], whole[:, t], atol=1e-5)
    assert {x.shape[3] for x in tf.nest.flatten(cache)} == {5}


@pytest.mark.parametrize("search", ["beam", "sampling"])
def test_searches_agree_with_fixed_and_growing_caches(model, search):
    if search == "beam":
        config = BeamSearchConfig(n_best=4, max_length=9)
        decode = lambda rows: translate_ids(model, rows, config)  # noqa: E731
    else:
        config = SamplingConfig(temperature=0.0, num_samples=2, max_length=9)
        decode = lambda rows: translate_ids(model, rows, config, seed=0)  # noqa: E731
    dynamic = [tf.TensorSpec((None, None), tf.int32)]
    growing = tf.function(decode, input_signature=dynamic)(source())
    fixed = tf.function(decode)(source())
    compiled = tf.function(decode, jit_compile=True)(source())
    for other in (fixed, compiled):
        np.testing.assert_array_equal(growing["ids"], other["ids"])
        np.testing.assert_allclose(growing["log_probs"], other["log_probs"], atol=1e-4)


def test_only_an_axis_that_starts_empty_may_vary():
    shapes = loop_shapes({"grows": tf.zeros((2, 3, 0, 4)), "stays": tf.zeros((2,))})
    assert shapes["grows"].as_list() == [2, 3, None, 4]
    assert shapes["stays"].as_list() == [2]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_xla_updates_a_fixed_cache_only_where_it_compiles_the_rest(model, jit_compile):
    @tf.function(jit_compile=jit_compile)
    def step(rows):
        context, cache = model.start(rows, 2, 5)
        return model.step(tf.zeros((4, 2), tf.int32), 3, context, cache)

    graph = step.get_concrete_function(tf.TensorSpec((4, 6), tf.int32)).graph
    found = any(operation.type.startswith("Xla") for operation in graph.get_operations())
    assert found == jit_compile
