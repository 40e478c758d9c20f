"""Trains, saves and serves a classifier with only the wheel and its `serving` extra installed.

    python tests/wheel_journey.py FOLDER

`make release` runs this script outside the checkout, with a fresh environment's Python.
"""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

import keras
import numpy as np
import tensorflow as tf

import macaron_tf
from macaron_tf.errors import EXTRAS
from macaron_tf.model import Model
from macaron_tf.models.model_parts import Card
from macaron_tf.text import WordPieceVocabulary

TEXTS = ["the sun shines", "rain and wind", "sun and blue sky", "wind and cold rain"] * 8
LABELS = ["good", "bad"] * 16

folder = pathlib.Path(sys.argv[1])
assert "site-packages" in macaron_tf.__file__, macaron_tf.__file__
extras = {module for module, extra in EXTRAS.items() if extra in ("evaluate", "train")}
assert not [module for module in extras if importlib.util.find_spec(module)]
versions = ", ".join(f"{one.__name__} {one.__version__}" for one in (tf, keras, np))
print(f"Python {sys.version.split()[0]}, {versions}")

vocabulary = WordPieceVocabulary.train(TEXTS, size=60)
encoder = macaron_tf.build("swish_rnn_tiny", vocab_size=vocabulary.size, dropout=0.0)
model = Model(encoder, vocabulary=vocabulary, card=Card(model="swish_rnn_tiny"))
model = model.fit(TEXTS, LABELS, (TEXTS, LABELS), epochs=20.0, learning_rate=1e-3)
model.save_pretrained(folder / "model")
model = macaron_tf.load(folder / "model")
answers = model.predict(TEXTS[:2])
assert [answer["label"] for answer in answers] == LABELS[:2], answers
model.export(folder / "served")

macaron, served = pathlib.Path(sys.executable).with_name("macaron"), folder / "served"
command = [macaron, "serve", served, "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        address = re.search(r"http://[\w.:]+", server.stdout.readline())[0]
        body = json.dumps({"instances": TEXTS[:2]}).encode()
        with urllib.request.urlopen(f"{address}/v1/models/served:predict", body, 60) as reply:
            answers = json.load(reply)["predictions"]
    finally:
        server.terminate()
assert [answer["label"] for answer in answers] == LABELS[:2], answers
print(f"trained, saved, loaded, exported and served: {answers[0]}")
