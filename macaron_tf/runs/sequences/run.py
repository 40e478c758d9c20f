"""Tasks of Bai et al. 2018 with their published results; recipe and run of a model on them."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
from annotated_types import Ge

from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.models import TemporalConfig, TemporalModel
from macaron_tf.objectives import SequenceObjective
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe, as_user_errors, override
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.sequences.data import (
    ADDING_LENGTH,
    COPY_LENGTH,
    NUM_SYMBOLS,
    PIXELS,
    TaskData,
    adding_batch,
    copy_batch,
    generated_data,
    image_data,
    music_data,
)
from macaron_tf.runs.sequences.text import (
    CHARACTERS,
    WORDS,
    article_data,
    last_word_data,
    text_data,
)
from macaron_tf.runs.trainer import evaluate_model
from macaron_tf.settings import INT32, Count, OneOf
from macaron_tf.training import TrainedModel


@dataclasses.dataclass(frozen=True)
class Task:
    """A sequence modelling task, with its data, metric and published results.

    Attributes:
        slide: published result of each model in `MODELS`, for the column "slide" of the report;
            `None` means that no result was published.
        length: number of positions in the longest training sequence.
        read_data: function that reads or generates the data. Its arguments are the `SequenceRecipe`
            and the access to TensorFlow Datasets.
        unit: name and unit of the metric, for the report.
        loss: loss of `SequenceObjective`.
        metric: metric by which the best checkpoint is selected, and which the report shows.
        takes_data: whether the task reads the file or folder `data` of the recipe.
    """

    title: str
    slide: tuple[float | None, ...]
    length: int
    read_data: Callable[[Any, Tfds | None], TaskData]
    unit: str
    loss: str = "classes"
    metric: str = "loss"
    takes_data: bool = False


MODELS = ("tcn", "lstm", "gru", "rnn")
_MUSIC = dict(
    read_data=music_data,
    unit="negative log-likelihood, nats per frame",
    loss="bernoulli",
    takes_data=True,
)
_DIGITS = dict(length=PIXELS, unit="accuracy, percent", metric="accuracy")
_WORDS = dict(unit="perplexity", metric="perplexity")
_ROWS = np.arange(PIXELS)
_PERMUTED = np.random.default_rng(0).permutation(PIXELS)  # all runs use the same order

TASKS = {
    "adding": Task(
        "Adding problem, T = 600",
        (5.8e-5, 0.164, 5.3e-5, 0.177),
        ADDING_LENGTH,
        partial(generated_data, adding_batch, f"sequences of {ADDING_LENGTH}"),
        "mean squared error",
        loss="squared_error",
    ),
    "copy_memory": Task(
        "Copy memory, T = 1000",
        (3.5e-5, 0.0204, 0.0197, 0.0202),
        COPY_LENGTH,
        partial(
            generated_data,
            copy_batch,
            f"sequences of {COPY_LENGTH}, {NUM_SYMBOLS} symbols to remember",
        ),
        "nats per position",
    ),
    "jsb": Task("JSB Chorales", (8.10, 8.45, 8.43, 8.91), 128, **_MUSIC),
    "nottingham": Task("Nottingham", (3.07, 3.29, 3.46, 4.05), 1_787, **_MUSIC),
    "ptb_words": Task(
        "Penn Treebank, words",
        (88.68, 78.93, 92.48, 114.50),
        WORDS[0],
        partial(text_data, str.split, WORDS, "words"),
        takes_data=True,
        **_WORDS,
    ),
    "ptb_characters": Task(
        "Penn Treebank, characters",
        (1.31, 1.36, 1.37, 1.48),
        CHARACTERS[0],
        # Replaces runs of spaces by a single space.
        partial(text_data, lambda line: list(" ".join(line.split())), CHARACTERS, "chars"),
        "bits per character",
        metric="bits",
        takes_data=True,
    ),
    "wikitext": Task(
        "Wikipedia's words", (45.19, 48.4, None, None), WORDS[0], article_data, **_WORDS
    ),
    "lambada": Task(
        "LAMBADA, the last word",
        (1279, 4186, None, 14_725),
        WORDS[0],
        last_word_data,
        takes_data=True,
        **_WORDS,
    ),
    "mnist": Task(
        "Sequential MNIST",
        (99.0, 87.2, 96.2, 21.5),
        read_data=partial(image_data, _ROWS),
        **_DIGITS,
    ),
    "permuted_mnist": Task(
        "Permuted MNIST",
        (97.2, 85.7, 87.3, 25.3),
        read_data=partial(image_data, _PERMUTED),
        **_DIGITS,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceRecipe(Recipe):
    """Settings of a task, which define the TCN and the training of all compared models.

    Attributes:
        task: name of the task; a key of `TASKS`.
        batch_size: number of sequences in a micro-batch.
        recurrent: settings in which the recurrent models differ from the TCN, in the form of
            `--set`.
        sources: sources of the training documents of `wikitext` and `lambada`, which must fit in
            memory; see `macaron_tf.data.sources.readers.documents`.
        vocabulary_size: maximum number of words in the vocabulary of `wikitext` and `lambada`,
            including <UNK>, <S> and </S>.
        data: a .mat file with music for `jsb` and `nottingham`; a folder with train.txt, valid.txt
            and test.txt for `ptb_words` and `ptb_characters`, or with dev.txt and test.txt for
            `lambada`, which may be compressed (.txt.gz). The other tasks read no file.
        held_out: interval between held-out documents in `wikitext`. With 50, the first document and
            every 50th document after it are used for validation. `lambada` trains on all documents.
    """

    kind = "sequence"
    may_change = (*MAY_CHANGE, "data")

    task: Annotated[str, OneOf(tuple(TASKS))]
    batch_size: Count = 32
    recurrent: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    data: str | None = None
    vocabulary_size: Annotated[int, Ge(4), INT32] = 10_000
    held_out: Annotated[int, Ge(2), INT32] = 50

    def unread(self) -> list[str]:
        reads_documents = self.task in ("wikitext", "lambada")
        unread = [] if reads_documents else ["sources", "vocabulary_size", "held_out"]
        return [*super().unread(), *unread]

    def check(self) -> None:
        if self.data and not TASKS[self.task].takes_data:
            raise UserError(f"data={self.data} has no effect in {self.task}: leave data out")

    def model_config(self, vocab_size: int | None = None) -> TemporalConfig:
        config = self.catalog_config(**dict(self.model_options))
        self.expect_model(config, TemporalConfig)
        if vocab_size and config.vocab_size:
            config = dataclasses.replace(config, vocab_size=vocab_size, output_dim=vocab_size)
        return config

    def make_objective(self, static_shapes: bool = False) -> SequenceObjective:
        return SequenceObjective(TASKS[self.task].loss, skip_padding=not static_shapes)

    def of_mixer(
        self, mixer: str, settings: Iterable[str] = (), vocab_size: int | None = None
    ) -> "SequenceRecipe":
        """Returns the recipe for a model type: `"tcn"`, `"lstm"`, `"gru"` or `"rnn"`.

        The widths of a recurrent model are chosen so that its parameter count is close to the TCN's
        parameter count. The setting `model.widths` applies only to the TCN. `vocab_size` is `None`
        if the data are not token ids.
        """
        tcn = override(self, settings)
        if mixer == "tcn":
            return tcn
        with as_user_errors(f"{mixer} with as many parameters as the TCN"):
            widths = tcn.model_config(vocab_size).equal_sized(mixer).widths
        recipe = override(override(self, self.recurrent), settings)
        options = {**dict(recipe.model_options), "mixer": mixer, "widths": widths}
        return dataclasses.replace(recipe, model_options=tuple(sorted(options.items())))


@dataclasses.dataclass(frozen=True)
class SequenceRun(Run):
    """A training run of a TCN or recurrent model on a sequence task, finished or not.

    The folder of the run contains no vocabulary.

    Attributes:
        vocab_size: vocabulary size of the data; `None` if the data are not token ids.
    """

    recipe_class = SequenceRecipe
    vocabulary_class = None

    vocab_size: int | None = None

    def make_network(self) -> TemporalModel:
        return self.recipe.network(self.recipe.model_config(self.vocab_size))

    def plan(self, start: None, inputs: Inputs) -> Plan:
        self.recipe.check_metric([TASKS[self.recipe.task].metric])
        return self.plan_of(TASKS[self.recipe.task].read_data(self.recipe, inputs.tfds))

    def plan_of(self, data: TaskData) -> Plan:
        """Plans the training on the data of the task."""
        return Plan(
            run=dataclasses.replace(self, vocab_size=data.vocab_size),
            batches=data.train,
            validation=lambda network: lambda model, step: task_metrics(model, data.validation),
            fingerprint=data.fingerprint,
            note=f"; {data.summary}",
            next=("evaluate {run}{data}",),
        )


def task_metrics(model: TrainedModel, dataset: tf.data.Dataset) -> dict[str, float]:
    """Evaluates a model on a dataset, and returns the metrics.

    For a classification task, the metrics also include "bits", the loss in bits.
    """
    metrics = evaluate_model(model, dataset)
    if "perplexity" in metrics:
        metrics["bits"] = metrics["loss"] / math.log(2)
    return metrics
