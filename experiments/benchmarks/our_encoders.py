"""An encoder's training step in this library, as `fit` makes it."""

import keras
import numpy as np
import tensorflow as tf

from experiments.benchmarks.encoder_step import ADAMW, BETAS, StepSetting, random_batch
from experiments.benchmarks.harness import set_threads
from experiments.benchmarks.workers import Contender
from macaron_tf.distribution import distributed
from macaron_tf.models import EncoderConfig, PretrainingEncoder, catalog
from macaron_tf.objectives import MaskedLanguageObjective
from macaron_tf.training import build_fit_model
from macaron_tf.training.config import TrainingConfig


def bert_config(setting: StepSetting, family: str = "bert", **changes) -> EncoderConfig:
    """One of the catalog's families of encoders in the setting's shapes."""
    return catalog.config(
        f"{family}_base",
        num_layers=setting.num_layers,
        hidden_dim=setting.hidden_dim,
        num_heads=setting.num_heads,
        vocab_size=setting.vocab_size,
        max_length=setting.length,
        dropout=setting.dropout,
        attention_dropout=setting.dropout,
        **{"feed_forward_dim": setting.feed_forward_dim, **changes},
    )


def block_configs(setting: StepSetting) -> dict[str, EncoderConfig]:
    """What `train_step` compares by blocks, by the papers' names.

    F is rounded down to a multiple of 96: two thirds of it are then a multiple of 64, and all have
    as many matrix parameters.
    """
    width = max(96, setting.feed_forward_dim // 96 * 96)

    def config(family: str, **changes) -> EncoderConfig:
        return bert_config(setting, family, feed_forward_dim=width, **changes)

    return {
        "BERT-rab": config("bert_rab"),
        "BERT-orig": config("bert"),
        "Macaron-BERT": config("macaron_bert"),
        "SwishRNN k=1": config("swish_rnn", rnn_step_sizes=(1,)),
        "SwishRNN k=2": config("swish_rnn", rnn_step_sizes=(2,)),
        "SwishRNN k={1,2,4}": config("swish_rnn", rnn_step_sizes=(1, 2, 4)),
    }


def training_step(
    setting: StepSetting,
    config: EncoderConfig,
    jit: bool,
    strategy: tf.distribute.Strategy | None = None,
    network: PretrainingEncoder | None = None,
) -> Contender:
    """AdamW updates of a `FitModel` on the setting's batch, repeated without end.

    Args:
        config: of the encoder.
        jit: compile the step with XLA.
        strategy: whose devices share the batch; TensorFlow's default one is one device.
        network: of that config, with weights of its own; otherwise one is made.
    """
    keras.utils.set_random_seed(setting.seed)
    training = TrainingConfig(
        **ADAMW,
        beta_1=BETAS[0],
        beta_2=BETAS[1],
        schedule="constant",
        warmup_steps=0,
        dtype_policy="mixed_bfloat16" if setting.bfloat16 else "float32",
    )
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        if network is None:
            network = PretrainingEncoder(config, dtype=training.dtype_policy)
            network.build()
        objective = MaskedLanguageObjective(skip_padding=False)
        model = build_fit_model(network, objective, training, jit)
    model.prepare()
    batch = random_batch(setting)
    batch["masked_weights"] = np.ones(batch["masked_labels"].shape, np.float32)
    iterator = iter(distributed(strategy, tf.data.Dataset.from_tensors(batch).repeat()))
    update = model.make_train_function()

    def run(steps: int) -> float:
        last = model.step + steps
        model.returns_logs = lambda step: step == last
        model.reset_metrics()
        for _ in range(steps):
            logs = update(iterator)
        return logs["loss"]

    return Contender(run, network.count_params())


def contenders(**options) -> dict[str, Contender]:
    """Our BERT's, of a `StepSetting(**options)`."""
    setting = StepSetting(**options)
    set_threads(setting.threads)
    config = bert_config(setting)
    return {
        "ours": training_step(setting, config, jit=False),
        "ours, XLA": training_step(setting, config, jit=True),
    }
