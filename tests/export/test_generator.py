"""A language model and its SavedModel write the same text, also where we are not installed."""

import json
import subprocess
import sys

import numpy as np
import pytest

from experiments.generate.opening import open_model
from export.saved_model import main
from macaron_tf.decoding import GenerationConfig
from tests.experiments.language_toy import train_language_toy

READER = """
import json, sys
import tensorflow as tf, tensorflow_text
place, inputs = json.load(sys.stdin)
serve = tf.saved_model.load(place).signatures["serving_default"]
kinds = {"text": tf.string, "temperature": tf.float32, "top_p": tf.float32}
def asked(**values):
    return {k: tf.constant(v, kinds.get(k, tf.int32)) for k, v in values.items()}
out = serve(**asked(**inputs))
# None of these begins a text, so their prompts are read at once.
alone = serve(**asked(**{name: values[:3] for name, values in inputs.items()}))
assert (alone["completion"].numpy() == out["completion"].numpy()[:3]).all()
answer = {
    "completion": [x.decode() for x in out["completion"].numpy()],
    "log_prob": out["log_prob"].numpy().tolist(),
    "tokens": out["tokens"].numpy().tolist(),
    "errors": [],
}
for text in ("a " * 40, b"caf\\xe9"):
    try:
        serve(**asked(text=[text], temperature=[1.0], top_k=[0], top_p=[1.0], seed=[1],
                      max_tokens=[4]))
    except tf.errors.InvalidArgumentError as error:
        answer["errors"].append(error.message)
assert not any(name.startswith(("macaron_tf", "experiments", "export")) for name in sys.modules)
json.dump(answer, sys.stdout)
"""
# Text, temperature, top-k, top-p, seed, new tokens at most.
ASKED = [
    ("c c c", 0.0, 0, 1.0, 1, 10),
    ("c c c", 1.5, 0, 1.0, 1, 10),
    ("c c c", 1.5, 0, 1.0, 2, 10),
    ("", 1.0, 5, 0.9, 7, 50),
    ("na\u00efve\n e .", 1.5, 0, 0.95, -3, 6),
]


@pytest.fixture(
    scope="module", params=["byte_bpe", pytest.param("wordpiece", marks=pytest.mark.slow)]
)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator")
    run = train_language_toy(folder, request.param)
    (folder / "run").symlink_to(run)
    assert main([run, str(folder / "served")]) == 0
    return folder


def test_a_fresh_process_writes_the_same_text(folder, tmp_path):
    names = ("text", "temperature", "top_k", "top_p", "seed", "max_tokens")
    inputs = dict(zip(names, zip(*ASKED, strict=True), strict=True))
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps([str(folder / "served" / "1"), inputs]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    generator = open_model(folder / "run").generator()
    for row, (text, temperature, top_k, top_p, seed, most) in enumerate(ASKED):
        config = GenerationConfig(temperature, top_k, top_p, 1, most)
        [[expected]] = generator.complete([text], config, seed)
        assert answer["completion"][row] == expected.text
        assert answer["tokens"][row] == expected.length
        np.testing.assert_allclose(answer["log_prob"][row], expected.log_prob, rtol=1e-3, atol=1e-3)
    long, broken = answer["errors"]
    assert "too long to go on" in long and "not UTF-8" in broken


def test_what_is_exported_is_on_record(folder):
    record = json.loads((folder / "served" / "1" / "assets.extra" / "export.json").read_text())
    assert record["longest"] == 16 and record["checkpoint"].startswith("step-")


def test_what_only_a_translator_does_is_refused(folder, tmp_path, capsys):
    assert main([str(folder / "run"), str(tmp_path / "out"), "--n-best", "2"]) == 2
    assert "--n-best" in capsys.readouterr().err
