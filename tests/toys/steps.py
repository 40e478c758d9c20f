"""Toy `Contender` objects, the implementations that a benchmark compares.

The child processes of `workers` import this module, which needs no framework.
"""

from experiments.lab.benchmarks.workers import Contender


def contenders(hidden_dim: int, **_) -> dict[str, Contender]:
    """Returns a `Contender` that reports half a second per step and `hidden_dim` parameters."""
    print("what a library prints is no reply")
    return {"toy": Contender(lambda steps: steps / 2, hidden_dim)}


def others(hidden_dim: int, **_) -> dict[str, Contender]:
    """Returns a `Contender` that raises an error for more than 3 steps."""

    def run(steps: int) -> float:
        if steps > 3:
            raise RuntimeError("it fails")
        return 0.0

    return {"other": Contender(run, hidden_dim)}
