"""The checks for every layer and model, and NumPy versions of softmax and GELU."""

import contextlib
import pathlib
import re
import resource

import keras
import numpy as np
import pytest
import scipy.special
from keras import ops

from macaron_tf.errors import UserError


def refuses(message: str, function, /, *args, **options) -> str:
    """Checks that a call raises a one-line `UserError` that matches `message`; returns the text."""
    with pytest.raises(UserError, match=message) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rejects(message: str, function, /, *args, **options) -> None:
    """Checks that a call raises a `ValueError` that matches `message`."""
    with pytest.raises(ValueError, match=message):
        function(*args, **options)


@contextlib.contextmanager
def file_limit(size: int | None = None):
    """Limits the size of files, so that writing fails as on a full disk; yields a setter of it.

    The limit ends with the block, before pytest writes its output, which may go to a file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    limit(size)
    try:
        yield limit
    finally:
        limit(None)


def int8_error(matrices: int) -> float:
    """Returns the largest error of int8 in a network's outputs, in their standard deviations.

    Numbers are rounded to 127 steps up to the largest one, which is taken as 4 deviations. So
    rounding errs with a deviation of 4 / 127 / sqrt(12) = 0.009. Each matrix rounds its weights and
    its inputs, and the squares of these independent errors add up. The largest of some hundreds of
    outputs is 4 deviations off.

    The bound also holds between two computations of one int8 network: an input halfway between two
    steps may be rounded up on one processor, or in one order of summation, and down in another, and
    then everything after it is rounded anew.

    Args:
        matrices: number of matrices between inputs and outputs. Matrices side by side, such as
            those of queries, keys and values, count one by one.
    """
    return 4 * 4 / 127 / 12**0.5 * (2 * matrices) ** 0.5


def bfloat16_error(roundings: int) -> float:
    """Returns the largest error of bfloat16, as a fraction of the largest output.

    bfloat16 keeps 8 bits, so rounding to nearest errs by at most 2^-9 of a number, with a deviation
    of 2^-9 / sqrt(3). The squares of independent errors add up. The largest of some hundreds of
    outputs is 4 deviations off.

    Args:
        roundings: number of operations between inputs and outputs whose results are rounded: about
            12 for a layer of attention and a feed-forward network, and as many again where the
            processor's kernels also round sums of parts of a row, as without oneDNN. Between two
            computations in bfloat16, those of both.
    """
    return 4 * 2.0**-9 / 3**0.5 * roundings**0.5


def float32_sum_error(terms: int) -> float:
    """Returns the largest error of a float32 sum in any order, as a fraction of its largest term.

    Each of the additions errs by at most 2^-24 of the sum so far. That sum grows with the square
    root of the number of terms of mixed signs, and so does the sum of independent errors. The
    largest of some hundreds of such sums is 4 deviations off.

    Args:
        terms: number of terms, for a matrix its number of rows.
    """
    return 4 * 2.0**-24 * terms


def check_layer(layer: keras.layers.Layer, *inputs, atol: float = 0.0, **call_arguments):
    """Calls a layer and checks its contract; returns its output as a float32 NumPy array.

    The output must have the symbolic output's shape and the policy's dtype. A copy made from the
    layer's config must have an attribute for every constructor argument. With the weights of the
    layer, the copy must return the output of the layer. A mixed_bfloat16 copy must compute in
    bfloat16 with float32 weights.

    Args:
        layer: an unbuilt layer.
        inputs: input tensors of the layer.
        atol: absolute tolerance between the outputs of the layer and its copy.
        call_arguments: further keyword arguments of the call.
    """
    output = layer(*inputs, **call_arguments)
    spec = symbolic(layer, *inputs, **call_arguments)
    assert spec.shape == tuple(output.shape)
    assert layer.compute_output_shape(*(x.shape for x in inputs)) == spec.shape
    assert keras.backend.standardize_dtype(output.dtype) == spec.dtype == layer.compute_dtype

    config = layer.get_config()
    for name in set(config) - {"name", "trainable", "dtype"}:
        owner = layer if hasattr(layer, name) else layer.config  # options may be in `layer.config`
        assert hasattr(owner, name), f"argument {name} has no attribute"
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(copy) is type(layer) and copy.get_config() == config
    copy(*inputs, **call_arguments)
    copy.set_weights(layer.get_weights())
    copied = copy(*inputs, **call_arguments)
    np.testing.assert_allclose(numpy_of(copied), numpy_of(output), atol=atol)

    half = type(layer).from_config({**config, "dtype": "mixed_bfloat16"})
    half_output = half(*inputs, **call_arguments)
    assert keras.backend.standardize_dtype(half_output.dtype) == "bfloat16"
    assert all(weight.dtype == "float32" for weight in half.weights)
    return numpy_of(output)


def symbolic(layer: keras.layers.Layer, *inputs, **call_arguments):
    """Returns the symbolic output of `layer` for the shapes and dtypes of `inputs`."""
    inputs = keras.tree.map_structure(
        lambda x: keras.KerasTensor(x.shape, keras.backend.standardize_dtype(x.dtype)), inputs
    )
    return layer(*inputs, **call_arguments)


def check_checkpoint(layer: keras.layers.Layer, call, folder) -> None:
    """Checks that `tf.train.Checkpoint` saves all variables of a layer, and restores a copy.

    The copy may be restored before or after it is built.

    Args:
        layer: layer or model that is built.
        call: function from the layer or the copy to its outputs. The call builds the copy.
        folder: folder for the checkpoints.
    """
    import tensorflow as tf

    path = tf.train.Checkpoint(layer=layer).write(str(folder / "checkpoint"))
    saved = [name for name, _ in tf.train.list_variables(path) if name.endswith("_VALUE")]
    assert len(saved) == len({id(variable) for variable in layer.variables})
    for built_first in (False, True):
        copy = type(layer).from_config(layer.get_config())
        if built_first:
            call(copy)
        status = tf.train.Checkpoint(layer=copy).read(path)
        call(copy)
        status.assert_existing_objects_matched().assert_consumed()
        for ours, theirs in zip(layer.variables, copy.variables, strict=True):
            np.testing.assert_array_equal(numpy_of(theirs), numpy_of(ours), err_msg=ours.path)


def randomized(layer: keras.layers.Layer, *shapes, scale: float = 0.5) -> keras.layers.Layer:
    """Builds a layer for input shapes, and draws all its weights from N(0, `scale`²)."""
    layer.build(*shapes)
    drawn = [scale * normal(*w.shape, seed=i) for i, w in enumerate(layer.get_weights())]
    layer.set_weights(drawn)
    return layer


def built(make, *arguments, noise: float = 0.0, **options) -> keras.Model:
    """Builds a model with fixed random weights.

    With `noise`, Gaussian noise is added to all weights, so that no bias is 0 and no scale is 1.
    """
    keras.utils.set_random_seed(1)
    model = make(*arguments, **options)
    model.build()
    if noise:
        drawn = [w + noise * normal(*w.shape, seed=i) for i, w in enumerate(model.get_weights())]
        model.set_weights(drawn)
    return model


def twin_of(part: keras.layers.Layer, layer: keras.layers.Layer, *shapes) -> keras.layers.Layer:
    """Builds `layer` outside of any other layer, with the weights of `part`; returns `layer`."""
    layer.build(*shapes)
    layer.set_weights(part.get_weights())
    return layer


def weights_of(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """Returns a dict mapping weight paths, without the layer's own name, to float64 arrays."""
    return {w.path.split("/", 1)[1]: numpy_of(w).astype("float64") for w in layer.weights}


def softmax(x: np.ndarray) -> np.ndarray:
    return scipy.special.softmax(x, axis=-1)


def gelu(x: np.ndarray) -> np.ndarray:
    """Returns the exact GELU, x Φ(x)."""
    return x * scipy.special.ndtr(x)


def numpy_of(tensor) -> np.ndarray:
    """Returns a tensor of any float type as a float32 array."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns float32 numbers drawn from the standard normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def ids(*shape: int, vocab_size: int = 20, seed: int = 0) -> np.ndarray:
    """Returns random int32 token ids from 4 on, so that no id is a special token."""
    return np.random.default_rng(seed).integers(4, vocab_size, shape).astype("int32")


def check_saved(model: keras.Model, inputs, folder) -> keras.Model:
    """Saves and loads a model; returns the loaded model.

    Asserts that config, weights and outputs of the two models are equal.
    """
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    assert loaded.get_config() == model.get_config()
    for ours, theirs in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(numpy_of(ours), numpy_of(theirs))
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_array_equal(numpy_of(a), numpy_of(b)),
        model(inputs),
        loaded(inputs),
    )
    return loaded


def check_model(model: keras.Model, inputs, folder) -> None:
    """Checks that a model can be saved, infers its output shapes and runs in mixed precision.

    A second build changes nothing.

    Args:
        model: model without dropout, which can be rebuilt from its config.
        inputs: inputs of the model's call.
        folder: folder for the saved file.
    """
    if not model.built:
        model.build()
    weights = [id(weight) for weight in model.weights]
    model.build()
    assert [id(weight) for weight in model.weights] == weights
    check_saved(model, inputs, folder)
    outputs = keras.tree.flatten(keras.tree.map_structure(numpy_of, model(inputs)))
    specs = keras.tree.flatten(symbolic(model, inputs))
    assert [output.shape for output in outputs] == [tuple(spec.shape) for spec in specs]
    half = type(model).from_config({**model.get_config(), "dtype": "mixed_bfloat16"})
    half.build()
    half.set_weights(model.get_weights())
    assert half.compute_dtype == "bfloat16"
    assert all(weight.dtype == "float32" for weight in half.weights)
    for rounded, exact in zip(keras.tree.flatten(half(inputs)), outputs, strict=True):
        np.testing.assert_allclose(
            numpy_of(rounded), exact, rtol=0, atol=bfloat16_error(100) * np.abs(exact).max()
        )


def run_card(folder: pathlib.Path, monkeypatch) -> dict:
    """Runs the Python example of the model card in `folder`; returns the variables of the example.

    The working directory is the parent of `folder`.
    """
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)[1]
    monkeypatch.chdir(folder.parent)
    names: dict = {}
    exec(code, names)
    return names
