"""Tests of workers that train over gRPC; `tests/experiments/test_killed.py` kills some of them."""

import pytest

from macaron_tf.training.progress import read_lines
from tests.toys.numbers import number_settings
from tests.toys.pretraining import flags, prepare, toy_settings, write_documents
from tests.toys.processes import cluster, finished, started

EACH = ["training.log_every=1", "training.warmup_steps=1"]


def losses(run, words: list[str], steps: int, workers: int = 2, more=()) -> list[float]:
    """Trains or resumes a run with `macaron train`; returns the training losses.

    Args:
        run: folder of the run, which is resumed if it exists.
        words: recipe and flags of a new run.
        steps: number of updates.
        workers: 2 processes, or 1 process with a mirrored strategy.
        more: flags of a new or resumed run.
    """
    name, *given = words
    given = ["--resume", str(run)] if run.exists() else [name, str(run), *given]
    given += [*flags([f"training.max_steps={steps}"]), *more]
    given += ["--strategy", "multi_worker" if workers == 2 else "mirrored"]
    configs = cluster(2) if workers == 2 else ["{}"]
    command = ["-m", "macaron_tf", "train", *given]
    for process in [started(command, TF_CONFIG=config) for config in configs]:
        finished(process)
    lines = read_lines(run / "metrics.jsonl")
    return [line["loss"] for line in lines if line["kind"] == "train"]


def words_of(recipe: str, folder, *changes: str) -> list[str]:
    """Prepares a corpus in a folder; returns the recipe and flags of a run on it."""
    settings = [*toy_settings(write_documents(folder)), *EACH, "training.schedule=constant"]
    settings += changes
    corpus = prepare(recipe, str(folder / "corpus"), settings)
    return [recipe, "--corpus", corpus, *flags(settings)]


@pytest.mark.slow
def test_each_reads_its_own_shards(tmp_path):
    """With --own-shards, a run of two workers that was resumed has the losses of a whole one."""
    words = words_of("bert_tiny", tmp_path, "corpus.rows_per_shard=10")
    own = ["--own-shards"]
    expected = losses(tmp_path / "whole", words, 6, more=own)
    losses(tmp_path / "parts", words, 3, more=own)
    assert len(expected) == 6 and losses(tmp_path / "parts", words, 6, more=own) == expected


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["transformer_xl_tiny", "xlnet_tiny"])
def test_the_memory_of_texts_goes_on_with_either_number_of_workers(tmp_path, recipe):
    """Models with memory have equal losses on two replicas in one process and in two processes.

    Two processes can also resume the run of one process.
    """
    words = words_of(recipe, tmp_path, "objective.memory_length=8")
    expected = losses(tmp_path / "one", words, 6, workers=1)
    assert len(expected) == 6 and expected[-1] != expected[0]
    assert losses(tmp_path / "two", words, 6) == pytest.approx(expected, rel=1e-5)
    losses(tmp_path / "both", words, 3, workers=1)
    assert losses(tmp_path / "both", words, 6) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_two_workers_translate_as_one_process_does(number_text, tmp_path):
    settings = [*number_settings(number_text, 6), *EACH, "training.validate_every=6"]
    words = ["multi30k_macaron_tiny", *flags(settings)]
    expected = losses(tmp_path / "one", words, 6, workers=1)
    assert len(expected) == 6 and expected[-1] != expected[0]
    assert losses(tmp_path / "two", words, 6) == pytest.approx(expected, rel=1e-5)
