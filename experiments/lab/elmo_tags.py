"""Trains named entity taggers on CoNLL-2003, with and without ELMo's vectors.

    python -m experiments.lab.elmo_tags runs/elmo runs/elmo-conll --data-dir DIR

The command prints the F1 of each tagger. To resume an interrupted command, give it again.
`macaron train finetune_elmo:TASK` trains on other tasks.
"""

import argparse
import functools
import statistics
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from experiments import command_line as cli
from experiments import studies
from macaron_tf.data.batches import ArrayBatches
from macaron_tf.data.buckets import in_parts
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.tags import TaggedSentences, read_tagged
from macaron_tf.errors import UserError
from macaron_tf.evaluation.answers import score_tags
from macaron_tf.io.paths import as_path
from macaron_tf.models import Elmo, WordTagger, WordTaggerConfig
from macaron_tf.objectives import SequenceObjective
from macaron_tf.runs.elmo import ElmoRun
from macaron_tf.runs.run import write_json
from macaron_tf.text.token_rows import fingerprint
from macaron_tf.text.words import character_ids, with_ends
from macaron_tf.training import TrainingConfig, build_fit_model, train
from macaron_tf.training.state import load_network

_TASK = get_task("conll2003")
_VALIDATION = "dev"
_BATCH_SIZE = 32
# Names of taggers for the report. A key is a value of `WordTaggerConfig.elmo_place`; "" means that
# the tagger has no ELMo.
_TAGGER_NAMES = {
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
        super().__init__(len(examples), _BATCH_SIZE, self.padded, shapes, lengths)

    def arrays(self) -> list[np.ndarray]:
        """Returns the character ids and tags of all sentences, for computing a fingerprint."""
        return [self.characters, np.concatenate([*self.examples.labels])]

    def padded(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Makes a batch of the sentences with the indices `indices`.

        `inputs (B, L, C)` contains C character ids per word, and `targets (B, L)` contains the tag
        indices. `weight (B, L)` is 1 at words, and 0 at start tokens, end tokens and padding.
        """
        tags = [self.examples.labels[index] for index in indices]
        bounds = [self.splits[index : index + 2] for index in indices]
        return {
            "inputs": _pad([self.characters[start:end] for start, end in bounds]),
            "targets": _pad([np.pad(sentence_tags, 1) for sentence_tags in tags]),
            "weight": _pad(
                [np.pad(np.ones(len(sentence_tags)), 1) for sentence_tags in tags], dtype="float32"
            ),
        }


def run(options: argparse.Namespace) -> None:
    """Trains the taggers, and writes OUT/tagging.md and OUT/tagging.json.

    Taggers whose result is already in the folder OUT are not trained again.
    """
    elmo_run = ElmoRun.open(options.run, options.trust_code)
    weights = elmo_run.checkpoint(options.checkpoint)
    elmo = elmo_run.load_network(weights)
    out = as_path(options.out)
    if options.split.startswith(("train", "all")):
        raise UserError(f"--split {options.split} trains the taggers: give --split {_VALIDATION}")
    splits = ("train", _VALIDATION, options.split)
    sentences_by_split = {
        split: Sentences(
            read_tagged(_TASK, split, options.tfds, options.source), elmo.config.max_characters
        )
        for split in dict.fromkeys(splits)
    }
    sentences = [sentences_by_split[split] for split in splits]
    settings = {f"--{name}": vars(options)[name] for name in ("epochs", "source", "split")}
    settings["weights"] = fingerprint(elmo.get_weights())
    settings["sentences"] = fingerprint(
        array for part in sentences_by_split.values() for array in part.arrays()
    )
    rows = []
    for elmo_place in ("", *options.places):
        name = _TAGGER_NAMES[elmo_place]
        for seed in options.seeds:
            path = out / f"{name.replace(' ', '-')}-{seed}"
            studies.read_or_compute(path / "settings.json", settings, dict)
            row = _train_tagger(elmo, elmo_place, sentences, options.epochs, seed, path)
            rows.append({"name": name, "seed": seed, **row})
    record = {"elmo": str(elmo_run.path), "checkpoint": weights.name, "rows": rows}
    title = f"{_TASK.name}: F1 of named entity recognition on {options.split}"
    lines = [*_table(rows), f"The best epoch is the epoch with the greatest F1 on {_VALIDATION}."]
    studies.write(out, "tagging", options, title, lines, figure=False, **record)


def _table(rows: list[dict]) -> list[str]:
    """Formats a Markdown table of the F1 with and without ELMo, and a line with the gain in F1."""
    lines, means = [], []
    for name, tagger_rows in studies.grouped(rows, "name").items():
        f1 = studies.values(tagger_rows, "f1")
        means.append(statistics.mean(f1))
        cells = (
            name,
            f"{tagger_rows[0]['parameters']:,}",
            studies.cell(f1, 2, 100),
            _layer_weights_text(tagger_rows[0]),
            f"{statistics.mean(row['minutes'] for row in tagger_rows):.1f}",
        )
        lines.append(cells)
    head = ("tagger", "trained parameters", "F1", "weights of the layers", "minutes")
    gains = " and ".join(f"{100 * (mean - means[0]):.2f}" for mean in means[1:])
    return [
        *studies.table(head, lines),
        "",
        f"The gain over the tagger without ELMo is {gains} points of F1.",
    ]


def _layer_weights_text(row: dict) -> str:
    """Formats the weights of ELMo's layers at the input and at the output of the tagger."""
    layer_weights = (row["layers"], row.get("output_layers", []))
    shown = [
        " ".join(f"{weight:.2f}" for weight in weights) for weights in layer_weights if weights
    ]
    return "; ".join(shown) or "-"


def _train_tagger(
    elmo: Elmo,
    elmo_place: str,
    sentences: list[Sentences],
    epochs: int,
    seed: int,
    path: epath.Path,
) -> dict:
    """Trains and evaluates a tagger, or reads the result of a complete run.

    `elmo_place` is where the tagger reads ELMo's vectors: "input", "output", "both", or "" for a
    tagger without ELMo. `sentences` are those to train on, to select the epoch with the best F1,
    and to evaluate it. The result has "f1" (on the test sentences), "layers" and "output_layers"
    (weights of ELMo's layers at the input and at the output of the tagger), "parameters" (number of
    trained parameters) and "minutes" (training time).
    """
    result_path = path / "result.json"
    if result_path.exists():
        print(f"{path}: complete")
        return studies.read_json(result_path, f1=float, layers=list, parameters=int, minutes=float)
    train_sentences, validation_sentences, test_sentences = sentences
    config = TrainingConfig(
        max_steps=epochs * train_sentences.steps_per_epoch,
        seed=seed,
        learning_rate=2e-3,
        schedule="linear",
        warmup_steps=0,
        beta_2=0.999,
        clip_norm=5.0,
        validate_every=train_sentences.steps_per_epoch,
        best_metric="f1",
        keep_last=1,
    )
    keras.utils.set_random_seed(seed)
    network = WordTagger(
        WordTaggerConfig(
            elmo.config,
            max_characters=train_sentences.characters.shape[1],
            elmo_place=elmo_place or "none",
            num_tags=len(_TASK.labels),
        )
    )
    network.build()
    network.copy_elmo(elmo)
    # All validations share this function, so TensorFlow does not trace it again.
    tags = tf.function(
        lambda characters: tf.argmax(network(characters, training=False), axis=-1),
        autograph=False,
        reduce_retracing=True,
    )
    result = train(
        build_fit_model(network, SequenceObjective("classes"), config),
        functools.partial(train_sentences.dataset, seed),
        path,
        validate=lambda model, step: _entity_metrics(tags, validation_sentences),
    )
    load_network(result.best_checkpoint, network, "")
    weights = {
        position: np.asarray(mixture.weights_of_layers).tolist()
        for position, mixture in network.mixtures.items()
    }
    row = {
        "f1": _entity_metrics(tags, test_sentences)["f1"],
        "layers": weights.get("input", []),
        "output_layers": weights.get("output", []),
        "parameters": sum(int(np.prod(w.shape)) for w in network.trainable_variables),
        "minutes": result.elapsed_seconds / 60,
    }
    write_json(result_path, row)
    return row


def _entity_metrics(
    tags_of: Callable[[tf.Tensor], tf.Tensor], sentences: Sentences
) -> dict[str, float]:
    """Computes the precision, recall and F1 of named entities.

    `tags_of` maps character ids `(B, L, C)` to tag indices `(B, L)`.
    """
    # A batch has sentences of similar length. `predictions` maps the index of a sentence to its
    # tags.
    order = np.argsort(sentences.lengths, kind="stable")
    predictions: dict[int, list[str]] = {}
    for part in in_parts(len(order), 4 * _BATCH_SIZE):
        indices = order[part]
        tags = tags_of(tf.constant(sentences.padded(indices)["inputs"])).numpy()  # (B, L)
        for row, index in enumerate(indices):
            count = len(sentences.examples.words[index])
            predictions[int(index)] = [_TASK.labels[tag] for tag in tags[row, 1 : 1 + count]]
    truths = [[_TASK.labels[tag] for tag in tags] for tags in sentences.examples.labels]
    metrics = score_tags([predictions[index] for index in range(len(truths))], truths)
    return {name: metrics[name] for name in ("f1", "precision", "recall")}


main = cli.single_program(
    "python -m experiments.lab.elmo_tags",
    __doc__,
    "experiments.lab.elmo_tags:run",
    cli.extra("train"),
    cli.TRAINED,
    cli.path_argument("out", "output folder for the training runs and the report"),
    cli.path_argument(
        "--source",
        "source of tagged sentences, as tfds:NAME or conll:FILE (default: tfds:conll2003_ner)",
    ),
    cli.argument(
        "--split",
        "split whose F1 to report; the best epoch is selected on 'dev' (default: 'dev')",
        default="dev",
    ),
    cli.argument(
        "--places",
        "where ELMo's vectors are concatenated: to the 'input' of the tagger's LSTM, to its "
        "'output', or to 'both'; the command trains a tagger for each value (default: 'input')",
        choices=("input", "output", "both"),
        default=["input"],
        nargs="+",
        action=cli.Distinct,
    ),
    cli.count("--epochs N", "number of training epochs (default: 8)", 8),
    cli.seeds([1], "random seeds; the command trains each tagger with every seed"),
    cli.TFDS,
)

if __name__ == "__main__":
    raise SystemExit(main())
