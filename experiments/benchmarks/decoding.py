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

from experiments.benchmarks.harness import (
    add_number,
    benchmark_parser,
    interleave,
    machine,
    publish,
    set_threads,
    summary,
)
from macaron_tf.errors import exit_on_user_error

REFERENCE = "Hugging Face generate"
PACKAGES = ("tensorflow", "keras", "torch", "transformers", "ctranslate2", "numpy")


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    # Both before the libraries start their pools.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
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
        samples = interleave(contenders, options.rounds, options.warm_up)
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
    publish(options.out, title, facts, tables, "tokens")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = benchmark_parser("decoding", __doc__, rounds=7, warm_up=2)
    parser.add_argument("--size", default="small", choices=("tiny", "small", "base", "big"))
    add_number(parser, "--vocab-size", 10_000, "V")
    add_number(parser, "--batch-sizes", [1, 32], "sentences at once", nargs="+")
    add_number(parser, "--beam-size", 4, "K")
    add_number(parser, "--source-length", 24, "tokens of a source", least=2)
    add_number(parser, "--new-tokens", 32, "tokens of an output", least=2)
    add_number(parser, "--threads", 2, "of every contender")
    add_number(parser, "--inter-op-threads", 1, "of TensorFlow")
    parser.add_argument("--macaron", action="store_true", help="also time the Macaron of the size")
    parser.add_argument("--ctranslate2", action="store_true", help="also time CTranslate2")
    return parser.parse_args(arguments)


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


if __name__ == "__main__":
    sys.exit(exit_on_user_error(main)())
