"""Training steps of a BERT encoder in this library, KerasHub and Model Garden.

This library runs the same step as in a training run. The models of KerasHub and Model Garden train
in a `tf.function`, with and without XLA. With `--against peers`, all models have post-norm, exact
GELU, tied embeddings, logits only at masked positions, and AdamW. The inputs have no padding and no
attention mask. The models of KerasHub and Model Garden have no segment embeddings (2 D weights).
"""

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from experiments.lab.benchmarks.encoder_step import (
    ADAMW,
    EPSILON,
    INITIALIZER_RANGE,
    StepSetting,
    random_batch,
)
from experiments.lab.benchmarks.workers import Contender
from macaron_tf.distribution.mesh import shard_batch
from macaron_tf.kernels import implementation_scope
from macaron_tf.models import EncoderConfig, PretrainingEncoder, catalog
from macaron_tf.objectives import MaskedLanguageObjective
from macaron_tf.training import build_fit_model
from macaron_tf.training.config import TrainingConfig


def bert_config(setting: StepSetting, family: str = "bert", **changes) -> EncoderConfig:
    """Returns the configuration of a catalog encoder with the sizes of `setting`."""
    sizes = ("num_layers", "hidden_dim", "feed_forward_dim", "num_heads", "vocab_size", "dropout")
    options = {name: getattr(setting, name) for name in sizes}
    options |= {"max_length": setting.length, "attention_dropout": setting.dropout}
    return catalog.config(f"{family}_base", **{**options, **changes})


def block_configs(setting: StepSetting) -> dict[str, EncoderConfig]:
    """Returns the configurations of the blocks for `train_step --against blocks`, by paper name.

    The feed-forward width F is rounded down to a multiple of 96. The width of SwishRNN, 2 F / 3, is
    then a multiple of 64, and all blocks have the same number of matrix parameters.
    """
    width = {"feed_forward_dim": max(96, setting.feed_forward_dim // 96 * 96)}
    families = {"BERT-rab": "bert_rab", "BERT-orig": "bert", "Macaron-BERT": "macaron_bert"}
    blocks = {name: bert_config(setting, family, **width) for name, family in families.items()}
    for name, sizes in (("k=1", (1,)), ("k=2", (2,)), ("k={1,2,4}", (1, 2, 4))):
        config = bert_config(setting, "swish_rnn", rnn_step_sizes=sizes, **width)
        blocks[f"SwishRNN {name}"] = config
    return blocks


def training_step(
    setting: StepSetting, config: EncoderConfig, network: PretrainingEncoder | None = None
) -> Contender:
    """Makes a `Contender` that repeats AdamW updates of this library's encoder on one batch."""
    keras.utils.set_random_seed(setting.seed)
    policy = setting.dtype_policy
    training = TrainingConfig(**ADAMW, schedule="constant", warmup_steps=0, dtype_policy=policy)
    if network is None:
        network = PretrainingEncoder(config, dtype=policy)
        network.build()
    objective = MaskedLanguageObjective(skip_padding=False)
    model = build_fit_model(network, objective, training, setting.jit)
    model.prepare()
    batch = random_batch(setting)
    batch["masked_weights"] = np.ones(batch["masked_labels"].shape, np.float32)
    if on_jax():
        arrays = shard_batch(batch).items()
        device_batch = {name: keras.ops.convert_to_tensor(array) for name, array in arrays}
        batches = itertools.repeat(device_batch)
    else:
        batches = iter(tf.data.Dataset.from_tensors(batch).repeat())

    def run_steps(steps: int) -> float:
        with implementation_scope(setting.implementation):  # matters only when the first run traces
            for _ in range(steps):
                values = model.update(batches)
        sums = dict(zip(model.names["train"], np.asarray(values)[0], strict=False))
        return float(sums["loss_sum"] / sums["weight"])

    return Contender(run_steps, network.count_params())


def on_jax() -> bool:
    """Returns whether JAX is the Keras backend of this process."""
    return keras.backend.backend() == "jax"


def contenders(**options) -> dict[str, Contender]:
    """Makes `Contender` objects for a BERT training step in this library, without and with XLA."""
    setting = StepSetting(**options)
    names = {"ours, JAX": False} if on_jax() else {"ours": False, "ours, XLA": True}
    config = bert_config(setting)
    return {
        name: training_step(dataclasses.replace(setting, jit=jit), config)
        for name, jit in names.items()
    }


def block_contenders(**options) -> dict[str, Contender]:
    """Makes a `Contender` for each of `block_configs`, and one without native kernels."""
    setting = StepSetting(**options)
    configs = block_configs(setting)
    steps = {name: training_step(setting, config) for name, config in configs.items()}
    if not on_jax():
        name, config = next(iter(configs.items()))
        stock = dataclasses.replace(setting, implementation="loop")
        steps[f"{name}, no native ops"] = training_step(stock, config)
    return steps


def peer_step(setting: StepSetting, model, optimizer, jit: bool) -> Contender:
    """Makes a `Contender` that repeats updates of a Keras 3 or tf_keras model on one batch.

    The model maps token ids `(B, L)` and masked positions `(B, P)` to logits `(B, P, V)`.
    """
    batch = {name: tf.constant(array) for name, array in random_batch(setting).items()}
    weights = model.trainable_variables
    # A Keras 3 variable wraps a TensorFlow variable.
    variables = [weight if isinstance(weight, tf.Variable) else weight.value for weight in weights]
    optimizer.build(weights)

    @tf.function(jit_compile=jit)
    def step(ids, positions, labels):
        with tf.GradientTape() as tape:
            logits = tf.cast(model([ids, positions], training=True), tf.float32)
            nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (B, P)
            loss = tf.reduce_mean(nll)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    def run_steps(steps: int) -> float:
        for _ in range(steps):
            loss = step(batch["token_ids"], batch["masked_positions"], batch["masked_labels"])
        return float(loss)

    return Contender(run_steps, sum(variable.shape.num_elements() for variable in variables))


def keras_hub_model(setting: StepSetting):
    """Builds a Keras model with the `TransformerEncoder` layers of KerasHub."""
    import keras_hub

    initializer = functools.partial(keras.initializers.TruncatedNormal, stddev=INITIALIZER_RANGE)
    ids = keras.Input((setting.length,), dtype="int32")
    positions = keras.Input((setting.num_masked,), dtype="int32")
    embedding = keras_hub.layers.TokenAndPositionEmbedding(
        setting.vocab_size, setting.length, setting.hidden_dim, embeddings_initializer=initializer()
    )
    x = keras.layers.LayerNormalization(epsilon=EPSILON)(embedding(ids))  # (B, L, D)
    x = keras.layers.Dropout(setting.dropout)(x)
    for _ in range(setting.num_layers):
        x = keras_hub.layers.TransformerEncoder(
            setting.feed_forward_dim,
            setting.num_heads,
            setting.dropout,
            activation="gelu",
            layer_norm_epsilon=EPSILON,
            kernel_initializer=initializer(),
        )(x)
    head = keras_hub.layers.MaskedLMHead(
        token_embedding=embedding.token_embedding,
        intermediate_activation="gelu",
        layer_norm_epsilon=EPSILON,
        kernel_initializer=initializer(),
    )
    return keras.Model([ids, positions], head(x, positions))  # (B, P, V)


def model_garden_model(setting: StepSetting):
    """Builds a tf_keras model with the `TransformerEncoderBlock` layers of Model Garden."""
    import tf_keras
    from official.nlp.modeling import layers

    initializer = functools.partial(tf_keras.initializers.TruncatedNormal, stddev=INITIALIZER_RANGE)
    ids = tf_keras.Input((setting.length,), dtype="int32")
    positions = tf_keras.Input((setting.num_masked,), dtype="int32")
    tokens = layers.OnDeviceEmbedding(setting.vocab_size, setting.hidden_dim, initializer())
    x = tokens(ids)  # (B, L, D)
    x += layers.PositionEmbedding(setting.length, initializer())(x)
    x = tf_keras.layers.LayerNormalization(epsilon=EPSILON)(x)
    x = tf_keras.layers.Dropout(setting.dropout)(x)
    for _ in range(setting.num_layers):
        x = layers.TransformerEncoderBlock(
            setting.num_heads,
            setting.feed_forward_dim,
            "gelu",
            kernel_initializer=initializer(),
            output_dropout=setting.dropout,
            attention_dropout=setting.dropout,
        )(x)
    head = layers.MaskedLM(tokens.embeddings, activation="gelu", initializer=initializer())
    return tf_keras.Model([ids, positions], head(x, positions))  # (B, P, V)


def keras_hub_contenders(**options) -> dict[str, Contender]:
    """Makes `Contender` objects that run a BERT training step in KerasHub, without and with XLA."""
    return peer_contenders(StepSetting(**options), "KerasHub", keras, keras_hub_model)


def model_garden_contenders(**options) -> dict[str, Contender]:
    """Makes `Contender` objects for a BERT training step in Model Garden, without and with XLA."""
    import tf_keras

    return peer_contenders(StepSetting(**options), "Model Garden", tf_keras, model_garden_model)


def peer_contenders(
    setting: StepSetting, name: str, keras: types.ModuleType, make: Callable
) -> dict[str, Contender]:
    """Makes `Contender` objects for a training step in another library, without and with XLA."""
    keras.utils.set_random_seed(setting.seed)
    keras.mixed_precision.set_global_policy(setting.dtype_policy)

    def contender(jit: bool) -> Contender:
        return peer_step(setting, make(setting), keras.optimizers.AdamW(**ADAMW), jit)

    return {name: contender(jit=False), f"{name}, XLA": contender(jit=True)}
