"""What the studies share: rows of a table, their corpora, and their pre-training."""

import argparse
import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Mapping, Sequence

from experiments.jobs import at_once
from experiments.studies import command, pretrained
from macaron_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Rows that systems share.

    Attributes:
        recipe: whose rows they are.
        settings: replaced ones, `path=value`.
        vocabulary: of which other corpus; None = its own.
        judged_on: of which other corpus the validation rows are, where its own are too few.
    """

    recipe: str
    settings: tuple[str, ...] = ()
    vocabulary: str | None = None
    judged_on: str | None = None


@dataclasses.dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        name: what the table calls it.
        recipe, corpus: what is pre-trained, and the name of the corpus.
        settings: replaced ones, `path=value`.
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
    """A training of a study.

    Attributes:
        system: what is trained.
        seed: its seed.
        block: its block; None = the recipe's.
    """

    system: System
    seed: int
    block: str | None = None

    @property
    def name(self) -> str:
        """Of its folder: letters, digits, underscores and dashes."""
        words = [self.system.name, *([self.block] if self.block else [])]
        # GPT and GPT-2 are two.
        return f"{re.sub('[^A-Za-z0-9_]+', '-', '-'.join(words))}-{self.seed}"


def planned(systems: Sequence[System], seeds: Sequence[int]) -> list[StudyRun]:
    """Every training of some systems: all seeds where they are compared, else the first."""
    return [
        StudyRun(system, seed, block)
        for system in systems
        for block in system.blocks or (None,)
        for seed in (seeds if system.compared else seeds[:1])
    ]


def chosen(names: Sequence[str] | None, systems: Sequence[System]) -> list[System]:
    """Systems by their names; all of them without names.

    Raises:
        UserError: there is none of a name.
    """
    known = {system.name: system for system in systems}
    for name in names or ():
        if name not in known:
            raise UserError(f"--systems {name!r}: there are {'; '.join(known)}")
    return [known[name] for name in names or known]


def prepared(
    options: argparse.Namespace,
    systems: Sequence[System],
    corpora: Mapping[str, Corpus],
    out: pathlib.Path,
) -> dict[str, str]:
    """Folders of the systems' corpora, by name; those that lack are prepared.

    Args:
        options: with `data_dir`.
        systems: whose.
        corpora: all, by name; one whose vocabulary others take comes before them.
        out: their folder.
    """
    wanted = {system.corpus for system in systems}
    wanted |= {corpora[name].vocabulary for name in wanted} - {None}
    for name, corpus in corpora.items():
        if name not in wanted:
            continue
        words = ["prepare", corpus.recipe, str(out / name), *set_flags(corpus.settings)]
        if corpus.vocabulary:
            words += ["--vocabulary", str(out / corpus.vocabulary)]
        if options.data_dir:
            words += ["--data-dir", options.data_dir]
        command("pretrain", *words)
    return {name: str(out / name) for name in wanted}


def set_flags(settings: Sequence[str]) -> list[str]:
    """`--set` before each setting."""
    return list(itertools.chain.from_iterable(("--set", setting) for setting in settings))


def train(
    options: argparse.Namespace,
    runs: Sequence[StudyRun],
    settings: Sequence[str],
    corpora: Mapping[str, str],
    out: pathlib.Path,
) -> None:
    """Pre-trains what is not complete, into OUT/runs, with OUT/logs.

    Args:
        options: with `seeds`, `jobs` and `set`.
        runs: what.
        settings: of every run; a system's own come after them, then the command's.
        corpora: their folders, by name.
        out: the study's folder.
    """

    def one(run: StudyRun) -> str:
        block = (f"model.block={run.block}",) if run.block else ()
        mine = [*settings, *run.system.settings, *block, *options.set, f"training.seed={run.seed}"]
        log = out / "logs" / f"{run.name}.log"
        folder = out / "runs" / run.name
        pretrained(run.system.recipe, folder, corpora[run.system.corpus], mine, log)
        return f"{run.name}: pre-trained"

    (out / "logs").mkdir(parents=True, exist_ok=True)
    # Seed by seed: an interrupted study has a whole table of fewer seeds.
    in_turn = sorted(runs, key=lambda run: options.seeds.index(run.seed))
    at_once(options.jobs, [functools.partial(one, run) for run in in_turn])
