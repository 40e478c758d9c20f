"""Checks of arguments that every layer makes the same way."""

from collections.abc import Sequence


def check_choice(argument: str, value: str, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`, else raises a ValueError that lists them."""
    if value not in choices:
        raise ValueError(f"{argument}={value!r} is not one of {', '.join(map(repr, choices))}")
    return value


def check_divisible(dividend_name: str, dividend: int, divisor_name: str, divisor: int) -> int:
    """Returns `dividend // divisor`, or raises a ValueError where it does not come out even."""
    if dividend % divisor:
        raise ValueError(
            f"{dividend_name}={dividend} is not a multiple of {divisor_name}={divisor}"
        )
    return dividend // divisor
