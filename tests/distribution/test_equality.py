"""Training on one device, on several devices and in several processes makes equal updates."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.training.progress import read_lines
from macaron_tf.variables import declare, spec_of
from tests.harness import rejects
from tests.toys.distributed import every_row, run
from tests.toys.marks import slow
from tests.toys.numbers import number_settings
from tests.toys.pretraining import flags, prepare, toy_settings, write_documents
from tests.toys.processes import cluster, finished, started, toy, two_workers


def arrays_of(folder, worker: int | str = 0) -> dict[str, np.ndarray]:
    """Returns the arrays that `run` or `every_row` wrote into `folder`."""
    return dict(np.load(folder / f"{worker}.npz"))


def run_here(kind: str, out, **settings) -> None:
    """Trains in this process on one device."""
    run(tf.distribute.get_strategy(), kind, out, **settings)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Returns a function from (setting, worker) to the arrays of a training run.

    The setting is "one" device, "two" or "four" replicas, or "workers" for two processes. Each run
    is trained once.
    """
    root = tmp_path_factory.mktemp("equality")

    @functools.cache
    def train(name):
        out = root / name
        if name == "one":
            run_here("toy", out)
        elif name == "workers":
            for process in two_workers([f"toy:{out}:per_call=3"]):
                finished(process)
        else:
            replicas, settings = {"two": ("2", "per_call=5"), "four": ("4", "")}[name]
            finished(toy([f"toy:{out}:{settings}", f"rows:{out}"], "--replicas", replicas))
        return out

    return lambda name, worker=0: arrays_of(train(name), worker)


CASES = [("two", 0), *slow(("four", 0), ("workers", 0), ("workers", 1))]
REPLICAS = ["two", *slow("four")]


@pytest.mark.parametrize(("name", "worker"), CASES)
def test_twenty_updates_equal_those_of_one_device(results, name, worker):
    one, other = results("one"), results(name, worker)
    np.testing.assert_allclose(other["losses"], one["losses"], atol=1e-6)
    weights = [key for key in one if key.endswith("/0")]
    assert len(weights) > 4
    for key in weights:
        np.testing.assert_allclose(other[key], one[key], atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", REPLICAS)
def test_an_objective_that_counts_rows_counts_those_of_the_data(results, name, tmp_path):
    """Metrics count each row once, although the rows do not split evenly among replicas."""
    every_row(tf.distribute.get_strategy(), tmp_path)
    one, several = arrays_of(tmp_path, "rows"), results(name, "rows")
    assert one.keys() == several.keys()
    for key, expected in one.items():
        np.testing.assert_allclose(several[key], expected, atol=1e-6, err_msg=key)
        if key.endswith("tokens"):
            np.testing.assert_allclose(several[key], 7 / 3, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", REPLICAS)
def test_replicas_are_the_same_to_the_bit(results, name):
    found = results(name)
    places = {key.partition("/")[2] for key in found if key.partition("/")[0].isdigit()}
    assert len(places) == {"two": 2, "four": 4}[name]
    for key, copy in found.items():
        if key.partition("/")[0].isdigit():
            np.testing.assert_array_equal(copy, found[f"{key.partition('/')[0]}/0"])


@pytest.mark.slow
def test_workers_are_the_same_to_the_bit(results):
    other = results("workers", 1)
    for key, copy in results("workers").items():
        np.testing.assert_array_equal(copy, other[key])


@pytest.mark.slow
def test_two_replicas_have_the_same_first_stage(tmp_path):
    for steps in (1, 10, 14):
        run_here("toy", tmp_path / str(steps), per_call=4, first=10, steps=steps)
    finished(toy([f"toy:{tmp_path / 'both'}:per_call=4,first=10,steps=14"], "--replicas", "2"))
    one, ten, more, both = (arrays_of(tmp_path / name) for name in ("1", "10", "14", "both"))
    weights = [key for key in one if key.endswith("/0")]
    for place, key in enumerate(weights):
        trained_first = place >= len(weights) - 2
        assert np.array_equal(one[key], ten[key]) != trained_first, key
        assert not np.array_equal(ten[key], more[key]), key
        np.testing.assert_allclose(both[key], more[key], atol=1e-6, err_msg=key)


@pytest.mark.slow
def test_two_replicas_equal_one_with_other_optimizers_and_resume_to_the_bit(tmp_path):
    names = ("adafactor", "muon")
    jobs = [f"toy:{tmp_path / name}:optimizer={name}" for name in names]
    whole, parts = (
        f"toy:{tmp_path / name}:optimizer=adafactor,dropout=0.1,per_call=4"
        for name in ("whole", "parts")
    )
    said = finished(toy([*jobs, whole, f"{parts},steps=10", parts], "--replicas", "2"))
    assert "resuming after step 10" in said
    for key, array in arrays_of(tmp_path / "whole").items():
        np.testing.assert_array_equal(array, arrays_of(tmp_path / "parts")[key], err_msg=key)
    metrics = [tmp_path / name / "run" / "metrics.jsonl" for name in ("whole", "parts")]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()
    for name in names:
        run_here("toy", tmp_path / "one" / name, optimizer=name)
        two = arrays_of(tmp_path / name)
        for key, array in arrays_of(tmp_path / "one" / name).items():
            np.testing.assert_allclose(array, two[key], atol=1e-5, err_msg=key)


@pytest.mark.slow
def test_a_nan_in_one_replica_is_skipped_and_counted_by_all(tmp_path):
    run_here("poisoned", tmp_path / "one", per_call=2)
    finished(toy([f"poisoned:{tmp_path / 'two'}:per_call=2"], "--replicas", "2"))
    two = arrays_of(tmp_path / "two")
    for key, array in arrays_of(tmp_path / "one").items():
        assert np.isfinite(array).all(), key
        np.testing.assert_allclose(two[key], array, atol=1e-6, err_msg=key)
        if key.endswith("/0"):
            np.testing.assert_array_equal(two[key], two[key.replace("/0", "/1")])
    for name in ("one", "two"):
        lines = read_lines(tmp_path / name / "run" / "metrics.jsonl")
        skipped = {line["step"]: line["skipped"] for line in lines if "skipped" in line}
        assert {step: count for step, count in skipped.items() if count} == {10: 1.0}


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
    words = words_of("bert_tiny", tmp_path, "data.rows_per_shard=10")
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


def test_axes_must_name_each_dimension():
    kernel = keras.Variable([[1.0, 2.0]], name="kernel")
    rejects(r"must name .* dimensions of kernel", declare, kernel, ("embed",))
    assert spec_of(kernel).axes == (None, None)
