"""The largest batch that fits, in few compilations."""

from collections.abc import Callable

# Rows are tried in multiples of it: what a tile of a TPU has, and 8 replicas can share.
MULTIPLE = 8


def memory_total(result: dict) -> int | None:
    """Bytes that a compiled step needs at once, or that its refused compilation asked for."""
    if memory := result.get("memory"):
        kept = memory["arguments"] + memory["outputs"] - memory["aliased"]
        return kept + memory["temporaries"] + memory["code"]
    return result.get("memory_needed")


def search(
    compiled: Callable[[int], dict], rows: int, limit: int, compilations: int
) -> dict[int, dict]:
    """Compiles a step at several numbers of rows, near to the most that fits.

    Args:
        compiled: `rows -> compile_step`'s result.
        rows: where to begin.
        limit: bytes of a core.
        compilations: how many at most, 1 or more.

    Returns:
        The results by rows, `rows` first. Where a compilation fails for another reason than
        memory, it ends there.
    """
    results: dict[int, dict] = {}
    guess: int | None = rows
    while guess is not None and len(results) < compilations:
        results[guess] = compiled(guess)
        if memory_total(results[guess]) is None:
            break
        guess = _next(results, limit)
    return results


def fits(result: dict, limit: int) -> bool:
    """Whether a step was compiled and needs no more than a core has."""
    return "memory" in result and memory_total(result) <= limit


def _next(results: dict[int, dict], limit: int) -> int | None:
    """Where the need, taken for a straight line, meets the limit; None where that is known."""
    best = max((rows for rows, result in results.items() if fits(result, limit)), default=0)
    worst = min((rows for rows, result in results.items() if not fits(result, limit)), default=None)
    points = sorted((rows, memory_total(result)) for rows, result in results.items())
    if len(points) == 1:
        (rows, total), memory = points[0], next(iter(results.values())).get("memory")
        # What does not grow with the batch: all but the temporaries, of which gradients are few.
        fixed = total - memory["temporaries"] if memory else 0
        points = [(0, fixed), (rows, total)]
    # The two nearest to the limit: the compiler computes anew what does not fit, and bends the line
    (a, low), (b, high) = sorted(sorted(points, key=lambda p: abs(p[1] - limit))[:2])
    predicted = a + (limit - low) * (b - a) / (high - low) if high > low else 2 * b
    guess = int(predicted) // MULTIPLE * MULTIPLE
    if worst is not None:
        guess = min(guess, (worst - 1) // MULTIPLE * MULTIPLE)
    return guess if guess > best else None
