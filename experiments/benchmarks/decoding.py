"""Beam search against Hugging Face `generate`: the same weights, machine and number of tokens.

    make bench
    python -m experiments.benchmarks.decoding --batch-sizes 1 32 --rounds 9

Every output is forced to the same length, so that all take the same number of steps.
"""

import argparse
import os
import sys
from collections.abc import Callable

import numpy as np

from macaron_tf.errors import UserError, exit_on_user_error

REFERENCE = "Hugging Face generate"
PACKAGES = ("tensorflow", "keras", "torch", "transformers", "ctranslate2", "numpy")


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
    from experiments.benchmarks.peers import HuggingFacePeer, require_peers
    from macaron_tf.models import catalog

    require_peers()
    set_threads(options.threads, options.inter_op_threads)
    facts = machine(options.threads, PACKAGES)
    config = catalog.config(f"transformer_{options.size}", vocab_size=options.vocab_size)
    peer = HuggingFacePeer(config, options.threads)
    model = peer.our_model()
    others = _other_decoders(options, peer)
    tables = {}
    for batch in options.batch_sizes:
        source = _source(options, batch)
        agreement = _agreement(options, peer, model, source)
        print(f"batch {batch}: {agreement:.0%} of the tokens equal Hugging Face's", flush=True)
        contenders = {
            REFERENCE: lambda source=source: (
                peer.decode(source, options.beam_size, options.new_tokens).size
            ),
            "ours": _ours(options, model, source, jit_compile=False),
            "ours, XLA": _ours(options, model, source, jit_compile=True),
        }
        if options.macaron:
            macaron = catalog.build(f"macaron_{options.size}", vocab_size=options.vocab_size)
            contenders["ours, Macaron"] = _ours(options, macaron, source, jit_compile=False)
        for name, decode in others.items():
            contenders[name] = lambda decode=decode, source=source: decode(source).size
        samples = interleave(contenders, options.rounds, options.warm_up, _say)
        rows = summary(samples, REFERENCE)
        tables[f"batch {batch}"] = rows
        for row in rows:
            print(
                f"batch {batch}: {row['name']}: {row['rate'][1]:.1f} tokens a second, time / "
                f"Hugging Face's {row['ratio'][1]:.2f} (CPU time {row['cpu_ratio'][1]:.2f})",
                flush=True,
            )
    title = (
        f"Beam search, beam {options.beam_size}, {options.new_tokens} tokens from "
        f"{options.source_length}: {options.size}"
    )
    print(markdown(title, facts, tables, "tokens"))
    if options.out:
        write_report(options.out, title, facts, tables, "tokens")
        print(f"written to {options.out}")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.decoding", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", help="directory for results.json, README.md and results.png")
    parser.add_argument("--size", default="small", choices=("tiny", "small", "base", "big"))
    parser.add_argument("--vocab-size", type=int, default=10_000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--source-length", type=int, default=24)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2, help="of every contender")
    parser.add_argument("--inter-op-threads", type=int, default=1, help="of TensorFlow")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--macaron", action="store_true", help="also time the Macaron of the size")
    parser.add_argument("--ctranslate2", action="store_true", help="also time CTranslate2")
    options = parser.parse_args(arguments)
    for name in ("beam_size", "threads", "inter_op_threads"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: give 1 or more.")
    for name in ("source_length", "new_tokens"):
        if getattr(options, name) < 2:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}: give 2 or more.")
    if min(options.batch_sizes) < 1:
        raise UserError(f"--batch-sizes {min(options.batch_sizes)}: give 1 or more.")
    return options


def _source(options: argparse.Namespace, batch: int) -> np.ndarray:
    rng = np.random.default_rng(batch)
    source = rng.integers(4, options.vocab_size, (batch, options.source_length), dtype=np.int32)
    source[:, -1] = 3
    return source


def _search(options: argparse.Namespace, model, jit_compile: bool) -> Callable:
    import tensorflow as tf

    from macaron_tf.decoding import BeamSearchConfig, translate_ids

    config = BeamSearchConfig(
        beam_size=options.beam_size,
        length_penalty=0.0,
        max_length_ratio=0.0,
        max_length_offset=options.new_tokens,
        max_length=options.new_tokens,
        min_length=options.new_tokens - 1,
    )
    # XLA needs static shapes; the graph has any, as in a served model.
    dynamic = None if jit_compile else [tf.TensorSpec((None, None), tf.int32)]
    return tf.function(
        lambda source: translate_ids(model, source, config)["ids"][:, 0],
        jit_compile=jit_compile,
        input_signature=dynamic,
    )


def _ours(options: argparse.Namespace, model, source: np.ndarray, jit_compile: bool) -> Callable:
    search = _search(options, model, jit_compile)

    def run() -> int:
        return int(np.count_nonzero(search(source).numpy()))

    return run


def _agreement(options: argparse.Namespace, peer, model, source: np.ndarray) -> float:
    """Share of equal tokens; untimed, for `generate` has to be kept from PAD and BOS."""
    ours = _search(options, model, jit_compile=False)(source).numpy()
    theirs = peer.decode(source, options.beam_size, options.new_tokens, suppress_tokens=[0, 2])
    return float((ours == theirs).mean())


def _other_decoders(options: argparse.Namespace, peer) -> dict[str, Callable]:
    if not options.ctranslate2:
        return {}
    from experiments.benchmarks.peers import CTranslate2Peer

    other = CTranslate2Peer(peer, options.threads)
    return {
        "CTranslate2": lambda source: other.decode(source, options.beam_size, options.new_tokens)
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(exit_on_user_error(main)())
