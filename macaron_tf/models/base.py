"""Base class of the models, the names of model inputs, and mask functions."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from macaron_tf.io.plug_ins import is_import_path
from macaron_tf.layers.attention import broadcast_mask
from macaron_tf.layers.mixer import Context, all_of
from macaron_tf.layers.recording import Recording
from macaron_tf.models.config import READ_BY_SOME, StackConfig
from macaron_tf.models.onnx_file import onnx_file
from macaron_tf.settings import Settings, hints_of

# Names of an encoder's inputs, each with the names in Hugging Face and KerasHub.
ENCODER_INPUTS: dict[str, tuple[str, ...]] = {
    "token_ids": ("input_ids",),
    "segment_ids": ("token_type_ids",),
    "language_ids": ("langs",),
    "position_ids": (),
    "document_ids": (),
    "padding_mask": (),
    "attention_mask": (),
}


class Network(Recording, keras.Model):
    """Base class of the models.

    The default name of a model is the class name in snake case, such as `encoder_classifier`.
    `build` builds the layers in the order of their creation, for vectors `(B, L, D)`. A call
    returns the `logits` of the `hidden_states`, unless a subclass overrides `call`.

    A call takes a dict of the inputs in `input_names`, or only the first input. The names in
    Hugging Face and KerasHub are accepted too. Ids may have any integer type, and ragged ids are
    padded. An `attention_mask` of rank 2, or of the same rank as the ids, counts as a padding
    mask. Unknown names raise a ValueError.

    `model.export()` and `tf.saved_model.save` use the inputs of the model's first call, with any
    batch size and length. If the first call passed a tensor instead of a dict, the exported model
    takes a tensor too. A model that was never called is exported with a dict of the required
    inputs, which are ids.

    Attributes:
        input_names: dict mapping the name of an input to alternative names. `None` means that
            `call` gets its argument unchanged.
        num_required: number of required inputs, which are the first inputs in `input_names`.
        ids_rank: rank of the first required input. A second required input has rank 2.
        takes_groups: whether the ids may have more axes than `ids_rank`.
        encoder: part of the model that gets pre-trained encoder weights. In this and the following
            attributes, `None` means that there is no such part.
        encoder_decoder: part of the model that gets pre-trained encoder-decoder weights.
        pooler: part of the model that gets pre-trained pooler weights.
        language_head: part of the model that gets the weights of a pre-trained language model head.
    """

    takes_ids = True
    input_names: ClassVar[Mapping[str, tuple[str, ...]] | None] = ENCODER_INPUTS
    num_required: int = 1
    ids_rank: int = 2
    takes_groups = False
    encoder: Any = None
    encoder_decoder: Any = None
    pooler: Any = None
    language_head: Any = None
    _first_inputs: tuple = ()
    _first_is_tensor = False

    def __init__(self, config: Settings, **kwargs):
        kwargs.setdefault("name", re.sub("(?<!^)(?=[A-Z])", "_", type(self).__name__).lower())
        super().__init__(**kwargs)

    def __call__(self, inputs, *args, **kwargs):
        is_tensor = not isinstance(inputs, Mapping)
        inputs = self._named_inputs(inputs)
        outputs = super().__call__(inputs, *args, **kwargs)
        if not self._first_inputs and (self.input_names or is_tensor):
            self._first_is_tensor = is_tensor
            # Shapes for any batch size and length.
            if self.input_names:
                shapes = {name: (None,) * len(x.shape) for name, x in inputs.items()}
                self._first_inputs = tuple((name, s, "int32") for name, s in shapes.items())
            else:
                x = ops.convert_to_tensor(inputs)
                dtype = keras.backend.standardize_dtype(x.dtype)
                self._first_inputs = (("inputs", (None, None, *x.shape[2:]), dtype),)
        return outputs

    def build(self, input_shape=None):
        for layer in self.layers:
            if isinstance(layer, keras.Model):
                layer.build()
            elif not layer.built:
                layer.build((None, None, self.config.hidden_dim))

    def hidden_states(self, inputs, training=None):
        """Returns the encoder's output `(B, L, D)`. Models without an encoder override this."""
        return self.encoder(encoder_inputs(inputs), training=training)

    def unread(self) -> list[str]:
        """Returns the names of the settings that no layer of this network reads.

        The method works before `build`. The list is empty if a block is a user's own, because such
        a block may read all settings.
        """
        config = self.config
        if isinstance(config, StackConfig) and any(map(is_import_path, config.blocks)):
            return []
        layers = (layer for layer in self._flatten_layers() if isinstance(layer, Recording))
        read = {name for layer in layers for name in layer.reads}
        names = hints_of(type(config))  # type: ignore[arg-type]
        return [name for name in READ_BY_SOME if name in names and name not in read]

    def call(self, inputs, training=None):
        # `keras.layers.TimeDistributed`, `stateless_call` and JAX's `fit` run `call` without
        # `__call__`, so the `call` of each subclass names its inputs too.
        return self.logits(self.hidden_states(self._named_inputs(inputs), training=training))

    def export(
        self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs
    ):
        """Exports the model as Keras does, by default for the inputs of the first call.

        The exported model accepts any batch size and length. An ONNX file is checked after the
        export (see `macaron_tf.models.onnx_file`), which needs onnx and tf2onnx.
        """
        if input_signature is None and (self.input_names or self._first_inputs):
            input_signature = [self._signature(keras.InputSpec)]
        with onnx_file(filepath) if format == "onnx" else contextlib.nullcontext():
            super().export(filepath, format, verbose, input_signature, **kwargs)

    @property
    def _default_save_signature(self):
        # `tf.saved_model.save` reads this property. Keras's default would declare ids as floats.
        if not self.input_names and not self._first_inputs:
            return super()._default_save_signature
        import tensorflow as tf

        return tf.function(self, input_signature=[self._signature(tf.TensorSpec)], autograph=False)

    def _signature(self, make_spec) -> Any:
        ranks = zip(self.input_names or (), (self.ids_rank, 2)[: self.num_required], strict=False)
        required = [(name, (None,) * rank, "int32") for name, rank in ranks]
        inputs = self._first_inputs or required
        specs = {name: make_spec(shape=s, dtype=dtype, name=name) for name, s, dtype in inputs}
        return next(iter(specs.values())) if self._first_is_tensor else specs

    def _named_inputs(self, inputs):
        """Returns a dict of the inputs under their names in `input_names`."""
        if self.input_names is None:
            return inputs
        first = next(iter(self.input_names))
        inputs = inputs if isinstance(inputs, Mapping) else {first: inputs}
        model, named = type(self).__name__, {}
        names = {alias: name for name, others in self.input_names.items() for alias in others}
        for alias, value in inputs.items():
            name = names.get(alias, alias)
            if name not in self.input_names:
                choices = ", ".join(self.input_names)
                raise ValueError(f"{model} has no input {alias!r}: use one of {choices}")
            if name in named:
                raise ValueError(f"{model} got {name} twice in {', '.join(inputs)}: remove one")
            if value is not None:
                if keras.backend.backend() == "tensorflow":
                    import tensorflow as tf  # only TensorFlow has ragged tensors

                    if isinstance(value, tf.RaggedTensor):
                        value = value.to_tensor(self.config.pad_id if name == first else 0)
                value = ops.convert_to_tensor(value)
                # Lookups in tables take no unsigned integers. MirroredStrategy builds models on the
                # mean of the ids over replicas, which is a float.
                usual = keras.backend.standardize_dtype(value.dtype) in ("int32", "bool")
                named[name] = value if usual else ops.cast(value, "int32")
        ranks = (self.ids_rank, 2)[: self.num_required]
        for name, rank in zip(self.input_names, ranks, strict=False):
            if name not in named:
                raise ValueError(f"{model} got no {name}: pass a dict with all required inputs")
            shape = tuple(named[name].shape)
            if len(shape) < rank or (len(shape) > rank and not self.takes_groups):
                raise ValueError(f"{model} needs {name} with {rank} axes, but got shape {shape}")
        ids, mask = named[first], named.get("attention_mask")
        if mask is not None and len(mask.shape) in (2, len(ids.shape)):
            named["padding_mask"] = all_of(named.get("padding_mask"), named.pop("attention_mask"))
        return named


def step_context(context, kind: str, positions, index) -> Context:
    """Returns the context of a decoding step with a cache of the kind `"fixed"` or `"growing"`."""
    index, cache_mask = index if kind == "fixed" else None, context.get("cache_mask")
    options = {"positions": positions, "index": index, "cache_mask": cache_mask}
    return Context(**context.get("rows", {}), **options, training=False)


def encoder_inputs(inputs) -> dict[str, Any]:
    """Returns the inputs whose names are in `ENCODER_INPUTS`, as a dict."""
    return {name: value for name, value in inputs.items() if name in ENCODER_INPUTS}


def padding_mask(inputs, pad_id: int = 0):
    """Returns the padding mask `(B, L)`, boolean, False at padding.

    Without an input `padding_mask`, it is False where an id is `pad_id`, or where all characters of
    a word `(B, L, C)` are 0. With an `attention_mask` of rank 3 or 4, positions that no position
    attends to are padding too.
    """
    real = inputs.get("padding_mask")
    real = ops.not_equal(inputs["token_ids"], pad_id) if real is None else ops.cast(real, "bool")
    real = ops.any(real, axis=-1) if len(real.shape) == 3 else real
    allowed = attention_mask(inputs)
    return real if allowed is None else ops.logical_and(real, ops.any(allowed, axis=(1, 2)))


def attention_mask(inputs):
    """Returns the input `attention_mask`, if any, as booleans `(B, H or 1, T or 1, S)`."""
    mask = inputs.get("attention_mask")
    return None if mask is None else broadcast_mask(ops.cast(mask, "bool"))
