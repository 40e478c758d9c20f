"""The runs on toy tasks and the stand-ins for commands that tests of commands have."""

from tests.experiments.conftest import (  # noqa: F401
    calls,
    ran,
    source,
    study,
    study_corpus,
    toy,
)
