"""Going on from long prompts against Hugging Face `generate`: the same GPT-2, greedily.

    make bench
    python -m experiments.benchmarks.prompts --size base --rounds 5 --out DIR

Every text goes on for the same number of tokens. Ours reads a prompt at once, as theirs does; how
long it takes token by token, one step each, is timed beside it.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import types

import numpy as np

from experiments.benchmarks.harness import (
    add_number,
    benchmark_parser,
    interleave,
    machine,
    publish,
    set_threads,
    summary,
)
from macaron_tf.errors import UserError, exit_on_user_error

REFERENCE = "Hugging Face generate"
PACKAGES = ("tensorflow", "keras", "torch", "transformers", "numpy")


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    # Both before the libraries start their pools.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    from experiments.benchmarks.peers import require_peers

    require_peers()
    set_threads(options.threads, options.inter_op_threads)
    facts = machine(options.threads, PACKAGES)
    peer, ids, generators = _models(options)
    tables = {}
    for batch in options.batch_sizes:
        rows = _rows(options, batch, len(ids))  # (B, P) of our ids
        contenders = {REFERENCE: lambda rows=rows: peer.go_on(ids[rows], options.new_tokens).size}
        for name, generator in generators.items():
            equal = _agreement(options, generator, rows, peer, ids)
            print(f"batch {batch}: {name}: {equal:.0%} of the texts are theirs", flush=True)
            contenders[name] = lambda generator=generator, rows=rows: sum(
                one.length for one in _completions(options, generator, rows)
            )
        samples = interleave(contenders, options.rounds, options.warm_up)
        tables[f"batch {batch}"] = summary(samples, REFERENCE)
    title = (
        f"{options.new_tokens} tokens behind prompts of {options.prompt_tokens}: "
        f"GPT-2 {options.size}"
    )
    publish(options.out, title, facts, tables, "new tokens")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = benchmark_parser("prompts", __doc__, rounds=5, warm_up=1)
    parser.add_argument("--size", default="mini", choices=("tiny", "mini", "base", "medium"))
    add_number(parser, "--batch-sizes", [1, 8], "prompts at once", nargs="+")
    add_number(parser, "--prompt-tokens", 256, "tokens of a prompt, the first one included")
    add_number(parser, "--new-tokens", 32, "tokens behind it")
    add_number(parser, "--threads", 2, "of every contender")
    add_number(parser, "--inter-op-threads", 1, "of TensorFlow")
    options = parser.parse_args(arguments)
    if max(options.batch_sizes) > 32:  # more are continued in several batches
        raise UserError(f"--batch-sizes {max(options.batch_sizes)}: give 1 to 32.")
    return options


def _models(options: argparse.Namespace) -> tuple:
    """Theirs, `(V,)` their id of each of ours, and generators of ours by name."""
    from experiments.benchmarks.peers import HuggingFaceGPT2
    from macaron_tf.decoding import TextGenerator
    from macaron_tf.models import catalog

    config = catalog.config(f"gpt2_{options.size}")
    longest = options.prompt_tokens + options.new_tokens
    if longest > config.max_length:
        raise UserError(
            f"--prompt-tokens and --new-tokens come to {longest}: a GPT-2 has {config.max_length} "
            "positions."
        )
    peer = HuggingFaceGPT2(config, options.threads)
    with tempfile.TemporaryDirectory() as folder:
        read = peer.ours(pathlib.Path(folder))
    # Without its `prefill`.
    stepping = types.SimpleNamespace(
        init_decode=read.network.init_decode,
        decode_step=read.network.decode_step,
        can_prefill=False,
    )
    generators = {
        name: TextGenerator(model, read.vocabulary, config.max_length)
        for name, model in (("ours", read.network), ("token by token", stepping))
    }
    return peer, read.ids, generators


def _rows(options: argparse.Namespace, batch: int, size: int) -> np.ndarray:
    from macaron_tf.text.byte_pairs import CLS, SPECIAL

    rng = np.random.default_rng(batch)
    rows = rng.integers(SPECIAL, size, (batch, options.prompt_tokens))
    rows[:, 0] = CLS
    return rows


def _completions(options: argparse.Namespace, generator, rows: np.ndarray) -> list:
    from macaron_tf.decoding import GenerationConfig

    count = options.new_tokens
    config = GenerationConfig(temperature=0.0, max_tokens=count, min_tokens=count)
    return [one for [one] in generator.continue_rows(rows.tolist(), config)]


def _agreement(
    options: argparse.Namespace, generator, rows: np.ndarray, peer, ids: np.ndarray
) -> float:
    """Share of equal texts; less than all where two tokens are almost equally likely."""
    from macaron_tf.text.byte_pairs import SEP

    places = {number: place for place, number in enumerate(ids.tolist()) if place >= SEP}
    theirs = [
        generator.detokenizer(places[number] for number in row)
        for row in peer.go_on(ids[rows], options.new_tokens).tolist()
    ]
    ours = [one.text for one in _completions(options, generator, rows)]
    return float(np.mean([one == other for one, other in zip(ours, theirs, strict=True)]))


if __name__ == "__main__":
    sys.exit(exit_on_user_error(main)())
