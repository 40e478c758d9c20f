"""Compiles a step for a TPU, in a separate process, on a machine without a TPU.

    python -m experiments.lab.tpu_check.compiler STEP.hlo v4:2x2x1 CORES RESULT.json [TEXT.hlo]

If an internal check of the TPU compiler fails, the compiler ends its process. The compiler also
keeps gigabytes of memory after a compilation. This module therefore runs the compiler in a process
of its own.
"""

import importlib.util
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from experiments.lab.tpu_check.chips import chip_of
from experiments.lab.tpu_check.cycles import collectives, estimate
from macaron_tf.errors import UserError
from macaron_tf.io.paths import read_json

# The search tries multiples of 8 rows, which fill a TPU's tiles and can be split among 8 replicas.
MULTIPLE = 8


def memory_total(result: dict) -> int | None:
    """Returns the number of bytes that a step needs on a core, or `None` if it is unknown.

    Args:
        result: output of `compile_step`.
    """
    if sizes := result.get("memory"):
        persistent = sizes["arguments"] + sizes["outputs"] - sizes["aliased"]
        return persistent + sizes["temporaries"] + sizes["code"]
    return result.get("memory_needed")


def fits(result: dict, limit: int) -> bool:
    """Returns whether a step was compiled and needs at most `limit` bytes.

    Args:
        result: output of `compile_step`.
        limit: memory of a core in bytes.
    """
    return "memory" in result and memory_total(result) <= limit


def search(
    compiled: Callable[[int], dict], rows: int, limit: int, compilations: int
) -> dict[int, dict]:
    """Searches for the largest number of rows that fits, by compiling the step several times.

    The search ends early if a compilation fails for a reason other than memory.

    Args:
        compiled: function from a number of rows to the output of `compile_step`.
        rows: number of rows in the first compilation.
        limit: memory of a core in bytes.
        compilations: maximum number of compilations, at least 1.

    Returns:
        A dict mapping the number of rows to the output of `compile_step`, in the order of
        compilation.
    """
    results: dict[int, dict] = {}
    guess: int | None = rows
    while guess is not None and len(results) < compilations:
        results[guess] = compiled(guess)
        if memory_total(results[guess]) is None:
            break
        guess = _next_rows(results, limit)
    return results


def _next_rows(results: dict[int, dict], limit: int) -> int | None:
    """Returns the next number of rows to compile, or `None` if the search is complete.

    The function estimates the number of rows at which the memory would reach the limit, assuming
    that memory grows linearly with the number of rows, and rounds down to a multiple of `MULTIPLE`.

    Args:
        results: dict mapping the number of rows to the output of `compile_step`.
        limit: memory of a core in bytes.
    """
    largest_fit = max((rows for rows, result in results.items() if fits(result, limit)), default=0)
    smallest_misfit = min(
        (rows for rows, result in results.items() if not fits(result, limit)), default=None
    )
    points = sorted((rows, memory_total(result)) for rows, result in results.items())
    if len(points) == 1:
        (rows, total), sizes = points[0], results[points[0][0]].get("memory")
        # Only the temporaries grow with the batch, except the gradients, which are small.
        points = [(0, total - sizes["temporaries"] if sizes else 0), (rows, total)]
    # Uses the two points nearest to the limit, because memory is not quite linear in the number of
    # rows: close to the limit, the compiler recomputes values instead of keeping them.
    (a, low), (b, high) = sorted(sorted(points, key=lambda p: abs(p[1] - limit))[:2])
    predicted = a + (limit - low) * (b - a) / (high - low) if high > low else 2 * b
    guess = int(predicted) // MULTIPLE * MULTIPLE
    if smallest_misfit is not None:
        guess = min(guess, (smallest_misfit - 1) // MULTIPLE * MULTIPLE)
    return guess if guess > largest_fit else None


def check_installed() -> None:
    """Raises a `UserError` if jax or libtpu is missing."""
    if any(importlib.util.find_spec(package) is None for package in ("jax", "libtpu")):
        raise UserError(
            "the TPU compiler is not installed: run `make tpu-check`, or run "
            "`pip install -r experiments/lab/tpu_check/requirements.txt` in a separate environment"
        )


def compile_step(
    hlo: bytes, topology: str, text: pathlib.Path | None = None, cores: int | None = None
) -> dict:
    """Compiles a step with the TPU compiler, in a separate process.

    The result is a dict with these fields:

    - "compilation": a dict with "seconds", "cpu_seconds" and "peak_bytes"
    - "dynamic": names of ops whose shapes are known only at run time
    - "device_kind" and "cores_a_chip": name of the chip, and number of cores per chip, in libtpu
    - if compilation succeeded: "memory" (dict of sizes in bytes), "cycles" (output of
      `cycles.Estimate.as_dict`) and, with `cores`, "collectives" (output of `cycles.collectives`)
    - if compilation failed: "error", "error_ops" and, if memory was too small, "memory_needed" in
      bytes

    If libtpu has no such topology, or if the topology is too small for the mesh, the only fields
    are "compilation" and "error". If the process crashed, the only field is "error".

    Args:
        hlo: serialized HLO module of the step or, with `cores`, StableHLO bytecode.
        topology: the TPU, such as `v4:2x2x1`.
        text: file for the optimized HLO text; `None` means that the text is not written.
        cores: number of cores in the mesh of a JAX step; `None` means a TensorFlow step, which is
            compiled for one core.
    """
    with tempfile.TemporaryDirectory(prefix="tpu_check-") as folder:
        source, result = pathlib.Path(folder) / "step.hlo", pathlib.Path(folder) / "result.json"
        source.write_bytes(hlo)
        command = [sys.executable, "-m", "experiments.lab.tpu_check.compiler", source, topology]
        command += [cores or 0, result]
        # Without these variables libtpu searches for a TPU and for Google's metadata server.
        environment = {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": chip_of(topology).accelerator,
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            "TPU_MIN_LOG_LEVEL": "3",
            # The lock file of libtpu protects a device, and this process uses none.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
        started = time.monotonic()
        process = subprocess.run(
            [*map(str, command), *([str(text)] if text else [])],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.exists():
            content = read_json(result, mend="compile again", compilation=dict)
            content["compilation"]["seconds"] = time.monotonic() - started
            return content
    lines = [line for line in process.stderr.splitlines() if line.strip()]
    reason = lines[-1] if lines else "it printed no message"
    return {"error": f"the compiler ended with status {process.returncode}: {reason}"}


def main() -> None:
    """Runs the separate process: compiles a step and writes the result as JSON."""
    source, topology, cores, result, *text = sys.argv[1:]
    outcome, optimized = _compiled(pathlib.Path(source).read_bytes(), topology, int(cores))
    if text and optimized:
        pathlib.Path(text[0]).write_text(optimized, encoding="utf-8")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    # `ru_maxrss` would include the parent process, whose model takes gigabytes.
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    outcome["compilation"] = {"cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_bytes": peak}
    pathlib.Path(result).write_text(json.dumps(outcome), encoding="utf-8")


def _compiled(hlo: bytes, topology: str, cores: int) -> tuple[dict, str | None]:
    """Returns the result of `compile_step` without "compilation", and the optimized HLO text.

    After an error, the text is `None`.
    """
    import jax
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir

    try:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except jax.errors.JaxRuntimeError as error:
        return {"error": f"libtpu has no topology {topology} ({error})"}, None
    mesh_devices = tuple(devices[: cores or 1])
    if len(mesh_devices) < cores:
        return {
            "error": f"{topology} has {len(mesh_devices)} cores, but the mesh needs {cores}"
        }, None
    device = mesh_devices[0]
    with mlir.make_ir_context():
        module = ir.Module.parse(hlo if cores else xla_client._xla.mlir.hlo_to_stablehlo(hlo))
        outcome = {
            "device_kind": device.device_kind,
            "cores_a_chip": 1 + max(each.core_on_chip for each in devices),
            "dynamic": _dynamic(module),
        }
        if not cores:
            _use_tpu_random_bits(module)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, len(mesh_devices)
    device_ids = np.array([[each.id for each in mesh_devices]])
    options.device_assignment = xla_client.DeviceAssignment.create(device_ids)
    if cores:
        build = options.executable_build_options
        build.use_spmd_partitioning = build.use_shardy_partitioner = True
    try:
        executable = device.client.compile(
            module, xla_client._xla.DeviceList(mesh_devices), options
        )
    except jax.errors.JaxRuntimeError as error:
        return outcome | _refusal(str(error)), None
    stats = executable.get_compiled_memory_stats()
    optimized = executable.hlo_modules()[0].to_string()
    outcome["memory"] = {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    outcome["cycles"] = estimate(optimized).as_dict()
    if cores:
        outcome["collectives"] = collectives(optimized)
    return outcome, optimized


def _ops(module, *names: str) -> list:
    """Returns the operations in `module` whose name is in `names`, in program order."""
    from jaxlib.mlir import ir

    operations = []

    def visit(op):
        if op.name in names:
            operations.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return operations


def _dynamic(module) -> list[str]:
    """Returns the names of the ops whose shapes depend on values, without repetition."""
    names = []
    for op in _ops(module, "stablehlo.set_dimension_size"):
        # If the size is known at compile time, as after top_k, the type is static.
        if "?" in str(op.results[0].type):
            name = re.search(r'"([^"]+)"', str(op.location))
            names.append(name[1] if name else op.name)
    return list(dict.fromkeys(names))


def _use_tpu_random_bits(module) -> None:
    """Converts a program that TensorFlow wrote for a CPU to the program for a TPU, in place.

    The function removes `mhlo.copy`, which has no effect and which libtpu cannot read. It also
    replaces the generator of random bits, because TensorFlow uses a different generator for each
    type of device. A CPU uses Philox, whose state is a key and two counters. A TPU uses the chip's
    own generator, whose state is a key and one counter. In a BERT step on a TPU, Philox can take
    half of the cycles.

    Args:
        module: StableHLO module of a TensorFlow step.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    for copy in _ops(module, "mhlo.copy"):
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()
    for philox in _ops(module, "stablehlo.rng_bit_generator"):
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


def _refusal(message: str) -> dict:
    """Returns the fields "error", "error_ops" and "memory_needed" from the compiler's message.

    The field "memory_needed", in bytes, is set only if memory was too small.
    """
    fields = {
        "error": " ".join(message.split())[:500],
        "error_ops": list(dict.fromkeys(re.findall(r'op_name="([^"]+)"', message))),
    }
    # "the total memory required for HLO temporaries (22.89G) exceeds available HBM (15.25G)"
    if sizes := re.search(r"\(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+[KMG])\)", message):
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}
        fields["memory_needed"] = int(float(sizes[1]) * unit[sizes[2]])
        fields["error"] = f"out of memory: {sizes[1]}{sizes[2]} needed, {sizes[3]} available"
    return fields


if __name__ == "__main__":
    main()
