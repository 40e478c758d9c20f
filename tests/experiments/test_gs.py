"""Tests of a corpus, a run and checkpoints in an emulated Google Cloud Storage bucket.

Each command is a separate process, because TensorFlow reads its retry settings at import.
"""

import re

import pytest

from tests.emulated_bucket import HOSTS, UPLOAD, EmulatedBucket, Fault
from tests.toys.pretraining import flags, toy_settings, write_documents

pytestmark = pytest.mark.slow
CORPUS = ["corpus.json", "train-00000.tfrecord", "validation-00000.tfrecord"]
STEP = "checkpoints/step-00000020"


class Store(EmulatedBucket):
    """An emulated bucket, and the commands of one small pre-training run."""

    def __init__(self, folder):
        super().__init__()
        settings = toy_settings(write_documents(folder), 20)
        more = ["training.save_every_steps=10", "training.validate_every=10"]
        self.flags = flags([*settings, *more, "training.log_every=5"])

    def prepare(self, corpus: str) -> tuple[int, str, str]:
        return self.run("-m", "experiments.pretrain", "prepare", "bert_tiny", corpus, *self.flags)

    def training(self, run: str, corpus: str) -> list[str]:
        words = ["-m", "experiments.pretrain", "train", "bert_tiny", run, "--corpus", corpus]
        return [*words, *self.flags]

    def train(self, run: str) -> tuple[int, str, str]:
        return self.run(*self.training(f"gs://bucket/{run}", "gs://bucket/corpus"))

    def content(self, name: str) -> bytes:
        status, _, content = self.send("GET", f"/bucket/{name}", headers={"Host": HOSTS[1]})
        assert status == 200
        return content


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Yields a `Store` with a prepared `corpus/`.

    The attribute `metrics` is the content of the metrics file of an equal run on the local disk.
    """
    folder = tmp_path_factory.mktemp("documents")
    with Store(folder) as store:
        status, _, errors = store.prepare("gs://bucket/corpus")
        assert (status, errors) == (0, "")
        local = tmp_path_factory.mktemp("local")
        assert store.prepare(str(local / "corpus"))[0] == 0
        for name in CORPUS:
            assert store.content(f"corpus/{name}") == (local / "corpus" / name).read_bytes()
        assert store.run(*store.training(str(local / "run"), str(local / "corpus")))[0] == 0
        store.metrics = (local / "run" / "metrics.jsonl").read_bytes()
        yield store


@pytest.fixture(autouse=True)
def healthy(store):
    store.faults = []


def one_sentence(errors: str) -> str:
    [line] = errors.splitlines()
    assert line.startswith("error: ")
    return line


def test_a_training_is_killed_amid_a_checkpoint_and_goes_on(store):
    process = store.start(*store.training("gs://bucket/run", "gs://bucket/corpus"))
    store.faults = [Fault(UPLOAD + r".*step-00000020.*training_state", None, act=process.kill)]
    process.communicate(timeout=300)
    assert process.returncode == -9
    store.faults = []
    half = store.objects("run/checkpoints")
    assert "run/checkpoints/.old-step-00000020/model.weights.h5" in half
    assert "run/checkpoints/.old-step-00000020/manifest.json" not in half
    assert not [name for name in half if name.startswith(f"run/{STEP}")]
    status, out, errors = store.train("run")
    assert (status, errors) == (0, "")
    assert "step 15/20" in out and "step 5/20" not in out
    assert f"run/{STEP}/manifest.json" in store.objects("run")
    assert not [name for name in store.objects("run") if "/.old-" in name]
    assert store.content("run/metrics.jsonl") == store.metrics
    words = ("evaluate", "gs://bucket/run", "--corpus", "gs://bucket/corpus")
    status, out, errors = store.run("-m", "experiments.pretrain", *words)
    assert (status, errors) == (0, "")
    assert [name for name in store.objects("run/scores") if name.endswith("20.json")]


def test_slow_failing_and_throttled_requests_are_repeated(store):
    store.faults = [
        Fault(UPLOAD, 503, times=3),
        Fault("^POST /upload", 429, times=4, after=9),
        Fault("^DELETE", 500, times=3),
        Fault("^GET", 429, times=5, after=20),
        Fault("rewriteTo", 503, times=2),
        Fault(UPLOAD + r".*model\.weights", None, delay=1.0),
        Fault("^GET /bucket/corpus%2Ftrain", 503, times=4),
    ]
    status, _, errors = store.train("unwell")
    assert (status, errors) == (0, "")
    assert all(fault.seen > (fault.times or 0) for fault in store.faults)
    assert store.content("unwell/metrics.jsonl") == store.metrics
    store.faults = []
    assert 0 not in store.objects("unwell").values()
    assert not [name for name in store.objects("unwell") if ".tmp-" in name or ".old-" in name]


def test_a_checkpoint_that_cannot_be_written(store):
    store.faults = [Fault(UPLOAD + ".*step-00000020.*training_state")]
    status, _, errors = store.train("refused")
    assert status == 2
    assert one_sentence(errors) == (
        f"error: cannot write checkpoint gs://bucket/refused/{STEP}, because the bucket returned "
        "HTTP 503 to repeated requests: run the same command again later"
    )
    assert store.faults[0].seen > 10
    assert f"refused/{STEP}/manifest.json" not in store.objects("refused")
    store.faults = []
    assert store.train("refused")[0] == 0
    assert store.content("refused/metrics.jsonl") == store.metrics


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            Fault("^POST /upload", 403),
            "cannot write gs://bucket/new/.*HTTP 403: check that your cre",
        ),
        (Fault("^GET", 401), "gs://bucket/new/[^ ]*, because the bucket returned HTTP 401: check"),
        (
            Fault("^GET", 503),
            "gs://bucket/new/[^ ]*, because the bucket returned HTTP 503.*again later",
        ),
        (
            Fault(UPLOAD + ".*tensorboard", 429),
            "cannot write gs://bucket/new/tensorboard, because the buc",
        ),
    ],
)
def test_requests_that_are_refused(store, fault, sentence):
    store.faults = [fault]
    status, _, errors = store.train("new")
    assert status == 2
    assert re.search(sentence, one_sentence(errors))


def test_a_preparation_that_is_refused_goes_on(store):
    store.faults = [Fault(UPLOAD + r".*corpus\.json")]
    status, _, errors = store.prepare("gs://bucket/again")
    assert status == 2
    wanted = "cannot write gs://bucket/again/corpus.json, because the bucket returned HTTP 503"
    assert wanted in one_sentence(errors)
    assert "again/corpus.json" not in store.objects("again")
    store.faults = []
    assert store.prepare("gs://bucket/again")[0] == 0
    for name in CORPUS:
        assert store.content(f"again/{name}") == store.content(f"corpus/{name}")


def test_a_bucket_that_does_not_exist(store):
    status, _, errors = store.prepare("gs://nothing/corpus")
    assert status == 2
    wanted = "error: there is no bucket gs://nothing: create it, or correct its name"
    assert one_sentence(errors) == wanted


def test_a_store_out_of_reach(store):
    nobody = "http://127.0.0.1:9"
    status, _, errors = store.run(
        *store.training("gs://bucket/run", "gs://bucket/corpus"), https_proxy=nobody
    )
    assert status == 2
    assert "requests do not reach the bucket" in one_sentence(errors)
