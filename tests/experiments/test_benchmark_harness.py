import itertools
import json
import subprocess
import sys

import pytest

from experiments.benchmarks.harness import benchmark_parser, interleave, machine, publish, summary
from macaron_tf.errors import UserError


def test_contenders_take_turns_after_their_warm_up():
    turns = []
    contenders = {name: lambda name=name: turns.append(name) or 5 for name in "abc"}
    samples = interleave(contenders, rounds=3, warm_up=2)
    assert "".join(turns) == "aabbcc" + "abc" + "bca" + "cab"
    assert all(len(one.seconds) == len(one.cpu_seconds) == 3 for one in samples.values())


def test_ratios_are_for_a_unit_and_paired_by_round():
    samples = interleave({"a": lambda: 10, "b": lambda: 20}, rounds=3, warm_up=1)
    samples["a"].seconds = samples["a"].cpu_seconds = [1.0, 10.0, 100.0]
    samples["b"].seconds = samples["b"].cpu_seconds = [1.0, 10.0, 100.0]
    a, b = summary(samples, "a")
    assert a["ratio"] == [1.0, 1.0, 1.0]
    assert b["ratio"] == b["cpu_ratio"] == [0.5, 0.5, 0.5]
    assert b["rate"][1] == 2.0


@pytest.mark.parametrize("flag", ["--rounds", "--warm-up"])
def test_too_few_runs_are_refused(flag):
    with pytest.raises(UserError, match=f"{flag} 0: give a whole number of 1 or more"):
        benchmark_parser("toy", "", rounds=3, warm_up=1).parse_args([flag, "0"])


def test_unequal_work_is_refused():
    units = itertools.count(1)
    with pytest.raises(UserError, match="cannot be compared"):
        interleave({"a": lambda: next(units)}, rounds=2, warm_up=1)


def test_the_report_holds_the_facts_and_every_row(tmp_path):
    samples = interleave({"one": lambda: 1, "two": lambda: 1}, rounds=2, warm_up=1)
    facts = machine(2, ("numpy", "no-such-package"))
    publish(tmp_path, "Title", facts, {"batch 1": summary(samples, "one")}, "tokens")
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["machine"]["threads"] == 2
    assert set(written["machine"]["versions"]) == {"python", "numpy"}
    assert [row["name"] for row in written["settings"]["batch 1"]] == ["one", "two"]
    text = (tmp_path / "README.md").read_text()
    assert "| one |" in text and "## batch 1" in text and "2 threads each" in text
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".tmp-*"))


def test_missing_peers_and_bad_options_are_one_sentence():
    from experiments.benchmarks import decoding, prompts

    with pytest.raises(UserError, match="--batch-sizes 64: give 1 to 32"):
        prompts._options(["--batch-sizes", "1", "64"])
    with pytest.raises(UserError, match="come to 1025"):
        prompts._models(prompts._options(["--prompt-tokens", "993"]))
    with pytest.raises(UserError, match="--new-tokens 1"):
        decoding._options(["--new-tokens", "1"])
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from experiments.benchmarks.decoding import main\n"
        "from macaron_tf.errors import exit_on_user_error\n"
        "sys.exit(exit_on_user_error(main)([]))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stderr.strip().splitlines()[-1].startswith("error: the peers are not installed")


def test_a_recurrence_that_errs_is_not_timed():
    from experiments.benchmarks import recurrence

    arrays = recurrence._inputs((2, 6, 5), "float32", seed=1)
    runs = {
        name: recurrence.contender(implementation, jit, arrays, 1, "gelu")
        for name, (implementation, jit) in recurrence.CONTENDERS.items()
        if implementation != "native"
    }
    recurrence._check_agreement(runs, "float32")
    runs["xla"] = lambda: [1.01 * array for array in runs["loop"]()]
    with pytest.raises(UserError, match="xla differs from scan by 1.0e-02"):
        recurrence._check_agreement(runs, "float32")
