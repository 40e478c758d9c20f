"""ONNX Runtime in NVIDIA Triton, as a contender of the benchmark of servers.

    .venv-engines/bin/python -m experiments.lab.benchmarks.triton_onnx MODEL.onnx TOKENIZER.json

The package nvidia-pytriton has no backend but Triton's Python backend, so it runs ONNX Runtime, and
tokenizes with the package tokenizers. Triton joins the requests that come while one is answered.
"""

import argparse
import json
import os
import pathlib

from export.triton import model_of, serve
from macaron_tf.cli.arguments import argument, count, local_place, single_program

_CONFIG = """backend: "python"
max_batch_size: {rows}
dynamic_batching {{ max_queue_delay_microseconds: {delay} }}
input {{ name: "text" data_type: TYPE_STRING dims: [1] reshape {{}} }}
output {{ name: "probabilities" data_type: TYPE_FP32 dims: [-1] }}
"""


def write(repository: pathlib.Path, options: argparse.Namespace) -> list[str]:
    """Fills Triton's repository; returns the names of its models."""
    place = repository / "model"
    (place / "1").mkdir(parents=True)
    module = "experiments.lab.benchmarks.triton_onnx_model"
    (place / "1" / "model.py").write_text(model_of(module))
    given = {"onnx": options.onnx, "tokenizer": options.tokenizer}
    parameters = {name: os.path.abspath(path) for name, path in given.items()}
    parameters |= {"max_length": str(options.max_length), "threads": str(options.threads)}
    (place / "config.pbtxt").write_text(
        _CONFIG.format(rows=options.max_batch_size, delay=options.batch_delay_us)
        + "".join(
            f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(value)} }} }}\n'
            for key, value in parameters.items()
        )
    )
    return ["model"]


def run(options: argparse.Namespace) -> int:
    """Serves until a signal; Triton's exit status."""
    return serve(lambda repository: write(repository, options), options)


main = single_program(
    "experiments.lab.benchmarks.triton_onnx",
    __doc__,
    "experiments.lab.benchmarks.triton_onnx:run",
    local_place("onnx FILE", "VERSION/onnx/model.onnx of `export.saved_model --onnx`"),
    local_place("tokenizer FILE", "tokenizer.json of `export.hugging_face`"),
    argument("--host ADDRESS", "address to listen on (%(default)s)", default="127.0.0.1"),
    count("--http-port N", "port of HTTP (%(default)s)", 8000, 1, 65536),
    count("--grpc-port N", "port of gRPC (%(default)s)", 8001, 1, 65536),
    count("--max-batch-size N", "rows that requests are joined to (%(default)s)", 32),
    count("--batch-delay-us N", "microseconds a request waits for others (%(default)s)", 0, 0),
    count("--max-length N", "tokens to which a text is cut (%(default)s)", 128),
    count("--threads N", "of ONNX Runtime (%(default)s)", 2),
)

if __name__ == "__main__":
    raise SystemExit(main())
