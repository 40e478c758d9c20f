"""Times an encoder's training step: forward, backward and AdamW on random tokens.

    python -m experiments.lab.benchmarks.train_step --out DIR
    python -m experiments.lab.benchmarks.train_step --against peers --dtype-policy mixed_bfloat16
    python -m experiments.lab.benchmarks.train_step --engine jax --against peers --peers torch \
        --settings bert_base --dtype-policy mixed_bfloat16

`--against blocks` compares this library's blocks with BERT-rab (BERT with T5's bias), all with the
same number of matrix parameters, as in the last column of the SwishRNN paper's table 2.
`--against peers` compares our plain BERT with PyTorch's (by hand, and Hugging Face's), KerasHub's
and Model Garden's, each framework in its own process. `--against replicas` compares one device with
mirrored devices that share its batch and threads. With `--engine jax` our steps are those of
`pretrain train --engine jax`; JAX and PyTorch use a GPU if there is one.
15% of the positions are masked, and only these are predicted. Gradients are not clipped.

With peers, `--peaks` adds columns. "share of gemm" divides the rate of a step's matrix products
(`StepSetting.flops` over its whole time) by the rate of the same library's product of two matrices
of 2,048 x 2,048 in the same round. "peak MiB" is what a step's peak adds to the memory of weights
and optimizer, in processes that keep no freed memory; a further column has its ratio to PyTorch's.
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from experiments.command_line import ENGINES
from experiments.lab.benchmarks import harness
from experiments.lab.benchmarks.encoder_step import GEMM_FLOPS, SETTINGS, StepSetting
from experiments.lab.benchmarks.harness import Benchmark, Tables
from experiments.lab.benchmarks.workers import GIVE_BACK_MEMORY, Worker, thread_variables
from macaron_tf.cli.arguments import argument, count, switch
from macaron_tf.errors import UserError
from macaron_tf.kernels.choice import NAMES

KERAS = "experiments.lab.benchmarks.keras_encoders"
TORCH = "experiments.lab.benchmarks.torch_encoders"
AGAINST = {
    "blocks": f"{KERAS}:block_contenders",
    "peers": f"{KERAS}:contenders",
    "replicas": f"{KERAS}:replica_contenders",
}
PEERS = {
    "torch": f"{TORCH}:contenders",
    "keras_hub": f"{KERAS}:keras_hub_contenders",
    "model_garden": f"{KERAS}:model_garden_contenders",
}
# Without these variables glibc returns large blocks to the system, and the next step requests them
# again: 60,000 page faults in each of PyTorch's small steps, and almost none in TensorFlow's.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# For the child with JAX: it must not reserve the whole GPU, which other children use too.
JAX_VARIABLES = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

command = Benchmark(
    "train_step",
    __doc__,
    "tokens",
    ("tensorflow", "keras", "jax", "torch", "transformers", "keras-hub", "tf-models-official"),
    argument("--against", "what is compared: see above", default="blocks", choices=AGAINST),
    argument("--engine", "engine of our steps", default="tensorflow", choices=ENGINES),
    harness.several(
        "--settings",
        SETTINGS,
        "small: 4 layers, D 256, 32 x 128 tokens; base: 2 layers, D 768, 4 x 512 tokens; "
        "bert_base: 12 layers, D 768, 32 x 512 tokens, for a GPU",
        ["small"],
    ),
    harness.DTYPE_POLICY,
    harness.DROPOUT,
    switch("--jit", "with blocks and replicas: compile the step with XLA"),
    argument(
        "--implementation",
        "with blocks: implementation of the kernels; loop is the one without a C++ compiler",
        default="auto",
        choices=("auto", *NAMES),
    ),
    harness.several("--peers", PEERS, "with peers: the libraries to compare with"),
    switch("--peaks", "with peers: a step's share of the peak rate of products, and peak memory"),
    count("--replicas", "with replicas: number of devices", 2),
    count("--steps", "updates in each turn", 3),
    rounds=7,
)


def measured(setting: StepSetting, options: argparse.Namespace) -> list[dict]:
    """Times all contenders in a setting.

    Returns:
        Rows of `compare`; the reference is the fastest peer, or without peers the first contender.
    """
    on_jax, against_peers = options.engine == "jax", options.against == "peers"
    factories = [AGAINST[options.against]]
    if against_peers:
        factories += [PEERS[name] for name in options.peers]
    # Modules of the frameworks whose product of two matrices is timed too, with --peaks.
    gemms = {factory.split(":")[0] for factory in factories if options.peaks and against_peers}
    places = [*factories, *(f"{module}:gemm_contenders" for module in sorted(gemms))]
    environment = {**thread_variables(options.threads), **KEEP_MEMORY}
    with contextlib.ExitStack() as stack:
        # Workers start one after the other, so that each compiles with all cores.
        workers = [
            stack.enter_context(
                Worker(
                    place,
                    dataclasses.asdict(setting),
                    environment | (JAX_VARIABLES if on_jax and place == factories[0] else {}),
                )
            )
            for place in places
        ]
        units = options.steps * setting.tokens
        turns = {
            name: harness.counted(units, worker.run, name, options.steps)
            for worker in workers
            for name in worker.parameters
        }
        owners = {name: worker.factory for worker in workers for name in worker.parameters}
        if against_peers:
            check_sizes(
                {name: n for worker in workers for name, n in worker.parameters.items() if n}
            )
        rows = harness.interleave(
            turns,
            options.rounds,
            options.warm_up,
            lambda: sum(worker.cpu_seconds for worker in workers),
        )
    ours = workers[0].parameters
    gemm_seconds = {
        owners[row["name"]].split(":")[0]: np.array(row["seconds"])
        for row in rows
        if owners[row["name"]] not in factories
    }
    rows = [row for row in rows if owners[row["name"]] in factories]
    rows = harness.compare(rows, fastest(rows, ours) if against_peers else None)
    if gemms:
        add_peaks(rows, setting, options, owners, gemm_seconds)
    return rows


def add_peaks(
    rows: list[dict],
    setting: StepSetting,
    options: argparse.Namespace,
    owners: Mapping[str, str],
    gemm_seconds: Mapping[str, np.ndarray],
) -> None:
    """Adds "gemm_share" (quartiles) and "peak_bytes" to rows, and their columns.

    Args:
        owners: factory of each contender, by the contender's name.
        gemm_seconds: by the module of a factory, the seconds of as many matrix products as a turn
            has steps, in each round.
    """
    environment = {**thread_variables(options.threads), **GIVE_BACK_MEMORY}
    peaks = {}
    for factory in dict.fromkeys(owners[row["name"]] for row in rows):
        with Worker(factory, dataclasses.asdict(setting), environment) as worker:
            for name in worker.parameters:
                harness.say(f"memory of {name}")
                peaks[name] = worker.peak(name)
    torch = next((name for name, place in owners.items() if place == PEERS["torch"]), None)
    for row in rows:
        module = owners[row["name"]].split(":")[0]
        share = setting.flops / GEMM_FLOPS * gemm_seconds[module] / np.array(row["seconds"])
        row["gemm_share"], row["peak_bytes"] = harness.quartiles(share), peaks[row["name"]]
        row["more"] = {
            "share of gemm": harness.cell(row["gemm_share"], 2),
            "peak MiB": f"{row['peak_bytes'] / 2**20:.0f}",
        }
        if torch:
            row["more"][f"of {torch}'s"] = f"{row['peak_bytes'] / max(1, peaks[torch]):.2f}"


def check_sizes(parameters: Mapping[str, int]) -> None:
    """Raises a UserError if a number of parameters differs from the first one by more than 1%."""
    (first, expected), *others = parameters.items()
    for name, found in others:
        if abs(found - expected) > 0.01 * expected:
            raise UserError(
                f"{name} has {found} parameters and {first} {expected}: their steps cannot be "
                "compared."
            )


def fastest(rows: list[dict], ours: Collection[str]) -> str:
    """The name of the fastest contender that is not ours, by the medians."""
    others = [row for row in rows if row["name"] not in ours]
    return min(others, key=lambda row: np.median(row["seconds"]))["name"]


@command.measures("A training step of an encoder, against {against}")
def main(options: argparse.Namespace) -> Tables:
    """Times the contenders of each setting."""
    if options.engine == "jax" and (options.against == "replicas" or options.peaks or options.jit):
        raise UserError(
            "--engine jax: --against replicas, --peaks and --jit work only with --engine "
            "tensorflow; leave them out"
        )
    chosen = ("dropout", "dtype_policy", "jit", "implementation", "replicas", "seed")
    for name in options.settings:
        given = {field: getattr(options, field) for field in chosen}
        setting = dataclasses.replace(SETTINGS[name], **given)
        about = (
            f"{name}: {setting.num_layers} layers, D {setting.hidden_dim}, {setting.batch} x "
            f"{setting.length} tokens, dropout {setting.dropout:g}, {options.dtype_policy}"
            + (", XLA" if setting.jit else "")
            + (f", {setting.implementation}" if setting.implementation != "auto" else "")
        )
        yield about, measured(setting, options)


if __name__ == "__main__":
    raise SystemExit(main())
