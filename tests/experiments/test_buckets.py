"""Commands whose corpus, runs and files lie in a bucket; `ram://` stands in for one."""

import json
import os
import signal

import pytest

from experiments.finetune import __main__ as finetune
from experiments.pretrain import __main__ as pretrain
from experiments.pretrain import train as pretraining_train
from experiments.run import read_kind
from macaron_tf.io import paths as storage
from macaron_tf.training.progress import read_lines
from tests import ram_paths
from tests.experiments.pretraining_toy import flags, toy_settings, write_documents
from tests.experiments.task_toys import toy_flags, write_toy


@pytest.fixture(scope="module")
def bucket(tmp_path_factory) -> str:
    """Holds `documents/`, and in `corpus/` what `prepare` made of them."""
    local = tmp_path_factory.mktemp("bucket")
    write_documents(local)
    bucket = ram_paths.folder(local)
    ram_paths.put(local, f"{bucket}/documents")
    settings = toy_settings(f"text:{bucket}/documents/*.txt")
    assert pretrain.main(["prepare", "bert_tiny", f"{bucket}/corpus", *flags(settings)]) == 0
    return bucket


def train_flags(bucket: str, steps: int = 20) -> list[str]:
    """A pre-training of `steps` updates."""
    settings = toy_settings(f"text:{bucket}/documents/*.txt", steps)
    return ["--corpus", f"{bucket}/corpus", *flags([*settings, "training.validate_every=10"])]


def test_a_pretraining_and_a_finetuning_in_a_bucket(bucket, tmp_path, capsys):
    run = f"{bucket}/bert"
    assert pretrain.main(["train", "bert_tiny", run, *train_flags(bucket)]) == 0
    assert read_kind(run) == "pretraining"
    assert [line["step"] for line in read_lines(f"{run}/metrics.jsonl")] == [10, 10, 20, 20]
    assert pretrain.main(["evaluate", run, "--corpus", f"{bucket}/corpus"]) == 0
    [scores] = storage.as_path(f"{run}/scores").iterdir()
    assert "accuracy" in json.loads(storage.read_bytes(scores))

    write_toy(tmp_path)
    ram_paths.put(tmp_path, f"{bucket}/toy")
    classifier = f"{bucket}/toy-run"
    options = toy_flags(
        storage.as_path(f"{bucket}/toy"), training__max_steps=4, training__validate_every=2
    )
    assert finetune.main(["train", "sst2", classifier, *options]) == 0
    assert json.loads(storage.read_bytes(f"{classifier}/result.json"))["step"] == 4
    storage.write_aside(f"{bucket}/in.txt", b"the good film\nthe bad film\n")
    files = ["--input", f"{bucket}/in.txt", "--output", f"{bucket}/out.txt"]
    capsys.readouterr()
    assert finetune.main(["predict", classifier, *files]) == 0
    assert len(storage.read_bytes(f"{bucket}/out.txt").splitlines()) == 2
    assert finetune.main(["predict", classifier, "--input", f"{bucket}/nothing"]) == 2
    assert "--input ram://" in capsys.readouterr().err
    # Where nothing of that name is in the bucket, nothing of it is made on the disk.
    assert not os.path.exists("ram:")


def test_sigterm_saves_and_the_same_command_goes_on(bucket, tmp_path, monkeypatch, capsys):
    command = ["train", "bert_tiny", str(tmp_path / "run"), *train_flags(bucket)]
    validation = pretraining_train.PretrainingValidation.__call__

    def terminated(self, model, step):
        if step == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        return validation(self, model, step)

    with monkeypatch.context() as patch:
        patch.setattr(pretraining_train.PretrainingValidation, "__call__", terminated)
        with pytest.raises(SystemExit) as exit_:
            pretrain.main(command)
    assert exit_.value.code == 143
    error = capsys.readouterr().err
    assert "step 10 is saved in" in error and "run the same command again" in error
    assert pretrain.main(command) == 0
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [10, 10, 20, 20]


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_shard_that_is_damaged_since_the_corpus_was_opened(bucket, tmp_path, capsys, damage):
    """The run stops with a sentence that names it; once it is restored, the run goes on."""
    corpus = tmp_path / "corpus"
    for path in storage.as_path(f"{bucket}/corpus").iterdir():
        storage.write_aside(corpus / path.name, path.read_bytes())
    [shard] = corpus.glob("train*")
    content = shard.read_bytes()
    opened = pretraining_train.PretrainingCorpus.open(corpus)
    recipe = pretraining_train.registry.load("bert_tiny", settings=train_flags(bucket)[3::2])
    if damage == "cut":
        shard.write_bytes(content[: len(content) // 2])
    else:
        shard.unlink()
    with pytest.raises(pretraining_train.UserError, match=f"{shard} is missing or damaged"):
        pretraining_train.train_recipe(recipe, tmp_path / "run", opened)
    shard.write_bytes(content)
    result = pretraining_train.train_recipe(recipe, tmp_path / "run", opened)
    assert result.step == 20
