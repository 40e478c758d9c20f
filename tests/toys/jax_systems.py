"""Trains a toy network on the JAX backend, for `test_jax_engine`.

KERAS_BACKEND=jax python -m tests.toys.jax_systems FOLDER
"""

import dataclasses
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from macaron_tf.distribution.mesh import use_mesh
from macaron_tf.models import EncoderConfig, LanguageModel
from macaron_tf.training import Diverged, TrainingConfig, build_fit_model, train
from tests.toys.training import CONFIG, StopAt, numbered, run, scaled, toy_dataset, toy_network

CONFIG = dataclasses.replace(CONFIG, keep_last=9)


def objective(network, batch, training):
    """Returns the sum of squared logits over all tokens.

    Padding counts too, so that rows added by a mesh would change the sums.
    """
    hidden = network.hidden_states({"token_ids": batch["source"]}, training=training)
    scores = ops.sum(ops.square(network.logits(hidden)), axis=-1)  # `(B, L)`
    return {"loss_sum": ops.sum(scores), "weight": ops.sum(ops.ones_like(scores))}


def learnt(
    remat: bool, data: int = 1, model: int = 1, optimizer: str = "adam"
) -> dict[str, np.ndarray]:
    """Trains a model with two block types for three updates; returns weights and logged sums."""
    use_mesh({"data": data, "model": model})
    keras.utils.set_random_seed(1)
    shape = dict(causal=True, norm="pre", block=("transformer", "swish_rnn"), dropout=0.1)
    network = LanguageModel(EncoderConfig(16, 8, 24, 2, 2, remat=remat, **shape))
    network.build()
    config = TrainingConfig(max_steps=3, warmup_steps=1, optimizer=optimizer)
    trained = build_fit_model(network, objective, config)
    batches = toy_dataset(1, 3).repeat()  # 3 rows, then 4; a mesh splits only the batch of 4
    stop = StopAt(1, lambda: setattr(trained, "stop_training", True))
    trained.fit(batches, steps_per_epoch=3, callbacks=[stop])
    trained.fit(batches, steps_per_epoch=2)
    assert trained.step == 3
    if model > 1:
        kept = network.weights, trained.optimizer.variables
        cut, moments = (
            [v.path for v in variables if not v.value.sharding.is_fully_replicated]
            for variables in kept
        )
        assert len(cut) >= 10 and len(moments) >= len(cut), cut
        assert len(moments) == 2 * len(cut) or optimizer == "muon"
    weights = {f"weight_{i}": np.array(weight) for i, weight in enumerate(network.weights)}
    return {**weights, **{name: np.array(v) for name, v in trained.window.totals().items()}}


def diverge(folder: pathlib.Path) -> None:
    """Writes the message of a run whose loss is infinite at each update after the fifth."""

    objective = scaled(lambda batch: 1 / ops.cast(batch["number"][0], "float32"))
    dataset = numbered(lambda i: [tf.cast(i < 10, tf.int32)])
    config = dataclasses.replace(CONFIG, max_skipped_updates=3, log_every=50, save_every_steps=None)
    model = build_fit_model(toy_network(), objective, config)
    try:
        train(model, dataset, folder / "diverged", validate=None)
    except Diverged as error:
        (folder / "diverged.txt").write_text(str(error))


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    run(folder / "from_tensorflow", CONFIG, dropout=0.0)
    diverge(folder)
    for name, options in {
        "plain": {"remat": False},
        "remat": {"remat": True},
        "muon": {"remat": False, "optimizer": "muon"},
        "muon_mesh": {"remat": False, "data": 4, "model": 2, "optimizer": "muon"},
    }.items():
        np.savez(folder / f"{name}.npz", **learnt(**options))
