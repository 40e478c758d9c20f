"""Every recipe trains ten updates on toy text, is evaluated, answers, is exported and served."""

import json

import numpy as np
import pytest

from experiments import registry
from experiments.commands import main
from export.saved_model import main as export
from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from macaron_tf.model import load
from macaron_tf.training.progress import read_lines
from tests.export.serving_toys import call
from tests.toys.numbers import number_pairs, number_settings
from tests.toys.pretraining import flags
from tests.toys.tasks import toy_flags, without

# Sizes for models of any size, for the fields that a model's configuration has.
SIZES = {
    "hidden_dim": 32,
    "feed_forward_dim": 64,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 16,
    "embedding_dim": 16,
    "num_layers": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "num_source_layers": 1,
    "lstm_dim": 8,
    "projection_dim": 4,
    "filters": ((1, 4), (2, 4)),
    "widths": (8, 8),
}
TEN = {
    "training.max_steps": 10,
    "training.warmup_steps": 2,
    "training.validate_every": 10,
    "training.save_every_steps": 10,
    "training.log_every": 1,
    "training.max_minutes": None,
}
TEXTS = ("zero [MASK] nine", "one two")


def sizes(recipe) -> dict:
    """Returns settings that shrink the recipe's model."""
    config = recipe.model_config()
    found = {name: getattr(config, name, None) for name in SIZES}
    return {f"model.{name}": SIZES[name] for name, value in found.items() if value}


def pretraining(name: str, recipe, value) -> list[str]:
    languages = recipe.corpus.languages
    sources = [
        (value("number_text") if one.is_translation else value("digits"), "train", one.weight,
         one.language)
        for one in recipe.corpus.sources
    ]  # fmt: skip
    settings = {"corpus.sources": tuple(sources), "corpus.sequence_length": 16}
    settings |= {"vocabulary.size": 300 if recipe.vocabulary.kind == "byte_bpe" else 60}
    settings |= {"batch_size": 4, "training.accumulation_steps": 1, "validation_batches": 2}
    settings |= {"corpus.validation_every": 20, **sizes(recipe)}
    if recipe.objective.has_memory:
        settings |= {"objective.memory_length": 8}
    assert bool(languages) == bool(sources[0][3])
    return ["train", name, "RUN", *flags([f"{key}={one}" for key, one in settings.items()])]


def translation(name: str, recipe, value) -> list[str]:
    settings = dict(one.split("=", 1) for one in number_settings(value("number_text")))
    settings = {key: one for key, one in settings.items() if not key.startswith("training.")}
    settings |= {f"{key}": str(one) for key, one in sizes(recipe).items()}
    init = {"multi30k_xlm_tiny": "xlm_tiny", "multi30k_unsupervised_tiny": "xlm_tiny",
            "multi30k_bart_tiny": "bart_tiny"}.get(name)  # fmt: skip
    if init:
        settings = {key: one for key, one in settings.items() if not key.startswith("model.")}
    words = ["train", name, "RUN", *(("--init", value(init)) if init else ())]
    return [*words, *flags([f"{key}={one}" for key, one in settings.items()])]


def finetuning(name: str, recipe, value) -> list[str]:
    init = {"finetune_elmo:sst2": "elmo_tiny", "finetune_gpt:sst2": "gpt_tiny"}
    words = toy_flags(value("toy"), "stsb" if recipe.kind == "embedding" else "sst2")
    if name in init:
        words = without(words, "--vocabulary")
        words += ["--init", value(init[name])]
    return ["train", name, "RUN", *words]


def text_to_text(name: str, recipe, value) -> list[str]:
    settings = ["batching.max_tokens=512", "max_target=16", "validation_examples=8"]
    settings.append(f"source={value('tables')}")
    return ["train", name, "RUN", "--init", value("t5_tiny"), *flags(settings)]


def elmo(name: str, recipe, value) -> list[str]:
    settings = {"sources": value("digits"), "batch_size": 4, "row_length": 10, "held_out": 6}
    settings |= {"vocabulary_size": 7, "samples": 0, **sizes(recipe)}
    return ["train", name, "RUN", *flags([f"{key}={one}" for key, one in settings.items()])]


def sequence(name: str, recipe, value) -> list[str]:
    data = {"jsb": "music/JSB_Chorales.mat", "nottingham": "music/Nottingham.mat",
            "ptb_words": "ptb", "ptb_characters": "ptb", "lambada": "lambada"}  # fmt: skip
    shared, settings = value("shared_data"), {"batch_size": 4, **sizes(recipe)}
    if recipe.task in data:
        settings |= {"data": shared / data[recipe.task]}
    if recipe.sources:
        settings |= {"sources": value("digits")}
    words = ["--data-dir", value("tfds_dir")]
    return ["train", name, "RUN", *words, *flags([f"{key}={one}" for key, one in settings.items()])]


WORDS_OF = {
    "pretraining": pretraining,
    "translation": translation,
    "finetuning": finetuning,
    "embedding": finetuning,
    "text_to_text": text_to_text,
    "elmo": elmo,
    "sequence": sequence,
}
TASKS = {"sentence_bert": ":stsb"}
NAMES = [
    f"{name}{TASKS.get(name, ':sst2')}" if family == "finetuning" else name
    for name, family in registry.FAMILY_OF.items()
]


def words_of(name: str, value) -> list[str]:
    """Returns a command that trains the recipe for ten updates in RUN."""
    recipe = registry.load(name)
    words = WORDS_OF[recipe.kind](name, recipe, value)
    return [*words, *flags([f"{key}={one}" for key, one in TEN.items()])]


@pytest.fixture(scope="session")
def digits(once) -> str:
    """Returns the `text:` source of documents whose sentences spell digits in two languages."""

    def make(folder) -> None:
        pairs = number_pairs(900, seed=3)
        for index in range(60):
            lines = [f"{side} ." for pair in pairs[index::60] for side in pair]
            (folder / f"{index:02d}.txt").write_text("\n".join(lines), encoding="utf-8")

    return f"text:{once('digits', make)}/*.txt"


@pytest.fixture
def value(request, once):
    """Returns a function from a fixture's name to its value, and from a recipe to a run of it."""

    def get(name: str):
        if name not in registry.FAMILY_OF:
            return request.getfixturevalue(name)

        def make(folder) -> None:
            words = words_of(name, get)
            assert main([str(word).replace("RUN", str(folder / "run")) for word in words]) == 0

        return str(once(f"ten_updates_{name}", make) / "run")

    return get


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains_and_does_all_that_its_task_can(name, value, tmp_path):
    run, kind = tmp_path / "run", registry.load(name).kind
    words = [str(word).replace("RUN", str(run)) for word in words_of(name, value)]
    assert main(words) == 0
    lines = read_lines(run / "metrics.jsonl")
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 10 and np.isfinite(losses).all()
    corpus = json.loads((run / "data.json").read_text()).get("corpus")
    assert main(["evaluate", str(run), *(("--corpus", corpus) if corpus else ())]) == 0
    assert list((run / "scores").glob("*.json"))
    if kind == "sequence":
        return
    task = load(run).task
    texts = dict(zip(task.texts, TEXTS, strict=False))
    assert main(["predict", str(run), "\t".join(texts.values())]) == 0
    assert export([str(run), str(tmp_path / "served" / "model")]) == 0
    config = ServerConfig(str(tmp_path / "served" / "model"), "model", port=0)
    with ModelServer(config) as server:
        body = {"instances": [{**texts, **task.controls}] * 2}
        status, answer = call(server.port, "POST", "/v1/models/model:predict", body)
    assert status == 200 and len(answer["predictions"]) == 2, answer
