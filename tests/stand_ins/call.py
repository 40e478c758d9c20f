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
        words: the positional arguments.
        flags: dict mapping flag to value; switches are True, and the last of repeated flags counts.
    """

    def __init__(self, words: list[str]):
        self.folder = pathlib.Path(os.environ.get("STAND_IN", ""))
        self.machine = os.environ.get("MACHINE", "")
        self.program, *words = words
        known = {}
        for line in FLAGS.replace("\n  ", " ").strip().splitlines():
            command, count, flags = (part.strip() for part in line.split("|"))
            known[command] = count, flags
        whole = [self.program, *words]
        lengths = [n for n in range(len(whole), 0, -1) if " ".join(whole[:n]) in known]
        if not lengths:
            raise Problem("no such command is known")
        self.command = " ".join(whole[: lengths[0]])
        count, flags = known[self.command]
        if self.program == "gcloud":
            flags += " " + GCLOUD_WIDE
        self.parse(whole[lengths[0] :], flags.split())
        least = int(count.rstrip("+"))
        if len(self.words) < least or (count[-1] != "+" and len(self.words) > least):
            raise Problem(f"takes {count} arguments, not {len(self.words)}: {self.words}")

    def parse(self, words: list[str], flags: list[str]) -> None:
        self.words, self.flags = [], {}
        names = {flag.strip("!=") for flag in flags}
        valued = {flag.strip("!=") for flag in flags if flag[-1] == "="}
        while words:
            word, *words = words
            if word == "--":  # gcloud passes what follows to ssh
                break
            name, given, value = word.partition("=") if word[:2] == "--" else (word, "", "")
            if word[0] != "-" or word == "-":
                self.words.append(word)
                if self.command in ("ssh", "docker run"):  # flags come before the first argument
                    self.words += words
                    break
            elif name not in names:
                raise Problem(f"has no flag {name}")
            elif name not in valued:
                self.flags[name] = True
            elif given or words:
                self.flags[name] = value if given else words.pop(0)
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

    def keep(self, kind: str, name: str, value=True) -> None:
        self.state(lambda state: state.setdefault(kind, {}).update({name: value}))

    def have(self, kind: str, name: str, what: str):
        """Returns a resource; raises a `Problem` if it does not exist.

        Args:
            kind: key of the account's state, such as "machines".
            name: name of the resource.
            what: name of the resource type in the message.
        """
        things = self.state().get(kind, {})
        if name not in things:
            raise Problem(f"there is no {what} {name}")
        return things[name]

    def new(self, kind: str, name: str, what: str, value=True) -> None:
        """Creates a resource; raises a `Problem` if it exists already."""
        if name in self.state().get(kind, {}):
            raise Problem(f"there is a {what} {name} already")
        self.keep(kind, name, value)

    def drop(self, kind: str, name: str, what: str) -> None:
        self.have(kind, name, what)
        self.state(lambda state: state[kind].pop(name))

    def run(self) -> int:
        handler = getattr(self, self.program.replace("-", "_"))
        return handler() or 0
