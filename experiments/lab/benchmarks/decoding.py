"""Times beam search against Hugging Face `generate`, with the same weights on the same machine.

    make bench
    python -m experiments.lab.benchmarks.decoding --batch-sizes 1 32 --rounds 9

All outputs have the same forced length, so that all implementations decode the same number of
steps.
"""

import argparse
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from experiments.lab.benchmarks import peers
from experiments.lab.benchmarks.harness import Benchmark, Tables, several, timed
from macaron_tf.cli.arguments import argument, count, switch
from macaron_tf.decoding import translate_ids
from macaron_tf.engines.lite_decoding import convert_decoder
from macaron_tf.engines.lite_writer import PRECISIONS
from macaron_tf.models import catalog

command = Benchmark(
    "decoding",
    __doc__,
    "tokens",
    ("tensorflow", "keras", "torch", "transformers", "ctranslate2", "numpy"),
    argument(
        "--size",
        "size of the translation models",
        default="small",
        choices=("tiny", "small", "base", "big"),
    ),
    count("--vocab-size", "number of subword tokens in the vocabulary", 10_000),
    count(
        "--batch-sizes",
        "batch sizes to time, in sentences",
        [1, 32],
        nargs="+",
    ),
    count("--beam-size", "width of the beam search", 4),
    count("--source-length", "number of tokens in a source sentence", 24, minimum=2),
    count("--new-tokens", "number of tokens in a translation", 32, minimum=2),
    count("--inter-op-threads", "number of inter-op threads of TensorFlow", 1),
    switch("--macaron", "also time a Macaron model of the same size (default: no Macaron model)"),
    several(
        "--lite",
        PRECISIONS,
        f"weight types of LiteRT to time as well: {' or '.join(PRECISIONS)} (default: no LiteRT)",
        [],
    ),
    several(
        "--ctranslate2",
        peers.COMPUTE_TYPES,
        f"weight types of CTranslate2 to time as well: {' or '.join(peers.COMPUTE_TYPES)} "
        "(default: no CTranslate2)",
        [],
    ),
    rounds=7,
)


@command.measures("Beam search: {size}, beam {beam_size}, {source_length} to {new_tokens} tokens")
def main(options: argparse.Namespace) -> Tables:
    """Runs the benchmark: times all implementations at each batch size."""
    peers.set_up(options.threads, options.inter_op_threads)
    sizes = {"vocab_size": options.vocab_size}
    peer = peers.MarianPeer(catalog.config(f"transformer_{options.size}", **sizes))
    model = peer.as_macaron_tf()
    beam, count = {"num_beams": options.beam_size, "length_penalty": 0.0}, options.new_tokens
    searches = {
        "Hugging Face generate": lambda source: peer.generate(source, count, **beam),
        "ours": _search(options, model, jit_compile=False),
        "ours, XLA": _search(options, model, jit_compile=True),
    }
    if options.macaron:
        macaron = catalog.build(f"macaron_{options.size}", **sizes)
        searches["ours, Macaron"] = _search(options, macaron, jit_compile=False)
    for weight_type in options.lite:
        decoder = convert_decoder(model, weight_type, options.threads)
        searches[f"ours, LiteRT {weight_type}"] = _search(options, decoder, jit_compile=False)
    for weight_type in options.ctranslate2:
        translator = peers.CTranslate2Peer(peer, options.threads, weight_type)
        searches[f"CTranslate2, {weight_type}"] = functools.partial(
            translator.generate, count=count, beam_size=options.beam_size
        )
    for batch_size in options.batch_sizes:
        rng = np.random.default_rng(batch_size)
        shape = (batch_size, options.source_length)
        source = rng.integers(4, options.vocab_size, shape, dtype=np.int32)
        source[:, -1] = 3
        # In the comparison of outputs, which is not timed, `generate` must not write PAD or BOS.
        expected = peer.generate(source, count, suppress_tokens=[0, 2], **beam)
        for name, search in searches.items():
            # The last token is EOS. CTranslate2 returns another token in its place.
            agreement = (search(source) == expected)[:, :-1].mean()
            print(
                f"batch {batch_size}: {name}: {agreement:.0%} of the tokens equal Hugging Face's "
                "tokens"
            )
        contenders = {
            name: lambda search=search, source=source: search(source).size
            for name, search in searches.items()
        }
        yield f"batch {batch_size}", timed(contenders, options)


def _search(options: argparse.Namespace, model, jit_compile: bool) -> Callable:
    """Returns a function that runs the beam search of this library, `(B, S) -> (B, N)`.

    S is the number of source tokens, and N is the number of new tokens.

    Args:
        options: parsed options of the command.
        model: encoder-decoder of this library.
        jit_compile: whether XLA compiles the search.
    """
    config = peers.exact_search(options.new_tokens, options.beam_size)
    # XLA needs static shapes. Without XLA, one graph serves all shapes, as in a served model.
    search = tf.function(
        lambda source: translate_ids(model, source, config)["ids"][:, 0],
        jit_compile=jit_compile,
        input_signature=None if jit_compile else [tf.TensorSpec((None, None), tf.int32)],
    )
    return lambda source: search(source).numpy()


if __name__ == "__main__":
    raise SystemExit(main())
