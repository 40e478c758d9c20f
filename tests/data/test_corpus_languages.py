"""Corpora of several languages: XLM's rows, translation pairs, what is refused."""

import io
import re

import numpy as np
import pytest

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from tests.data.number_corpus import config_of, contents, numbers_of


def sources_of(texts, tmp_path) -> tuple[CorpusSource, ...]:
    """Numbers to 599 in "a", from 600 in "b", and 40 pairs n, n + 600, one of them too long."""
    pairs = [(f"{n} {n + 1}", f"{n + 600}") for n in range(40)]
    pairs[7] = (" ".join(["7"] * 20), "607")
    (tmp_path / "pairs.tsv").write_text("\n".join("\t".join(pair) for pair in pairs))
    return (
        CorpusSource(f"text:{texts}/a/*.txt", language="a"),
        CorpusSource(f"text:{texts}/b/*.txt", language="b"),
        CorpusSource(f"tsv:{tmp_path}/pairs.tsv", language=("b", "a")),
    )


@pytest.mark.parametrize("packing", ["doc_text", "doc_sentences", "full_text", "full_sentences"])
def test_rows_of_several_languages(texts, vocabulary, tmp_path, packing):
    config = config_of(texts, sources=sources_of(texts, tmp_path), packing=packing)
    corpus = prepare(config, vocabulary, tmp_path / "out")
    assert corpus.config.languages == ("a", "b")
    assert " in a, b, " in corpus.summary()
    translations, found = [], []
    for split in ("train", "validation"):
        for batch in corpus.dataset(split, 1, seed=None, repeat=False):
            row = {name: value.numpy()[0] for name, value in batch.items()}
            ids, languages = row["token_ids"], row["language_ids"]
            numbers = numbers_of(corpus, ids)
            if row["segment_ids"].any():
                boundary = int(np.flatnonzero(row["segment_ids"])[0])
                assert ids[boundary - 1] == 3 and (ids == 3).sum() == 2
                assert languages.tolist() == [1] * boundary + [0] * (16 - boundary)
                expected = [*range(boundary), *range(16 - boundary)]
                assert row["position_ids"].tolist() == expected
                translations.append(tuple(numbers))
            else:
                assert set(languages) == {int(numbers[0] >= 600)}
                assert len({number >= 600 for number in numbers}) == 1
                assert row["position_ids"].tolist() == list(range(16))
                found += numbers
    assert sorted(translations) == [(n, n + 1, n + 600) for n in range(40) if n != 7]
    assert sorted(found) == list(range(750))


def test_sentence_order_of_several_languages(texts, vocabulary, tmp_path):
    sources = sources_of(texts, tmp_path)[:2]
    corpus = prepare(
        config_of(texts, sources=sources, pairs="sentence_order"), vocabulary, tmp_path / "out"
    )
    seen = set()
    for batch in corpus.dataset("train", 1, seed=None, repeat=False):
        assert "position_ids" not in batch
        numbers = numbers_of(corpus, batch["token_ids"].numpy()[0])
        assert set(batch["language_ids"].numpy()[0]) == {int(numbers[0] >= 600)}
        seen.add(numbers[0] >= 600)
    assert seen == {False, True}


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_languages_come_again_but_hold_out(texts, vocabulary, tmp_path, monkeypatch, alpha):
    """And a kill leaves the same bytes."""
    config = config_of(
        texts, sources=sources_of(texts, tmp_path), language_alpha=alpha, rows_per_shard=40
    )
    corpus = prepare(config, vocabulary, tmp_path / "whole", stream=io.StringIO())
    rows = {
        split: {
            tuple(row)
            for batch in corpus.dataset(split, 1, seed=None, repeat=False)
            for row in batch["token_ids"].numpy().tolist()
        }
        for split in ("train", "validation")
    }
    assert rows["validation"] and not rows["train"] & rows["validation"]
    assert corpus.rows("train") > len(rows["train"])  # some come again
    rename, left = storage.tf.io.gfile.rename, 0

    def dies(*args, **kwargs):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        rename(*args, **kwargs)

    monkeypatch.setattr(storage.tf.io.gfile, "rename", dies)
    kills = 0
    while True:
        left = 6
        try:
            prepare(config, vocabulary, tmp_path / "killed", stream=io.StringIO())
            break
        except KeyboardInterrupt:
            kills += 1
            assert kills < 50
    assert kills >= 2
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert PretrainingCorpus.open(tmp_path / "killed").config == config


def test_what_cannot_be_read(texts, vocabulary, tmp_path):
    (tmp_path / "blank.tsv").write_text("1\t \n")
    for source, message in (
        (CorpusSource("tsv:x.tsv"), "tsv:x.tsv holds translation pairs: name its two languages"),
        (CorpusSource(f"tsv:{tmp_path}/x.tsv", language=("a", "b")), "cannot read .*x.tsv"),
        (
            CorpusSource(f"tsv:{tmp_path}/blank.tsv", language=("a", "b")),
            "blank.tsv holds no pair with text on both sides",
        ),
        (
            CorpusSource("homeassistant:de", language=("en", "fr")),
            "homeassistant:de cannot give 'en' to 'fr'",
        ),
        (
            CorpusSource("homeassistant:de", language="fr"),
            "homeassistant:de is not in 'fr': give it the language 'de'",
        ),
    ):
        config = config_of(texts, sources=(source,))
        with pytest.raises(UserError, match=message):
            prepare(config, vocabulary, tmp_path / re.sub(r"\W", "", str(source)))


def test_an_embedded_corpus_in_one_language(tmp_path, vocabulary, monkeypatch):
    from macaron_tf.data.sources import homeassistant as corpora

    documents = {"train": ["1 2 3\n4", "5"], "validation": ["6"], "test": ["7"]}
    monkeypatch.setattr(corpora, "fetch_homeassistant", lambda: "wheel")
    monkeypatch.setattr(corpora, "wheel_documents", lambda wheel, language: documents)
    config = CorpusConfig(
        (CorpusSource("homeassistant:de", language="de"),), sequence_length=8, validation_every=2
    )
    corpus = prepare(config, vocabulary, tmp_path)
    assert (corpus.rows("train"), corpus.rows("validation")) == (1, 1)
    assert prepare(config, vocabulary, tmp_path).fingerprint == corpus.fingerprint
