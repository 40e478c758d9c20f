"""Tests of splitting schemes as text: parsing, and the blocks that schemes define."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from macaron_tf.layers import MacaronBlock, Mix, TransformerBlock, block_class
from macaron_tf.layers.scheme import parse_scheme, scheme_text
from macaron_tf.settings import SettingError
from tests.harness import check_layer, normal, randomized
from tests.toys.marks import slow

MACARON = "channels/2, tokens, channels/2"
OPTIONS = {"num_heads": 2, "feed_forward_dim": 16}
DECODER = {**OPTIONS, "causal": True, "cross_attention": True}


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("tokens, channels", TransformerBlock.scheme),
        (MACARON, MacaronBlock.scheme),
        ("channels/2,tokens,channels step 1/2 width .5", MacaronBlock.scheme),
        ("channels/2 width 1, tokens/2", (Mix("channels", 0.5, 1.0), Mix("tokens", 0.5))),
        ("channels step 1/2, tokens", (Mix("channels", 0.5), Mix("tokens"))),
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
            "tokens, tokens step 1/2 by midpoint again",
            (Mix("tokens"), Mix("tokens", 0.5, solver="midpoint", again=True)),
        ),
        ("tokens & channels", (Mix("tokens"), Mix("channels", beside=True))),
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
        ("(tokens, channels)", r"'\(tokens' is not a valid operator"),
        ("tokens, chanels", "operator='chanels' must be one of 'tokens', 'memory', 'channels'"),
        ("tokens, channels step 0", "step size 0 of channels has no effect"),
        ("tokens width 1/2", "tokens cannot have a width: leave width"),
        ("tokens/0", "1/0 is not a number"),
        ("2 x (channels)", "lets no position see another: add tokens"),
        ("0 x (tokens)", "0 x 1 operators: give 1 to 100"),
        ("2 x (99 x tokens)", "198 operators are too many: give at most 100"),
        ("tokens by huen", "solver='huen' must be one of 'euler', 'midpoint', 'heun', 'rk4'"),
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


@pytest.mark.parametrize(
    ("scheme", "extra"),
    [
        (MACARON, 0),
        ("tokens, 4 x channels/4", 0),
        ("channels width 1/3, tokens, channels width 2/3", 0),
        ("channels/2 width 1, tokens, channels/2 width 1", 2 * 8 * 48),
        ("tokens/2, channels, tokens/2", 4 * 8 * 8),
    ],
)
def test_shares_that_add_up_to_one_count_the_same_matrices(scheme, extra):
    def matrices(scheme):
        block = TransformerBlock(num_heads=2, feed_forward_dim=48, scheme=scheme)
        block.build((None, None, 8))
        return sum(ops.size(weight) for weight in block.weights if len(weight.shape) == 2)

    assert matrices(scheme) - matrices(None) == extra
