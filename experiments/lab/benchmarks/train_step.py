"""Times a training step of an encoder: forward pass, backward pass and AdamW update.

    python -m experiments.lab.benchmarks.train_step --out DIR
    python -m experiments.lab.benchmarks.train_step --against peers --dtype-policy mixed_bfloat16
    python -m experiments.lab.benchmarks.train_step --engine jax --against peers --peers torch \\
        --settings bert_base --dtype-policy mixed_bfloat16

The flag `--against` chooses the comparison:

- `blocks` compares blocks of this library with BERT-rab (BERT with T5's position bias). All blocks
  have the same number of matrix parameters, as in table 2 of the SwishRNN paper.
- `peers` compares the BERT of this library with BERT in PyTorch (plain, and Hugging Face), KerasHub
  and Model Garden. Each framework runs in its own process.

With `--engine jax`, this library uses its JAX engine. JAX and PyTorch use a GPU if there is one.
Tokens and labels are random. The models predict labels at 15% of the positions. Gradients are not
clipped.
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from experiments.command_line import ENGINES
from experiments.lab.benchmarks import harness
from experiments.lab.benchmarks.encoder_step import SETTINGS, StepSetting
from experiments.lab.benchmarks.workers import Worker
from macaron_tf.cli import arguments as cli
from macaron_tf.errors import UserError

KERAS = "experiments.lab.benchmarks.keras_encoders"
TORCH = "experiments.lab.benchmarks.torch_encoders"
AGAINST = {"blocks": f"{KERAS}:block_contenders", "peers": f"{KERAS}:contenders"}
PEERS = {
    "torch": f"{TORCH}:contenders",
    "keras_hub": f"{KERAS}:keras_hub_contenders",
    "model_garden": f"{KERAS}:model_garden_contenders",
}
# Variables with the thread count of TensorFlow, PyTorch and OpenMP.
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
# Without these variables, glibc returns large blocks of memory to the system after each step. A
# small step then has 60,000 page faults in PyTorch, but almost no page faults in TensorFlow.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# The child process with JAX must not reserve all GPU memory, because other child processes need
# some.
JAX_VARIABLES = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def timed(setting: StepSetting, options: argparse.Namespace) -> list[dict]:
    """Times all implementations in a setting, and returns the output of `harness.compare`."""
    against_peers = options.against == "peers"
    factories = [AGAINST[options.against]]
    factories += [PEERS[name] for name in options.peers if against_peers]
    environment = {**dict.fromkeys(THREADS, str(options.threads)), **KEEP_MEMORY}
    ours = environment | (JAX_VARIABLES if options.engine == "jax" else {})
    with contextlib.ExitStack() as stack:
        # Workers start one after another, so that each worker can compile with all cores.
        workers = [
            stack.enter_context(
                Worker(factory, dataclasses.asdict(setting), environment if number else ours)
            )
            for number, factory in enumerate(factories)
        ]
        parameters = {name: n for worker in workers for name, n in worker.parameters.items()}
        if against_peers:
            check_sizes(parameters)
        tokens = options.steps * setting.batch * setting.length
        contenders = {
            name: harness.counted(tokens, worker.run, name, options.steps)
            for worker in workers
            for name in worker.parameters
        }
        rows = harness.interleave(
            contenders,
            options.rounds,
            options.warm_up,
            lambda: sum(worker.cpu_seconds for worker in workers),
        )
    return harness.compare(rows, fastest(rows, workers[0].parameters) if against_peers else None)


def check_sizes(parameters: Mapping[str, int]) -> None:
    """Checks that all compared models have the same number of parameters within 1%."""
    (first, expected), *others = parameters.items()
    for name, size in others:
        if abs(size - expected) > 0.01 * expected:
            raise UserError(f"{name} has {size} parameters, but {first} {expected}: report this")


def fastest(rows: list[dict], our_names: Collection[str]) -> str:
    """Returns the name of the fastest implementation of another library."""
    others = [row for row in rows if row["name"] not in our_names]
    return min(others, key=lambda row: np.median(row["seconds"]))["name"]


def run(options: argparse.Namespace) -> None:
    """Runs the benchmark, and prints and writes the report."""
    title = f"Training step of an encoder, against {options.against}"
    harness.publish(options, title, "tokens", measure(options))


def measure(options: argparse.Namespace) -> harness.Tables:
    """Times the implementations in each setting."""
    fields = ("dropout", "dtype_policy", "seed")
    for name in options.settings:
        changes = {field: getattr(options, field) for field in fields}
        setting = dataclasses.replace(SETTINGS[name], **changes)
        about = (
            f"{name}: {setting.num_layers} layers, D {setting.hidden_dim}, {setting.batch} x "
            f"{setting.length} tokens, dropout {setting.dropout:g}, {options.dtype_policy}"
        )
        yield about, timed(setting, options)


main = cli.single_program(
    "python -m experiments.lab.benchmarks.train_step",
    __doc__,
    "experiments.lab.benchmarks.train_step:run",
    harness.options(rounds=7),
    harness.THREADS,
    cli.argument(
        "--against",
        "what to compare. blocks: blocks of this library; peers: this library and other libraries "
        "(default: blocks)",
        default="blocks",
        choices=AGAINST,
    ),
    cli.argument(
        "--engine",
        "Keras backend of this library (default: tensorflow)",
        default="tensorflow",
        choices=ENGINES,
    ),
    harness.several(
        "--settings", SETTINGS, "sizes of encoder and batch, bert_base for a GPU", ["small"]
    ),
    cli.argument(
        "--dtype-policy",
        "Keras dtype policy of all contenders (default: float32)",
        default="float32",
        choices=("float32", "mixed_bfloat16"),
    ),
    cli.count("--dropout RATE", "rate of all dropout layers (default: 0.1)", 0.1, 0.0, below=1),
    harness.several("--peers", PEERS, "other libraries, with --against peers", list(PEERS)),
    cli.count("--steps N", "updates of each contender in each round (default: 3)", 3),
)

if __name__ == "__main__":
    raise SystemExit(main())
