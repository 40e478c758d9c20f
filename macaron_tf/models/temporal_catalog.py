"""The TCNs of the slides' tasks."""

from macaron_tf.models.temporal_config import TemporalConfig

# The code released with Bai et al. 2018: taps, blocks, channels, dropout. The two of music are
# recalled from its table 2 and have the slide's 300K and 1M parameters; the released default for
# both is k 5 x 4 x 150 with dropout 0.25.
TEMPORAL_MODELS = {
    "tcn_adding": TemporalConfig(1, (30,) * 8, kernel_size=7, input_dim=2, last_only=True),
    "tcn_copy_memory": TemporalConfig(10, (10,) * 8, kernel_size=8, input_dim=10),
    "tcn_jsb": TemporalConfig(88, (150,) * 2, kernel_size=3, input_dim=88, dropout=0.5),
    "tcn_nottingham": TemporalConfig(88, (150,) * 4, kernel_size=6, input_dim=88, dropout=0.2),
    "tcn_mnist": TemporalConfig(
        10, (25,) * 8, kernel_size=7, input_dim=1, dropout=0.05, last_only=True
    ),
    "tcn_ptb_words": TemporalConfig(
        10_000,
        (600,) * 4,
        kernel_size=3,
        vocab_size=10_000,
        embedding_dim=600,
        tied=True,
        dropout=0.45,
        embedding_dropout=0.25,
    ),
    "tcn_ptb_characters": TemporalConfig(
        50,
        (450, 450, 100),
        kernel_size=3,
        vocab_size=50,
        embedding_dim=100,
        tied=True,
        dropout=0.1,
        embedding_dropout=0.1,
    ),
}
