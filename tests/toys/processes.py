"""Functions that start worker processes on this machine and wait for their end."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import h5py
import numpy as np

from macaron_tf.training.checkpoints import CheckpointDirectory, find_damage
from macaron_tf.training.progress import read_lines

ROOT = pathlib.Path(__file__).parents[2]


def toy(jobs: list[str], *flags: str, **environment: str) -> subprocess.Popen:
    """Starts `distributed_toy` with jobs, flags and environment variables."""
    return started(["-m", "tests.toys.distributed", *flags, *jobs], **environment)


def started(arguments: list[str], **environment: str) -> subprocess.Popen:
    """Starts a Python process without a GPU, and redirects its stderr to stdout."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def on_jax(devices: int = 8) -> dict[str, str]:
    """Returns the environment variables of a process on Keras's JAX backend with CPU devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def cluster(count: int) -> list[str]:
    """Returns the TF_CONFIG of each of several workers, on free ports of this machine."""
    addresses = [f"localhost:{port}" for port in free_ports(count)]
    tasks = [{"type": "worker", "index": index} for index in range(count)]
    return [json.dumps({"cluster": {"worker": addresses}, "task": task}) for task in tasks]


def two_workers(jobs: list[str]) -> list[subprocess.Popen]:
    """Starts two workers that train together over gRPC."""
    return [toy(jobs, "--multi-worker", TF_CONFIG=config) for config in cluster(2)]


def finished(process: subprocess.Popen, status: int = 0) -> str:
    """Waits for a process, asserts that its exit status is `status`, and returns its output."""
    output, _ = process.communicate(timeout=400)
    assert process.returncode == status, output
    return output


def python(*arguments, **environment: str) -> str:
    """Runs Python in a new process, asserts that it succeeds, and returns its stdout."""
    command, env = [sys.executable, *map(str, arguments)], {**os.environ, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_new_process(imports: str, code: str, *arguments) -> None:
    """Runs code in a new process, after importing `numpy` as `np`, `sys` and `imports`."""
    python("-c", f"import sys\nimport numpy as np\n{imports}\n{code}", *arguments)


def assert_same_run(ours: pathlib.Path, theirs: pathlib.Path) -> None:
    """Checks that two runs have equal metrics and checkpoints, except for times."""
    name = "metrics.jsonl"
    assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    steps = [[line["step"] for line in read_lines(run / "timing.jsonl")] for run in (ours, theirs)]
    assert steps[0] == steps[1]
    ours, theirs = CheckpointDirectory(ours), CheckpointDirectory(theirs)
    assert ours.steps() == theirs.steps()
    assert ours.best() == theirs.best()
    assert [entry.name for entry in ours.path.iterdir() if entry.name.startswith(".")] == []
    for step in ours.steps():
        assert find_damage(ours.of_step(step)) is None
        contents = [_contents(directory.of_step(step)) for directory in (ours, theirs)]
        assert contents[0].keys() == contents[1].keys()
        for key, value in contents[0].items():
            np.testing.assert_array_equal(value, contents[1][key], err_msg=f"step {step}: {key}")


def arrays_of(checkpoint) -> dict[str, np.ndarray]:
    """Returns a checkpoint's weights, moving average and training state."""
    found = {}

    def add(file, name, item):
        if isinstance(item, h5py.Dataset):
            found[f"{file.name}/{name}"] = item[...]

    for path in checkpoint.glob("*.h5"):
        with h5py.File(path, "r") as file:
            file.visititems(lambda name, item, path=path: add(path, name, item))
    with np.load(checkpoint / "training_state.npz") as arrays:
        return found | {name: arrays[name] for name in arrays.files}


def state_of(run_dir: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the checkpoint of a step, without what may differ between hosts."""
    found = arrays_of(CheckpointDirectory(run_dir).of_step(step))
    return {name: array for name, array in found.items() if name != "host"}


def _contents(checkpoint) -> dict:
    """Returns a dict with all arrays of a checkpoint and the fields of its manifest."""
    found = arrays_of(checkpoint)
    host = json.loads(found.pop("host").tobytes())
    assert host["run"].pop("elapsed_seconds") > 0
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    for name in ("files", "sha256"):  # both cover the elapsed seconds
        manifest.pop(name)
    return {**found, "host": json.dumps(host), "manifest": json.dumps(manifest)}
