"""Small parallel corpora and joint vocabularies."""

from tests.toys.vocabularies import (  # noqa: F401  fixtures
    bert,
    real_pairs,
    real_vocabulary,
    toy_pairs,
    toy_vocabulary,
)
