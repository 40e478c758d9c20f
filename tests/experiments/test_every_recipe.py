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

# Sizes for the fields that a model's configuration has.
SIZES = dict(hidden_dim=32, feed_forward_dim=64, num_heads=2, num_kv_heads=1, head_dim=16)
SIZES |= dict(num_layers=2, num_encoder_layers=1, num_decoder_layers=1, num_source_layers=1)
SIZES |= dict(embedding_dim=16, lstm_dim=8, projection_dim=4, widths=(8, 16))
SIZES |= dict(filters=((1, 4), (2, 4)))
TEN = dict(max_steps=10, warmup_steps=2, validate_every=10, save_every_steps=10, log_every=1)
TEN = flags([f"training.{name}={value}" for name, value in {**TEN, "max_minutes": None}.items()])
TEXTS = ("zero [MASK] nine", "one two")
# Runs that others start from.
STARTS = {
    "multi30k_xlm_tiny": "xlm_tiny",
    "multi30k_unsupervised_tiny": "xlm_tiny",
    "multi30k_bart_tiny": "bart_tiny",
    "finetune_elmo:sst2": "elmo_tiny",
    "finetune_gpt:sst2": "gpt_tiny",
    "text_to_text:sst2": "t5_tiny",
}
FILES = dict.fromkeys(("ptb_words", "ptb_characters"), "ptb")
FILES |= dict(jsb="music/JSB_Chorales.mat", nottingham="music/Nottingham.mat", lambada="lambada")
NAMES = [
    f"{name}{':stsb' if name == 'sentence_bert' else ':sst2'}" if family == "finetuning" else name
    for name, family in registry.FAMILY_OF.items()
]


def words_of(name: str, value) -> list[str]:
    """Returns a command that trains the recipe in RUN; `value` is the fixture of this name."""
    recipe, more = registry.load(name), []
    config = recipe.model_config()
    settings = {f"model.{field}": SIZES[field] for field in SIZES if getattr(config, field, None)}
    if name in STARTS:
        more, settings = ["--init", value(STARTS[name])], {}
    match recipe.kind:
        case "pretraining":
            settings["corpus.sources"] = tuple(
                (value("number_text" if one.is_translation else "digits"), "train", one.weight,
                 one.language)
                for one in recipe.corpus.sources
            )  # fmt: skip
            pieces = {"byte_bpe": 300, "unigram": 50}.get(recipe.vocabulary.kind, 60)
            settings |= {"corpus.sequence_length": 16, "corpus.validation_every": 20}
            settings |= {"vocabulary.size": pieces, "batch_size": 4, "validation_batches": 2}
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
            settings = {"batching.max_tokens": 512, "max_target": 16, "validation_examples": 8}
            settings["source"] = value("tables")
        case "elmo":
            settings |= {"sources": value("digits"), "batch_size": 4, "row_length": 10}
            settings |= {"held_out": 6, "vocabulary_size": 7}
        case "sequence":
            settings["batch_size"], more = 4, ["--data-dir", value("tfds_dir")]
            if recipe.task in FILES:
                settings["data"] = value("shared_data") / FILES[recipe.task]
            if recipe.sources:
                settings["sources"] = value("digits")
        case _:
            toy = toy_flags(value("toy"), "stsb" if recipe.kind == "embedding" else "sst2")
            own = [word.split("=")[0] for word in toy if word.startswith("model")]
            more += without(toy, "--vocabulary", *own) if more else toy
    given = flags([f"{path}={one}" for path, one in settings.items()])
    return ["train", name, "RUN", *more, *given, *TEN]


@pytest.fixture(scope="session")
def digits(once) -> str:
    """Returns the `text:` source of documents whose sentences spell digits or name a task."""

    def make(folder) -> None:
        pairs = number_pairs(900, seed=3)
        for index in range(60):
            lines = [f"{side} ." for pair in pairs[index::60] for side in pair]
            lines += ["sst2 sentence : a c b d negative . positive ."] * 4
            (folder / f"{index:02d}.txt").write_text("\n".join(lines), encoding="utf-8")

    return f"text:{once('digits', make)}/*.txt"


def train(name: str, run, value) -> None:
    assert main([str(word).replace("RUN", str(run)) for word in words_of(name, value)]) == 0


@pytest.fixture
def value(request, once):
    """Returns a function from a fixture's name to its value, and from a recipe to a run of it."""

    def get(name: str):
        if name not in registry.FAMILY_OF:
            return request.getfixturevalue(name)
        folder = once(f"ten_updates_{name}", lambda folder: train(name, folder / "run", get))
        return str(folder / "run")

    return get


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains_and_does_all_that_its_task_can(name, value, tmp_path):
    run, served = str(tmp_path / "run"), str(tmp_path / "served" / "model")
    train(name, run, value)
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 10 and np.isfinite(losses).all()
    corpus = json.loads((tmp_path / "run" / "data.json").read_text()).get("corpus")
    assert main(["evaluate", run, *(("--corpus", corpus) if corpus else ())]) == 0
    assert list((tmp_path / "run" / "scores").glob("*.json"))
    if registry.load(name).kind == "sequence":
        return
    task = load(run).task
    texts = dict(zip(task.texts, TEXTS, strict=False))
    assert main(["predict", run, "\t".join(texts.values())]) == 0
    assert export([run, served]) == 0
    with ModelServer(ServerConfig(served, "model", port=0)) as server:
        body = {"instances": [{**texts, **task.controls}] * 2}
        status, answer = call(server.port, "POST", "/v1/models/model:predict", body)
    assert status == 200 and len(answer["predictions"]) == 2, answer
