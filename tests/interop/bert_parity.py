"""Sizes, inputs, random weights and checks, shared by comparisons with other libraries' models."""

import numpy as np
import tensorflow as tf

from macaron_tf.decoding import BeamSearchConfig, translate_ids
from tests.harness import numpy_of

# 44 tokens: 4 rows of a table of 48 are nobody's.
VOCAB, WIDTH, INNER, HEADS, LAYERS, LENGTH, SEGMENTS = 44, 32, 64, 4, 2, 16, 3
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b", "##c"]
WORDS += [f"word{i}" for i in range(VOCAB - len(WORDS))]
SETTINGS = {
    "vocab_size": 48,
    "hidden_dim": WIDTH,
    "feed_forward_dim": INNER,
    "num_heads": HEADS,
    "num_layers": LAYERS,
    "max_length": LENGTH,
    "num_segments": SEGMENTS,
}


def inputs() -> dict[str, np.ndarray]:
    """Pairs of segments in rows of 4 lengths, padded: `(5, 13)` ids and segments."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, VOCAB, (5, 13)).astype("int32")
    segments = np.zeros_like(tokens)
    for row, length in enumerate((13, 9, 2, 12, 9)):
        tokens[row, 0] = 2
        tokens[row, length:] = 0
        segments[row, length // 2 : length] = 1 + row % 2
    return {"token_ids": tokens, "segment_ids": segments}


def noise(seed: int, shape) -> np.ndarray:
    """Numbers to add to a weight, so that no bias is 0 and no LayerNorm the identity."""
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype("float32")


def save_random(kind, config, directory):
    """Their PyTorch model of a class and configuration, with random weights, saved."""
    import torch

    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for seed, weight in enumerate(model.parameters()):
            weight.add_(torch.tensor(noise(seed, weight.shape)))
    model.save_pretrained(directory)
    return model


def check_equal(ours, theirs) -> None:
    """Two float arrays of some size, equal to 1e-5."""
    theirs = np.asarray(theirs)
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(numpy_of(ours), theirs, atol=1e-5, rtol=0)


def check_hidden(model, theirs) -> np.ndarray:
    """Compares the real positions' hidden states; returns ours `(B, L, D)`."""
    batch = inputs()
    hidden = numpy_of(model.encoder(batch, training=False))
    real = batch["token_ids"] != 0
    check_equal(hidden[real], np.asarray(theirs)[real])
    return hidden


def check_masked_logits(model, hidden, theirs) -> None:
    """Compares the scores of all real positions; nobody's tokens are never predicted."""
    real = inputs()["token_ids"] != 0
    logits = numpy_of(model.masked_logits(hidden))
    check_equal(logits[..., :VOCAB][real], np.asarray(theirs)[real])
    assert (logits[..., VOCAB:] < -9_000).all()


def check_greedy(ours, source, their_logits, length) -> None:
    """Compares our cached greedy search with the argmax of their whole model at every step.

    PAD and BOS are never taken; at the limit ours must end and theirs just stops.

    Args:
        their_logits: of source and target, our ids, `(B, T, V)` scores of our ids.
    """
    config = BeamSearchConfig(beam_size=1, max_length_ratio=0.0, max_length_offset=length)
    found = translate_ids(ours, tf.constant(source), config)["ids"].numpy()[:, 0]
    taken = np.full((len(source), 1), 2)
    for _ in range(length - 1):
        scores = their_logits(source, taken)[:, -1]
        scores[:, [0, 2]] = -np.inf
        taken = np.concatenate([taken, scores.argmax(-1)[:, None]], axis=1)
    for our_row, their_row in zip(found, taken[:, 1:], strict=True):
        count = np.count_nonzero(our_row)
        assert our_row[count - 1] == 3
        shared = min(count, length - 1)
        np.testing.assert_array_equal(our_row[:shared], their_row[:shared])
        assert count == length or their_row[shared - 1] == 3
