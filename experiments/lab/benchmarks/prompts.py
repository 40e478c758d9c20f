"""Times greedy decoding after long prompts by GPT-2, against Hugging Face `generate`.

    make bench
    python -m experiments.lab.benchmarks.prompts --size base --rounds 5 --out DIR

All implementations have the same weights and generate the same number of tokens after each prompt.
Most implementations read a prompt in a single pass (prefill). The implementation "token by token"
of this library reads one prompt token per step, and LiteRT reads a prompt in parts of up to 256
tokens. The implementation "ours, XLA" compiles only the loop over new tokens.
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
from macaron_tf.decoding.sampling import continue_sampling, first_state
from macaron_tf.engines.lite_decoding import convert_decoder
from macaron_tf.engines.lite_writer import PRECISIONS
from macaron_tf.errors import UserError
from macaron_tf.models import catalog
from macaron_tf.text.byte_pairs import CLS, SPECIAL

command = Benchmark(
    "prompts",
    __doc__,
    "new tokens",
    ("tensorflow", "keras", "torch", "transformers", "ctranslate2", "numpy"),
    argument(
        "--size",
        "size of the GPT-2 model",
        default="mini",
        choices=("tiny", "mini", "base", "medium"),
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
    warm_up=1,
)


@command.measures("GPT-2 {size}: {new_tokens} tokens after prompts with {prompt_tokens} tokens")
def main(options: argparse.Namespace) -> Tables:
    """Runs the benchmark: times all implementations at each batch size."""
    config = catalog.config(f"gpt2_{options.size}")
    length = options.prompt_tokens + options.new_tokens
    if length > config.max_length:
        raise UserError(
            f"the sum of --prompt-tokens and --new-tokens is {length}, but GPT-2 has only "
            f"{config.max_length} positions: lower --prompt-tokens or --new-tokens"
        )
    peers.set_up(options.threads, options.inter_op_threads)
    peer, count = peers.GPT2Peer(config), options.new_tokens
    with tempfile.TemporaryDirectory() as folder:
        pretrained = peer.as_macaron_tf(pathlib.Path(folder))
    without_prefill = types.SimpleNamespace(  # the same model without prefill
        init_decode=pretrained.network.init_decode,
        decode_step=pretrained.network.decode_step,
        can_prefill=False,
    )
    greedy = GenerationConfig(temperature=0.0, max_tokens=count, min_tokens=count)
    ids = pretrained.ids  # (V,) array from an id in this library to the id in Hugging Face
    ctranslate2_peers = {
        f"CTranslate2, {weight_type}": peers.CTranslate2GPT2(peer, options.threads, weight_type)
        for weight_type in options.ctranslate2
    }
    generators = {
        name: TextGenerator(model, pretrained.vocabulary, config.max_length)
        for name, model in (("ours", pretrained.network), ("token by token", without_prefill))
    }
    for weight_type in options.lite:
        decoder = convert_decoder(pretrained.network, weight_type, options.threads)
        generators[f"ours, LiteRT {weight_type}"] = generators["ours"].with_model(decoder)
    for batch_size in options.batch_sizes:
        rng = np.random.default_rng(batch_size)
        # (B, P) ids of this library
        rows = rng.integers(SPECIAL, len(ids), (batch_size, options.prompt_tokens))
        rows[:, 0] = CLS
        peer_rows = ids[rows]
        pad = {"pad_token_id": config.vocab_size - 1}
        functions = {
            "Hugging Face generate": functools.partial(peer.generate, peer_rows, count, **pad)
        }
        for name, ctranslate2_peer in ctranslate2_peers.items():
            functions[name] = functools.partial(ctranslate2_peer.generate, peer_rows, count)
        for name, generator in generators.items():
            functions[name] = functools.partial(completed, generator, rows.tolist(), greedy)
        functions["ours, XLA"] = compiled(generators["ours"], rows, greedy)
        expected = functions["Hugging Face generate"]()
        for name, function in functions.items():
            # Tokens may differ where two tokens are almost equally likely.
            tokens = ids[function()] if name in generators or name == "ours, XLA" else function()
            agreement = (tokens == expected).mean()
            print(
                f"batch {batch_size}: {name}: {agreement:.0%} of the tokens equal Hugging Face's "
                "tokens",
                flush=True,
            )
        contenders = {
            name: lambda function=function: function().size for name, function in functions.items()
        }
        yield f"batch {batch_size}", timed(contenders, options)


def completed(
    generator: TextGenerator, rows: list[list[int]], config: GenerationConfig
) -> np.ndarray:
    """Generates N new tokens after each prompt by greedy decoding, and returns their ids `(B, N)`.

    Args:
        generator: generator of this library.
        rows: token ids of B prompts.
        config: settings of greedy decoding.
    """
    return np.array([continuation.ids for [continuation] in generator.continue_rows(rows, config)])


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
    (batch_size, length), count = rows.shape, config.max_tokens
    arrays = (
        rows,
        np.full(batch_size, length),
        np.full(batch_size, count),
        np.zeros((batch_size, 1)),
    )
    prompts = Prompts(*(tf.constant(array, tf.int32) for array in arrays))
    step, rules = generator.model.decode_step, generator.rules(config, config.min_tokens)

    @tf.function(autograph=False)
    def begin(prompts):
        prompts, context, cache = generator.begin(prompts, length + count)
        return context, first_state(prompts, context, cache, generator.prefill_fn)

    @tf.function(autograph=False, jit_compile=True)
    def loop(context, state, prompts):
        return continue_sampling(step, context, state, prompts, rules, count)[0]

    return lambda: loop(*begin(prompts), prompts)[:, 0].numpy()


if __name__ == "__main__":
    raise SystemExit(main())
