"""Tests of the data service as a separate process: equal batches, masking, start, shutdown."""

import dataclasses
import itertools
import json
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from experiments.data_service import main
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.service import service_error, through_service
from macaron_tf.data.translation import BatchingConfig, TranslationData, served_batch
from macaron_tf.objectives import MaskedLanguageObjective, MaskingConfig
from tests.toys.pretraining import prepare, toy_settings
from tests.toys.processes import free_ports
from tests.toys.vocabularies import toy_pairs, toy_vocabulary  # noqa: F401 -- fixtures

COMMAND = [sys.executable, "-m", "experiments.data_service"]

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def corpus(source, tmp_path_factory):
    """Returns a corpus of the toy documents with 10 rows per file."""
    folder = str(tmp_path_factory.mktemp("corpora") / "letters")
    prepare("bert_tiny", folder, [*toy_settings(source), "corpus.rows_per_shard=10"])
    return PretrainingCorpus.open(folder)


@pytest.fixture(scope="module")
def address():
    """Yields the address of a data service, and asserts that the service stops at SIGTERM."""
    [port] = free_ports(1)
    process = subprocess.Popen(
        [*COMMAND, "--port", str(port), "--host", "localhost"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert (
            process.stdout.readline()
            == f"data service started: give training commands --data-service localhost:{port}\n"
        )
        yield f"localhost:{port}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stdout.read() == "data service stopped\n"
    finally:
        process.kill()


@pytest.mark.parametrize(("start", "choice"), [(0, "tokens"), (11, "spans")])
def test_batches_through_the_service_are_the_same(corpus, address, start, choice):
    rows = corpus.dataset("train", 32, seed=3, start_step=start)  # an epoch has 13 batches
    masking = MaskingConfig(choice=choice)
    masked = MaskedLanguageObjective().dataset(rows, masking, corpus.vocabulary, 3, start)
    served = through_service(masked, address)
    assert served.element_spec == masked.element_spec
    for expected, found in zip(masked.take(20), served.take(20), strict=True):
        assert expected.keys() == found.keys()
        for name in expected:
            np.testing.assert_array_equal(expected[name], found[name])


@pytest.fixture(scope="module")
def pairs(toy_pairs, toy_vocabulary, tmp_path_factory):  # noqa: F811
    """Returns translation data read from a file, in batches of up to five shapes."""
    file = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in toy_pairs))
    batching = BatchingConfig(max_tokens=200, shapes=5)
    return TranslationData.build(f"tsv:{file}", "train", toy_vocabulary, batching=batching)


def test_pairs_through_the_service_are_the_same(pairs, address):
    start = pairs.steps_per_epoch - 3  # 3 batches before the next epoch
    expected = pairs.dataset(3, start)
    served = pairs.service_dataset(address, 3, start)
    shapes = set()
    for one, other in zip(expected.take(20), served.take(20), strict=True):
        assert one.keys() == other.keys()
        shapes.add(tuple(one["source"].shape))
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert len(shapes) > 2


def test_an_epoch_is_planned_once_for_each_of_four_trainings(pairs, monkeypatch):
    plans, plan = [], TranslationData.plan
    monkeypatch.setattr(
        TranslationData, "plan", lambda data, rng: plans.append(rng) or plan(data, rng)
    )
    record = {"folder": pairs.tokens.folder, "batching": dataclasses.asdict(pairs.batching)}
    record["fingerprint"] = pairs.fingerprint()
    for step, seed in itertools.product(range(3), range(4)):
        served_batch(json.dumps({**record, "seed": seed}).encode(), step)
    assert sum(rng is not None for rng in plans) == 4


def test_pairs_that_the_service_has_not_are_said_here(pairs, address):
    elsewhere = dataclasses.replace(pairs.tokens, folder=f"{pairs.tokens.folder}-gone")
    with pytest.raises(tf.errors.OpError) as raised:
        list(TranslationData(elsewhere, pairs.batching).service_dataset(address))
    said = str(service_error(raised.value))
    wanted = "-gone of tokenized text is missing on this machine or has other contents: set MACARON"
    assert wanted in said


def test_what_fails_in_the_service_is_said_here(corpus, address):
    generator = tf.data.Dataset.from_generator(
        lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32)
    )
    with pytest.raises(tf.errors.OpError) as raised:
        list(through_service(generator, address))
    assert f"the data service {address} failed" in str(service_error(raised.value))
    lost = corpus.shards["train"][2].name
    batches = through_service(corpus.dataset("train", 8), address)
    content = tf.io.gfile.GFile(f"{corpus.folder}/{lost}", "rb").read()
    tf.io.gfile.remove(f"{corpus.folder}/{lost}")
    try:
        with pytest.raises(tf.errors.OpError) as raised:
            list(batches)
        assert f"{lost} is missing or damaged" in str(corpus.shard_error(raised.value))
    finally:
        with tf.io.gfile.GFile(f"{corpus.folder}/{lost}", "wb") as file:
            file.write(content)


@pytest.mark.parametrize("before", [0, 1])
def test_a_port_that_is_taken(before, capsys):
    """The service fails if its port or the next port is in use."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--port", str(port - before)]) == 2
    assert (
        f"error: cannot listen on port {port} (Address already in use)" in capsys.readouterr().err
    )
    assert main(["--port", "65535"]) == 2
    assert (
        "--port 65535 is not valid: give a whole number from 1 to 65534" in capsys.readouterr().err
    )
