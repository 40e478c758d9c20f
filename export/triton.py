"""Serves exported models on this machine with NVIDIA Triton and KServe's protocol (version 2).

    python -m export.triton served/m30k
    python -m export.triton m30k=served/m30k sst2=served/sst2 --signatures serving_default score

The folder of a model, such as served/m30k, has a subfolder for each version (`1/`, `2/`, ...),
written by `python -m export.saved_model`. Triton serves the newest version of each model, or the
newest N versions with `--versions N`. The form NAME=FOLDER sets the name of the model, which is the
name of the folder by default. In --signatures, each signature other than `serving_default` becomes
a separate model, such as `m30k.score`. The Python backend runs one process for each version of each
model, and merges concurrent requests into batches. After Ctrl-C or SIGTERM, Triton finishes the
requests in flight, for up to 120 seconds, and exits. `make engines` installs Triton (package
nvidia-pytriton) into .venv-engines.
"""

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping

from macaron_tf.cli.arguments import (
    Part,
    argument,
    count,
    local_path_argument,
    single_program,
    together,
)
from macaron_tf.errors import UserError

_DEFAULT = "serving_default"
# Maps TensorFlow's dtype names to Triton's. All other names are equal except for capital letters.
_TYPES = {"string": "STRING", "float32": "FP32", "float16": "FP16", "bfloat16": "BF16",
          "float64": "FP64"}  # fmt: skip
_MODEL = """import sys

# Replaces the package folders of the Python that Triton starts.
sys.path[:] = {path} + [folder for folder in sys.path if not folder.endswith("-packages")]
import export
from macaron_tf.cli.program import lean_imports

lean_imports()  # TensorFlow would import JAX, which does not run with this NumPy
from {module} import TritonPythonModel
"""
_GRACE_SECONDS = 120  # seconds for requests in flight to finish at shutdown
_quoted = functools.partial(json.dumps, ensure_ascii=False)  # quotes a string for Triton's config


def find_server() -> tuple[pathlib.Path, pathlib.Path]:
    """Finds the installation of Triton.

    Returns:
        Triton's folder, and the stub program of the Python backend for this version of Python.

    Raises:
        UserError: Triton is not installed, or does not support this version of Python.
    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None:
        raise UserError(
            "Triton is not installed in this environment: run `make engines`, then run the command "
            "with .venv-engines/bin/python"
        )
    root = pathlib.Path(spec.origin).parent / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise UserError(
            f"the installed Triton does not support Python {version}: use Python 3.11 instead"
        )
    return root, stub


def write_repository(models: Mapping[str, str], repository: pathlib.Path, options) -> list[str]:
    """Writes a model repository for Triton.

    Args:
        models: dict mapping model name to the folder of the model's versions.
        repository: an empty folder.
        options: options with `max_batch_size`, `batch_delay_us`, `versions` and `signatures`.

    Returns:
        The sorted names of the models in the repository: one for each of the requested signatures
        that the newest version of a model has.

    Raises:
        UserError: a model is damaged, a requested signature is in none of the models, or an input
            or output has an unknown number of dimensions.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    from export.server.servable import Signature
    from export.server.versions import find_versions

    names, choices = [], set()
    for name, folder in models.items():
        versions = sorted(find_versions(folder).items())[-options.versions :]
        newest = pathlib.Path(versions[-1][1], "saved_model.pb")
        try:
            saved = saved_model_pb2.SavedModel.FromString(newest.read_bytes())
            definitions = dict(saved.meta_graphs[0].signature_def)
        except Exception as error:  # protobuf's exceptions have no common base class
            raise UserError(f"{newest} is damaged ({error}): export the model again") from error
        for key in definitions.keys() & {*options.signatures}:
            names.append(name if key == _DEFAULT else f"{name}.{key}")
            target = repository / names[-1]
            for version, _ in versions:
                (target / str(version)).mkdir(parents=True)
                (target / str(version) / "model.py").write_text(model_source("export.triton_model"))
            signature = Signature(key, definitions[key])
            (target / "config.pbtxt").write_text(_config(signature, folder, options))
        choices |= {key for key, definition in definitions.items() if definition.method_name}
    if unknown := {*options.signatures} - choices:
        raise UserError(
            f"--signatures contains {min(unknown)!r}, but no model has this signature: choose from "
            f"{', '.join(sorted(choices))}"
        )
    return sorted(names)


def _config(signature, folder: str, options) -> str:
    """Returns Triton's ModelConfig for a signature, in protocol buffer text format.

    Raises:
        UserError: an input or output has an unknown number of dimensions.
    """
    is_batched = signature.batchable

    def tensor(role: str, name: str, spec) -> str:
        if spec.shape.rank is None:
            raise UserError(
                f"{folder}: {role} {name!r} of signature {signature.name!r} has an unknown number "
                "of dimensions, but Triton requires a known number: export the model with known "
                "shapes"
            )
        sizes = [-1 if size is None else size for size in spec.shape][int(is_batched) :]
        # Triton has no scalars, so Triton receives one number per row as (B, 1) and reshapes it
        # to (B,).
        shape = f"dims: {sizes}" if sizes else "dims: [1] reshape {}"
        type_name = _TYPES.get(spec.dtype.name, spec.dtype.name.upper())
        return f'{role} {{ name: "{name}" data_type: TYPE_{type_name} {shape} }}\n'

    batching = f"dynamic_batching {{ max_queue_delay_microseconds: {options.batch_delay_us} }}\n"
    parameters = {"folder": os.path.abspath(folder), "signature": signature.name}
    return "".join(
        [
            'backend: "python"\n',
            f"max_batch_size: {options.max_batch_size if is_batched else 0}\n",
            batching if is_batched else "",
            f"version_policy {{ latest {{ num_versions: {options.versions} }} }}\n",
            *(tensor("input", *item) for item in signature.inputs.items()),
            *(tensor("output", *item) for item in signature.outputs.items()),
            *(
                f'parameters {{ key: "{key}" value {{ string_value: {_quoted(text)} }} }}\n'
                for key, text in parameters.items()
            ),
        ]
    )


def model_source(module: str) -> str:
    """Returns the content of the file `model.py` for a model repository.

    Args:
        module: name of the module with the class `TritonPythonModel`.
    """
    return _MODEL.format(path=_package_folders(), module=module)


def _package_folders() -> list[str]:
    """Returns the absolute paths in `sys.path`, without the folders of the standard library.

    Triton's process uses its own standard library.
    """
    library = sysconfig.get_path("stdlib")
    folders = [os.path.abspath(folder) for folder in sys.path]
    return [folder for folder in folders if folder not in (library, f"{library}/lib-dynload")]


def run(options: argparse.Namespace) -> int:
    """Runs the command `export.triton`: serves the models, and returns the exit status."""
    from export.server.config import check_name
    from export.server.versions import check_base_path

    models = {}
    for model in options.models:
        name, _, folder = model.rpartition("=")
        name = name or os.path.basename(os.path.abspath(folder))
        check_name(name, model)
        if name in models:
            raise UserError(
                f"two models are named {name!r}: give {model} another name, written as NAME=OUT"
            )
        check_base_path(folder)
        models[name] = folder
    return serve(lambda repository: write_repository(models, repository, options), options)


def serve(write: Callable[[pathlib.Path], list[str]], options: argparse.Namespace) -> int:
    """Runs Triton with a model repository until SIGINT or SIGTERM, or until Triton exits.

    Args:
        write: function that writes a model repository into an empty folder, and returns the model
            names.
        options: options with `host`, `http_port` and `grpc_port`.

    Returns:
        The exit status, which is 0 after a signal and otherwise Triton's exit status.

    Raises:
        UserError: a port cannot be opened, or Triton is not installed or does not start. Errors of
            `write` are also raised.
    """
    for flag, port in (("--http-port", options.http_port), ("--grpc-port", options.grpc_port)):
        try:
            socket.create_server((options.host, port)).close()
        except OSError as error:
            raise UserError(
                f"{flag} {port} cannot be opened on {options.host} ({error.strerror}): give "
                "another port, or correct --host"
            ) from error
    root, stub = find_server()
    with tempfile.TemporaryDirectory(prefix="macaron_tf-") as scratch:
        repository, backends = pathlib.Path(scratch, "models"), pathlib.Path(scratch, "backends")
        names = write(repository)
        shutil.copytree(root / "backends", backends)
        shutil.copy(stub, backends / "python")
        process = subprocess.Popen(
            [
                root / "bin" / "tritonserver",
                f"--model-repository={repository}",
                f"--backend-directory={backends}",
                f"--http-address={options.host}",
                f"--http-port={options.http_port}",
                f"--grpc-address={options.host}",
                f"--grpc-port={options.grpc_port}",
                "--disable-auto-complete-config",  # because auto-completion loads each model twice
                "--allow-metrics=false",
                f"--exit-timeout-secs={_GRACE_SECONDS}",
                "--log-info=false",
            ],
            env={**os.environ, "LD_LIBRARY_PATH": str(root.parents[1] / "nvidia_pytriton.libs")},
            start_new_session=True,  # so that the terminal's Ctrl-C reaches only this process
        )
        stopped = []

        def stop(signal_number: int, _) -> None:
            stopped.append(signal_number)
            process.send_signal(signal.SIGINT)

        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, stop)
        url = f"http://{options.host}:{options.http_port}"
        try:
            while process.poll() is None and not _is_ready(url):
                time.sleep(0.2)
            if process.poll() is None:
                print(f"ready: {', '.join(names)} on {url} (gRPC {options.grpc_port})", flush=True)
            elif not stopped:
                raise UserError("Triton did not start: see Triton's log above")
            process.wait()
        finally:
            # Kill the processes of models that are still loading.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return 0 if stopped else process.returncode


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


def server_flags(delay: int) -> Part:
    """Makes the flags of a command that calls `serve`: the addresses and the batching.

    Args:
        delay: default of `--batch-delay-us`, in microseconds.
    """
    return together(
        argument(
            "--host ADDRESS", "IP address to listen on (default: %(default)s)", default="127.0.0.1"
        ),
        count("--http-port N", "port for HTTP requests (default: %(default)s)", 8000, 1, 65536),
        count("--grpc-port N", "port for gRPC requests (default: %(default)s)", 8001, 1, 65536),
        count(
            "--max-batch-size N",
            "maximum number of inputs in a batch of merged requests (default: %(default)s)",
            32,
        ),
        count(
            "--batch-delay-us N",
            "maximum time that a request waits for other requests to fill its batch, in "
            "microseconds (default: %(default)s)",
            delay,
            0,
        ),
    )


main = single_program(
    "export.triton",
    __doc__,
    "export.triton:run",
    local_path_argument(
        "models OUT",
        "folders of exported models; NAME=OUT serves the model in OUT under NAME (default NAME: "
        "the name of the folder)",
        nargs="+",
    ),
    server_flags(delay=5000),
    argument(
        "--signatures NAME",
        "names of the model signatures to serve, such as score (default: serving_default)",
        nargs="+",
        default=["serving_default"],
    ),
    count(
        "--versions N",
        "number of most recent versions of each model to serve (default: %(default)s)",
        1,
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
