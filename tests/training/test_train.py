import dataclasses
import os
import signal

import keras
import numpy as np
import pytest

from macaron_tf.errors import UserError
from macaron_tf.training import Interrupted, build_fit_model, train
from macaron_tf.training.checkpoints import (
    CheckpointDirectory,
    average_checkpoints,
    find_damage,
    last_checkpoints,
    weights_file,
)
from macaron_tf.training.progress import read_lines
from macaron_tf.training.state import load_network
from tests.training.training_toy import CONFIG, toy_dataset, toy_network, toy_objective

HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def judge(model, step):
    metrics = model.evaluate(toy_dataset(1000, 1003), return_dict=True, verbose=0)
    return {"loss": metrics["loss"], "samples": [f"sample of step {step}"]}


def run(run_dir, config=CONFIG, validate=judge, width=8, **kwargs):
    keras.utils.set_random_seed(config.seed)
    model = build_fit_model(toy_network(dropout=0.2, width=width), toy_objective, config)
    return train(model, toy_dataset, config, run_dir, validate, **kwargs), model


class StopAt(keras.callbacks.Callback):
    """Ends the process's part of a run after a step: by a signal, or at once like a kill."""

    def __init__(self, step, how):
        super().__init__()
        self.step, self.how = step, how

    def on_train_batch_end(self, batch, logs=None):
        if self.model.step == self.step:
            self.how()


def killed():
    raise KeyboardInterrupt("stands for kill -9: nothing is saved")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("uninterrupted")
    result, model = run(run_dir)
    return run_dir, result, model


def assert_same_run(run_dir, model, uninterrupted):
    expected_dir, _, expected = uninterrupted
    for kind in ("weights", "variables"):
        ours, theirs = getattr(model.network, kind), getattr(expected.network, kind)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=a.path)
    for a, b in zip(model.optimizer.variables, expected.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(model.ema.shadows, expected.ema.shadows, strict=True):
        np.testing.assert_array_equal(a, b)
    name = "metrics.jsonl"
    assert (run_dir / name).read_bytes() == (expected_dir / name).read_bytes()
    assert CheckpointDirectory(run_dir).best() == CheckpointDirectory(expected_dir).best()


def test_a_whole_run(uninterrupted):
    run_dir, result, model = uninterrupted
    assert (result.step, result.reason) == (20, "max_steps")
    assert model.traces == {"train": 1, "test": 1}
    assert result.checkpoint.name == "step-00000020"
    lines = read_lines(run_dir / "metrics.jsonl")
    trained = [line["step"] for line in lines if line["kind"] == "train"]
    assert trained == [3, 6, 9, 12, 15, 18, 20]
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [8, 16, 20]
    assert {"loss", "perplexity", "accuracy", "learning_rate", "gradient_norm", "tokens"} <= set(
        lines[0]
    )
    timing = read_lines(run_dir / "timing.jsonl")
    assert all(line["tokens_per_second"] > 0 for line in timing)
    assert list((run_dir / "tensorboard" / "train").glob("events*"))
    assert list((run_dir / "tensorboard" / "validation").glob("events*"))


@pytest.mark.parametrize("step", [13, 16])
def test_a_run_killed_at_a_step_goes_on_to_the_bit(tmp_path, uninterrupted, step):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, callbacks=[StopAt(step, killed)])
    _, model = run(tmp_path)
    assert_same_run(tmp_path, model, uninterrupted)


@pytest.mark.parametrize("number, step", [(signal.SIGTERM, 7), (signal.SIGINT, 16)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, uninterrupted, capsys, number, step):
    with pytest.raises(Interrupted) as error:
        run(tmp_path, callbacks=[StopAt(step, lambda: os.kill(os.getpid(), number))])
    assert error.value.code == 128 + number
    message = capsys.readouterr().err
    assert f"step {step} is saved" in message
    assert "same command" in message
    assert CheckpointDirectory(tmp_path).steps()[-1] == step
    _, model = run(tmp_path)
    assert_same_run(tmp_path, model, uninterrupted)


def test_a_signal_breaks_a_validation_off(tmp_path, uninterrupted):
    def interrupted_judge(model, step):
        if step == 16:
            os.kill(os.getpid(), signal.SIGTERM)
        return judge(model, step)

    with pytest.raises(Interrupted):
        run(tmp_path, validate=interrupted_judge)
    assert CheckpointDirectory(tmp_path).steps()[-1] == 16
    _, model = run(tmp_path)
    assert_same_run(tmp_path, model, uninterrupted)


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since(tmp_path, uninterrupted, capsys):
    run(tmp_path)
    os.truncate(tmp_path / "checkpoints" / "step-00000020" / "model.weights.h5", 100)
    _, model = run(tmp_path)
    assert "damaged" in capsys.readouterr().err
    assert_same_run(tmp_path, model, uninterrupted)
    assert find_damage(tmp_path / "checkpoints" / "step-00000020") is None


def test_a_finished_run_is_left_alone(uninterrupted):
    run_dir, _, model = uninterrupted
    before = (run_dir / "metrics.jsonl").read_bytes()
    again, same = run(run_dir)
    assert (again.step, again.reason) == (20, "max_steps")
    assert (run_dir / "metrics.jsonl").read_bytes() == before
    for a, b in zip(same.network.weights, model.network.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_evaluation_takes_the_moving_average(uninterrupted):
    _, result, model = uninterrupted
    network = toy_network()
    manifest = load_network(result.checkpoint, network, "")
    assert manifest["step"] == 20
    for weight, shadow in zip(network.weights, model.ema.shadows, strict=True):
        np.testing.assert_array_equal(weight, shadow)
    load_network(result.checkpoint, network, "", average=False)
    for weight, trained in zip(network.weights, model.network.weights, strict=True):
        np.testing.assert_array_equal(weight, trained)


def test_averaged_checkpoints(uninterrupted, tmp_path):
    run_dir, _, _ = uninterrupted
    sources = last_checkpoints(run_dir, 3)
    averaged = average_checkpoints(sources, tmp_path / "averaged")
    network, expected = toy_network(), []
    for source in sources:
        load_network(source, network, "", average=False)
        expected.append([weight.numpy().astype(np.float64) for weight in network.weights])
    manifest = load_network(averaged, network, "")
    assert manifest["averaged_steps"] == [15, 16, 20]
    for weight, values in zip(network.weights, zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(weight, np.mean(values, axis=0).astype(np.float32))
    with pytest.raises(UserError, match="9 to average"):
        last_checkpoints(run_dir, 9)
    with pytest.raises(UserError, match="at least one"):
        average_checkpoints([], tmp_path / "none")


SHORT = dataclasses.replace(
    CONFIG, max_steps=2, accumulation_steps=1, ema_decay=None, validate_every=2
)


def test_refuses_what_does_not_belong_together(tmp_path):
    one, _ = run(tmp_path / "one", SHORT, vocabulary_hash="first")
    with pytest.raises(UserError, match="another vocabulary"):
        run(tmp_path / "one", SHORT, vocabulary_hash="second")
    with pytest.raises(UserError, match="build the model it was trained as"):
        run(tmp_path / "one", SHORT, vocabulary_hash="first", width=12)
    with pytest.raises(UserError, match="ema_decay"):
        run(tmp_path / "one", dataclasses.replace(SHORT, ema_decay=0.9), vocabulary_hash="first")
    other, _ = run(tmp_path / "two", SHORT, vocabulary_hash="second")
    wide, _ = run(tmp_path / "three", SHORT, vocabulary_hash="first", width=12)
    for bad in (other, wide):
        with pytest.raises(UserError):
            average_checkpoints([one.checkpoint, bad.checkpoint], tmp_path / "averaged")
    assert not (tmp_path / "averaged").exists()
    assert weights_file(one.checkpoint).name == "model.weights.h5"


def test_early_stopping_and_the_best_checkpoint(tmp_path):
    scores = {2: 1.0, 4: 3.0, 6: 2.0, 8: float("nan"), 10: 9.0}
    config = dataclasses.replace(
        SHORT,
        max_steps=100,
        best_metric="bleu",
        best_mode="max",
        early_stopping_patience=2,
        save_every_steps=2,
        keep_last=1,
    )
    result, _ = run(tmp_path, config, validate=lambda model, step: {"bleu": scores[step]})
    assert (result.step, result.reason) == (8, "early_stopping")
    assert (result.best_step, result.best_score) == (4, 3.0)
    assert CheckpointDirectory(tmp_path).steps() == [4, 8]
    assert result.best_checkpoint == CheckpointDirectory(tmp_path).of_step(4)
    again, _ = run(tmp_path, config, validate=lambda model, step: {"bleu": scores[step]})
    assert (again.step, again.reason) == (8, "early_stopping")


def test_the_budget_of_minutes_counts_across_resumes(tmp_path):
    config = dataclasses.replace(SHORT, max_steps=10**6, validate_every=10**6, max_minutes=0.02)
    first, _ = run(tmp_path, config, validate=None)
    assert first.reason == "max_minutes"
    assert 0 < first.step < 10**6
    again, _ = run(tmp_path, config, validate=None)
    assert (again.step, again.reason) == (first.step, "max_minutes")


def test_bad_input_is_one_clear_sentence(tmp_path):
    keras.utils.set_random_seed(0)
    model = build_fit_model(toy_network(), toy_objective, SHORT)
    with pytest.raises(UserError, match="ended after step 1"):
        train(model, lambda start: toy_dataset(start, 1), SHORT, tmp_path / "a")
    with pytest.raises(UserError, match="best_metric 'bleu'"):
        run(tmp_path / "b", dataclasses.replace(SHORT, best_metric="bleu"))
    with pytest.raises(UserError, match="early_stopping_patience"):
        run(tmp_path / "c", dataclasses.replace(SHORT, early_stopping_patience=1), validate=None)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another place"):
        run(tmp_path / "file" / "d", SHORT)


def test_one_writer_at_a_time(tmp_path):
    def start_another(model, step):
        with pytest.raises(UserError, match="another process is training"):
            run(tmp_path, SHORT)
        return judge(model, step)

    run(tmp_path, SHORT, validate=start_another)


def test_handlers_are_put_back(uninterrupted):
    assert {number: signal.getsignal(number) for number in HANDLERS} == HANDLERS


@pytest.mark.parametrize("per_call", [4, 1000])
def test_several_updates_a_call_change_nothing(uninterrupted, tmp_path, per_call):
    result, model = run(tmp_path, dataclasses.replace(CONFIG, steps_per_call=per_call))
    assert result.step == CONFIG.max_steps
    assert_same_run(tmp_path, model, uninterrupted)
