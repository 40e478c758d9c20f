"""Tests of `experiments.lab`."""

# Its commands, `python -m MODULE`.
COMMANDS = tuple(
    f"experiments.lab.{name}"
    for name in ("benchmarks", "cloud_cost", "ode", "slides", "stability", "tpu_check")
)
