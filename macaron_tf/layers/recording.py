"""`Recording`, a mixin that serializes Keras layers by recording their constructor arguments."""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import keras
from keras.dtype_policies import DTypePolicyMap

from macaron_tf.errors import ALIASES, nearest
from macaron_tf.layers.dense import Dense, policy_of
from macaron_tf.variables import declare


class Recording:
    """Mixin that makes a Keras layer or model serializable by recording its constructor arguments.

    List the mixin before the Keras class: `class Pooler(Recording, keras.layers.Layer)`. The mixin
    registers the class with Keras and replaces hand-written `get_config` and `from_config` methods.
    Arguments may be plain values, `Settings` objects, and objects that Keras can serialize, such as
    initializers, activations and layers. Keras itself records `name`, `trainable` and the dtype
    policy. The config also records each sub-layer whose `trainable` differs from the `trainable` of
    the layer that contains the sub-layer. A frozen layer also freezes the sub-layers that its
    constructor and `build` create.

    `super().__init__(**kwargs)` sets each named argument as an attribute of the same name. The
    constructor may replace the attribute. Arguments that are layers are not set: the constructor
    assigns a layer where Keras should track the layer. If an argument named `initializer` or
    `..._initializer` is the name of an initializer, the attribute is the initializer object.

    The layer passes Keras's padding masks on to the next layer. Output shapes come from a symbolic
    call. Sub-layers created in the constructor or in `build` get the dtype policy of the layer,
    unless they have an explicit dtype.

    Attributes:
        takes_ids: whether the inputs are integers. Otherwise, the inputs have the layer's compute
            dtype.
        input_rank: rank of the first input. `None` means that the layer accepts several ranks.
        reads: names of the settings in `macaron_tf.models.config.READ_BY_SOME` that affect the
            layer.
        shared: names of arguments with layers of another layer, which saves them and passes them in
            again. The config contains `None` for these arguments.
    """

    takes_ids = False
    input_rank: int | None = None
    reads: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    kernel_initializer: Any
    _flatten_layers: Any  # Keras's

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        for name, value in vars(self).pop("_named_arguments", {}).items():
            if name.endswith("initializer"):
                value = keras.initializers.get(value)
            if not isinstance(value, keras.layers.Layer):
                setattr(self, name, value)
        if self.input_rank:
            self.input_spec = keras.layers.InputSpec(ndim=self.input_rank, name="x")

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # The name of the top-level package is part of the registered name, so that a user's class
        # does not replace a class of this library with the same name.
        package = cls.__module__.partition(".")[0]
        keras.saving.register_keras_serializable(package=package)(cls)
        if "__init__" in cls.__dict__:
            cls.__init__ = _record_arguments(cls.__init__)
        if "build" in cls.__dict__:
            cls.build = _wrap_build(cls.build)

    def part(self, layer_class, shape, *arguments, **options) -> keras.layers.Layer:
        """Creates and builds a sub-layer of class `layer_class` for inputs of shape `shape`."""
        layer = layer_class(*arguments, **options)
        layer.build(shape)
        return layer

    def dense_part(
        self, name: str, shape, units: int, initializer=None, axes=(), parts: int = 1, **options
    ) -> Dense:
        """Creates and builds a `Dense` sub-layer for inputs of shape `shape`.

        The `initializer` is by default a clone of `kernel_initializer`. See `WeightSpec` for
        `axes`, whose last is also the bias's, and for `parts`, the number of fused matrices.
        """
        initializer = initializer or self.kernel_initializer.clone()
        layer = self.part(Dense, shape, units, kernel_initializer=initializer, name=name, **options)
        for weight in layer.weights:
            declare(weight, axes[-len(weight.shape) :], parts)
        return layer

    def add_weight(self, *args, axes=(), parts: int = 1, decays: bool | None = None, **options):
        """Adds a weight as in Keras, with a `WeightSpec` of `axes`, `parts` and `decays`."""
        return declare(super().add_weight(*args, **options), axes, parts, decays)

    def compute_output_shape(self, *shapes, **named_shapes):
        """Builds the layer if needed, and returns the output shapes; `memory` is `memory_shape`."""

        def tensors(shapes):
            dtype = "int32" if self.takes_ids else self.compute_dtype
            return keras.tree.map_shape_structure(lambda s: keras.KerasTensor(s, dtype), shapes)

        if "input_shape" in named_shapes:  # the first argument of `build` in some layers
            shapes = (named_shapes.pop("input_shape"), *shapes)
        named = {name.removesuffix("_shape"): tensors(s) for name, s in named_shapes.items()}
        outputs = self(*map(tensors, shapes), **named)
        return keras.tree.map_structure(lambda output: output.shape, outputs)

    def compute_output_spec(self, *args, **kwargs):
        # Keras's default calls `compute_output_shape`, which does not know the dtypes of the
        # inputs.
        if not self.built:
            return self(*args, **kwargs)
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def _trackable_children(self, *args, **kwargs) -> dict[str, Any]:
        # `tf.train.Checkpoint` saves and restores these parts.
        return {**super()._trackable_children(*args, **kwargs), **_numbered_parts(self)}

    def get_config(self) -> dict[str, Any]:
        arguments = {name: _serialized(v) for name, v in vars(self).get("_arguments", {}).items()}
        arguments |= dict.fromkeys(self.shared, None)
        config, policy = {**super().get_config(), **arguments}, policy_of(self)
        policies = {layer.path: policy_of(layer) for layer in self._flatten_layers() if layer.path}
        if others := {path: other for path, other in policies.items() if other != policy}:
            config["dtype"] = keras.dtype_policies.serialize(DTypePolicyMap(policy, others))
        if flags := part_flags(self):
            config["trainable_parts"] = flags
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]):
        # Keras's constructor deserializes a dtype policy.
        read = keras.saving.deserialize_keras_object
        values = {name: v if name == "dtype" else read(v) for name, v in config.items()}
        flags = values.pop("trainable_parts", {})
        layer = cls(**values)
        set_part_flags(layer, flags)
        return layer


_KERAS_ARGUMENTS = ("name", "dtype", "trainable", "autocast")


def _record_arguments(init):
    """Wraps a constructor to record its arguments for `get_config`.

    If a subclass calls the constructor of its base class, only the subclass's arguments count.
    """
    signature = inspect.signature(init)
    name_by_kind = {parameter.kind: name for name, parameter in signature.parameters.items()}

    @functools.wraps(init)
    def recorded(self, *args, **kwargs):
        for name in ALIASES.keys() & kwargs.keys() - signature.parameters.keys():
            near = nearest(name, (ALIASES[name],))
            raise ValueError(f"{type(self).__name__} has no argument {name!r}{near}")
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = {
            k: v for k, v in list(bound.arguments.items())[1:] if k not in _KERAS_ARGUMENTS
        }
        extra = arguments.pop(name_by_kind.get(inspect.Parameter.VAR_KEYWORD), {})
        attributes = vars(self)  # Keras forbids `setattr` before its own constructor
        is_outermost = "_arguments" not in attributes
        extra_arguments = {k: v for k, v in extra.items() if k not in _KERAS_ARGUMENTS}
        attributes.setdefault("_arguments", {**arguments, **extra_arguments})
        attributes["_named_arguments"] = {**attributes.get("_named_arguments", {}), **arguments}
        policy = keras.dtype_policies.get(kwargs.get("dtype"))
        if "dtype" in kwargs:
            kwargs["dtype"] = policy  # resolved before the default changes
        with _default_policy(policy):
            init(self, *args, **kwargs)
        if is_outermost:
            _freeze_new(self)

    recorded.__signature__ = signature
    return recorded


def _wrap_build(build):
    @functools.wraps(build)
    def built(self, *args, **kwargs):
        if self.built:  # a Keras model whose layers are built counts as built
            return
        count_before = len(self._flatten_layers(recursive=False)) - 1
        with _default_policy(self.dtype_policy):
            build(self, *args, **kwargs)
        _freeze_new(self, count_before)
        if pending := vars(self).get("_pending_flags"):
            set_part_flags(self, pending)
        shape = next(iter((*args, *kwargs.values())), None)
        if self.input_rank and shape and not self.takes_ids:
            self.input_spec.axes = {-1: shape[-1]}
        if keras.backend.backend() == "tensorflow":
            # A checkpoint that was restored before `build` waits for these parts.
            for name, part in _numbered_parts(self).items():
                self._handle_deferred_dependencies(name, part)

    return built


def _numbered_parts(layer) -> dict[str, keras.layers.Layer | keras.Variable]:
    """Returns all parts of a layer that TensorFlow should see, by names such as `layer-0`.

    Keras shows TensorFlow only the parts that are attributes, but neither those in lists, dicts and
    tuples nor the states of random number generators.
    """
    weights = layer._trainable_variables + layer._non_trainable_variables
    # Recording sub-layers show their own seeds. The numbers stay when `build` adds parts.
    others = [part for part in layer._layers if not isinstance(part, Recording)]
    owners = [layer, *(inner for part in others for inner in part._flatten_layers())]
    seeds = [generator.state for owner in owners for generator in owner._seed_generators]
    parts = {"layer": layer._layers, "weight": weights, "seed": seeds}
    return {f"{kind}-{i}": part for kind in parts for i, part in enumerate(parts[kind])}


def _freeze_new(layer, count_before: int = 0) -> None:
    """Freezes the sub-layers of a frozen `layer` except the first `count_before`.

    Keras itself leaves new sub-layers trainable.
    """
    if not layer.trainable:
        for part in layer._flatten_layers(include_self=False, recursive=False)[count_before:]:
            part.trainable = False


def _parts(layer, prefix: str = "") -> Iterator[tuple[str, keras.layers.Layer, keras.layers.Layer]]:
    """Yields a path, a sub-layer and its parent for all sub-layers at all levels, parents first.

    A path such as `"2/0"` contains the index of a sub-layer within its parent at each level.
    """
    for index, part in enumerate(layer._flatten_layers(include_self=False, recursive=False)):
        yield f"{prefix}{index}", part, layer
        yield from _parts(part, f"{prefix}{index}/")


def part_flags(layer: keras.layers.Layer) -> dict[str, bool]:
    """Returns the values of `trainable` that differ from the parent's, by the sub-layer's path."""
    flags = {n: p.trainable for n, p, owner in _parts(layer) if p.trainable != owner.trainable}
    return {**flags, **vars(layer).get("_pending_flags", {})}


def set_part_flags(layer: keras.layers.Layer, flags: Mapping[str, bool]) -> None:
    """Sets `trainable` of sub-layers to the values that `part_flags` returned.

    Sub-layers that do not exist yet receive the value when `build` creates them.
    """
    parts = {path: part for path, part, _ in _parts(layer)} if flags else {}
    # Parents come first, because Keras also sets `trainable` on all sub-layers of a layer.
    for path in sorted(flags.keys() & parts.keys()):
        parts[path].trainable = flags[path]
    vars(layer)["_pending_flags"] = {n: flag for n, flag in flags.items() if n not in parts}


@contextlib.contextmanager
def _default_policy(policy) -> Iterator[None]:
    """Sets Keras's default dtype policy within this context, unless `policy` is `None`."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(keras.dtype_policies.get(policy))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _serialized(value):
    if isinstance(value, list | tuple):  # a loaded layer has lists
        return [_serialized(item) for item in value]
    return keras.saving.serialize_keras_object(value)
