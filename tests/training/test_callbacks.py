"""Tests of progress and of user callbacks."""

import dataclasses
import io
import json

import keras
import pytest

from macaron_tf.training.callbacks import make_callbacks
from macaron_tf.training.progress import RunLog, TrainingBar, read_lines
from macaron_tf.training.updates import Sums, metrics_from_sums
from tests.harness import refuses
from tests.toys.training import CONFIG, run

# What the callbacks of W&B and MLflow read from a Keras model.
OWN = '''
import keras


class Tracker(keras.callbacks.Callback):
    """Keeps what it is told."""

    def __init__(self, every=1):
        super().__init__()
        self.every, self.steps, self.heard = every, {}, []

    def on_train_begin(self, logs=None):
        self.heard.append(self.model.optimizer.get_config()["name"])
        self.model.summary(print_fn=lambda line, **_: self.heard.append(line))

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        if logs and step % self.every == 0:
            self.steps[step] = {**logs, "rate": float(self.model.optimizer.learning_rate)}

    def on_test_end(self, logs=None):
        self.heard.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.heard.append(logs["val_loss"])
        self.model.save(f"{self.model.step}.keras")
'''


@pytest.fixture
def tracker_file(tmp_path, monkeypatch):
    (tmp_path / "trackers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return f"{tmp_path}/trackers.py"


@pytest.mark.slow
def test_callbacks_hear_what_keras_would_tell(tmp_path, tracker_file):
    [tracker] = make_callbacks([f"{tracker_file}:Tracker(every=3)"])
    config = dataclasses.replace(CONFIG, accumulation_steps=1)
    run(tmp_path / "run", config, callbacks=[tracker])
    # Complete at logs (every 3), saves (every 5) and ends of rounds (every 8).
    assert sorted(tracker.steps) == [3, 6, 9, 12, 15, 18]
    assert {"loss", "accuracy", "learning_rate", "rate"} <= set(tracker.steps[3])
    optimizer, *lines = tracker.heard[:-6]
    assert optimizer and "toy" in lines[0]
    judged = tracker.heard[-6:]  # after each of three rounds, its validation and its end
    assert judged[::2] == judged[1::2]
    assert keras.models.load_model("16.keras").count_params() > 0


@pytest.mark.thorough
def test_keras_own_early_stopping_ends_a_run(tmp_path):
    text = "keras.callbacks:EarlyStopping(monitor='val_loss', mode='max', patience=0)"
    callbacks = make_callbacks([text])
    result, _ = run(tmp_path, dataclasses.replace(CONFIG, validate_every=2), callbacks=callbacks)
    assert (result.step, result.reason) == (4, "callback")


def test_refusals(tracker_file):
    def parsed(call):
        make_callbacks([call])

    refuses("names no subclass of keras", parsed, "builtins:dict")
    refuses("there is no module 'nowhere'", parsed, "nowhere:Callback")
    refuses("is not NAME or NAME", parsed, f"{tracker_file}:Tracker(3)")
    refuses("Tracker.*unexpected keyword", parsed, f"{tracker_file}:Tracker(often=3)")


TIMING = {"seconds": 3725.0, "tokens_per_second": 12345.6}


def test_lines_beyond_the_restored_step_are_dropped(tmp_path):
    log = RunLog(tmp_path)
    for step in (10, 20, 30):
        log.write("train", step, {"loss": step / 10}, TIMING)
        if step == 20:
            log.write("validation", step, {"bleu": 1.0})
    log.sync()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 31, "ki')  # a kill in the middle of a line
    log = RunLog(tmp_path, 20, 10)
    # TensorFlow refuses a perplexity beyond float32 as a Python float.
    log.write("train", 30, {"loss": float("nan"), "perplexity": 1e300}, TIMING)
    log.sync()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30]
    assert json.loads(lines[-1])["loss"] is None
    assert [line["step"] for line in read_lines(tmp_path / "timing.jsonl")] == [10, 20, 30]
    assert len([*(tmp_path / "tensorboard" / "train").iterdir()]) == 2


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream: io.StringIO) -> str:
    progress = TrainingBar(2000, max_minutes=100, stream=stream)
    progress.tick(1000)
    progress.train(1000, {"loss": 2.5, "perplexity": 12.18, "skipped": 1.0}, TIMING)
    progress.validation(1000, {"bleu": 31.25}, True)
    progress.close()
    return stream.getvalue()


def test_progress_is_a_bar_in_a_terminal_and_plain_lines_elsewhere():
    first, second = shown(io.StringIO()).splitlines()
    assert first.startswith("step 1,000/2,000  loss 2.500  ppl 12.2  12k tok/s  1:02:05, 0:")
    assert "updates skipped: 1" in first
    assert second == "step 1,000  validation  bleu 31.25  (best)"
    assert second in shown(Terminal())


def test_sums_keep_the_last_learning_rate_and_the_updates_skipped_last():
    sums = Sums()
    for i in range(1, 5):
        names = ("loss_sum", "weight", "updates", "learning_rate", "skipped_in_a_row")
        sums.add(names, (0.1 * i, 3.0, 1.0, 0.5 / i, float(i == 3)))
    assert metrics_from_sums(sums.totals())["learning_rate"] == 0.5 / 4
    assert sums.totals()["skipped_in_a_row"] == 0.0
