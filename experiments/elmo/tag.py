"""The command `elmo tag`, which trains named entity taggers with and without ELMo's vectors."""

import argparse
import functools
import statistics
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from experiments import studies
from experiments.elmo.run import ElmoRun
from experiments.run import write_json
from macaron_tf.data.batches import ArrayBatches, in_parts
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.tags import TaggedSentences, read_tagged
from macaron_tf.errors import UserError
from macaron_tf.evaluation.answers import score_tags
from macaron_tf.io.paths import as_path
from macaron_tf.models import Elmo, WordTagger, WordTaggerConfig
from macaron_tf.objectives import SequenceObjective
from macaron_tf.text.token_rows import fingerprint
from macaron_tf.text.words import character_ids, with_ends
from macaron_tf.training import TrainingConfig, build_fit_model, train
from macaron_tf.training.checkpoints import weights_record
from macaron_tf.training.state import load_network

_TASK = get_task("conll2003")
_CHOOSING = "dev"
_BATCH = 32
# Names of taggers for the report. A key is a value of `WordTaggerConfig.elmo_place`; "" means that
# the tagger has no ELMo.
_ROWS = {
    "": "without ELMo",
    "input": "with ELMo",
    "output": "with ELMo at the output",
    "both": "with ELMo at input and output",
}
_pad = functools.partial(keras.utils.pad_sequences, padding="post")


class Sentences(ArrayBatches):
    """Batches of tagged sentences as character ids, with a start and an end token per sentence."""

    def __init__(self, examples: TaggedSentences, max_characters: int):
        self.examples = examples
        marked = with_ends(tf.ragged.constant(examples.words, tf.string, ragged_rank=1))
        self.characters = character_ids(marked.flat_values, max_characters).numpy()  # (words, C)
        self.splits = marked.row_splits.numpy()
        shapes = {
            "inputs": ("int32", (None, None, max_characters)),
            "targets": ("int32", (None, None)),
            "weight": ("float32", (None, None)),
        }
        lengths = np.diff(self.splits)  # in words, including the start and end tokens
        super().__init__(len(examples), _BATCH, self.padded, shapes, lengths)

    def arrays(self) -> list[np.ndarray]:
        """Returns the character ids and tags of all sentences, for computing a fingerprint."""
        return [self.characters, np.concatenate([*self.examples.labels])]

    def padded(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Makes a batch of the sentences with the indices `numbers`.

        Returns:
            A dict. `inputs (B, L, C)` contains C character ids per word, and `targets (B, L)`
            contains the tag indices. `weight (B, L)` is 1 at words, and 0 at start tokens, end
            tokens and padding.
        """
        tags = [self.examples.labels[number] for number in numbers]
        bounds = [self.splits[number : number + 2] for number in numbers]
        return {
            "inputs": _pad([self.characters[start:end] for start, end in bounds]),
            "targets": _pad([np.pad(mine, 1) for mine in tags]),
            "weight": _pad([np.pad(np.ones(len(mine)), 1) for mine in tags], dtype="float32"),
        }


def run(options: argparse.Namespace) -> None:
    """Runs the command `tag`: trains the taggers, and writes OUT/tagging.md and OUT/tagging.json.

    Taggers whose result is already in the folder OUT are not trained again.
    """
    opened = ElmoRun.open(options.run)
    weights = opened.checkpoint(options.checkpoint)
    elmo = opened.load_network(weights)
    out = as_path(options.out)
    if options.split.startswith(("train", "all")):
        raise UserError(
            f"--split {options.split} contains the sentences that the taggers train on: give "
            f"--split {_CHOOSING} or another split"
        )
    found = {
        split: Sentences(
            read_tagged(_TASK, split, options.tfds, options.source), elmo.config.max_characters
        )
        for split in dict.fromkeys(("train", _CHOOSING, options.split))
    }
    sets = found["train"], found[_CHOOSING], found[options.split]
    settings = {f"--{name}": vars(options)[name] for name in ("epochs", "source", "split")}
    settings["weights"] = fingerprint(elmo.get_weights())
    settings["sentences"] = fingerprint(
        array for sentences in found.values() for array in sentences.arrays()
    )
    rows = []
    for place in ("", *options.places):
        name = _ROWS[place]
        for seed in options.seeds:
            path = out / f"{name.replace(' ', '-')}-{seed}"
            studies.kept(path / "settings.json", settings, dict)
            row = _tagger(elmo, place, *sets, options.epochs, seed, path)
            rows.append({"name": name, "seed": seed, **row})
    record = {"elmo": str(opened.path), **weights_record(weights), "rows": rows}
    title = f"{_TASK.name}: F1 of named entity recognition on {options.split}"
    lines = [*_table(rows), f"The best epoch is the epoch with the greatest F1 on {_CHOOSING}."]
    studies.write(out, "tagging", "elmo", options, title, lines, figure=False, **record)


def _table(rows: list[dict]) -> list[str]:
    """Formats a Markdown table of the F1 with and without ELMo, and a line with the gain in F1."""
    lines, means = [], []
    for name, mine in studies.grouped(rows, "name").items():
        f1 = studies.values(mine, "f1")
        means.append(statistics.mean(f1))
        cells = (
            name,
            f"{mine[0]['parameters']:,}",
            studies.cell(f1, 2, 100),
            _weights(mine[0]),
            f"{statistics.mean(row['minutes'] for row in mine):.1f}",
        )
        lines.append(cells)
    head = ("tagger", "trained parameters", "F1", "weights of the layers", "minutes")
    gains = " and ".join(f"{100 * (mean - means[0]):.2f}" for mean in means[1:])
    return [
        *studies.table(head, lines),
        "",
        f"The gain over the tagger without ELMo is {gains} points of F1.",
    ]


def _weights(row: dict) -> str:
    """Formats the weights of ELMo's layers at the input and at the output of the tagger."""
    places = (row["layers"], row.get("output_layers", []))
    shown = [" ".join(f"{weight:.2f}" for weight in place) for place in places if place]
    return "; ".join(shown) or "-"


def _tagger(
    elmo: Elmo,
    place: str,
    learnt: Sentences,
    chosen: Sentences,
    judged: Sentences,
    epochs: int,
    seed: int,
    path: epath.Path,
) -> dict:
    """Trains and evaluates a tagger, or reads the result of a complete run.

    Args:
        elmo: the ELMo, whose weights are frozen.
        place: where the tagger reads ELMo's vectors: "input", "output", "both", or "" for a tagger
            without ELMo.
        learnt: training sentences.
        chosen: validation sentences, on which the epoch with the best F1 is selected.
        judged: test sentences, on which the selected epoch is evaluated.
        epochs: number of passes over the training sentences.
        seed: random seed of the initial weights, dropout and the order of sentences.
        path: folder of the run.

    Returns:
        A dict with "f1" (on the test sentences), "layers" and "output_layers" (weights of ELMo's
        layers at the input and at the output of the tagger), "parameters" (number of trained
        parameters) and "minutes" (training time).
    """
    done = path / "result.json"
    if done.exists():
        print(f"{path}: complete")
        return studies.read_json(done, f1=float, layers=list, parameters=int, minutes=float)
    config = TrainingConfig(
        max_steps=epochs * learnt.steps_per_epoch,
        seed=seed,
        learning_rate=2e-3,
        schedule="linear",
        warmup_steps=0,
        beta_2=0.999,
        clip_norm=5.0,
        validate_every=learnt.steps_per_epoch,
        best_metric="f1",
        keep_last=1,
    )
    keras.utils.set_random_seed(seed)
    network = WordTagger(
        WordTaggerConfig(
            elmo.config,
            max_characters=learnt.characters.shape[1],
            elmo_place=place or "none",
            num_tags=len(_TASK.labels),
        )
    )
    network.build()
    network.take_over(elmo)
    # All validations share this function, so TensorFlow does not trace it again.
    tags = tf.function(
        lambda characters: tf.argmax(network(characters, training=False), axis=-1),
        autograph=False,
        reduce_retracing=True,
    )
    result = train(
        build_fit_model(network, SequenceObjective("classes"), config),
        functools.partial(learnt.dataset, seed),
        path,
        validate=lambda model, step: _entities(tags, chosen),
    )
    load_network(result.best_checkpoint, network, "")
    weights = {
        at: np.asarray(mixture.weights_of_layers).tolist()
        for at, mixture in network.mixtures.items()
    }
    row = {
        "f1": _entities(tags, judged)["f1"],
        "layers": weights.get("input", []),
        "output_layers": weights.get("output", []),
        "parameters": sum(int(np.prod(w.shape)) for w in network.trainable_variables),
        "minutes": result.elapsed_seconds / 60,
    }
    write_json(done, row)
    return row


def _entities(tags_of: Callable[[tf.Tensor], tf.Tensor], judged: Sentences) -> dict[str, float]:
    """Computes the precision, recall and F1 of named entities.

    Args:
        tags_of: function that maps character ids `(B, L, C)` to tag indices `(B, L)`.
        judged: sentences with their correct tags.

    Returns:
        A dict with the keys "f1", "precision" and "recall".
    """
    # A batch has sentences of similar length. `found` maps the index of a sentence to its tags.
    order = np.argsort(judged.lengths, kind="stable")
    found: dict[int, list[str]] = {}
    for part in in_parts(len(order), 4 * _BATCH):
        numbers = order[part]
        tags = tags_of(tf.constant(judged.padded(numbers)["inputs"])).numpy()  # (B, L)
        for row, number in enumerate(numbers):
            count = len(judged.examples.words[number])
            found[int(number)] = [_TASK.labels[tag] for tag in tags[row, 1 : 1 + count]]
    truths = [[_TASK.labels[tag] for tag in tags] for tags in judged.examples.labels]
    metrics = score_tags([found[number] for number in range(len(truths))], truths)
    return {name: metrics[name] for name in ("f1", "precision", "recall")}
