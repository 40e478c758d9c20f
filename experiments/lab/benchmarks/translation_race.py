"""Training processes of this library and Joey NMT, for the benchmark `translation_training`."""

import argparse
import dataclasses
import os
import pathlib
import re
import signal
import string
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from experiments import registry
from experiments.lab.benchmarks.workers import thread_variables
from experiments.recipe import override
from experiments.studies import flags, validations
from experiments.translate.init import TranslationStart
from experiments.translate.run import TranslationRecipe
from macaron_tf.data.buckets import Buckets
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.translation import TranslationData
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import TranslationMetric, evaluate_translations
from macaron_tf.io.paths import write_atomic
from macaron_tf.special_ids import EOS
from macaron_tf.text import SentencePieceVocabulary
from macaron_tf.training.progress import TRAIN

RECIPE = "multi30k_transformer_tiny"
REFERENCE = "Joey NMT, float32"
POLICIES = {"ours, float32": "float32", "ours, mixed_bfloat16": "mixed_bfloat16"}


def write_pieces(
    path: pathlib.Path, rows: Iterable[Sequence[int]], vocabulary: SentencePieceVocabulary
) -> None:
    """Writes a text file for Joey NMT, in which spaces separate the subword pieces of a line.

    Joey NMT reads this format with `level: word`.

    Args:
        path: path of the file.
        rows: token ids of each line; EOS is left out.
        vocabulary: vocabulary of the ids.
    """
    names = [vocabulary.processor.id_to_piece(i) for i in range(vocabulary.pieces)]
    lines = (" ".join(names[i] for i in row if i != EOS) for row in rows)
    write_atomic(path, "".join(line + "\n" for line in lines).encode())


def write_vocabulary(path: pathlib.Path, vocabulary: SentencePieceVocabulary) -> None:
    """Writes a vocabulary file for Joey NMT.

    The file has a line for each row of the embedding matrix except the rows of the four special
    tokens, because Joey NMT adds these tokens itself.
    """
    names = [vocabulary.processor.id_to_piece(i) for i in range(EOS + 1, vocabulary.pieces)]
    names += [f"<padding{i}>" for i in range(vocabulary.pieces, vocabulary.size)]
    write_atomic(path, "".join(name + "\n" for name in names).encode())


def read_pieces(path: pathlib.Path, vocabulary: SentencePieceVocabulary) -> list[str]:
    """Reads a file of space-separated subword pieces, and returns lines of text."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [vocabulary.processor.decode_pieces(line.split(" ")) for line in lines]


def joey_config(
    recipe: TranslationRecipe,
    folder: pathlib.Path,
    tokens: int,
    log_every: int,
    validate_every: int,
) -> str:
    """Converts a recipe to the YAML text of a configuration file for Joey NMT.

    Args:
        recipe: recipe of the model and the training run.
        folder: folder with the files `train.LANGUAGE`, `validation.LANGUAGE` and `vocabulary.txt`.
            Joey NMT writes to its subfolder `run`.
        tokens: batch size in tokens of the longer side, including padding.
        log_every: number of updates between two log lines.
        validate_every: number of updates between two validations, which must be a multiple of
            `log_every`.

    Raises:
        UserError: Joey NMT does not support the model or the learning rate schedule.
    """
    model, training = recipe.model_config(), recipe.training
    dropouts = {model.dropout, model.attention_dropout, model.activation_dropout}
    if len(dropouts) > 1 or model.block != "transformer" or training.schedule != "inverse_sqrt":
        raise UserError(
            "Joey NMT does not support the model or the learning rate schedule of this recipe: "
            "set model.block=transformer, training.schedule=inverse_sqrt, and model.dropout, "
            "model.attention_dropout and model.activation_dropout to the same rate"
        )
    source, target = recipe.data.languages
    template = string.Template(pathlib.Path(__file__).with_name("joeynmt.yaml").read_text())
    return template.substitute(
        {**dataclasses.asdict(model), **dataclasses.asdict(training)},
        name=recipe.model,
        folder=folder,
        source=source,
        target=target,
        tokens=tokens,
        label_smoothing=recipe.label_smoothing,
        log_every=log_every,
        validate_every=validate_every,
    )


def updates_per_epoch(lengths: np.ndarray, tokens: int, seed: int) -> float:
    """Simulates the batch sampler of Joey NMT, and returns the mean number of updates per epoch.

    The sampler adds sentence pairs to a batch in random order, until the number of pairs times the
    maximum length reaches `tokens`. It does not sort pairs by length, so about half of a batch is
    padding.

    Args:
        lengths: `(N,)` length of the longer side in each of N pairs, including EOS.
        tokens: batch size in tokens, including padding.
        seed: random seed of the order.
    """
    rng = np.random.default_rng(seed)
    batches, epochs = 0, 5  # the number of updates differs by 1% between epochs
    for _ in range(epochs):
        rows = max_length = 0
        for length in rng.permutation(lengths).tolist():
            rows, max_length = rows + 1, max(max_length, length)
            if rows * max_length >= tokens:
                batches, rows, max_length = batches + 1, 0, 0
        batches += rows > 0
    return batches / epochs


@dataclasses.dataclass(kw_only=True)
class Trainer:
    """A process of `python -m experiments.translate train` that can be paused and continued.

    Attributes:
        command: command line of the process.
        run: folder of the run.
        environment: environment variables of the process.
        target_tokens: mean number of target tokens in an update, excluding padding.
        padded_tokens: batch size in tokens, including padding.
        updates: number of updates that the log has reported so far.
    """

    command: Sequence[str]
    run: pathlib.Path
    environment: Mapping[str, str]
    target_tokens: float = 0.0
    padded_tokens: int = 0
    updates: int = dataclasses.field(default=0, init=False)
    _process: subprocess.Popen | None = dataclasses.field(default=None, init=False)

    # Log file in `run`, and a pattern that finds the number of updates in the log.
    log, log_pattern = "metrics.jsonl", rf'"step": (\d+), "kind": "{TRAIN}"'

    def run_updates(self, updates: int) -> None:
        """Runs the process for `updates` further updates, and then pauses the process.

        Raises:
            UserError: the process has ended.
        """
        self.resume()
        wanted = self.updates + updates
        while self.updates < wanted:
            time.sleep(0.01)
            self.read_log()
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Starts the process, or continues a paused process."""
        if self._process is None:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    self.command, stdout=output, stderr=output, env=self.environment
                )
        self._process.send_signal(signal.SIGCONT)

    def read_log(self) -> None:
        """Reads the number of updates from the log, and saves it in the attribute `updates`.

        Raises:
            UserError: the process has ended.
        """
        if (self.run / self.log).exists():
            text = (self.run / self.log).read_text(encoding="utf-8", errors="replace")
            self.updates = max(map(int, re.findall(self.log_pattern, text)), default=0)
        if self._process.poll() is not None:
            output = self._output.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise UserError(
                f"`{' '.join(self.command[:4])} ...` ended with exit status "
                f"{self._process.returncode} after update {self.updates}: correct the error that "
                f"its output ends with, {output[-1]!r}"
            )

    def kill(self) -> None:
        """Kills the process, if it was started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds that all threads of the process have used so far.

        The result is the sum of the fields utime (14) and stime (15) in /proc/PID/stat; see
        proc(5).
        """
        if self._process is None:
            return 0.0
        stat = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        fields = stat.rpartition(")")[2].split()  # the process name may contain spaces
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def validated_steps(self) -> list[int]:
        """Returns the numbers of updates after which a validation was completed."""
        return [line["step"] for line in validations(self.run)]

    def bleu(self, step: int) -> float:
        """Returns the tokenized BLEU of the validation after `step` updates."""
        return next(line["bleu"] for line in validations(self.run) if line["step"] == step)

    @property
    def _output(self) -> pathlib.Path:
        return self.run.with_suffix(".txt")


@dataclasses.dataclass(kw_only=True)
class JoeyTrainer(Trainer):
    """A process of `python -m joeynmt train` that can be paused and continued.

    Attributes:
        vocabulary: vocabulary that decodes the subword pieces in Joey NMT's translations.
        references: lines of the validation target text.
        metric: settings of BLEU.
    """

    vocabulary: SentencePieceVocabulary
    references: Sequence[str]
    metric: TranslationMetric

    log, log_pattern = "train.log", r"Step: +(\d+), Batch Loss"

    def validated_steps(self) -> list[int]:
        translations = ((int(path.stem), path.read_bytes()) for path in self.run.glob("*.hyps"))
        return sorted(
            step for step, content in translations if content.count(b"\n") == len(self.references)
        )

    def bleu(self, step: int) -> float:
        hypotheses = read_pieces(self.run / f"{step}.hyps", self.vocabulary)
        return evaluate_translations(hypotheses, self.references, self.metric).tokenized_bleu


def equal_recipe(settings: list[str], dropout: float) -> TranslationRecipe:
    """Returns the recipe of the benchmark, with settings that Joey NMT supports.

    Args:
        settings: settings of the user, as strings of the form `path=value`, which are applied last.
            `joey_config` raises if Joey NMT does not support them.
        dropout: dropout rate of embeddings, sub-layers, attention weights and inner activations.
    """
    names = ("dropout", "attention_dropout", "activation_dropout")
    replaced = [f"model.{name}={dropout}" for name in names]
    # Both libraries train until the benchmark kills their processes.
    replaced += ["model.epsilon=1e-6", "training.max_steps=1_000_000"]
    return override(registry.load(RECIPE, TranslationRecipe), [*replaced, *settings])


def equal_budget(data: TranslationData, target_tokens: float) -> int:
    """Finds the batch size at which updates have about `target_tokens` target tokens on average.

    The batch size includes padding, while the number of target tokens excludes padding.

    Args:
        data: training data of this library.
        target_tokens: mean number of target tokens in an update.

    Returns:
        The batch size in tokens.
    """
    max_length = data.lengths[-1]
    return min(
        range(max_length, max(max_length, round(4 * target_tokens)) + 1, 8),
        key=lambda budget: abs(mean_target_tokens(data, budget) - target_tokens),
    )


def mean_target_tokens(data: TranslationData, budget: int) -> float:
    """Returns the mean number of target tokens in a batch, excluding padding.

    Args:
        data: training data of this library.
        budget: batch size in tokens, including padding.
    """
    buckets = Buckets(data.lengths, budget, data.batching.row_multiple)
    return data.target_tokens / buckets.totals(data.row_lengths)[0]


def prepare(options: argparse.Namespace, work: pathlib.Path) -> dict[str, Trainer]:
    """Writes the training files for this library and Joey NMT, and makes the trainers.

    Args:
        options: parsed options of the command.
        work: folder for the files.

    Returns:
        A dict mapping a name, such as "Joey NMT, float32", to a `Trainer`.
    """
    recipe = equal_recipe(options.set, options.dropout)
    languages, tfds = recipe.data.languages, Tfds(options.data_dir)
    vocabulary = TranslationStart().vocabulary(recipe, tfds=tfds)
    vocabulary.save(work / "vocabulary")
    data = TranslationData.build(
        recipe.data.source,
        recipe.data.train_split,
        vocabulary,
        cleaning=recipe.data.cleaning,
        batching=dataclasses.replace(recipe.data.batching, max_tokens=options.tokens),
        tfds=tfds,
    )
    pairs = read_pairs(recipe.data.source, recipe.data.validation_split, *languages, tfds)
    joey = work / "joeynmt"
    write_vocabulary(joey / "vocabulary.txt", vocabulary)
    sides = (data.tokens.source, data.tokens.target)
    for language, rows, lines in zip(languages, sides, zip(*pairs, strict=True), strict=True):
        training = (
            rows.padded(np.array([index]), length)[0] for index, length in enumerate(rows.lengths)
        )
        write_pieces(joey / f"train.{language}", training, vocabulary)
        held_out = vocabulary.encode_lines(lines, language)
        write_pieces(joey / f"validation.{language}", held_out, vocabulary)
    validate_every = options.validate_every if options.bleu_minutes else 100_000 * options.updates
    config = joey_config(recipe, joey, options.tokens, options.updates, validate_every)
    write_atomic(joey / "config.yaml", config.encode())

    joey_target_tokens = data.target_tokens / updates_per_epoch(
        data.row_lengths, options.tokens, recipe.training.seed
    )
    budget = options.our_tokens or equal_budget(data, joey_target_tokens)
    environment = {**os.environ, **thread_variables(options.threads)}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    settings = {
        **{f"model.{name}": value for name, value in recipe.model_options},
        "training.max_steps": recipe.training.max_steps,
        "data.batching.max_tokens": budget,
        "training.log_every": options.updates,
        "training.steps_per_call": options.updates,
        "training.validate_every": validate_every,
        "training.save_every_steps": None,
    }
    all_settings = [*options.set, *(f"{path}={value}" for path, value in settings.items())]
    flags_of_data = ["--data-dir", options.data_dir, "--vocabulary", str(work / "vocabulary")]
    command = [sys.executable, "-m", "experiments.translate", "train", RECIPE]
    trainers = {
        name: Trainer(
            command=[
                *(*command, str(work / policy), *flags_of_data),
                *flags("--set", *all_settings, f"training.dtype_policy={policy}"),
            ],
            run=work / policy,
            environment=environment,
            target_tokens=mean_target_tokens(data, budget),
            padded_tokens=budget,
        )
        for name, policy in POLICIES.items()
    }
    trainers[REFERENCE] = JoeyTrainer(
        command=[options.joey, "-m", "joeynmt", "train", str(joey / "config.yaml"), "--skip-test"],
        run=joey / "run",
        environment=environment,
        target_tokens=joey_target_tokens,
        padded_tokens=options.tokens,
        vocabulary=vocabulary,
        references=[target for _, target in pairs],
        metric=recipe.metric,
    )
    return trainers


def equality(trainers: Mapping[str, Trainer]) -> str:
    """Returns a sentence with each trainer's mean number of target tokens per update.

    The sentence also has the batch size including padding.
    """
    counts = "; ".join(
        f"{name} has {trainer.target_tokens:,.0f} of {trainer.padded_tokens:,} with padding"
        for name, trainer in trainers.items()
    )
    return f"Mean number of target tokens in an update: {counts}."
