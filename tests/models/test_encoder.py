import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.layers.mixer import Context
from macaron_tf.models import (
    Encoder,
    EncoderClassifier,
    EncoderConfig,
    PretrainingEncoder,
    Stack,
    catalog,
)
from tests.harness import check_saved, ids, normal, numpy_of

FAMILIES = ("bert", "bert_rab", "swish_rnn", "macaron_bert")


def tiny(family, **overrides):
    return catalog.config(f"{family}_tiny", **{"vocab_size": 24, "dropout": 0.0, **overrides})


def built(model):
    model.build()
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_padding_changes_no_real_position(family, positions):
    model = built(Encoder(tiny(family, positions=positions)))
    tokens = ids(3, 9)
    alone = numpy_of(model({"token_ids": tokens[1:2, :5]}))
    tokens[1, 5:] = 0
    together = numpy_of(model({"token_ids": tokens}))
    np.testing.assert_allclose(together[1, :5], alone[0], atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_dynamic_lengths_need_no_new_trace(family):
    model = built(Encoder(tiny(family)))
    traces = []

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
    def encode(tokens):
        traces.append(tokens.shape)
        return model({"token_ids": tokens})

    for length in (2, 4, 9):
        expected = numpy_of(model({"token_ids": ids(2, length)}))
        np.testing.assert_allclose(encode(ids(2, length)), expected, atol=1e-5)
    assert len(traces) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_the_same_one(family, tmp_path):
    inputs, config = {"token_ids": ids(2, 7)}, tiny(family)
    check_saved(built(PretrainingEncoder(config, sentence_pair=True)), inputs, tmp_path)
    check_saved(built(EncoderClassifier(config, 3)), inputs, tmp_path)


def test_segments_count_and_are_0_by_default():
    model, tokens = built(Encoder(tiny("bert"))), ids(2, 7)
    plain = numpy_of(model({"token_ids": tokens}))
    zeros = {"token_ids": tokens, "segment_ids": np.zeros_like(tokens)}
    np.testing.assert_array_equal(numpy_of(model(zeros)), plain)
    ones = {"token_ids": tokens, "segment_ids": np.ones_like(tokens)}
    assert np.abs(numpy_of(model(ones)) - plain).max() > 1e-3


def test_a_longer_row_than_the_learned_positions_is_refused():
    model = built(Encoder(tiny("bert", max_length=4)))
    with pytest.raises(ValueError, match="5 positions is longer than the 4"):
        model({"token_ids": ids(1, 5)})


def test_one_step_size_may_be_given_alone():
    config = EncoderConfig(8, 8, 192, 2, 2, block="swish_rnn", rnn_step_sizes=2)
    assert config.rnn_step_sizes == (2,)
    assert EncoderConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


@pytest.mark.parametrize("relative_bias", ["shared", "per_layer"])
@pytest.mark.parametrize("room", [None, 6])
def test_cached_decoding_adds_the_relative_bias(relative_bias, room):
    config = EncoderConfig(
        8, 8, 16, 2, 2, block=("transformer", "macaron"), scaled=False, relative_bias=relative_bias
    )
    stack, x = Stack(config, 2, causal=True), normal(2, 5, 8)
    stack.build(x.shape)
    for bias in stack.biases:
        bias.table.assign(normal(*bias.table.shape))
    whole = np.asarray(stack(x))
    cache = stack.init_cache(2, 1, room)
    for t in range(5):
        y, cache = stack.mix(x[:, t], Context(index=None if room is None else t), cache)
        np.testing.assert_allclose(np.asarray(y), whole[:, t], atol=1e-5)


def test_without_what_only_bert_has():
    """No LayerNorm after the embeddings, root mean squares, no biases, wide heads, gates."""
    config = EncoderConfig(
        20, 8, 16, 2, 2, norm="pre", norm_type="rms", embedding_norm=False, use_bias=False,
        head_dim=6, gated=True, scaled=False, causal=True, num_segments=0,
    )  # fmt: skip
    encoder = Encoder(config)
    encoder.build()
    names = {weight.path.split("/", 1)[1].split("/")[-1] for weight in encoder.weights}
    assert names == {"table", "scale", "kernel"}
    # Tables of 20 tokens and 512 positions; norms; Q, K, V and output of 2 x 6; gated 3 x 8 x 16.
    assert encoder.count_params() == 532 * 8 + 5 * 8 + 2 * (4 * 8 * 12 + 3 * 8 * 16)


def test_scaled_outputs_start_narrower_by_the_root_of_the_sublayers():
    config = EncoderConfig(20, 64, 256, 2, 4, scaled_outputs=True)
    encoder = Encoder(config)
    encoder.build()
    block = encoder.stack.blocks[0]
    first = np.asarray(block.feed_forward_1.sublayer.inner.kernel).std()
    last = np.asarray(block.feed_forward_1.sublayer.outer.kernel).std()
    # 4 layers of 2 sub-layers; 16,384 draws: 1% is two standard errors.
    assert abs(first / last / 8**0.5 - 1) < 0.03
