"""Training on one device, on several devices and in several processes makes equal updates."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.training.progress import read_lines
from tests.toys.distributed import batch_of, every_row, run
from tests.toys.marks import slow
from tests.toys.processes import finished, started, toy, two_workers


def arrays_of(folder, worker: int | str = 0) -> dict[str, np.ndarray]:
    """Returns the arrays that `run` or `every_row` wrote into `folder`."""
    return dict(np.load(folder / f"{worker}.npz"))


def run_here(kind: str, out, **settings) -> None:
    """Trains in this process on one device."""
    run(tf.distribute.get_strategy(), kind, out, **settings)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Returns a function from (setting, worker, model type) to the arrays of a training run.

    The setting is "one" device, "two" or "four" replicas, or "workers" for two processes. Each run
    is trained once.
    """
    root = tmp_path_factory.mktemp("equality")

    @functools.cache
    def train(name, kind):
        out = root / name / kind
        if name == "one":
            run_here(kind, out)
        elif name == "workers":
            for process in two_workers([f"{kind}:{out}:per_call=3"]):
                finished(process)
        else:
            replicas, settings = {"two": ("2", "per_call=5"), "four": ("4", "")}[name]
            finished(toy([f"{kind}:{out}:{settings}", f"rows:{out}"], "--replicas", replicas))
        return out

    return lambda name, worker, kind: arrays_of(train(name, kind), worker)


# Text models take long to trace and optimize, once for each replica.
CASES = [
    ("two", 0, "toy"),
    *slow(("workers", 0, "toy"), ("workers", 1, "toy"), ("two", 0, "translation")),
    *slow(*((name, 0, "pretraining") for name in ("two", "workers", "four"))),
]
TWO = ("two", "toy")
[FOUR] = slow(("four", "pretraining"))


@pytest.mark.parametrize(("name", "worker", "kind"), CASES)
def test_twenty_updates_equal_those_of_one_device(results, name, worker, kind):
    one, other = results("one", 0, kind), results(name, worker, kind)
    np.testing.assert_allclose(other["losses"], one["losses"], atol=1e-6)
    weights = [key for key in one if key.endswith("/0")]
    assert len(weights) > (4 if kind == "toy" else 20)
    for key in weights:
        mine, theirs = one[key], other[key]
        if mine.ndim == 1 and mine.shape[0] in (32, 48):
            # A key bias shifts all scores of a row equally, so its gradient is zero but for
            # rounding errors, which Adam scales up. Keys are 16 of 48 (query, key, value) or of 32
            # (key, value).
            keys = slice(16, 32) if mine.shape[0] == 48 else slice(0, 16)
            np.testing.assert_allclose(theirs[keys], mine[keys], atol=1e-4, err_msg=key)
            mine, theirs = np.delete(mine, keys), np.delete(theirs, keys)
        np.testing.assert_allclose(theirs, mine, atol=1e-6, err_msg=key)


@pytest.mark.parametrize(("name", "kind"), [TWO, FOUR])
def test_an_objective_that_counts_rows_counts_those_of_the_data(results, name, kind, tmp_path):
    """Metrics count each row once, although the rows do not split evenly among replicas."""
    every_row(tf.distribute.get_strategy(), tmp_path)
    one, several = arrays_of(tmp_path, "rows"), results(name, "rows", kind)
    assert one.keys() == several.keys()
    for key, expected in one.items():
        np.testing.assert_allclose(several[key], expected, atol=1e-6, err_msg=key)
        if key.endswith("tokens"):
            np.testing.assert_allclose(several[key], 7 / 3, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize(("name", "worker", "kind"), CASES)
def test_batches_mapped_over_replicas_come_back_in_order(results, name, worker, kind):
    alone, several = results("one", 0, kind), results(name, worker, kind)
    mapped = [key for key in alone if key.startswith("mapped ")]
    assert len(mapped) == 7  # not a multiple of 2 or 4
    for key in mapped:
        one, other = alone[key], several[key]
        first, *_ = batch_of(kind, int(key.split()[1])).values()
        assert len(one) == len(first)
        np.testing.assert_allclose(other, one, atol=1e-4)


@pytest.mark.parametrize(("name", "kind"), [TWO, FOUR])
def test_replicas_are_the_same_to_the_bit(results, name, kind):
    found = results(name, 0, kind)
    places = {key.partition("/")[2] for key in found if key.partition("/")[0].isdigit()}
    assert len(places) == {"two": 2, "four": 4}[name]
    for key, copy in found.items():
        if key.partition("/")[0].isdigit():
            np.testing.assert_array_equal(copy, found[f"{key.partition('/')[0]}/0"])


@pytest.mark.slow
def test_workers_are_the_same_to_the_bit(results):
    other = results("workers", 1, "toy")
    for key, copy in results("workers", 0, "toy").items():
        np.testing.assert_array_equal(copy, other[key])


@pytest.mark.slow
def test_two_replicas_resume_to_the_bit(tmp_path):
    settings = "dropout=0.1,per_call=4"
    jobs = [
        f"toy:{tmp_path / 'whole'}:{settings}",
        f"toy:{tmp_path / 'parts'}:{settings},steps=10",
        f"toy:{tmp_path / 'parts'}:{settings}",
    ]
    assert "resuming after step 10" in finished(toy(jobs, "--replicas", "2"))
    parts = arrays_of(tmp_path / "parts")
    for key, array in arrays_of(tmp_path / "whole").items():
        np.testing.assert_array_equal(array, parts[key], err_msg=key)
    metrics = [tmp_path / name / "run" / "metrics.jsonl" for name in ("whole", "parts")]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()


@pytest.mark.slow
def test_micro_batches_are_read_in_order_by_two_replicas_where_activations_are_recomputed():
    """Runs with rematerialization on two replicas are reproducible.

    Replicas have different dropout masks, so a swap of two micro-batches would change the losses.
    """
    shown = finished(started(["-m", "tests.toys.remat"])).splitlines()
    first, *others = [line for line in shown if line.startswith("losses ")]
    assert others == [first, first]


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
def test_other_optimizers_on_two_replicas_equal_one_and_adafactor_resumes(tmp_path):
    names = ("adafactor", "muon", "schedule_free_adamw")
    parts = f"toy:{tmp_path / 'parts'}:optimizer=adafactor"
    jobs = [f"toy:{tmp_path / name}:optimizer={name}" for name in names]
    said = finished(toy([*jobs, f"{parts},steps=10", parts], "--replicas", "2"))
    assert "resuming after step 10" in said
    for key, array in arrays_of(tmp_path / "adafactor").items():
        np.testing.assert_array_equal(array, arrays_of(tmp_path / "parts")[key], err_msg=key)
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
