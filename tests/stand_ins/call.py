"""Calls of a fake program: the parsed command line and the account's state."""

import fcntl
import json
import os
import pathlib

from tests.stand_ins.known import FLAGS, GCLOUD_WIDE


class Problem(Exception):
    """A mistake that the real program would refuse."""


class Call:
    """One call of a program.

    Attributes:
        folder: folder of the fake programs and of the account's state.
        machine: "here", or the name of a rented machine.
        program: name of the program.
        command: command and sub-commands, which are a key of `FLAGS`, such as "gcloud compute ssh".
        arguments: the positional arguments.
        flags: dict mapping flag to value; switches are True, and the last of repeated flags counts.
    """

    def __init__(self, command_line: list[str]):
        self.folder = pathlib.Path(os.environ.get("STAND_IN", ""))
        self.machine = os.environ.get("MACHINE", "")
        self.program = command_line[0]
        commands = {}
        for line in FLAGS.replace("\n  ", " ").strip().splitlines():
            command, count, flags = (part.strip() for part in line.split("|"))
            commands[command] = count, flags
        lengths = [
            n for n in range(len(command_line), 0, -1) if " ".join(command_line[:n]) in commands
        ]
        if not lengths:
            raise Problem("no such command is known")
        self.command = " ".join(command_line[: lengths[0]])
        count, flags = commands[self.command]
        if self.program == "gcloud":
            flags += " " + GCLOUD_WIDE
        self.parse(command_line[lengths[0] :], flags.split())
        minimum = int(count.rstrip("+"))
        if len(self.arguments) < minimum or (count[-1] != "+" and len(self.arguments) > minimum):
            raise Problem(f"takes {count} arguments, not {len(self.arguments)}: {self.arguments}")

    def parse(self, remaining: list[str], flags: list[str]) -> None:
        self.arguments, self.flags = [], {}
        names = {flag.strip("!=") for flag in flags}
        valued = {flag.strip("!=") for flag in flags if flag[-1] == "="}
        while remaining:
            argument, *remaining = remaining
            if argument == "--":  # gcloud passes what follows to ssh
                break
            name, has_value, value = (
                argument.partition("=") if argument[:2] == "--" else (argument, "", "")
            )
            if argument[0] != "-" or argument == "-":
                self.arguments.append(argument)
                if self.command in ("ssh", "docker run"):  # flags come before the first argument
                    self.arguments += remaining
                    break
            elif name not in names:
                raise Problem(f"has no flag {name}")
            elif name not in valued:
                self.flags[name] = True
            elif has_value or remaining:
                self.flags[name] = value if has_value else remaining.pop(0)
            else:
                raise Problem(f"{name} takes a value")
        missing = {flag.strip("!=") for flag in flags if flag[0] == "!"} - self.flags.keys()
        if missing:
            raise Problem(f"needs {', '.join(sorted(missing))}")
        if empty := [name for name, value in self.flags.items() if value == "" and name != "-N"]:
            raise Problem(f"{empty[0]} is empty")

    def state(self, change=None):
        """Applies `change` to the account's state under a file lock; returns the state."""
        with open(self.folder / "state.json", "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = json.load(file)
            if change:
                change(state)
                file.seek(0)
                file.truncate()
                json.dump(state, file)
            return state

    def keep(self, group: str, name: str, value=True) -> None:
        self.state(lambda state: state.setdefault(group, {}).update({name: value}))

    def have(self, group: str, name: str, what: str):
        """Returns a resource; raises a `Problem` if it does not exist.

        Args:
            group: key of the account's state, such as "machines".
            name: name of the resource.
            what: name of the resource type in the message.
        """
        resources = self.state().get(group, {})
        if name not in resources:
            raise Problem(f"there is no {what} {name}")
        return resources[name]

    def new(self, group: str, name: str, what: str, value=True) -> None:
        """Creates a resource; raises a `Problem` if it exists already."""
        if name in self.state().get(group, {}):
            raise Problem(f"there is a {what} {name} already")
        self.keep(group, name, value)

    def drop(self, group: str, name: str, what: str) -> None:
        self.have(group, name, what)
        self.state(lambda state: state[group].pop(name))

    def run(self) -> int:
        handler = getattr(self, self.program.replace("-", "_"))
        return handler() or 0
