"""Blocks for tests, which know what they can and cannot compute."""

import keras

from macaron_tf.layers import Block
from macaron_tf.layers.mixer import Mixer
from macaron_tf.layers.scheme import Mix


class LSTM(Mixer):
    """LSTM as a token mixer, whose state follows any sequence of permutations."""

    def build(self, input_shape):
        self.cell = keras.layers.LSTM(input_shape[-1], return_sequences=True)
        self.cell.build(input_shape)

    def mix(self, x, context, state=None):
        return self.cell(x), state


class LSTMBlock(Block):
    scheme = (Mix("tokens"), Mix("channels"))
    attends = False

    def token_mixer(self) -> Mixer:
        return LSTM(name="lstm")
