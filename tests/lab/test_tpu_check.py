"""Tests of the TPU check: HLO parser, arithmetic, exit statuses, and a real check with libtpu."""

import json
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from experiments import registry
from experiments.lab.tpu_check import check, chips, compiler, slices, step
from experiments.lab.tpu_check.__main__ import main
from experiments.lab.tpu_check.cycles import collectives, estimate
from macaron_tf.objectives import MaskedLanguageObjective
from tests.harness import refuses, rejects
from tests.toys.pretraining import flags, toy_settings

TINY = ["bert_tiny", "--compilations", "1", *flags(toy_settings("text:none"))]
SMALL = [*TINY, "--set", "model.num_layers=1"]


def noted(cycles: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'


# A forward loop with 7 trips (0, 2, ... below 13), a gradient's loop whose bound is the forward
# counter's last value (14 trips by 1), and a conditional optimizer step.
MODULE = f"""HloModule step, entry_computation_layout={{()->f32[8]}}

%forward_body (p: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %p = (s32[]{{:T(128)}}, f32[8]{{0:T(8,128)(2,1)S(3)}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%p), index=0
  %two = s32[]{{:T(128)}} constant(2)
  %next = s32[]{{:T(128)}} add(%i, %two)
  %c = f32[8]{{0:T(8,128)}} get-tuple-element(%p), index=1
  %f = f32[8]{{0:T(8,128)}} fusion(%c), kind=kLoop, calls=%fused, {noted(100)}
  ROOT %out = (s32[]{{:T(128)}}, /*index=1*/f32[8]{{0}}) tuple(%next, /*index=1*/%f)
}}

%forward_condition (p.1: (s32[], f32[8])) -> pred[] {{
  %p.1 = (s32[], f32[8]{{0}}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %n = s32[] constant(13)
  ROOT %less = pred[] compare(%n, %i.1), direction=GT, {noted(1)}
}}

%backward_body (q: (s32[], s32[], f32[8])) -> (s32[], s32[], f32[8]) {{
  %q = (s32[], s32[], f32[8]{{0}}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %one = s32[] constant(1)
  %j.1 = s32[] copy(%j)
  %next.1 = s32[] add(%j.1, %one)
  %bound = s32[] get-tuple-element(%q), index=1
  %g = f32[8]{{0}} get-tuple-element(%q), index=2
  %f.1 = f32[8]{{0}} fusion(%g), kind=kLoop, calls=%fused, {noted(10)}
  ROOT %out.1 = (s32[], s32[], f32[8]{{0}}) tuple(%next.1, %bound, %f.1)
}}

%backward_condition (q.1: (s32[], s32[], f32[8])) -> pred[] {{
  %q.1 = (s32[], s32[], f32[8]{{0}}) parameter(0)
  %j.2 = s32[] get-tuple-element(%q.1), index=0
  %bound.1 = s32[] get-tuple-element(%q.1), index=1
  ROOT %less.1 = pred[] compare(%j.2, %bound.1), direction=LT
}}

%taken (r: f32[8]) -> f32[8] {{
  %r = f32[8]{{0}} parameter(0)
  ROOT %adam = f32[8]{{0}} fusion(%r), kind=kLoop, calls=%fused, {noted(5000)}
}}

%skipped (s: f32[8]) -> f32[8] {{
  ROOT %s = f32[8]{{0}} parameter(0)
}}

%fused (t: f32[8]) -> f32[8] {{
  %t = f32[8]{{0}} parameter(0)
  ROOT %cost = f32[8]{{0}} multiply(%t, %t), {noted(999999)}
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %zero = s32[] constant(0)
  %start = s32[] copy(%zero)
  %state = (s32[], f32[8]{{0}}) tuple(%start, %x)
  %while = (s32[], f32[8]{{0}}) while(%state), condition=%forward_condition, body=%forward_body, \
metadata={{op_name="scan/while"}}
  %count = s32[] get-tuple-element(%while), index=0
  %y = f32[8]{{0}} get-tuple-element(%while), index=1
  %state.1 = (s32[], s32[], f32[8]{{0}}) tuple(%start, %count, %y)
  %while.1 = (s32[], s32[], f32[8]{{0}}) while(%state.1), condition=%backward_condition, \
body=%backward_body, metadata={{op_name="gradient_tape/scan/while"}}
  %z = f32[8]{{0}} get-tuple-element(%while.1), index=2
  %unknown = f32[8]{{0}} custom-call(%z), {noted(2**63 - 1)}
  %copied = f32[8]{{0}} copy(%z), {noted(7)}
  %healthy = pred[] constant(true)
  ROOT %done = f32[8]{{0}} conditional(%healthy, %copied, %copied), true_computation=%taken, \
false_computation=%skipped, {noted(1)}
}}
"""


def test_loops_count_as_often_as_they_run():
    found = estimate(MODULE)
    forward, backward = found.loops
    assert (forward.name, forward.trips, forward.cycles) == ("scan/while", 7, 101)
    assert (backward.trips, backward.cycles) == (14, 10)
    assert found.loop_cycles == 7 * 101 + 14 * 10
    # The most expensive branch counts, and a fusion's body does not. The compiler's "unknown" is no
    # number.
    assert found.by_opcode == {"fusion": 5000, "copy": 7}
    assert found.cycles == found.loop_cycles + 5007


@pytest.mark.parametrize(
    ("old", "new", "trips", "cycles"),
    [
        # An annotated count takes precedence. The gradient's loop runs up to where the forward loop
        # ended.
        ('metadata={op_name="scan', 'known_trip_count={"n":"5"}, metadata={op_name="scan', 5, 605),
        # A loop of unknown length, or a loop that depends on that length, is counted once.
        ("%n = s32[] constant(13)", "%n = s32[] parameter(1)", None, 101 + 10),
    ],
)
def test_trips_are_noted_or_unknown(old, new, trips, cycles):
    found = estimate(MODULE.replace(old, new))
    assert found.loops[0].trips == trips and found.loop_cycles == cycles
    assert found.loops[1].trips == (trips and 2 * trips)


def test_the_bytes_of_collectives_are_read_from_their_results():
    text = """
  %all-reduce.1 = (f32[8,128]{1,0:T(8,128)}, bf16[16]{0}) all-reduce(%a, %b), channel_id=1
  %start = (bf16[4,8]{1,0}, bf16[16,8]{1,0}, u32[]{:S(2)}) all-gather-start(%c), dimensions={0}
  %done = bf16[16,8]{1,0} all-gather-done(%start)
  %fused = f32[2]{0} fusion(%d), kind=kCustom, calls=%all-reduce-scatter
  ROOT %scattered = pred[32]{0} reduce-scatter(%e), dimensions={0}
"""
    expected = {"all-reduce": 4 * 8 * 128 + 2 * 16, "all-gather": 2 * 16 * 8, "reduce-scatter": 32}
    assert collectives(text) == expected


def test_text_without_estimates_is_refused():
    rejects("not an HLO module", estimate, "HloModule nothing")


@pytest.mark.parametrize(("name", "clock"), [("v4", 1.05), ("v5e", 1.50), ("v5p", 1.75)])
def test_the_clocks_follow_from_the_peaks(name, clock):
    assert chips.CHIPS[name].clock_ghz == pytest.approx(clock, abs=0.005)


def memory(temporaries: int, fixed: int = 100) -> dict:
    parts = {"arguments": fixed, "outputs": 10, "aliased": 10, "code": 0}
    return {"memory": {**parts, "temporaries": temporaries}}


@pytest.mark.parametrize("first", [8, 64, 512])
def test_the_search_ends_at_the_largest_batch(first):
    def compiled(rows: int) -> dict:
        need = 10 * rows + 50  # gradients add a constant: not quite proportional
        return memory(need) if need + 100 <= 2500 else {"error": "x", "memory_needed": need + 100}

    found = compiler.search(compiled, first, limit=2500, compilations=5)
    assert next(iter(found)) == first
    assert max(rows for rows in found if compiler.fits(found[rows], 2500)) == 232  # of 235
    assert len(compiler.search(compiled, first, 2500, compilations=1)) == 1
    # Another error ends the search.
    found = compiler.search(lambda rows: {"error": "no such op"}, 8, limit=2500, compilations=5)
    assert list(found) == [8]


class NoSources:
    def of(self, name: str) -> str:
        return f"model.py:1 in call: {name}"


def row_of(result: dict, recipe: str = "bert_tiny") -> dict:
    traced = step.Traced(b"", sources=NoSources())
    return check.row(recipe, "v4:2x2x1", (32, 128), 1000, traced, {32: result})


GOOD = memory(2**30) | {
    "dynamic": [],
    "cycles": {"cycles": 1_049_000, "loop_cycles": 0, "by_opcode": {}, "loops": []},
}


def test_cycles_become_time_and_tokens():
    row = row_of(GOOD)
    assert row["ok"] and row["milliseconds"] == pytest.approx(1.0, rel=1e-3)
    assert row["tokens_a_second"] == pytest.approx(32 * 128 / 1e-3, rel=1e-3)
    slower = row_of(
        GOOD | {"cycles": {**GOOD["cycles"], "cycles": 2 * 1_049_000, "loop_cycles": 1_049_000}},
        "swish_rnn_tiny",
    )
    lines = check.table([row, slower]).splitlines()
    times = [line.split(" | ")[-5] for line in lines[2:]]  # before the columns of compilations
    assert times == ["1.00", "2.00"]
    assert "| 50% |" in lines[3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dynamic": ["Where"]}, "a shape depends on values: Where\n    model.py:1 in call: Where"),
        (memory(17 * 2**30), "17.00 GiB needed, 15.25 GiB available"),
        ({"cores_a_chip": 1}, "cores per chip is 1 in libtpu, but 2 in chips.py"),
        (
            {"cycles": {**GOOD["cycles"], "loops": [{"name": "w", "trips": None, "cycles": 1}]}},
            "a loop has an unknown number of iterations",
        ),
    ],
)
def test_what_fails_a_recipe_is_said(change, said):
    row = row_of(GOOD | change)
    assert not row["ok"] and said in check.problems([row])


def test_the_compilers_refusal_is_said_with_its_op():
    row = row_of({"error": "unsupported", "error_ops": ["a/Where"], "dynamic": []})
    assert "unsupported: a/Where\n    model.py:1" in check.problems([row])
    said = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (17.50G) exceeds available HBM (15.25G). HLO module: x.134.\nSee more"
    )
    refusal = compiler._refusal(said)
    assert refusal["memory_needed"] == int(17.5 * 2**30)
    assert refusal["error"] == "out of memory: 17.50G needed, 15.25G available"


def test_what_the_bridge_cannot_take_is_read_from_its_message():
    constant = "Failed getting HLO text: 'Input 1 to node `range` with op Range must be a \
compile-time constant.\n\n\t [[{{node while/range}}]]\n\ttf2xla'"
    said = "Input 1 to node `range` with op Range must be a compile-time constant."
    assert step.refused(constant) == [(said, "while/range")]


def test_results_are_merged_by_what_they_are_about():
    old, other = row_of(GOOD), row_of(GOOD, "other")
    facts = {"options": ["--compilations", "1"], "versions": {"jax": "1"}}
    text = check.as_json([old, other], facts)
    new = row_of(GOOD | {"dynamic": ["Where"]})
    assert check.merged([new], text, "x.json") == [new, json.loads(json.dumps(other))]
    assert json.loads(text)["rows"][0]["ok"] is True
    command = "bert_tiny other --topology v4:2x2x1 --compilations 1"
    assert json.loads(text)["command"] == f"python -m experiments.lab.tpu_check {command}"
    assert "| bert_tiny | v4:2x2x1 | yes |" in check.as_markdown([old], facts)
    refuses(r"x\.json does not contain results", check.merged, [new], "[]", "x.json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no recipe is given"),
        (
            ["bert_tiny", "--topology", "v9:2x2"],
            "the topology v9:2x2 names the TPU generation 'v9', which tpu_check does not support",
        ),
        (["bert_tiny", "--topology", "v4"], "the topology v4 is not a TPU topology: write a chip"),
        (["bert_tiny", "--batch", "0"], "--batch 0 is not valid: give a whole number"),
        (["no_such"], "no recipe is called 'no_such'"),
        (["bert_tiny", "--set", "model.no=1"], "names an unknown setting, 'no'"),
        (["wmt14_macaron_base", "--batch", "8"], "a batch of 8 tokens cannot hold a sequence"),
    ],
)
def test_wrong_usage_exits_with_2(pretended, refused, arguments, said):
    refused(main, arguments, said)


def test_a_missing_compiler_is_one_sentence(refused, monkeypatch):
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    refused(main, ["bert_tiny"], "experiments/lab/tpu_check/requirements.txt")


def test_the_list_needs_no_compiler(capsys):
    assert main(["--list"]) == 0
    assert "v4:2x2x1   2 cores per chip, 15.25 GiB and 1.05 GHz per core" in capsys.readouterr().out


def test_make_tpu_check_leaves_no_recipe_of_a_papers_size_out():
    makefile = (pathlib.Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    words = makefile[makefile.index("TPU_RECIPES :=") : makefile.index("tpu-check: ")].split()
    known = [name for name in registry.names() if type(registry.load(name)) in step._STEPS]
    small = ("_tiny", "demo", "_quick")
    missing = {n for n in known if not n.endswith(small) and not n.startswith("tcn")} - set(words)
    assert not missing


def test_the_slices_of_a_model_follow_from_its_bytes(capsys, monkeypatch, tmp_path):
    # 12 layers with L D (34 + 5 H L / D) bytes, embeddings, and 77 rows of logits.
    row = slices.activations(slices.catalog.config("bert_base"))
    transformer = 12 * 512 * 768 * (34 + 5 * 12 * 512 / 768)
    assert row.total == pytest.approx(transformer + 3 * 512 * 768 + 0.15 * 512 * 30_528 * 6)
    assert row.whole == pytest.approx(12 * 512 * 768 * 10 + 3 * 512 * 768)
    # 2^31 parameters with 16 bytes each need 2 cores of 16 GiB. A row adds 3 GiB, and only 1 GiB is
    # divided among the cores, so 4 cores are needed.
    assert slices.Activations(0, 0).cores(2**31, 16 * 2**30, 8) == 2
    assert slices.Activations(2 * 2**30, 2**30).cores(2**31, 16 * 2**30, 8) == 4
    assert slices.Activations(16 * 2**30, 1).cores(1, 16 * 2**30, 8) is None
    monkeypatch.setattr(slices.catalog, "names", lambda: ["t5_tiny", "tcn_adding"])
    assert main(["--slices"]) == 0
    out = capsys.readouterr().out
    assert "| t5_tiny | 2,206,080 | 0.03 | 512 + 114 | " in out
    assert "| v4-8 | v4-8, M = 1 | v5litepod-1 | v5litepod-1, M = 1 |" in out
    assert main(["--slices", "--markdown", str(tmp_path / "s.md")]) == 0
    assert (tmp_path / "s.md").read_text() == out


@pytest.fixture
def pretended(monkeypatch):
    """Replaces the TPU compiler with a fake compiler that reports no problem."""
    monkeypatch.setattr(compiler, "check_installed", lambda: None)
    monkeypatch.setattr(check, "_PACKAGES", ("keras",))
    monkeypatch.setattr(compiler, "compile_step", lambda *_: GOOD)


class Planted(MaskedLanguageObjective):
    """An objective with an op that is unsuitable for a TPU."""

    def __call__(self, network, batch, training):
        sums = super().__call__(network, batch, training)
        kind = type(self).kind
        if kind == "string":
            text = tf.strings.as_string(sums["weight"])
            sums["text_length"] = tf.strings.length(text)
        elif kind == "dynamic":
            sums["kept"] = tf.reduce_sum(tf.boolean_mask(batch["masked_labels"], batch["masked_weights"] > 0))  # fmt: skip  # noqa: E501
        elif kind == "broken":
            tf.reshape(batch["token_ids"], [7, 7, 7])
        return sums


def plant(monkeypatch, kind: str) -> None:
    monkeypatch.setattr(Planted, "kind", kind, raising=False)
    monkeypatch.setattr(
        step.PretrainingRecipe, "make_objective", lambda recipe, **_: Planted(skip_padding=False)
    )


def test_what_does_not_fit_is_said_and_what_does_is_found(pretended, monkeypatch, capsys, tmp_path):
    results = iter([{"error": "out of memory", "memory_needed": 31 * 2**30}, GOOD])
    monkeypatch.setattr(compiler, "compile_step", lambda *_: next(results))
    file = tmp_path / "r.json"
    arguments = [*SMALL, "--batch", "32", "--compilations", "2", "--json", str(file)]
    assert main(arguments) == 1
    assert "bert_tiny on v4:2x2x1: out of memory" in capsys.readouterr().out
    row = json.loads(file.read_text())["rows"][0]
    # Half the rows nearly fit 15.25 GiB, and the next multiple of 8 below fits.
    assert row["largest_rows"] == 8 and row["tried"] == {"32": False, "8": True}


@pytest.mark.parametrize(
    ("kind", "problem", "line"),
    [
        ("string", "AsString cannot be compiled by XLA", "text = tf.strings.as_string"),
        ("broken", "tracing failed", "tf.reshape(batch["),
    ],
)
def test_an_op_that_xla_has_not_is_named_with_its_line(
    pretended, monkeypatch, capsys, kind, problem, line
):
    plant(monkeypatch, kind)
    assert main(SMALL) == 1
    out = capsys.readouterr().out
    assert problem in out and line in out and "tests/lab/test_tpu_check.py:" in out
    assert "| bert_tiny | v4:2x2x1 | NO |" in out


def test_translation_is_checked_at_its_longest_static_shape():
    translation = step.step_of("wmt14_macaron_base")
    assert translation.shape() == step.Shape(16, 256)
    assert translation.shape(8192) == step.Shape(32, 256)
    assert translation.recipe.training.dtype_policy == "mixed_bfloat16"
    assert not step.step_of("bert_tiny").build().objective.skip_padding
    pretraining = step.step_of("macaron_bert_base")
    specs = pretraining.specs(pretraining.shape())
    assert specs["pair_label"].shape == (8,) and specs["masked_labels"].shape == (8, 80)


@pytest.mark.parametrize(
    ("name", "inputs", "targets", "weight"),
    [
        ("tcn_adding", (32, 600, 2), (32, 1), (32,)),
        ("tcn_nottingham", (2, 1787, 88), (2, 1787, 88), (2, 1787)),
        ("tcn_ptb_words", (16, 80), (16, 80), (16, 80)),
        ("tcn_mnist", (64, 784, 1), (64,), (64,)),
    ],
)
def test_sequences_are_checked_at_their_longest(name, inputs, targets, weight):
    sequences = step.step_of(name)
    shape = sequences.shape()
    assert shape == step.Shape(*inputs[:2])
    found = sequences.specs(shape)
    shapes = [tuple(found[part].shape) for part in ("inputs", "targets", "weight")]
    assert shapes == [inputs, targets, weight]


_ELMO = ("vocabulary_size=50", "samples=8", "row_length=4", "model.lstm_dim=8")


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [("tcn_adding", ("model.widths=8", "batch_size=2")), ("elmo_tiny", _ELMO)],
)
def test_a_recipe_that_passes_exits_with_0(pretended, tmp_path, capsys, recipe, settings):
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    more = ["--batch", "2", "--topology", "v4:2x2x1", "--topology", "v5e:2x2", *flags(settings)]
    assert main([recipe, "--compilations", "1", *more, *files]) == 0
    assert f"| {recipe} | v5e:2x2 | yes | 2 x " in capsys.readouterr().out
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["topology"] for row in rows] == ["v4:2x2x1", "v5e:2x2"]
    assert f"| {recipe} | v4:2x2x1 |" in (tmp_path / "r.md").read_text()


def test_an_interrupted_check_goes_on(pretended, monkeypatch, tmp_path):
    file, compiled = tmp_path / "r.json", []

    def compile_step(hlo, topology, *_):
        compiled.append(topology)
        if len(compiled) == 2:
            raise ZeroDivisionError
        return GOOD

    traced, trace = {}, step.Step.trace

    def trace_once(self, model, shape):
        """Returns the trace of a shape; traces are cached, because each takes seconds."""
        if shape not in traced:
            traced[shape] = trace(self, model, shape)
        return traced[shape]

    monkeypatch.setattr(step.Step, "trace", trace_once)
    monkeypatch.setattr(compiler, "compile_step", compile_step)
    both = ["v4:2x2x1", "v5e:2x2"]
    monkeypatch.setattr(check, "commit", lambda: "abc1234")
    words = [*SMALL, "--topology", both[0], "--topology", both[1], "--json", str(file), "--resume"]
    with pytest.raises(ZeroDivisionError):
        main(words)
    rows = json.loads(file.read_text())["rows"]
    assert main(words) == 0 and compiled == [*both, "v5e:2x2"]
    after = json.loads(file.read_text())["rows"]
    assert after[:1] == rows and [row["topology"] for row in after] == both
    assert main([*words, "--markdown", str(tmp_path / "r.md")]) == 0 and len(compiled) == 3
    assert (tmp_path / "r.md").read_text().count("| bert_tiny | v") == 2
    # Other settings, compilation counts, versions or edited code are compiled again.
    assert main([*words, "--set", "model.dropout=0.2"]) == 0 and len(compiled) == 5
    assert main([*words, "--compilations", "2"]) == 0 and len(compiled) == 9
    monkeypatch.setattr(check.importlib.metadata, "version", lambda package: "9.9")
    assert main([*words, "--compilations", "2"]) == 0 and len(compiled) == 13
    monkeypatch.setattr(check, "commit", lambda: "abc1234-dirty")
    for count in (17, 21):
        assert main([*words, "--compilations", "2"]) == 0 and len(compiled) == count


def test_ops_inside_of_loops_are_found():
    @tf.function
    def looped(x):
        body = lambda i, y: (i + 1, tf.sin(y, name="planted"))  # noqa: E731
        return tf.while_loop(lambda i, y: i < 3, body, (0, x))

    graph = looped.get_concrete_function(tf.TensorSpec((4,))).graph
    found = step.Sources(graph).of("call.1/while/planted")
    assert "test_tpu_check.py:" in found and 'name="planted"' in found
    assert step.Sources(graph).of("no/such/op") is None


def test_a_tiny_recipe_passes(capsys, tmp_path):
    pytest.importorskip("libtpu")
    assert main([*TINY, "--hlo", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "| bert_tiny | v4:2x2x1 | yes | 16 x 16 |" in out
    text = next(pathlib.Path(tmp_path).iterdir()).read_text()
    assert estimate(text).cycles > 10_000


def test_the_recurrence_compiles_and_its_loops_are_counted(tmp_path):
    pytest.importorskip("libtpu")
    file = tmp_path / "r.json"
    words = ["swish_rnn_tiny", *TINY[1:], "--set", "model.num_layers=2"]
    assert main([*words, "--json", str(file)]) == 0
    loops = json.loads(file.read_text())["rows"][0]["loops"]
    # Step sizes 1 and 2 on 16 positions, four steps per trip, forward and backward.
    assert sorted(loop["trips"] for loop in loops) == [2, 2, 4, 4]


def test_a_mesh_is_compiled_for_and_its_collectives_counted(tmp_path):
    pytest.importorskip("libtpu")
    file = tmp_path / "r.json"
    words = ["--engine", "jax", "--mesh", "data=2,model=2", "--topology", "v5e:2x2"]
    command = [
        sys.executable,
        "-m",
        "experiments.lab.tpu_check",
        *TINY,
        *words,
        "--json",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(file.read_text())["rows"][0]
    assert row["mesh"] == "data=2,model=2" and row["collectives"]["all-reduce"] > 0
    assert f"| bert_tiny | v5e:2x2, {row['mesh']} | yes | 16 x 16 |" in done.stdout


def test_the_compilers_own_refusal_for_memory_is_understood(capsys):
    pytest.importorskip("libtpu")
    assert main([*TINY, "--batch", "4000000"]) == 1
    assert "out of memory: " in capsys.readouterr().out


def test_random_bits_are_drawn_as_a_tpu_draws_them():
    pytest.importorskip("libtpu")

    @tf.function(jit_compile=True)
    def dropped(x, seed):
        return tf.nn.experimental.stateless_dropout(x, 0.1, seed=seed)

    specs = tf.TensorSpec((4096, 512)), tf.TensorSpec((2,), tf.int32)
    hlo = dropped.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    found = compiler.compile_step(hlo, "v4:2x2x1")
    # A CPU's algorithm, Philox, takes ten times as many cycles here, most of them copies.
    assert found["cycles"]["cycles"] < 500_000 and "copy" not in found["cycles"]["by_opcode"]


def test_a_shape_that_depends_on_values_is_named_with_its_line(monkeypatch, capsys):
    pytest.importorskip("libtpu")
    plant(monkeypatch, "dynamic")
    assert main(TINY) == 1
    out = capsys.readouterr().out
    assert "a shape depends on values: boolean_mask" in out
    assert "test_tpu_check.py:" in out and "tf.boolean_mask(" in out
