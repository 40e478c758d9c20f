"""Runs of every type that are killed and resumed are bit-identical to uninterrupted runs.

`test_resume` and `tests/training/test_session.py` have faster tests.
"""

import contextlib
import itertools
import os
import pathlib
import random
import signal
import time

import pytest

from macaron_tf.training.progress import read_lines
from tests.toys import runs
from tests.toys.pretraining import flags, prepare, toy_settings
from tests.toys.processes import assert_same_run, cluster, started

MOMENTS = ("start", "update", "save", "validation")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KILLS = 2  # for each run type
ROUND = 40  # updates between validations
SHORT = ["max_steps=120", f"validate_every={ROUND}", "save_every_steps=5", "log_every=1"]
SHORT += ["keep_last=3", "schedule=constant", "warmup_steps=1", "max_minutes=None"]
SHORT = flags([f"training.{setting}" for setting in SHORT])


def replicas(value):
    return [*KINDS["masked"](value), "--strategy", "mirrored", "--replicas", "2"]


MEMORY = ("batch_size=8", "objective.memory_length=12", "corpus.validation_run=4")
KINDS = {
    "masked": runs.pretraining("bert_tiny"),
    "translation": runs.translation,
    "causal": runs.pretraining("gpt2_tiny", "vocabulary.size=272"),
    "electra": runs.pretraining("electra_tiny"),
    "xlnet": runs.pretraining("xlnet_tiny", *MEMORY),
    "t5": runs.t5,
    "text_to_text": runs.text_to_text,
    "fine_tuning": runs.fine_tuning,
    "embeddings": runs.embeddings,
    "elmo": runs.elmo,
    "tcn": runs.tcn,
    "replicas": replicas,
}


def dealt(seed: int) -> dict[str, list[tuple[str, signal.Signals]]]:
    """Returns a dict mapping each run type to a list of kills, each as (moment, signal).

    Across all run types, every combination of moment and signal occurs.
    """
    rng, cards = random.Random(seed), list(itertools.product(MOMENTS, SIGNALS))
    deck = []
    while len(deck) < KILLS * len(KINDS):
        deck += rng.sample(cards, len(cards))
    return {kind: [deck.pop() for _ in range(KILLS)] for kind in KINDS}


class Session:
    """The processes of a training run.

    Files in the folder of the run show when a moment, such as a save, has come.

    Args:
        words: command and its arguments.
        run: folder of the run.
        clusters: TF_CONFIG of each worker; an empty sequence means one process.
    """

    def __init__(self, words: list[str], run: pathlib.Path, clusters=()):
        self.run, self._log = run, run / "metrics.jsonl"
        self._before = self._inode()
        arguments = ["-m", "macaron_tf", *words]
        environments = [{"TF_CONFIG": cluster} for cluster in clusters] or [{}]
        self.processes = [started(arguments, **environment) for environment in environments]

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait_for(self, moment: str, rng: random.Random) -> None:
        """Waits for a moment, or until the first process ends."""
        if moment == "start":
            time.sleep(rng.uniform(1, 8))
            return
        self._wait(lambda: self._inode() not in (None, self._before))  # until the log is rewritten
        if moment == "update":
            until = self._last()["step"] + rng.randint(1, 10)
            self._wait(lambda: self._last()["step"] >= until)
        elif moment == "save":
            self._wait(lambda: list((self.run / "checkpoints").glob(".tmp-*")))
            time.sleep(rng.uniform(0, 0.01))
        else:
            self._wait(self._validates)
            time.sleep(rng.uniform(0, 0.05))

    def ends(self, seconds: float = 300) -> list[tuple[int, str]]:
        """Waits for all processes; returns (exit status, output) of each process."""
        outputs = [process.communicate(timeout=seconds)[0] for process in self.processes]
        return [(p.returncode, output) for p, output in zip(self.processes, outputs, strict=True)]

    def _inode(self) -> int | None:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self._log).st_ino

    def _last(self) -> dict:
        return (read_lines(self._log) or [{"step": 0, "kind": "none"}])[-1]

    def _validates(self) -> bool:
        last = self._last()
        return last["kind"] == "train" and last["step"] % ROUND == 0

    def _wait(self, reached) -> None:
        until = time.monotonic() + 300
        while not reached() and self.processes[0].poll() is None:
            assert time.monotonic() < until, "the moment never came"
            time.sleep(0.001)


def check_end(moment: str, number: signal.Signals, status: int, output: str) -> None:
    """Checks the exit status and output of a process that was sent a signal."""
    assert "Traceback" not in output, output
    said = [line for line in output.splitlines() if line.startswith("interrupted")]
    early = moment == "start"  # SIGTERM is caught during training only, not during imports
    statuses = {signal.SIGKILL: [-9], signal.SIGTERM: [143, *[-15] * early], signal.SIGINT: [130]}
    assert status in statuses[number], output
    assert len(said) == (status > 0), output
    if not early:
        assert all("is saved in" in line for line in said), output


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_is_the_uninterrupted_one(kind, request, tmp_path):
    command, rng = KINDS[kind](request.getfixturevalue) + SHORT, random.Random(kind)
    found = []
    # The killed run comes first, so that kills also hit the corpus preparation.
    for name, kills in {"killed": dealt(seed=1)[kind], "whole": []}.items():
        words = [word.replace("RUN", str(tmp_path / name)) for word in command]
        run = tmp_path / name
        for moment, number in kills:
            for _ in range(4):  # on a busy machine, a validation may end before the signal comes
                with Session(words, run) as session:
                    session.wait_for(moment, rng)
                    session.processes[0].send_signal(number)
                    [(status, output)] = session.ends()
                if status == 0 and session._last()["step"] == 120:
                    break  # the run ended before the signal came
                check_end(moment, number, status, output)
                if moment != "validation" or session._validates():
                    break
        with Session(words, run) as session:
            [(status, output)] = session.ends()
        assert status == 0, output
        found.append(run)
    assert_same_run(*found)
    names = [sorted(path.name for path in run.iterdir()) for run in found]
    assert names[0] == names[1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_two_workers_of_which_one_is_killed_are_the_uninterrupted_ones(victim, request, tmp_path):
    """If one of two workers is killed, the other worker ends too.

    After restarts, the run is bit-identical to an uninterrupted run.
    """
    value = request.getfixturevalue
    corpus = prepare("bert_tiny", str(tmp_path / "corpus"), toy_settings(value("source")))
    command = [*KINDS["masked"](value), "--corpus", corpus, "--strategy", "multi_worker"]
    rng, folders = random.Random(victim), {name: tmp_path / name for name in ("killed", "whole")}

    def workers(name):
        words = [word.replace("RUN", str(folders[name])) for word in command + SHORT]
        return Session(words, folders[name], cluster(2))

    signals = rng.sample(SIGNALS, len(SIGNALS))
    for moment, number in zip(MOMENTS[1:], signals, strict=True):
        with workers("killed") as session:
            session.wait_for(moment, rng)
            session.processes[victim].send_signal(number)
            ends = session.ends()
        status, output = ends.pop(victim)
        check_end(moment, number, status, output)
        [(status, output)] = ends
        if number == signal.SIGKILL:
            assert status != 0 and "lost another worker" in output, output
        else:  # a worker that is told to stop stops all
            check_end(moment, signal.SIGTERM, status, output)
    for name in folders:
        with workers(name) as session:
            assert [status for status, _ in session.ends()] == [0, 0]
    assert_same_run(*folders.values())
