"""Times decoding against Hugging Face `generate`, with the same weights on the same machine.

    make bench
    python -m experiments.lab.benchmarks.decoding --batch-sizes 1 32 --rounds 9
    python -m experiments.lab.benchmarks.decoding --model gpt2 --size base --rounds 5 --out DIR

A translator decodes by beam search, which "ours, XLA" compiles. GPT-2 continues prompts greedily:
LiteRT reads a prompt in parts of up to 256 tokens, and all other implementations read it in a
single pass (prefill).

All outputs have the same forced length, so that all implementations decode the same number of
steps.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from experiments.lab.benchmarks import harness, peers
from macaron_tf.cli import arguments as cli
from macaron_tf.decoding import (
    BeamSearchConfig,
    GenerationConfig,
    TextGenerator,
    translate_ids,
)
from macaron_tf.engines.lite_decoding import convert_decoder
from macaron_tf.engines.lite_writer import PRECISIONS
from macaron_tf.errors import UserError
from macaron_tf.hub import read_hugging_face
from macaron_tf.models import catalog

# A function that draws a batch of sources or prompts `(B, S)`, a function from the batch to the
# expected tokens `(B, N)`, and a dict that maps the name of an implementation to a function that
# decodes the batch. All tokens are ids of Hugging Face.
Decoders = tuple[Callable, Callable, dict[str, Callable[[np.ndarray], np.ndarray]]]
REFERENCE = "Hugging Face generate"


def run(options: argparse.Namespace) -> None:
    """Runs the benchmark, and prints and writes the report."""
    length = f"{options.new_tokens} tokens after {options.source_length}"
    title = f"{options.model} {options.size}: {length}"
    harness.publish(options, title, "new tokens", measure(options))


def measure(options: argparse.Namespace) -> harness.Tables:
    """Times all implementations at each batch size."""
    peers.set_up(options.threads, inter_op_threads=1)
    make = translations if options.model == "translator" else continuations
    draw, expect, functions = make(options)
    for batch_size in options.batch_sizes:
        rows = draw(np.random.default_rng(batch_size), (batch_size, options.source_length))
        expected = expect(rows)
        for name, function in functions.items():
            # Tokens may differ where two tokens are almost equally likely.
            agreement = (function(rows)[:, : expected.shape[1]] == expected).mean()
            equal = f"{agreement:.0%} of the tokens equal Hugging Face's tokens"
            print(f"batch {batch_size}: {name}: {equal}", flush=True)
        contenders = {
            name: lambda function=function, rows=rows: function(rows).size
            for name, function in functions.items()
        }
        yield f"batch {batch_size}", harness.timed(contenders, options)


def translations(options: argparse.Namespace) -> Decoders:
    """Makes translators with equal weights in all libraries, which decode by beam search."""
    sizes = {"vocab_size": options.vocab_size}
    peer = peers.marian(catalog.config(f"transformer_{options.size}", **sizes))
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        model = read_hugging_face(folder).network
    beam, count = {"num_beams": options.beam_size, "length_penalty": 0.0}, options.new_tokens
    searches = {
        REFERENCE: lambda source: peers.generate(peer, source, count, **beam),
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
        searches[f"CTranslate2, {weight_type}"] = peers.ctranslate2_translator(
            peer, options.threads, weight_type, count, options.beam_size
        )

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        source = rng.integers(4, options.vocab_size, shape, dtype=np.int32)
        source[:, -1] = 3
        return source

    def expect(source: np.ndarray) -> np.ndarray:
        # In the comparison of outputs, which is not timed, `generate` must not write PAD or BOS.
        # The last token is EOS. CTranslate2 returns another token in its place.
        return peers.generate(peer, source, count, suppress_tokens=[0, 2], **beam)[:, :-1]

    return draw, expect, searches


def _search(options: argparse.Namespace, model, jit_compile: bool) -> Callable:
    """Returns this library's beam search `(B, S) -> (B, N)`: S source tokens, N new tokens."""
    config = BeamSearchConfig(  # every output has exactly `new_tokens` tokens
        beam_size=options.beam_size,
        length_penalty=0.0,
        max_length_ratio=0.0,
        max_length_offset=options.new_tokens,
        max_length=options.new_tokens,
        min_length=options.new_tokens - 1,
    )
    # XLA needs static shapes. Without XLA, one graph serves all shapes, as in a served model.
    search = tf.function(
        lambda source: translate_ids(model, source, config)["ids"][:, 0],
        jit_compile=jit_compile,
        input_signature=None if jit_compile else [tf.TensorSpec((None, None), tf.int32)],
    )
    return lambda source: search(source).numpy()


def continuations(options: argparse.Namespace) -> Decoders:
    """Makes GPT-2s with equal weights in all libraries, which continue prompts greedily."""
    import transformers

    model, count = peers.gpt2(options.size), options.new_tokens
    length, config = options.source_length + count, model.network.config
    if length > config.max_length:
        limit = config.max_length
        raise UserError(f"--source-length and --new-tokens are {length} together, above {limit}")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, format="hugging-face")
        peer = transformers.GPT2LMHeadModel.from_pretrained(folder)
    greedy = GenerationConfig(temperature=0.0, max_tokens=count, min_tokens=count)
    ours = TextGenerator(model.network, model.vocabulary, config.max_length)
    generators = {"ours": ours}
    for weight_type in options.lite:
        decoder = convert_decoder(model.network, weight_type, options.threads)
        generators[f"ours, LiteRT {weight_type}"] = ours.with_model(decoder)
    reference = functools.partial(peers.generate, peer, count=count, suppress_tokens=None)
    functions = {REFERENCE: reference}
    for weight_type in options.ctranslate2:
        functions[f"CTranslate2, {weight_type}"] = peers.ctranslate2_generator(
            peer, options.threads, weight_type, count
        )
    for name, generator in generators.items():
        functions[name] = functools.partial(completed, generator, greedy)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        special = model.vocabulary.special
        prompts = rng.integers(len(special.ids), model.vocabulary.pieces, shape)
        prompts[:, 0] = special.begin
        return prompts

    return draw, reference, functions


def completed(generator: TextGenerator, config: GenerationConfig, rows: np.ndarray) -> np.ndarray:
    """Continues each prompt greedily by N tokens, and returns their ids `(B, N)`."""
    continuations = generator.continue_rows(rows.tolist(), config)
    return np.array([continuation.ids for [continuation] in continuations])


main = cli.single_program(
    "python -m experiments.lab.benchmarks.decoding",
    __doc__,
    "experiments.lab.benchmarks.decoding:run",
    harness.options(warm_up=1),
    harness.THREADS,
    cli.argument(
        "--model",
        "translator (beam search) or gpt2 (greedy decoding after prompts; default: translator)",
        default="translator",
        choices=("translator", "gpt2"),
    ),
    cli.argument(
        "--size",
        "size of the model: tiny, small, base or big for translator, tiny, mini, base or medium "
        "for gpt2 (default: small)",
        default="small",
        choices=("tiny", "mini", "small", "base", "medium", "big"),
    ),
    cli.count("--vocab-size N", "subword tokens of the translator (default: 10000)", 10_000),
    # `TextGenerator` splits more than 32 prompts into several batches.
    cli.count("--batch-sizes N", "texts in a batch (default: 1 32)", [1, 32], below=33, nargs="+"),
    cli.count("--beam-size N", "width of the translator's beam search (default: 4)", 4),
    cli.count("--source-length N", "tokens in a source or prompt (default: 24)", 24, minimum=2),
    cli.count("--new-tokens N", "tokens to generate for each text (default: 32)", 32, minimum=2),
    cli.switch("--macaron", "also time a Macaron translator of the same size"),
    harness.several("--lite", PRECISIONS, "weight types of LiteRT to time as well", []),
    harness.several("--ctranslate2", peers.COMPUTE_TYPES, "weight types of it to time as well", []),
)

if __name__ == "__main__":
    raise SystemExit(main())
