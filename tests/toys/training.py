"""A toy network that trains within a second, its objective, and batches of uneven shapes."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from macaron_tf.training import build_fit_model, train
from macaron_tf.training.config import TrainingConfig
from macaron_tf.variables import declare

VOCABULARY = 16
SIGNATURE = dict.fromkeys(("source", "target"), tf.TensorSpec((None, None), tf.int32))
SHAPES = ((2, 5), (3, 7), (4, 3), (1, 9))
CONFIG = TrainingConfig(
    max_steps=20,
    learning_rate=0.01,
    warmup_steps=4,
    weight_decay=1e-3,
    clip_norm=1.0,
    accumulation_steps=2,
    ema_decay=0.9,
    log_every=3,
    validate_every=8,
    save_every_steps=5,
    best_metric="loss",
)


def toy_network(dropout: float = 0.0, width: int = 8) -> keras.Model:
    """Builds a network from tokens `(B, L)` to logits `(B, L, VOCABULARY)`."""
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, width, name="embedding")(tokens)
    x = keras.layers.Dense(width, activation="relu", name="hidden")(x)
    x = keras.layers.Dropout(dropout, name="dropout")(x)
    x = keras.layers.Dense(VOCABULARY, name="head", dtype="float32")(x)
    model = keras.Model(tokens, x, name="toy")
    declare(model.get_layer("hidden").kernel, ("embed", "mlp"))
    return model


def toy_objective(network, batch, training):
    """Returns sums of cross-entropy and correct predictions over tokens other than padding."""
    logits = network(batch["source"], training=training)
    weight = ops.cast(ops.not_equal(batch["target"], 0), "float32")
    losses = ops.sparse_categorical_crossentropy(batch["target"], logits, from_logits=True)
    hits = ops.cast(ops.equal(ops.argmax(logits, -1), batch["target"]), "float32")
    nll = ops.sum(losses * weight)
    return {
        "loss_sum": nll,
        "nll_sum": nll,
        "correct_sum": ops.sum(hits * weight),
        "weight": ops.sum(weight),
    }


def scaled(scale):
    """Returns the toy objective with a loss that is multiplied by `scale(batch)`."""

    def objective(network, batch, training):
        sums = toy_objective(network, batch, training)
        return {**sums, "loss_sum": sums["loss_sum"] * scale(batch)}

    return objective


def toy_batch(index: int) -> dict[str, np.ndarray]:
    """Returns the batch at `index`, which has random source tokens and targets.

    The target of a token is a fixed permutation of the token ids, and 20% of the targets are
    padding.
    """
    rng = np.random.default_rng(index)
    source = rng.integers(1, VOCABULARY, SHAPES[index % len(SHAPES)], dtype=np.int32)
    target = (source * 3) % VOCABULARY
    target[rng.random(target.shape) < 0.2] = 0
    return {"source": source, "target": target.astype(np.int32)}


def toy_dataset(start: int = 0, stop: int | None = None) -> tf.data.Dataset:
    """Returns the batches from `start` up to `stop`; without `stop`, the dataset is endless."""

    def batches():
        return map(toy_batch, itertools.count(start) if stop is None else range(start, stop))

    return tf.data.Dataset.from_generator(batches, output_signature=SIGNATURE)


def numbered(feature):
    """Returns the toy data set of a run, whose batch i has the feature "number", `feature(i)`."""

    def dataset(start):
        numbers = tf.data.Dataset.counter(start).map(feature)
        batches = tf.data.Dataset.zip(toy_dataset(start), numbers)
        return batches.map(lambda batch, number: {**batch, "number": number})

    return dataset


def merged_batch(indices) -> dict[str, np.ndarray]:
    """Returns several batches merged into one, padded with id 0 to a common length."""
    batches = [toy_batch(index) for index in indices]
    length = max(batch["source"].shape[1] for batch in batches)

    def pad(ids):
        return np.pad(ids, ((0, 0), (0, length - ids.shape[1])))

    names = ("source", "target")
    return {name: np.concatenate([pad(batch[name]) for batch in batches]) for name in names}


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def judge(model, step):
    metrics = model.evaluate(toy_dataset(1000, 1003), return_dict=True, verbose=0)
    return {"loss": metrics["loss"], "samples": [f"sample of step {step}"]}


def run(run_dir, config=CONFIG, validate=judge, width=8, dropout=0.2, **kwargs):
    keras.utils.set_random_seed(config.seed)
    model = build_fit_model(toy_network(dropout, width), toy_objective, config)
    return train(model, toy_dataset, run_dir, validate, **kwargs), model


def variables_of(starts) -> list[keras.Variable]:
    return [keras.Variable(start, dtype="float32") for start in starts]


def updated(optimizer, variables, gradients) -> list[np.ndarray]:
    """Updates variables by the gradients of each, one after another; returns their values."""
    for several in zip(*gradients, strict=True):
        optimizer.apply([ops.convert_to_tensor(g, "float32") for g in several], variables)
    return [np.array(variable) for variable in variables]


class StopAt(keras.callbacks.Callback):
    """A callback that calls `how` after a step, for example to send a signal or to die at once."""

    def __init__(self, step, how):
        super().__init__()
        self.step, self.how = step, how

    def on_train_batch_end(self, batch, logs=None):
        if self.model.step == self.step:
            self.how()


def killed():
    raise KeyboardInterrupt("stands for kill -9: nothing is saved")


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=a.path)
