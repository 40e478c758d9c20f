"""The wheel has one top-level name: the commands' packages lie in `macaron_tf/commands` there.

`experiments.lab`, which measures the project itself, is not among them.
"""

from setuptools import find_packages, setup

COMMANDS = ("experiments", "export")

setup(
    packages=[
        *find_packages(include=["macaron_tf*"]),
        *(
            f"macaron_tf.commands.{name}"
            for name in find_packages(
                include=[f"{name}*" for name in COMMANDS], exclude=["experiments.lab*"]
            )
        ),
    ],
    package_dir={f"macaron_tf.commands.{name}": name for name in COMMANDS},
)
