"""Languages in the shares that alpha gives them."""

import collections
import io

import numpy as np
import pytest

from macaron_tf.data.corpus import documents as corpus_documents
from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.documents import (
    SourceSize,
    corpus_mixture,
    language_weights,
    mixed_documents,
)
from macaron_tf.io import progress

SOURCES = (
    CorpusSource("text:a", language="en"),
    CorpusSource("text:b", language="en"),
    CorpusSource("text:c", language="ne"),
    CorpusSource("tsv:d", language=("en", "ne")),
)
SIZES = [SourceSize(50, 6_000), SourceSize(900, 3_000), SourceSize(100, 400), SourceSize(600, 600)]


def shares(alpha: float) -> dict[tuple[str, ...], float]:
    """The formula: q_i = p_i^alpha / sum p_j^alpha."""
    lines = {("en",): 9_000, ("ne",): 400, ("en", "ne"): 600}
    powers = {language: (count / 10_000) ** alpha for language, count in lines.items()}
    return {language: power / sum(powers.values()) for language, power in powers.items()}


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_shares_of_lines_in_expectation(alpha):
    weights = np.array(language_weights(SOURCES, SIZES, alpha))
    lines = weights * [size.lines / size.documents for size in SIZES]
    lines /= lines.sum()
    found = collections.defaultdict(float)
    for source, share in zip(SOURCES, lines, strict=True):
        found[source.languages] += share
    assert found == pytest.approx(shares(alpha))
    assert lines[0] / lines[1] == pytest.approx(6_000 / 3_000)  # within a language as they are


def test_the_paper_draws_a_small_language_more_often():
    # A language of 1% beside one of 99%: alpha 0.5 makes it 9%.
    sizes = [SourceSize(990, 990), SourceSize(10, 10)]
    english, nepali = language_weights(SOURCES[1:3], sizes, 0.5)
    assert nepali / (english + nepali) == pytest.approx(0.1 / (0.1 + 0.99**0.5))


def test_shares_of_a_hundred_thousand_draws():
    """Documents of one line each: shares of lines are shares of draws."""
    counts = [80_000, 2_000, 500]
    sources = [CorpusSource("text:x", language=language) for language in ("en", "de", "ne")]
    weights = language_weights(sources, [SourceSize(n, n) for n in counts], 0.5)
    readers = [lambda n=n: iter(["text"] * n) for n in counts]
    drawn = collections.Counter(
        document.source for document in mixed_documents(readers, weights, 1)
    )
    total = drawn.total()
    assert total > 100_000 * 0.9
    expected = np.sqrt(np.array(counts) / sum(counts))
    expected /= expected.sum()
    # The first source is read to its end once: all draws but its own number are random.
    for source, share in enumerate(expected):
        deviation = np.sqrt(total * share * (1 - share))
        assert abs(drawn[source] - total * share) < 3 * deviation


def test_documents_of_a_corpus(tmp_path, monkeypatch):
    (tmp_path / "en.txt").write_text("\n\n".join(f"one {n}\ntwo\n" for n in range(400)))
    (tmp_path / "ne.txt").write_text("\n\n".join(f"ek {n}" for n in range(20)))
    (tmp_path / "both.tsv").write_text("\n".join(f"one\tek {n}" for n in range(100)) + "\n \tx")
    config = CorpusConfig(
        (
            CorpusSource(f"text-paragraphs:{tmp_path}/en.txt", language="en"),
            CorpusSource(f"text-paragraphs:{tmp_path}/ne.txt", language="ne"),
            CorpusSource(f"tsv:{tmp_path}/both.tsv", language=("en", "ne")),
        ),
        language_alpha=0.0,
    )
    drawn = list(corpus_mixture(config))
    lines = collections.Counter()
    for document in drawn:
        assert isinstance(document.text, tuple) == (document.source == 2)
        lines[document.source] += 1 if document.source else 2
    assert {d.text for d in drawn if d.source == 2} == {("one", f"ek {n}") for n in range(100)}
    assert sum(not document.repeated for document in drawn) == 520  # each once at least
    assert all(abs(lines[source] / lines.total() - 1 / 3) < 0.06 for source in range(3))
    assert drawn == list(corpus_mixture(config))
    read, read_pairs = [], corpus_documents.read_pairs
    monkeypatch.setattr(
        corpus_documents, "read_pairs", lambda *args: read.append(args) or read_pairs(*args)
    )
    monkeypatch.setattr(progress, "_SECONDS", 0)
    stream = io.StringIO()
    list(corpus_mixture(config, stream=stream))
    assert len(read) == 1  # the pairs come again from memory
    assert stream.getvalue().splitlines()[-1] == "520 documents  counting lines"
    few = list(corpus_mixture(config, max_documents=3))
    assert sum(not document.repeated for document in few) == 9
