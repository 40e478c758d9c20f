"""How long an encoder's training step takes, each block against BERT with T5's bias.

    python -m experiments.benchmarks.pretraining_step --size mini --out DIR

The last column of the SwishRNN paper's table 2 on this machine: a whole update (forward, backward,
AdamW) on random tokens, 15% of them masked, contenders in turn within every round. `--replicas 2`
compares one device with two that share each batch instead.
"""

import argparse
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

from experiments.benchmarks.harness import interleave, machine, markdown, summary, write_report
from macaron_tf.distribution import distributed, make_strategy
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.models import EncoderConfig, PretrainingEncoder, catalog
from macaron_tf.objectives import MaskedLanguageObjective
from macaron_tf.training import build_fit_model
from macaron_tf.training.config import TrainingConfig

REFERENCE = "BERT-rab"


def contender_configs(size: str, length: int) -> dict[str, EncoderConfig]:
    """What is compared, by the papers' names.

    Raises:
        UserError: the catalog has no such size.
    """
    sizes = sorted({name.rpartition("_")[2] for name in catalog.names(EncoderConfig)})
    if size not in sizes:
        raise UserError(f"--size {size}: there are {', '.join(sizes)}")

    def config(family: str, **options) -> EncoderConfig:
        return catalog.config(f"{family}_{size}", max_length=length, **options)

    return {
        REFERENCE: config("bert_rab"),
        "BERT-orig": config("bert"),
        "Macaron-BERT": config("macaron_bert"),
        "SwishRNN k=1": config("swish_rnn", rnn_step_sizes=(1,)),
        "SwishRNN k=2": config("swish_rnn", rnn_step_sizes=(2,)),
        "SwishRNN k={1,2,4}": config("swish_rnn", rnn_step_sizes=(1, 2, 4)),
    }


def batches(config: EncoderConfig, rows: int, length: int, seed: int) -> tf.data.Dataset:
    """The same batch of random tokens without end, 15% of its positions asked for."""
    rng = np.random.default_rng(seed)
    count = round(0.15 * length)
    positions = [rng.choice(length, count, replace=False) for _ in range(rows)]
    batch = {
        "token_ids": rng.integers(5, config.vocab_size, (rows, length), dtype=np.int32),
        "masked_positions": np.sort(positions).astype(np.int32),  # (B, P)
        "masked_labels": rng.integers(5, config.vocab_size, (rows, count), dtype=np.int32),
        "masked_weights": np.ones((rows, count), np.float32),
    }
    return tf.data.Dataset.from_tensors(batch).repeat()


def make_contender(
    config: EncoderConfig,
    options: argparse.Namespace,
    strategy: tf.distribute.Strategy | None = None,
):
    """A function that does `--steps` updates and returns how many tokens they read."""
    keras.utils.set_random_seed(options.seed)
    training = TrainingConfig(
        learning_rate=1e-4, warmup_steps=1, weight_decay=0.01, dtype_policy=options.dtype_policy
    )
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        network = PretrainingEncoder(config, dtype=options.dtype_policy)
        network.build()
        model = build_fit_model(
            network, MaskedLanguageObjective(skip_padding=False), training, options.jit
        )
    model.prepare()
    model.returns_logs = lambda step: step % options.steps == 0
    dataset = batches(config, options.batch, options.length, options.seed)
    iterator = iter(distributed(strategy, dataset))
    update = model.make_train_function()

    def run() -> int:
        for _ in range(options.steps):
            update(iterator)
        return options.steps * options.batch * options.length

    return run


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Times all contenders and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.pretraining_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--size", default="mini", help="of the catalog's encoders (default %(default)s)")
    add("--batch", type=int, default=32, help="rows of a batch (default %(default)s)")
    add("--length", type=int, default=128, help="tokens of a row (default %(default)s)")
    add("--steps", type=int, default=3, help="updates a turn (default %(default)s)")
    add("--rounds", type=int, default=7, help="timed rounds (default %(default)s)")
    add("--threads", type=int, default=2, help="threads (default %(default)s)")
    add("--dtype-policy", default="float32", help="or mixed_bfloat16 (default %(default)s)")
    add(
        "--replicas",
        type=int,
        metavar="N",
        help="compare one device with N mirrored ones that share the batch and the threads instead",
    )
    add("--jit", action="store_true", help="compile the step with XLA")
    add("--seed", type=int, default=1)
    add("--out", metavar="DIR", help="write README.md, results.json and results.png there")
    options = parser.parse_args(arguments)
    for name in ("batch", "length", "steps", "threads"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)}: give a whole number of 1 or more")
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    strategy = None
    if options.replicas:
        strategy = make_strategy("mirrored", replicas=options.replicas)
    facts = machine(options.threads, ("tensorflow", "keras"))
    configs = contender_configs(options.size, options.length)
    if strategy is None:
        contenders = {name: make_contender(config, options) for name, config in configs.items()}
    else:
        contenders = {
            f"{REFERENCE}, {name}": make_contender(configs[REFERENCE], options, chosen)
            for name, chosen in (
                ("one device", None),
                (f"{options.replicas} replicas", strategy),
            )
        }
    reference = next(iter(contenders))
    samples = interleave(
        contenders, options.rounds, 1, lambda text: print(text, file=sys.stderr, flush=True)
    )
    setting = (
        f"{options.size}, {options.batch} x {options.length} tokens, {options.dtype_policy}"
        + (", XLA" if options.jit else "")
    )
    tables = {setting: summary(samples, reference)}
    title = f"A pre-training step against that of {reference}"
    print(markdown(title, facts, tables, "tokens"))
    if options.out:
        write_report(pathlib.Path(options.out), title, facts, tables, "tokens")


if __name__ == "__main__":
    sys.exit(main())
