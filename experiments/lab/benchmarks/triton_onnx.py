"""Serves an ONNX file in NVIDIA Triton with ONNX Runtime, for the benchmark `serving --servers`.

    .venv-engines/bin/python -m experiments.lab.benchmarks.triton_onnx MODEL.onnx TOKENIZER.json

The package nvidia-pytriton contains only the Python backend of Triton. Therefore this command runs
ONNX Runtime and the package tokenizers in the Python backend. Triton batches requests that arrive
while the model is busy.
"""

import argparse
import json
import os
import pathlib

from export.triton import model_source, serve, server_flags
from macaron_tf.cli.arguments import count, local_path_argument, single_program

_CONFIG = """backend: "python"
max_batch_size: {rows}
dynamic_batching {{ max_queue_delay_microseconds: {delay} }}
input {{ name: "text" data_type: TYPE_STRING dims: [1] reshape {{}} }}
output {{ name: "probabilities" data_type: TYPE_FP32 dims: [-1] }}
"""


def write(repository: pathlib.Path, options: argparse.Namespace) -> list[str]:
    """Writes a model repository for Triton, and returns the names of its models.

    Args:
        repository: folder of the model repository.
        options: parsed options of the command.
    """
    folder = repository / "model"
    (folder / "1").mkdir(parents=True)
    module = "experiments.lab.benchmarks.triton_onnx_model"
    (folder / "1" / "model.py").write_text(model_source(module))
    paths = {"onnx": options.onnx, "tokenizer": options.tokenizer}
    parameters = {name: os.path.abspath(path) for name, path in paths.items()}
    parameters |= {"max_length": str(options.max_length), "threads": str(options.threads)}
    (folder / "config.pbtxt").write_text(
        _CONFIG.format(rows=options.max_batch_size, delay=options.batch_delay_us)
        + "".join(
            f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(value)} }} }}\n'
            for key, value in parameters.items()
        )
    )
    return ["model"]


def run(options: argparse.Namespace) -> int:
    """Runs the command: serves until a signal arrives, and returns the exit status of Triton."""
    return serve(lambda repository: write(repository, options), options)


main = single_program(
    "experiments.lab.benchmarks.triton_onnx",
    __doc__,
    "experiments.lab.benchmarks.triton_onnx:run",
    local_path_argument(
        "onnx FILE",
        "ONNX file written by `export.saved_model --onnx`, such as OUT/1/onnx/model.onnx",
    ),
    local_path_argument("tokenizer FILE", "file tokenizer.json written by `export.hugging_face`"),
    server_flags(delay=0),
    count(
        "--max-length N",
        "maximum number of tokens in a text; longer texts are truncated (default: %(default)s)",
        128,
    ),
    count("--threads N", "number of threads of ONNX Runtime (default: %(default)s)", 2),
)

if __name__ == "__main__":
    raise SystemExit(main())
