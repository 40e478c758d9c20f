"""Trains a toy run that prints when it steps, saves and validates, for `test_kill`.

python -m tests.toys.kill RUN [TF_CONFIG]
"""

import dataclasses
import os
import sys

import keras

from macaron_tf.distribution import make_strategy
from macaron_tf.training import TrainingSession, build_fit_model, train
from tests.toys import training as training_toy
from tests.toys.training import toy_dataset, toy_network, toy_objective

CONFIG = dataclasses.replace(
    training_toy.CONFIG,
    max_steps=200,
    validate_every=10,
    save_every_steps=4,
    save_every_minutes=None,
    keep_last=1000,
)


def tell(event: str) -> None:
    """Prints an event, which `test_kill` reads."""
    print(f"event: {event}", flush=True)


class TellSteps(keras.callbacks.Callback):
    """A callback that prints an event after each update."""

    def on_train_batch_end(self, batch, logs=None):
        tell("step")


def validate(model, step):
    """Returns the loss on three batches, and a list with one sample line."""
    tell("validation")
    metrics = model.evaluate(toy_dataset(1000, 1003), return_dict=True, verbose=0)
    return {"loss": metrics["loss"], "samples": [f"sample of step {step}"]}


def main(run_dir: str, cluster: str | None = None) -> None:
    """Trains or resumes a run.

    With `cluster`, a TF_CONFIG, this process is one of several workers.
    """
    if cluster:
        os.environ["TF_CONFIG"] = cluster
    strategy = make_strategy("multi_worker" if cluster else None)
    save = TrainingSession.save

    def telling_save(session):
        tell("save")
        save(session)

    TrainingSession.save = telling_save
    keras.utils.set_random_seed(CONFIG.seed)
    with strategy.scope():
        model = build_fit_model(toy_network(dropout=0.2), toy_objective, CONFIG)
    train(model, toy_dataset, run_dir, validate, callbacks=[TellSteps()])


if __name__ == "__main__":
    main(*sys.argv[1:])
