"""A base whose `get_config` is the arguments that its constructor was called with."""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import keras
from keras.dtype_policies import DTypePolicyMap

from macaron_tf.layers.dense import Dense, policy_of
from macaron_tf.variables import declare


class Recording:
    """Makes a Keras layer or model serializable: registers it, records its constructor's arguments.

    Written before the Keras class, `class Pooler(Recording, keras.layers.Layer)`, it takes the
    place of a hand-written `get_config` and `from_config`. Arguments may be plain values,
    `Settings`, and objects that Keras serializes: initializers, activations, layers. Name, dtype
    policy and `trainable` are Keras's own; the config also records the layers within whose
    `trainable` differs from their owner's. Layers that `build` makes start with this one's.

    From `super().__init__(**kwargs)` on each named argument is an attribute of the same name, which
    the constructor may replace; layers among them it assigns itself, where Keras is to track them.
    An argument `initializer` or `..._initializer` may be a name: the attribute is the object.
    Keras's padding masks pass through. Output shapes are found by a symbolic call. Layers that the
    constructor or `build` makes have its dtype policy, unless they are given another one.

    Attributes:
        takes_ids: inputs are integers; otherwise they have the layer's compute dtype.
        reads: of a part of a model, the settings in `models.config.READERS` that it reads.
    """

    takes_ids = False
    reads: tuple[str, ...] = ()

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        for name, value in vars(self).pop("_named", {}).items():
            if name.endswith("initializer"):
                value = keras.initializers.get(value)
            if not isinstance(value, keras.layers.Layer):
                setattr(self, name, value)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # A user's class of the same name as one of ours does not take its place.
        package = cls.__module__.partition(".")[0]
        keras.saving.register_keras_serializable(package=package)(cls)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)
        if "build" in cls.__dict__:
            cls.build = _building(cls.build)

    def part(self, kind, shape, *arguments, **options) -> keras.layers.Layer:
        """Makes a layer within this one, built for an input's shape."""
        layer = kind(*arguments, **options)
        layer.build(shape)
        return layer

    def dense_part(
        self, name: str, shape, units: int, initializer=None, axes=(), parts: int = 1, **options
    ) -> Dense:
        """A `Dense` part; its matrix starts as `initializer` says, or as this layer's do.

        Args:
            axes, parts: of its matrix, see `WeightSpec`; the bias has the last axis.
        """
        initializer = initializer or self.kernel_initializer.clone()
        made = self.part(Dense, shape, units, kernel_initializer=initializer, name=name, **options)
        for weight in made.weights:
            declare(weight, axes[-len(weight.shape) :], parts)
        return made

    def add_weight(self, *args, axes=(), parts: int = 1, decays: bool | None = None, **options):
        """Keras's, with what the weight is: see `declare`."""
        return declare(super().add_weight(*args, **options), axes, parts, decays)

    def compute_output_shape(self, *shapes, **named_shapes):
        """Shapes of the outputs; builds the layer.

        Inputs are shapes or structures of shapes; other arguments have `_shape` behind their names.
        """

        def tensors(shapes):
            dtype = "int32" if self.takes_ids else self.compute_dtype
            return keras.tree.map_shape_structure(lambda s: keras.KerasTensor(s, dtype), shapes)

        named = {name.removesuffix("_shape"): tensors(s) for name, s in named_shapes.items()}
        outputs = self(*map(tensors, shapes), **named)
        return keras.tree.map_structure(lambda output: output.shape, outputs)

    def compute_output_spec(self, *args, **kwargs):
        # A layer's own would ask compute_output_shape, which knows no dtypes.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        arguments = {
            name: _serialized(value) for name, value in getattr(self, "_arguments", {}).items()
        }
        config = {**super().get_config(), **arguments}
        own, built = policy_of(self), [one for one in self._flatten_layers() if one.path]
        others = {one.path: policy_of(one) for one in built if policy_of(one) != own}
        if others:
            policies = DTypePolicyMap(own, others)
            config["dtype"] = keras.dtype_policies.serialize(policies)
        if flags := part_flags(self):
            config["trainable_parts"] = flags
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]):
        # Keras resolves a dtype policy by itself.
        values = {
            name: value if name == "dtype" else _deserialized(value)
            for name, value in config.items()
        }
        flags = values.pop("trainable_parts", {})
        layer = cls(**values)
        set_part_flags(layer, flags)
        return layer


_KERAS_OWN = ("name", "dtype", "trainable", "autocast")


def _recording(init):
    """A constructor that notes its arguments before it runs: the outermost one's are the config."""
    signature = inspect.signature(init)
    kinds = {parameter.kind: name for name, parameter in signature.parameters.items()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise TypeError(f"{init.__qualname__} takes *args, which cannot be recorded: name them")

    @functools.wraps(init)
    def recorded(self, *args, **kwargs):
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        named = {k: v for k, v in list(bound.arguments.items())[1:] if k not in _KERAS_OWN}
        more = named.pop(kinds.get(inspect.Parameter.VAR_KEYWORD), {})
        noted = vars(self)  # Keras allows no attribute before its own constructor
        outermost = "_arguments" not in noted
        own = {k: v for k, v in more.items() if k not in _KERAS_OWN}
        noted.setdefault("_arguments", {**named, **own})
        noted["_named"] = {**noted.get("_named", {}), **named}
        policy = keras.dtype_policies.get(kwargs.get("dtype"))
        if "dtype" in kwargs:
            kwargs["dtype"] = policy  # a quantized one from before the default is a map
        with _default_policy(policy):
            init(self, *args, **kwargs)
        if outermost:
            _freeze_new(self)

    recorded.__signature__ = signature
    return recorded


def _building(build):
    @functools.wraps(build)
    def built(self, *args, **kwargs):
        before = len(self._flatten_layers(recursive=False)) - 1
        with _default_policy(self.dtype_policy):
            build(self, *args, **kwargs)
        _freeze_new(self, before)
        set_part_flags(self, vars(self).get("_waiting", {}))

    return built


def _freeze_new(layer, before: int = 0) -> None:
    """Freezes the layers within a frozen one, but for those `before`: Keras leaves new ones."""
    if not layer.trainable:
        for part in layer._flatten_layers(include_self=False, recursive=False)[before:]:
            part.trainable = False


def _parts(layer, place: str = "") -> Iterator[tuple[str, keras.layers.Layer, keras.layers.Layer]]:
    """Place `"2/0"`, of numbers among each owner's layers, layer and owner; owners first."""
    for number, part in enumerate(layer._flatten_layers(include_self=False, recursive=False)):
        yield f"{place}{number}", part, layer
        yield from _parts(part, f"{place}{number}/")


def part_flags(layer: keras.layers.Layer) -> dict[str, bool]:
    """`trainable` of the layers within one that differ from their owner, by place."""
    own = {n: p.trainable for n, p, owner in _parts(layer) if p.trainable != owner.trainable}
    return {**own, **vars(layer).get("_waiting", {})}


def set_part_flags(layer: keras.layers.Layer, flags: Mapping[str, bool]) -> None:
    """Sets `part_flags` of the layers that are there; those of others wait for `build`."""
    parts = {place: part for place, part, _ in _parts(layer)} if flags else {}
    for place in sorted(flags.keys() & parts.keys()):  # owners first: Keras sets all within
        parts[place].trainable = flags[place]
    vars(layer)["_waiting"] = {n: flag for n, flag in flags.items() if n not in parts}


@contextlib.contextmanager
def _default_policy(policy) -> Iterator[None]:
    """While the context lasts, Keras's default dtype policy is this one; None changes nothing."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(keras.dtype_policies.get(policy))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _serialized(value):
    if isinstance(value, list | tuple):
        return [_serialized(item) for item in value]
    if isinstance(value, dict):
        return {name: _serialized(item) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return keras.saving.serialize_keras_object(value)


def _deserialized(value):
    if isinstance(value, list):
        return [_deserialized(item) for item in value]
    if isinstance(value, dict) and "class_name" not in value:
        return {name: _deserialized(item) for name, item in value.items()}
    return keras.saving.deserialize_keras_object(value) if isinstance(value, dict) else value
