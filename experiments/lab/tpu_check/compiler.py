"""Compiles a step for a TPU, in a separate process, on a machine without a TPU.

    python -m experiments.lab.tpu_check.compiler STEP.hlo v4:2x2x1 CORES RESULT.json [TEXT.hlo]

The process is separate because the TPU compiler ends it when one of its internal checks fails, and
because it keeps gigabytes of memory.
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

# Numbers of rows are multiples of a TPU's tile; 8 replicas can share them, too.
MULTIPLE = 8


def memory_total(result: dict) -> int | None:
    """Bytes that a compiled step needs at once, or that a refused compilation asked for."""
    if memory := result.get("memory"):
        kept = memory["arguments"] + memory["outputs"] - memory["aliased"]
        return kept + memory["temporaries"] + memory["code"]
    return result.get("memory_needed")


def fits(result: dict, limit: int) -> bool:
    """Whether a step was compiled and needs no more than `limit` bytes, the memory of a core."""
    return "memory" in result and memory_total(result) <= limit


def search(
    compiled: Callable[[int], dict], rows: int, limit: int, compilations: int
) -> dict[int, dict]:
    """Compiles a step at several numbers of rows to find the most that fit.

    Args:
        compiled: function from a number of rows to the result of `compile_step`.
        limit: memory of a core in bytes.
        compilations: greatest number of compilations, 1 or more.

    Returns:
        The results by number of rows, `rows` first. A failure for another reason than memory ends
        the search.
    """
    results: dict[int, dict] = {}
    guess: int | None = rows
    while guess is not None and len(results) < compilations:
        results[guess] = compiled(guess)
        if memory_total(results[guess]) is None:
            break
        guess = _next(results, limit)
    return results


def _next(results: dict[int, dict], limit: int) -> int | None:
    """The next number of rows to try: where memory, interpolated linearly, reaches the limit.

    Returns:
        None if the largest number is known.
    """
    best = max((rows for rows, result in results.items() if fits(result, limit)), default=0)
    worst = min((rows for rows, result in results.items() if not fits(result, limit)), default=None)
    points = sorted((rows, memory_total(result)) for rows, result in results.items())
    if len(points) == 1:
        (rows, total), memory = points[0], results[points[0][0]].get("memory")
        # Only the temporaries grow with the batch (their share of gradients, which is small, not).
        points = [(0, total - memory["temporaries"] if memory else 0), (rows, total)]
    # The two points nearest to the limit: where memory is short the compiler recomputes values,
    # which bends the line.
    (a, low), (b, high) = sorted(sorted(points, key=lambda p: abs(p[1] - limit))[:2])
    predicted = a + (limit - low) * (b - a) / (high - low) if high > low else 2 * b
    guess = int(predicted) // MULTIPLE * MULTIPLE
    if worst is not None:
        guess = min(guess, (worst - 1) // MULTIPLE * MULTIPLE)
    return guess if guess > best else None


def check_installed() -> None:
    """Raises a UserError if jax or libtpu is missing."""
    if any(importlib.util.find_spec(package) is None for package in ("jax", "libtpu")):
        raise UserError(
            "the TPU compiler is not installed here: `make tpu-check` installs it, or "
            "`pip install -r experiments/lab/tpu_check/requirements.txt` in an environment of its "
            "own"
        )


def compile_step(
    hlo: bytes, topology: str, text: pathlib.Path | None = None, cores: int | None = None
) -> dict:
    """Compiles a step by the TPU compiler in a separate process.

    Args:
        hlo: the step's HLO module, serialized; with `cores` StableHLO as bytecode.
        topology: the TPU, such as `v4:2x2x1`. Without `cores` its shape changes nothing, because
            the step is compiled for one core.
        text: file for the optimized HLO.
        cores: number of cores in the mesh of a JAX step; None: a TensorFlow step, for one core.

    Returns:
        "dynamic": names of ops whose shapes are known only at run time. If compilation failed:
        "error", "error_ops", and "memory_needed" if memory was the reason. Otherwise: "memory" in
        bytes, "cycles" (see `cycles.Estimate`) and, with `cores`, "collectives" in bytes. Unless
        the process crashed: "compilation" with its "seconds", "cpu_seconds" and "peak_bytes".
    """
    with tempfile.TemporaryDirectory(prefix="tpu_check-") as folder:
        source, result = pathlib.Path(folder) / "step.hlo", pathlib.Path(folder) / "result.json"
        source.write_bytes(hlo)
        command = [sys.executable, "-m", "experiments.lab.tpu_check.compiler", source, topology]
        command += [cores or 0, result]
        # Without these variables libtpu would look for a TPU and for Google's network.
        environment = {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": chip_of(topology).accelerator,
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            "TPU_MIN_LOG_LEVEL": "3",
            # libtpu's lock file guards the device, and here is none.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
        started = time.monotonic()
        done = subprocess.run(
            [*map(str, command), *([str(text)] if text else [])],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.exists():
            found = read_json(result, mend="compile again", compilation=dict)
            found["compilation"]["seconds"] = time.monotonic() - started
            return found
    said = [line for line in done.stderr.splitlines() if line.strip()]
    reason = said[-1] if said else "it said nothing"
    return {"error": f"the compiler ended with status {done.returncode}: {reason}"}


def main() -> None:
    """Runs in the separate process: compiles, and writes the result as JSON."""
    source, topology, cores, result, *text = sys.argv[1:]
    found, optimized = _compiled(pathlib.Path(source).read_bytes(), topology, int(cores))
    if text and optimized:
        pathlib.Path(text[0]).write_text(optimized, encoding="utf-8")
    used = resource.getrusage(resource.RUSAGE_SELF)
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    # `ru_maxrss` would count the process that started this one, whose model takes gigabytes.
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    found["compilation"] = {"cpu_seconds": used.ru_utime + used.ru_stime, "peak_bytes": peak}
    pathlib.Path(result).write_text(json.dumps(found), encoding="utf-8")


def _compiled(hlo: bytes, topology: str, cores: int) -> tuple[dict, str | None]:
    """The result of `compile_step`, and the optimized HLO."""
    import jax
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir

    try:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except jax.errors.JaxRuntimeError as error:
        return {"error": f"libtpu knows no topology {topology}: {error}"}, None
    used = tuple(devices[: cores or 1])
    if len(used) < cores:
        return {"error": f"{topology} has {len(used)} cores, and the mesh wants {cores}"}, None
    device = used[0]
    with mlir.make_ir_context():
        module = ir.Module.parse(hlo if cores else xla_client._xla.mlir.hlo_to_stablehlo(hlo))
        found = {
            "device_kind": device.device_kind,
            "cores_a_chip": 1 + max(each.core_on_chip for each in devices),
            "dynamic": _dynamic(module),
        }
        if not cores:
            _as_on_a_tpu(module)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, len(used)
    places = np.array([[each.id for each in used]])
    options.device_assignment = xla_client.DeviceAssignment.create(places)
    if cores:
        build = options.executable_build_options
        build.use_spmd_partitioning = build.use_shardy_partitioner = True
    try:
        executable = device.client.compile(module, xla_client._xla.DeviceList(used), options)
    except jax.errors.JaxRuntimeError as error:
        return found | _refusal(str(error)), None
    stats = executable.get_compiled_memory_stats()
    optimized = executable.hlo_modules()[0].to_string()
    found["memory"] = {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    found["cycles"] = estimate(optimized).as_dict()
    if cores:
        found["collectives"] = collectives(optimized)
    return found, optimized


def _ops(module, *names: str) -> list:
    """The operations with one of `names`, in the program's order."""
    from jaxlib.mlir import ir

    found = []

    def visit(op):
        if op.name in names:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _dynamic(module) -> list[str]:
    """Names of the TensorFlow ops whose shapes depend on values."""
    names = []
    for op in _ops(module, "stablehlo.set_dimension_size"):
        # If the size is known, the type is static, for example after top_k.
        if "?" in str(op.results[0].type):
            name = re.search(r'"([^"]+)"', str(op.location))
            names.append(name[1] if name else op.name)
    return list(dict.fromkeys(names))


def _as_on_a_tpu(module) -> None:
    """Turns the program that TensorFlow writes for a CPU into the one it would write for a TPU.

    `mhlo.copy` is removed: it changes nothing, and libtpu does not read it. For random bits
    TensorFlow lets the device choose the algorithm. A CPU's is Philox, whose state is a key and two
    counters; a TPU's is the chip's own, with a key and one counter. Philox would take half of the
    cycles of a BERT step.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    for copy in _ops(module, "mhlo.copy"):
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()
    for philox in _ops(module, "stablehlo.rng_bit_generator"):
        if "PHILOX" not in str(philox.attributes["rng_algorithm"]):
            continue
        given = philox.operands[0]
        algorithm = ir.Attribute.parse("#stablehlo<rng_algorithm DEFAULT>")
        with ir.InsertionPoint(philox), philox.location:
            state = ir.RankedTensorType.get((2,), ir.RankedTensorType(given.type).element_type)
            own = ir.Operation.create(
                "stablehlo.rng_bit_generator",
                results=[state, philox.results[1].type],
                operands=[stablehlo.slice(given, [0], [2], [1])],
                attributes={"rng_algorithm": algorithm},
            )
            # The second counter, a carry that nothing reads, keeps the shape of the state.
            carry = stablehlo.slice(given, [2], [3], [1])
            kept = stablehlo.concatenate([own.results[0], carry], 0)
        for old, new in zip(philox.results, (kept, own.results[1]), strict=True):
            old.replace_all_uses_with(new)
        philox.erase()


def _refusal(message: str) -> dict:
    """The compiler's error in one line, the ops that it names, and the memory if it was short."""
    found = {
        "error": " ".join(message.split())[:500],
        "error_ops": list(dict.fromkeys(re.findall(r'op_name="([^"]+)"', message))),
    }
    # "the total memory required for HLO temporaries (22.89G) exceeds available HBM (15.25G)"
    if sizes := re.search(r"\(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+[KMG])\)", message):
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}
        found["memory_needed"] = int(float(sizes[1]) * unit[sizes[2]])
        found["error"] = f"out of memory: {sizes[1]}{sizes[2]} needed, {sizes[3]} available"
    return found


if __name__ == "__main__":
    main()
