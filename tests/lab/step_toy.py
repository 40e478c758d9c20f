"""Contenders for the children of `workers` that take no framework to make."""

from experiments.lab.benchmarks.workers import Contender


def contenders(hidden_dim: int, **_) -> dict[str, Contender]:
    """One that halves; it has D parameters."""
    print("what a library prints is no reply")
    return {"toy": Contender(lambda steps: steps / 2, hidden_dim)}


def gemm_contenders(**_) -> dict[str, Contender]:
    """A product that takes no time to speak of."""
    return {"gemm": Contender(lambda steps: 0.0)}


def others(hidden_dim: int, **_) -> dict[str, Contender]:
    """One that fails after its third step."""

    def run(steps: int) -> float:
        if steps > 3:
            raise RuntimeError("it fails")
        return 0.0

    return {"other": Contender(run, hidden_dim)}
