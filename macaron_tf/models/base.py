"""Base class of the models, names of their inputs, and masks."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from macaron_tf.layers.attention import broadcast_mask
from macaron_tf.layers.recording import Recording
from macaron_tf.models.config import READERS, StackConfig
from macaron_tf.models.onnx_file import onnx_file
from macaron_tf.plug_ins import is_place
from macaron_tf.settings import Settings, hints_of
from macaron_tf.special_ids import PAD

# Names of an encoder's inputs, each with its names in Hugging Face and KerasHub.
ENCODER_INPUTS: dict[str, tuple[str, ...]] = {
    "token_ids": ("input_ids",),
    "segment_ids": ("token_type_ids",),
    "language_ids": ("langs",),
    "position_ids": (),
    "document_ids": (),
    "padding_mask": (),
    "attention_mask": (),
}


class Model(Recording, keras.Model):
    """Base class of the models.

    A model's default name is that of its class in snake case: `encoder_classifier`. `build` builds
    the layers in the order in which they were made, each for vectors `(B, L, D)`. A call returns
    the `logits` of the `hidden_states`, unless a subclass overrides it.

    A call takes a dict of the inputs in `input_names`, or the first of them alone. Hugging Face's
    and KerasHub's names work too. An `attention_mask` of rank 2, or of the same rank as the ids, is
    taken as the padding mask. Unknown names raise a ValueError. `model.export()` and
    `tf.saved_model.save` use the inputs of the model's first call, with any batch size and length,
    alone or in a dict as they were given. For a model that was never called, they use a dict of the
    `required` inputs, ids `(B, L)`.

    Attributes:
        input_names: names of the inputs, each with its other names; None: `call` gets its argument
            unchanged.
        required: number of inputs that a call needs, the first ones of `input_names`.
        encoder_decoder, pooler, language_head: parts of the model, besides its `encoder`, that get
            pre-trained weights; None: the model has no such part.
    """

    takes_ids = True
    input_names: ClassVar[Mapping[str, tuple[str, ...]] | None] = ENCODER_INPUTS
    required: ClassVar[int] = 1
    encoder = encoder_decoder = pooler = language_head = None
    _first_inputs: tuple = ()
    _first_alone = False

    def __init__(self, config: Settings, **kwargs):
        kwargs.setdefault("name", re.sub("(?<!^)(?=[A-Z])", "_", type(self).__name__).lower())
        super().__init__(**kwargs)

    def __call__(self, inputs, *args, **kwargs):
        alone = not isinstance(inputs, Mapping)
        inputs = self._named(inputs)
        if not self._first_inputs and (self.input_names or alone):
            self._first_alone = alone
            first = inputs if self.input_names else {"inputs": ops.convert_to_tensor(inputs)}
            self._first_inputs = tuple(self._described(name, x) for name, x in first.items())
        return super().__call__(inputs, *args, **kwargs)

    def build(self, input_shape=None):
        for layer in self.layers:
            if isinstance(layer, keras.Model):
                layer.build()
            else:
                layer.build((None, None, self.config.hidden_dim))

    def hidden_states(self, inputs, training=None):
        """The encoder's output `(B, L, D)`; models without an encoder override this."""
        return self.encoder(encoder_inputs(inputs), training=training)

    def unread(self) -> dict[str, str]:
        """Settings without effect in this network, each with a clause that says what reads it.

        It can be called before `build`.
        """
        config = self.config
        if isinstance(config, StackConfig) and any(map(is_place, config.blocks)):
            return {}  # a user's own block may read all of them
        layers = (layer for layer in self._flatten_layers() if isinstance(layer, Recording))
        read = {name for layer in layers for name in layer.reads}
        near = " and ".join(name for name in READERS if name in read)
        return {
            name: f"{reader} reads it, but this network reads {near}"
            for name, reader in READERS.items()
            if name in hints_of(type(config)) and name not in read
        }

    def call(self, inputs, training=None):
        return self.logits(self.hidden_states(inputs, training=training))

    def export(
        self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs
    ):
        """Keras's `export`, by default for the first call's inputs with any batch size and length.

        An ONNX file is checked, so that runtimes can open it: see `macaron_tf.models.onnx_file`.
        """
        if input_signature is None and (self.input_names or self._first_inputs):
            input_signature = [
                self._signature(lambda s, dtype, name: keras.InputSpec(dtype, s, name=name))
            ]
        whole = onnx_file(filepath) if format == "onnx" else contextlib.nullcontext()
        with whole:
            super().export(filepath, format, verbose, input_signature, **kwargs)

    @property
    def _default_save_signature(self):
        # `tf.saved_model.save` reads this property; Keras's own takes ids for floats.
        if not self.input_names and not self._first_inputs:
            return super()._default_save_signature
        import tensorflow as tf

        return tf.function(self, input_signature=[self._signature(tf.TensorSpec)], autograph=False)

    def _signature(self, spec) -> Any:
        inputs = self._first_inputs
        if not inputs:
            needed = [*self.input_names][: self.required]
            inputs = [(name, (None, None), "int32") for name in needed]
        specs = {name: spec(shape, dtype, name) for name, shape, dtype in inputs}
        return next(iter(specs.values())) if self._first_alone else specs

    def _described(self, name: str, x) -> tuple[str, tuple, str]:
        """Name, shape and dtype of an input in a signature for any batch size and length."""
        if self.input_names:
            return name, (None,) * len(x.shape), "int32"
        return name, (None, None, *x.shape[2:]), keras.backend.standardize_dtype(x.dtype)

    def _named(self, inputs):
        """Checks the inputs and renames them to this library's names."""
        if self.input_names is None:
            return inputs
        if not isinstance(inputs, Mapping):
            inputs = {next(iter(self.input_names)): inputs}
        model, named = type(self).__name__, {}
        for given, value in inputs.items():
            name = self._own_name(given)
            if name in named:
                raise ValueError(
                    f"{model} has {name} twice among {', '.join(inputs)}: leave one of them out"
                )
            if value is not None:
                value = ops.convert_to_tensor(value)
                # MirroredStrategy builds models on the mean of the replicas' ids, which is a float.
                named[name] = ops.cast(value, "int32") if "float" in str(value.dtype) else value
        missing = [name for name in [*self.input_names][: self.required] if name not in named]
        if missing:
            raise ValueError(f"{model} needs {' and '.join(missing)}: give a dict of its inputs")
        ids, mask = named[next(iter(self.input_names))], named.get("attention_mask")
        if mask is not None and len(mask.shape) in (2, len(ids.shape)):
            if "padding_mask" in named:
                raise ValueError(
                    f"{model} has padding_mask and an attention_mask of rank {len(mask.shape)}, "
                    "which is a padding mask too: leave one of them out"
                )
            named["padding_mask"] = named.pop("attention_mask")
        return named

    def _own_name(self, given: str) -> str:
        """This library's name of an input."""
        names = {other: name for name, others in self.input_names.items() for other in others}
        name = names.get(given, given)
        if name not in self.input_names:
            raise ValueError(
                f"{type(self).__name__} has no input {given!r}: it takes "
                f"{', '.join(self.input_names)}"
            )
        return name


def encoder_inputs(inputs) -> dict[str, Any]:
    """Those of the inputs that an encoder takes."""
    return {name: value for name, value in inputs.items() if name in ENCODER_INPUTS}


def padding_mask(inputs):
    """The padding mask `(B, L)`, boolean, False at padding.

    It is the input `padding_mask`, or by default False where an id is 0. For words given by their
    characters, `token_ids (B, L, C)`, it is False where all ids of a word are 0. Positions that no
    position attends under an `attention_mask` of rank 3 or 4 are padding too.
    """
    real = inputs.get("padding_mask")
    real = ops.not_equal(inputs["token_ids"], PAD) if real is None else ops.cast(real, "bool")
    real = ops.any(real, axis=-1) if len(real.shape) == 3 else real
    attends = attention_mask(inputs)
    return real if attends is None else ops.logical_and(real, ops.any(attends, axis=(1, 2)))


def attention_mask(inputs):
    """The input `attention_mask` of rank 2 to 4 as booleans `(B, H or 1, T or 1, S)`, or None."""
    mask = inputs.get("attention_mask")
    return None if mask is None else broadcast_mask(ops.cast(mask, "bool"))
