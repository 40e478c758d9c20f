"""Tests of corpus settings: invalid values, derived values, and values from earlier versions."""

import dataclasses
import json

import pytest

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from tests.harness import refuses

ENGLISH = CorpusSource("text:a", language="en")
GERMAN = CorpusSource("text:b", language="de")
WEIGHTED = CorpusSource("text:b", language="de", weight=1.0)
BOTH = CorpusSource("tsv:c", language=("en", "fr"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 7}, "data.sequence_length=7 must be a whole number of at least 8"),
        ({"packing": "sentence_pair"}, "'sentence_pair' does not fit data.pairs='none'"),
        ({"pairs": "sentence_order", "packing": "full_text"}, "'full_text' does not fit data"),
        ({"sources": ("text:a", WEIGHTED)}, "text:a has no weight"),
        ({"sources": ("text:a", GERMAN)}, "text:a has no language: give each"),
        ({"language_alpha": 0.5}, "language_alpha needs a language and no weight of each source"),
        ({"sources": (WEIGHTED,), "batch_alpha": 0.5}, "batch_alpha needs a language and no"),
        ({"sources": (BOTH,), "pairs": "sentence_order"}, "does not fit the other settings: set"),
        ({"sources": (("text:a", "train", None, "en", 1),)}, "is not a source: give a name, or"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    refuses(message, CorpusConfig, **{"sources": ("text:a",), **settings})


def test_properties():
    config = CorpusConfig((GERMAN, ENGLISH, GERMAN, ("tsv:c", "train", None, ["en", "fr"])))
    assert config.languages == ("de", "en", "fr") and config.has_translations
    assert config.sources[3].languages == ("en", "fr")
    assert CorpusConfig(("text:a",)).languages == ()
    # A record in JSON can be read back.
    config = CorpusConfig((BOTH, GERMAN), language_alpha=0.5)
    assert CorpusConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert CorpusConfig(("text:a",)).row_packing == "doc_text"
    assert CorpusConfig(("text:a",), pairs="sentence_order").row_packing == "segment_pair"
    for packing in ("doc_text", "full_text", "doc_sentences", "full_sentences"):
        config = CorpusConfig(("text:a",), packing=packing)
        assert config.cuts_sentences == packing.endswith("sentences")
        assert config.crosses_documents == packing.startswith("full")
