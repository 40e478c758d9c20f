"""Trains a classifier with rematerialization on two replicas three times; prints the losses.

python -m tests.toys.remat
"""

import keras
import tensorflow as tf

from macaron_tf.distribution import make_strategy
from macaron_tf.models import EncoderClassifier, EncoderConfig
from macaron_tf.objectives import ClassificationObjective
from macaron_tf.training import build_fit_model
from macaron_tf.training.config import TrainingConfig
from tests.harness import ids


def main() -> None:
    strategy = make_strategy("mirrored", replicas=2)
    rows = {"token_ids": ids(16, 12, vocab_size=100), "label": ids(16) % 3}
    data = tf.data.Dataset.from_tensor_slices(rows).repeat().batch(4, drop_remainder=True)
    config = TrainingConfig(learning_rate=1e-3, warmup_steps=0, accumulation_steps=2)
    for _ in range(3):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            encoder = EncoderConfig(100, 16, 32, 2, 2, dropout=0.1, remat=True)
            network = EncoderClassifier(encoder, 3)
            network.build()
            model = build_fit_model(network, ClassificationObjective(3), config)
        history = model.fit(data, epochs=12, steps_per_epoch=1, verbose=0).history
        print("losses", *map(float.hex, history["loss"]))


if __name__ == "__main__":
    main()
