"""Random weights and comparison, shared by tests against other libraries."""

import numpy as np

from tests.harness import numpy_of


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
