"""Classes that train and score arms, one for each type of training.

The types are pre-training, translation and fine-tuning.
"""

import argparse
import collections
import dataclasses
import functools
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from experiments import registry, studies
from experiments.compare.arms import (
    TASK_FLAGS,
    Arm,
    Trainer,
    recipe_of_task,
    recipes_of_tasks,
    task_of,
)
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import (
    TranslationMetric,
    paired_bootstrap,
    tokenize_lines,
    tokenized_bleu,
)
from macaron_tf.io.paths import as_path
from macaron_tf.models import EncoderDecoder
from macaron_tf.runs.corpora import prepare_corpus
from macaron_tf.runs.epochs import read_init
from macaron_tf.runs.finetuning import (
    CHANCE_MARGIN,
    RESULT,
    FinetuningRecipe,
    FinetuningRun,
    TaskData,
)
from macaron_tf.runs.pretraining import PretrainingRun, check_corpus
from macaron_tf.runs.pretraining_recipe import PretrainingRecipe
from macaron_tf.runs.recipe import Recipe
from macaron_tf.runs.run import DIVERGED
from macaron_tf.runs.translation import TranslationRun
from macaron_tf.runs.translation_recipe import TranslationRecipe
from macaron_tf.training import Diverged

# Maximum number of corpus rows in which tokens are counted. Counting 100 million ids takes 5 s.
_COUNTED_ROWS = 1 << 20
# Metrics that Lei et al. 2022 probably used for CoLA and MultiRC in table 1, which does not name
# them. CoLA: BERT's score is 82.0, while larger models have Matthews coefficients of 60.6 to 66.3,
# so the metric is accuracy. MultiRC: BERT's score is 69.5, while RoBERTa's mean of F1a and EM on
# SuperGLUE's leaderboard is 68, so the metric is F1a, or perhaps the accuracy of single answers.
_PAPER_METRICS = {"cola": "accuracy", "multirc": "f1a"}
_NUM_CANDIDATES = 20  # approximate number of references to try as a constant translation


def tuned_columns(tasks: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Maps the headings of fine-tuning table columns to pairs of a task and a metric.

    Each task has a column with its score. The tasks `cola` and `multirc` have a second column with
    the metric that the SwishRNN paper reports.
    """
    columns = {task: (task, "score") for task in tasks}
    pairs = [(task, _PAPER_METRICS[task]) for task in tasks if task in _PAPER_METRICS]
    return columns | {f"{task} {metric}": (task, metric) for task, metric in pairs}


class Pretraining(Trainer):
    run_class = PretrainingRun
    # These settings are determined by the corpus.
    may_change = ("corpus.", "vocabulary.")
    data = ("objective", "objective.", "validation_batches", *may_change)
    score, sign, margin = "loss", -1, 0.1
    timing = ("validation_batches=1",)
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

    def __init__(self, options: argparse.Namespace):
        super().__init__(options)
        self.tuned_columns = tuned_columns([task_of(task) for task in options.tasks])
        self.columns = self.columns | {name: (name, 1, 100.0) for name in self.tuned_columns}

    def prepare(self, recipes: dict[str, Recipe], out: pathlib.Path) -> None:
        """Opens the corpus of `--corpus`, or prepares the corpora that the recipes describe.

        Arms with equal settings of corpus and vocabulary share a corpus.
        """
        if not self.options.tasks:
            self.refuse_flags("has no effect without --tasks", *TASK_FLAGS)
        recipes_of_tasks(self.options.tasks)  # raises before the pre-training begins
        self.corpora: dict[str, PretrainingCorpus] = {}
        by_key: dict[Any, PretrainingCorpus] = {}
        for name, recipe in recipes.items():
            key = None if self.options.corpus else (recipe.corpus, recipe.vocabulary)
            if key not in by_key:
                folder = self.options.corpus or str(out / f"corpus{f'-{name}' if by_key else ''}")
                if self.options.corpus:
                    by_key[key] = PretrainingCorpus.open(folder)
                else:
                    by_key[key] = prepare_corpus(recipe, folder, None, self.options.tfds)
                print(f"{folder}: {by_key[key].summary()}", flush=True)
            check_corpus(recipe, by_key[key])
            self.corpora[name] = by_key[key]
        self.objectives = {type(recipe.objective).name for recipe in recipes.values()}
        self.first_recipe = next(iter(recipes.values()))

    def network(self, name: str, recipe: PretrainingRecipe) -> keras.Model:
        vocabulary = self.corpora[name].vocabulary
        return PretrainingRun(pathlib.Path(name), recipe, vocabulary).make_network()

    def check(self, arm: Arm, seed: int, run: pathlib.Path) -> None:
        super().check(arm, seed, run)
        if earlier := PretrainingRun.existing(as_path(run), self.options.trust_code):
            earlier.check_data(self.corpora[arm.name].fingerprint)

    def fit(
        self, arm: Arm, settings: Sequence[str], run: pathlib.Path, log: pathlib.Path | None
    ) -> None:
        arguments = [arm.recipe, str(run), "--corpus", str(self.corpora[arm.name].folder)]
        studies.command("train", *arguments, *studies.flags("--set", *settings), log=log)

    def train(self, arm: Arm, seed: int, run: pathlib.Path, log: pathlib.Path | None) -> dict:
        steps = self.recipe(arm).training.max_steps
        if steps not in studies.values(studies.validations(run), "step"):
            self.fit_unless_diverged(arm, seed, run, log)
        if steps not in studies.values(studies.validations(run), "step"):
            raise UserError(f"{run} stopped before step {steps:,}: read the output of the run")
        for line in (curve := studies.validations(run)):
            if line["loss"] is None:
                raise Diverged(
                    f"{run} diverged at step {line['step']:,}: lower training.learning_rate"
                )
        return self.row(run, curve[-1])

    def extra_scores(self, run: pathlib.Path, log: pathlib.Path | None) -> dict[str, float]:
        return self._finetuning_scores(run, log) if self.tuned_columns else {}

    def _finetuning_scores(self, run: pathlib.Path, log: pathlib.Path | None) -> dict[str, float]:
        """Fine-tunes a run on `--tasks`, and returns the score at the best rate for each task.

        The result is a dict mapping a column heading to the score, or 0 for a run that diverged.
        """
        options, best = self.options, {}
        common = [f"init={run}", *options.finetune_set]
        flags = [*self.data_flags, *self.trust_flags(run)]
        for recipe in map(recipe_of_task, options.tasks):
            results, task = [], task_of(recipe)
            for rate in options.learning_rates or [None]:
                name = task if rate is None else f"{task}-lr{rate:g}"
                chosen = [f"training.learning_rate={rate!r}"] if rate is not None else []
                tuned = run / "tuned" / name
                results.append(fine_tuned(recipe, tuned, [*common, *chosen], flags, log))
            best[task] = max(results, key=lambda result: result["score"])
        return {column: best[task][metric] for column, (task, metric) in self.tuned_columns.items()}

    def chance_level(self, rows: list[dict]) -> tuple[float, str] | None:
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
        if recipe.validation_batches:
            size = min(size, recipe.validation_batches * recipe.batch_size)
        return f"{size:,} rows of {corpus.config.sequence_length} tokens"


class Translation(Trainer):
    run_class = TranslationRun
    data = ("data.", "metric.")
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

    def network(self, name: str, recipe: TranslationRecipe) -> keras.Model:
        return EncoderDecoder(recipe.model_config(recipe.data.vocabulary_size))

    def fit(
        self, arm: Arm, settings: Sequence[str], run: pathlib.Path, log: pathlib.Path | None
    ) -> None:
        arguments = [arm.recipe, str(run), *self.data_flags, *studies.flags("--set", *settings)]
        studies.command("train", *arguments, log=log)

    def train(self, arm: Arm, seed: int, run: pathlib.Path, log: pathlib.Path | None) -> dict:
        """Runs `train`, `average` and `evaluate`, and returns the scores.

        The file RUN.json keeps the scores, so that they are computed once. See `Trainer.train`.
        """

        def make() -> dict[str, Any]:
            self.fit_unless_diverged(arm, seed, run, log)
            output, trust = run / "comparison", self.trust_flags(run)
            shutil.rmtree(output, ignore_errors=True)  # an interrupted evaluation may have left it
            studies.command("average", str(run), *trust, log=log)
            arguments = [*self.data_flags, "--checkpoint", "average", "--output", str(output)]
            studies.command("evaluate", str(run), *arguments, *trust, log=log)
            [path] = output.glob("*.json")
            return studies.read_json(path)

        key = {"recipe": arm.recipe, "settings": self.settings(arm, seed)}
        return self.row(run, studies.read_or_compute(pathlib.Path(f"{run}.json"), key, make))

    def chance_level(self, rows: list[dict]) -> tuple[float, str]:
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
            test = dataclasses.asdict(paired_bootstrap(*texts, metric))
            arm_fields = {key: other_row[key] for key in ("arm", "width", "seed")}
            results.append({**arm_fields, **test})
        return results


SEED = "{seed}"  # in `init`, replaced by the seed of the fine-tuning run


def fine_tuned(
    recipe: str,
    run: pathlib.Path,
    settings: Sequence[str],
    flags: Sequence[str],
    log: pathlib.Path | None,
) -> dict[str, Any]:
    """Fine-tunes a model unless the run has ended, and returns its scores.

    The file RUN.json keeps the scores, so that an ended run is not trained again.

    Args:
        recipe: recipe with its task, such as "finetune:rte".
        settings: settings of the run, as `path=value`, with `init`.
        log: file for the output of the command; `None` means stdout and stderr.

    Returns:
        A dict of "run" (folder), "diverged", "score" and the other metrics at the best checkpoint.
        If the run diverged before its first checkpoint, all scores are 0.
    """
    arguments = [recipe, str(run), *studies.flags("--set", *settings), *flags]

    def make() -> dict[str, Any]:
        try:
            studies.command("train", *arguments, log=log)
        except UserError:
            if not (run / DIVERGED).exists():
                raise
        result = studies.read_json(run / RESULT, metrics=dict)
        scores = {**result["metrics"], "score": result["best_score"] or 0.0}
        return {"scores": scores, "diverged": result["best_score"] is None}

    key = {"recipe": recipe, "settings": [*settings]}
    saved = studies.read_or_compute(pathlib.Path(f"{run}.json"), key, make)
    values = {**saved["scores"], "run": str(run), "diverged": saved["diverged"]}
    return collections.defaultdict(float, values)


class Finetuning(Trainer):
    """Fine-tuning runs on a task, compared by the score on the validation splits.

    The setting `init` names the weights to start from. If `init` contains `{seed}`, the seed of the
    fine-tuning run replaces `{seed}`, so that each fine-tuning run can start from a separate
    pre-training run.
    """

    run_class = FinetuningRun
    data = ("task", "source", "table.")
    score, sign, margin, from_random_weights = "score", 1, CHANCE_MARGIN, False
    columns: ClassVar = {"score": ("score", 1, 100.0)}
    curves: ClassVar = {"score": "development score"}
    score_curve = "score"

    def recipe(self, arm: Arm) -> FinetuningRecipe:
        """Makes the recipe of an arm, whose model is a default until the run reads `init`."""
        if not arm.sets("init"):
            start = f"{arm.name}={arm.recipe}:init=RUN"
            raise UserError(
                f"{arm.name} does not set init, the weights to fine-tune: write {start}"
            )
        return registry.load(arm.recipe, FinetuningRecipe, self.settings(arm))

    def prepare(self, recipes: dict[str, Recipe], out: pathlib.Path) -> None:
        """Raises a `UserError` for an unsuitable flag, or if `init` cannot be read."""
        self.refuse_flags("applies only to comparisons of pre-training recipes", "corpus")
        self.refuse_flags("does not apply to arms that are fine-tuned: use --set", *TASK_FLAGS)
        for init in dict.fromkeys(recipe.init for recipe in recipes.values()):
            locations = (init.replace(SEED, f"{seed}") for seed in self.options.seeds)
            for location in dict.fromkeys(locations):
                read_init(location, trust_code=self.options.trust_code)

    def check(self, arm: Arm, seed: int, run: pathlib.Path) -> None:
        """Does nothing, because `fine_tuned` checks existing runs."""

    def train(self, arm: Arm, seed: int, run: pathlib.Path, log: pathlib.Path | None) -> dict:
        settings = [one.replace(SEED, str(seed)) for one in self.settings(arm, seed)]
        scores = fine_tuned(arm.recipe, run, settings, self.data_flags, log)
        if scores.pop("diverged"):
            raise Diverged(f"{run} diverged: lower training.learning_rate")
        return self.row(run, scores)

    def chance_level(self, rows: list[dict]) -> tuple[float, str]:
        data = _task_data(rows[0]["run"], self.options.tfds)
        return data.chance_level(), "the best single answer to every example"

    def validation_size(self, rows: list[dict]) -> str:
        runs = {row["task"]: row["run"] for row in rows}
        data = {task: _task_data(run, self.options.tfds) for task, run in runs.items()}
        counts = {task: sum(map(len, one.validation.values())) for task, one in data.items()}
        return ", ".join(
            f"{f'{task}: ' if task else ''}{n:,} examples" for task, n in counts.items()
        )


@functools.lru_cache(1)
def _task_data(run: str, tfds: Tfds) -> TaskData:
    recipe = FinetuningRun.open(run).recipe
    return TaskData(recipe.task_definition, recipe.source, tfds, recipe.table)


def trainer_class(arm: Arm) -> type[Trainer]:
    """Returns the subclass of `Trainer` that trains the recipe of an arm."""
    classes = {cls.run_class.recipe_class: cls for cls in (Pretraining, Translation, Finetuning)}
    result = classes.get(type(recipe := registry.load(arm.recipe)))
    if result is None:
        raise UserError(
            f"{arm.name}: recipes of kind {recipe.kind!r} cannot be compared: give another"
        )
    return result
