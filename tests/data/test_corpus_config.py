"""Settings of a corpus: what cannot be, what follows, what earlier versions wrote."""

import dataclasses

import pytest

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource, config_from_record
from macaron_tf.errors import UserError

ENGLISH = CorpusSource("text:a", language="en")
GERMAN = CorpusSource("text:b", language="de")
BOTH = CorpusSource("tsv:c", language=("en", "fr"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 7}, "sequence_length is 7: it must be 8 or more"),
        ({"validation_every": 1}, "validation_every is 1"),
        ({"validation_run": 0}, "validation_run is 0"),
        ({"rows_per_shard": 0}, "rows_per_shard is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"sources": ()}, "needs a source"),
        ({"pairs": "yes"}, "pairs is 'yes': it must be one of none, next_sentence"),
        ({"packing": "tight"}, "packing is 'tight': it must be one of doc_text"),
        ({"packing": "sentence_pair"}, "packing 'sentence_pair' does not go with pairs 'none'"),
        (
            {"pairs": "sentence_order", "packing": "full_text"},
            "'full_text' does not go with pairs 'sentence_order': give one of segment_pair",
        ),
        ({"sentence_splitter": "axe"}, "sentence_splitter is 'axe'"),
        ({"sources": ("text:a", CorpusSource("text:b", weight=1.0))}, "text:a has no weight"),
        ({"sources": ("text:a", GERMAN)}, "text:a has no language but others have"),
        (
            {"sources": (CorpusSource("text:a", weight=2.0),), "packing": "full_sentences"},
            "weights or language_alpha and packing='full_...' exclude each other",
        ),
        (
            {"sources": (GERMAN,), "language_alpha": 0.5, "packing": "full_text"},
            "weights or language_alpha and packing='full_...' exclude each other",
        ),
        ({"sources": (GERMAN,), "language_alpha": 1.5}, "language_alpha is 1.5: it must be a"),
        ({"sources": (GERMAN,), "language_alpha": -0.1}, "language_alpha is -0.1"),
        ({"sources": (GERMAN,), "language_alpha": "0.5"}, "language_alpha is '0.5'"),
        ({"language_alpha": 0.5}, "language_alpha needs the sources' languages"),
        (
            {"sources": (dataclasses.replace(GERMAN, weight=1.0),), "language_alpha": 0.5},
            "weights and language_alpha exclude each other",
        ),
        ({"sources": (BOTH,), "pairs": "sentence_order"}, "translation pairs and pairs="),
        ({"sources": (ENGLISH, GERMAN), "pairs": "next_sentence"}, "takes one language"),
        ({"sources": (("text:a", "train", None, "en", 1),)}, "a source is .*: give its name, or"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(UserError, match=message):
        CorpusConfig(**{"sources": ("text:a",), **settings})


def test_a_weight_that_cannot_be():
    for weight in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="it must be a number above 0"):
            CorpusSource("text:a", weight=weight)


@pytest.mark.parametrize("language", ["", 3, ("en",), ("en", "en"), ("en", ""), ("a", "b", "c")])
def test_a_language_that_cannot_be(language):
    with pytest.raises(UserError, match="the language of tsv:a is .*: give a code such as 'de'"):
        CorpusSource("tsv:a", language=language)


def test_languages_are_numbered_as_they_come():
    config = CorpusConfig((GERMAN, ENGLISH, GERMAN, ("tsv:c", "train", None, ["en", "fr"])))
    assert config.languages == ("de", "en", "fr") and config.has_translations
    assert config.sources[3].languages == ("en", "fr")
    assert CorpusConfig(("text:a",)).languages == ()


def test_what_fills_a_row_by_default():
    assert CorpusConfig(("text:a",)).row_packing == "doc_text"
    assert CorpusConfig(("text:a",), pairs="sentence_order").row_packing == "segment_pair"
    cutting = {"doc_text": False, "full_text": False, "doc_sentences": True, "full_sentences": True}
    for packing, cuts in cutting.items():
        config = CorpusConfig(("text:a",), packing=packing)
        assert config.cuts_sentences == cuts
        assert config.crosses_documents == packing.startswith("full")


def test_the_words_of_an_earlier_version():
    record = {"sources": [{"source": "text:a", "split": "train", "weight": None}], "seed": 3}
    old = {**record, "next_sentence": True, "cross_documents": False}
    assert config_from_record(old) == CorpusConfig(("text:a",), pairs="next_sentence", seed=3)
    old = {**record, "next_sentence": False, "cross_documents": True}
    assert config_from_record(old) == CorpusConfig(("text:a",), packing="full_text", seed=3)
    config = CorpusConfig((BOTH, GERMAN), language_alpha=0.5)
    assert config_from_record(dataclasses.asdict(config)) == config
