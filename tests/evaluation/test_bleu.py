import json
import math

import pytest
import sacrebleu

from macaron_tf.errors import UserError
from macaron_tf.evaluation import TranslationMetric, evaluate_translations, tokenize_lines

HYPOTHESES = ["the cat sat on mat .", "a big dog runs"]
REFERENCES = ["the cat sat on the mat .", "a big dog ran away"]


def test_tokenized_bleu_by_hand():
    # Matches: 6+3 of 6+4 words, 4+2 of 5+3 bigrams, 3+1 of 4+2 trigrams, 2+0 of 3+1 four-grams;
    # "on mat" breaks the first line's n-grams, "runs" the second's.
    precision = (9 / 10) * (6 / 8) * (3 / 6) * (1 / 4)
    scores = evaluate_translations(HYPOTHESES, REFERENCES, TranslationMetric("en"))
    matched = [round(p) for p in scores.precisions]
    assert matched == [90, 75, 50, 25]
    brevity = math.exp(1 - 12 / 10)
    assert scores.brevity_penalty == pytest.approx(brevity)
    assert scores.tokenized_bleu == pytest.approx(100 * brevity * precision**0.25)
    assert scores.length_ratio == pytest.approx(10 / 12)
    assert scores.sentences == 2


def test_no_brevity_penalty_for_long_output_and_zero_without_a_match():
    scores = evaluate_translations(REFERENCES, HYPOTHESES, TranslationMetric("en"))
    assert scores.brevity_penalty == 1.0
    assert evaluate_translations(["a b c d"], ["a x c y"]).tokenized_bleu == 0.0


def test_sacrebleu_and_its_signature():
    scores = evaluate_translations(HYPOTHESES, REFERENCES)
    assert scores.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert "tok:13a" in scores.bleu_signature
    assert f"version:{sacrebleu.__version__}" in scores.bleu_signature
    assert "chrF2" not in scores.bleu_signature
    assert "nc:6" in scores.chrf_signature
    assert json.loads(json.dumps(scores.as_dict()))["bleu"] == scores.bleu
    assert "tokenized BLEU" in str(scores)


def test_case():
    upper = [line.upper() for line in HYPOTHESES]
    mixed = evaluate_translations(upper, REFERENCES)
    folded = evaluate_translations(upper, REFERENCES, TranslationMetric(lowercase=True))
    assert mixed.tokenized_bleu == 0.0
    assert folded.tokenized_bleu == pytest.approx(
        evaluate_translations(HYPOTHESES, REFERENCES).tokenized_bleu
    )
    assert "case:lc" in folded.bleu_signature
    assert folded.tokenized_signature.startswith("case:lc|tok:moses-de")


def test_tokens():
    def tokens(line, **settings):
        return tokenize_lines([line], TranslationMetric(**settings))[0]

    assert tokens("Er sagt: „gut-gelaunt“, d. h. 3,5.") == "Er sagt : „ gut-gelaunt “ , d. h. 3,5 ."
    assert tokens("Ein A-B-C", split_hyphens=True) == "Ein A @-@ B @-@ C"
    assert (
        tokens("gut-gelaunt a-b-c", split_compounds=True)
        == "gut ##AT##-##AT## gelaunt a ##AT##-##AT## b-c"
    )
    assert tokens("„Gut“", normalize_punctuation=True) == '" Gut "'
    assert tokens("Ein", lowercase=True) == "ein"


def test_perfect_and_empty_lines():
    scores = evaluate_translations(["eins zwei drei vier", ""], ["eins zwei drei vier", ""])
    assert scores.bleu == pytest.approx(100)
    assert scores.tokenized_bleu == pytest.approx(100)
    assert evaluate_translations([""], ["a b"]).bleu == 0.0


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_bad_sets_are_refused(hypotheses, references):
    with pytest.raises(UserError, match="give"):
        evaluate_translations(hypotheses, references)
