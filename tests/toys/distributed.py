"""Trains toy models on several devices, in a separate process.

    python -m tests.toys.distributed [--replicas N | --multi-worker] JOB [JOB ...]

TensorFlow's devices can be chosen only once per process.
"""

import argparse
import dataclasses
import functools
import itertools
import pathlib

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.distribution import Workers, make_strategy
from macaron_tf.distribution.replicas import ReplicaMap
from macaron_tf.models import EncoderConfig, EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.objectives import MaskedLanguageObjective, TranslationObjective
from macaron_tf.training import FitModel, build_fit_model, train
from macaron_tf.training.progress import read_lines
from macaron_tf.training.updates import FirstStage
from tests.toys.objectives import ToyVocabulary
from tests.toys.training import CONFIG, SIGNATURE, scaled, toy_batch, toy_network, toy_objective

VOCABULARY = 48
# Rows and lengths of the micro-batches: neither 2 nor 4 replicas divide 7 rows or 1 row.
SHAPES = ((7, 9), (4, 12), (1, 6), (10, 7))


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
        kind: model type, such as "translation". With "poisoned", one row of micro-batch 12 gives a
            NaN loss.
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
        ema_decay=None if optimizer == "schedule_free_adamw" else CONFIG.ema_decay,
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
        network, objective = _parts(kind, dropout)
        stage = FirstStage(int(first), network.trainable_variables[-2:]) if first else None
        model = build_fit_model(network, objective, config, first_stage=stage)

    def validate(model, step):
        found = model.evaluate(_batches(kind, 0).take(5), verbose=0, return_dict=True)
        return {name: found[name] for name in ("loss", "accuracy", "perplexity")}

    train(model, lambda start: _batches(kind, start), out / "run", validate)
    copies = [strategy.experimental_local_results(v.value) for v in network.trainable_variables]
    lines = read_lines(out / "run" / "metrics.jsonl")
    mapped = ReplicaMap(strategy, _forward(kind, network))
    found = mapped(tuple(batch_of(kind, index).values())[:2] for index in range(7))
    np.savez(
        out / f"{strategy.cluster_resolver.task_id if Workers(strategy).several else 0}.npz",
        losses=[line["loss"] for line in lines],
        **{f"mapped {index}": result["sums"] for index, result in enumerate(found)},
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


def _parts(kind: str, dropout: float):
    if kind == "toy":
        return toy_network(dropout), toy_objective
    if kind == "poisoned":
        return toy_network(dropout), scaled(_poison)
    if kind == "translation":
        config = EncoderDecoderConfig(
            VOCABULARY, 16, 32, 2, 1, 1, block="macaron", dropout=dropout,
            attention_dropout=dropout, activation_dropout=0.0,
        )  # fmt: skip
        network, objective = EncoderDecoder(config), TranslationObjective()
    else:
        config = EncoderConfig(
            VOCABULARY, 16, 24, 2, 1, block="swish_rnn", relative_bias="per_layer",
            dropout=dropout, attention_dropout=dropout,
        )  # fmt: skip
        network = PretrainingEncoder(config, sentence_pair=True)
        objective = MaskedLanguageObjective(sentence_pair=True)
    network.build()
    return network, objective


def _poison(batch):
    ill = tf.reduce_any((batch["source"] == 0) & (batch["target"] > 0))
    return tf.where(ill, float("nan"), 1.0)


def _forward(kind: str, network):
    """Returns a function from two input arrays to the mean network output of each row."""
    rows = tf.TensorSpec((None, None), tf.int32)
    called = {
        "translation": lambda first, second: network({"source": first, "target": second}),
        "pretraining": lambda first, second: network.hidden_states(
            {"token_ids": first, "segment_ids": second}
        ),
    }.get(kind, lambda first, second: network(first))

    @tf.function(input_signature=[rows, rows], autograph=False)
    def sums(first, second):
        return {"sums": tf.reduce_mean(called(first, second), axis=(1, 2))}  # `(B,)`

    return sums


@functools.cache  # tracing the masking takes seconds
def _batches(kind: str, start: int) -> tf.data.Dataset:
    """Returns an endless dataset of micro-batches from index `start` on."""
    signature = SIGNATURE
    if kind == "pretraining":
        signature = dict.fromkeys(("token_ids", "segment_ids"), tf.TensorSpec((None, 12), tf.int32))
        signature["pair_label"] = tf.TensorSpec((None,), tf.int32)
    batches = tf.data.Dataset.from_generator(
        lambda: (batch_of(kind, index) for index in itertools.count(start)),
        output_signature=signature,
    )
    if kind == "pretraining":
        batches = MaskedLanguageObjective().dataset(batches, ToyVocabulary(VOCABULARY), 1, start)
    return batches


def batch_of(kind: str, index: int) -> dict[str, np.ndarray]:
    """Returns the features of micro-batch `index` for a model type."""
    if kind in ("toy", "poisoned"):
        batch = toy_batch(index)
        if kind == "poisoned" and index == 12:
            batch["source"][-1] = 0  # a row without tokens
        return batch
    rng = np.random.default_rng(index)
    rows, length = SHAPES[index % len(SHAPES)]
    if kind == "pretraining":
        length = 12
    ids = rng.integers(5, VOCABULARY, (rows, length), dtype=np.int32)
    ids[np.arange(length) >= rng.integers(4, length + 1, (rows, 1))] = 0
    if kind == "translation":
        return {"source": ids, "target": np.where(ids > 0, (ids * 3) % 43 + 5, 0).astype(np.int32)}
    return {
        "token_ids": ids,
        "segment_ids": (np.arange(length) >= 3).astype(np.int32) * (ids > 0),
        "pair_label": rng.integers(0, 2, rows, dtype=np.int32),
    }


if __name__ == "__main__":
    main()
