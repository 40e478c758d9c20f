"""Tests of user callbacks, of fakes of W&B's and MLflow's callbacks, and of traces."""

import dataclasses

import keras
import pytest

from macaron_tf.training.callbacks import Callbacks
from tests.harness import refuses
from tests.toys.training import CONFIG, run

# What the callbacks of W&B and MLflow read from a Keras model.
OWN = '''
import keras


class Tracker(keras.callbacks.Callback):
    """Keeps what it is told."""

    def __init__(self, every=1):
        super().__init__()
        self.every, self.steps, self.rounds, self.heard = every, {}, {}, []

    def on_train_begin(self, logs=None):
        self.heard.append("begin")
        self.config, lines = self.model.optimizer.get_config(), []
        self.model.summary(print_fn=lambda line, **_: lines.append(line))
        assert "toy" in lines[0]

    def on_train_batch_end(self, batch, logs=None):
        step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        if logs and step % self.every == 0:
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            self.steps[step] = {**logs, "rate": rate}

    def on_test_end(self, logs=None):
        self.heard.append(f"judged {logs['loss']:.3f}")

    def on_epoch_end(self, epoch, logs=None):
        self.rounds[epoch] = dict(logs)
        self.model.save(f"{self.model.step}.keras")

    def on_train_end(self, logs=None):
        self.heard.append("end")


class Other:
    pass
'''


@pytest.fixture
def tracker_file(tmp_path, monkeypatch):
    (tmp_path / "trackers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return f"{tmp_path}/trackers.py"


@pytest.mark.slow
def test_callbacks_hear_what_keras_would_tell(tmp_path, tracker_file):
    callbacks = Callbacks.parse([f"{tracker_file}:Tracker(every=3)"], None)
    [tracker] = callbacks.make(tmp_path / "run")
    config = dataclasses.replace(CONFIG, accumulation_steps=1)
    run(tmp_path / "run", config, callbacks=[tracker])
    # Complete at logs (every 3), saves (every 5) and ends of rounds (every 8).
    assert sorted(tracker.steps) == [3, 6, 9, 12, 15, 18]
    assert {"loss", "accuracy", "learning_rate", "rate"} <= set(tracker.steps[3])
    assert sorted(tracker.rounds) == [0, 1, 2]
    judged = [f"judged {logs['val_loss']:.3f}" for logs in tracker.rounds.values()]
    assert tracker.heard == ["begin", *judged, "end"]
    assert keras.models.load_model("16.keras").count_params() > 0
    assert tracker.config["name"]


@pytest.mark.thorough
def test_keras_own_early_stopping_ends_a_run(tmp_path):
    text = "keras.callbacks:EarlyStopping(monitor='val_loss', mode='max', patience=0)"
    callbacks = Callbacks.parse([text], None).make(tmp_path)
    result, _ = run(tmp_path, dataclasses.replace(CONFIG, validate_every=2), callbacks=callbacks)
    assert (result.step, result.reason) == (4, "callback")
    assert result.checkpoint.name == "step-00000004"


@pytest.mark.slow
def test_a_trace_of_some_updates(tmp_path, capsys):
    [trace] = Callbacks.parse([], "3:4").make(tmp_path)
    config = dataclasses.replace(CONFIG, max_steps=5)
    run(tmp_path, config, callbacks=[trace])
    assert "trace of updates 3 to 4" in capsys.readouterr().out
    assert list((tmp_path / "tensorboard/plugins/profile").glob("*/*.xplane.pb"))
    [resumed] = Callbacks.parse([], "2:9").make(tmp_path)
    run(tmp_path, dataclasses.replace(config, max_steps=7), callbacks=[resumed])
    assert "trace of updates 6 to 7 written" in capsys.readouterr().out
    [late] = Callbacks.parse([], "30:40").make(tmp_path)
    run(tmp_path, dataclasses.replace(config, max_steps=8), callbacks=[late])
    assert "made none of these updates (the run is at step 8" in capsys.readouterr().err
    [within_a_call] = Callbacks.parse([], "10:10").make(tmp_path)
    several = dataclasses.replace(config, max_steps=12, steps_per_call=4, log_every=4)
    run(tmp_path, several, callbacks=[within_a_call])
    assert "trace of updates 9 to 10 written" in capsys.readouterr().out


def test_refusals(tracker_file):
    def parsed(*calls, profile=None):
        Callbacks.parse(calls, profile).make("run")

    refuses("names no subclass of keras", parsed, f"{tracker_file}:Other")
    refuses("there is no module 'nowhere'", parsed, "nowhere:Callback")
    refuses("is not NAME or NAME", parsed, f"{tracker_file}:Tracker(3)")
    refuses("Tracker.*unexpected keyword", parsed, f"{tracker_file}:Tracker(often=3)")
    for text in ("3", "0:2", "4:3", "a:b", "1:2:3"):
        refuses(f"--profile {text} is no range", parsed, profile=text)
