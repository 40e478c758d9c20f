"""Fixtures shared by all tests."""

import os
import pathlib

# Set before TensorFlow is imported by any test module: its start-up notes are not test output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest

SHARED_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data beside the checkout; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data not found: no folder {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def tfds_dir(shared_data: pathlib.Path) -> str:
    """The TFDS `data_dir` among the real data."""
    return str(shared_data / "tfds")
