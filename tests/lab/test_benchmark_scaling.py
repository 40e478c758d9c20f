import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from experiments.lab.benchmarks import scaling, workers
from experiments.lab.benchmarks.scaling import power_law, power_laws

POINT = scaling.Point(length=8, batch=2, width=64, layers=2, dropout=0.0)


def test_a_power_law_is_found_again():
    sizes = [64, 128, 256, 512]
    law = power_law(sizes, [3e-3 * size**1.5 for size in sizes])
    assert law["exponent"] == pytest.approx(1.5) and law["factor"] == pytest.approx(3e-3)
    assert law["r_squared"] == pytest.approx(1.0) and law["sizes"] == 4
    scattered = power_law(sizes, [1.0, 8.0, 2.0, 16.0])
    assert 0 < scattered["r_squared"] < 0.7


def test_the_upper_half_is_nearer_to_the_law_that_a_constant_hides():
    sizes = [1, 2, 4, 8, 16, 32]
    laws = power_laws(sizes, [100 + size**2 for size in sizes])
    assert laws["all"]["exponent"] < laws["upper half"]["exponent"] < 2
    assert laws["upper half"]["sizes"] == 3
    two = power_laws([1, 2], [1, 4])["upper half"]
    assert two["exponent"] == pytest.approx(2) and two["r_squared"] is None


def test_the_blocks_have_equal_matrices_and_the_mixers_are_theirs():
    def matrices(mixer: str) -> int:
        stack = scaling.make_stack(mixer, POINT)
        shapes = [weight.shape for weight in stack.trainable_variables]
        # The relative bias has 32 rows.
        return sum(np.prod(shape) for shape in shapes if len(shape) == 2 and shape[0] != 32)

    bert, swish, attention, recurrence = map(matrices, scaling.MIXERS)
    assert bert == swish == attention + recurrence
    assert attention == 2 * 4 * 64 * 64


@pytest.mark.parametrize("mixer", [*scaling.MIXERS, "gmlp", "tokens/2, channels, tokens/2 again"])
def test_a_step_gives_the_gradient_of_every_weight(mixer):
    y, gradients = scaling.make_step(mixer, POINT)()
    weights = scaling.make_stack(mixer, POINT).trainable_variables
    assert np.isfinite(y) and len(gradients) == 1 + len(weights)
    for weight, gradient in zip(weights, gradients[1:], strict=True):
        assert gradient.shape == weight.shape and float(tf.reduce_max(tf.abs(gradient))) > 0


_PEAK = """
import numpy as np
from experiments.lab.benchmarks.workers import peak_of

def work():
    for _ in range(3):
        a, b = (np.ones(4 << 20) for _ in range(2))  # 32 MiB each
        del a, b

work()
print(peak_of(work))
"""


def test_a_peak_is_what_lived_at_once():
    """The measured peak is the maximum number of bytes allocated at the same time.

    A separate process measures the peak, because other threads allocate memory in this process.
    """
    if not workers.CLEAR_REFS.exists():
        pytest.skip("no /proc/self/clear_refs")
    environment = {**os.environ, **workers.RETURN_MEMORY}
    found = subprocess.run(
        [sys.executable, "-c", _PEAK], env=environment, check=True, capture_output=True, text=True
    )
    np.testing.assert_allclose(int(found.stdout), 64 << 20, rtol=0.1)


@pytest.mark.slow
def test_memory_of_the_recurrence_grows_with_l():
    works = [(scaling.Point(length, 2, 64, 1), "recurrence alone") for length in (256, 1024)]
    small, large = scaling.peaks(works, 1)
    assert 3 < large / small < 5


def test_points_of_an_axis_are_rising_and_keep_the_rest():
    options = scaling.command.parse_args(
        ["--axes", "L", "D", "--lengths", "64", "16", "--tokens", "128"]
    )
    points = scaling.axis_points(options)
    assert [(p.length, p.batch) for p in points["L"]] == [(16, 8), (64, 2)]
    assert [p.width for p in points["D"]] == [64, 128, 256] and len(points) == 2


def test_the_report_has_every_point_and_exponent(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scaling, "make_step", lambda mixer, point: lambda: sum(range(point.tokens)))
    monkeypatch.setattr(scaling, "peaks", lambda works, threads: [p.length << 20 for p, _ in works])
    measure = scaling.measure

    def squares(*given) -> list[dict]:
        return [{**row, "milliseconds": [row["at"] ** 2] * 3} for row in measure(*given)]

    monkeypatch.setattr(scaling, "measure", squares)
    monkeypatch.setattr(scaling.harness, "set_threads", lambda within: None)
    sizes = ["--axes", "L", "--lengths", "8", "4", "--batch", "1", "--width", "64"]
    sizes += ["--layers", "1", "--rounds", "1"]
    assert scaling.main([*sizes, "--out", str(tmp_path)]) == 0
    assert "L 8, SwishRNN: " in (printed := capsys.readouterr().out)
    assert "times the rate of BERT-rab" in printed
    written = json.loads((tmp_path / "results.json").read_text())
    ((setting, rows),) = written["settings"].items()
    assert setting == "L: B 1, D 64, layers 1; float32, dropout 0.1"
    assert [row["at"] for row in rows] == [4] * 4 + [8] * 4
    assert [row["mixer"] for row in rows] == 2 * list(scaling.MIXERS)
    text = (tmp_path / "README.md").read_text()
    line = "| L 4 to 8 | attention alone | 2.00 (two points) | 2.00 (two points) | 1.00 (two"
    assert line in text and f"## {setting}" in text
    assert "| ms per step | peak MiB |" in text and text.count(" | 8.0 |") == len(scaling.MIXERS)
    law = written["exponents"]["L"]["SwishRNN"]["mebibytes"]["all"]
    assert law["exponent"] == pytest.approx(1)
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_blocks_are_beside_the_transformer_at_their_length():
    def row(mixer: str, at: int, seconds: list[float], mebibytes: float) -> dict:
        sizes = {"axis": "L", "mixer": mixer, "at": at, "parameters": 1000, "name": mixer}
        times = {"seconds": seconds, "cpu_seconds": seconds, "units": 1}
        return {**sizes, **times, "mebibytes": mebibytes}

    # The ratio of the medians is 2.0 and the median of the rounds' ratios 1.5.
    rows = [row("macaron", 8, [1.5, 4.0, 6.0], 0.0), row("transformer", 8, [1.0, 2.0, 4.0], 4.0)]
    rows += [row("transformer", 16, [4.0] * 3, 8.0), row("swish_rnn", 16, [3.0] * 3, 4.0)]
    macaron, first, _, swish = scaling.compare_with_transformer({"L": rows})
    assert (first["time"], macaron["time"], swish["time"]) == ("1.00", "1.50", "0.75")
    assert (swish["L"], swish["memory"], swish["parameters"]) == ("16", "0.50", "1,000")
    assert scaling.compare_with_transformer({"L": rows[:1]}) == []


def test_quality_is_read_from_the_studies_results():
    page = (scaling.RESULTS / "slides_encoders/encoders.md").read_text()
    assert scaling.qualities("transformer")["masked loss (slides_encoders)"] in page
    found = {block: list(scaling.qualities(block).values()) for block in ("gmlp", "swish_rnn")}
    masked, biased, slides, gpt = found["gmlp"]
    assert masked == biased == gpt == "-" and float(slides) < 5
    masked, biased, slides, gpt = found["swish_rnn"]
    assert masked == slides == "-" and "±" in biased and "±" in gpt
