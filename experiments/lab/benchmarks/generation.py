"""Times greedy decoding at increasing positions, by models with and without attention.

    python -m experiments.lab.benchmarks.generation --rounds 7 --out DIR

Three models of equal width and depth, with random weights, generate a text by greedy decoding:

- the Transformer, which keeps the keys and values of all tokens
- the SwishRNN block, which has the same attention and a recurrence instead of the feed-forward
  layer
- the recurrence alone (`block="swish_rnn", scheme="channels"`), whose state has a fixed size

The benchmark times the generation of several parts of the text, all with the same number of tokens.
Before each part, the decoding state is restored from a saved copy. Ratios are relative to the first
part that the Transformer generates.
"""

import argparse
import itertools
from collections.abc import Callable

import keras
import tensorflow as tf

from experiments.lab.benchmarks import harness
from experiments.lab.benchmarks.harness import Benchmark, Tables
from macaron_tf.cli.arguments import count
from macaron_tf.decoding import GenerationConfig, Prompts, Rules
from macaron_tf.decoding.beam_search import loop_shapes
from macaron_tf.decoding.sampling import continue_sampling, first_state
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig, LanguageModel

MODELS = {
    "Transformer": {"block": "transformer"},
    "SwishRNN": {"block": "swish_rnn"},
    "recurrence alone": {"block": "swish_rnn", "scheme": "channels"},
}

command = Benchmark(
    "generation",
    __doc__,
    "tokens",
    ("tensorflow", "keras"),
    count(
        "--ends",
        "positions in the text, in tokens, at which the timed parts end",
        [64, 256, 512, 1024, 2048],
        nargs="+",
    ),
    count("--window", "number of tokens in each timed part of the text", 64),
    count("--batch", "number of texts in a batch", 1),
    count("--width", "hidden size D of the models, a multiple of 64", 256),
    count("--layers", "number of layers in each model", 4),
    count("--vocab-size", "number of subword tokens in the vocabulary", 8_000),
    warm_up=1,
)


@command.measures("Time per token against the position: D {width}, {layers} layers")
def main(options: argparse.Namespace) -> Tables:
    """Runs the benchmark: times all parts of the text for all models."""
    ends = sorted(set(options.ends))
    before, end = min(itertools.pairwise([0, *ends]), key=lambda pair: pair[1] - pair[0])
    if options.width % 64:
        raise UserError(
            f"--width is {options.width}, but must be a multiple of 64: set --width to such a "
            "multiple"
        )
    if end - before < options.window:
        raise UserError(
            f"--window is {options.window}, but the text between the positions {before} and {end} "
            f"has only {end - before} tokens: set --window to at most {end - before}, or increase "
            "the distances between the values of --ends"
        )
    harness.set_threads(options.threads, 1)
    contenders, state_bytes = {}, {}
    for model, model_options in MODELS.items():
        for end, (window, size) in text_windows(options, ends, model_options).items():
            name = f"{model}, tokens {end - options.window + 1} to {end}"
            contenders[name] = harness.counted(options.window * options.batch, window)
            state_bytes[name] = size
    rows = harness.timed(contenders, options)
    for index, row in enumerate(rows):
        first = rows[index - index % len(ends)]  # the first part of the same model
        ratio = harness.compare([first, row])[1]["ratio"]
        milliseconds = [1e3 * seconds / options.window for seconds in row["seconds"]]
        row["kept_bytes"], row["over_first_window"] = state_bytes[row["name"]], ratio
        row["more"] = {
            "ms per token": harness.cell(harness.quartiles(milliseconds), 2),
            "relative to its first part": harness.cell(ratio, 3),
            "decoding state, KiB": f"{row['kept_bytes'] / 1024:,.0f}",
        }
    yield f"batch {options.batch}, parts with {options.window} tokens", rows


def text_windows(
    options: argparse.Namespace, ends: list[int], model_options: dict[str, str]
) -> dict[int, tuple[Callable, int]]:
    """Prepares the timed parts of the generated text for one model.

    Args:
        options: parsed options of the command.
        ends: positions at which the parts end, in ascending order.
        model_options: fields of the model configuration, see `MODELS`.

    Returns:
        A dict mapping the end of a part to a pair. The first element is a function that generates
        this part of the text. The second element is the size of the decoding state at the end of
        the part, in bytes.
    """
    keras.utils.set_random_seed(options.seed)
    config = EncoderConfig(
        vocab_size=options.vocab_size,
        hidden_dim=options.width,
        # The recurrence has the width 2 D, so that parameter counts are equal.
        feed_forward_dim=3 * options.width,
        num_heads=options.width // 64,
        num_layers=options.layers,
        max_length=ends[-1] + 1,
        causal=True,
        **model_options,
    )
    model = LanguageModel(config)
    model.build()
    rules = Rules(GenerationConfig(temperature=0.0), min_tokens=ends[-1])
    ones = tf.ones([options.batch], tf.int32)
    prompts = Prompts(ones[:, None], ones, ends[-1] * ones, ones[:, None])
    context, cache = model.init_decode(options.batch, 1)
    state = first_state(prompts, context, cache)
    shapes = tf.nest.map_structure(
        lambda x, shape: tf.TensorSpec(shape, x.dtype), state, loop_shapes(state)
    )

    @tf.function(autograph=False, input_signature=[shapes, tf.TensorSpec((), tf.int32)])
    def generate(state, end):
        state = state._replace(ended=tf.zeros_like(state.ended))
        limited = prompts._replace(limits=end * ones)
        return continue_sampling(model.decode_step, context, state, limited, rules, ends[-1])[1]

    windows = {}
    for before, end in itertools.pairwise([0, *ends]):
        if end - options.window > before:
            state = generate(state, tf.constant(end - options.window))
        last = generate(state, tf.constant(end))
        size = sum(x.dtype.size * int(tf.size(x)) for x in tf.nest.flatten(last.cache))
        window = (state, tf.constant(end))
        windows[end] = lambda window=window: generate(*window).tokens.numpy(), size
        state = last
    return windows


if __name__ == "__main__":
    raise SystemExit(main())
