"""Commands of `macaron train` that train a tiny run of any recipe, and the check of resumption."""

import pathlib

import numpy as np

from experiments import registry
from experiments.commands import main
from tests.toys.numbers import number_settings
from tests.toys.pretraining import flags
from tests.toys.processes import assert_same_run
from tests.toys.tasks import toy_flags, without

SHORT = ["schedule=constant", "warmup_steps=0", "validate_every=1", "save_every_steps=1"]
SHORT = flags([f"training.{one}" for one in [*SHORT, "log_every=1", "max_minutes=None"]])
# Sizes for the fields that a model's configuration has.
SIZES = dict(hidden_dim=32, feed_forward_dim=64, num_heads=2, num_kv_heads=1, head_dim=16)
SIZES |= dict(num_layers=2, num_encoder_layers=1, num_decoder_layers=1, num_source_layers=1)
SIZES |= dict(embedding_dim=16, lstm_dim=8, projection_dim=4, widths=(8, 16))
SIZES |= dict(filters=((1, 4), (2, 4)))
TEN = dict(max_steps=10, warmup_steps=2, validate_every=10, save_every_steps=10, log_every=1)
TEN = flags([f"training.{name}={value}" for name, value in {**TEN, "max_minutes": None}.items()])
# Runs that others start from.
STARTS = {
    "multi30k_xlm_tiny": "xlm_tiny",
    "multi30k_unsupervised_tiny": "xlm_tiny",
    "multi30k_bart_tiny": "bart_tiny",
    "finetune_elmo:sst2": "elmo_tiny",
    "finetune_gpt:sst2": "gpt_tiny",
    "text_to_text:sst2": "t5_tiny",
}
FILES = {"ptb_words": "ptb", "ptb_characters": "ptb", "lambada": "lambada"}


def check_resumed(words: list[str], folder: pathlib.Path) -> pathlib.Path:
    """Checks that a run resumed after one update is bit-identical to an uninterrupted run.

    Both have three updates, and the same command resumes the run. The metrics, the weights and the
    whole training state must be equal.

    Args:
        words: words of a training command, in which RUN stands for the folder of the run.
        folder: folder for the two runs.

    Returns:
        The folder of the resumed run.
    """
    for name, steps in (("whole", 3), ("parts", 1), ("parts", 3)):
        command = [word.replace("RUN", str(folder / name)) for word in words]
        assert main([*command, *SHORT, "--set", f"training.max_steps={steps}"]) == 0
    assert_same_run(folder / "whole", folder / "parts")
    return folder / "parts"


def words_of(name: str, value) -> list[str]:
    """Returns a command that trains a recipe for ten updates.

    Args:
        name: name of the recipe.
        value: function from a fixture's name to its value, and from a recipe's name to a run of it.

    Returns:
        The words, in which RUN stands for the folder of the run.
    """
    recipe, more = registry.load(name), []
    config = recipe.model_config()
    settings = {f"model.{field}": SIZES[field] for field in SIZES if getattr(config, field, None)}
    if name in STARTS:
        more, settings = ["--init", value(STARTS[name])], {}
    match recipe.kind:
        case "pretraining":
            settings["data.sources"] = tuple(
                (value("number_text" if one.pair else "digits"), "train", one.weight,
                 one.language)
                for one in recipe.data.sources
            )  # fmt: skip
            pieces = {"byte_bpe": 300, "unigram": 50}.get(recipe.data.vocabulary.kind, 60)
            settings |= {"data.sequence_length": 16, "data.validation_every": 20}
            settings |= {
                "data.vocabulary.size": pieces,
                "data.batch_size": 4,
                "data.validation_batches": 2,
            }
            settings |= {"training.accumulation_steps": 1}
            if recipe.objective.has_memory:
                settings["objective.memory_length"] = 8
        case "translation":
            settings["data.train_split"] = "train"
            if recipe.data.target_split:
                settings["data.target_split"] = "train"
            more += flags(
                [one for one in number_settings(value("number_text")) if one[:5] == "data."]
            )
        case "text_to_text":
            settings = {
                "data.batching.max_tokens": 512,
                "data.max_target": 16,
                "data.validation_examples": 8,
            }
            settings["data.source"] = value("tables")
        case "elmo":
            settings |= {"data.sources": value("digits"), "data.batch_size": 4}
            settings |= {"data.row_length": 10, "data.held_out": 6, "data.vocabulary_size": 7}
        case "sequence":
            task, settings["data.batch_size"] = recipe.task.name, 4
            if task in ("jsb", "nottingham"):
                settings["data.path"] = value("tunes")
            elif task in FILES:
                settings["data.path"] = value("shared_data") / FILES[task]
            if "mnist" in task:
                more = ["--data-dir", value("tfds_dir")]
            if recipe.data.sources:
                settings["data.sources"] = value("digits")
        case _:
            toy = toy_flags(value("toy"), "stsb" if recipe.kind == "embedding" else "sst2")
            own = [word.split("=")[0] for word in toy if word.startswith("model")]
            more += without(toy, "--vocabulary", *own) if more else toy
    given = flags([f"{path}={one}" for path, one in settings.items()])
    return ["train", name, "RUN", *map(str, more), *given, *TEN]


def train(name: str, run, value, *settings: str) -> None:
    """Runs the command of `words_of` with further settings."""
    words = [*words_of(name, value), *flags(settings)]
    assert main([word.replace("RUN", str(run)) for word in words]) == 0


def colours(count: int, seed: int) -> list[tuple[int, str]]:
    """Returns random pairs of a number and its colour."""
    names = ("red", "blue", "green")
    return [(n, names[n]) for n in np.random.default_rng(seed).integers(0, 3, count)]
