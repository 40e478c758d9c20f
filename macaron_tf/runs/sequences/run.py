"""Tasks of Bai et al. 2018; recipe and run of a model on them."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
from annotated_types import Ge

from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.models import TemporalConfig
from macaron_tf.objectives import SequenceObjective
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe, as_user_errors
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
    """A sequence modelling task, with its data and metric.

    Attributes:
        length: number of positions in the longest training sequence.
        read_data: function that reads or generates the data. Its arguments are the `SequenceRecipe`
            and the access to TensorFlow Datasets.
        unit: name and unit of the metric, for the report.
        loss: loss of `SequenceObjective`.
        metric: metric by which the best checkpoint is selected, and which the report shows.
        takes_data: whether the task reads the file or folder `data` of the recipe.
        digits: number of decimals of the metric in a report.
    """

    length: int
    read_data: Callable[[Any, Tfds | None], TaskData]
    unit: str
    loss: str = "classes"
    metric: str = "loss"
    takes_data: bool = False
    digits: int = 2


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
        ADDING_LENGTH,
        partial(generated_data, adding_batch, f"sequences of {ADDING_LENGTH}"),
        "mean squared error",
        loss="squared_error",
        digits=6,
    ),
    "copy_memory": Task(
        COPY_LENGTH,
        partial(
            generated_data,
            copy_batch,
            f"sequences of {COPY_LENGTH}, {NUM_SYMBOLS} symbols to remember",
        ),
        "nats per position",
        digits=8,
    ),
    "jsb": Task(128, **_MUSIC),
    "nottingham": Task(1_787, **_MUSIC),
    "ptb_words": Task(
        WORDS[0], partial(text_data, str.split, WORDS, "words"), takes_data=True, **_WORDS
    ),
    "ptb_characters": Task(
        CHARACTERS[0],
        # Replaces runs of spaces by a single space.
        partial(text_data, lambda line: list(" ".join(line.split())), CHARACTERS, "chars"),
        "bits per character",
        metric="bits",
        takes_data=True,
    ),
    "wikitext": Task(WORDS[0], article_data, **_WORDS),
    "lambada": Task(WORDS[0], last_word_data, takes_data=True, **_WORDS),
    "mnist": Task(read_data=partial(image_data, _ROWS), **_DIGITS),
    "permuted_mnist": Task(read_data=partial(image_data, _PERMUTED), **_DIGITS),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceRecipe(Recipe):
    """Settings of a task, which define the model and its training.

    Attributes:
        task: name of the task; a key of `TASKS`.
        batch_size: number of sequences in a micro-batch.
        recurrent: settings in which the recurrent models differ from the TCN, in the form of
            `--set`. `macaron compare` gives them to the arms that set `model.mixer`.
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
    vocabulary_class = None
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
        """Returns the configuration of the network.

        A recurrent model, `model.mixer=lstm`, `gru` or `rnn`, gets the widths with which it has
        nearly as many parameters as the TCN, whose widths are `model.widths`.
        """
        config = self.catalog_config(**dict(self.model_options))
        self.expect_model(config, TemporalConfig)
        if vocab_size and config.vocab_size:
            config = dataclasses.replace(config, vocab_size=vocab_size, output_dim=vocab_size)
        if config.mixer == "tcn":
            return config
        with as_user_errors(f"{config.mixer} with as many parameters as the TCN"):
            return dataclasses.replace(config, mixer="tcn").equal_sized(config.mixer)

    def sized_config(self, vocabulary: None) -> TemporalConfig:
        return self.model_config()

    def make_objective(self, static_shapes: bool = False) -> SequenceObjective:
        return SequenceObjective(TASKS[self.task].loss, skip_padding=not static_shapes)

    def plan(self, run: Run, start: None, inputs: Inputs) -> Plan:
        self.check_metric([TASKS[self.task].metric])
        run.check_continues()
        data = TASKS[self.task].read_data(self, inputs.tfds)
        return Plan(
            run=run,
            config=self.model_config(data.vocab_size),
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
