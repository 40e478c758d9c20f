"""`Recording`: serialization of layers by recording the arguments of their constructors."""

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
    """Makes a Keras layer or model serializable by recording its constructor's arguments.

    Written before the Keras class, `class Pooler(Recording, keras.layers.Layer)`, it registers the
    class with Keras and replaces a hand-written `get_config` and `from_config`. Arguments may be
    plain values, `Settings`, and objects that Keras can serialize: initializers, activations,
    layers. Keras itself records name, dtype policy and `trainable`. The config also records which
    sub-layers have another `trainable` than their owner; sub-layers made by `build` start with
    their owner's.

    `super().__init__(**kwargs)` sets each named argument as an attribute of the same name, which
    the constructor may then replace. Layers among the arguments are the exception: the constructor
    assigns them itself where Keras should track them. For an argument named `initializer` or
    `..._initializer`, the attribute is the initializer object, also if a name was given.

    Keras's padding masks pass through. Output shapes come from a symbolic call. Sub-layers made in
    the constructor or in `build` get the layer's dtype policy unless they are given their own.

    Attributes:
        takes_ids: whether inputs are integers; if not, they have the layer's compute dtype.
        reads: names of those settings in `models.config.READERS` that the layer has a use for.
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
        # By package, so that a user's class does not replace one of ours with the same name.
        package = cls.__module__.partition(".")[0]
        keras.saving.register_keras_serializable(package=package)(cls)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)
        if "build" in cls.__dict__:
            cls.build = _building(cls.build)

    def part(self, kind, shape, *arguments, **options) -> keras.layers.Layer:
        """Makes a sub-layer and builds it for an input shape."""
        layer = kind(*arguments, **options)
        layer.build(shape)
        return layer

    def dense_part(
        self, name: str, shape, units: int, initializer=None, axes=(), parts: int = 1, **options
    ) -> Dense:
        """Makes and builds a `Dense` sub-layer.

        Args:
            initializer: initializer of its matrix; None: a clone of this layer's
                `kernel_initializer`.
            axes, parts: description of its matrix, see `WeightSpec`; the bias has the last axis.
        """
        initializer = initializer or self.kernel_initializer.clone()
        made = self.part(Dense, shape, units, kernel_initializer=initializer, name=name, **options)
        for weight in made.weights:
            declare(weight, axes[-len(weight.shape) :], parts)
        return made

    def add_weight(self, *args, axes=(), parts: int = 1, decays: bool | None = None, **options):
        """Keras's `add_weight`; the other arguments describe the weight, see `declare`."""
        return declare(super().add_weight(*args, **options), axes, parts, decays)

    def compute_output_shape(self, *shapes, **named_shapes):
        """Builds the layer and returns the shapes of its outputs.

        Inputs are shapes or nested structures of shapes. Further inputs are given by keyword, their
        name followed by `_shape`.
        """

        def tensors(shapes):
            dtype = "int32" if self.takes_ids else self.compute_dtype
            return keras.tree.map_shape_structure(lambda s: keras.KerasTensor(s, dtype), shapes)

        named = {name.removesuffix("_shape"): tensors(s) for name, s in named_shapes.items()}
        outputs = self(*map(tensors, shapes), **named)
        return keras.tree.map_structure(lambda output: output.shape, outputs)

    def compute_output_spec(self, *args, **kwargs):
        # Keras's own would call compute_output_shape, which does not know the dtypes.
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
        # Keras deserializes a dtype policy itself.
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
    """Wraps a constructor to record its arguments; those of the outermost class are the config."""
    signature = inspect.signature(init)
    kinds = {parameter.kind: name for name, parameter in signature.parameters.items()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise TypeError(
            f"{init.__qualname__} takes *args, which cannot be recorded: give each argument a name"
        )

    @functools.wraps(init)
    def recorded(self, *args, **kwargs):
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        named = {k: v for k, v in list(bound.arguments.items())[1:] if k not in _KERAS_OWN}
        more = named.pop(kinds.get(inspect.Parameter.VAR_KEYWORD), {})
        noted = vars(self)  # Keras forbids attributes before its own constructor
        outermost = "_arguments" not in noted
        own = {k: v for k, v in more.items() if k not in _KERAS_OWN}
        noted.setdefault("_arguments", {**named, **own})
        noted["_named"] = {**noted.get("_named", {}), **named}
        policy = keras.dtype_policies.get(kwargs.get("dtype"))
        if "dtype" in kwargs:
            kwargs["dtype"] = policy  # resolved before the default changes
        with _default_policy(policy):
            init(self, *args, **kwargs)
        if outermost:
            _freeze_new(self)

    recorded.__signature__ = signature
    return recorded


def _building(build):
    @functools.wraps(build)
    def built(self, *args, **kwargs):
        if self.built:  # as a Keras model of built layers
            return
        before = len(self._flatten_layers(recursive=False)) - 1
        with _default_policy(self.dtype_policy):
            build(self, *args, **kwargs)
        _freeze_new(self, before)
        set_part_flags(self, vars(self).get("_waiting", {}))

    return built


def _freeze_new(layer, before: int = 0) -> None:
    """Freezes the new sub-layers of a frozen layer, which Keras would leave trainable.

    Args:
        before: the number of sub-layers that already existed.
    """
    if not layer.trainable:
        for part in layer._flatten_layers(include_self=False, recursive=False)[before:]:
            part.trainable = False


def _parts(layer, place: str = "") -> Iterator[tuple[str, keras.layers.Layer, keras.layers.Layer]]:
    """Yields place, sub-layer and owner of all sub-layers, owners first.

    A place such as `"2/0"` has the index of a layer among its owner's sub-layers at each level.
    """
    for number, part in enumerate(layer._flatten_layers(include_self=False, recursive=False)):
        yield f"{place}{number}", part, layer
        yield from _parts(part, f"{place}{number}/")


def part_flags(layer: keras.layers.Layer) -> dict[str, bool]:
    """`trainable` of those sub-layers that differ from their owner, by place (see `_parts`)."""
    own = {n: p.trainable for n, p, owner in _parts(layer) if p.trainable != owner.trainable}
    return {**own, **vars(layer).get("_waiting", {})}


def set_part_flags(layer: keras.layers.Layer, flags: Mapping[str, bool]) -> None:
    """Sets `part_flags` on the sub-layers that exist; the others get theirs after `build`."""
    parts = {place: part for place, part, _ in _parts(layer)} if flags else {}
    for place in sorted(flags.keys() & parts.keys()):  # owners first: Keras sets sub-layers
        parts[place].trainable = flags[place]
    vars(layer)["_waiting"] = {n: flag for n, flag in flags.items() if n not in parts}


@contextlib.contextmanager
def _default_policy(policy) -> Iterator[None]:
    """Sets Keras's default dtype policy within the context; None leaves it unchanged."""
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
