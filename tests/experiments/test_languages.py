"""Tests of multilingual classification: XNLI's records, and zero-shot transfer."""

import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from experiments.commands import main
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.runs.finetuning import load_labelled_task
from macaron_tf.runs.run import Run
from macaron_tf.tasks.sets import SetOutputs
from tests.harness import refuses
from tests.toys.numbers import number_pairs
from tests.toys.pretraining import flags
from tests.toys.tasks import outputs_of, scores_in, write_table
from tests.toys.tasks import write_tfds as prepare
from tests.toys.translation import make_start

TOY = "tfds:glue/toy"
PAIRS = number_pairs(24, seed=3)


@pytest.fixture(scope="module")
def xnli(tmp_path_factory) -> str:
    """Returns a TFDS folder with a toy data set that has the features of XNLI."""
    tfds = pytest.importorskip("tensorflow_datasets")
    folder, codes = tmp_path_factory.mktemp("xnli"), ("de", "en")
    features = {
        "premise": tfds.features.Translation(codes),
        "hypothesis": tfds.features.TranslationVariableLanguages(codes),
        "label": tfds.features.ClassLabel(names=get_task("xnli").labels),
    }
    records = []
    for number, (english, german) in enumerate(PAIRS):
        texts = {"de": german, "en": english}
        records.append({"premise": texts, "hypothesis": texts, "label": number % 3})
    prepare(folder, features, validation=records)
    return str(folder)


def test_one_language_of_translations_is_read(xnli):
    task, tfds = get_task("xnli"), Tfds(xnli)
    for side, code in enumerate(("en", "de")):
        found = read_examples(task, "validation", tfds, TOY, code)
        assert found.first == found.second  # the set has an order of its own
        labels = zip(found.first, found.labels.tolist(), strict=True)
        assert sorted(labels) == sorted((pair[side], n % 3) for n, pair in enumerate(PAIRS))
    for code in ("fr", None):
        refuses("'premise' has the languages de, en, but", read_examples, task, "validation",
                tfds, TOY, code)  # fmt: skip


@pytest.mark.slow
def test_a_model_trained_in_one_language_is_scored_in_others_and_keeps_it(
    xnli, tmp_path, ran, refused
):
    start = make_start(tmp_path / "xlm", "xlm_tiny")
    names = get_task("xnli").labels
    rows = [(text, text, names[number % 3]) for number, (_, text) in enumerate(PAIRS)]
    for split in ("train", "validation_matched", "validation_mismatched"):
        write_table(tmp_path / f"{split}.tsv", rows, "premise\thypothesis\tlabel")
    run = str(tmp_path / "run")
    settings = [
        f"data.source=tsv:{tmp_path}/{{split}}.tsv",
        "data.language=de",
        "data.max_length=24",
    ]
    settings += ["training.max_steps=2", "model.dropout=0"]
    words = ["--init", start, *flags(settings)]
    ran(main, "train", "finetune:xnli", run, *words)
    opened = Run.open(run)
    assert opened.recipe.data.languages == ("en", "de") and opened.recipe.limits.language_id == 1
    scores = ["--data-dir", xnli, "--source", TOY, "--split", "validation"]
    evaluate = ["evaluate", run, *scores, "--set"]
    # Once the two languages' vectors are swapped, German text read as English has German's outputs.
    answering = load_labelled_task(opened)
    task, tfds = get_task("xnli"), Tfds(xnli)

    def outputs(code: str, read_as: str) -> np.ndarray:
        examples = read_examples(task, "validation", tfds, TOY, code)
        return SetOutputs(answering.with_options(language=read_as), 8).compute(examples)

    english, german = outputs("en", "en"), outputs("de", "de")
    for code, found in (("en", english), ("de", german)):
        ran(main, *evaluate, f"data.language={code}", "--output", tmp_path / code)
        record = scores_in(tmp_path / code)
        assert record["language"] == code
        assert record["predictions"]["validation"] == found.argmax(-1).tolist()
    table = answering.network.encoder.embeddings.languages
    table.assign(table.numpy()[::-1])
    np.testing.assert_allclose(outputs("de", "en"), german, atol=1e-6)
    assert np.abs(outputs("en", "en") - english).max() > 1e-4
    wrong = "not a language of the model: give one of en, de"
    refused(main, [*evaluate, "data.language=fr"], wrong, tmp_path)

    # The language goes with the folder and the export.
    texts, saved = [german for _, german in PAIRS], tmp_path / "saved"
    macaron_tf.load(run).with_card(recipe={}).save_pretrained(saved)
    expected = tf.nn.softmax(outputs_of(load_labelled_task(opened), texts, texts)).numpy()
    for place in (run, saved):
        task = macaron_tf.load(place).task
        again = tf.nn.softmax(outputs_of(task, texts, texts)).numpy()
        np.testing.assert_array_equal(again, expected)
        found = task.serve(tf.constant(texts), tf.constant(texts))["probabilities"]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    (tmp_path / "lines").write_text("\n".join(f"{text}\t{text}" for text in texts))
    for code in ("de", "en"):
        said = ran(main, "predict", run, "--input", tmp_path / "lines", "--set", f"language={code}")
        answers = [float(line.split("\t")[1].split()[1]) for line in said.out.splitlines()]
        assert np.allclose(answers, expected[:, 0], atol=1e-4) == (code == "de")
