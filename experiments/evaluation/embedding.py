"""Commands that score sentence encoders and search for similar sentences."""

import argparse
import contextlib
import dataclasses
import hashlib
import pathlib
import sys
import time
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from experiments.lines import arriving, opened_input
from macaron_tf.cli.program import decoded
from macaron_tf.data.tasks.encoding import encode_sets
from macaron_tf.errors import UserError, check_packages, warn
from macaron_tf.evaluation.similarity import nearest, unit_vectors
from macaron_tf.io import paths as storage
from macaron_tf.models.tasks import SiameseEncoder
from macaron_tf.runs.embedding import (
    TRIPLETS,
    measure,
    pair_task,
    read_encoder,
    read_sets,
)
from macaron_tf.runs.recipe import named_settings
from macaron_tf.runs.run import (
    Run,
    default_splits,
    metrics_line,
    save_scores,
    scores_name,
)
from macaron_tf.settings import INT32, Settings
from macaron_tf.tasks.embedding import SentenceEmbedding, warn_cut
from macaron_tf.training.locations import locate


def open_encoder(options: argparse.Namespace) -> tuple[SentenceEmbedding, Run | None]:
    """Opens the sentence encoder `options.run` on the chosen devices, and its run if it has one.

    The settings `pooling` and `max_length` of `--set` take precedence over those of the encoder,
    whose pooling is the mean if it is unknown.
    """
    location, run = options.location, None
    chosen = EncoderSettings(**named_settings(EncoderSettings, options.set))
    with options.devices.scope():
        start = read_encoder(location, options.lower_case, options.trust_code)
        source, config = start.source, start.config
        located = locate(location)
        if isinstance(source.network, SiameseEncoder) and not located.without_recipe:
            run = Run.open(located.folder, options.trust_code, "embedding")
        if chosen.max_length and config.longest is not None and config.longest < chosen.max_length:
            raise UserError(f"max_length exceeds the {config.longest} positions of {location}")
        return SentenceEmbedding.pooled(source, chosen.pooling, chosen.max_length), run


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
    """Prints the metrics of an encoder on a task, and writes them to a JSON file.

    With `--task`, the encoder need not be a run, and `opened` is `None`. The file is in the folder
    of `--output`, or else in RUN/scores. Nothing is written for an encoder that is no run without
    `--output`.
    """
    check_packages("evaluate")
    encoder, encoder_run = open_encoder(options)
    recipe = encoder_run and encoder_run.recipe
    name = options.task or (recipe.task if recipe else "stsb")
    task, trained = pair_task(name), ()
    if recipe and recipe.num_classes:
        trained = recipe.task_definition.labels
    if task.labels and task is not TRIPLETS and task.labels != trained:
        raise UserError(
            f"the classes of the task {name} are {', '.join(task.labels)}, but must be "
            f"{', '.join(trained) or 'none'}: give --task stsb, which needs none"
        )
    is_own = recipe and name == recipe.task
    source = options.source or (recipe.source if is_own else task.source)
    split = options.split or default_splits(source, [*task.validation_splits])[0]
    examples = read_sets(task, split, source, options.tfds)
    began = time.monotonic()
    data = encode_sets(encoder.vocabulary, examples, encoder.max_length)
    warn_cut(data.truncated_count, len(data.rows.lengths), encoder.max_length)
    metrics = measure(task, encoder.network, encoder.encode_sets(data), data.labels)
    seconds = time.monotonic() - began
    print(metrics_line(metrics))
    print(
        f"{len(examples):,} examples of {name}, {split}; {encoder.network.pooling} pooling; "
        f"{seconds:.1f} s"
    )
    if options.output or encoder_run:
        record = {"encoder": options.location, **encoder.facts()}
        record |= {"task": name, "source": source, "split": split, "examples": len(examples)}
        record |= {"seconds": round(seconds, 2), "metrics": metrics}
        file = scores_name(f"{name}-{source}-{split}", "", [encoder.identity(), examples.texts])
        save_scores(options.output, encoder_run and encoder_run.path, file, **record)


def search(options: argparse.Namespace) -> None:
    """Prints the lines of a file that are nearest to each query of `--query` or stdin."""
    with opened_input(options.corpus, "--corpus") as lines:
        # Empty lines are dropped, because their vectors are near every short query.
        corpus = [(n, text) for n, text in enumerate(decoded(lines), 1) if text.strip()]
    if not corpus:
        raise UserError(f"--corpus {options.corpus} contains no text: give another file")
    encoder, _ = open_encoder(options)
    texts = [text for _, text in corpus]
    vectors = corpus_vectors(encoder, texts, pathlib.Path(options.corpus))
    encoder.encode([""])  # traces the graph before the first query
    with opened_input(None) as typed:
        for queries in [options.query] if options.query else arriving(typed):
            scores, positions = nearest(unit_vectors(encoder.encode(queries)), vectors, options.top)
            for query, query_scores, found in zip(queries, scores, positions, strict=True):
                print(f"> {query}")
                for score, position in zip(query_scores, found, strict=True):
                    line_number, text = corpus[position]
                    print(f"{score:.4f}\t{line_number}\t{text}")
            sys.stdout.flush()


def corpus_vectors(encoder: SentenceEmbedding, texts: list[str], file: pathlib.Path) -> np.ndarray:
    """Returns the unit vectors of sentences, `(N, D)` float32, and caches them in FILE.HASH.npy.

    HASH depends on the encoder and on the texts, so another encoder or other texts have another
    cache file. If the cache file cannot be written, the function only warns on stderr.
    """
    digest = hashlib.sha256(encoder.identity().encode())
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
    cache = file.with_name(f"{file.name}.{digest.hexdigest()[:16]}.npy")
    # A damaged cache file raises or has another shape. The file is then written again.
    with contextlib.suppress(OSError, ValueError, EOFError):
        cached = np.load(cache, mmap_mode="r")
        shape = len(texts), encoder.network.config.hidden_dim
        if cached.shape == shape and cached.dtype == np.float32:
            return cached
    began = time.monotonic()
    vectors = unit_vectors(encoder.encode(texts))
    seconds = time.monotonic() - began
    print(f"{len(texts):,} sentences encoded in {seconds:.1f} s", file=sys.stderr)
    try:
        with storage.atomic_output_path(cache) as temporary_path, open(temporary_path, "wb") as out:
            np.save(out, vectors)
        print(f"saved in {cache}", file=sys.stderr)
    except UserError as error:
        warn(f"{error}; the next search will encode the sentences again")
    return vectors
