"""Tests of workers that stop or die while they train over gRPC."""

import signal
import time

import pytest

from macaron_tf.training.checkpoints import CheckpointDirectory
from macaron_tf.training.progress import read_lines
from tests.toys import processes
from tests.toys.numbers import number_settings
from tests.toys.pretraining import flags, toy_settings, write_documents


def in_training(out):
    """Starts two workers, and waits until they have saved two checkpoints of a long run."""
    workers = processes.two_workers([f"translation:{out}:steps=100000"])
    until = time.monotonic() + 300
    while len(CheckpointDirectory(out / "run").steps()) < 2:
        assert time.monotonic() < until and workers[0].poll() is None, workers[0].communicate()[0]
        time.sleep(0.2)
    return workers


@pytest.mark.slow
def test_one_that_is_told_to_stop_stops_all(tmp_path):
    workers = in_training(tmp_path)
    workers[1].send_signal(signal.SIGTERM)
    outputs = [worker.communicate(timeout=200)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [143, 143], outputs
    step = max(CheckpointDirectory(tmp_path / "run").steps())
    assert all(f"step {step} is saved" in output for output in outputs), outputs


@pytest.mark.slow
def test_one_that_dies_is_one_sentence_for_the_other(tmp_path):
    workers = in_training(tmp_path)
    workers[1].kill()
    output = workers[0].communicate(timeout=200)[0]
    assert workers[0].returncode != 0
    assert "worker 0 lost another worker" in output
    assert "start all again" in output
    workers[1].communicate()


@pytest.mark.slow
def test_each_reads_its_own_shards(tmp_path):
    """With --own-shards, a run of two workers that was resumed has the losses of a whole one."""
    settings = toy_settings(write_documents(tmp_path))
    settings += ["corpus.rows_per_shard=10", "training.schedule=constant"]
    settings += ["training.warmup_steps=1", "training.log_every=1"]
    corpus = ["--corpus", str(tmp_path / "corpus")]
    macaron, given = ["-m", "macaron_tf"], flags(settings)
    processes.finished(processes.started([*macaron, "prepare", "bert_tiny", corpus[1], *given]))

    def train(name, steps, resumed=False):
        out = str(tmp_path / name)
        words = ["--resume", out] if resumed else ["bert_tiny", out, *corpus, *given]
        words += [*flags([f"training.max_steps={steps}"]), "--strategy", "multi_worker"]
        command = [*macaron, "train", *words, "--own-shards"]
        workers = [processes.started(command, TF_CONFIG=c) for c in processes.cluster_of_two()]
        for worker in workers:
            processes.finished(worker)
        lines = read_lines(tmp_path / name / "metrics.jsonl")
        return [line["loss"] for line in lines if line["kind"] == "train"]

    expected = train("whole", 6)
    train("parts", 3)
    assert len(expected) == 6 and train("parts", 6, resumed=True) == expected


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["transformer_xl_tiny", "xlnet_tiny"])
def test_the_memory_of_texts_goes_on_with_either_number_of_workers(tmp_path, recipe):
    """Models with memory have equal losses on two replicas in one process and in two processes.

    Two processes can also resume the run of one process.
    """
    settings = [*toy_settings(write_documents(tmp_path)), "memory_length=8"]
    macaron, corpus = ["-m", "macaron_tf"], str(tmp_path / "corpus")
    made = processes.started([*macaron, "prepare", recipe, corpus, *flags(settings)])
    processes.finished(made)

    changes = ["training.log_every=1", "training.schedule=constant", "training.warmup_steps=1"]
    given = ["--corpus", corpus, *flags([*settings, *changes])]

    def train(name, steps, workers, resumed=False):
        out, steps = str(tmp_path / name), flags([f"training.max_steps={steps}"])
        words = ["--resume", out, *steps] if resumed else [recipe, out, *given, *steps]
        configs = processes.cluster_of_two() if workers == 2 else ["{}"]
        words += ["--strategy", *(["multi_worker"] if workers == 2 else ["mirrored"])]
        command = [*macaron, "train", *words]
        for process in [processes.started(command, TF_CONFIG=config) for config in configs]:
            processes.finished(process)
        lines = read_lines(tmp_path / name / "metrics.jsonl")
        return [line["loss"] for line in lines if line["kind"] == "train"]

    expected = train("one", 6, 1)
    assert len(expected) == 6 and expected[-1] != expected[0]
    assert train("two", 6, 2) == pytest.approx(expected, rel=1e-5)
    train("both", 3, 1)
    assert train("both", 6, 2, resumed=True) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_two_workers_translate_as_one_process_does(number_text, tmp_path):
    settings = [*number_settings(number_text, steps=6), "training.log_every=1"]
    settings += ["training.validate_every=6", "training.warmup_steps=1"]
    command = ["-m", "macaron_tf", "train", "multi30k_macaron_tiny"]

    def train(name, configs, *more):
        words = [*command, str(tmp_path / name), *flags(settings), "--strategy", *more]
        for process in [processes.started(words, TF_CONFIG=config) for config in configs]:
            processes.finished(process)
        lines = read_lines(tmp_path / name / "metrics.jsonl")
        return [line["loss"] for line in lines if line["kind"] == "train"]

    expected = train("one", ["{}"], "mirrored")
    assert len(expected) == 6 and expected[-1] != expected[0]
    two = train("two", processes.cluster_of_two(), "multi_worker")
    assert two == pytest.approx(expected, rel=1e-5)
