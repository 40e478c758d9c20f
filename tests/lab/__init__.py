# Modules of the commands that users run as `python -m MODULE`.
COMMANDS = tuple(f"experiments.lab.{name}" for name in ("benchmarks", "ode", "tpu_check"))
