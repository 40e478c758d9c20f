import types

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from macaron_tf.decoding import SequenceGenerator, TextGenerator
from macaron_tf.decoding.scoring import TextScorer, split_ids
from macaron_tf.models.model_parts import Card, ModelParts
from macaron_tf.tasks.generation import Continuation
from macaron_tf.text import WordPieceVocabulary
from macaron_tf.text.byte_pairs import BytePairVocabulary, CharacterPairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from tests.toys.decoding import SPACED, TEXT, language_model, llama_2
from tests.toys.marks import thorough


@pytest.fixture(scope="module")
def vocabulary():
    return WordPieceVocabulary.train(TEXT.split("\n") * 4, 40)


@pytest.fixture(scope="module")
def network(vocabulary):
    return language_model(vocabulary.size, block="macaron")


def log_softmax(network, row):
    row = row + [4] * (12 - len(row))  # one shape; a causal model ignores the rest
    logits = np.asarray(network({"token_ids": np.array([row], np.int32)}))[0].astype(np.float64)
    return scipy.special.log_softmax(logits, axis=-1)


@pytest.mark.thorough
def test_continuations_are_scored_as_the_model_alone_does(network, vocabulary):
    ids = vocabulary.encode_lines([TEXT.replace("\n", " ")])[0]
    pairs = [(ids[:5], ids[5:8]), ([], ids[:1]), (ids, ids[3:6]), (ids[:2], ids[2:9])]
    found = TextScorer(network, vocabulary, window=12, batch_tokens=24).score(pairs)
    for place, (context, continuation) in enumerate(pairs):
        kept = context[max(0, len(context) + len(continuation) - 11) :]
        row = [vocabulary.special.begin, *kept, *continuation]
        table = log_softmax(network, row)[len(kept) : len(row) - 1]
        each = [table[i, token] for i, token in enumerate(continuation)]
        np.testing.assert_allclose(found.log_probs[place], sum(each), rtol=1e-4)
        assert found.lengths[place] == len(continuation)
        assert found.greedy[place] == (table.argmax(-1) == continuation).all()
    # The most likely token counts as greedy.
    best = int(log_softmax(network, [vocabulary.special.begin, *ids[:4]])[4].argmax())
    assert TextScorer(network, vocabulary, 12).score([(ids[:4], [best])]).greedy.all()


@pytest.mark.parametrize("stride", [3, *thorough(None, 11)])
def test_every_token_of_a_text_is_scored_once_behind_what_its_window_shows(
    network, vocabulary, stride
):
    ids = vocabulary.encode_lines([TEXT.replace("\n", " ")])[0]
    scorer = TextScorer(network, vocabulary, window=12)
    found = scorer.score_text(scorer.text_ids(TEXT), stride)
    assert found.lengths.sum() == len(ids)
    step, expected, done, begin = stride or 5, 0.0, 0, 0
    while done < len(ids):
        shown = ids[begin : begin + 11]
        table = log_softmax(network, [vocabulary.special.begin, *shown])
        for place in range(done - begin, len(shown)):
            expected += table[place, shown[place]]
        done, begin = begin + len(shown), begin + step
    np.testing.assert_allclose(found.log_probs.sum(), expected, rtol=1e-4)


def bytes_like(pattern: str) -> BytePairVocabulary:
    """Returns a vocabulary with the tokens "\n\n", ".\n\n" and " Paris"."""
    plain = BytePairVocabulary.train(SPACED, 284)
    [line_end] = plain.units[plain.encode_lines(["a\n"])[0][-1] - 5]
    units = [*plain.units, line_end * 2, f".{line_end * 2}"]
    merges = [*plain.merges, f"{line_end} {line_end}", f". {line_end * 2}"]
    return BytePairVocabulary(units, merges, pattern=pattern)


KINDS = {
    "Llama 2": llama_2,
    "Llama 3": lambda: bytes_like("llama3"),
    "GPT-2": lambda: bytes_like("gpt2"),
    "GPT": lambda: CharacterPairVocabulary([*"abcdinoprst.", *(f"{c}</w>" for c in "abst.")], []),
    "unigram": lambda: SentencePieceVocabulary.train(SPACED, 24, model_type="unigram"),
    "words": lambda: WordPieceVocabulary.train(SPACED, 48),
}
PARTS = [
    ["The cat:", " Paris"],
    ["a cat. Paris.\n\n", "a dog:", " Paris"],
    ["a dog is a cat  ", "is a cat", ""],
    ["", "Paris", "s"],
]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_text_have_the_ids_of_the_whole_text(kind):
    vocabulary = KINDS[kind]()
    for parts, split in zip(PARTS, split_ids(vocabulary, PARTS), strict=True):
        [whole, first] = vocabulary.encode_lines(["".join(parts), parts[0]])
        assert [i for ids in split for i in ids] == whole and len(split) == len(parts)
        assert split[0] == first[: len(split[0])]
    *_, answer = split_ids(vocabulary, PARTS[:1])[0]
    assert vocabulary.decode_lines([answer])[0].strip().lower() == "paris"
    if kind in ("Llama 2", "GPT-2", "Llama 3"):
        assert [vocabulary.piece_name(i) for i in answer] == [" Paris"]
    if kind in ("GPT-2", "Llama 3"):  # as the released tokenizers split them
        names = [[vocabulary.piece_name(i) for i in ids] for ids in split_ids(vocabulary, PARTS)[1]]
        ends = {"GPT-2": ([" Paris", "."], ["\n", "\n"]), "Llama 3": ([" Paris", ".\n\n"], ["a"])}
        before, behind = ends[kind]
        assert names[0][-len(before) :] == before and names[1][: len(behind)] == behind


def test_a_text_of_lines_is_encoded_as_a_whole(network):
    vocabulary = llama_2()
    text = "the cat\n sat Paris\n\nParis"
    expected = vocabulary.processor.encode("the cat sat Paris Paris")
    assert TextScorer(network, vocabulary, 12).text_ids(text) == expected


@pytest.mark.parametrize("kind", ["Llama 2", "Llama 3", "GPT-2"])
def test_line_ends_are_kept_for_models_that_were_trained_with_them(kind, network):
    vocabulary = KINDS[kind]()
    text = " the cat\n sat\tParis\r\n\nParis\n"
    whole = vocabulary.encode_lines([text])[0]
    assert TextScorer(network, vocabulary, 12, line_ends=True).text_ids(text) == whole
    model = types.SimpleNamespace(config=types.SimpleNamespace(vocab_size=vocabulary.size))
    for generator, row in (
        (TextGenerator(None, vocabulary, line_ends=True), [vocabulary.special.begin, *whole]),
        (SequenceGenerator(model, vocabulary, line_ends=True), [*whole, vocabulary.special.end]),
    ):
        assert generator.row(f"{text}  ") == row
        assert generator.rows(tf.constant([text, f"{text} "])).to_list() == [row, row]
        assert generator.options()["line_ends"]
    plain = TextGenerator(None, vocabulary)
    [in_one_line] = vocabulary.encode_lines([" the cat sat\tParis Paris"])
    assert plain.row(text) == [vocabulary.special.begin, *in_one_line]


def test_only_models_from_other_libraries_read_line_ends(network):
    def generator(**facts) -> TextGenerator:
        return Continuation.of(ModelParts(network, llama_2(), card=Card(**facts))).generator

    assert generator(trained_length=None).line_ends
    assert not generator(trained_length=12).line_ends
