"""`elmo neighbours`: the nearest neighbours of a word, alone and in its context."""

import argparse
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.elmo.run import ElmoRun, embed
from macaron_tf.data.sources.readers import documents
from macaron_tf.errors import UserError
from macaron_tf.models import Elmo
from macaron_tf.text.words import cut_lines, split_sentences


def run(options: argparse.Namespace) -> None:
    """The command `neighbours`: prints words nearest to a word, and occurrences in context."""
    opened = ElmoRun.open(options.run)
    network = opened.load_network(opened.checkpoint(options.checkpoint))
    sources = options.source or opened.recipe.sources
    texts = (text for one in sources for text in documents(one, "train", options.tfds))
    sentences = (s for text in texts for line in split_sentences(cut_lines(text)) for s in line)
    asked = list(_asked(network, options.word, options.sentences))
    for line in neighbours(
        network,
        asked,
        [*itertools.islice(sentences, options.limit)],
        options.count,
    ):
        print(line)


def _asked(network: Elmo, word: str, sentences: list[str]) -> Iterator[tuple]:
    """Yields each sentence's words, the position of `word`, and its layers `(J, 2 P)`."""
    for sentence, (words, layers) in zip(sentences, embed(network, sentences), strict=True):
        if word not in words:
            raise UserError(
                f"--in {sentence!r} does not have the word {word!r}: give one of "
                f"{', '.join(words)}, or another sentence"
            )
        yield words, words.index(word), layers[words.index(word)]


def neighbours(
    network: Elmo, asked: Sequence[tuple], sentences: list[str], count: int
) -> Iterator[str]:
    """Yields lines with the nearest words and occurrences, by the cosine of their vectors.

    The vector of a word alone is its first layer, which depends on its characters only; the vector
    in context is the last layer.

    Args:
        network: the ELMo.
        asked: for each sentence that has the word: its words, the word's position and layers.
        sentences: sentences to search.
        count: number of neighbours to show.
    """
    alone: dict[str, np.ndarray] = {}
    places: list[tuple[list[str], int]] = []  # each occurrence's sentence and position
    found = []
    for words, layers in embed(network, sentences):
        alone |= dict(zip(words, layers[:, 0], strict=True))
        places += [(words, position) for position in range(len(words))]
        found.append(layers[:, -1])
    (words, position, layers), *_ = asked
    word = words[position]
    alone.pop(word, None)
    if not alone:
        raise UserError(
            f"the text has no other word than {word!r}: give another --source, or a greater --limit"
        )
    scores, types = _cosines(np.array([*alone.values()]), layers[0]), [*alone]  # (types,)
    nearest = (f"{types[n]} {scores[n]:.2f}" for n in np.argsort(-scores)[:count])
    yield f"{word}: {', '.join(nearest)}"
    vectors = np.concatenate(found)  # (occurrences, 2 P)
    for words, position, layers in asked:
        yield ""
        yield _shown(words, position)
        scores = _cosines(vectors, layers[-1])
        # Leaves out the sentence itself, which the text may contain.
        others = (n for n in np.argsort(-scores) if places[n][0] != words)
        for n in itertools.islice(others, count):
            yield f"  {scores[n]:.2f}  {_shown(*places[n])}"


def _cosines(vectors: np.ndarray, one: np.ndarray) -> np.ndarray:
    """Cosines `(N,)` of vectors `(N, D)` with one `(D,)`, after subtracting the mean of the N."""
    mean = vectors.mean(axis=0)
    vectors, one = vectors - mean, one - mean
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(one)
    return vectors @ one / np.maximum(lengths, 1e-12)


def _shown(words: list[str], position: int) -> str:
    """The sentence, with the word at `position` in brackets."""
    return " ".join(f"[{w}]" if n == position else w for n, w in enumerate(words))
