"""Checks of arguments, shared by layers, kernels and configurations."""

from collections.abc import Sequence


def check_choice(argument: str, value: str, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`, else raises a ValueError that lists them."""
    if value not in choices:
        raise ValueError(f"{argument}={value!r} must be one of {', '.join(map(repr, choices))}")
    return value


def check_divisible(dividend_name: str, dividend: int, divisor_name: str, divisor: int) -> int:
    """Returns `dividend // divisor`, or raises a ValueError if there is a remainder."""
    if dividend % divisor:
        raise ValueError(
            f"{dividend_name}={dividend} is not a multiple of {divisor_name}={divisor}"
        )
    return dividend // divisor


def check_count(argument: str, value: int, least: int = 1) -> int:
    """Returns `value` if it is a whole number of at least `least`, else raises a ValueError."""
    if type(value) is not int or value < least:
        raise ValueError(f"{argument}={value!r} must be a whole number of at least {least}")
    return value
