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

from macaron_tf.errors import UserError, exit_on_user_error

REFERENCE = "Hugging Face generate"
PACKAGES = ("tensorflow", "keras", "torch", "transformers", "numpy")
_COUNTS = ("prompt_tokens", "new_tokens", "threads", "inter_op_threads")


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    # Both before the libraries start their pools.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    from experiments.benchmarks.harness import (
        interleave,
        machine,
        markdown,
        set_threads,
        summary,
        write_report,
    )
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
        samples = interleave(contenders, options.rounds, options.warm_up, _say)
        tables[f"batch {batch}"] = summary(samples, REFERENCE)
    title = (
        f"{options.new_tokens} tokens behind prompts of {options.prompt_tokens}: "
        f"GPT-2 {options.size}"
    )
    print(markdown(title, facts, tables, "new tokens"))
    if options.out:
        write_report(options.out, title, facts, tables, "new tokens")
        print(f"written to {options.out}")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.prompts", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", help="directory for results.json, README.md and results.png")
    parser.add_argument("--size", default="mini", choices=("tiny", "mini", "base", "medium"))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt-tokens", type=int, default=256, help="the first one included")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2, help="of every contender")
    parser.add_argument("--inter-op-threads", type=int, default=1, help="of TensorFlow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1)
    options = parser.parse_args(arguments)
    for name in _COUNTS:
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: give 1 or more.")
    for batch in options.batch_sizes:
        if not 1 <= batch <= 32:  # more are continued in several batches
            raise UserError(f"--batch-sizes {batch}: give 1 to 32.")
    return options


def _models(options: argparse.Namespace) -> tuple:
    """Theirs, `(V,)` their id of each of ours, and generators of ours by name."""
    from experiments.benchmarks.prompts_peer import HuggingFaceGPT2
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


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(exit_on_user_error(main)())
