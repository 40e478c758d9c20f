"""Going on from long prompts against Hugging Face `generate`: the same GPT-2, greedily.

    make bench
    python -m experiments.benchmarks.prompts --size base --rounds 5 --out DIR

Every text goes on for the same number of tokens. Ours reads a prompt at once, as theirs does; a
prompt that is read token by token, one step each, is timed beside it.
"""

import argparse
import pathlib
import tempfile
import types

import numpy as np

from experiments.benchmarks import peers
from experiments.benchmarks.harness import Benchmark, Tables, timed
from experiments.command_line import argument, count
from macaron_tf.decoding import GenerationConfig, TextGenerator
from macaron_tf.errors import UserError
from macaron_tf.models import catalog
from macaron_tf.text.byte_pairs import CLS, SEP, SPECIAL

command = Benchmark(
    "prompts",
    __doc__,
    "new tokens",
    ("tensorflow", "keras", "torch", "transformers", "numpy"),
    argument("--size", "of the model", default="mini", choices=("tiny", "mini", "base", "medium")),
    # More than 32 are continued in several batches.
    count("--batch-sizes", "prompts at once", [1, 8], below=33, nargs="+"),
    count("--prompt-tokens", "tokens of a prompt, the first one included", 256),
    count("--new-tokens", "tokens behind it", 32),
    count("--inter-op-threads", "of TensorFlow", 1),
    warm_up=1,
)


@command.measures("{new_tokens} tokens behind prompts of {prompt_tokens}: GPT-2 {size}")
def main(options: argparse.Namespace) -> Tables:
    """Times all generators in each batch size."""
    config = catalog.config(f"gpt2_{options.size}")
    longest = options.prompt_tokens + options.new_tokens
    if longest > config.max_length:
        raise UserError(
            f"--prompt-tokens and --new-tokens come to {longest}: a GPT-2 has {config.max_length} "
            "positions."
        )
    peers.begin(options.threads, options.inter_op_threads)
    peer, count = peers.GPT2Peer(config), options.new_tokens
    with tempfile.TemporaryDirectory() as folder:
        read = peer.ours(pathlib.Path(folder))
    stepping = types.SimpleNamespace(  # without its `prefill`
        init_decode=read.network.init_decode,
        decode_step=read.network.decode_step,
        can_prefill=False,
    )
    greedy = GenerationConfig(temperature=0.0, max_tokens=count, min_tokens=count)
    ids = read.ids  # (V,), theirs of each of ours
    ours = {number: i for i, number in enumerate(ids.tolist()) if i >= SEP}

    def go_on(rows: np.ndarray) -> np.ndarray:
        return peer.generate(ids[rows], count, pad_token_id=config.vocab_size - 1)

    for batch in options.batch_sizes:
        rng = np.random.default_rng(batch)
        rows = rng.integers(SPECIAL, len(ids), (batch, options.prompt_tokens))  # (B, P) of our ids
        rows[:, 0] = CLS
        contenders = {"Hugging Face generate": lambda rows=rows: go_on(rows).size}
        for name, model in (("ours", read.network), ("token by token", stepping)):
            generator = TextGenerator(model, read.vocabulary, config.max_length)

            def complete(generator=generator, rows=rows) -> list:
                return [one for [one] in generator.continue_rows(rows.tolist(), greedy)]

            # Fewer than all are equal where two tokens are almost equally likely.
            texts = [generator.detokenizer(map(ours.get, row)) for row in go_on(rows).tolist()]
            equal = np.mean([one.text == text for one, text in zip(complete(), texts, strict=True)])
            print(f"batch {batch}: {name}: {equal:.0%} of the texts are theirs", flush=True)
            contenders[name] = lambda complete=complete: sum(one.length for one in complete())
        yield f"batch {batch}", timed(contenders, options)


if __name__ == "__main__":
    raise SystemExit(main())
