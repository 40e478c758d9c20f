"""Tests of exports: refusals, controls, bfloat16, records, batches and new versions.

All models except the translator have random weights. test_every_text.py compares the answers.
"""

import asyncio
import dataclasses
import functools
import json

import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from experiments import registry
from experiments.embed.run import EmbeddingRun
from experiments.finetune.run import FinetuningRun
from experiments.pretrain.corpus import train_vocabulary
from experiments.pretrain.recipe import PretrainingRecipe
from experiments.pretrain.run import PretrainingRun
from experiments.recipe import override
from experiments.text_to_text.run import TextRun, recipe_of_model
from experiments.translate.run import TranslationRun
from export.saved_model import main
from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from export.server.servable import Servable
from macaron_tf.decoding import GenerationConfig
from macaron_tf.engines import certificate, graph
from macaron_tf.engines.warm_up import WARMUP_REQUESTS
from macaron_tf.io.paths import as_path
from macaron_tf.tasks import translation
from macaron_tf.tasks.generation import TaskGenerator, frame_lines
from tests.export.serving_toys import call, count_calls
from tests.harness import refuses
from tests.toys.hard_texts import HARDEST, SURROGATES
from tests.toys.marks import slow
from tests.toys.numbers import number_pairs
from tests.toys.pretraining import toy_settings, write_documents
from tests.toys.tasks import (
    READING,
    sentences,
    write_reading,
    write_run,
    write_toy,
    write_untrained,
)

LINES = [text for text, _ in sentences(50, seed=5)]
NUMBERS = [source for source, _ in number_pairs(200, seed=5)]
ODD = ["\u2028one\x00two", "\u03a9\u2248\xe7\u221a\u222b\xb5", *HARDEST]
CONTROLS = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "seed": 1, "max_tokens": 10}
# Models that generate text: a pre-training recipe and its settings.
WRITERS = {
    "byte_bpe": (
        "gpt2_tiny",
        "vocabulary.kind=byte_bpe",
        "vocabulary.size=272",
        "model.attention_windows=(0, 4)",
    ),
    "bart": ("bart_tiny", "vocabulary.size=90"),
}


NAMES = ("sst2", "embedder", "squad2", "conll2003", *WRITERS, "numbers")
SAVED = ("embedder", "squad2", "conll2003", "bart")


def write_writer(folder, name: str):
    """Writes a run folder with random weights: a language model, or a BART for MRPC."""
    model, *settings = WRITERS[name]
    (folder / f"{name}-texts").mkdir()
    every = toy_settings(write_documents(folder / f"{name}-texts"))
    if model != "gpt2_tiny":
        words = "mrpc sentence1 : a c not_equivalent . sentence2\n" * 200
        (folder / f"{name}-texts" / "words.txt").write_text(words)
        every = toy_settings(f"text:{folder}/{name}-texts/*.txt", recipe=model)
        every += ["model.max_length=48"]
    recipe = registry.load(model, PretrainingRecipe, [*every, *settings])
    run = PretrainingRun(as_path(folder / name), recipe, train_vocabulary(recipe))
    if model != "gpt2_tiny":
        run = dataclasses.replace(run, path=as_path(folder / f"{name}-start"))
        write_untrained(run)
        start = macaron_tf.load(run.path)
        recipe = recipe_of_model(registry.load("text_to_text:mrpc"), start)
        large = ["max_source=40", "max_target=12", "model.initializer_range=0.9"]
        recipe = override(recipe, large)
        run = TextRun(as_path(folder / name), recipe, start.vocabulary)
    write_untrained(run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, number_run):
    """Returns a folder with a run of each type and its SavedModel under `served`.

    Some SavedModels come from `save_pretrained` folders.
    """
    folder = tmp_path_factory.mktemp("exported")
    (folder / "reading").mkdir()
    write_toy(folder)
    write_reading(folder / "reading", unanswerable=True)
    write_run(folder / "sst2", FinetuningRun, registry.load("finetune:sst2"), folder)
    recipe = registry.load("sentence_bert:stsb")
    write_run(folder / "embedder", EmbeddingRun, recipe, folder, "swish_rnn_tiny")
    for name in ("squad2", "conll2003"):
        recipe = registry.load(f"finetune:{name}")
        write_run(folder / name, FinetuningRun, recipe, folder / "reading", **READING)
    for name in ("byte_bpe", "bart"):
        write_writer(folder, name)
    (folder / "numbers").symlink_to(number_run)
    for name in NAMES:
        options, place = ["--n-best", "2"] if name == "numbers" else [], folder / name
        if name in SAVED:
            place = folder / "saved" / name
            macaron_tf.load(folder / name).save_pretrained(place)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(certificate, "TEXTS", certificate.TEXTS[:3])
            assert main([str(place), str(folder / "served" / name), *options]) == 0
    return folder


def served(folder, name, version=1):
    return folder / "served" / name / str(version)


def record_of(folder, name, version=1):
    return json.loads((served(folder, name, version) / "assets.extra/export.json").read_text())


@pytest.fixture(scope="module")
def number_hypotheses(folder):
    """Returns the two best hypotheses of the translation run for each line of `NUMBERS + ODD`."""
    run = TranslationRun.open(folder / "numbers")
    decoding = dataclasses.replace(run.recipe.decoding, n_best=2)
    return run.translator(decoding=decoding).translate(NUMBERS + ODD).hypotheses


@functools.cache
def serving(folder, name):
    return tf.saved_model.load(str(served(folder, name))).signatures["serving_default"]


def inputs_of(serve, texts, **changes) -> dict[str, tf.Tensor]:
    """Returns inputs of a signature: the texts for each string, and `CONTROLS` with changes."""
    controls = {**CONTROLS, **changes}
    specs = serve.structured_input_signature[1]
    values = {name: [controls.get(name)] * len(texts) for name in specs}
    values |= {name: texts for name, spec in specs.items() if spec.dtype == tf.string}
    return {name: tf.constant(values[name], spec.dtype) for name, spec in specs.items()}


def test_half_a_character_is_refused_in_python_too(folder):
    ways = (
        macaron_tf.load(folder / "conll2003").predict,
        macaron_tf.load(folder / "embedder").task.encode,
        TranslationRun.open(folder / "numbers").translator().translate,
        macaron_tf.load(folder / "bart").task.generator.complete,
    )
    for way in ways:
        for text in SURROGATES:
            refuses("text 1 has '.ud[8-e]..', half a character", way, [text])


@pytest.mark.parametrize("name", NAMES)
def test_bytes_that_are_no_text_are_refused_and_no_texts_have_no_answers(folder, name):
    serve = serving(folder, name)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not UTF-8"):
        serve(**inputs_of(serve, [b"caf\xe9"]))
    if name in ("squad2", "conll2003"):
        outputs = serve(**inputs_of(serve, []))
        assert outputs and not any(len(output) for output in outputs.values())


@pytest.mark.parametrize(
    "bad",
    [{"temperature": -1.0}, {"temperature": np.nan}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}],
)
def test_controls_out_of_range_are_refused(folder, bad):
    serve = serving(folder, "byte_bpe")
    message = "top_p must be above 0 and at most 1"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        serve(**inputs_of(serve, ["c"], **bad))


def test_at_temperature_0_it_is_predicts_greedy_answer(folder):
    run = TextRun.open(folder / "bart")
    network, ended = run.load_network(), 0
    greedy = dataclasses.replace(run.recipe.decoding, beam_size=1)
    lines = ["a c\td b", "b c\ta d", "a", "d d d d d"]
    for most in (run.recipe.max_target, 3):  # complete answers, and truncated ones
        run = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, max_target=most))
        sources = [line.decode() for line in frame_lines("mrpc", tf.constant(lines)).numpy()]
        expected = run.line_translator(network, greedy).translate(sources)
        generator = TaskGenerator(network, run.vocabulary, **run.recipe.usage()["answers"])
        found = generator.complete(lines, GenerationConfig(temperature=0.0))
        assert [one.text for [one] in found] == expected.best
        for [one], [other] in zip(found, expected.hypotheses, strict=True):
            if one.ended:
                ended += 1
                assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
    assert ended


def server_of(folder, name) -> ModelServer:
    config = ServerConfig(str(folder / "served" / name), name, port=0, poll_seconds=0.1)
    return ModelServer(config)


def test_the_server_and_the_command_say_the_same(folder, capsys):
    text = "a c\td b"
    with server_of(folder, "bart") as server:
        body = {"inputs": {name: [value] * 2 for name, value in {"text": text, **CONTROLS}.items()}}
        status, answer = call(server.port, "POST", "/v1/models/bart:predict", body)
        shown = json.loads(server.example().split("'")[1])["instances"][0]
    assert status == 200
    assert shown["max_tokens"] == 20 and shown["top_p"] == 1.0
    settings = {"temperature": 2.0, "seed": 1, "max_tokens": 10}
    said = "".join(macaron_tf.load(folder / "bart").stream(text, **settings))
    assert answer["outputs"]["completion"] == [said, said]


@pytest.mark.slow
def test_a_compiled_translator_says_of_one_line_what_the_run_says(
    folder, number_hypotheses, tmp_path, monkeypatch
):
    """An export that XLA compiles translates one line as the run does."""
    monkeypatch.setattr(translation, "_COMPILED_LENGTHS", (8,))
    path = macaron_tf.load(folder / "numbers").export(tmp_path / "served", n_best=2, compiled=True)
    # Each signature warms up with a text of at most 7 pieces.
    assert len(list(tf.data.TFRecordDataset(str(path / WARMUP_REQUESTS)))) == 2
    # One compiled row, a longer row, and two rows.
    lines = [NUMBERS[:1], [" ".join(NUMBERS[:3])], NUMBERS[:2]]
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    plain = serving(folder, "numbers")
    for each in lines:
        one, other = serve(text=tf.constant(each)), plain(text=tf.constant(each))
        np.testing.assert_array_equal(one["translations"], other["translations"])
        np.testing.assert_allclose(one["scores"], other["scores"], atol=1e-5)
        best = one["translations"][0][0].numpy().decode()
        assert each is not lines[0] or best == number_hypotheses[0][0].text
    graph = serve.graph.as_graph_def()
    assert any(f.attr["_XlaMustCompile"].b for f in graph.library.function)


@pytest.mark.parametrize(
    ("name", "output"), [("embedder", "vector"), *slow(("sst2", "probabilities"))]
)
def test_in_bfloat16_the_answers_are_near_and_only_matrices_are_stored_so(
    folder, tmp_path, monkeypatch, capsys, name, output
):
    monkeypatch.setattr(graph, "emulates_bfloat16", lambda strategy: name == "sst2")
    assert main([str(folder / name), str(tmp_path), "--bfloat16"]) == 0
    assert ("warning: this CPU has no bfloat16" in capsys.readouterr().err) == (name == "sst2")
    record = json.loads((tmp_path / "1/assets.extra/export.json").read_text())
    assert record["compute_dtype"] == "bfloat16"
    assert record_of(folder, name)["compute_dtype"] == "float32"
    saved = tf.train.load_checkpoint(str(tmp_path / "1/variables/variables"))
    dtypes, shapes = saved.get_variable_to_dtype_map(), saved.get_variable_to_shape_map()
    narrow = {len(shapes[name]) for name, dtype in dtypes.items() if dtype == tf.bfloat16}
    assert narrow == {2} and tf.float32 in dtypes.values()
    model = tf.saved_model.load(str(tmp_path / "1"))
    found = model.signatures["serving_default"](text=tf.constant(LINES))[output].numpy()
    expected = serving(folder, name)(text=tf.constant(LINES))[output].numpy()
    # On average, because the maximum over a few lines depends on the CPU's rounding.
    assert 1e-5 < np.abs(found - expected).mean() < 0.015 * np.abs(expected).max()


def test_a_quantized_network_is_not_exported_in_bfloat16(folder, tmp_path, refused):
    found = macaron_tf.load(folder / "sst2")
    found.network.quantize("int8")
    found.save_pretrained(tmp_path / "int8")
    words = "is quantized to int8, but must have float weights: use the unquantized model"
    refused(main, [tmp_path / "int8", tmp_path / "out", "--bfloat16"], words)


def test_scores_of_translations_are_the_runs(folder, number_hypotheses):
    score = tf.saved_model.load(str(served(folder, "numbers"))).signatures["score"]
    best = [hypotheses[0] for hypotheses in number_hypotheses[: len(NUMBERS)]]
    texts = tf.constant([one.text for one in best])
    scored = score(source=tf.constant(NUMBERS), target=texts)
    np.testing.assert_allclose(scored["log_probs"], [one.log_prob for one in best], atol=1e-3)
    assert scored["tokens"].numpy().tolist() == [one.length for one in best]


def test_lines_too_long_cost_those_merged_with_them_one_run(folder, number_hypotheses, monkeypatch):
    calls = count_calls(monkeypatch)
    servable = Servable(str(served(folder, "numbers")), 1)
    long = "one " * 300
    lines = [NUMBERS[0], long, *NUMBERS[1:6], long]
    config = ServerConfig("numbers", "numbers", max_batch_size=8, batch_timeout_ms=60_000.0)

    async def ask() -> list:
        batcher, signature = Batcher(config), servable.signature()
        texts = [{"text": np.array([line.encode()], object)} for line in lines]
        futures = [batcher.submit(servable, signature, text, 1) for text in texts]
        return await asyncio.gather(*futures, return_exceptions=True)

    for line, answer in zip(lines, asyncio.run(ask()), strict=True):
        if line is long:
            assert "a line has more than 256 tokens" in str(answer)
        else:
            best = number_hypotheses[NUMBERS.index(line)][0].text
            assert answer["translations"][0, 0] == best.encode()
    assert len(calls) == 4  # all, the good, and each of the bad


def test_a_classifier_without_a_run_is_one_where_its_classes_have_names(folder, tmp_path, refused):
    found = dataclasses.replace(macaron_tf.load(folder / "sst2"), recipe={}, labels=(), labelled={})
    found.save_pretrained(tmp_path / "plain")
    words = "has 2 classes, but 0 class names"
    refused(main, [tmp_path / "plain", tmp_path / "out"], words)
    dataclasses.replace(found, labels=("no", "yes")).save_pretrained(tmp_path / "named")
    answers = macaron_tf.load(tmp_path / "named").predict(LINES)
    assert {answer["label"] for answer in answers} == {"no", "yes"}


def test_every_export_is_on_record(folder):
    for name in ("sst2", "squad2", "conll2003"):
        record, run = record_of(folder, name), FinetuningRun.open(folder / name)
        assert record["task"] == name and record["vocabulary"] == run.vocabulary.hash
    record = record_of(folder, "sst2")
    assert record["labels"] == ["negative", "positive"]
    assert record["checkpoint"] == FinetuningRun.open(folder / "sst2").checkpoint().name
    record = record_of(folder, "embedder")
    assert record["pooling"] == "mean" and record["max_length"] == 16
    for name, longest, checkpoint in (("byte_bpe", 16, "step-00000001"), ("bart", 40, "bart")):
        record = record_of(folder, name)
        assert record["longest"] == longest and record["checkpoint"] == checkpoint
    assert record_of(folder, "numbers")["checkpoint"] == "average"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{tmp} {tmp}/out", "has no readable model.json"),
        ("{tmp}/damaged {tmp}/out", "damaged"),
        ("{runs}/sst2 {tmp}/out --checkpoint 9", "has no checkpoint 9"),
        ("{runs}/sst2 {tmp}/out --n-best 2", "--n-best"),
        ("{runs}/bart {tmp}/out --beam-size 2", "--beam-size"),
        ("{runs}/numbers {tmp}/out --n-best 99", "n_best"),
        ("{runs}/sst2 {runs}/served/sst2 --version 1", "--version 1 already exists"),
        ("hugging-face:DIR {tmp}/out --checkpoint best", "leave --checkpoint out"),
    ],
)
def test_bad_requests_are_one_sentence(arguments, words, folder, tmp_path, refused):
    for name, record in (("kind", "[]"), ("damaged", '{"kind": "poetry"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.json").write_text(record)
    asked = [part.format(tmp=tmp_path, runs=folder) for part in arguments.split()]
    refused(main, asked, words, tmp_path, folder / "served")
