"""Evaluation of sentence encoders."""

import argparse
import dataclasses
import time
from typing import Annotated, Literal

from annotated_types import Ge

from macaron_tf.data.tasks.encoding import encode_sets
from macaron_tf.errors import UserError, check_packages
from macaron_tf.runs.embedding import (
    TRIPLETS,
    measure,
    pair_task,
    read_encoder,
    read_sets,
)
from macaron_tf.runs.recipe import named_settings
from macaron_tf.runs.run import Run, default_splits, metrics_line, save_scores
from macaron_tf.settings import INT32, Settings
from macaron_tf.tasks.embedding import SentenceEmbedding, warn_cut


def open_encoder(options: argparse.Namespace) -> SentenceEmbedding:
    """Opens the sentence encoder `options.run`.

    `--set` takes precedence over its pooling, by default the mean, and its length.
    """
    location = options.run
    chosen = EncoderSettings(**named_settings(EncoderSettings, options.set))
    start = read_encoder(location, options.lower_case, options.trust_code)
    longest = start.config.longest
    if chosen.max_length and longest is not None and longest < chosen.max_length:
        raise UserError(f"max_length exceeds the {longest} positions of {location}")
    return SentenceEmbedding.of(start.source, chosen.pooling, chosen.max_length)


@dataclasses.dataclass(frozen=True)
class EncoderSettings(Settings):
    """Settings in which the use of a sentence encoder may differ from its training.

    Attributes:
        pooling: type of pooling; `None` means the pooling that the encoder was trained with.
        max_length: maximum number of tokens in a sentence, including special tokens; `None` means
            the maximum length of the encoder.
    """

    pooling: Literal["mean", "max", "cls"] | None = None
    max_length: Annotated[int, Ge(3), INT32] | None = None


# Flags of the command `evaluate` for an encoder that is no run of kind `embedding`.
FLAGS = ("source", "split", "task", "lower_case")


def run(opened: Run | None, options: argparse.Namespace) -> None:
    """Prints the metrics of an encoder on a task, and writes them to `--output` or RUN/scores.

    `opened` is the run of kind `embedding` that trained the encoder, if there is one.
    """
    check_packages("evaluate")
    with options.devices.scope():
        encoder = open_encoder(options)
    recipe = opened and opened.recipe
    name = options.task or (recipe.task.name if recipe else "stsb")
    task, trained = pair_task(name), ()
    if recipe and recipe.num_classes:
        trained = recipe.task_definition.labels
    if task.labels and task is not TRIPLETS and task.labels != trained:
        raise UserError(
            f"the classes of the task {name} are {', '.join(task.labels)}, but must be "
            f"{', '.join(trained) or 'none'}: give --task stsb, which needs none"
        )
    is_own = recipe and name == recipe.task.name
    source = options.source or (recipe.data.source if is_own else task.source)
    split = options.split or default_splits(source, [*task.validation_splits])[0]
    examples = read_sets(task, split, source, options.tfds)
    began = time.monotonic()
    data = encode_sets(encoder.vocabulary, examples, encoder.max_length)
    warn_cut(data.rows, encoder.max_length)
    metrics = measure(task, encoder.network, encoder.encode_sets(data), data.labels)
    seconds = time.monotonic() - began
    print(metrics_line(metrics))
    print(
        f"{len(examples):,} examples of {name}, {split}; {encoder.network.pooling} pooling; "
        f"{seconds:.1f} s"
    )
    if options.output or opened:
        record = {"encoder": options.run, **encoder.facts()}
        record |= {"task": name, "source": source, "split": split, "examples": len(examples)}
        record |= {"seconds": round(seconds, 2), "metrics": metrics}
        subject = f"{name}-{source}-{split}"
        save_scores(options.output, opened and opened.path, subject, **record)
