"""Number of floating-point operations (FLOPs) of a network, and a device's peak rate.

The counts are those of the graph that is traced for given shapes. The FLOPs of a matrix product,
convolution or triangular system are 2 for each multiply-accumulate, wherever it is. In the body of
a loop, an addition, subtraction, multiplication or division of floats counts 1 for each element,
because a recurrence such as SwishRNN's consists of nothing else. A loop counts as often as it runs.
Norms, activations and softmax do not count, as is usual for model FLOPs utilization (MFU).
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.distribution import Workers
from macaron_tf.kernels import implementation_scope

if TYPE_CHECKING:
    from macaron_tf.training.trained_model import TrainedModel

# A training step computes each product of the forward pass, and two of the same size for the
# gradients of its factors. Products that gradient checkpointing repeats do not count.
_FORWARD_PASSES = 3
# Peak FLOPs per second of dense bfloat16 products, by the start of the device's name.
_PEAKS = {
    "NVIDIA H100 80GB": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,  # v5e
    "TPU v5p?": 459e12,
    "TPU v6 lite": 918e12,  # v6e
}
# Operations of a loop's condition that only compares counters with limits.
_COUNTING = {"Placeholder", "Const", "Less", "LogicalAnd", "Identity"}
_IN_LOOPS = ("AddV2", "Sub", "Mul", "RealDiv", "add", "sub", "mul", "div")


def forward_flops(function: Callable, *specs: Any) -> int | None:
    """Counts the FLOPs of `function`, such as a built network, on inputs of the shapes `specs`.

    `specs` are nested `tf.TensorSpec`s. Fused and native kernels count as TensorFlow's or JAX's own
    ops: attention as all T x T products, also with a causal mask. Returns `None` if a counted size
    or number of iterations is unknown, for example because it depends on the data.
    """
    with implementation_scope("loop"):
        if keras.backend.backend() == "jax":
            import jax

            def stateless(*arguments):  # seeds of dropout must not keep traced values
                with keras.StatelessScope():
                    return function(*arguments)

            shapes = tf.nest.map_structure(
                lambda spec: jax.ShapeDtypeStruct(tuple(spec.shape), spec.dtype.as_numpy_dtype),
                specs,
            )
            count = _of_jaxpr(jax.make_jaxpr(stateless)(*shapes).jaxpr)
        else:
            traced = tf.function(function, autograph=False)
            count = _of_graph(traced.get_concrete_function(*specs).graph)
    return None if math.isnan(count) else int(count)


@dataclasses.dataclass(frozen=True)
class UpdateCost:
    """FLOPs of an update on all devices.

    Attributes:
        peak: FLOPs per second of dense bfloat16 products that all devices reach at most; `None` if
            it is not known, as on CPUs.
    """

    flops: int
    peak: float | None


def update_cost(
    model: "TrainedModel", objective: Callable, dataset: tf.data.Dataset
) -> UpdateCost | None:
    """Counts the FLOPs of an update, three times those of the forward passes, by tracing one.

    If the micro-batches of `dataset` vary in shape, the first counts. Padding counts, because
    `objective` must compute with static shapes. For `None`, see `forward_flops`.
    """
    strategy, batch = model.strategy, dataset.element_spec
    replicas, mesh = strategy.num_replicas_in_sync, keras.distribution.distribution()
    shares = replicas // (Workers(strategy).count if model.per_worker_data else 1)
    if not all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(batch)):
        batch = next(iter(dataset), None)
    if batch is None:
        return None

    def spec_of(tensor) -> tf.TensorSpec:  # of one replica's rows
        rows, shape = tensor.shape[:1], tensor.shape[1:]
        return tf.TensorSpec([max(size // shares, 1) for size in rows] + shape, tensor.dtype)

    specs = tf.nest.map_structure(spec_of, batch)
    count = forward_flops(lambda batch: objective(model.network, batch, True)["loss_sum"], specs)
    if count is None:
        return None
    peak, devices = _peak(), math.prod(mesh.device_mesh.shape) if mesh else replicas
    flops = _FORWARD_PASSES * count * replicas * model.config.accumulation_steps
    return UpdateCost(flops, peak and peak * devices)


def _peak() -> float | None:
    """Returns the peak FLOPs per second of the first accelerator; `None` if it is not known."""
    if keras.backend.backend() == "jax":
        import jax

        name = jax.devices()[0].device_kind
    else:
        gpus = tf.config.list_physical_devices("GPU")
        details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
        name = details.get("device_name", "")
    return next((peak for start, peak in _PEAKS.items() if re.match(rf"{start}\b", name)), None)


def _size(shape: Any) -> float:
    """Returns the number of elements; NaN, which all sums and products keep, if it is unknown."""
    return math.prod(math.nan if dim is None else dim for dim in shape)


def _of_graph(graph: tf.Graph, in_loop: bool = False) -> float:
    """Counts the FLOPs of a TensorFlow graph and of the functions that it calls."""

    def graph_of(attribute: str) -> tf.Graph:
        # TensorFlow has no public method for it.
        return graph._get_function(op.get_attr(attribute).name).graph

    def called(attribute: str) -> float:
        return _of_graph(graph_of(attribute), in_loop)

    total, used, sources = 0.0, set(), [tensor.op for tensor in graph.outputs]
    while sources:  # from the outputs backwards, because TensorFlow computes nothing else
        if (op := sources.pop()) in used:
            continue
        used.add(op)
        sources += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        shapes, kind = [tensor.shape for tensor in op.inputs], op.type
        out = _size(op.outputs[0].shape) if op.outputs and op.outputs[0].shape.rank else 1
        if kind in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
            transposed = op.get_attr("transpose_a" if kind == "MatMul" else "adj_x")
            total += 2 * out * _size([shapes[0][-2 if transposed else -1]])
        elif kind == "Einsum" and len(shapes) == 2:
            total += 2 * out * _size(_summed(op.get_attr("equation").decode(), shapes).values())
        elif kind in ("Conv2D", "Conv3D", "DepthwiseConv2dNative"):
            total += 2 * out * _size(shapes[1][: -2 if kind.startswith("Depthwise") else -1])
        elif kind == "MatrixTriangularSolve":
            total += out * _size(shapes[0][-1:])
        elif kind in ("While", "StatelessWhile"):
            if body := _of_graph(graph_of("body"), in_loop=True):
                total += body * _iterations(op, graph_of("cond"))
        elif kind in ("If", "StatelessIf"):
            total += np.max([called("then_branch"), called("else_branch")])
        elif kind in ("PartitionedCall", "StatefulPartitionedCall"):
            total += called("f")
        elif in_loop and kind in _IN_LOOPS and op.outputs[0].dtype.is_floating:
            total += out
    return total


def _iterations(op: tf.Operation, condition: tf.Graph) -> float:
    """Returns how often a loop of TensorFlow runs; NaN if this depends on the data."""
    # The first two inputs of `tf.while_loop` are a counter and its limit, or -1. Keras's RNN
    # computes the limit as the maximum of a constant.
    limit = op.inputs[1].op.inputs[0] if op.inputs[1].op.type == "Max" else op.inputs[1]
    count = tf.get_static_value(limit)
    only_counts = {op.type for op in condition.get_operations()} <= _COUNTING
    return int(count) if only_counts and count is not None and count >= 0 else math.nan


def _summed(equation: str, shapes: list) -> dict[str, int | None]:
    """Returns the sizes of the indices over which an einsum of two arrays sums."""
    terms, result = equation.replace("...", ".").split("->")
    sizes = {}
    for term, shape in zip(terms.split(","), shapes, strict=True):
        for position, index in enumerate(term):
            if index not in result:
                behind = "." in term[:position]  # positions behind an ellipsis count from the end
                sizes[index] = shape[position - len(term) if behind else position]
    return sizes


def _of_jaxpr(jaxpr: Any, in_loop: bool = False) -> float:
    """Counts the FLOPs of a JAX program and of the programs in it."""
    total = 0.0
    for equation in jaxpr.eqns:
        kind, parameters = equation.primitive.name, equation.params
        shapes = [variable.aval.shape for variable in equation.invars]
        out = _size(equation.outvars[0].aval.shape) if equation.outvars else 0
        # Programs that the equation contains, a closed one without its constants.
        inner = [p for value in parameters.values() for p in _programs(value)]
        if kind == "dot_general":
            summed = parameters["dimension_numbers"][0][0]
            total += 2 * out * _size(shapes[0][axis] for axis in summed)
        elif kind == "conv_general_dilated":
            channels = shapes[1][parameters["dimension_numbers"].rhs_spec[0]]
            total += 2 * out * _size(shapes[1]) / channels
        elif kind == "triangular_solve":
            total += out * shapes[0][-1]
        elif kind == "scan":
            total += parameters["length"] * _of_jaxpr(inner[0], True)
        elif kind == "while":
            total += math.nan if sum(_of_jaxpr(program, True) for program in inner) else 0
        elif kind == "cond":
            total += np.max([_of_jaxpr(program, in_loop) for program in inner])
        elif inner:
            total += sum(_of_jaxpr(program, in_loop) for program in inner)
        elif in_loop and kind in _IN_LOOPS and equation.outvars[0].aval.dtype.kind in "fV":
            total += out  # bfloat16 is of NumPy's kind V
    return total


def _programs(value: Any) -> list:
    from jax.extend import core

    if isinstance(value, tuple | list):
        return [program for item in value for program in _programs(item)]
    value = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
    return [value] if isinstance(value, core.Jaxpr) else []
