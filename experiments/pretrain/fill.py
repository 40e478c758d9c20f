"""`pretrain fill`: the likeliest words for each [MASK] of a text."""

import argparse
import sys

import numpy as np
import scipy.special

from experiments.pretrain.recipe import CORRUPTING, FILLING
from experiments.pretrain.run import PretrainingRun
from macaron_tf.errors import UserError
from macaron_tf.models import PretrainingEncoder
from macaron_tf.text.base import PieceVocabulary

MASK = "[MASK]"


def fill(
    network: PretrainingEncoder, vocabulary: PieceVocabulary, text: str, top: int, longest: int
) -> list[list[tuple[str, float]]]:
    """The likeliest pieces for each [MASK] of a text.

    Args:
        longest: length of the training's rows; later positions are untrained.

    Returns:
        For each [MASK] pairs (piece, probability), the likeliest first; a piece that continues a
        word begins with "##".
    """
    if MASK not in text:
        raise UserError(f"{text[:60]!r} has no {MASK}: write it where a word is to be found")
    parts = vocabulary.encode_lines([part.strip() for part in text.split(MASK)])
    ids = [vocabulary.cls_id]
    for number, part in enumerate(parts):
        ids += ([vocabulary.mask_id] if number else []) + part
    ids.append(vocabulary.sep_id)
    if len(ids) > longest:
        raise UserError(
            f"the text has {len(ids)} tokens, more than the {longest} of the rows that the model "
            "was trained on: shorten it"
        )
    token_ids = np.array([ids], np.int32)  # (1, L)
    positions = np.flatnonzero(token_ids[0] == vocabulary.mask_id)[None]  # (1, P)
    outputs = network({"token_ids": token_ids, "masked_positions": positions}, training=False)
    logits = np.asarray(outputs["masked_language"], np.float64)[0, :, : vocabulary.pieces]  # (P, V)
    logits[:, list(vocabulary.special_ids)] = -np.inf
    probabilities = scipy.special.softmax(logits, axis=-1)
    best = np.argsort(-probabilities, axis=-1)[:, :top]  # (P, top)
    words = vocabulary.decode_lines([[i] for i in best.reshape(-1)])
    starts = vocabulary.word_starts()[best.reshape(-1)]
    words = [word if begins else f"##{word}" for word, begins in zip(words, starts, strict=True)]
    return [
        [(words[p * best.shape[1] + n], float(row[i])) for n, i in enumerate(best[p])]
        for p, row in enumerate(probabilities)
    ]


def run(options: argparse.Namespace) -> None:
    """Fills in the texts given, or the lines of stdin."""
    opened = PretrainingRun.open(options.run)
    if opened.recipe.objective in CORRUPTING:
        raise UserError(
            f"{opened.path} is an encoder-decoder and fills no {MASK}: give a run of an encoder"
        )
    if opened.recipe.objective not in FILLING:
        raise UserError(
            f"{opened.path} has learnt by {opened.recipe.objective!r} and fills no {MASK}: give a "
            f"run of {', '.join(FILLING)}"
        )
    network = opened.load_network(options.checkpoint)
    texts = options.text or (line.rstrip("\n") for line in sys.stdin)
    for text in texts:
        print(text)
        longest = opened.recipe.corpus.sequence_length
        for answers in fill(network, opened.vocabulary, text, options.top, longest):
            print("   " + "  ".join(f"{word} {share:.1%}" for word, share in answers))
