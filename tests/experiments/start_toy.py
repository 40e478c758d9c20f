"""Tiny pre-trained models of the number language, for translations that start from them."""

import pathlib

import keras

from experiments import registry
from experiments.pretrain.corpus import train_vocabulary
from experiments.pretrain.recipe import PretrainingRecipe
from experiments.pretrain.run import PretrainingRun
from experiments.recipe import override
from macaron_tf.io.paths import as_path
from macaron_tf.training import checkpoints
from macaron_tf.training.state import weight_table
from tests.conftest import number_pairs
from tests.experiments.pretraining_toy import toy_settings

LANGUAGES = ("en", "de")


def make_start(folder: pathlib.Path, recipe: str, *settings: str, seed: int = 1) -> str:
    """Writes a run that has learnt nothing yet, and returns its path: its weights are drawn.

    Args:
        folder: where it goes, and its text.
        recipe: `xlm_tiny`, which reads both languages, or `bart_tiny` or `t5_tiny`: English.
        settings: further ones.
        seed: of the weights.
    """
    folder.mkdir(exist_ok=True)
    pairs, sources = number_pairs(500, seed=5), []
    for side, code in enumerate(LANGUAGES if recipe == "xlm_tiny" else LANGUAGES[:1]):
        (folder / f"{code}.txt").write_text("\n".join(pair[side] for pair in pairs))
        language = code if recipe == "xlm_tiny" else None
        sources.append((f"text-lines:{folder}/{code}.txt", "train", None, language))
    every = toy_settings(str(tuple(sources)), 40)
    every += ["vocabulary.size=60", "corpus.sequence_length=24", "model.max_length=40"]
    if recipe != "xlm_tiny":
        every = [one for one in every if "num_layers" not in one]
        every += ["model.num_encoder_layers=2", "model.num_decoder_layers=1"]
    if recipe == "t5_tiny":  # its matrices start by their fan-in
        every = [one for one in every if "initializer_range" not in one]
    made = override(registry.load(recipe, PretrainingRecipe), [*every, *settings])
    run = PretrainingRun(as_path(folder / "run"), made, train_vocabulary(made))
    keras.utils.set_random_seed(seed)
    network = run.build_network()
    checkpoints.CheckpointDirectory(run.path).save(
        1,
        lambda directory: network.save_weights(str(directory / checkpoints.WEIGHTS)),
        {
            "vocabulary": run.vocabulary.hash,
            "metrics": {},
            "weights": weight_table(network),
        },
    )
    run.write(network, "start")
    return str(run.path)
