"""Profiles of the fuzz tests, and a check of the allowed outcomes.

`make test` runs the quick profile, whose cases are always the same. `make fuzz` runs the long
profile, whose cases depend on the seed.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
strategies = hypothesis.strategies

from macaron_tf.errors import UserError  # noqa: E402

LONG = os.environ.get("MACARON_TF_FUZZ") == "long"


def examples(quick: int, long: int) -> Callable:
    """Returns a decorator that sets a test's number of cases in each profile."""
    return hypothesis.settings(
        max_examples=long if LONG else quick,
        derandomize=not LONG,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
    )


def survive(function: Callable, *arguments, **options) -> Any:
    """Returns a call's result, or `None` after a `UserError` or an exit with status 0 or 2."""
    try:
        return function(*arguments, **options)
    except UserError as error:
        assert str(error).strip(), "no sentence"
    except SystemExit as error:
        assert error.code in (0, 2), error.code
    return None


_ODD = [
    "", "abc", "1e-320", "(1,)", "{}", "[]", "()", "None", "True", "-1", "0", "1", "1.5", "nan",
    "inf", "-inf", "1e400", "99999999999999999999999999999", "4294967296", "2147483647", "(1,2)",
    "('a','b')", "((1,2),(3,4))", "{'a':1}", "\x00", "é" * 2000, "[[[[", "(((((1)))))", "b'x'",
    "1j", "--", "=", "a=b", "lambda:0", "x:y", "macaron_tf:load", "./x.py", "tsv:", "text:",
    "\ud800", "\n", "%s", "{0}", "0x10", "1_000", "+1", " 1", "'1'", "[None]", "(None,)", "{1}",
    "...", "-0.0",
]  # fmt: skip
_text = strategies.text(max_size=5)
_leaves = strategies.none() | strategies.booleans() | strategies.integers() | _text


def _nested(inner):
    rows = strategies.lists(inner, max_size=3)
    return rows | rows.map(tuple) | strategies.dictionaries(_text, inner, max_size=2)


# Setting values as strings of a command line.
values = strategies.one_of(
    strategies.sampled_from(_ODD),
    strategies.integers().map(str),
    strategies.floats().map(str),
    strategies.text(max_size=30),
    strategies.recursive(_leaves, _nested, max_leaves=5).map(repr),
)
