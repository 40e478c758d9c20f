"""Tests of exports: refusals, bfloat16 and records.

All models except the translator have random weights. test_every_text.py compares the answers.
"""

import dataclasses
import functools
import json

import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from export.saved_model import main
from macaron_tf.decoding import GenerationConfig
from macaron_tf.engines import certificate
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.runs.run import Run
from macaron_tf.tasks.generation import TextToText, frame_lines
from tests.export.test_every_text import TEXTS, write
from tests.toys.marks import slow
from tests.toys.numbers import number_pairs
from tests.toys.pretrained import with_classes

LINES = TEXTS[:50]
NUMBERS = [source for source, _ in number_pairs(200, seed=5)]
CONTROLS = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "seed": 1, "max_tokens": 10}
# Types of `KINDS`; the exports of `SAVED` come from folders of `save_pretrained`.
SAVED = ("vectors", "spans", "tags", "answers_bart")
NAMES = ("classes", "continues", *SAVED, "numbers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, number_run):
    """Returns a folder with a run of each type and its SavedModel under `served`."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "numbers").symlink_to(number_run)
    for name in NAMES:
        options, place = ["--n-best", "2"] if name == "numbers" else [], folder / name
        if name != "numbers":
            write(folder, name)
        if name in SAVED:
            place = folder / "saved" / name
            macaron_tf.load(folder / name).save_pretrained(place)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(certificate, "TEXTS", certificate.TEXTS[:3])
            assert main([str(place), str(folder / "served" / name), *options]) == 0
    return folder


def served(folder, name):
    return folder / "served" / name / "1"


def record_of(version):
    return json.loads((version / "assets.extra/export.json").read_text())


@pytest.fixture(scope="module")
def number_hypotheses(folder):
    """Returns the two best hypotheses of the translation run for each line of `NUMBERS`."""
    task = macaron_tf.load(folder / "numbers").task
    found = task.lines(dataclasses.replace(task.decoding, n_best=2))
    return found.translate(NUMBERS).hypotheses


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


@pytest.mark.parametrize("name", NAMES)
def test_bytes_that_are_no_text_are_refused_and_no_texts_have_no_answers(folder, name):
    serve = serving(folder, name)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not UTF-8"):
        serve(**inputs_of(serve, [b"caf\xe9"]))
    if name in ("spans", "tags"):
        outputs = serve(**inputs_of(serve, []))
        assert outputs and not any(len(output) for output in outputs.values())


def test_at_temperature_0_it_is_predicts_greedy_answer(folder):
    run = Run.open(folder / "answers_bart")
    network, ended, texts = run.load_network(), 0, set()
    lines = ["a c\td b", "b c\ta d", "a", "d d d d d"]
    unlimited, whole = run.recipe.task.decoding, run.recipe.data.max_target
    limited = dataclasses.replace(unlimited, min_length=4, no_repeat_ngram_size=2)
    # Complete answers, truncated ones, and longer ones without repeated n-grams.
    for most, decoding in ((whole, unlimited), (3, unlimited), (whole, limited)):
        recipe = run.recipe.changed(data=dict(max_target=most), task=dict(decoding=decoding))
        run = dataclasses.replace(run, recipe=recipe)
        greedy = dataclasses.replace(decoding, beam_size=1)
        sources = [line.decode() for line in frame_lines("mrpc", tf.constant(lines)).numpy()]
        settings = run.recipe.task_settings()
        expected = settings.lines(network, run.vocabulary, greedy).translate(sources)
        generator = TextToText.of(ModelParts(network, run.vocabulary, settings)).generator
        argmax = GenerationConfig(temperature=0.0)
        found = generator.complete(lines, argmax)
        assert [one.text for [one] in found] == expected.best
        again = generator.with_model(network)
        assert "".join(again.stream(lines[0], argmax)) == expected.best[0]
        texts.add(tuple(expected.best))
        for [one], [other] in zip(found, expected.hypotheses, strict=True):
            if one.ended:
                ended += 1
                assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
    assert ended and len(texts) == 3


@pytest.mark.parametrize(
    ("name", "output"), [("vectors", "vector"), *slow(("classes", "probabilities"))]
)
def test_in_bfloat16_the_answers_are_near_and_only_matrices_are_stored_so(
    folder, tmp_path, name, output
):
    assert main([str(folder / name), str(tmp_path), "--bfloat16"]) == 0
    assert record_of(tmp_path / "1")["compute_dtype"] == "bfloat16"
    assert record_of(served(folder, name))["compute_dtype"] == "float32"
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
    found = macaron_tf.load(folder / "classes")
    found.network.quantize("int8")
    found.save_pretrained(tmp_path / "int8")
    words = "is quantized to int8: use the unquantized model"
    refused(main, [tmp_path / "int8", tmp_path / "out", "--bfloat16"], words)


def test_scores_of_translations_are_the_runs(folder, number_hypotheses):
    score = tf.saved_model.load(str(served(folder, "numbers"))).signatures["score"]
    best = [hypotheses[0] for hypotheses in number_hypotheses]
    texts = tf.constant([one.text for one in best])
    scored = score(source=tf.constant(NUMBERS), target=texts)
    np.testing.assert_allclose(scored["log_probs"], [one.log_prob for one in best], atol=1e-3)
    assert scored["tokens"].numpy().tolist() == [one.length for one in best]


def test_a_classifier_without_a_run_is_one_where_its_classes_have_names(folder, tmp_path, refused):
    found = macaron_tf.load(folder / "classes").with_card(recipe={})
    found = dataclasses.replace(found, settings=None)
    found.save_pretrained(tmp_path / "plain")
    words = "has 2 classes, but 0 class names"
    refused(main, [tmp_path / "plain", tmp_path / "out"], words)
    with_classes(found, "no", "yes").save_pretrained(tmp_path / "named")
    answers = macaron_tf.load(tmp_path / "named").predict(LINES)
    assert {answer["label"] for answer in answers} == {"no", "yes"}


def test_every_export_is_on_record(folder):
    for name, task in (("classes", "sst2"), ("spans", "squad2"), ("tags", "conll2003")):
        record, run = record_of(served(folder, name)), Run.open(folder / name)
        assert record["task"] == task and record["vocabulary"] == run.vocabulary.hash
    record = record_of(served(folder, "classes"))
    assert record["labels"] == ["negative", "positive"]
    assert record["checkpoint"] == Run.open(folder / "classes").checkpoint().name
    record = record_of(served(folder, "vectors"))
    assert record["pooling"] == "mean" and record["max_length"] == 48
    written = ("continues", 256, "step-00000001"), ("answers_bart", 250, "answers_bart")
    for name, longest, checkpoint in written:
        record = record_of(served(folder, name))
        assert record["longest"] == longest and record["checkpoint"] == checkpoint
    assert record_of(served(folder, "numbers"))["checkpoint"] == "average"
