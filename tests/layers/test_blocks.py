"""Tests of Euler steps, of the blocks that consist of them, and of schemes as text."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from macaron_tf import layers
from macaron_tf.layers import MacaronBlock, Mix, TransformerBlock, block_class
from macaron_tf.layers.scheme import parse_scheme, scheme_text
from macaron_tf.models import Encoder, EncoderConfig
from macaron_tf.settings import SettingError
from tests.harness import built, check_layer, check_saved, ids, normal, randomized, rejects
from tests.toys.marks import slow


def layer_norm(x, epsilon=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def test_dropout_comes_before_the_step_size_and_spares_the_skip():
    x = normal(4, 50, 8)
    identity = layers.Residual(keras.layers.Identity(), step_size=0.5, dropout=0.25, norm="pre")
    change = np.asarray(identity(x, training=True)) - x
    scale = np.divide(change, layer_norm(x))
    kept = np.abs(scale) > 1e-3
    np.testing.assert_allclose(scale[kept], 0.5 / 0.75, rtol=1e-2)
    assert 0.70 < kept.mean() < 0.80
    np.testing.assert_allclose(np.asarray(identity(x)) - x, 0.5 * layer_norm(x), atol=1e-5)


OPTIONS = {"num_heads": 2, "feed_forward_dim": 16}
DECODER = {**OPTIONS, "causal": True, "cross_attention": True}


POST = {**OPTIONS, "norm": "post", "rnn_step_size": 2}
BARE = {**OPTIONS, "norm": "none"}
TOKENS, HALF = ("tokens", 1.0), ("channels", 0.5)


@pytest.mark.parametrize(
    ("kind", "options", "steps"),
    [
        # Equations 17-19 of Lu et al.; the decoder has the order of footnote 3.
        (layers.MacaronBlock, OPTIONS, [HALF, TOKENS, HALF]),
        (layers.MacaronBlock, DECODER, [HALF, TOKENS, ("memory", 1.0), HALF]),
        (layers.TransformerBlock, OPTIONS, [TOKENS, ("channels", 1.0)]),
        (layers.SwishRNNBlock, POST, [TOKENS, ("channels", 1.0)]),
        (layers.MacaronBlock, BARE, [HALF, TOKENS, HALF]),
    ],
)
def test_a_block_is_its_euler_steps(kind, options, steps):
    x, memory, block = normal(2, 5, 8), normal(2, 3, 8, seed=1), kind(**options)
    y = np.asarray(block(x, memory=memory) if block.cross_attention else block(x))
    assert [(operator, residual.step_size) for operator, residual in block.sublayers] == steps
    h = x
    for operator, residual in block.sublayers:
        given = [memory] if operator == "memory" else []
        assert (residual.layer_norm is None) == (options is BARE)
        norm = residual.layer_norm or np.asarray
        if options is POST:
            h = norm(h + residual.step_size * np.asarray(residual.sublayer(h, *given)))
        else:
            h = h + residual.step_size * np.asarray(residual.sublayer(norm(h), *given))
        if operator == "channels" and kind is layers.MacaronBlock:
            assert residual.sublayer.config.feed_forward_dim == 8
        if operator == "channels" and options is POST:
            assert isinstance(residual.sublayer, layers.SwishRNN)
            assert residual.sublayer.step_size == 2
    np.testing.assert_allclose(y, np.asarray(h), atol=1e-5)


@pytest.mark.parametrize("name", sorted(layers.BLOCKS))
def test_masks_of_an_embedding_reach_the_token_mixer(name):
    """The token mixer uses the mask that Keras attaches to embeddings, also with a memory."""
    tokens = np.array([[5, 6, 0, 0], [7, 8, 9, 4]])
    embedding = keras.layers.Embedding(12, 8, mask_zero=True)
    x, memory = embedding(tokens), normal(2, 3, 8)
    encoder, decoder = layers.block_class(name)(**OPTIONS), layers.block_class(name)(**DECODER)
    plain = np.asarray(x)
    real = tokens != 0
    expected = np.asarray(encoder(plain, mask=real))
    np.testing.assert_array_equal(encoder(plain, padding_mask=np.int32(real)), expected)
    np.testing.assert_array_equal(np.asarray(encoder(x))[real], expected[real])
    expected = np.asarray(decoder(plain, memory=memory, mask=real))
    np.testing.assert_array_equal(np.asarray(decoder(x, memory=memory))[real], expected[real])


@pytest.mark.parametrize("name", sorted(layers.BLOCKS))
def test_a_memory_is_attended_but_for_its_padding(name):
    x, memory, block = normal(2, 3, 8), normal(2, 4, 8, seed=1), layers.block_class(name)(**DECODER)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    y = np.asarray(block(x, memory=memory, memory_mask=mask))
    hidden, seen = memory.copy(), memory.copy()
    hidden[0, 2:] -= 2.0
    seen[0, :2] -= 2.0
    np.testing.assert_array_equal(block(x, memory=hidden, memory_mask=mask), y)
    assert np.abs(np.asarray(block(x, memory=seen, memory_mask=mask))[0] - y[0]).max() > 1e-3


SHARED = {"attention": ("tokens",), "feed_forward": ("channels",), "all": ("tokens", "channels")}


@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("name", sorted(layers.BLOCKS))
def test_shared_sublayers_are_one(name, sharing, tmp_path):
    dropouts = {"dropout": 0.1, "activation_dropout": 0.1}
    config = EncoderConfig(20, 8, 16, 2, 2, block=name, sharing=sharing, **dropouts)
    encoder = built(Encoder, config, noise=0.5)
    stack, [first, second] = encoder.stack, encoder.stack.blocks
    kept = []
    for (operator, ours), (_, theirs) in zip(second.sublayers, first.sublayers, strict=True):
        assert (ours is theirs) == (operator in SHARED[sharing])
        if ours is not theirs:
            kept.append(ours)
    own = sum(residual.count_params() for residual in kept)
    assert stack.count_params() == first.count_params() + own
    # Dropout seeds are counted once too, so no replaced sub-layer is left.
    count = len(first.variables) + sum(len(residual.variables) for residual in kept)
    assert len(stack.variables) == len({id(variable) for variable in stack.variables}) == count
    x = normal(2, 5, 8)
    y = np.asarray(stack(x))
    np.testing.assert_array_equal(y, second(first(x)))
    if sharing == "all":
        np.testing.assert_array_equal(y, first(first(x)))
    check_saved(encoder, {"token_ids": ids(2, 5)}, tmp_path)


def test_what_cannot_be_shared_is_refused():
    block = layers.TransformerBlock(**OPTIONS)
    wider = layers.TransformerBlock(num_heads=2, feed_forward_dim=32)
    rejects("differs between", block.share, wider, ("channels",))
    block.share(wider, ("tokens",))
    rejects("differs between", block.share, layers.block_class("gmlp")(**OPTIONS))
    rejects("operators='attention'", block.share, wider, ("attention",))


MACARON = "channels/2, tokens, channels/2"


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("tokens, channels", TransformerBlock.scheme),
        ("channels/2,tokens,channels step 1/2 width .5", MacaronBlock.scheme),
        ("channels step 1/2, tokens/2", (Mix("channels", 0.5), Mix("tokens", 0.5))),
        ("tokens, 2 x channels/4", (Mix("tokens"), *[Mix("channels", 0.25, 0.25)] * 2)),
        ("2x(tokens, channels)", TransformerBlock.scheme * 2),
        ("2 x (memory, 2 x (tokens))", (Mix("memory"), *[Mix("tokens")] * 2) * 2),
        ("tokens step -1.7024", (Mix("tokens", -1.7024),)),
        (
            "channels/2 width 1 by heun, tokens by rk4, channels/2 again",
            (
                Mix("channels", 0.5, solver="heun"),
                Mix("tokens", solver="rk4"),
                Mix("channels", 0.5, again=True),
            ),
        ),
        (
            "channels/2 with gelu_tanh by heun, tokens",
            (Mix("channels", 0.5, 0.5, "heun", activation="gelu_tanh"), Mix("tokens")),
        ),
        (
            "2 x (tokens&channels/2 by heun), channels again & memory",
            (
                *[Mix("tokens"), Mix("channels", 0.5, 0.5, "heun", beside=True)] * 2,
                *[Mix("channels", again=True), Mix("memory", beside=True)],
            ),
        ),
    ],
)
def test_a_text_is_a_scheme(text, scheme):
    assert parse_scheme(text) == scheme
    assert parse_scheme(scheme_text(scheme)) == scheme


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not a valid operator: write terms such as"),
        ("tokens, chanels", "operator='chanels' must be one of 'tokens', 'memory', 'channels'"),
        ("tokens, channels step 0", "step size 0 of channels has no effect"),
        ("tokens width 1/2", "tokens cannot have a width: leave width"),
        ("2 x (channels)", "lets no position see another: add tokens"),
        ("2 x (99 x tokens)", "198 operators are too many: give at most 100"),
        ("tokens again, channels", "'tokens again' repeats nothing earlier"),
        ("tokens with relu, channels", "tokens take no activation: omit 'with"),
        ("tokens, channels with reluu", "activation function identifier: reluu"),
        ("tokens & 2 x channels", "& cannot join a repeat .* write each operator out"),
        ("tokens, channels/64", "has no channel: raise feed_forward_dim"),
    ],
)
def test_a_wrong_text_is_one_sentence(text, sentence):
    with pytest.raises(SettingError, match=sentence) as caught:
        MacaronBlock(**OPTIONS, scheme=text)
    assert str(caught.value).startswith(f"scheme={text!r} ")


def test_a_recurrence_alone_sees_the_positions_before():
    block = block_class("swish_rnn")(**OPTIONS, scheme="channels", causal=True)
    x = normal(1, 5, 8)
    y = block(x)
    changed = np.concatenate([-x[:, :1], x[:, 1:]], axis=1)
    assert np.abs(block(changed) - y)[:, 1:].max(axis=(0, 2)).min() > 0
    changed = np.concatenate([x[:, :-1], -x[:, -1:]], axis=1)
    np.testing.assert_allclose(block(changed)[:, :-1], y[:, :-1], rtol=1e-6)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("tokens/2, channels, tokens/2", "t/2 m/2 c t/2 m/2"),
        (MACARON, "c/2 t m c/2"),
        ("channels/2, tokens, memory, channels/2", "c/2 t m c/2"),
        ("tokens, channels/2, memory step 1/2, channels/2", "t c/2 m/2 c/2"),
        ("memory, 2 x (tokens)", "m t t"),
        ("channels/2, tokens & channels/2", "c/2 t&m&c/2"),
        ("tokens & channels, memory", "t&c m"),
        ("channels, memory & tokens, memory/2 & tokens/2 & channels", "c m&t m/2&t/2&c"),
    ],
)
def test_memory_follows_tokens_or_stands_where_it_is_named(scheme, expected):
    def shown(block):
        steps = {1.0: "", 0.5: "/2"}
        names = [[f"{kind[0]}{steps[r.step_size]}" for kind, r in step] for step in block.steps]
        return " ".join("&".join(step) for step in names)

    block = TransformerBlock(**DECODER, scheme=scheme)
    assert shown(block) == expected
    assert all(len({id(one.layer_norm) for _, one in step}) == 1 for step in block.steps)
    plain = [[one for one in step.split("&") if one[0] != "m"] for step in expected.split()]
    without = " ".join("&".join(step) for step in plain if step)
    assert shown(TransformerBlock(**OPTIONS, scheme=scheme)) == without
    decoder = TransformerBlock(**DECODER, scheme=scheme)
    check_layer(decoder, normal(2, 5, 8), normal(2, 4, 8, seed=1))


def heun(f, x, h):
    slope = f(x)
    return x + h / 2 * (slope + f(x + h * slope))


def runge_kutta(f, x, h):
    k1 = f(x)
    k2 = f(x + h / 2 * k1)
    k3 = f(x + h / 2 * k2)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + f(x + h * k3))


EULER, MIDPOINT = (lambda f, x, h: x + h * f(x)), (lambda f, x, h: x + h * f(x + h / 2 * f(x)))


@pytest.mark.parametrize("norm", ["pre", *slow("post")])
@pytest.mark.parametrize(
    ("scheme", "steps"),
    [
        (
            "tokens/2, channels step -1/4 width 1/2, tokens step 3",
            [[(0, EULER, 0.5)], [(1, EULER, -0.25)], [(2, EULER, 3.0)]],
        ),
        (
            "channels/2 width 1 by heun, tokens by midpoint, channels/2 by rk4 again",
            [[(0, heun, 0.5)], [(1, MIDPOINT, 1.0)], [(0, runge_kutta, 0.5)]],
        ),
        (
            "2 x (tokens by heun, channels step 1/4), tokens again",
            [
                *([(0, heun, 1.0)], [(1, EULER, 0.25)], [(2, heun, 1.0)], [(3, EULER, 0.25)]),
                [(2, EULER, 1.0)],
            ],
        ),
        (
            "tokens & channels/2 by heun, channels again & tokens step -1/4 & channels/2",
            [
                [(0, EULER, 1.0), (1, heun, 0.5)],
                [(1, EULER, 1.0), (3, EULER, -0.25), (4, EULER, 0.5)],
            ],
        ),
    ],
)
def test_a_scheme_is_its_solvers_steps(scheme, steps, norm):
    """A scheme's output and gradients equal explicitly written solver steps, also under XLA."""
    x = normal(2, 5, 8)
    block = randomized(TransformerBlock(**OPTIONS, norm=norm, scheme=scheme), x.shape)

    def written_out(h):
        for branches in steps:
            moved = 0.0
            for weights, solver, step_size in branches:
                residual = block.sublayers[weights][1]
                before = residual.layer_norm if norm == "pre" else ops.copy
                moved += solver(lambda y: residual.sublayer(before(y)), h, step_size) - h  # noqa: B023
            ends = block.sublayers[branches[0][0]][1].layer_norm if norm == "post" else ops.copy
            h = ends(h + moved)
        return h

    def slopes(call):
        with tf.GradientTape() as tape:
            y = call(x)
            loss = ops.sum(ops.tanh(y))
        return [y, *tape.gradient(loss, block.trainable_weights)]

    expected = slopes(written_out)
    for found in (slopes(block), tf.function(lambda: slopes(block), jit_compile=True)()):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)
    distinct = {number for branches in steps for number, *_ in branches}
    kernels = [w for w in block.weights if "kernel" in w.path]
    assert len(kernels) == 2 * len(distinct)  # each sub-layer has two matrices


@pytest.mark.parametrize("name", ["transformer", "macaron", "swish_rnn", "gmlp"])
def test_every_block_takes_a_scheme(name):
    layer = block_class(name)(**OPTIONS, scheme="channels/2, tokens/2, channels, tokens/2")
    check_layer(layer, normal(2, 5, 8))
    assert [kind for kind, _ in layer.sublayers] == ["channels", "tokens", "channels", "tokens"]
