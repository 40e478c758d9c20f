"""`elmo train` and `elmo evaluate`: rows of words of a recipe's texts, and training on them."""

import argparse
import dataclasses
import functools
import hashlib
import itertools

import numpy as np

from experiments import registry
from experiments.elmo.run import ElmoRecipe, ElmoRun
from experiments.run import write_json
from experiments.train_run import RunData, report, train_run
from macaron_tf.data.batches import ArrayBatches
from macaron_tf.data.sources.readers import documents
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.objectives import BidirectionalLanguageObjective
from macaron_tf.text.words import WordText, WordVocabulary, as_word_text, count_words, read_words
from macaron_tf.training import FitModel, build_fit_model


class Rows(ArrayBatches):
    """A text cut into rows of L words; an incomplete last row is dropped.

    A batch is `characters (B, L, C)` and `words (B, L)`.

    Attributes:
        ids: `(rows, L)`, words by their index in `text.types`.
    """

    def __init__(self, text: WordText, recipe: ElmoRecipe):
        length, width = recipe.row_length, recipe.model_config(text.vocab_size).max_characters
        count = len(text.ids) // length
        self.ids = text.ids[: count * length].reshape(count, length)  # (N,) -> (rows, L)
        characters = text.characters(width)  # (types, C)

        def gather(numbers: np.ndarray) -> dict[str, np.ndarray]:
            ids = self.ids[numbers]
            return {"characters": characters[ids], "words": text.targets(ids)}

        shapes = {"characters": ("int32", (None, length, width))}
        shapes["words"] = ("int32", (None, length))
        super().__init__(count, recipe.batch_size, gather, shapes)


def read_rows(
    recipe: ElmoRecipe,
    vocabulary: WordVocabulary | None = None,
    data_dir: str | None = None,
    download: bool = False,
) -> tuple[Rows, Rows, WordVocabulary]:
    """The training rows of a recipe's texts, the held-out rows, and the vocabulary.

    Args:
        vocabulary: of a run; None = counted here.

    Raises:
        UserError: no such source, or too little text.
    """
    found = [
        words
        for source in recipe.sources
        for words in read_words(documents(source, "train", data_dir, download))
    ]
    held = found[:: recipe.held_out]
    del found[:: recipe.held_out]
    parts = [list(itertools.chain.from_iterable(part)) for part in (found, held)]
    vocabulary = vocabulary or count_words([parts[0]], recipe.vocabulary_size)
    learnt, judged = (len(part) // recipe.row_length for part in parts)
    if learnt < recipe.batch_size or not judged:
        raise UserError(
            f"the sources have {learnt} rows to learn from and {judged} held out, less than a "
            f"batch of {recipe.batch_size} or none: give more documents, or lower batch_size, "
            "row_length or held_out"
        )
    train, validation = (Rows(as_word_text(part, vocabulary), recipe) for part in parts)
    return train, validation, vocabulary


def run(options: argparse.Namespace) -> None:
    """Trains a run, or resumes it, and prints the next commands."""
    recipe = registry.load(options.recipe, ElmoRecipe, options.set)
    path = as_path(options.run)
    recipe.model_config()  # refuses wrong settings before minutes are spent on the data
    recipe.check_metric(BidirectionalLanguageObjective.metric_names)
    opened = ElmoRun.resume(path, recipe)
    rows, held_out, vocabulary = read_rows(
        recipe, opened and opened.vocabulary, options.data_dir, options.download
    )
    result = train_run(
        ElmoRun(path, recipe, vocabulary),
        RunData(
            functools.partial(rows.dataset, recipe.training.seed),
            hashlib.sha256(rows.ids.tobytes()).hexdigest(),
            {"rows": len(rows.ids)},
        ),
        BidirectionalLanguageObjective(recipe.samples),
        lambda network: lambda model, step: scores(model, held_out),
        options.devices,
        note=f"; {rows.ids.size:,} words to learn from, {held_out.ids.size:,} held out, "
        f"{vocabulary.size:,} to predict",
    )
    embed = "{me} embed {run} --input lines.txt --output vectors.npz"
    report(result, recipe, options, embed, "{me} tag {run} {run}-conll --data-dir DIR")


def evaluate(options: argparse.Namespace) -> None:
    """Scores a checkpoint on the documents that its run held out; writes RUN/scores."""
    opened = ElmoRun.open(options.run)
    weights = opened.checkpoint(options.checkpoint)
    _, held_out, _ = read_rows(opened.recipe, opened.vocabulary, options.data_dir, options.download)
    network = opened.load_network(weights)
    training = dataclasses.replace(opened.recipe.training, ema_decay=None)
    model = build_fit_model(network, BidirectionalLanguageObjective(), training)
    found = {"checkpoint": weights.name, **scores(model, held_out)}
    write_json(opened.path / "scores" / f"{weights.name}.json", found)
    print("\n".join(f"{name:12} {value}" for name, value in found.items()))


def scores(model: FitModel, rows: Rows) -> dict[str, float]:
    """The objective's metrics on some rows."""
    metrics = model.evaluate(rows.evaluation_dataset(), verbose=0, return_dict=True)
    return {name: metrics[name] for name in BidirectionalLanguageObjective.metric_names}
