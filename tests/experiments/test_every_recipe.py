"""Every recipe trains ten updates on toy text, is evaluated, answers, is exported and served."""

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
from tests.toys.runs import train

TEXTS = ("zero [MASK] nine", "one two")
NAMES = [
    f"{name}{':stsb' if name == 'sentence_bert' else ':sst2'}" if family == "finetuning" else name
    for name, family in registry.FAMILY_OF.items()
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains_and_does_all_that_its_task_can(name, value, tmp_path):
    run, served = str(tmp_path / "run"), str(tmp_path / "served" / "model")
    train(name, run, value)
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 10 and np.isfinite(losses).all()
    assert main(["evaluate", run]) == 0
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
