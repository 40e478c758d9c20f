"""The frame of both studies: systems of one size, their corpora, and their pre-training."""

import argparse
import dataclasses
import functools
import pathlib
import re

from experiments import studies
from experiments.studies import flags
from macaron_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Rows of a recipe that systems share.

    Attributes:
        vocabulary: name of the corpus whose vocabulary is used; None = its own.
        judged_on: name of the corpus whose validation rows are used, where its own are too few.
    """

    recipe: str
    settings: tuple[str, ...] = ()
    vocabulary: str | None = None
    judged_on: str | None = None


@dataclasses.dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        corpus: name of its corpus; "" = the system has a text and a training of its own.
        settings: replaced ones of the recipe, `path=value`.
        compared: trained with all seeds, for a comparison that is made; else with one.
        sentences: trained further into a Sentence-BERT.
        blocks: trained with each of them; none = as the recipe has it.
    """

    name: str
    recipe: str
    corpus: str
    settings: tuple[str, ...] = ()
    compared: bool = False
    sentences: bool = False
    blocks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """A training of a study; `block` None = the recipe's."""

    system: System
    seed: int
    block: str | None = None

    @property
    def name(self) -> str:
        """Name of its folder: letters, digits, underscores and dashes."""
        words = [self.system.name, *([self.block] if self.block else [])]
        # GPT and GPT-2 are two.
        return f"{re.sub('[^A-Za-z0-9_]+', '-', '-'.join(words))}-{self.seed}"


@dataclasses.dataclass(frozen=True)
class Study:
    """The systems that are compared.

    Attributes:
        settings: of every pre-training, `path=value`.
        corpora: by name; one whose vocabulary others take comes before them.
    """

    settings: tuple[str, ...]
    corpora: dict[str, Corpus]
    systems: tuple[System, ...]

    def runs(self, names: list[str] | None, seeds: list[int]) -> list[StudyRun]:
        """The trainings of some systems, None = all; with every seed where they are compared."""
        known = {system.name: system for system in self.systems}
        for name in names or ():
            if name not in known:
                raise UserError(f"--systems {name!r}: there are {'; '.join(known)}")
        return [
            StudyRun(known[name], seed, block)
            for name in names or known
            for block in known[name].blocks or (None,)
            for seed in (seeds if known[name].compared else seeds[:1])
        ]

    def train(
        self, runs: list[StudyRun], options: argparse.Namespace, out: pathlib.Path
    ) -> dict[str, str]:
        """Prepares corpora into OUT/corpora and pre-trains into OUT/runs, with OUT/logs; the
        folders of the corpora, by name.

        Args:
            options: with `data_dir`, `seeds`, `jobs`, and `set`, which comes after a system's own.
        """
        corpora = {
            name: str(out / "corpora" / name)
            for name, corpus in self.corpora.items()
            for run in runs
            if name in (run.system.corpus, self.corpora[run.system.corpus].vocabulary)
        }
        for name, folder in corpora.items():
            corpus = self.corpora[name]
            words = ["prepare", corpus.recipe, folder, *flags("--set", *corpus.settings)]
            words += flags("--vocabulary", corpora.get(corpus.vocabulary))
            studies.command("pretrain", *words, *flags("--data-dir", options.data_dir))

        def one(run: StudyRun) -> None:
            settings = [*self.settings, *run.system.settings]
            settings += [f"model.block={run.block}"] if run.block else []
            settings += [*options.set, f"training.seed={run.seed}"]
            folder, log = out / "runs" / run.name, out / "logs" / f"{run.name}.log"
            studies.pretrained(run.system.recipe, folder, corpora[run.system.corpus], settings, log)

        # Seed by seed: an interrupted study has a whole table of fewer seeds.
        in_turn = sorted(runs, key=lambda run: options.seeds.index(run.seed))
        tasks = {f"{run.name}: pre-trained": functools.partial(one, run) for run in in_turn}
        studies.at_once(options.jobs, tasks)
        return corpora
