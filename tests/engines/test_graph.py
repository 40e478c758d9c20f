"""Graphs accept texts of every Python type, or raise one-line errors."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.engines.graph import TaskGraph
from macaron_tf.engines.session import STEPS
from macaron_tf.io.serving import failed_check, failed_rows
from macaron_tf.model import Model, load
from macaron_tf.models import (
    EncoderClassifier,
    LanguageModel,
    PretrainingEncoder,
)
from macaron_tf.tasks import LabelledSettings
from tests.harness import refuses
from tests.toys.marks import slow
from tests.toys.pretrained import BYTES, PAIR, WORDS, loaded, with_classes

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def classifier() -> Model:
    return with_classes(loaded(EncoderClassifier, "bert_tiny", WORDS, 2), "no", "yes")


@pytest.fixture(scope="module")
def pairs(classifier) -> Model:
    settings = LabelledSettings(task=PAIR, limits={"max_length": 16})
    return dataclasses.replace(classifier, settings=settings)


TEXTS, PAIRS = ["a b", "c d"], [("a b", "a"), ("c d", "a")]
CLASSES, SCORES, SEVERAL = ["one", "two"], [4.5, 1.0], [["one", "two"], []]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("network_class", "name", "texts", "labels"),
    [
        (PretrainingEncoder, "bert_tiny", TEXTS, CLASSES),
        (PretrainingEncoder, "bert_tiny", PAIRS, SCORES),
        (PretrainingEncoder, "bert_tiny", TEXTS, SEVERAL),
        *slow(
            (LanguageModel, "gpt2_tiny", TEXTS, CLASSES),
            (LanguageModel, "llama_tiny", TEXTS, CLASSES),
            (PretrainingEncoder, "bert_tiny", TEXTS, SCORES),
            (PretrainingEncoder, "bert_tiny", PAIRS, CLASSES),
        ),
    ],
)
def test_an_encoder_is_fine_tuned_and_answers(network_class, name, texts, labels, tmp_path):
    model = loaded(network_class, name)
    before = model.encoder.get_weights()
    options = dict(validation=(texts, labels), folder=tmp_path / "run", batch_size=8)
    tuned = model.fit(texts * 8, labels * 8, epochs=8, learning_rate=1e-3, **options)
    found = tuned.predict(texts)
    if labels == CLASSES:
        assert [answer["label"] for answer in found] == labels
    elif labels == SEVERAL:
        assert [answer["labels"] for answer in found] == labels
    else:
        assert found[0] > found[1]
    assert load(tmp_path / "run").predict(texts) == found
    np.testing.assert_equal(model.encoder.get_weights(), before)
    tuned.save_pretrained(tmp_path / "tuned")
    assert load(tmp_path / "tuned").predict(texts) == found
    options["folder"] = tmp_path / "run"
    refuses("is a run on other examples", model.fit, texts * 7, labels * 7, **options)
    refuses("2 texts have 1 labels: give each text a label", model.fit, texts, labels[:1])
    refuses("all labels are 'a'", model.fit, texts, ["a"] * 2)
    refuses("label 1 is 'high': give a number to each", model.fit, texts, [1.5, "high"])
    named = "no argument 'validation_data'; perhaps you meant 'validation'"
    refuses(named, model.fit, texts, labels, validation_data=(texts, labels))
    refuses("example 2 has 1 text", model.fit, [("a", "b"), "c"], labels)


def test_lists_arrays_and_tensors_are_alike(classifier):
    expected = classifier.predict(["a b", "c"])
    assert [answer.keys() for answer in expected] == [{"label", "probabilities", "classes"}] * 2
    forms = [("a b", "c"), iter(["a b", "c"]), np.array(["a b", "c"]), [b"a b", b"c"]]
    forms += [tf.constant(["a b", "c"]), [{"text": "a b"}, {"text": "c"}]]
    for form in forms:
        assert classifier.predict(form) == expected
    assert classifier.predict("c")["label"] == expected[1]["label"]
    assert classifier.predict([]) == []


def test_two_texts_are_columns_or_examples(pairs):
    expected = pairs.predict(["a", "c"], ["b", "d"])
    named = [{"first": "a", "second": "b"}, {"first": "c", "second": "d"}]
    for form in ([("a", "b"), ("c", "d")], named, np.array([["a", "b"], ["c", "d"]])):
        assert pairs.predict(form) == expected
    one = pairs.predict("a", "b")
    assert one == pairs.predict(("a", "b")) == pairs.predict(named[0])


def test_many_texts_come_back_in_their_order(classifier):
    texts = ["a " * (number * 7 % 40) for number in range(100)]
    answers = classifier.predict(texts)
    for number in (0, 50, 99):
        alone = classifier.predict(texts[number])["probabilities"]
        np.testing.assert_allclose(answers[number]["probabilities"], alone, atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "options", "words"),
    [
        (([None],), {}, "text 1 is None: pass a string"),
        ((3,), {}, "3 is not a string: pass a string or a list of strings"),
        (("a", "b"), {}, "2 texts, lists or dicts: pass text"),
        (([b"caf\xe9"],), {}, "is not UTF-8"),
        (("a",), {"nbest": 3}, "nbest=3 is not possible for a classifier, whose"),
    ],
)
def test_other_input_is_refused(classifier, texts, options, words):
    refuses(words, classifier.predict, *texts, **options)


def test_the_texts_of_an_example_are_all_there(pairs):
    refuses("example 1 lacks the text 'second'", pairs.predict, [{"first": "a"}])
    refuses("example 1 has 1 text: pass a tuple of first, second", pairs.predict, ["a"])
    sizes = r"the numbers of texts differ \(2 of first, 1 of second\)"
    refuses(sizes, pairs.predict, ["a", "b"], ["a"])
    sides = {"first": "a"}, {"second": "b"}
    refuses("2 texts, lists or dicts: pass first and second", pairs.predict, *sides)


@pytest.mark.slow
def test_a_writer_streams_scores_and_takes_numbers():
    writer = loaded(LanguageModel, "gpt2_tiny", BYTES)
    drawn = {"temperature": 0.7, "seed": 3, "max_tokens": 6}
    answer = writer.predict("a b", **drawn)
    assert "".join(writer.stream("a b", **drawn)) == answer["completion"]
    long, short = writer.score(["a b c d", "a"])
    assert long["tokens"] > short["tokens"] and long["log_probs"] < short["log_probs"] < 0
    for name, value in (("temperature", "x"), ("seed", 2**40), ("top_k", None)):
        refuses(f"{name}={value!r} must be a number", writer.predict, "a", **{name: value})
    refuses("top_p must be above 0 and at most 1", writer.predict, "a", top_p=2.0)
    refuses("n_best=2 is not possible for a text", writer.predict, "a", n_best=2)
    refuses("n_best=2 is not possible for a text", lambda: list(writer.stream("a", n_best=2)))
    refuses("temperature=1.0 is not possible for a text", writer.export, "nowhere", temperature=1.0)
    refuses("within 1024 tokens", writer.predict, "a" * 5_000)
    long = writer.stream("a" + " " * 131_072)
    refuses("the prompt has more than 131072 bytes: shorten the prompt", next, long)


def test_a_long_text_is_cut_by_a_classifier(classifier, pairs):
    text, spaces = "a b " * 1_000_000, " " * 5_000_000
    assert classifier.predict(text) == classifier.predict(text[:4_000])
    assert pairs.predict(text, spaces + "a")["label"] in PAIR["labels"]
    short, long, no_text = classifier.predict(["a", spaces + "a", "a" * 4_000_000])
    assert short.keys() == long.keys() == no_text.keys()


def test_the_graphs_of_an_export_refuse_a_long_text():
    """A SavedModel holds the signature, and an engine such as LiteRT runs between the steps."""
    model = loaded(PretrainingEncoder, "bert_tiny", objective="masked_language")
    graph, texts = TaskGraph(model.task), ["[MASK]", "[MASK]" + " a" * 70_000]
    message = "a text has more than 131072 bytes: shorten the text"
    steps = graph.steps((None, None, WORDS.size))
    for function in (graph.signatures["serving_default"], steps[STEPS[0]]):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            function(tf.constant(texts))
        assert failed_check(caught.value.message) == message
        assert failed_rows(caught.value.message) == {1}
    refuses(f"text 2: {message}", model.predict, texts)  # before it is tokenized
    assert model.predict("[MASK]".ljust(131_072))["words"]


def test_gaps_are_filled_with_as_many_pieces_as_asked():
    model = loaded(PretrainingEncoder, "bert_tiny", objective="masked_language")
    refuses("top=0 must be a whole number of at least 1", model.predict, "a [MASK]", top=0)
    one, two = model.predict(["a [MASK]", "[MASK] b [MASK]"], top=3)
    assert [len(words) for words in one["words"]] == [3]
    assert np.shape(two["probabilities"]) == (2, 3)
    refuses(r"a text has no \[MASK\]", model.predict, "a")
