"""Compiles recipes' train steps for a TPU, on a machine without one, and prints memory and cycles.

    python -m experiments.lab.tpu_check bert_base swish_rnn_base --topology v4:2x2x1
    python -m experiments.lab.tpu_check wmt14_macaron_base --set data.batching.max_tokens=8192

The step is the one that `train` runs, with static shapes and in bfloat16: forward and backward
pass, gradient norm, optimizer. With TensorFlow it is one core's part of an update.

    python -m experiments.lab.tpu_check gpt2_base --engine jax --mesh data=2,model=2

This command compiles the JAX engine's update for a mesh of cores, in which each index along the
axis `data` has one micro-batch, and also prints the GiB that a core receives in collective
operations.

The cycles are the compiler's estimates, in which a loop's cycles count once per iteration. A step
fails if it does not compile or fit, if a shape depends on values, or if the number of a loop's
iterations is unknown. The exit status is then 1.

The compiler is in the environment that `make test-tpu` makes. Compiling a recipe of base size
takes 1 to 2 minutes and 6 GB of memory.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import gc
import importlib.util
import math
import multiprocessing
import os
import re
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments import command_line as cli
from macaron_tf.errors import UserError
from macaron_tf.runs.versions import commit

# The GiB that libtpu 0.0.51 lets a program use on a core, and the clock in Hz at which one
# multiply-add per cell and cycle gives the peak rate in bfloat16 of Google's documentation:
# FLOP/s / (cores x matrix units x cells x 2). libtpu takes a v4 chip as two cores. The two matrix
# units of a v6e count as four: the compiler's cycles of a matrix product are too few for two.
CHIPS = {
    "v4": (15.25, 275e12 / (2 * 4 * 128**2 * 2)),
    "v5e": (15.75, 197e12 / (4 * 128**2 * 2)),
    "v5p": (95.73, 459e12 / (8 * 128**2 * 2)),
    "v6e": (31.24, 918e12 / (4 * 256**2 * 2)),
}
COLUMNS = (
    "recipe", "topology", "batch per core", "passes", "GiB: arguments", "temporaries",
    "total / limit", "collectives", "Mcycles per step", "in loops", "ms per step",
    "tokens/s per core", "commit",
)  # fmt: skip
KINDS = ("pretraining", "translation", "elmo", "sequence")


def run(options: argparse.Namespace) -> int:
    """Runs the command, and returns the exit status."""
    from experiments import registry, studies

    topologies = options.topology or ["v5e:2x2"]
    if unknown := [name for name in topologies if name.partition(":")[0] not in CHIPS]:
        raise UserError(f"{unknown[0]} is no topology: begin with one of {', '.join(CHIPS)}")
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("libtpu is not installed: use the Python of .venv-tpu (`make test-tpu`)")
    # A compilation uses no device. Without these variables libtpu still searches for a TPU and for
    # Google's metadata server, and locks a device.
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_MIN_LOG_LEVEL": "3", "TPU_SKIP_MDS_QUERY": "1"}
    os.environ |= {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}
    os.environ |= {"TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    mesh = options.mesh or ("data=1" if options.engine == "jax" else None)
    names = [name for name in registry.names() if registry.load(name).kind in KINDS]
    # Wrong settings are reported before compilations, which take minutes.
    layouts = {name: layout_of(load(name, options.set)) for name in options.recipe or names}
    print("\n".join(studies.table(COLUMNS, [])))
    passed = True
    for name, layout in layouts.items():
        for topology in topologies:
            title = [" ".join([name, *options.set]), f"{topology}, {mesh}" if mesh else topology]
            # A process of its own for each: a failed check of the compiler ends its process, and
            # TensorFlow keeps the graphs of a recipe, a gigabyte.
            spawn = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
                try:
                    cells = pool.submit(check, name, topology, options.set, mesh).result()
                except concurrent.futures.process.BrokenProcessPool:
                    cells = ["NO: the compiler ended its process"]
            cells = [*title, f"{layout.rows} x {layout.length}", *cells]
            cells += [*["-"] * (len(COLUMNS) - 1 - len(cells)), commit()]
            print(f"| {' | '.join(cells)} |", flush=True)
            passed &= cells[3] == "yes"
    return 0 if passed else 1


def check(name: str, topology: str, settings: list[str], mesh: str | None) -> list[str]:
    """Compiles a recipe's step, and returns the cells of its row from "passes" on."""
    from macaron_tf.distribution.mesh import parse_mesh, use_mesh

    axes = parse_mesh(mesh) if mesh else {}
    cores, replicas = math.prod(axes.values()) if mesh else 0, axes.get("data", 1)
    if mesh:
        import jax

        jax.config.update("jax_num_cpu_devices", cores)  # JAX divides the CPU into the mesh
        use_mesh(axes)
    recipe = load(name, settings)
    layout, (limit, clock) = layout_of(recipe), CHIPS[topology.partition(":")[0]]
    if recipe.kind == "pretraining":  # a Transformer-XL's memory has one row per row of a batch
        recipe = recipe.changed(data=dict(batch_size=layout.rows * replicas))
    cells, problems = [], []
    try:
        model = build(recipe, layout)
        gradients = 4 * model.network.count_params()  # float32
        step = trace(model, specs_of(recipe, layout, layout.rows * replicas))
        del model
        gc.collect()  # frees gigabytes: a model and its graphs form reference cycles
        executable, problems = compile_step(step, topology, cores)
    except Exception as error:  # the model's code and the compiler may raise any exception
        problems.append(" ".join(str(error).split())[:300] or type(error).__name__)
    else:
        stats = executable.get_compiled_memory_stats()
        [module] = executable.hlo_modules()
        total = stats.argument_size_in_bytes + stats.output_size_in_bytes
        total += stats.temp_size_in_bytes + stats.generated_code_size_in_bytes
        total -= stats.alias_size_in_bytes
        received = (collectives(module.to_string()) or {"": 0}) if mesh else {"": gradients}
        estimate = cycles(module)
        seconds = estimate.total / clock
        rate = layout.rows * layout.length / axes.get("model", 1) / seconds
        cells = [
            _gib(stats.argument_size_in_bytes),
            _gib(stats.temp_size_in_bytes),
            f"{_gib(total)} / {limit:.2f}",
            ", ".join(f"{kind} {_gib(size)}".strip() for kind, size in received.items()),
            f"{estimate.total / 1e6:.1f}",
            f"{estimate.in_loops / estimate.total:.0%}",
            f"{seconds * 1e3:.1f}",
            f"{rate:,.0f}",
        ]
        problems += ["out of memory"] if total > limit * 2**30 else []
        problems += ["a loop has an unknown number of iterations"] if estimate.unknown else []
    passes = f"NO: {'; '.join(problems)}".replace("|", "/") if problems else "yes"
    return [passes, *cells]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f}"


def load(name: str, settings: Sequence[str] = ()):
    """Returns a recipe with settings for a TPU, followed by `settings`."""
    from experiments import registry
    from macaron_tf.runs.recipe import override

    recipe = registry.load(name)
    if recipe.kind not in KINDS:
        raise UserError(f"{name} is of kind {recipe.kind!r}: choose one of {', '.join(KINDS)}")
    fixed = ["training.dtype_policy=mixed_bfloat16"]
    fixed += ["data.batching.length_multiple=8"] if recipe.kind == "translation" else []
    return override(recipe, [*fixed, *settings])


class Layout(NamedTuple):
    """Vocabulary and micro-batch shape of a recipe.

    Attributes:
        vocabulary: vocabulary, or an object with its size; `None` means no vocabulary.
        rows, length: shape of a core's micro-batch, with rows of the maximum length. For
            translation, source and target have this length.
        row: specs of one row's features; `None` means those that the recipe's objective makes.
    """

    vocabulary: Any
    rows: int
    length: int
    row: dict | None


def layout_of(recipe) -> Layout:
    """Returns the layout of a recipe, an output of `load`."""
    from tensorflow import TensorSpec, int32

    def ids(*shape: int) -> TensorSpec:
        return TensorSpec(shape, int32)

    if recipe.kind == "pretraining":
        from macaron_tf.text.wordpiece import WordPieceVocabulary

        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words += [f"w{number}" for number in range(len(words), recipe.data.vocabulary.size)]
        length = recipe.data.sequence_length
        return Layout(WordPieceVocabulary(words), recipe.data.batch_size, length, None)
    if recipe.kind == "translation":
        from macaron_tf.data.sampler import bucket_shapes

        batching = recipe.data.batching
        vocabulary = types.SimpleNamespace(size=_rounded(recipe.data.vocabulary_size, 8))
        length = _rounded(recipe.data.cleaning.max_tokens, batching.length_multiple)
        [(rows, length)] = bucket_shapes([length], batching.max_tokens, batching.row_multiple)
        return Layout(vocabulary, rows, length, {"source": ids(length), "target": ids(length)})
    if recipe.kind == "elmo":
        length = recipe.data.row_length
        vocabulary = types.SimpleNamespace(size=recipe.data.vocabulary_size)
        width = recipe.model_config(vocabulary.size).max_characters
        row = {"characters": ids(length, width), "words": ids(length)}
        return Layout(vocabulary, recipe.data.batch_size, length, row)
    from macaron_tf.runs.sequences import TASKS

    task, config = TASKS[recipe.task.name], recipe.model_config()
    outputs = () if config.last_only else (task.length,)
    inputs = TensorSpec((task.length, config.input_dim)) if config.input_dim else ids(task.length)
    values = TensorSpec((*outputs, config.output_dim))
    targets = ids(*outputs) if task.loss == "classes" else values
    row = {"inputs": inputs, "targets": targets, "weight": TensorSpec(outputs)}
    return Layout(None, recipe.data.batch_size, task.length, row)


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def specs_of(recipe, layout: Layout, rows: int) -> dict:
    """Returns a dict mapping the features of a batch to their specs, whose shapes are static."""
    import numpy as np
    import tensorflow as tf

    from macaron_tf.data.corpus.packing import Packer, Row
    from macaron_tf.data.corpus.reading import features, with_documents
    from macaron_tf.objectives import MaskedObjective, PermutationObjective

    if layout.row is not None:
        row = layout.row.items()
        return {name: tf.TensorSpec((rows, *spec.shape), spec.dtype) for name, spec in row}
    vocabulary = layout.vocabulary
    objective = recipe.make_objective(static_shapes=True)

    def inputs(columns: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        batch, starts = features(columns, vocabulary.special.pad), tf.zeros([rows], tf.bool)
        if objective.has_memory:  # see `stream_dataset`
            batch |= {"previous_ids": batch["token_ids"], "starts": starts}
        if isinstance(objective, PermutationObjective) and objective.bidirectional:
            batch["backward"] = starts
        return batch

    columns = Packer(recipe.data, vocabulary).columns([Row([], 0, 0)] * rows, np.zeros((rows, 2)))
    batches = tf.data.Dataset.from_tensors(columns).map(inputs)
    if recipe.data.isolate_documents:
        batches = with_documents(batches, vocabulary.special.end)
    # Static masks have the same shapes as dynamic masks, but need row numbers.
    if isinstance(objective, MaskedObjective):
        masking = dataclasses.replace(objective.masking, duplicates=None)
        objective = dataclasses.replace(objective, masking=masking)
    return dict(objective.dataset(batches, vocabulary, seed=0).element_spec)


def build(recipe, layout: Layout):
    """Builds the model as the command `train` does, but with static shapes in the objective."""
    import keras

    from macaron_tf.runs.run import Run
    from macaron_tf.training import build_fit_model

    keras.utils.set_random_seed(recipe.training.seed)
    run = Run(None, recipe, layout.vocabulary)
    network, objective = run.build_network(), recipe.make_objective(static_shapes=True)
    recipe.adapt(network)
    stage = recipe.first_stage(network) if recipe.kind == "translation" else None
    model = build_fit_model(network, objective, recipe.training, first_stage=stage)
    model.memory = recipe.memory(network)
    model.prepare()
    return model


def trace(model, specs: dict):
    """Returns an optimizer update that reads one micro-batch, as a serialized HLO module.

    With JAX, the result is a StableHLO module, whose update reads one micro-batch for each index
    along the mesh axis `data`.
    """
    import keras
    import tensorflow as tf

    if keras.backend.backend() == "jax":
        import jax

        mesh = keras.distribution.distribution()
        batch = {
            name: jax.ShapeDtypeStruct(
                spec.shape,
                spec.dtype.as_numpy_dtype,
                sharding=mesh and mesh.get_data_layout(spec.shape).backend_layout,
            )
            for name, spec in specs.items()
        }
        return model.lower(batch).compiler_ir()

    def update(*tensors):
        batch = dict(zip(specs, tensors, strict=True))
        return model.updates.apply(*model.updates.micro_step(batch))

    step = tf.function(update, autograph=False, jit_compile=True)
    # This uses tf2xla's CPU kernels, because this build of TensorFlow has no TPU kernels. The HLO
    # is the same.
    return step.experimental_get_compiler_ir(*specs.values())(stage="hlo_serialized")


def compile_step(step, topology: str, cores: int):
    """Compiles the output of `trace` with the TPU compiler for a `topology`, such as `v4:2x2x1`.

    `cores` is the number of cores in a JAX step's mesh, or 0 for a TensorFlow step, on one core.
    Also returns the problems: ops whose shapes depend on values.
    """
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    mesh_devices = tuple(devices[: cores or 1])
    if len(mesh_devices) < cores:
        raise ValueError(f"the topology has {len(devices)} cores, but the mesh needs {cores}")
    if not cores:
        with mlir.make_ir_context():
            step = ir.Module.parse(xla_client._xla.mlir.hlo_to_stablehlo(step))
            _use_tpu_random_bits(step)
    # If the size is known at compile time, as after top_k, the type is static.
    dynamic = [
        f"a shape depends on values: {op.location}"
        for op in _ops(step.operation, "stablehlo.set_dimension_size")
        if "?" in str(op.results[0].type)
    ]
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, len(mesh_devices)
    device_ids = np.array([[each.id for each in mesh_devices]])
    options.device_assignment = xla_client.DeviceAssignment.create(device_ids)
    if cores:
        build_options = options.executable_build_options
        build_options.use_spmd_partitioning = build_options.use_shardy_partitioner = True
    device_list = xla_client._xla.DeviceList(mesh_devices)
    return mesh_devices[0].client.compile(step, device_list, options), dynamic[:3]


def _ops(operation, name: str) -> list:
    """Returns the operations in `operation` with this name."""
    blocks = (block for region in operation.regions for block in region)
    inner = [found for block in blocks for one in block for found in _ops(one.operation, name)]
    return [*inner, operation] if operation.name == name else inner


def _use_tpu_random_bits(module) -> None:
    """Converts a program that TensorFlow wrote for a CPU to the program for a TPU, in place.

    libtpu cannot read `mhlo.copy`, which has no effect. TensorFlow's generator of random bits on a
    CPU is Philox, whose state is a key and two counters; a TPU has its own, with a key and one
    counter. In a BERT step on a TPU, Philox can take half of the cycles.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    for copy in _ops(module.operation, "mhlo.copy"):
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()
    for philox in _ops(module.operation, "stablehlo.rng_bit_generator"):
        if "PHILOX" not in str(philox.attributes["rng_algorithm"]):
            continue
        old_state = philox.operands[0]
        algorithm = ir.Attribute.parse("#stablehlo<rng_algorithm DEFAULT>")
        with ir.InsertionPoint(philox), philox.location:
            state = ir.RankedTensorType.get((2,), ir.RankedTensorType(old_state.type).element_type)
            generator = ir.Operation.create(
                "stablehlo.rng_bit_generator",
                results=[state, philox.results[1].type],
                operands=[stablehlo.slice(old_state, [0], [2], [1])],
                attributes={"rng_algorithm": algorithm},
            )
            # Nothing reads the second counter; appending it keeps the shape of the state.
            second_counter = stablehlo.slice(old_state, [2], [3], [1])
            new_state = stablehlo.concatenate([generator.results[0], second_counter], 0)
        for old, new in zip(philox.results, (new_state, generator.results[1]), strict=True):
            old.replace_all_uses_with(new)
        philox.erase()


def collectives(text: str) -> dict[str, int]:
    """Returns the bytes that a core receives by each type of collective, in descending order.

    A collective in a loop of the optimized HLO module counts once.
    """
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    sizes_by_kind = collections.Counter()
    for shapes, kind, start in re.findall(rf" = (.*?) ({kinds})(-start)?\(", text):
        sizes = [  # of arrays such as bf16[8,128] and pred[]
            math.prod(map(int, filter(None, shape.split(",")))) * -(-int(bits or 8) // 8)
            for bits, shape in re.findall(r"\b(?:pred|[a-z]+?(\d+)[a-z0-9]*)\[([\d,]*)\]", shapes)
        ]
        # The result of an all-gather-start or collective-permute-start includes operand and flags.
        sizes_by_kind[kind] += max(sizes) if start and kind != "all-reduce" else sum(sizes)
    return dict(sizes_by_kind.most_common())


class Cycles(NamedTuple):
    """Estimated cycles in one execution of a program.

    Attributes:
        total: all cycles.
        in_loops: cycles in loops, which `total` includes.
        unknown: number of loops whose number of iterations is unknown; they count once.
    """

    total: int
    in_loops: int
    unknown: int


def cycles(module) -> Cycles:
    """Sums the cycle estimates in an optimized HLO module.

    The compiler writes `estimated_cycles` into each instruction. The estimate of a fusion includes
    the instructions in the fusion. The cycles of a loop's body are multiplied by the number of
    iterations. Of a conditional, the most expensive branch counts: the optimizer step is in a
    branch, because an update with a NaN gradient is skipped.
    """
    from tensorflow.compiler.xla.service.hlo_pb2 import HloModuleProto

    found = HloModuleProto.FromString(module.as_serialized_hlo_module_proto())
    return _Program(found.computations).cycles_of(found.entry_computation_id)


def _index(instruction) -> int | None:
    """Returns the tuple index that a `get-tuple-element` reads; `None` for other opcodes."""
    return instruction.tuple_index if instruction.opcode == "get-tuple-element" else None


class _Program:
    """Instructions of an HLO module by their ids and the ids of their computations."""

    def __init__(self, computations):
        self.roots = {each.id: each.root_id for each in computations}
        self.instructions = {
            each.id: {instruction.id: instruction for instruction in each.instructions}
            for each in computations
        }

    def cycles_of(self, computation: int) -> Cycles:
        found = [Cycles(0, 0, 0)]
        for instruction in self.instructions[computation].values():
            note = re.search(rb'"estimated_cycles":"(\d+)"', instruction.backend_config)
            if instruction.opcode in ("while", "conditional", "call", "async-start"):
                parts = [self.cycles_of(called) for called in instruction.called_computation_ids]
                if instruction.opcode == "conditional":
                    parts = [max(parts)]
                elif instruction.opcode == "while":
                    trips = self.trips(computation, instruction)
                    loop = sum(part.total for part in parts) * (1 if trips is None else trips)
                    parts = [Cycles(loop, loop, sum(p.unknown for p in parts) + (trips is None))]
                found += parts
            elif note and int(note[1]) < 2**60:  # the largest integer is an unknown estimate
                found.append(Cycles(int(note[1]), 0, 0))
        return Cycles(*map(sum, zip(*found, strict=True)))

    def value(self, computation: int, instruction: int):
        """Returns an instruction or, if this is a copy or a bitcast, the copied value."""
        found = self.instructions[computation][instruction]
        while found.opcode in ("copy", "bitcast"):
            found = self.instructions[computation][found.operand_ids[0]]
        return found

    def integer(self, computation: int, instruction: int) -> int | None:
        """Returns the value of a constant or of a finished loop's counter; `None` if it is unknown.

        In a backward pass, the bound of a loop is the final counter of the forward loop.
        """
        found = self.value(computation, instruction)
        if found.opcode == "constant":
            numbers = [*found.literal.s32s, *found.literal.u32s, *found.literal.s64s]
            return numbers[0] if len(numbers) == 1 else None
        if (index := _index(found)) is None:
            return None
        loop = self.instructions[computation][found.operand_ids[0]]
        if loop.opcode != "while":
            return None
        start, step = self.counter(computation, loop, index)
        trips = self.trips(computation, loop) if step else 0
        return None if None in (start, step, trips) else start + step * trips

    def counter(self, parent: int, loop, index: int | None) -> tuple[int | None, int | None]:
        """Returns the start of the integer at `index` in a loop's state, and its step, if known."""
        state = self.value(parent, loop.operand_ids[0])
        if index is None or state.opcode != "tuple":
            return None, None
        start, body = self.integer(parent, state.operand_ids[index]), loop.called_computation_ids[0]
        new = self.value(body, self.value(body, self.roots[body]).operand_ids[index])
        if _index(new) == index:
            return start, 0
        parts = [self.value(body, each) for each in new.operand_ids] if new.opcode == "add" else []
        steps = [part for part in parts if _index(part) != index]
        return start, self.integer(body, steps[0].id) if len(steps) == 1 else None

    def trips(self, parent: int, loop) -> int | None:
        """Returns the iteration count of a loop in `parent`, or `None` if it is unknown."""
        condition = loop.called_computation_ids[1]
        compare = self.value(condition, self.roots[condition])
        if compare.comparison_direction != "LT":
            return None
        counter, bound = [self.value(condition, each) for each in compare.operand_ids]
        limit = self.integer(condition, bound.id)
        if limit is None:
            limit, _ = self.counter(parent, loop, _index(bound))
        start, step = self.counter(parent, loop, _index(counter))
        return -(-(limit - start) // step) if None not in (limit, start) and step else None


main = cli.single_program(
    "python -m experiments.lab.tpu_check",
    __doc__,
    "experiments.lab.tpu_check:run",
    cli.argument("recipe", f"recipes (default: all of the kinds {', '.join(KINDS)})", nargs="*"),
    cli.argument(
        "--topology CHIP:SHAPE",
        f"TPU generation ({', '.join(CHIPS)}) and shape (default: v5e:2x2; repeatable)",
        action="append",
    ),
    cli.argument("--engine", "Keras backend (default: tensorflow)", choices=cli.ENGINES),
    cli.argument("--mesh AXES", "cores for --engine jax, as data=2,model=2 (default: data=1)"),
    cli.settings("model.rnn_step_sizes=1 or training.dtype_policy=float32"),
)

if __name__ == "__main__":
    raise SystemExit(main())
