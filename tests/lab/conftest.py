"""Fixtures of the command tests: runs on toy tasks, and fake commands."""

from tests.experiments.conftest import (  # noqa: F401
    calls,
    ran,
    source,
    study,
    study_corpus,
    toy,
)
