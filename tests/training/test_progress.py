import io
import json

from macaron_tf.training.progress import JsonLines, TensorBoard, TrainingBar, read_lines
from macaron_tf.training.updates import Sums, metrics_from_sums

TIMING = {"seconds": 3725.0, "tokens_per_second": 12345.6}


def test_lines_beyond_the_restored_step_are_dropped(tmp_path):
    log = JsonLines(tmp_path)
    log.start(0, 0)
    for step in (10, 20, 30):
        log.train(step, {"loss": step / 10}, TIMING)
        if step == 20:
            log.validation(step, {"bleu": 1.0}, [], True)
    log.finish()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 31, "ki')  # a kill in the middle of a line
    log = JsonLines(tmp_path)
    log.start(20, 10)
    log.train(30, {"loss": float("nan")}, TIMING)
    log.finish()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30]
    assert json.loads(lines[-1])["loss"] is None
    assert [line["step"] for line in read_lines(tmp_path / "timing.jsonl")] == [10, 20, 30]


def test_tensorboard_takes_a_perplexity_beyond_float32(tmp_path):
    log = TensorBoard(tmp_path)
    log.train(10, {"perplexity": 1e300}, TIMING)
    log.finish()
    assert len([*(tmp_path / "tensorboard" / "train").iterdir()]) == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream: io.StringIO) -> str:
    progress = TrainingBar(2000, max_minutes=100, stream=stream)
    progress.start(0, 0)
    progress.tick(1000)
    progress.train(1000, {"loss": 2.5, "perplexity": 12.18, "skipped": 1.0}, TIMING)
    progress.validation(1000, {"bleu": 31.25}, ["a sample"], True)
    progress.finish()
    return stream.getvalue()


def test_progress_is_a_bar_in_a_terminal_and_plain_lines_elsewhere():
    first, second = shown(io.StringIO()).splitlines()
    assert first.startswith("step 1,000/2,000  loss 2.500  ppl 12.2  12k tok/s  1:02:05, 0:")
    assert "updates skipped: 1" in first
    assert second == "step 1,000  validation  bleu 31.25  (best)"
    assert second in shown(Terminal())


def test_a_line_of_progress_fits_80_columns():
    stream = io.StringIO()
    progress = TrainingBar(100_000, stream=stream)
    progress.start(0, 0)
    metrics = {"loss": 9.0, "perplexity": 8103.1}
    progress.train(100_000, metrics, {"seconds": 99_999.0, "tokens_per_second": 123_456.0})
    progress.finish()
    assert len(stream.getvalue().rstrip("\n")) <= 80


def test_sums_keep_the_last_learning_rate_and_the_updates_skipped_last():
    sums = Sums()
    for i in range(1, 5):
        names = ("loss_sum", "weight", "updates", "learning_rate", "skipped_in_a_row")
        sums.add(names, (0.1 * i, 3.0, 1.0, 0.5 / i, float(i == 3)))
    assert metrics_from_sums(sums.totals())["learning_rate"] == 0.5 / 4
    assert sums.totals()["skipped_in_a_row"] == 0.0


def test_a_metric_may_have_a_weight_of_its_own():
    totals = {"loss_sum": 8.0, "weight": 4.0, "nsp_sum": 1.0, "nsp_weight": 2.0, "updates": 2.0}
    metrics = metrics_from_sums(totals)
    assert metrics["loss"] == 2.0
    assert metrics["nsp"] == 0.5
    assert metrics["tokens"] == 2.0
    assert metrics_from_sums({}) == {}
