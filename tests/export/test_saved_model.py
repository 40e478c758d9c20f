"""A run and its SavedModel say the same, also where this project is not installed."""

import dataclasses
import json
import subprocess
import sys

import pytest

from experiments.translate.run import TranslationRun
from export.saved_model import main
from tests.conftest import number_pairs

READER = """
import json, sys
import tensorflow as tf, tensorflow_text
model = tf.saved_model.load(sys.argv[1])
lines = json.load(sys.stdin)
out = model.signatures["serving_default"](text=tf.constant(lines))
score = model.signatures["score"](source=tf.constant(lines), target=out["translations"][:, 0])
assert not any(name.startswith(("macaron_tf", "experiments", "export")) for name in sys.modules)
json.dump({
    "translations": [[t.decode() for t in row] for row in out["translations"].numpy()],
    "scores": out["scores"].numpy().tolist(),
    "log_probs": score["log_probs"].numpy().tolist(),
    "tokens": score["tokens"].numpy().tolist(),
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def exported(number_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("served") / "numbers"
    assert main([str(number_run), str(out), "--n-best", "2"]) == 0
    return out


def test_a_fresh_process_gives_the_runs_text(number_run, exported, tmp_path):
    lines = [source for source, _ in number_pairs(200, seed=5)]
    lines[3] = ""
    done = subprocess.run(
        [sys.executable, "-c", READER, str(exported / "1")],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    run = TranslationRun.open(number_run)
    translator = run.translator(decoding=dataclasses.replace(run.recipe.decoding, n_best=2))
    expected = translator.translate(lines).hypotheses
    for row, hypotheses in zip(answer["translations"], expected, strict=True):
        assert row[: len(hypotheses)] == [hypothesis.text for hypothesis in hypotheses]
    for row, hypotheses in zip(answer["scores"], expected, strict=True):
        assert row[0] == pytest.approx(hypotheses[0].score, abs=1e-4)
    for i, hypotheses in enumerate(expected):
        if i != 3:
            assert answer["log_probs"][i] == pytest.approx(hypotheses[0].log_prob, abs=1e-3)
            assert answer["tokens"][i] == hypotheses[0].length


def test_versions_count_up_and_are_whole(number_run, exported, capsys):
    assert main([str(number_run), str(exported)]) == 0
    assert sorted(path.name for path in exported.iterdir()) == ["1", "2"]
    record = json.loads((exported / "2" / "assets.extra" / "export.json").read_text())
    assert record["checkpoint"] == "average"
    assert main([str(number_run), str(exported), "--version", "2"]) == 2
    assert "--version 2 exists" in capsys.readouterr().err


def test_bad_requests_are_one_sentence(number_run, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for arguments, words in (
        ([str(tmp_path), str(tmp_path / "out")], "is not a run"),
        ([str(number_run), str(tmp_path / "out"), "--checkpoint", "9"], "has no checkpoint 9"),
        ([str(number_run), str(tmp_path / "file" / "out")], "cannot be written"),
        ([str(number_run), str(tmp_path / "out"), "--n-best", "99"], "n_best"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert not (tmp_path / "out").exists()
