"""Training commands as contenders: child processes that run in their turns and stand still between.

Both systems are started by the commands that their users type, and watched from outside through
the logs that they write, so that what is timed is all that training does.
"""

import abc
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from experiments.benchmarks.joeynmt import logged_update, read_pieces
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import TranslationMetric, evaluate_translations
from macaron_tf.text import SentencePieceVocabulary
from macaron_tf.training.progress import TRAIN, VALIDATION, read_lines

_POLL_SECONDS = 0.01


class Trainer(abc.ABC):
    """A training command that logs after every so many updates.

    Args:
        command: what to run.
        output: file for what it prints.
        log: file to which it writes a line after some updates.
        environment: of the process.

    Attributes:
        updates: as logged so far.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: pathlib.Path,
        log: pathlib.Path,
        environment: Mapping[str, str],
    ):
        self.updates = 0
        self._command, self._output, self._log = list(command), output, log
        self._environment = dict(environment)
        self._process: subprocess.Popen | None = None
        self._read = 0

    def turn(self, updates: int) -> float:
        """Lets the command run until it has logged so many more updates, then halts it.

        Args:
            updates: a multiple of those between two lines of the log.

        Returns:
            Seconds of CPU that the process used for them.

        Raises:
            UserError: the command ended.
        """
        self.go()
        begun, wanted = self._cpu_seconds(), self.updates + updates
        while self.updates < wanted:
            time.sleep(_POLL_SECONDS)
            self.look()
        self._process.send_signal(signal.SIGSTOP)
        return self._cpu_seconds() - begun

    def go(self) -> None:
        """Starts the command, or lets it go on."""
        if self._process is None:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    self._command, stdout=output, stderr=output, env=self._environment
                )
        self._process.send_signal(signal.SIGCONT)

    def look(self) -> None:
        """Reads what was logged since the last look.

        Raises:
            UserError: the command ended.
        """
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(self._read)
                text = log.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.decode().splitlines():
                self.updates = self.logged_update(line) or self.updates
        if self._process.poll() is not None:
            said = self._output.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise UserError(
                f"`{' '.join(self._command[:4])} ...` ended with exit status "
                f"{self._process.returncode} after update {self.updates}; it said: {said[-1]}"
            )

    def end(self) -> None:
        """Kills the command, running or halted."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @abc.abstractmethod
    def logged_update(self, line: str) -> int | None:
        """The number of updates that a line of the log tells of; None = it tells of none."""

    @abc.abstractmethod
    def validated(self) -> list[int]:
        """The updates after which a greedy translation of the validation text is at hand."""

    @abc.abstractmethod
    def bleu(self, step: int) -> float:
        """The tokenized BLEU of that translation."""

    def _cpu_seconds(self) -> float:
        """Of all threads so far, from proc(5): utime and stime are fields 14 and 15."""
        stat = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        fields = stat.rpartition(")")[2].split()  # the name before may hold blanks
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class OurTrainer(Trainer):
    """`python -m experiments.translate train`.

    Args:
        command, environment: as for `Trainer`.
        run: the run's folder.
    """

    def __init__(self, command: Sequence[str], run: pathlib.Path, environment: Mapping[str, str]):
        super().__init__(command, run.with_suffix(".txt"), run / "metrics.jsonl", environment)

    def logged_update(self, line: str) -> int | None:
        logged = json.loads(line)
        return logged["step"] if logged["kind"] == TRAIN else None

    def validated(self) -> list[int]:
        return list(self._scores())

    def bleu(self, step: int) -> float:
        return self._scores()[step]

    def _scores(self) -> dict[int, float]:
        lines = read_lines(self._log)
        return {line["step"]: line["bleu"] for line in lines if line["kind"] == VALIDATION}


class JoeyTrainer(Trainer):
    """`python -m joeynmt train`.

    Args:
        command, environment: as for `Trainer`.
        run: its `model_dir`.
        vocabulary: whose pieces its translations are made of.
        references: of the validation text.
        metric: of the recipe.
    """

    def __init__(
        self,
        command: Sequence[str],
        run: pathlib.Path,
        environment: Mapping[str, str],
        vocabulary: SentencePieceVocabulary,
        references: Sequence[str],
        metric: TranslationMetric,
    ):
        super().__init__(command, run.with_suffix(".txt"), run / "train.log", environment)
        self._run, self._vocabulary = run, vocabulary
        self._references, self._metric = references, metric

    def logged_update(self, line: str) -> int | None:
        return logged_update(line)

    def validated(self) -> list[int]:
        lines = {
            int(path.stem): path.read_bytes().count(b"\n") for path in self._run.glob("*.hyps")
        }
        return sorted(step for step, count in lines.items() if count == len(self._references))

    def bleu(self, step: int) -> float:
        hypotheses = read_pieces(self._run / f"{step}.hyps", self._vocabulary)
        return evaluate_translations(hypotheses, self._references, self._metric).tokenized_bleu
