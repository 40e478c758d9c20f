"""ELMo by size."""

from macaron_tf.models.elmo_config import ElmoConfig

ELMOS = {
    # Peters et al. 2018, section 3.4: 93.6M parameters, and the table of the words it scores, of
    # which the One Billion Word Benchmark has 793,471.
    "elmo_original": ElmoConfig(793_471),
    # For two cores: a pass over two million words in about a quarter of an hour.
    "elmo_tiny": ElmoConfig(
        8_000,
        lstm_dim=256,
        projection_dim=128,
        max_characters=20,
        filters=((1, 16), (2, 32), (3, 64), (4, 128)),
    ),
}
