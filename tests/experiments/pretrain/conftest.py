"""The documents that the tests of pre-training share."""

import pytest

from tests.experiments.pretraining_toy import write_documents


@pytest.fixture(scope="package")
def source(tmp_path_factory) -> str:
    """Documents of the letters' language."""
    return write_documents(tmp_path_factory.mktemp("documents"))
