"""Tests of commands whose corpus, runs and files are in a bucket, emulated by `ram://`."""

import json
import os

import pytest

from experiments import registry
from experiments.commands import main
from experiments.pretrain.run import PretrainingRun
from experiments.train import fit
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.io import paths as storage
from macaron_tf.training.progress import read_lines
from tests import ram_paths
from tests.harness import refuses
from tests.toys.pretraining import flags, toy_settings, write_documents
from tests.toys.tasks import toy_flags, write_toy


@pytest.fixture(scope="module")
def bucket(tmp_path_factory) -> str:
    """Returns a bucket with `documents/` and a prepared `corpus/`."""
    local = tmp_path_factory.mktemp("bucket")
    write_documents(local)
    bucket = ram_paths.folder(local)
    ram_paths.put(local, f"{bucket}/documents")
    settings = toy_settings(f"text:{bucket}/documents/*.txt")
    assert main(["prepare", "bert_tiny", f"{bucket}/corpus", *flags(settings)]) == 0
    return bucket


def train_flags(bucket: str, steps: int = 20) -> list[str]:
    """Returns the flags of a pre-training run with `steps` updates."""
    settings = toy_settings(f"text:{bucket}/documents/*.txt", steps)
    return ["--corpus", f"{bucket}/corpus", *flags([*settings, "training.validate_every=10"])]


@pytest.mark.slow
def test_a_pretraining_and_a_finetuning_in_a_bucket(bucket, tmp_path, refused):
    run = f"{bucket}/bert"
    assert main(["train", "bert_tiny", run, *train_flags(bucket)]) == 0
    assert [line["step"] for line in read_lines(f"{run}/metrics.jsonl")] == [10, 10, 20, 20]
    assert main(["evaluate", run, "--corpus", f"{bucket}/corpus"]) == 0
    [scores] = storage.as_path(f"{run}/scores").iterdir()
    assert "accuracy" in json.loads(storage.read_bytes(scores))

    write_toy(tmp_path)
    ram_paths.put(tmp_path, f"{bucket}/toy")
    classifier = f"{bucket}/toy-run"
    options = toy_flags(
        storage.as_path(f"{bucket}/toy"), training__max_steps=4, training__validate_every=2
    )
    assert main(["train", "finetune:sst2", classifier, *options]) == 0
    assert json.loads(storage.read_bytes(f"{classifier}/result.json"))["step"] == 4
    storage.write_atomic(f"{bucket}/in.txt", b"the good film\nthe bad film\n")
    files = ["--input", f"{bucket}/in.txt", "--output", f"{bucket}/out.txt"]
    assert main(["predict", classifier, *files]) == 0
    assert len(storage.read_bytes(f"{bucket}/out.txt").splitlines()) == 2
    missing = ["predict", classifier, "--input", f"{bucket}/nothing"]
    refused(main, missing, "--input ram://")
    # A missing file of a bucket is not created on disk.
    assert not os.path.exists("ram:")


@pytest.mark.slow
def test_a_shard_that_is_damaged_since_the_corpus_was_opened(bucket, tmp_path):
    """The run stops with an error that names the shard, and resumes once the shard is restored."""
    corpus = tmp_path / "corpus"
    for path in storage.as_path(f"{bucket}/corpus").iterdir():
        storage.write_atomic(corpus / path.name, path.read_bytes())
    [shard] = corpus.glob("train*")
    content = shard.read_bytes()
    opened = PretrainingCorpus.open(corpus)
    recipe = registry.load("bert_tiny", settings=train_flags(bucket)[3::2])
    run = PretrainingRun(tmp_path / "run", recipe, None)
    shard.write_bytes(content[: len(content) // 2])
    refuses(f"{shard} is missing or damaged", fit, run.plan_of_corpus(opened))
    shard.write_bytes(content)
    assert fit(run.plan_of_corpus(opened)).step == 20
