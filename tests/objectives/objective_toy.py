"""Tiny models, batches and losses in NumPy, for tests of the objectives of pre-training."""

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.models import EncoderConfig
from macaron_tf.training.fit_model import FitModel
from tests.objectives.masking_toy import ToyVocabulary, ragged_rows

V = 64
VOCABULARY = ToyVocabulary()


def tiny(**overrides) -> EncoderConfig:
    return EncoderConfig(
        **{
            "vocab_size": V,
            "hidden_dim": 16,
            "feed_forward_dim": 32,
            "num_heads": 2,
            "num_layers": 1,
            "max_length": 24,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "initializer_range": 0.3,
            **overrides,
        }
    )


def rows(lengths, length=24, batch=None, **more) -> tf.data.Dataset:
    """Endless batches of ragged rows; a length of None is a row of padding."""
    ids = ragged_rows([count or 0 for count in lengths], length)
    ids[[count is None for count in lengths]] = 0
    dataset = tf.data.Dataset.from_tensor_slices({"token_ids": ids, **more})
    return dataset.batch(batch or len(lengths), drop_remainder=True).repeat()


def batches(objective, masking, lengths, count=1, seed=1, start=0, **more) -> list[dict]:
    """The first batches of an objective's dataset."""
    dataset = objective.dataset(rows(lengths, **more).skip(start), masking, VOCABULARY, seed, start)
    return list(dataset.take(count))


def nll_of(logits, labels) -> np.ndarray:
    """Cross-entropy of `(..., C)` logits in float64."""
    logits = np.asarray(logits, "float64")
    top = logits.max(-1)
    total = np.log(np.exp(logits - top[..., None]).sum(-1)) + top
    return total - np.take_along_axis(logits, np.asarray(labels)[..., None], -1)[..., 0]


def floats(sums: dict) -> dict[str, float]:
    assert all(value.dtype == tf.float32 for value in sums.values())
    return {name: float(value) for name, value in sums.items()}


def fitted(network, objective, masking, jit_compile=False, **more) -> tuple[FitModel, dict]:
    """A network trained for 2 x 8 updates on four rows, and its history."""
    dataset = objective.dataset(rows([20] * 4, batch=2, **more), masking, VOCABULARY, seed=0)
    model = FitModel(network, objective)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=jit_compile)
    return model, model.fit(dataset, steps_per_epoch=8, epochs=2, verbose=0).history
