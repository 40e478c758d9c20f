"""The wheel has one top-level name: the commands' packages lie in `macaron_tf/commands` there.

`experiments.lab`, which measures the project itself, is not among them. The package's description
is the README without links to files of the repository: the text of a link stays, a picture and a
link that alone stands in brackets go.
"""

import pathlib
import re

from setuptools import find_packages, setup

COMMANDS = ("experiments", "export")
ROOT = pathlib.Path(__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = r"\[([^\]]*)\]\((?!https?:)[^)]*\)"
ALONE = rf"!{LINK}\n*| \({LINK}\)"

setup(
    long_description=re.sub(LINK, r"\1", re.sub(ALONE, "", README)),
    long_description_content_type="text/markdown",
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
