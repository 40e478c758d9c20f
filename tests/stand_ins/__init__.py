"""Fake versions of the programs in the guides, which check their calls and run nothing real.

`install` writes a fake version of each program into FOLDER/bin. The fake programs know the flags in
known.py and keep the state of an account: who is logged in, which services are enabled, which
machines exist. A command sent to a rented machine runs in a folder and an environment of that
machine, by a bash that refuses unset variables. Each mistake becomes a line in FOLDER/problems.
"""

import json
import pathlib
import sys

from tests.stand_ins.known import PROGRAMS

ROOT = pathlib.Path(__file__).parents[2]
START = "import sys; sys.path.append(sys.argv.pop(1)); from tests.stand_ins import programs"
START += "; sys.exit(programs.main(sys.argv[1:]))"


def install(folder: pathlib.Path, checkout: pathlib.Path, state: dict) -> dict[str, str]:
    """Writes the fake programs and an account's state; returns the local machine's environment."""
    (folder / "bin").mkdir(parents=True)
    for name in PROGRAMS.split():
        write_program(folder / "bin" / name, name)
    for name in ("work", "home", "buckets"):
        (folder / name).mkdir()
    for path in checkout.iterdir():  # the guides write into their working folder
        if path.name[0] != ".":
            (folder / "work" / path.name).symlink_to(path)
    (folder / "state.json").write_text(json.dumps(state))
    for name in ("problems", "calls"):
        (folder / name).touch()
    return environment(folder, "here", folder / "home") | {"CHECKOUT": str(checkout)}


def write_program(path: pathlib.Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS -c "{START}" {ROOT} {name} "$@"\n')
    path.chmod(0o755)


def environment(folder: pathlib.Path, machine: str, home: pathlib.Path) -> dict[str, str]:
    path = f"{folder / 'bin'}:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(home), "STAND_IN": str(folder), "MACHINE": machine}
