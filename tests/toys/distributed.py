"""Trains toy models on several devices, in a separate process.

    python -m tests.toys.distributed [--replicas N | --multi-worker] JOB [JOB ...]

TensorFlow's devices can be chosen only once per process.
"""

import argparse
import dataclasses
import pathlib

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.distribution import Workers, make_strategy
from macaron_tf.training import FitModel, build_fit_model, train
from macaron_tf.training.progress import read_lines
from macaron_tf.training.updates import FirstStage
from tests.toys.training import CONFIG, scaled, toy_dataset, toy_network, toy_objective


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="+", help="KIND:OUT[:NAME=VALUE,...] of `run`, or rows:OUT")
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--multi-worker", action="store_true")
    options = parser.parse_args()
    name = "multi_worker" if options.multi_worker else "mirrored" if options.replicas else None
    strategy = make_strategy(name, replicas=options.replicas)
    for job in options.jobs:
        kind, out, *settings = job.split(":")
        if kind == "rows":
            every_row(strategy, pathlib.Path(out))
            continue
        pairs = [setting.split("=") for setting in ",".join(settings).split(",") if setting]
        given = {name: value if name == "optimizer" else float(value) for name, value in pairs}
        run(strategy, kind, pathlib.Path(out), **given)


def run(
    strategy: tf.distribute.Strategy,
    kind: str,
    out: pathlib.Path,
    steps: float = 20,
    dropout: float = 0.0,
    per_call: float = 1,
    first: float = 0,
    optimizer: str = "adam",
) -> None:
    """Trains in OUT/run, then writes the weights of all replicas and the losses to OUT/WORKER.npz.

    Args:
        strategy: distribution strategy.
        kind: "toy", or "poisoned", where one row of micro-batch 12 gives a NaN loss.
        out: folder OUT.
        steps: number of updates.
        dropout: dropout rate.
        per_call: number of updates per call of the training function.
        first: number of initial updates that train only the last layer.
        optimizer: optimizer name.
    """
    config = dataclasses.replace(
        CONFIG,
        optimizer=optimizer,
        max_steps=int(steps),
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=0.5,
        steps_per_call=int(per_call),
        log_every=5,
        validate_every=10,
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        network = toy_network(dropout)
        objective = scaled(_poison) if kind == "poisoned" else toy_objective
        stage = FirstStage(int(first), network.trainable_variables[-2:]) if first else None
        model = build_fit_model(network, objective, config, first_stage=stage)

    def validate(model, step):
        found = model.evaluate(_batches(kind, 0).take(5), verbose=0, return_dict=True)
        return {name: found[name] for name in ("loss", "accuracy", "perplexity")}

    train(model, lambda start: _batches(kind, start), out / "run", validate)
    copies = [strategy.experimental_local_results(v.value) for v in network.trainable_variables]
    lines = read_lines(out / "run" / "metrics.jsonl")
    np.savez(
        out / f"{strategy.cluster_resolver.task_id if Workers(strategy).several else 0}.npz",
        losses=[line["loss"] for line in lines],
        **{
            f"{index}/{replica}": copy.numpy()
            for index, variable in enumerate(copies)
            for replica, copy in enumerate(variable)
        },
    )


def every_row(strategy: tf.distribute.Strategy, out: pathlib.Path) -> None:
    """Trains with an objective whose weight is the row count; writes metrics to OUT/rows.npz.

    `fit` builds the network. The batches have 3, 3 and 1 rows.
    """

    def objective(network, batch, training):
        error = network(batch["x"], training=training)[:, 0] - batch["label"]
        rows = tf.cast(tf.size(error), tf.float32)
        return {"loss_sum": tf.reduce_sum(error**2), "weight": rows}

    keras.utils.set_random_seed(1)
    with strategy.scope():
        network = keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
        model = FitModel(network, objective)
        model.compile(keras.optimizers.SGD(0.1))
    x = np.random.default_rng(1).normal(size=(7, 3)).astype("float32")
    words = tf.ragged.range(tf.range(7))  # `(7, None)`
    data = tf.data.Dataset.from_tensor_slices(({"x": x, "words": words}, x[:, 0])).batch(3)
    found = {"evaluate": model.evaluate(data, verbose=0, return_dict=True)}
    found["fit"] = model.fit(data, epochs=2, verbose=0, validation_data=data).history
    found["weights"] = dict(enumerate(network.get_weights()))
    out.mkdir(parents=True, exist_ok=True)
    named = {f"{kind} {name}": v for kind, many in found.items() for name, v in many.items()}
    np.savez(out / "rows.npz", **named)


def _poison(batch):
    ill = tf.reduce_any((batch["source"] == 0) & (batch["target"] > 0))
    return tf.where(ill, float("nan"), 1.0)


def _batches(kind: str, start: int) -> tf.data.Dataset:
    """Returns the toy batches; in number 12 of "poisoned" data, the last row has no tokens."""

    def emptied(index, batch):
        source, kept = batch["source"], tf.cast(index != 12, tf.int32)
        return {**batch, "source": tf.concat([source[:-1], kept * source[-1:]], axis=0)}

    batches = toy_dataset(start)
    return batches.enumerate(start).map(emptied) if kind == "poisoned" else batches


if __name__ == "__main__":
    main()
