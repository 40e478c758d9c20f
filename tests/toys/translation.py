"""Translation models that begin with pre-trained models."""

import pathlib

from experiments import registry
from macaron_tf.io.paths import as_path
from macaron_tf.runs.pretraining import PretrainingRecipe
from macaron_tf.runs.recipe import override
from macaron_tf.runs.run import Run
from tests.toys.numbers import number_pairs, number_settings
from tests.toys.pretraining import toy_settings
from tests.toys.tasks import write_untrained

LANGUAGES = ("en", "de")
XLM, BART = "multi30k_xlm_tiny", "multi30k_bart_tiny"


def make_start(folder: pathlib.Path, recipe: str, *settings: str, seed: int = 1) -> str:
    """Writes texts and a pre-training run with random weights; returns the path of the run.

    Args:
        folder: folder for the run and its texts.
        recipe: `xlm_tiny` (English and German), `bart_tiny` or `t5_tiny` (English).
        settings: further settings.
        seed: seed of the weights.
    """
    folder.mkdir(exist_ok=True)
    pairs, sources = number_pairs(500, seed=5), []
    for side, code in enumerate(LANGUAGES if recipe == "xlm_tiny" else LANGUAGES[:1]):
        (folder / f"{code}.txt").write_text("\n".join(pair[side] for pair in pairs))
        language = code if recipe == "xlm_tiny" else None
        sources.append((f"text-lines:{folder}/{code}.txt", "train", None, language))
    every = toy_settings(str(tuple(sources)), recipe="" if recipe == "xlm_tiny" else recipe)
    every += ["data.vocabulary.size=60", "data.sequence_length=24", "model.max_length=40"]
    every.append("model.num_layers=1" if recipe == "xlm_tiny" else "model.num_encoder_layers=2")
    made = registry.load(recipe, PretrainingRecipe, [*every, *settings])
    run = Run(as_path(folder / "run"), made, made.train_vocabulary(None))
    write_untrained(run, seed)
    return str(run.path)


def settings(source, steps, **changes):
    """Returns settings for number pairs; the pre-trained model determines the model sizes."""
    kept = [one for one in number_settings(source, steps) if not one.startswith("model.")]
    quick = {"training.save_every_steps": 4, "training.validate_every": 8, "task.average_last": 1}
    quick |= {"training.log_every": 4, "data.validation_lines": 2, "model.dropout": 0.0}
    quick |= {"data.batching.shapes": 1, **changes}
    return [*kept, *(f"{name}={value}" for name, value in quick.items())]


def begun(start, recipe, source, **changes):
    """Prepares a translation run; returns the recipe and the initialized network.

    Args:
        start: pre-trained model from which the network is initialized.
        recipe: name of the translation recipe.
        source: source of the translation pairs.
        changes: further settings.
    """
    made = override(start.apply(registry.load(recipe)), settings(source, 5, **changes))
    start.check(made)
    network = Run(None, made, start.vocabulary(made)).build_network()
    start.copy_to(network, made)
    return made, network
