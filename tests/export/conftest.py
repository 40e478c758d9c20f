"""The toy model and a running server, shared by the serving tests."""

import shutil

import pytest

from tests.export.serving_toys import export_toy, toy_server


@pytest.fixture(scope="session")
def toy_versions(once):
    """Returns a folder with versions 1 and 2 of the toy model; tests copy it before serving."""

    def make(folder) -> None:
        for version in (1, 2):
            export_toy(folder, version)

    return once("toys", make)


@pytest.fixture
def model_folder(tmp_path, toy_versions):
    """Returns this test's own folder with version 1 of the toy model."""
    folder = tmp_path / "toy"
    shutil.copytree(toy_versions / "1", folder / "1")
    return folder


@pytest.fixture(scope="session")
def live_server(tmp_path_factory, toy_versions):
    """Yields a server that runs version 1 of the toy model on a free port."""
    folder = tmp_path_factory.mktemp("live")
    shutil.copytree(toy_versions / "1", folder / "1")
    limits = {"max_request_rows": 100, "max_body_bytes": 1_000_000}
    with toy_server(folder, **limits, poll_seconds=0.1) as server:
        yield server
