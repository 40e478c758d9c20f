"""Parameters of the papers' encoders against the slides' tables, without allocating any."""

import functools

import keras
import pytest

from macaron_tf.layers.heads import Pooler
from macaron_tf.models import Encoder, catalog

TABLE = {  # millions, slides: ALBERT's table 1, gMLP's table 6
    "albert_base": 12,
    "albert_large": 18,
    "gmlp_base": 130,
    "gmlp_large": 365,
    "amlp_base": 109,
    "amlp_large": 316,
}
# Slides, ALBERT's tables 3 and 4: sharing, E, millions.
ABLATIONS = [
    ("none", 64, 87),
    ("none", 128, 89),
    ("none", 256, 93),
    ("none", 768, 108),
    ("all", 64, 10),
    ("all", 128, 12),
    ("all", 256, 16),
    ("all", 768, 31),
    ("attention", 768, 83),
    ("attention", 128, 64),
    ("feed_forward", 768, 57),
    ("feed_forward", 128, 38),
]


@functools.cache
def parameters(name: str, pooler: bool, **changes) -> int:
    with keras.StatelessScope(initialize_variables=False):
        encoder = Encoder(catalog.config(name, **changes))
        encoder.build()
        count = encoder.count_params()
        if pooler:
            head = Pooler()
            head.build((None, None, encoder.config.hidden_dim))
            count += head.count_params()
    return count


@pytest.mark.parametrize(("name", "millions"), TABLE.items())
def test_sizes_are_the_slides(name, millions):
    assert round(parameters(name, pooler=name.startswith("albert")) / 1e6) == millions


@pytest.mark.parametrize(("sharing", "embedding_dim", "millions"), ABLATIONS)
def test_sharing_and_factorization_count_as_in_the_slides(sharing, embedding_dim, millions):
    """The paper's own rule, found from its numbers: unshared models without the pooler's 0.59M."""
    changes = {"sharing": sharing, "embedding_dim": embedding_dim}
    count = parameters("albert_base", pooler=sharing != "none", **changes)
    assert round(count / 1e6) == millions


@pytest.mark.parametrize(("name", "millions"), [("albert_xlarge", 58.7), ("albert_xxlarge", 222.6)])
def test_the_largest_alberts_are_what_their_shapes_come_to(name, millions):
    """The slides print 60M and 235M, which no count of these shapes gives: V E + 512 E + E D for
    the embeddings, 12 D^2 + 13 D for the one layer, D^2 for the pooler."""
    config = catalog.config(name)
    d, e, v = config.hidden_dim, config.embedding_dim, config.vocab_size
    embeddings = (v + config.max_length + config.num_segments + 2) * e + e * d + d
    layer = 12 * d * d + 13 * d
    count = parameters(name, pooler=True)
    assert count == embeddings + layer + d * d + d
    assert round(count / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("name", "millions"),
    # With the pooler where the paper counts it: RoBERTa 125M and 355M (Liu et al. 2019), ELECTRA's
    # discriminator 14M (Clark et al. 2020, table 1), XLM 250M.
    [
        ("roberta_base", 124.6),
        ("roberta_large", 355.4),
        ("electra_small", 13.5),
        ("xlm_xnli", 249.0),
    ],
)
def test_sizes_are_the_papers(name, millions):
    count = parameters(name, pooler=name.startswith("roberta"))
    assert round(count / 1e6, 1) == millions
