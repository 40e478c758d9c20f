"""Parameters of Transformer-XL and XLNet, without allocating any."""

import keras
import pytest

from macaron_tf.models import Encoder, catalog


@pytest.mark.parametrize(
    ("name", "millions"),
    # Dai et al. 2019, table 1: 151M. XLNet's: of its released shapes.
    [("transformer_xl_base", 151), ("xlnet_base", 117), ("xlnet_large", 360)],
)
def test_sizes_are_the_papers(name, millions):
    with keras.StatelessScope(initialize_variables=False):
        encoder = Encoder(catalog.config(name))
        encoder.build()
        assert round(encoder.count_params() / 1e6) == millions


def test_a_block_of_another_kind_counts_as_many():
    counts = set()
    for block in ("transformer", "macaron", "swish_rnn"):
        with keras.StatelessScope(initialize_variables=False):
            encoder = Encoder(catalog.config("transformer_xl_tiny", block=block))
            encoder.build()
            counts.add(round(encoder.count_params() / 1e4))
    assert len(counts) == 1
