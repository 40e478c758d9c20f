"""Sizes, inputs, random weights and checks, shared by comparisons with other libraries' models."""

import numpy as np

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
