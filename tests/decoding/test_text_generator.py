import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.decoding import GenerationConfig, SequenceGenerator, TextGenerator
from macaron_tf.decoding.text_generator import fill_context
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.text import WordPieceVocabulary
from tests.toys.decoding import greedy, shaken

EXAMPLES = [[1, 1, 1], [2, 2, 2, 2, 2], [3], [4, 4]]


@pytest.mark.parametrize(
    ("query", "room", "expected"),
    [
        ([9, 8], 13, ([1, 1, 1, 2, 2, 2, 2, 2, 3, 4, 4, 9, 8], 4, False)),
        ([9, 8], 7, ([1, 1, 1, 3, 9, 8], 2, False)),
        ([9, 8], 2, ([9, 8], 0, False)),
        ([9, 8, 7], 2, ([8, 7], 0, True)),
    ],
)
def test_examples_fill_the_room_before_a_query(query, room, expected):
    assert fill_context(EXAMPLES, query, room) == expected


LINES = ["the cat sat on the mat .", "a dog sat ."] * 4
SENTINELS, ROWS = 3, 8


@pytest.fixture(scope="module")
def vocabulary():
    return WordPieceVocabulary.train(LINES, 40)


@pytest.fixture(scope="module")
def model(vocabulary):
    return shaken(EncoderDecoder(EncoderDecoderConfig(vocabulary.size + ROWS, 16, 32, 2, 1, 1)))


def test_gaps_become_sentinels_or_masks(model, vocabulary):
    cat, mat = vocabulary.encode_lines(["cat", "the mat"])
    texts = ["cat [MASK] the mat", "[MASK]", "", "[MASK] [MASK] [MASK] [MASK] cat\n"]
    size, end = vocabulary.size, vocabulary.special.end
    with_sentinels = SequenceGenerator(model, vocabulary, sentinels=SENTINELS)
    expected = [
        [*cat, size, *mat, end],
        [size, end],
        [end],
        [size, size + 1, size + 2, size + 2, *cat, end],
    ]
    assert [with_sentinels.row(text) for text in texts] == expected
    assert with_sentinels.rows(tf.constant(texts)).to_list() == expected
    mask = vocabulary.special.mask
    assert SequenceGenerator(model, vocabulary).row(texts[0]) == [*cat, mask, *mat, end]


@pytest.mark.parametrize("starts", [True, False])
def test_an_empty_prompt_begins_with_a_special_token(starts, model, vocabulary):
    generator, begin = TextGenerator(model, vocabulary, starts=starts), vocabulary.special.begin
    [cat] = vocabulary.encode_lines(["cat"])
    expected = [[begin], [begin, *cat] if starts else cat]
    assert [generator.row(text) for text in ("", "cat")] == expected
    assert generator.rows(tf.constant(["", "cat"])).to_list() == expected


def test_answers_are_the_argmax_of_the_whole_model_and_a_stream_says_the_same(model, vocabulary):
    generator = SequenceGenerator(model, vocabulary, longest=12, sentinels=SENTINELS)
    texts = ["cat [MASK] the mat", "a dog sat ."]
    config = GenerationConfig(temperature=0.0, max_tokens=5)
    for text, [found] in zip(texts, generator.complete(texts, config), strict=True):
        source = np.array([generator.row(text)], np.int32)

        def next_logits(target, source=source):
            target = np.array([target], np.int32)
            return np.asarray(model({"source": source, "target": target}))[0, -1]

        ids, log_prob = greedy(next_logits, [2], 5, generator.is_suppressed)
        answer = b"".join(generator.detokenizer.token_bytes[i] for i in ids).decode()
        assert found.text == answer.removeprefix(" ")
        assert found.length == len(ids)
        assert found.log_prob == pytest.approx(log_prob, abs=1e-4)
        assert "".join(generator.stream(text, config)) == found.text
