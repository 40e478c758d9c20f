"""ELMo's character CNN, which computes word vectors from characters."""

from collections.abc import Sequence

import keras
from keras import ops

from macaron_tf.layers.recording import Recording

# ELMo's 2,048 filters as pairs of the width in characters and the number of filters.
ELMO_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


class Highway(Recording, keras.layers.Layer):
    """Highway layer, `c x + (1 - c) relu(W x + b)` with the carry gate `c = sigmoid(W' x + b')`.

    b' is initialized to 2, so c is near 0.88 at the start of training.

    References: Srivastava et al. 2015, eq. 3.
    """

    def build(self, x_shape):
        # The matrix contains W and W' side by side.
        width, axes = x_shape[-1], ("embed", "mlp")
        self.inner = self.dense_part("inner", x_shape, 2 * width, "glorot_uniform", axes)
        initializer = keras.initializers.Constant(2.0)
        self.carry_bias = self.add_weight((width,), initializer, name="carry_bias")

    def call(self, x):
        transform, carry = ops.split(self.inner(x), 2, axis=-1)  # (..., D) each
        carry = ops.sigmoid(carry + self.carry_bias)
        return carry * x + (1.0 - carry) * ops.relu(transform)


class CharacterCNN(Recording, keras.layers.Layer):
    """Word vectors computed from characters by convolutions and highway layers.

    The layer embeds the characters, applies the convolution filters, takes the maximum of each
    filter over the positions within the word, and applies ReLU, highway layers and a projection.

    Args:
        filters: pairs of filter width and number of filters.
        output_dim: output width D.
        vocab_size: number of character ids, including padding (id 0), which has a trained embedding
            too.
        char_dim: width E of the character embeddings.

    Call arguments:
        characters: int `(..., C)`, with C characters per word. The output has shape `(..., D)`.

    References: Kim et al. 2016; Jozefowicz et al. 2016; Peters et al. 2018 (ELMo), section 3.4.
    """

    takes_ids = True

    def __init__(
        self,
        filters: Sequence[tuple[int, int]] = ELMO_FILTERS,
        output_dim: int = 512,
        vocab_size: int = 261,
        char_dim: int = 16,
        num_highways: int = 2,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = tuple(map(tuple, filters))

    def build(self, characters_shape):
        initializer = keras.initializers.RandomUniform(-1.0, 1.0)
        self.table = self.add_weight((self.vocab_size, self.char_dim), initializer, name="table")
        embedded_shape = (None, characters_shape[-1], self.char_dim)
        self.convolutions = [
            self.part(keras.layers.Conv1D, embedded_shape, count, width, name=f"width_{width}")
            for width, count in self.filters
        ]
        features_shape = (None, sum(count for _, count in self.filters))
        self.highways = [
            self.part(Highway, features_shape, name=f"highway_{n}")
            for n in range(self.num_highways)
        ]
        dense = keras.layers.Dense
        self.projection = self.part(dense, features_shape, self.output_dim, name="projection")

    def call(self, characters):
        shape = ops.shape(characters)
        words = ops.reshape(characters, (-1, shape[-1]))  # (..., C) -> (N, C)
        x = ops.cast(ops.take(self.table, words, axis=0), self.compute_dtype)  # (N, C, E)
        # ReLU follows the maximum, which gives the same values with fewer operations.
        features = [ops.relu(ops.max(layer(x), axis=1)) for layer in self.convolutions]
        x = ops.concatenate(features, axis=-1)  # (N, filters)
        for highway in self.highways:
            x = highway(x)
        return ops.reshape(self.projection(x), (*shape[:-1], self.output_dim))
