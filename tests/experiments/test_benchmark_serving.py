import threading

import numpy as np
import pytest

from experiments.benchmarks import serving
from experiments.benchmarks.harness import machine, markdown, percentiles
from macaron_tf.errors import UserError


def test_percentiles_are_milliseconds():
    found = percentiles(np.arange(1, 102) / 1000)
    assert found == pytest.approx({"p50": 51, "p95": 96, "p99": 100})


@pytest.mark.parametrize("clients", [1, 3])
def test_a_turn_times_every_request_once(clients):
    asked, at_once = [], threading.Barrier(clients)

    def answer(lines):
        at_once.wait(timeout=30)  # passes only where so many ask at once
        asked.append(tuple(lines))

    requests = [[str(i)] * 2 for i in range(6)]
    turn = serving.Turn(answer, requests, clients)
    assert turn() == 12
    assert sorted(asked) == sorted(map(tuple, requests))
    assert len(turn.seconds) == 6 and all(second > 0 for second in turn.seconds)


def test_latencies_are_those_of_the_timed_rounds():
    calls = []
    options = serving._options(["--rounds", "3", "--warm-up", "2"])
    rows = serving.timed({"one": lambda lines: calls.append(lines)}, [["a"], ["b"]], options)
    assert len(calls) == 10 and set(rows[0]["latency_ms"]) == {"p50", "p95", "p99"}
    assert "| p50 / p95 / p99, ms |" in markdown("T", machine(1, ()), {"s": rows}, "rows")


def test_answers_that_differ_are_not_timed():
    answers = {"peer": lambda lines: np.zeros(2), "ours": lambda lines: np.full(2, 1e-3)}
    with pytest.raises(UserError, match="ours differs from peer by 1.0e-03"):
        serving.check_agreement(answers, [["a"]])
    answers["ours, bfloat16"] = answers.pop("ours")
    serving.check_agreement(answers, [["a"]])
    texts = {name: lambda lines, name=name: np.array([name], object) for name in ("a", "b")}
    with pytest.raises(UserError, match="b says other things than a"):
        serving.check_agreement(texts, [["a"]])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--rows", "0"], "--rows 0"), (["--batch-sizes", "4", "0"], "--batch-sizes 0"),
     (["--layers", "0"], "--layers 0"), (["--warm-up", "0"], "--warm-up 0")],
)  # fmt: skip
def test_bad_options_are_one_sentence(arguments, words):
    with pytest.raises(UserError, match=words):
        serving._options(arguments)


def test_lines_are_of_all_lengths_and_the_same_each_time():
    from experiments.benchmarks.served_models import made_up_lines

    lines = made_up_lines(400, 60, seed=3)
    assert lines == made_up_lines(400, 60, seed=3) != made_up_lines(400, 60, seed=4)
    counts = [len(line.split()) for line in lines]
    assert min(counts) == 2 and 55 <= max(counts) <= 60
    assert 5 < np.median(counts) < 20  # the middle between 2 and 60 by the logarithm is 11
    options = serving._options(["--rows", "10"])
    assert [len(lines) for lines in serving.requests_of(4, options)] == [4, 4, 4]


def test_the_saved_model_answers_as_the_model_in_memory(tmp_path):
    import keras

    from experiments.benchmarks.served_models import (
        keras_classifier,
        made_up_lines,
        saved_classifier,
    )
    from macaron_tf.models.config import EncoderConfig
    from macaron_tf.models.tasks import EncoderClassifier
    from macaron_tf.text.wordpiece import WordPieceVocabulary

    keras.utils.set_random_seed(1)
    vocabulary = WordPieceVocabulary.train(made_up_lines(50, 8, seed=1), 100)
    config = EncoderConfig(vocabulary.size, 16, 48, 2, 1, initializer_range=0.3)
    network = EncoderClassifier(config, 2)
    network.build()
    answers = {
        "predict": keras_classifier(network, vocabulary, 12, predict=True),
        "called": keras_classifier(network, vocabulary, 12, predict=False),
        "SavedModel": saved_classifier(network, vocabulary, 12, tmp_path),
    }
    lines = made_up_lines(6, 20, seed=2)
    serving.check_agreement(answers, [lines[:1], lines])
    assert np.ptp(answers["SavedModel"](lines)[:, 0]) > 1e-2


@pytest.mark.slow
def test_the_saved_translator_says_what_its_graph_says(tmp_path):
    from experiments.benchmarks.served_models import made_up_lines, translators

    answers = translators("tiny", made_up_lines(2000, 60, seed=1), 6, tmp_path)
    lines = made_up_lines(3, 10, seed=2)
    serving.check_agreement(answers, [lines])
    assert all(text for (text,) in answers["SavedModel"](lines))


def test_hugging_faces_classifier_answers_as_ours(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    options = serving._options(["--size", "tiny", "--layers", "1", "--bfloat16"])
    answers = serving.classifiers(options, tmp_path)
    assert list(answers)[:2] == [serving.REFERENCE, serving.SAVED_MODEL] and len(answers) == 6
    requests = serving.requests_of(16, options)[:2]
    serving.check_agreement(answers, requests)
    assert np.ptp(answers[serving.REFERENCE](requests[0])[:, 0]) > 0.02
