"""Tests of BLEU, chrF and the paired bootstrap."""

import json
import math
import random

import numpy as np
import pytest
import sacrebleu

from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.evaluation.translation import (
    _TOKENIZERS,
    TranslationMetric,
    evaluate_translations,
    paired_bootstrap,
    plain_lines,
    tokenize_lines,
)
from tests.harness import refuses

HYPOTHESES = ["the cat sat on mat .", "a big dog runs"]
REFERENCES = ["the cat sat on the mat .", "a big dog ran away"]


def test_sacrebleu_and_its_signature():
    scores = evaluate_translations(HYPOTHESES, REFERENCES)
    assert scores["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    # Matches: 6+3 of 6+4 words, 4+2 of 5+3 bigrams, 3+1 of 4+2 trigrams, 2+0 of 3+1 four-grams.
    precision = math.prod((0.9, 0.75, 0.5, 0.25)) ** (1 / 4)
    assert scores["tokenized_bleu"] == pytest.approx(100 * precision * math.exp(1 - 12 / 10))
    assert (scores["length_ratio"], scores["sentences"]) == (pytest.approx(10 / 12), 2)
    assert "tok:13a" in scores["bleu_signature"]
    assert f"version:{sacrebleu.__version__}" in scores["bleu_signature"]
    assert "nc:6" in scores["chrf_signature"]
    assert json.loads(json.dumps(scores)) == scores


def test_case():
    upper = [line.upper() for line in HYPOTHESES]
    mixed = evaluate_translations(upper, REFERENCES)
    folded = evaluate_translations(upper, REFERENCES, TranslationMetric(lowercase=True))
    assert mixed["tokenized_bleu"] == 0.0
    plain = evaluate_translations(HYPOTHESES, REFERENCES)
    assert folded["tokenized_bleu"] == pytest.approx(plain["tokenized_bleu"])
    assert "case:lc" in folded["bleu_signature"]
    assert folded["tokenized_signature"].startswith("case:lc|tok:moses-de")


def test_tokens():
    def tokens(line, **settings):
        return tokenize_lines([line], TranslationMetric(**settings))[0]

    assert tokens("Er sagt: „gut-gelaunt“, d. h. 3,5.") == "Er sagt : „ gut-gelaunt “ , d. h. 3,5 ."
    compounds = tokens("gut-gelaunt a-b-c", split_compounds=True)
    assert compounds == "gut ##AT##-##AT## gelaunt a ##AT##-##AT## b-c"
    assert tokens("„Gut“", normalize_punctuation=True) == '" Gut "'
    assert tokens("Ein", lowercase=True) == "ein"


def test_perfect_and_empty_lines():
    scores = evaluate_translations(["eins zwei drei vier", ""], ["eins zwei drei vier", ""])
    assert scores["bleu"] == pytest.approx(100)
    assert scores["tokenized_bleu"] == pytest.approx(100)
    assert evaluate_translations([""], ["a b"])["bleu"] == 0.0


# Each text has 8 characters or more that no whitespace tokenizer separates.
DENSE = {
    "zh": "今天天气很好、我们去公园散步吧。",
    "ja": "今日は天気がいいので、公園を散歩しましょう。",
    "th": "วันนี้อากาศดี เราไปเดินเล่นที่สวนสาธารณะกันเถอะ",
    "lo": "ມື້ນີ້ອາກາດດີຫຼາຍ",
    "km": "ថ្ងៃនេះអាកាសធាតុល្អណាស់",
    "my": "ယနေ့ရာသီဥတုကောင်းသည်",
    "bo": "བཀྲ་ཤིས་བདེ་ལེགས།",
}


@pytest.mark.parametrize("language", DENSE)
def test_text_without_spaces_between_words(language, capsys):
    """Identical texts score 100, and different texts score less."""
    line = DENSE[language]
    same = evaluate_translations([line], [line])
    said = capsys.readouterr().err
    assert same["bleu"] == pytest.approx(100) and same["tokenized_bleu"] == pytest.approx(100)
    assert 0 < evaluate_translations([line[:-4]], [line])["tokenized_bleu"] < 95
    assert evaluate_translations(["abcd efgh"], [line])["bleu"] == 0
    tokenizer = "zh" if language == "zh" else "char"  # ja-mecab needs a package
    if language != "ja" or "ja-mecab" not in same["bleu_signature"]:
        assert f"|tok:{tokenizer}|" in same["bleu_signature"]
        assert f"|tok:{tokenizer}|" in same["tokenized_signature"]
        assert said.startswith(f"note: BLEU uses task.metric.tokenize={tokenizer}, ")
        assert said.count("\n") == 1
        assert ("pip install 'sacrebleu[ja]'" in said) == (language == "ja")
    chosen = TranslationMetric(language).for_references([line])
    capsys.readouterr()
    found = paired_bootstrap([line], [line[:-4]], [line], chosen, resamples=2)
    assert found["bleu_a"] == pytest.approx(100) and found["bleu_b"] < 95
    assert not capsys.readouterr().err  # printed once


def test_the_tokenizer_is_sacrebleus(capsys):
    assert {*_TOKENIZERS} == {*sacrebleu.BLEU.TOKENIZERS}
    lines = "Wir gehen um 3,5 Uhr -- ca. 10% später.", "今天天气很好、我们去公园散步吧。"
    worse = [line[:-4] for line in lines]
    for name in ("13a", "intl", "zh", "char", "none"):
        metric = TranslationMetric("de", tokenize=name)
        theirs = sacrebleu.BLEU(tokenize=name, force=True)
        scores = evaluate_translations(worse, lines, metric)
        assert scores["bleu"] == theirs.corpus_score(worse, [lines]).score
        assert scores["bleu_signature"] == str(theirs.get_signature())
        moses = name in ("13a", "intl")
        assert (f"tok:{'moses-de' if moses else name}|") in scores["tokenized_signature"]
        tokens = [[theirs.tokenizer(line) for line in part] for part in (worse, lines)]
        if not moses:
            assert scores["tokenized_bleu"] == bleu_of_tokens(*tokens)
    assert not capsys.readouterr().err
    # One of six lines without spaces does not change the tokenizer.
    german = [REFERENCES[0]] * 5 + [DENSE["zh"][:9]]
    assert "tok:13a" in evaluate_translations(german, german)["bleu_signature"]
    refuses("perhaps you meant 'char'", TranslationMetric, tokenize="cahr")


def bleu_of_tokens(hypotheses, references) -> float:
    """Returns the BLEU score of tokenized lines as in multi-bleu.perl, computed by sacreBLEU."""
    settings = {"tokenize": "none", "smooth_method": "none", "force": True}
    return sacrebleu.corpus_bleu(hypotheses, [references], **settings).score


@pytest.mark.parametrize(
    ("name", "languages"), [("iwslt14", ("de", "en")), ("wmt14_translate", ("en", "de"))]
)
def test_real_moses_tokens(name, languages, tfds):
    pairs = read_pairs(f"tfds:{name}/de-en", "validation[:200]", *languages, tfds)
    references = [target for _, target in pairs]
    assert any("&apos;" in line for line in references)
    rng = random.Random(1)
    hypotheses = [" ".join(w for w in line.split() if rng.random() < 0.9) for line in references]
    metric = TranslationMetric(languages[1], tokenized=True)
    scores = evaluate_translations(hypotheses, references, metric)
    assert scores["tokenized_bleu"] == pytest.approx(bleu_of_tokens(hypotheses, references))
    # Splitting "&apos;s" into "& apos ; s" gives other n-grams.
    cut = evaluate_translations(hypotheses, references, TranslationMetric(languages[1]))
    assert abs(cut["tokenized_bleu"] - scores["tokenized_bleu"]) > 0.1
    assert "tok:given-unescaped" in scores["tokenized_signature"]
    assert "detok:moses" in scores["bleu_signature"] and "detok:moses" in scores["chrf_signature"]
    # The plain text, tokenized by the metric, has the same score.
    found, plain = (plain_lines(lines, metric) for lines in (hypotheses, references))
    assert scores["bleu"] == pytest.approx(evaluate_translations(found, plain)["bleu"])
    assert not any("&apos;" in line or "&quot;" in line for line in plain)


def test_moses_tokens_by_hand():
    metric = TranslationMetric("en", tokenized=True, split_compounds=True, lowercase=True)
    line = "It &apos;s &quot; well-known &quot; &#91; AT &amp; T &#93; , isn &apos;t it ?"
    assert tokenize_lines([line], metric) == [
        "it 's \" well ##at##-##at## known \" [ at & t ] , isn 't it ?"
    ]
    assert plain_lines([line], metric) == ["It's \"well-known\" [AT & T], isn't it?"]
    assert metric.signature.startswith("case:lc|tok:given-unescaped|compounds:split|")


WORDS = np.array(["der", "die", "hund", "katze", "haus", "rennt", "rote", "und", "."])


def corpus(sentences=80):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(6, 15))) for _ in range(sentences)]


def damaged(lines, rate, seed):
    """Replaces each word with a random word with probability `rate`."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(WORDS) if rng.random() < rate else word for word in line.split())
        for line in lines
    ]


def test_scores_are_sacrebleus():
    references = corpus()
    a, b = damaged(references, 0.3, 1), damaged(references, 0.2, 2)
    found = paired_bootstrap(a, b, references, resamples=50)
    assert found["bleu_a"] == pytest.approx(bleu_of_tokens(a, references))
    assert found["bleu_b"] == pytest.approx(bleu_of_tokens(b, references))
    assert found["difference"] == pytest.approx(found["bleu_b"] - found["bleu_a"])
    values = found["bleu_a"], found["bleu_b"], found["difference"]
    low, high = np.transpose([found["interval_a"], found["interval_b"], found["interval"]])
    assert (low < values).all() and (values < high).all()


def test_identical_systems():
    references = corpus()
    system = damaged(references, 0.3, 1)
    upper, metric = [line.upper() for line in system], TranslationMetric(lowercase=True)
    found = paired_bootstrap(upper, system, references, metric, resamples=200)
    assert (found["p_value"], found["difference"], found["interval"]) == (1.0, 0.0, (0.0, 0.0))


def test_a_clear_difference_in_both_directions():
    references = corpus()
    good, bad = damaged(references, 0.1, 1), damaged(references, 0.4, 2)
    sides = ((bad, good), (good, bad))
    one, other = (paired_bootstrap(*both, references, resamples=300) for both in sides)
    assert one["p_value"] == other["p_value"] == pytest.approx(1 / 301)
    assert one["interval"][0] > 0 > other["interval"][1]


def test_equally_good_systems_are_not_told_apart():
    references = corpus(200)
    systems = [damaged(references, 0.3, seed) for seed in range(2, 14)]
    pairs = zip(systems[::2], systems[1::2], strict=True)
    assert np.median([paired_bootstrap(*pair, references)["p_value"] for pair in pairs]) > 0.1


def test_seeds():
    references = corpus()
    systems = damaged(references, 0.3, 1), damaged(references, 0.28, 2)
    first, again, other = (paired_bootstrap(*systems, references, None, 150, n) for n in (3, 3, 4))
    assert first == again
    assert first["interval"] != other["interval"]


def test_bad_input_is_refused():
    for reason, *lines in (
        ("references", ["a"], ["a", "b"], ["a"]),
        ("there are no translations", [], [], []),
    ):
        refuses(reason, paired_bootstrap, *lines)
