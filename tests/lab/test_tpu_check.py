"""Tests of the TPU check: HLO parser, layouts, exit statuses, and real compilations with libtpu."""

import keras
import pytest
import tensorflow as tf
from jaxlib._hlo import hlo_module_from_text

from experiments.lab import tpu_check
from experiments.lab.tpu_check import collectives, cycles, main
from macaron_tf.layers import SwishRNN
from tests.toys.marks import slow
from tests.toys.pretraining import flags, toy_settings
from tests.toys.processes import python

TINY = flags([*toy_settings("text:none"), "model.num_layers=1"])


def noted(cycles: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'


def loop(name: str, step: int, bound: str, cycles: int) -> str:
    """Returns the body and the condition of a loop over a counter, a bound and a vector."""
    return f"""
%{name}_body (p.{name}: (s32[], s32[], f32[8])) -> (s32[], s32[], f32[8]) {{
  %p.{name} = (s32[]{{:T(128)}}, s32[], f32[8]{{0:T(8,128)(2,1)S(3)}}) parameter(0)
  %i.{name} = s32[]{{:T(128)}} get-tuple-element(%p.{name}), index=0
  %step.{name} = s32[]{{:T(128)}} constant({step})
  %copy.{name} = s32[] copy(%i.{name})
  %next.{name} = s32[]{{:T(128)}} add(%copy.{name}, %step.{name})
  %same.{name} = s32[] get-tuple-element(%p.{name}), index=1
  %c.{name} = f32[8]{{0:T(8,128)}} get-tuple-element(%p.{name}), index=2
  %f.{name} = f32[8]{{0}} fusion(%c.{name}), kind=kLoop, calls=%fused, {noted(cycles)}
  ROOT %out.{name} = (s32[], /*index=1*/s32[], f32[8]{{0}}) \
tuple(%next.{name}, %same.{name}, %f.{name})
}}

%{name}_condition (q.{name}: (s32[], s32[], f32[8])) -> pred[] {{
  %q.{name} = (s32[], s32[], f32[8]{{0}}) parameter(0)
  %j.{name} = s32[] get-tuple-element(%q.{name}), index=0
  %bound.{name} = s32[] {bound}
  ROOT %less.{name} = pred[] compare(%j.{name}, %bound.{name}), direction=LT, {noted(1)}
}}
"""


# A forward loop with 7 trips (0, 2, ... below 13), a gradient's loop whose bound is the forward
# counter's last value (14 trips by 1), and a conditional optimizer step.
MODULE = f"""HloModule step, entry_computation_layout={{()->f32[8]}}

%fused (t: f32[8]) -> f32[8] {{
  %t = f32[8]{{0}} parameter(0)
  ROOT %cost = f32[8]{{0}} multiply(%t, %t), {noted(999999)}
}}
{loop("forward", 2, "constant(13)", 100)}
{loop("backward", 1, "get-tuple-element(%q.backward), index=1", 10)}
%taken (r: f32[8]) -> f32[8] {{
  %r = f32[8]{{0}} parameter(0)
  ROOT %adam = f32[8]{{0}} fusion(%r), kind=kLoop, calls=%fused, {noted(5000)}
}}

%skipped (s: f32[8]) -> f32[8] {{
  ROOT %s = f32[8]{{0}} parameter(0)
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %zero = s32[] constant(0)
  %start = s32[] copy(%zero)
  %state = (s32[], s32[], f32[8]{{0}}) tuple(%start, %start, %x)
  %while = (s32[], s32[], f32[8]{{0}}) while(%state), condition=%forward_condition, \
body=%forward_body, metadata={{op_name="scan/while"}}
  %count = s32[] get-tuple-element(%while), index=0
  %y = f32[8]{{0}} get-tuple-element(%while), index=2
  %state.1 = (s32[], s32[], f32[8]{{0}}) tuple(%start, %count, %y)
  %while.1 = (s32[], s32[], f32[8]{{0}}) while(%state.1), condition=%backward_condition, \
body=%backward_body, metadata={{op_name="gradient_tape/scan/while"}}
  %z = f32[8]{{0}} get-tuple-element(%while.1), index=2
  %unknown = f32[8]{{0}} custom-call(%z), custom_call_target="x", {noted(2**63 - 1)}
  %copied = f32[8]{{0}} copy(%z), {noted(7)}
  %healthy = pred[] constant(true)
  ROOT %done = f32[8]{{0}} conditional(%healthy, %copied, %copied), true_computation=%taken, \
false_computation=%skipped, {noted(1)}
}}
"""


@pytest.mark.parametrize(
    ("old", "new", "in_loops", "unknown"),
    [
        ("ENTRY", "ENTRY", 7 * 101 + 14 * 11, 0),
        # A loop of unknown length, or a loop that depends on that length, counts once.
        ("constant(13)", "parameter(1)", 101 + 11, 2),
    ],
)
def test_loops_count_as_often_as_they_run(old, new, in_loops, unknown):
    found = cycles(hlo_module_from_text(MODULE.replace(old, new)))
    # The most expensive branch counts, and a fusion's body does not. The compiler's "unknown" is no
    # number.
    assert found == (in_loops + 5007, in_loops, unknown)


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bert_tiny", "--topology", "v9:2x2"], "v9:2x2 is no topology: begin with one of v4"),
        (["bert_tiny"], "libtpu is not installed: use the Python of .venv-tpu"),
    ],
)
def test_wrong_usage_exits_with_2(refused, monkeypatch, arguments, said):
    monkeypatch.setattr(tpu_check.importlib.util, "find_spec", lambda name: None)
    refused(main, arguments, said)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("macaron_bert_base", {"pair_label": (8,), "masked_labels": (8, 80)}),
        ("wmt14_macaron_base", {"source": (16, 256), "target": (16, 256)}),
        ("tcn_adding", {"inputs": (32, 600, 2), "targets": (32, 1), "weight": (32,)}),
        (
            "tcn_nottingham",
            {"inputs": (2, 1787, 88), "targets": (2, 1787, 88), "weight": (2, 1787)},
        ),
        ("tcn_ptb_words", {"inputs": (16, 80), "targets": (16, 80), "weight": (16, 80)}),
        ("tcn_mnist", {"inputs": (64, 784, 1), "targets": (64,), "weight": (64,)}),
    ],
)
def test_a_batch_has_static_shapes_of_the_longest_rows(name, shapes):
    recipe = tpu_check.load(name)
    layout = tpu_check.layout_of(recipe)
    found = tpu_check.specs_of(recipe, layout, layout.rows)
    assert {feature: tuple(found[feature].shape) for feature in shapes} == shapes
    assert all(spec.shape.is_fully_defined() for spec in found.values())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert_tiny", [*toy_settings("text:none"), "model.num_layers=1"]),
        ("tcn_adding", ["model.widths=8", "data.batch_size=2"]),
        *slow(
            ("transformer_xl_tiny", ["data.batch_size=2", "model.num_layers=1"]),
            (
                "elmo_tiny",
                [
                    "data.vocabulary_size=50",
                    "task.samples=8",
                    "data.row_length=4",
                    "model.lstm_dim=8",
                ],
            ),
        ),
    ],
)
def test_the_step_is_the_one_of_training(name, settings):
    """The features are those that the objective reads, and the step is one HLO module."""
    policy = keras.config.dtype_policy()
    recipe = tpu_check.load(name, settings)
    layout = tpu_check.layout_of(recipe)
    model = tpu_check.build(recipe, layout)
    assert recipe.training.dtype_policy == "mixed_bfloat16"
    hlo = tpu_check.trace(model, tpu_check.specs_of(recipe, layout, layout.rows))
    assert isinstance(hlo, bytes) and len(hlo) > 10_000
    keras.config.set_dtype_policy(policy)


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (["bert_tiny", *TINY], "| v5e:2x2 | 16 x 16 | yes | "),
        (
            ["bert_tiny", *TINY, "--engine", "jax", "--mesh", "data=2,model=2"],
            "| v5e:2x2, data=2,model=2 | 16 x 16 | yes | ",
        ),
    ],
)
def test_a_tiny_recipe_passes(words, row):
    pytest.importorskip("libtpu")
    shown = python("-m", "experiments.lab.tpu_check", *words)
    assert row in shown and ("all-reduce" in shown) == ("--mesh" in words)


def compiled(function, *specs: tf.TensorSpec):
    """Returns the HLO module of a TensorFlow function compiled for a TPU v4, and the problems."""
    pytest.importorskip("libtpu")
    step = tf.function(function, jit_compile=True)
    hlo = step.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    executable, problems = tpu_check.compile_step(hlo, "v4:2x2x1", 0)
    return executable.hlo_modules()[0], problems


def test_the_recurrence_compiles_and_its_loops_are_counted():
    layer = SwishRNN(32, step_size=1)
    layer.build((None, 64, 16))

    def update(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x))
        return tape.gradient(loss, layer.trainable_variables)

    found = cycles(compiled(update, tf.TensorSpec((8, 64, 16)))[0])
    assert found.unknown == 0 and 0.3 < found.in_loops / found.total < 1


def test_random_bits_are_drawn_as_a_tpu_draws_them():
    specs = tf.TensorSpec((4096, 512)), tf.TensorSpec((2,), tf.int32)
    module, _ = compiled(lambda x, s: tf.nn.experimental.stateless_dropout(x, 0.1, seed=s), *specs)
    # A CPU's algorithm, Philox, takes ten times as many cycles here, most of them copies.
    assert cycles(module).total < 500_000


def test_a_shape_that_depends_on_values_is_named():
    def kept(x):
        return tf.reduce_sum(tf.boolean_mask(x, x > 0, name="planted"))

    _, problems = compiled(kept, tf.TensorSpec((64,)))
    assert "a shape depends on values" in problems[0] and "planted" in problems[0]
