# Modules of the commands that users run as `python -m MODULE`.
NAMES = ("ode", "tpu_check")
COMMANDS = tuple(f"experiments.lab.{name}" for name in NAMES)
