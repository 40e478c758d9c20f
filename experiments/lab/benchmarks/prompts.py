"""Times greedy decoding after long prompts by GPT-2, against Hugging Face `generate`.

    make bench
    python -m experiments.lab.benchmarks.prompts --size base --rounds 5 --out DIR

All implementations have the same weights and generate the same number of tokens after each prompt.
All implementations except one read a prompt in a single pass (prefill). The implementation "token
by token" of this library reads one prompt token per step. The implementation "ours, XLA" compiles
only the loop over new tokens.
"""

import argparse
import functools
import pathlib
import tempfile
import types
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from experiments.lab.benchmarks import peers
from experiments.lab.benchmarks.harness import Benchmark, Tables, several, timed
from macaron_tf.cli.arguments import argument, count
from macaron_tf.decoding import GenerationConfig, Prompts, TextGenerator
from macaron_tf.decoding.sampling import first_state, go_on
from macaron_tf.engines.lite_decoding import converted_decoder
from macaron_tf.engines.lite_writer import KINDS
from macaron_tf.errors import UserError
from macaron_tf.models import catalog
from macaron_tf.text.byte_pairs import CLS, SPECIAL

command = Benchmark(
    "prompts",
    __doc__,
    "new tokens",
    ("tensorflow", "keras", "torch", "transformers", "ctranslate2", "numpy"),
    argument(
        "--size", "size of the GPT-2", default="mini", choices=("tiny", "mini", "base", "medium")
    ),
    # `TextGenerator` splits more than 32 prompts into several batches.
    count(
        "--batch-sizes",
        "batch sizes to time, in prompts",
        [1, 8],
        below=33,
        nargs="+",
    ),
    count("--prompt-tokens", "number of tokens in a prompt, including [CLS]", 256),
    count("--new-tokens", "number of tokens to generate after each prompt", 32),
    count("--inter-op-threads", "number of inter-op threads of TensorFlow", 1),
    several("--lite", KINDS, "weight types for also timing LiteRT (default: no LiteRT)", []),
    several(
        "--ctranslate2",
        peers.COMPUTE_TYPES,
        "weight types for also timing CTranslate2 (default: no CTranslate2)",
        [],
    ),
    warm_up=1,
)


@command.measures("GPT-2 {size}: {new_tokens} tokens after prompts with {prompt_tokens} tokens")
def main(options: argparse.Namespace) -> Tables:
    """Runs the benchmark: times all implementations at each batch size."""
    config = catalog.config(f"gpt2_{options.size}")
    longest = options.prompt_tokens + options.new_tokens
    if longest > config.max_length:
        raise UserError(
            f"the sum of --prompt-tokens and --new-tokens is {longest}, but GPT-2 has only "
            f"{config.max_length} positions: lower --prompt-tokens or --new-tokens"
        )
    peers.begin(options.threads, options.inter_op_threads)
    peer, count = peers.GPT2Peer(config), options.new_tokens
    with tempfile.TemporaryDirectory() as folder:
        read = peer.ours(pathlib.Path(folder))
    stepping = types.SimpleNamespace(  # the same model without prefill
        init_decode=read.network.init_decode,
        decode_step=read.network.decode_step,
        can_prefill=False,
    )
    greedy = GenerationConfig(temperature=0.0, max_tokens=count, min_tokens=count)
    ids = read.ids  # (V,) array from an id in this library to the id in Hugging Face
    others = {
        f"CTranslate2, {kind}": peers.CTranslate2GPT2(peer, options.threads, kind)
        for kind in options.ctranslate2
    }
    generators = {
        name: TextGenerator(model, read.vocabulary, config.max_length)
        for name, model in (("ours", read.network), ("token by token", stepping))
    }
    for kind in options.lite:
        decoder = converted_decoder(read.network, kind, options.threads)
        generators[f"ours, LiteRT {kind}"] = generators["ours"].asking(decoder)
    for batch in options.batch_sizes:
        rng = np.random.default_rng(batch)
        rows = rng.integers(
            SPECIAL, len(ids), (batch, options.prompt_tokens)
        )  # (B, P) ids of this library
        rows[:, 0] = CLS
        theirs = ids[rows]
        pad = {"pad_token_id": config.vocab_size - 1}
        works = {"Hugging Face generate": functools.partial(peer.generate, theirs, count, **pad)}
        for name, other in others.items():
            works[name] = functools.partial(other.generate, theirs, count)
        for name, generator in generators.items():
            works[name] = functools.partial(completed, generator, rows.tolist(), greedy)
        works["ours, XLA"] = compiled(generators["ours"], rows, greedy)
        expected = works["Hugging Face generate"]()
        for name, work in works.items():
            # Tokens may differ where two tokens are almost equally likely.
            found = ids[work()] if name in generators or name == "ours, XLA" else work()
            equal = (found == expected).mean()
            print(
                f"batch {batch}: {name}: {equal:.0%} of the tokens equal Hugging Face's tokens",
                flush=True,
            )
        turns = {name: lambda work=work: work().size for name, work in works.items()}
        yield f"batch {batch}", timed(turns, options)


def completed(
    generator: TextGenerator, rows: list[list[int]], config: GenerationConfig
) -> np.ndarray:
    """Generates N new tokens after each prompt by greedy decoding, and returns their ids `(B, N)`.

    Args:
        generator: generator of this library.
        rows: token ids of B prompts.
        config: settings of greedy decoding.
    """
    return np.array([one.ids for [one] in generator.continue_rows(rows, config)])


def compiled(
    generator: TextGenerator, rows: np.ndarray, config: GenerationConfig
) -> Callable[[], np.ndarray]:
    """Returns a function that decodes greedily after prompts in a loop that XLA compiles.

    The function returns the ids `(B, N)` of N new tokens after each prompt.

    Args:
        generator: generator of this library.
        rows: `(B, P)` token ids of the prompts.
        config: settings of greedy decoding.
    """
    (batch, length), count = rows.shape, config.max_tokens
    numbers = (rows, np.full(batch, length), np.full(batch, count), np.zeros((batch, 1)))
    asked = Prompts(*(tf.constant(array, tf.int32) for array in numbers))
    step, rules = generator.model.decode_step, generator.rules(config, config.min_tokens)

    @tf.function(autograph=False)
    def begin(asked):
        asked, context, cache = generator.begin(asked, length + count)
        return context, first_state(asked, context, cache, generator.prefill_fn)

    @tf.function(autograph=False, jit_compile=True)
    def loop(context, state, asked):
        return go_on(step, context, state, asked, rules, count)[0]

    return lambda: loop(*begin(asked), asked)[:, 0].numpy()


if __name__ == "__main__":
    raise SystemExit(main())
