"""Arms of a comparison, and the base class of objects that train and score the arms.

An arm is one of the compared variants.
"""

import abc
import argparse
import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import keras

from experiments import registry, studies
from macaron_tf.errors import UserError
from macaron_tf.io.paths import read_json
from macaron_tf.runs.finetuning import FinetuningRecipe
from macaron_tf.runs.recipe import Recipe, recipe_from_json
from macaron_tf.runs.run import DIVERGED, Run, saved_versions
from macaron_tf.training import Diverged
from macaron_tf.training.progress import read_lines

# Flags that apply only to fine-tuning on the tasks of --tasks.
TASK_FLAGS = ("finetune_set", "learning_rates")


def recipe_of_task(text: str) -> str:
    """Returns the recipe that a value of `--tasks` names, such as "finetune:rte" for "rte"."""
    return text if ":" in text else f"finetune:{text}"


def recipes_of_tasks(tasks: Sequence[str]) -> list[str]:
    """Returns the recipes that the values of `--tasks` name."""
    recipes = [recipe_of_task(task) for task in tasks]
    for recipe in recipes:
        registry.load(recipe, FinetuningRecipe)
    names = [task_of(recipe) for recipe in recipes]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--tasks names {repeated[0]} twice: give each task once")
    return recipes


def task_of(recipe: str) -> str:
    """Returns the task of a recipe, such as "rte" for "finetune:rte"."""
    return recipe.rpartition(":")[2]


@dataclasses.dataclass(frozen=True)
class Arm:
    """One of the compared variants, which is a recipe with changed settings.

    The form on the command line is `[NAME=]RECIPE[:PATH=VALUE,...]`. A value may contain commas,
    because a setting ends only at a comma before `PATH=`. The recipe may be a user's function, as
    `FILE.py[:NAME]` or `package.module:NAME`, and may have a task, as in `finetune:rte`.

    Attributes:
        name: name in tables and folders, by default the name of the recipe.
        width: hidden width from `--widths` at which this arm is trained; `None` without that flag.
        task: task from `--tasks` on which this arm, a pre-trained model, is fine-tuned; `None` for
            an arm that is a recipe.
        rate: learning rate from `--rates` at which this arm is trained; `None` without that flag.
    """

    name: str
    recipe: str
    settings: tuple[str, ...]
    width: int | None = None
    rate: float | None = None
    task: str | None = None

    @staticmethod
    def split(text: str) -> tuple[str | None, str, str]:
        """Splits the text of an arm into name, recipe and settings."""
        pattern = r"(?:([^=:]+)=)?([^:]*(?::[A-Za-z_][\w+]*(?=:|$)){0,2}):?(.*)"
        return re.fullmatch(pattern, text, re.S).groups()

    @classmethod
    def parse(cls, text: str) -> "Arm":
        name, recipe, settings = cls.split(text)
        parts = re.split(r",\s*(?=[a-z_]+(?:\.\w+)*=)", settings) if settings else []
        name = name or recipe.replace(":", "-")
        if not re.fullmatch(r"[\w.+-]+", name):
            raise UserError(
                f"the name {name!r} of the arm {text!r} must consist of letters, digits, '_', '.', "
                "'+' and '-': give another name, as in NAME=RECIPE"
            )
        return cls(name, recipe, tuple(parts))

    @classmethod
    def of_start(cls, text: str, recipe: str) -> "Arm":
        """Parses `[NAME=]FROM[:PATH=VALUE,...]`, a pre-trained model to fine-tune by `recipe`.

        NAME is by default the last part of FROM.
        """
        pattern = r"(?:([\w.+-]+)=)?(.+?)(?::([a-z_]+(?:\.\w+)*=.*))?"
        name, location, settings = re.fullmatch(pattern, text, re.S).groups()
        name = name or re.split("[/:]", location.rstrip("/"))[-1]
        arm = cls.parse(f"{name}={recipe}:{settings or ''}")
        return arm.changed(f"init={location}", task=task_of(recipe))

    @property
    def group(self) -> int | str | None:
        """Width or task of the arm. The arms of a group are compared with each other."""
        return self.width if self.task is None else self.task

    @property
    def label(self) -> str:
        """Name, width or task, and learning rate of the arm, for the names of its folders."""
        width = "" if self.width is None else f"-w{self.width}"
        task = "" if self.task is None else f"-{self.task}"
        return f"{self.name}{width}{task}" + ("" if self.rate is None else f"-lr{self.rate:g}")

    def changed(self, *settings: str, **values: Any) -> "Arm":
        """Returns a copy of the arm with some settings and fields replaced.

        A setting `path=value` replaces an earlier setting with the same path.
        """
        paths = {setting.partition("=")[0] for setting in settings}
        unchanged = (setting for setting in self.settings if setting.partition("=")[0] not in paths)
        return dataclasses.replace(self, settings=(*unchanged, *settings), **values)

    def sets(self, path: str) -> bool:
        """Returns whether the arm sets the setting with the path `path`."""
        return any(setting.partition("=")[0] == path for setting in self.settings)


class Trainer(abc.ABC):
    """Base class of objects that train and score the arms of a comparison.

    There is a subclass for each type of training.

    Attributes:
        data: paths of the settings that determine the training and evaluation data. A path that
            ends in a dot stands for a whole section.
        may_change: paths of settings in which a run to continue may differ from the arm.
        score: name of the metric that decides the comparison.
        sign: 1 if a greater score is better, or else -1.
        margin: maximum advantage over `chance_level` with which an arm still counts as being at
            chance level.
        from_random_weights: whether runs start from random weights, which depend on the seed.
        timing: settings that shorten the validations of a timing run, as `path=value`.
        columns: dict that maps the name of a metric to the heading, number of decimals and factor
            of its table column. The table leaves out a column if no arm has the metric, or if the
            column equals the column of the deciding score.
        curves: dict mapping a validation metric to the title of its panel in the figure.
        score_curve: key of `curves` whose metric corresponds to `score`. Its panel also shows the
            chance level.
    """

    run_class: ClassVar[type[Run]]
    data: ClassVar[tuple[str, ...]]
    may_change: ClassVar[tuple[str, ...]] = ()
    score: ClassVar[str]
    sign: ClassVar[int]
    margin: ClassVar[float]
    from_random_weights: ClassVar[bool] = True
    timing: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[dict[str, tuple[str, int, float]]]
    curves: ClassVar[dict[str, str]]
    score_curve: ClassVar[str]

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.data_flags = studies.shared_flags(options)
        self.data_flags += ["--download"] if options.download else []

    @property
    def label(self) -> str:
        """Heading of the table column with the deciding score."""
        return self.columns[self.score][0]

    def settings(self, arm: Arm, seed: int | None = None) -> list[str]:
        """Returns an arm's settings `path=value`, which come from `--set`, the arm and the seed."""
        seed_setting = [] if seed is None else [f"training.seed={seed}"]
        return [*self.options.set, *arm.settings, *seed_setting]

    def recipe(self, arm: Arm) -> Recipe:
        """Makes the recipe of an arm."""
        for setting in arm.settings:
            if setting.startswith("init"):
                raise UserError(
                    f"{arm.name} sets {setting}, but {arm.recipe} is trained from random weights"
                )
        recipe = registry.load(arm.recipe, self.run_class.recipe_class, self.settings(arm))
        recipe.model_config()
        return recipe

    def trust_flags(self, run: pathlib.Path) -> list[str]:
        """Returns --trust-code for a command that opens an arm's run, if the run names user code.

        Without `--trust-code`, the run must only name code that the arms and `--set` name, too.
        """
        recipe = self.run_class.open(run, self.options.trust_code).recipe
        return ["--trust-code"] if recipe.names_code else []

    def prepare(self, recipes: dict[str, Recipe], out: pathlib.Path) -> None:
        """Prepares the data of all arms. The base class only checks the flags."""
        self.refuse_flags(
            "applies only to comparisons of pre-training recipes", "corpus", "tasks", *TASK_FLAGS
        )

    def refuse_flags(self, problem: str, *names: str) -> None:
        """Raises a `UserError` that names the first flag of `names` that is set, and `problem`."""
        for name in names:
            if vars(self.options)[name]:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} {problem}: leave {flag} out")

    def network(self, name: str, recipe: Recipe) -> keras.Model:
        """Makes, but does not build, the network of the arm `name`, to count its parameters."""
        raise NotImplementedError

    def check(self, arm: Arm, seed: int, run: pathlib.Path) -> None:
        """Raises a `UserError` if the folder `run` has a run that the arm cannot continue.

        The arm cannot continue a run with another seed, with other settings or, in pre-training,
        with another corpus.
        """
        recipe_class, file = self.run_class.recipe_class, run / "recipe.json"
        recipe = registry.load(arm.recipe, recipe_class, self.settings(arm, seed))
        if file.is_file():
            earlier = recipe_from_json(recipe_class, file.read_text(encoding="utf-8"), str(file))
            recipe.check_continues(earlier, run, self.may_change)

    @abc.abstractmethod
    def train(self, arm: Arm, seed: int, run: pathlib.Path, log: pathlib.Path | None) -> dict:
        """Trains an arm's run unless the run is complete, and returns the results; see `row`.

        Args:
            log: file for the output of the commands; `None` means stdout and stderr.

        Raises:
            Diverged: the run diverged.
        """

    def fit(
        self, arm: Arm, settings: Sequence[str], run: pathlib.Path, log: pathlib.Path | None
    ) -> None:
        """Runs the command that trains an arm with `settings` in the folder `run`."""
        raise NotImplementedError

    def fit_unless_diverged(
        self, arm: Arm, seed: int, run: pathlib.Path, log: pathlib.Path | None
    ) -> None:
        """Runs `fit`, unless the run in the folder `run` has diverged before.

        Raises:
            Diverged: the run diverged, now or before.
        """
        failure = None
        if not (run / DIVERGED).exists():
            try:
                self.fit(arm, self.settings(arm, seed), run, log)
            except UserError as error:
                failure = error
        if (run / DIVERGED).exists():
            reason = read_json(run / DIVERGED, reason=str)["reason"]
            raise Diverged(f"{run} diverged: {reason}") from failure
        if failure:
            raise failure

    def extra_scores(self, run: pathlib.Path, log: pathlib.Path | None) -> dict:
        """Returns additional scores of a compared run by metric. The base class has none."""
        return {}

    def row(self, run: pathlib.Path, scores: dict) -> dict:
        """Returns the results of a run as a dict.

        The dict has the items of `scores`, "run" (folder), "updates", "seconds" (training time),
        "memory_mib" (peak memory; `None` if unknown), "curve" (records of the validations) and
        "versions" (see `saved_versions`).
        """
        timing = read_lines(run / "timing.jsonl")
        memory_mib = studies.values(timing, "memory_mib")
        return {
            **scores,
            "run": str(run),
            "updates": timing[-1]["step"],
            "seconds": round(timing[-1]["seconds"], 1),
            "memory_mib": round(max(memory_mib)) if memory_mib else None,
            "curve": studies.validations(run),
            "versions": saved_versions(run),
        }

    def chance_level(self, rows: list[dict]) -> tuple[float, str] | None:
        """Returns the score at chance level, which a prediction that ignores the input reaches.

        Also returns a description of this prediction. Without a known score, as in the base class,
        the result is `None`. See `row` for `rows`.
        """
        return None

    @abc.abstractmethod
    def validation_size(self, rows: list[dict]) -> str:
        """Returns the number of validation examples that determine a score, such as "25 rows"."""

    def tests(self, first: list[dict], others: list[dict]) -> list[dict]:
        """Compares the outputs of an arm with the outputs of the first arm by statistical tests.

        `first` and `others` have the results of both arms (see `row`) for the same seeds. The
        result has the test of each seed. The base class has no tests and returns an empty list.
        """
        return []
