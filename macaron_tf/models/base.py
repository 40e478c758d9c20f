"""The base of the models."""

import re

import keras

from macaron_tf.layers.recording import Recording
from macaron_tf.settings import Settings


class Model(Recording, keras.Model):
    """Base of the models, each named like its class: `encoder_classifier`, and so on.

    The layers are built in the order in which they were made, each for vectors `(B, L, D)`, and a
    call gives the `logits` of the `hidden_states`, in a subclass that does not override it.

    Attributes:
        pooler, language_head: BERT's and a language model's, for which pre-trained weights are
            taken over; None = there is none.
    """

    takes_ids = True
    pooler = language_head = None

    def __init__(self, config: Settings, **kwargs):
        kwargs.setdefault("name", re.sub("(?<!^)(?=[A-Z])", "_", type(self).__name__).lower())
        super().__init__(**kwargs)

    def build(self, input_shape=None):
        for layer in self.layers:
            if isinstance(layer, keras.Model):
                layer.build()
            else:
                layer.build((None, None, self.config.hidden_dim))

    def hidden_states(self, inputs, training=None):
        """The encoder's output `(B, L, D)`; models without one override this."""
        return self.encoder(inputs, training=training)

    def call(self, inputs, training=None):
        return self.logits(self.hidden_states(inputs, training=training))
