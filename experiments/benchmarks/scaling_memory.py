"""How much memory a step needs at its peak, beyond what is there before it; on Linux.

A process's resident set says what lives only where freed memory is given back: here in a child
process without oneDNN's pool (TF_ONEDNN_USE_SYSTEM_ALLOCATOR) in which malloc maps every tensor of
16 KiB or more by itself and unmaps it when it dies (MALLOC_MMAP_THRESHOLD_). Its peak, which
importing TensorFlow may have made, is set back (/proc/self/clear_refs) once a step was run for its
traces and thread pools. Weights and inputs are there before; activations, gradients and scratch are
what is counted, to a quarter of a MiB or so. TensorFlow's own statistics of oneDNN's pool leave out
tensors below 256 KiB, which at L = 64 are all there are.
"""

import dataclasses
import gc
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from macaron_tf.errors import UserError

_CLEAR = pathlib.Path("/proc/self/clear_refs")
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 14), "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}


def peak_of(run: Callable[[], object]) -> int:
    """Bytes by which a call raises the resident set at most, above what it was before the call.

    Args:
        run: the work, done once before.
    """
    gc.collect()
    # proc(5), of clear_refs: 5 sets the peak resident set to the present one.
    _CLEAR.write_text("5")
    before = _resident("VmRSS")
    run()
    return max(_resident("VmHWM") - before, 0)


def _resident(field: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes[field].split()[0]) * 1024


def peaks(works: Sequence[tuple], config, threads: int) -> Iterator[int]:
    """The peak bytes of each work, measured in a child process.

    Args:
        works: (mixer, `Point`), as `make_step` takes them.
        config: `StepConfig`.
        threads: of TensorFlow.

    Yields:
        Bytes, in the order of the works.

    Raises:
        UserError: this system's peaks cannot be set back, or the child ended early, such as for
            want of memory.
    """
    if not os.access(_CLEAR, os.W_OK):
        raise UserError(f"memory is measured by {_CLEAR}, not to be had here: give --no-memory.")
    order = {
        "works": [(mixer, dataclasses.asdict(point)) for mixer, point in works],
        "config": dataclasses.asdict(config),
        "threads": threads,
    }
    with subprocess.Popen(
        [sys.executable, "-m", "experiments.benchmarks.scaling_memory"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **_ENVIRONMENT},
        text=True,
    ) as child:
        try:
            child.stdin.write(json.dumps(order))
            child.stdin.close()
            for mixer, point in works:
                line = child.stdout.readline()
                if not line:
                    raise UserError(
                        f"measuring memory ended with status {child.wait()} at {mixer}, {point}: "
                        "give smaller sizes, or --no-memory."
                    )
                yield int(line)
        finally:
            child.kill()


def main() -> None:
    """The child: an order on stdin, a line of bytes for each work on stdout."""
    from experiments.benchmarks.harness import set_threads
    from experiments.benchmarks.mixers import Point, StepConfig, make_step

    order = json.load(sys.stdin)
    set_threads(order["threads"])
    for mixer, point in order["works"]:
        step = make_step(mixer, Point(**point), StepConfig(**order["config"]))
        step()
        step()
        print(peak_of(step), flush=True)


if __name__ == "__main__":
    main()
