"""The command `neighbours`, which finds the nearest neighbours of a word."""

import argparse
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from macaron_tf.data.sources.readers import documents
from macaron_tf.errors import UserError
from macaron_tf.evaluation.similarity import cosines
from macaron_tf.models import Elmo
from macaron_tf.runs.elmo import embed
from macaron_tf.runs.run import Run
from macaron_tf.text.words import cut_lines, split_sentences


def run(options: argparse.Namespace) -> None:
    """Prints the nearest neighbours of a word.

    The first line lists the words that are spelled most similarly. For each sentence of `--in`,
    the lines below list the nearest occurrences in context.
    """
    elmo_run = Run.open(options.run, options.trust_code, "elmo")
    network = elmo_run.load_network(options.checkpoint)
    sources = options.source or elmo_run.recipe.sources
    texts = (text for source in sources for text in documents(source, "train", options.tfds))
    sentences = (
        sentence for text in texts for line in split_sentences(cut_lines(text)) for sentence in line
    )
    queries = list(_query_occurrences(network, options.word, options.sentences))
    searched = [*itertools.islice(sentences, options.limit)]
    print("\n".join(neighbours(network, queries, searched, options.count)))


def _query_occurrences(network: Elmo, word: str, sentences: list[str]) -> Iterator[tuple]:
    """Yields the first occurrence of `word` in each sentence: its words, a position and vectors.

    The vectors of `word` have the shape `(J, 2 P)`, for J layers of ELMo's projection width P.
    """
    for sentence, (words, layers) in zip(sentences, embed(network, sentences), strict=True):
        if word not in words:
            raise UserError(f"{sentence!r} does not contain the word {word!r}, but {words}")
        yield words, words.index(word), layers[words.index(word)]


def neighbours(
    network: Elmo, queries: Sequence[tuple], sentences: list[str], count: int
) -> Iterator[str]:
    """Yields lines of text that list the `count` nearest neighbours of a word by cosine similarity.

    The first line lists similar words according to the first layer, whose vectors depend only on
    the characters of a word. The other lines show similar occurrences according to the last layer,
    whose vectors depend on the context.

    Args:
        queries: tuples from `_query_occurrences`, one for each sentence with the word.
        sentences: sentences to search.
    """
    type_vectors: dict[str, np.ndarray] = {}  # vector of each distinct word, without context
    occurrences: list[tuple[list[str], int]] = []  # sentence and position of each occurrence
    occurrence_vectors = []
    for words, layers in embed(network, sentences):
        type_vectors |= dict(zip(words, layers[:, 0], strict=True))
        occurrences += [(words, position) for position in range(len(words))]
        occurrence_vectors.append(layers[:, -1])
    (words, position, layers), *_ = queries
    word = words[position]
    type_vectors.pop(word, None)
    if not type_vectors:
        raise UserError(f"the searched text has no other word than {word!r}: raise --limit")
    types = [*type_vectors]
    scores = _cosines(np.array([*type_vectors.values()]), layers[0])  # (types,)
    nearest = (f"{types[index]} {scores[index]:.2f}" for index in np.argsort(-scores)[:count])
    yield f"{word}: {', '.join(nearest)}"
    vectors = np.concatenate(occurrence_vectors)  # (occurrences, 2 P)
    for words, position, layers in queries:
        yield ""
        yield _marked_sentence(words, position)
        scores = _cosines(vectors, layers[-1])
        # Excludes the sentence of `--in`, because the searched text may contain this sentence.
        nearest_others = (index for index in np.argsort(-scores) if occurrences[index][0] != words)
        for index in itertools.islice(nearest_others, count):
            yield f"  {scores[index]:.2f}  {_marked_sentence(*occurrences[index])}"


def _cosines(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Computes the cosine similarities of vectors `(N, D)` and the query `(D,)`, as `(N,)`.

    The mean of the N vectors is subtracted from the N vectors and from the query first.
    """
    mean = vectors.mean(axis=0)
    return cosines(vectors - mean, query - mean)


def _marked_sentence(words: list[str], position: int) -> str:
    """Formats a sentence with the word at `position` in brackets."""
    return " ".join(f"[{w}]" if n == position else w for n, w in enumerate(words))
