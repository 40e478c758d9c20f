"""Tests of workers that train over gRPC; `tests/experiments/test_killed.py` kills some of them."""

import pytest

from macaron_tf.training.progress import read_lines
from tests.toys import processes
from tests.toys.numbers import number_settings
from tests.toys.pretraining import flags, toy_settings, write_documents

MACARON = ("-m", "macaron_tf")


def losses(run, words: list[str], configs: list[str]) -> list[float]:
    """Runs `macaron train` in a process for each TF_CONFIG; returns the training losses."""
    command = [*MACARON, "train", *words]
    for process in [processes.started(command, TF_CONFIG=config) for config in configs]:
        processes.finished(process)
    lines = read_lines(run / "metrics.jsonl")
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.mark.slow
def test_each_reads_its_own_shards(tmp_path):
    """With --own-shards, a run of two workers that was resumed has the losses of a whole one."""
    settings = toy_settings(write_documents(tmp_path))
    settings += ["corpus.rows_per_shard=10", "training.schedule=constant"]
    settings += ["training.warmup_steps=1", "training.log_every=1"]
    corpus = ["--corpus", str(tmp_path / "corpus")]
    given = flags(settings)
    processes.finished(processes.started([*MACARON, "prepare", "bert_tiny", corpus[1], *given]))

    def train(name, steps, resumed=False):
        out = str(tmp_path / name)
        words = ["--resume", out] if resumed else ["bert_tiny", out, *corpus, *given]
        words += [*flags([f"training.max_steps={steps}"]), "--strategy", "multi_worker"]
        return losses(tmp_path / name, [*words, "--own-shards"], processes.cluster_of_two())

    expected = train("whole", 6)
    train("parts", 3)
    assert len(expected) == 6 and train("parts", 6, resumed=True) == expected


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["transformer_xl_tiny", "xlnet_tiny"])
def test_the_memory_of_texts_goes_on_with_either_number_of_workers(tmp_path, recipe):
    """Models with memory have equal losses on two replicas in one process and in two processes.

    Two processes can also resume the run of one process.
    """
    settings = [*toy_settings(write_documents(tmp_path)), "objective.memory_length=8"]
    corpus = str(tmp_path / "corpus")
    made = processes.started([*MACARON, "prepare", recipe, corpus, *flags(settings)])
    processes.finished(made)

    changes = ["training.log_every=1", "training.schedule=constant", "training.warmup_steps=1"]
    given = ["--corpus", corpus, *flags([*settings, *changes])]

    def train(name, steps, workers, resumed=False):
        out, steps = str(tmp_path / name), flags([f"training.max_steps={steps}"])
        words = ["--resume", out, *steps] if resumed else [recipe, out, *given, *steps]
        configs = processes.cluster_of_two() if workers == 2 else ["{}"]
        words += ["--strategy", *(["multi_worker"] if workers == 2 else ["mirrored"])]
        return losses(tmp_path / name, words, configs)

    expected = train("one", 6, 1)
    assert len(expected) == 6 and expected[-1] != expected[0]
    assert train("two", 6, 2) == pytest.approx(expected, rel=1e-5)
    train("both", 3, 1)
    assert train("both", 6, 2, resumed=True) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_two_workers_translate_as_one_process_does(number_text, tmp_path):
    settings = [*number_settings(number_text, steps=6), "training.log_every=1"]
    settings += ["training.validate_every=6", "training.warmup_steps=1"]

    def train(name, strategy, configs):
        words = ["multi30k_macaron_tiny", str(tmp_path / name), *flags(settings)]
        return losses(tmp_path / name, [*words, "--strategy", strategy], configs)

    expected = train("one", "mirrored", ["{}"])
    assert len(expected) == 6 and expected[-1] != expected[0]
    two = train("two", "multi_worker", processes.cluster_of_two())
    assert two == pytest.approx(expected, rel=1e-5)
