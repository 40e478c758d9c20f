import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.text.loading import (
    BytePairVocabulary,
    SentencePieceEncoderVocabulary,
    WordPieceVocabulary,
)
from macaron_tf.text.words import (
    SpelledStream,
    as_prompt,
    as_prompts,
    spelled,
    spelled_in_graph,
)

LINES = ["the cat sat on the mat .", "a naïve café, 日本 !", "two  spaces", "it's the cat's"] * 8


@pytest.fixture(scope="module", params=["byte_bpe", "wordpiece", "sentencepiece"])
def vocabulary(request):
    if request.param == "byte_bpe":
        return BytePairVocabulary.train(LINES, 300)
    if request.param == "wordpiece":
        return WordPieceVocabulary.train(LINES, 60)
    return SentencePieceEncoderVocabulary.train(LINES, 60, character_coverage=1.0)


def test_spellings_joined_are_the_decoded_line(vocabulary):
    spellings = vocabulary.spellings()
    assert len(spellings) == vocabulary.size
    assert not any(spellings[i] for i in vocabulary.special_ids)
    for ids in vocabulary.encode_lines(LINES[:4]):
        whole = spelled(spellings, [vocabulary.cls_id, *ids, vocabulary.sep_id])
        assert whole.removeprefix(" ") == vocabulary.decode_lines([ids])[0]
        # In two halves, the second as what follows the first.
        halves = [spelled(spellings, part) for part in (ids[:3], ids[3:])]
        if "\ufffd" not in halves[0]:
            assert "".join(halves) == whole


def test_a_stream_and_a_graph_say_the_same(vocabulary):
    """Random ids too: bytes of broken characters in any order."""
    spellings = vocabulary.spellings()
    rng = np.random.default_rng(0)
    rows = rng.integers(0, vocabulary.size, (40, 25)).astype(np.int32)
    ids = vocabulary.encode_lines(LINES[1:2])[0]
    rows[0, : len(ids)] = ids
    in_graph = tf.function(lambda ids: spelled_in_graph(spellings, ids))(rows).numpy()
    for row, found in zip(rows, in_graph, strict=True):
        stream = SpelledStream(spellings)
        text = "".join(stream.add(i) for i in row) + stream.end()
        assert text == spelled(spellings, row) == found.decode()


def test_line_ends_are_spaces_and_none_ends_a_prompt():
    texts = ["a\nb", " a \r\n\n b\n", "a b \t", "", "\n", "a\u2028b", "a \n"]
    expected = ["a b", " a b", "a b", "", "", "a\u2028b", "a"]
    assert [as_prompt(text) for text in texts] == expected
    assert [x.decode() for x in as_prompts(tf.constant(texts)).numpy()] == expected
