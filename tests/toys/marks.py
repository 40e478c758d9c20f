"""Marks of some cases of a test, which `make test` or `make test-all` leave out."""

import pytest


def thorough(*cases, but=()) -> list:
    """Returns cases that `make test` leaves out, except those in `but`; a tuple is one case."""
    return _marked(pytest.mark.thorough, cases, but)


def slow(*cases, but=()) -> list:
    """Returns cases that only `make test-slow` runs, except those in `but`; a tuple is one case."""
    return _marked(pytest.mark.slow, cases, but)


def _marked(mark, cases, but) -> list:
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*value, marks=() if case in but else mark)
        for case, value in zip(cases, values, strict=True)
    ]
