"""Functions that start worker processes on this machine and wait for their end."""

import json
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def toy(jobs: list[str], *flags: str, **environment: str) -> subprocess.Popen:
    """Starts `distributed_toy` with jobs, flags and environment variables."""
    return started(["-m", "tests.distribution.distributed_toy", *flags, *jobs], **environment)


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


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def cluster_of_two() -> list[str]:
    """Returns the TF_CONFIG of each of two workers, on free ports of this machine."""
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    return [json.dumps({"cluster": {"worker": addresses}, "task": task}) for task in tasks]


def two_workers(jobs: list[str]) -> list[subprocess.Popen]:
    """Starts two workers that train together over gRPC."""
    return [toy(jobs, "--multi-worker", TF_CONFIG=config) for config in cluster_of_two()]


def finished(process: subprocess.Popen, status: int = 0) -> str:
    """Waits for a process, asserts that its exit status is `status`, and returns its output."""
    output, _ = process.communicate(timeout=400)
    assert process.returncode == status, output
    return output
