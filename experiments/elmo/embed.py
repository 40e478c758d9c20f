"""`elmo embed`: the vectors of the words of some lines."""

import argparse
import io
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from experiments.elmo.run import ElmoRun
from experiments.lines import decoded, opened_input, opened_output
from macaron_tf.errors import UserError
from macaron_tf.models import Elmo
from macaron_tf.text.words import character_ids, split_words, with_ends

_TOGETHER = 32  # lines
# The layers of a line's words, `(words, J, D)`, or one vector a word, `(words, D)`.
_LAYERS = {
    "all": lambda layers: layers,
    "mean": lambda layers: layers.mean(axis=1),
    "top": lambda layers: layers[:, -1],
}


def run(options: argparse.Namespace) -> None:
    """Writes an .npz with the words, `words_n`, and the vectors, `line_n`, of line n."""
    opened = ElmoRun.open(options.run)
    network = opened.load_network(opened.checkpoint(options.checkpoint))
    with opened_input(options.input) as file:
        lines = list(decoded(file))
    if not lines:
        raise UserError("there is no line to embed: give some with --input or on stdin")
    arrays = {}
    for number, (words, vectors) in enumerate(embed(network, lines, options.tokenized)):
        arrays[f"words_{number}"] = np.array(words, dtype=np.str_)
        arrays[f"line_{number}"] = _LAYERS[options.layers](vectors)
    whole = io.BytesIO()
    np.savez(whole, **arrays)
    with opened_output(options.output) as file:
        file.write(whole.getvalue())
    width = arrays["line_0"].shape[-1]
    print(f"{len(lines)} lines, vectors of {width} in {options.output}: line_0, words_0, ...")


def embed(
    network: Elmo, lines: list[str], tokenized: bool = False
) -> Iterator[tuple[list[str], np.ndarray]]:
    """The words of each line, and their layers `(words, 1 + num_layers, 2 P)` float32.

    Args:
        tokenized: split at white space only; otherwise see `split_words`.
    """
    layers = tf.function(
        lambda characters: network(characters, training=False),
        autograph=False,
        reduce_retracing=True,  # lines are of all lengths
    )
    for first in range(0, len(lines), _TOGETHER):
        texts = tf.constant(lines[first : first + _TOGETHER])
        words = tf.strings.split(texts) if tokenized else split_words(texts)
        padded = with_ends(words).to_tensor("")  # (B, L)
        found = layers(character_ids(padded, network.config.max_characters))
        for row, mine in enumerate(words.to_list()):
            # The first and last positions are the marks of the sentence's ends.
            vectors = tf.cast(found[row, 1 : 1 + len(mine)], tf.float32).numpy()
            yield [word.decode("utf-8", "replace") for word in mine], vectors
