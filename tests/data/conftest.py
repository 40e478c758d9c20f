"""A small real corpus and vocabulary for the tests of this room."""

from tests.text.conftest import (  # noqa: F401 -- fixtures
    real_pairs,
    real_vocabulary,
    toy_pairs,
    toy_vocabulary,
)
