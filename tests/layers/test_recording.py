import json

import keras
import pytest

from macaron_tf.layers.recording import Recording


@keras.saving.register_keras_serializable(package="tests")
class Base(Recording, keras.layers.Layer):
    def __init__(self, width, initializer="zeros", sizes=(1, 2), **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.initializer = keras.initializers.get(initializer)
        self.sizes = sizes


@keras.saving.register_keras_serializable(package="tests")
class Derived(Base):
    def __init__(self, width, inner=None, activation="relu", **kwargs):
        super().__init__(2 * width, **kwargs)
        self.inner = inner
        self.activation = keras.activations.get(activation)


def test_the_arguments_come_back():
    layer = Derived(
        3,
        inner=Base(1, name="within"),
        activation=keras.activations.gelu,
        initializer=keras.initializers.RandomNormal(stddev=0.5),
        dtype="mixed_bfloat16",
        name="outside",
    )
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    copy = keras.saving.deserialize_keras_object(saved)
    assert copy.get_config() == layer.get_config()
    assert (copy.width, copy.name, copy.inner.width, copy.inner.name) == (6, "outside", 1, "within")
    assert copy.initializer.stddev == 0.5 and copy.compute_dtype == "bfloat16"
    assert copy.activation is keras.activations.gelu


def test_arguments_without_a_name_are_refused():
    with pytest.raises(TypeError, match=r"Nameless.__init__ takes \*args"):

        class Nameless(Base):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
