"""How long a training step of an encoder takes: forward, backward and AdamW on random tokens.

    python -m experiments.benchmarks.train_step --out DIR
    python -m experiments.benchmarks.train_step --against peers --dtype-policy mixed_bfloat16

`--against blocks` compares this library's blocks with BERT that has T5's bias, all of as many
matrix parameters, as the last column of the SwishRNN paper's table 2 does; `peers` our plain BERT
with others' (PyTorch by hand and Hugging Face's, KerasHub's, Model Garden's), each framework in a
process of its own; `replicas` one device with mirrored ones that share its batch and threads.
15% of the positions are masked, and only those are scored. Nothing is clipped.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping

from experiments.benchmarks.encoder_step import SETTINGS, StepSetting
from experiments.benchmarks.harness import (
    Samples,
    add_number,
    benchmark_parser,
    interleave,
    machine,
    publish,
    set_threads,
    summary,
)
from experiments.benchmarks.workers import Contender, Worker, worker_processes
from macaron_tf.errors import UserError, exit_on_user_error

REFERENCE = "BERT-rab"
OURS = "experiments.benchmarks.tensorflow_encoders:contenders"
PEERS = {
    "torch": "experiments.benchmarks.torch_encoders:contenders",
    "keras_hub": "experiments.benchmarks.tensorflow_encoders:keras_hub_contenders",
    "model_garden": "experiments.benchmarks.tensorflow_encoders:model_garden_contenders",
}
# glibc gives large blocks back to the system, and the next step takes them anew: 60,000 page faults
# in each of PyTorch's small ones, and next to none in TensorFlow's.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
PACKAGES = ("tensorflow", "keras", "torch", "transformers", "keras-hub", "tf-models-official")


def against_peers(setting: StepSetting, options: argparse.Namespace) -> list[dict]:
    """Our step and the peers', in child processes; ratios are to the fastest peer.

    Raises:
        UserError: a peer is not installed, or a model has another size.
    """
    factories = [OURS, *(PEERS[name] for name in options.peers)]
    # PyTorch's compiled kernels count threads by the variable.
    environment = {"OMP_NUM_THREADS": str(setting.threads), **KEEP_MEMORY}
    with worker_processes(factories, dataclasses.asdict(setting), environment) as workers:
        ours = set(workers[0].parameters)
        check_sizes({name: n for worker in workers for name, n in worker.parameters.items()})

        def turn(worker: Worker, name: str) -> Callable[[], int]:
            def run() -> int:
                worker.run(name, options.steps)
                return options.steps * setting.tokens

            return run

        samples = interleave(
            {name: turn(worker, name) for worker in workers for name in worker.parameters},
            options.rounds,
            2,
            lambda: sum(worker.cpu_seconds for worker in workers),
        )
    return summary(samples, fastest(samples, ours))


def check_sizes(parameters: Mapping[str, int]) -> None:
    """Raises a UserError unless all have as many parameters as the first, to 1%."""
    (first, expected), *others = parameters.items()
    for name, count in others:
        if abs(count - expected) > 0.01 * expected:
            raise UserError(
                f"{name} has {count} parameters and {first} {expected}: their steps cannot be "
                "compared."
            )


def fastest(samples: Mapping[str, Samples], ours: set[str]) -> str:
    """The name of the fastest contender that is not ours."""
    medians = {
        name: sorted(one.seconds)[len(one.seconds) // 2]
        for name, one in samples.items()
        if name not in ours
    }
    return min(medians, key=medians.get)


def against_blocks(setting: StepSetting, options: argparse.Namespace) -> list[dict]:
    """The blocks' steps, in this process; the reference's also without any native operation."""
    from experiments.benchmarks import tensorflow_encoders
    from macaron_tf.kernels import implementation_scope

    set_threads(setting.threads)
    configs = tensorflow_encoders.block_configs(setting)
    contenders = {
        name: tensorflow_encoders.training_step(setting, config, options.jit)
        for name, config in configs.items()
    }
    if options.implementation == "auto" and not options.jit:
        plain = tensorflow_encoders.training_step(setting, configs[REFERENCE], jit=False)

        def without_kernels(steps: int) -> float:
            with implementation_scope("loop"):
                return plain.run(steps)

        contenders[f"{REFERENCE}, no native ops"] = Contender(without_kernels, plain.parameters)
    with implementation_scope(options.implementation):  # what is traced in the warm-up
        return _in_turn(setting, options, contenders, REFERENCE)


def against_replicas(setting: StepSetting, options: argparse.Namespace) -> list[dict]:
    """The same step on one device and on several."""
    from experiments.benchmarks import tensorflow_encoders
    from macaron_tf.distribution import make_strategy

    set_threads(setting.threads)
    config = tensorflow_encoders.block_configs(setting)[REFERENCE]
    strategies = {
        f"{REFERENCE}, one device": None,
        f"{REFERENCE}, {options.replicas} replicas": make_strategy(
            "mirrored", replicas=options.replicas
        ),
    }
    contenders = {
        name: tensorflow_encoders.training_step(setting, config, options.jit, strategy)
        for name, strategy in strategies.items()
    }
    return _in_turn(setting, options, contenders, next(iter(contenders)))


def _in_turn(setting: StepSetting, options, contenders: Mapping, reference: str) -> list[dict]:
    def turn(contender) -> Callable[[], int]:
        def run() -> int:
            contender.run(options.steps)
            return options.steps * setting.tokens

        return run

    turns = {name: turn(contender) for name, contender in contenders.items()}
    return summary(interleave(turns, options.rounds, 1), reference)


AGAINST = {"blocks": against_blocks, "peers": against_peers, "replicas": against_replicas}


def _options(arguments: list[str] | None) -> argparse.Namespace:
    from macaron_tf.kernels.choice import NAMES

    parser = benchmark_parser("train_step", __doc__, rounds=7)
    add = parser.add_argument
    add("--against", choices=AGAINST, default="blocks", help="(default %(default)s)")
    add(
        "--settings",
        nargs="+",
        choices=SETTINGS,
        default=["small"],
        metavar="NAME",
        help="small: 4 layers, D 256, 32 x 128 tokens; base: 2 layers, D 768, 4 x 512 tokens "
        "(default small)",
    )
    add("--dtype-policy", choices=("float32", "mixed_bfloat16"), default="float32")
    add("--dropout", type=float, default=0.1, help="everywhere (default %(default)s)")
    add("--jit", action="store_true", help="blocks and replicas: compile the step with XLA")
    add(
        "--implementation",
        choices=("auto", *NAMES),
        default="auto",
        help="blocks: of the kernels; loop is what runs without a C++ compiler (default "
        "%(default)s)",
    )
    add(
        "--peers",
        nargs="+",
        choices=PEERS,
        default=list(PEERS),
        metavar="NAME",
        help=f"of {', '.join(PEERS)} (default all)",
    )
    add_number(parser, "--replicas", 2, "of --against replicas", metavar="N")
    add_number(parser, "--steps", 3, "updates a turn")
    add_number(parser, "--threads", 2, "of every contender")
    options = parser.parse_args(arguments)
    if not 0 <= options.dropout < 1:
        raise UserError(f"--dropout {options.dropout}: give a number from 0 to below 1")
    return options


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Times all contenders and prints the tables."""
    options = _options(arguments)
    facts = machine(options.threads, PACKAGES)
    tables = {}
    for name in options.settings:
        setting = dataclasses.replace(
            SETTINGS[name],
            dropout=options.dropout,
            bfloat16=options.dtype_policy == "mixed_bfloat16",
            threads=options.threads,
            seed=options.seed,
        )
        rows = AGAINST[options.against](setting, options)
        tables[_describe(name, setting, options)] = rows
    title = {
        "blocks": f"A training step of each block against {REFERENCE}'s",
        "peers": "BERT's training step against the fastest peer's",
        "replicas": "A training step on several devices against one",
    }[options.against]
    publish(options.out, title, facts, tables, "tokens")


def _describe(name: str, setting: StepSetting, options: argparse.Namespace) -> str:
    return (
        f"{name}: {setting.num_layers} layers, D {setting.hidden_dim}, {setting.batch} x "
        f"{setting.length} tokens, dropout {setting.dropout:g}, {options.dtype_policy}"
        + (", XLA" if options.jit else "")
        + (f", {options.implementation}" if options.implementation != "auto" else "")
    )


if __name__ == "__main__":
    sys.exit(main())
