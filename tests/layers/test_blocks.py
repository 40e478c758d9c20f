import numpy as np
import pytest

from macaron_tf.layers import (
    BLOCKS,
    MacaronBlock,
    TiedEmbedding,
    TransformerBlock,
    block_class,
)
from tests.harness import check_layer, normal

OPTIONS = {"num_heads": 2, "feed_forward_dim": 16}
DECODER = {**OPTIONS, "causal": True, "cross_attention": True}


def residuals(block):
    return [residual for _, residual in block._sublayers]


@pytest.mark.parametrize("options", [OPTIONS, DECODER], ids=["encoder", "decoder"])
def test_macaron_is_half_full_half(options):
    """Equations 17-19 of Lu et al.; in the decoder the order of footnote 3."""
    block = MacaronBlock(**options)
    kinds = [kind for kind, _ in block._sublayers]
    steps = [residual.step_size for residual in residuals(block)]
    if block.cross_attention:
        assert kinds == ["channels", "tokens", "memory", "channels"]
        assert steps == [0.5, 1.0, 1.0, 0.5]
    else:
        assert kinds == ["channels", "tokens", "channels"]
        assert steps == [0.5, 1.0, 0.5]
    widths = [r.sublayer.feed_forward_dim for k, r in block._sublayers if k == "channels"]
    assert widths == [8, 8]


def test_macaron_encoder_block_is_equations_17_to_19():
    x, block = normal(2, 5, 8), MacaronBlock(**OPTIONS)
    y = np.asarray(block(x))
    first, attention, second = residuals(block)
    h = x + 0.5 * np.asarray(first.sublayer(first.layer_norm(x)))
    h = h + np.asarray(attention.sublayer(attention.layer_norm(h)))
    h = h + 0.5 * np.asarray(second.sublayer(second.layer_norm(h)))
    np.testing.assert_allclose(y, h, atol=1e-5)


def test_transformer_block_is_attention_then_feed_forward():
    x, block = normal(2, 5, 8), TransformerBlock(**OPTIONS)
    y = np.asarray(block(x))
    attention, feed_forward = residuals(block)
    h = x + np.asarray(attention.sublayer(attention.layer_norm(x)))
    h = h + np.asarray(feed_forward.sublayer(feed_forward.layer_norm(h)))
    np.testing.assert_allclose(y, h, atol=1e-5)


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_no_future_leaks_through_a_causal_block(name):
    x, block = normal(1, 7, 8), block_class(name)(**OPTIONS, causal=True)
    y = np.asarray(block(x))
    for t in range(6):
        changed = x.copy()
        changed[:, t + 1 :] -= 2.0
        np.testing.assert_array_equal(np.asarray(block(changed))[:, : t + 1], y[:, : t + 1])


@pytest.mark.parametrize("name", sorted(BLOCKS))
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_cached_steps_equal_the_whole_sequence(name, norm):
    x, memory = normal(2, 6, 8), normal(2, 4, 8, seed=1)
    memory_mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
    block = block_class(name)(**DECODER, norm=norm)
    whole = np.asarray(block(x, memory=memory, memory_mask=memory_mask))
    context, cache = block.start(memory), block.empty_cache(2, 1, 6)
    for t in range(6):
        y, cache = block.step(x[:, t : t + 1], t, context, cache, memory_mask)
        np.testing.assert_allclose(np.asarray(y)[:, 0], whole[:, t], atol=1e-5)


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_contract(name):
    check_layer(block_class(name)(**OPTIONS, dropout=0.1), normal(2, 3, 8))


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_padding_mask_of_keras_counts(name):
    x, block = normal(2, 4, 8), block_class(name)(**OPTIONS)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    given = np.asarray(block(x, attention_mask=mask))
    # A recurrence passes over padding, so only real positions compare.
    np.testing.assert_array_equal(np.asarray(block(x, mask=mask))[mask], given[mask])


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_masks_of_an_embedding_reach_the_attention(name):
    """Keras hands the mask on by itself, also where a memory is given too."""
    tokens = np.array([[5, 6, 0, 0], [7, 8, 9, 4]])
    embedding = TiedEmbedding(12, 8, mask_zero=True)
    x, memory = embedding(tokens), normal(2, 3, 8)
    encoder, decoder = block_class(name)(**OPTIONS), block_class(name)(**DECODER)
    plain = np.asarray(x)
    real = tokens != 0
    expected = np.asarray(encoder(plain, attention_mask=real))
    np.testing.assert_array_equal(np.asarray(encoder(x))[real], expected[real])
    expected = np.asarray(decoder(plain, memory=memory, attention_mask=real))
    np.testing.assert_array_equal(np.asarray(decoder(x, memory=memory))[real], expected[real])


def test_blocks_hold_equal_matrices():
    # A SwishRNN's two thirds are whole at multiples of 192.
    options = {**DECODER, "feed_forward_dim": 192}
    blocks = [block_class(name)(**options) for name in BLOCKS]
    for block in blocks:
        block.build((None, None, 8), (None, None, 8))
    matrices = [
        sum(int(np.prod(w.shape)) for w in block.weights if len(w.shape) == 2) for block in blocks
    ]
    assert len(set(matrices)) == 1


def test_unknown_block_lists_the_known_ones():
    with pytest.raises(ValueError, match="'transformer'.*'macaron'"):
        block_class("macaroon")
