"""Classes that train and score arms: `Trainer`, and a subclass for each kind of training.

The kinds are pre-training, translation, fine-tuning and sequence tasks.
"""

import abc
import argparse
import functools
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from experiments import registry, studies
from experiments.compare.arms import Arm
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import (
    TranslationMetric,
    paired_bootstrap,
    tokenize_lines,
    tokenized_bleu,
)
from macaron_tf.io.paths import as_path, read_json
from macaron_tf.models import EncoderDecoder
from macaron_tf.models.config import StackConfig
from macaron_tf.models.stack import check_causal
from macaron_tf.runs.finetuning import CHANCE_MARGIN, TaskData, best_metrics
from macaron_tf.runs.loading import saved_network
from macaron_tf.runs.pretraining import (
    CORPUS_SETTINGS,
    PretrainingRecipe,
    check_corpus,
    prepare_corpus,
)
from macaron_tf.runs.recipe import Recipe, recipe_class, recipe_from_json
from macaron_tf.runs.run import DIVERGED, Run, saved_field
from macaron_tf.runs.sequences import TASKS, SequenceRecipe
from macaron_tf.runs.starts import read_start
from macaron_tf.runs.translation import TranslationRecipe
from macaron_tf.training import Diverged
from macaron_tf.training.progress import read_lines

# Maximum number of corpus rows in which tokens are counted. Counting 100 million ids takes 5 s.
_COUNTED_ROWS = 1 << 20
_NUM_CANDIDATES = 20  # approximate number of references to try as a constant translation
SEED = "{seed}"  # in a setting, replaced by the seed of the run
Level = tuple[float, str]  # score at chance level, and the prediction that reaches it


class Trainer(abc.ABC):
    """Base class of objects that train and score the arms of a comparison.

    Attributes:
        data: paths of the settings that determine the training and evaluation data. A path that
            ends in a dot stands for a whole section.
        may_change: paths of settings in which a run to continue may differ from the arm.
        sign: 1 if a greater score is better, or else -1.
        margin: maximum advantage over `chance_level` with which an arm still counts as being at
            chance level.
        from_random_weights: whether runs start from random weights, which depend on the seed.
        sizes: whether `--equal` applies to the arms.
        timing: settings that shorten the validations of a timing run, as `path=value`.
        columns: dict that maps the name of a metric to the heading, number of decimals and factor
            of its table column. The table leaves out a column if no arm has the metric, or if the
            column equals the column of the deciding score.
        curves: dict mapping a validation metric to the title of its panel in the figure.
        score_curve: key of `curves` whose metric corresponds to `score`. Its panel also shows the
            chance level.
    """

    kind: ClassVar[str]
    may_change: ClassVar[tuple[str, ...]] = ()
    from_random_weights: ClassVar[bool] = True
    sizes: ClassVar[bool] = True
    timing: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: argparse.Namespace):
        self.options = options
        switches = {"--trust-code": options.trust_code, "--download": options.download}
        self.flags = [flag for flag, is_given in switches.items() if is_given]
        self.flags += studies.flags("--data-dir", options.data_dir)

    def settings(self, arm: Arm, seed: int | None = None) -> list[str]:
        """Returns an arm's settings `path=value`, which come from `--set`, the arm and the seed."""
        settings = [*self.options.set, *arm.settings]
        if seed is None:
            return settings
        return [*(text.replace(SEED, str(seed)) for text in settings), f"training.seed={seed}"]

    def recipe(self, arm: Arm, seed: int | None = None) -> Recipe:
        """Makes the recipe of an arm. A fine-tuned model is a default until `init` is read."""
        starts = [setting for setting in arm.settings if setting.startswith("init")]
        if self.from_random_weights and starts:
            conflict = f"{arm.name} sets {starts[0]}, but {arm.recipe}"
            raise UserError(f"{conflict} is trained from random weights")
        if not self.from_random_weights and not arm.sets("init"):
            mend = f"write {arm.name}={arm.recipe}:init=RUN"
            raise UserError(f"{arm.name} does not set init, the weights to fine-tune: {mend}")
        recipe = registry.load(arm.recipe, recipe_class(self.kind), self.settings(arm, seed))
        if self.from_random_weights and isinstance(config := recipe.model_config(), StackConfig):
            check_causal(config)
        return recipe

    def prepare(self, recipes: dict[str, Recipe], out: pathlib.Path) -> None:
        """Prepares the data of all arms. The base class only checks the flags."""
        if self.options.corpus:
            raise UserError("--corpus applies only to pre-training recipes: leave --corpus out")

    def check(self, arm: Arm, seed: int, run: pathlib.Path) -> None:
        """Raises a `UserError` if the folder `run` has a run that the arm cannot continue."""
        recipe, file = self.recipe(arm, seed), run / "recipe.json"
        if file.is_file():
            earlier = recipe_from_json(file.read_text("utf-8"), str(file), kind=self.kind)
            recipe.check_continues(earlier, run, self.may_change)
            if changed := Run(as_path(run), recipe).changed_code():
                found = f"{', '.join(changed)} has changed since {run} was trained"
                raise UserError(f"{found}: choose another folder, or restore the file")

    def train(self, arm: Arm, seed: int, run: pathlib.Path, log: pathlib.Path | None) -> dict:
        """Trains and scores a run, unless RUN/comparison.json has its scores; returns the results.

        The result has the scores, "run" (folder), "updates", "seconds" (training time),
        "memory_mib" (peak memory), "flops_per_update", "curve" (records of the validations) and
        "versions" (see `saved_field`). Memory and FLOPs are `None` if they are unknown. Commands
        write to the file `log`, if any. A run that diverged, now or before, raises `Diverged`.
        """
        settings = self.settings(arm, seed)

        def make() -> dict[str, Any]:
            if not (run / DIVERGED).exists():
                try:
                    self.fit(arm, settings, run, log)
                except UserError:
                    if not (run / DIVERGED).exists():
                        raise
            return self.scores(arm, run, log)

        key = {"recipe": arm.recipe, "settings": settings}
        scores = studies.read_or_compute(run / "comparison.json", key, make)
        timing = read_lines(run / "timing.jsonl")
        memory_mib = studies.values(timing, "memory_mib")
        return {
            **scores,
            "run": str(run),
            "updates": timing[-1]["step"],
            "seconds": round(timing[-1]["seconds"], 1),
            "memory_mib": round(max(memory_mib)) if memory_mib else None,
            "flops_per_update": timing[-1].get("flops_per_update"),
            "curve": studies.validations(run),
            "versions": saved_field(run, "versions"),
        }

    def fit(
        self, arm: Arm, settings: Sequence[str], run: pathlib.Path, log: pathlib.Path | None
    ) -> None:
        """Runs `macaron train` for an arm with `settings` in the folder `run`."""
        sets = studies.flags("--set", *settings)
        arguments = [arm.recipe, str(run), *self.arm_flags(arm), *sets, "--no-hints"]
        studies.command("train", *arguments, log=log)

    def arm_flags(self, arm: Arm) -> list[str]:
        """Returns the flags of `macaron train` for the data of an arm."""
        return self.flags

    def scores(self, arm: Arm, run: pathlib.Path, log: pathlib.Path | None) -> dict[str, Any]:
        """Returns the scores of a trained run. The base method only raises `Diverged`."""
        if (run / DIVERGED).exists():
            raise Diverged(f"{run} diverged: {read_json(run / DIVERGED, reason=str)['reason']}")
        return {}

    def evaluated(
        self, arm: Arm, run: pathlib.Path, log: pathlib.Path | None, checkpoint: str
    ) -> dict[str, Any]:
        """Runs `macaron evaluate` on a checkpoint, after `macaron average` for "average"."""
        output = run / "comparison"
        shutil.rmtree(output, ignore_errors=True)  # an interrupted evaluation may have left it
        trust = ["--trust-code"] if self.recipe(arm).names_code else []
        if checkpoint == "average":
            studies.command("average", str(run), *trust, log=log)
        arguments = [*self.flags, "--output", str(output), *trust]
        studies.command("evaluate", f"{run}@{checkpoint}", *arguments, log=log)
        [path] = output.glob("*.json")
        return studies.read_json(path)

    def parameters(self, run: str) -> int:
        """Returns the number of parameters of a trained run's network."""
        return Run.open(run).build_network().count_params()

    def chance_level(self, rows: list[dict]) -> Level | None:
        """Returns the score of a prediction that ignores the input, and that prediction."""
        return None

    @abc.abstractmethod
    def validation_size(self, rows: list[dict]) -> str:
        """Returns the number of validation examples that determine a score, such as "25 rows"."""

    def tests(self, first: list[dict], others: list[dict]) -> list[dict]:
        """Compares an arm's outputs with the first arm's, seed by seed, by statistical tests."""
        return []


class Pretraining(Trainer):
    kind = "pretraining"
    may_change = CORPUS_SETTINGS
    data = ("objective", "objective.", "data.validation_batches", *may_change)
    score, sign, margin = "loss", -1, 0.1
    timing = ("data.validation_batches=1",)
    columns: ClassVar = {
        "loss": ("validation loss", 3, 1.0),
        "nll": ("loss of tokens", 3, 1.0),
        "perplexity": ("perplexity", 1, 1.0),
        "accuracy": ("accuracy %", 1, 100.0),
        "pair_accuracy": ("pairs right %", 1, 100.0),
        "span_boundary_loss": ("boundary loss", 2, 1.0),
        "replaced_recall": ("replaced found %", 1, 100.0),
        "replaced_precision": ("precision %", 1, 100.0),
    }
    curves: ClassVar = {"loss": "validation loss, nats per token"}
    score_curve = "loss"

    def prepare(self, recipes: dict[str, Recipe], out: pathlib.Path) -> None:
        """Opens the corpus of `--corpus`, or prepares those of the recipes, equal ones once."""
        self.corpora: dict[str, PretrainingCorpus] = {}
        by_key: dict[Any, PretrainingCorpus] = {}
        given, tfds = self.options.corpus, self.options.tfds
        for name, recipe in recipes.items():
            key = given or (recipe.data.corpus, recipe.data.vocabulary)
            if key not in by_key:
                folder = given or str(out / f"corpus{f'-{name}' if by_key else ''}")
                corpus = None if given else prepare_corpus(recipe, folder, None, tfds)
                by_key[key] = corpus or PretrainingCorpus.open(folder)
                print(f"{folder}: {by_key[key].summary()}", flush=True)
            check_corpus(recipe, by_key[key])
            self.corpora[name] = by_key[key]
        self.objectives = {type(recipe.objective).name for recipe in recipes.values()}
        self.first_recipe = next(iter(recipes.values()))

    def network(self, arm: Arm, recipe: PretrainingRecipe) -> keras.Model:
        """Makes, but does not build, the network of an arm, to count its parameters."""
        return recipe.network(recipe.sized_config(self.corpora[arm.name].vocabulary))

    def check(self, arm: Arm, seed: int, run: pathlib.Path) -> None:
        super().check(arm, seed, run)
        if earlier := Run.existing(as_path(run), self.options.trust_code, self.kind):
            earlier.check_data(self.corpora[arm.name].fingerprint)

    def arm_flags(self, arm: Arm) -> list[str]:
        return ["--corpus", str(self.corpora[arm.name].folder)]

    def scores(self, arm: Arm, run: pathlib.Path, log: pathlib.Path | None) -> dict[str, Any]:
        super().scores(arm, run, log)
        curve, last_step = studies.validations(run), self.recipe(arm).training.max_steps
        if last_step not in studies.values(curve, "step"):
            raise UserError(f"{run} stopped before step {last_step:,}: read the output of the run")
        if diverged := [line["step"] for line in curve if line["loss"] is None]:
            raise Diverged(f"{run} diverged at step {diverged[0]:,}: lower training.learning_rate")
        return curve[-1]

    def chance_level(self, rows: list[dict]) -> Level | None:
        corpus, *other_corpora = set(self.corpora.values())
        is_masked, is_causal = (
            self.objectives == {name} for name in ("masked_language", "causal_language")
        )
        if other_corpora or corpus.config.paired or not (is_masked or is_causal):
            return None
        vocabulary = corpus.vocabulary
        special = np.array(vocabulary.special.ids if is_masked else [vocabulary.special.pad])

        def counts(split: str) -> np.ndarray:
            token_counts = np.zeros(vocabulary.size)
            # Shuffled rows, because the first rows of a corpus may come from a single source.
            rows = corpus.dataset(split, 1024, seed=0, repeat=False, drop_remainder=False)
            for batch in rows.take(_COUNTED_ROWS // 1024):
                # The first token of a row is not predicted, so it does not count.
                ids = batch["token_ids"].numpy()[:, 1:].ravel()
                token_counts += np.bincount(ids, minlength=len(token_counts))
            token_counts[special] = 0
            return token_counts

        train_counts, validation_counts = counts("train") + 1, counts("validation")
        log_probabilities = np.log(train_counts / train_counts.sum())
        loss = float(-(validation_counts @ log_probabilities) / validation_counts.sum())
        return loss, "predicting each token by its frequency in the training text"

    def validation_size(self, rows: list[dict]) -> str:
        corpus, recipe = next(iter(self.corpora.values())), self.first_recipe
        size = corpus.rows("validation")
        if recipe.data.validation_batches:
            size = min(size, recipe.data.validation_batches * recipe.data.batch_size)
        return f"{size:,} rows of {corpus.config.sequence_length} tokens"


class Translation(Trainer):
    kind = "translation"
    data = ("data.", "task.metric.")
    score, sign, margin = "tokenized_bleu", 1, 1.0
    timing = ("data.validation_lines=1",)
    columns: ClassVar = {
        "tokenized_bleu": ("tokenized BLEU", 2, 1.0),
        "bleu": ("sacreBLEU", 2, 1.0),
        "chrf": ("chrF", 2, 1.0),
    }
    curves: ClassVar = {
        "loss": "validation loss (smoothed, nats per token)",
        "bleu": "greedy BLEU in training",
    }
    score_curve = "bleu"

    def network(self, arm: Arm, recipe: TranslationRecipe) -> keras.Model:
        return EncoderDecoder(recipe.model_config(recipe.data.vocabulary_size))

    def scores(self, arm: Arm, run: pathlib.Path, log: pathlib.Path | None) -> dict[str, Any]:
        super().scores(arm, run, log)
        return self.evaluated(arm, run, log, "average")

    def chance_level(self, rows: list[dict]) -> Level:
        metric, references = TranslationMetric(**rows[0]["metric"]), rows[0]["references"]
        lines, bleu = tokenize_lines(references, metric), tokenized_bleu()
        candidates = list(dict.fromkeys(lines))[:: max(len(set(lines)) // _NUM_CANDIDATES, 1)]
        scores = (bleu.corpus_score([line] * len(lines), [lines]).score for line in candidates)
        return max(scores), f"the best of {len(candidates)} references as the answer to every line"

    def validation_size(self, rows: list[dict]) -> str:
        return f"{len(rows[0]['references']):,} sentences"

    def tests(self, first: list[dict], others: list[dict]) -> list[dict]:
        """Compares two arms' translations of each seed by a paired bootstrap test."""
        results = []
        for first_row, other_row in zip(first, others, strict=True):
            metric = TranslationMetric(**first_row["metric"])
            texts = first_row["hypotheses"], other_row["hypotheses"], first_row["references"]
            test = paired_bootstrap(*texts, metric)
            results.append({key: other_row[key] for key in ("arm", "seed")} | test)
        return results


class Finetuning(Trainer):
    """Fine-tuning runs on a task, compared by the score on the validation splits.

    The setting `init` names the weights to start from. If `init` contains `{seed}`, the seed of the
    fine-tuning run replaces `{seed}`, so that each fine-tuning run can start from a separate
    pre-training run.
    """

    kind = "finetuning"
    data = ("task.name", "data.source", "data.table.")
    score, sign, margin, from_random_weights, sizes = "score", 1, CHANCE_MARGIN, False, False
    columns: ClassVar = {"score": ("score", 1, 100.0)}
    curves: ClassVar = {"score": "development score"}
    score_curve = "score"

    def prepare(self, recipes: dict[str, Recipe], out: pathlib.Path) -> None:
        """Raises a `UserError` if `init` cannot be read."""
        super().prepare(recipes, out)
        starts = {recipe.init: None for recipe in recipes.values()}
        seeds = [*self.options.seeds, *self.options.tuning_seeds]
        for location in dict.fromkeys(one.replace(SEED, str(n)) for one in starts for n in seeds):
            read_start(location, trust_code=self.options.trust_code)

    def check(self, arm: Arm, seed: int, run: pathlib.Path) -> None:
        """Does nothing, because a run saves the settings of the loaded model, not of the arm."""

    def scores(self, arm: Arm, run: pathlib.Path, log: pathlib.Path | None) -> dict[str, Any]:
        """Returns the scores of the best checkpoint, also if the run diverged after it."""
        if not (metrics := best_metrics(as_path(run))):
            raise Diverged(f"{run} diverged: lower training.learning_rate")
        return metrics

    def chance_level(self, rows: list[dict]) -> Level:
        data = _task_data(rows[0]["run"], self.options.tfds)
        return data.chance_level(), "the best single answer to every example"

    def validation_size(self, rows: list[dict]) -> str:
        sizes = []
        for task, run in {row["task"]: row["run"] for row in rows}.items():
            examples = _task_data(run, self.options.tfds).validation.values()
            sizes.append(f"{f'{task}: ' if task else ''}{sum(map(len, examples)):,} examples")
        return ", ".join(sizes)


@functools.lru_cache(1)
def _task_data(run: str, tfds: Tfds) -> TaskData:
    recipe = Run.open(run).recipe
    return TaskData(recipe.task_definition, recipe.data.source, tfds, recipe.data.table)


class Sequences(Trainer):
    """TCNs and recurrent models of equal size on a sequence task, at their best checkpoints.

    An arm that sets `model.mixer` also gets the recipe's settings of recurrent models.
    """

    kind = "sequence"
    data = (
        "task.name",
        *(f"data.{name}" for name in ("path", "sources", "vocabulary_size", "held_out")),
    )
    score, margin, sizes = "validation", 0.0, False

    def settings(self, arm: Arm, seed: int | None = None) -> list[str]:
        base = registry.load(arm.recipe, SequenceRecipe)
        recurrent = base.task.recurrent if arm.sets("model.mixer") else ()
        return [*recurrent, *super().settings(arm, seed)]

    def prepare(self, recipes: dict[str, Recipe], out: pathlib.Path) -> None:
        super().prepare(recipes, out)
        task = TASKS[next(iter(recipes.values())).task.name]
        is_accuracy = task.metric == "accuracy"
        self.sign = 1 if is_accuracy else -1
        style = (task.digits, 100.0 if is_accuracy else 1.0)
        self.columns = {"validation": (task.unit, *style), "test": ("test", *style)}
        self.curves, self.score_curve = {task.metric: task.unit}, task.metric

    def scores(self, arm: Arm, run: pathlib.Path, log: pathlib.Path | None) -> dict[str, Any]:
        """Returns the metric of the best checkpoint on the validation split and the test split."""
        super().scores(arm, run, log)
        splits = self.evaluated(arm, run, log, "best")
        return {name: splits[name][self.score_curve] for name in self.columns if name in splits}

    def parameters(self, run: str) -> int:
        # model.json knows the size of the vocabulary, which depends on the data.
        return saved_network(as_path(run)).count_params()

    def validation_size(self, rows: list[dict]) -> str:
        return "the whole split"


_TRAINERS = {cls.kind: cls for cls in (Pretraining, Translation, Finetuning, Sequences)}


def trainer_class(arm: Arm) -> type[Trainer]:
    """Returns the subclass of `Trainer` that trains the recipe of an arm."""
    kind = registry.load(arm.recipe).kind
    if kind not in _TRAINERS:
        raise UserError(f"{arm.name}: recipes of kind {kind!r} cannot be compared: give another")
    return _TRAINERS[kind]
