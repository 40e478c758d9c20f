"""The command `elmo neighbours`, which finds the nearest neighbours of a word."""

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
    """Runs the command `neighbours`: prints the nearest neighbours of a word.

    The first line lists the words that are spelled most similarly. For each sentence of `--in`,
    the lines below list the nearest occurrences in context.
    """
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
    """Yields, for each sentence, a tuple that describes the first occurrence of `word`.

    The tuple has the words of the sentence, the position of `word`, and the vectors of `word`. The
    vectors have the shape `(J, 2 P)`, with one vector from each of J layers. P is ELMo's projection
    width.

    Raises:
        UserError: a sentence does not contain `word`.
    """
    for sentence, (words, layers) in zip(sentences, embed(network, sentences), strict=True):
        if word not in words:
            raise UserError(
                f"--in {sentence!r} does not contain the word {word!r}: give another sentence, or "
                f"one of the words {', '.join(words)}"
            )
        yield words, words.index(word), layers[words.index(word)]


def neighbours(
    network: Elmo, asked: Sequence[tuple], sentences: list[str], count: int
) -> Iterator[str]:
    """Yields lines of text that list the nearest neighbours of a word by cosine similarity.

    The first line lists similar words according to the first layer, whose vectors depend only on
    the characters of a word. The other lines show similar occurrences according to the last layer,
    whose vectors depend on the context.

    Args:
        network: the ELMo.
        asked: tuples from `_asked`, one for each sentence with the word.
        sentences: sentences to search.
        count: number of neighbours in each list.

    Raises:
        UserError: `sentences` contain no other word.
    """
    alone: dict[str, np.ndarray] = {}
    places: list[tuple[list[str], int]] = []  # sentence and position of each occurrence
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
            f"the sentences of --source contain no word other than {word!r}: give another "
            "--source or a larger --limit"
        )
    scores, types = _cosines(np.array([*alone.values()]), layers[0]), [*alone]  # (types,)
    nearest = (f"{types[n]} {scores[n]:.2f}" for n in np.argsort(-scores)[:count])
    yield f"{word}: {', '.join(nearest)}"
    vectors = np.concatenate(found)  # (occurrences, 2 P)
    for words, position, layers in asked:
        yield ""
        yield _shown(words, position)
        scores = _cosines(vectors, layers[-1])
        # Excludes the sentence of `--in`, because the searched text may contain this sentence.
        others = (n for n in np.argsort(-scores) if places[n][0] != words)
        for n in itertools.islice(others, count):
            yield f"  {scores[n]:.2f}  {_shown(*places[n])}"


def _cosines(vectors: np.ndarray, one: np.ndarray) -> np.ndarray:
    """Computes the cosine similarities `(N,)` of N vectors `(N, D)` and the vector `one (D,)`.

    The mean of the N vectors is subtracted from all vectors first.
    """
    mean = vectors.mean(axis=0)
    vectors, one = vectors - mean, one - mean
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(one)
    return vectors @ one / np.maximum(lengths, 1e-12)


def _shown(words: list[str], position: int) -> str:
    """Formats a sentence with the word at `position` in brackets."""
    return " ".join(f"[{w}]" if n == position else w for n, w in enumerate(words))
