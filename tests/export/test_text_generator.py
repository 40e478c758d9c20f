"""A text-to-text run, its SavedModel and the server give the same answers."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from experiments.generate.__main__ import main as generate
from experiments.generate.opening import open_model
from experiments.pretrain.__main__ import main as pretrain
from experiments.text_to_text.__main__ import main
from experiments.text_to_text.run import TaskGenerator, TextRun, framed
from export.saved_model import main as export
from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from macaron_tf.decoding import GenerationConfig
from tests.experiments.pretraining_toy import flags, toy_settings, write_documents
from tests.export.serving_toys import call

# Text, temperature, top-k, top-p, seed, new tokens at most.
ASKED = [
    ("a c\td b", 0.0, 0, 1.0, 1, 10),
    ("a c\td b", 2.0, 0, 1.0, 1, 10),
    ("a c\td b", 2.0, 0, 1.0, 2, 10),
    ("c  d [MASK]\n e\t", 1.0, 5, 0.9, 7, 50),
    ("", 2.0, 0, 0.95, -3, 3),
]
NAMES = ("text", "temperature", "top_k", "top_p", "seed", "max_tokens")


@pytest.fixture(
    scope="module", params=["bart_tiny", pytest.param("t5_tiny", marks=pytest.mark.slow)]
)
def folder(request, tmp_path_factory):
    """Holds a run of MRPC that has learnt little, and its SavedModel."""
    folder = tmp_path_factory.mktemp("text")
    source = write_documents(folder)
    (folder / "words.txt").write_text("mrpc sentence1 : a c not_equivalent . sentence2\n" * 200)
    settings = toy_settings(source, 12, "t5_tiny")
    settings += ["vocabulary.size=90", "model.max_length=48"]
    start = str(folder / "start")
    assert pretrain(["train", request.param, start, *flags(settings)]) == 0
    rows = [f"{'ab'[i % 2]} c\t{'abc'[i % 3]} d\t{i % 2}" for i in range(48)]
    for split in ("train", "validation"):
        table = "\n".join(["sentence1\tsentence2\tlabel", *rows])
        (folder / f"{split}.tsv").write_text(table + "\n")
    command = ["train", "mrpc", str(folder / "run"), "--init", start]
    command += ["--source", f"tsv:{folder}/{{split}}.tsv"]
    quick = {"max_steps": 6, "validate_every": 6, "learning_rate": 0.003, "warmup_steps": 0}
    more = [f"training.{name}={value}" for name, value in quick.items()]
    more += ["max_source=40", "max_target=12", "batching.max_tokens=512", "validation_examples=2"]
    assert main([*command, *flags(more)]) == 0
    assert export([str(folder / "run"), str(folder / "served")]) == 0
    return folder


def test_the_saved_model_answers_as_the_run_does(folder):
    loaded = tf.saved_model.load(str(folder / "served" / "1"))
    kinds = {"text": tf.string, "temperature": tf.float32, "top_p": tf.float32}
    inputs = {
        name: tf.constant(values, kinds.get(name, tf.int32))
        for name, values in zip(NAMES, zip(*ASKED, strict=True), strict=True)
    }
    found = loaded.signatures["serving_default"](**inputs)
    generator = open_model(folder / "run").generator()
    answers = set()
    for row, (text, temperature, top_k, top_p, seed, most) in enumerate(ASKED):
        config = GenerationConfig(temperature, top_k, top_p, 1, most)
        [[expected]] = generator.complete([text], config, seed)
        assert found["completion"].numpy()[row].decode() == expected.text
        assert found["tokens"].numpy()[row] == expected.length < 12
        log_prob = found["log_prob"].numpy()[row]
        np.testing.assert_allclose(log_prob, expected.log_prob, rtol=1e-3, atol=1e-3)
        assert "".join(generator.stream(text, config, seed)) == expected.text
        answers.add(expected.text)
    assert len(answers) > 2
    for text, words in (("a " * 50, "too long"), (b"caf\xe9", "not UTF-8")):
        one = {name: value[:1] for name, value in inputs.items()} | {"text": tf.constant([text])}
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            loaded.signatures["serving_default"](**one)


def test_at_temperature_0_it_is_predicts_greedy_answer(folder):
    run = TextRun.open(folder / "run")
    network = run.load_network()
    greedy = dataclasses.replace(run.recipe.decoding, beam_size=1)
    lines = [text for text, *_ in ASKED[:1]] + ["b c\ta d", "a"]
    for most in (run.recipe.max_target, 3):  # whole answers, and cut ones
        run = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, max_target=most))
        expected = run.writer(network, greedy).translate([framed("mrpc", line) for line in lines])
        generator = TaskGenerator(network, run.vocabulary, **run.recipe.usage()["answers"])
        found = generator.complete(lines, GenerationConfig(temperature=0.0))
        assert [one.text for [one] in found] == expected.best
        for [one], [other] in zip(found, expected.hypotheses, strict=True):
            if one.ended:
                assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)


def test_the_server_and_the_command_say_the_same(folder, capsys):
    text, *_ = ASKED[0]
    asked = dict(zip(NAMES, ASKED[1], strict=True))
    config = ServerConfig(str(folder / "served"), "mrpc", rest_port=0, grpc_port=0)
    with ModelServer(config) as server:
        body = {"instances": [asked] * 2}
        status, answer = call(server.rest_port, "POST", "/v1/models/mrpc:predict", body)
        shown = json.loads(server.example().split("'")[1])["instances"][0]
    assert status == 200
    assert shown["max_tokens"] == 20 and shown["top_p"] == 0.9
    words = ["--temperature", "2", "--seed", "1", "--max-tokens", "10"]
    capsys.readouterr()
    assert generate(["complete", str(folder / "run"), text, *words]) == 0
    said = capsys.readouterr().out.removesuffix("\n")
    assert [one["completion"] for one in answer["predictions"]] == [said, said]


def test_what_is_exported_is_on_record_and_beams_are_refused(folder, tmp_path, capsys):
    record = json.loads((folder / "served" / "1" / "assets.extra" / "export.json").read_text())
    assert record["longest"] == 40 and record["checkpoint"].startswith("step-")
    assert export([str(folder / "run"), str(tmp_path), "--beam-size", "2"]) == 2
    assert "--beam-size" in capsys.readouterr().err
