"""A run of every kind learns, and `evaluate` repeats what its last validation measured.

`predict --json` prints what `Model.predict` returns.

tests/experiments/test_resume.py resumes runs of every kind.
"""

import json
import pathlib

import pytest
import tensorflow as tf

from experiments.commands import main
from macaron_tf.model import load
from tests.toys.marks import slow
from tests.toys.pretraining import flags
from tests.toys.tasks import scores_in, validations

# The fixture of a run, a metric, and the metric's bounds after the training.
RUNS = [
    pytest.param("toy_run", "score", 0.95, 1, marks=pytest.mark.quick),
    ("reading/squad2", "score", 0.9, 1),
    ("reading/conll2003", "score", 0.9, 1),
    ("embedding_run", "spearman", 0.8, 1),
    ("masked_run", "accuracy", 0.7, 1),  # 1 in 10 by chance, and the end of a sentence
    # In nine of ten places, only the letter before or a full stop can follow.
    pytest.param("language_run", "perplexity", 1, 4, marks=pytest.mark.quick),
    ("t5_run", "loss", 0, 3),
    ("elmo_run", "perplexity", 1, 7),
    ("tcn_run", "loss", 0, 10),
]


@pytest.mark.parametrize(("name", "metric", "low", "high"), RUNS)
def test_a_run_learns_and_evaluate_repeats_its_validation(
    name, metric, low, high, request, tmp_path, ran
):
    fixture, _, folder = name.partition("/")
    run = pathlib.Path(request.getfixturevalue(fixture)) / folder
    last = validations(run)[-1][metric]
    assert low < last <= high
    ran(main, "evaluate", f"{run}@last", "--output", tmp_path)
    record = scores_in(tmp_path)
    found = record.get("metrics", record.get("validation", record))
    assert found[metric] == pytest.approx(last, rel=1e-5)


DRAWN = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "max_tokens": 5}


@pytest.mark.parametrize(
    ("run", "options"),
    [("language_run", DRAWN), *slow(("number_run", {"n_best": 2}), ("t5_run", DRAWN))],
)
def test_predict_prints_the_json_of_what_python_answers(run, options, request, ran):
    place, texts = request.getfixturevalue(run), ["c c [MASK] c", "one two"]
    settings = flags([f"{option}={value}" for option, value in options.items()])
    printed = ran(main, "predict", place, *texts, *settings, "--json").out.splitlines()
    expected = load(place).predict(texts, **options)
    tf.nest.assert_same_structure([*map(json.loads, printed)], expected)
    found = tf.nest.flatten([*map(json.loads, printed)])
    for one, other in zip(found, tf.nest.flatten(expected), strict=True):
        assert one == (other if isinstance(other, str) else pytest.approx(other, abs=1e-5))
