"""Translation metrics: sacreBLEU's BLEU and chrF, and the tokenized BLEU of older papers."""

import dataclasses
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
import regex

from macaron_tf.errors import UserError, needed
from macaron_tf.settings import OneOf, Settings

if TYPE_CHECKING:
    import sacrebleu

# sacreBLEU's tokenizers, listed here so that recipes can be read without importing sacreBLEU.
_TOKENIZERS = (
    *("none", "zh", "13a", "intl", "char", "ja-mecab", "ko-mecab"),
    *("spm", "flores101", "flores200", "spBLEU-1K"),
)

# The compound splitting of the published WMT14 En-De scores. As in the published script, matches do
# not overlap, so a-b-c becomes a ##AT##-##AT## b-c.
_COMPOUND = re.compile(r"(\S)-(\S)")

# Han, kana, and other scripts without spaces between words.
_SCRIPT_PATTERNS = (
    r"\p{Han}",
    r"[\p{Hiragana}\p{Katakana}]",
    r"[\p{Line_Break=Complex_Context}\p{Tibetan}\p{Yi}\p{Javanese}\p{Balinese}]",
)


@dataclasses.dataclass(frozen=True)
class TranslationMetric(Settings):
    """Settings of translation metrics, which apply to both hypotheses and references.

    Attributes:
        language: target language, which selects the Moses rules.
        tokenize: sacreBLEU tokenizer, such as `"char"`. `None` selects a tokenizer by the script of
            the references. This tokenizer is also used for tokenized BLEU, except that the Moses
            tokenizer replaces `"13a"` and `"intl"`.
        lowercase: whether all metrics ignore case.
        normalize_punctuation: whether to normalize punctuation by the Moses rules before
            tokenization, for models trained on normalized text. Only applies to tokenized BLEU.
        split_compounds: whether to replace "a-b" by "a ##AT##-##AT## b" after tokenization, as in
            published WMT14 En-De scores. Only applies to tokenized BLEU.
        tokenized: whether the lines already are Moses tokens, as in IWSLT14's files. The tokens may
            be escaped ("it &apos;s"). For tokenized BLEU, the tokens are then only unescaped, and
            the score equals the score of multi-bleu.perl. For sacreBLEU and chrF, the lines are
            detokenized.
    """

    section: ClassVar[str] = "task.metric"
    language: str = "de"
    lowercase: bool = False
    normalize_punctuation: bool = False
    split_compounds: bool = False
    tokenized: bool = False
    tokenize: Annotated[str, OneOf(_TOKENIZERS)] | None = None

    def for_references(self, references: Sequence[str]) -> Self:
        """Returns a copy of these settings with a tokenizer that suits `references`.

        A line on stderr gives the reason if it is not 13a, which would make a single token of a
        line without spaces, so that BLEU, which counts sequences of 4 tokens, would be 0.
        """
        name, reason = (self.tokenize, "") if self.tokenize else _default_tokenizer(references)
        if reason:
            print(f"note: BLEU uses task.metric.tokenize={name}, because {reason}", file=sys.stderr)
        _tokenizer(name)
        return dataclasses.replace(self, tokenize=name)

    @property
    def tokenizer(self):
        """sacreBLEU tokenizer for tokenized BLEU. `None` means the Moses tokenizer."""
        name = self.tokenize
        return None if name in (None, "13a", "intl") else _tokenizer(name)

    @property
    def signature(self) -> str:
        """Settings of tokenized BLEU in the format of sacreBLEU's signatures."""
        import sacremoses  # not at module level, because the import takes half a second

        version = f"sacremoses:{sacremoses.__version__}"
        tokenizer = "given-unescaped" if self.tokenized else f"moses-{self.language}"
        if self.tokenizer and not self.tokenized:
            tokenizer = self.tokenizer.signature()
            version = f"sacrebleu:{_sacrebleu().__version__}"
        options = "|norm:moses" if self.normalize_punctuation else ""
        options += "|compounds:split" if self.split_compounds else ""
        return (
            f"case:{'lc' if self.lowercase else 'mixed'}|tok:{tokenizer}{options}"
            f"|smooth:none|{version}"
        )


def _default_tokenizer(references: Sequence[str]) -> tuple[str, str]:
    """Returns sacreBLEU's tokenizer for the main script of references, and why it is not 13a.

    It is "char" for scripts whose tokenizers in sacreBLEU need a download.
    """
    text = "".join("".join(references[:2_000]).split())
    han, kana, other = (len(regex.findall(script, text)) for script in _SCRIPT_PATTERNS)
    if 2 * (han + kana + other) <= len(text):
        return "13a", ""
    reason = "the text has no spaces between words"
    if other > han + kana or 10 * kana <= han:
        return "char" if other > han + kana else "zh", reason
    try:
        _tokenizer("ja-mecab")
    except UserError:
        return "char", "sacreBLEU's default, ja-mecab, needs pip install 'sacrebleu[ja]'"
    return "ja-mecab", reason


def _sacrebleu():
    with needed("BLEU"):
        import sacrebleu
    return sacrebleu


def _tokenizer(name: str):
    sacrebleu = _sacrebleu()
    try:
        return sacrebleu.BLEU(tokenize=name, force=True).tokenizer
    except (Exception, SystemExit) as error:  # a package or a download is missing
        reason = " ".join(str(error).split()).rstrip(".")
        failure = f"task.metric.tokenize={name} cannot be used ({reason})"
        raise UserError(f"{failure}: set another") from error


def evaluate_translations(
    hypotheses: Sequence[str], references: Sequence[str], metric: TranslationMetric | None = None
) -> dict[str, Any]:
    """Computes the scores of detokenized lines, or of Moses tokens with `metric.tokenized`.

    Returns:
        A dict of "bleu" (sacreBLEU's corpus BLEU) and "chrf" (its chrF2), from 0 to 100, their
            settings in "bleu_signature" and "chrf_signature", "tokenized_bleu" (unsmoothed BLEU on
            tokenized lines, by the formula of multi-bleu.perl) and "tokenized_signature",
            "length_ratio" (number of tokens of the hypotheses divided by that of the references, in
            tokens of tokenized BLEU; 0 if the references have no tokens), and "sentences".
    """
    check_parallel(hypotheses, references)
    metric = (metric or TranslationMetric()).for_references(references)
    # `force` suppresses sacreBLEU's warning about lines that look tokenized.
    sacrebleu = _sacrebleu()
    bleu = sacrebleu.BLEU(lowercase=metric.lowercase, force=True, tokenize=metric.tokenize)
    chrf = sacrebleu.CHRF(lowercase=metric.lowercase)
    plain = plain_lines(hypotheses, metric), [plain_lines(references, metric)]
    suffix = ""  # names the detokenizer at the end of sacreBLEU's signatures
    if metric.tokenized:
        import sacremoses

        suffix = f"|detok:moses-{metric.language}|sacremoses:{sacremoses.__version__}"
    tokenized = tokenized_bleu().corpus_score(
        tokenize_lines(hypotheses, metric), [tokenize_lines(references, metric)]
    )
    return {
        "bleu": bleu.corpus_score(*plain).score,
        "bleu_signature": f"{bleu.get_signature()}{suffix}",
        "chrf": chrf.corpus_score(*plain).score,
        "chrf_signature": f"{chrf.get_signature()}{suffix}",
        "tokenized_bleu": tokenized.score,
        "tokenized_signature": metric.signature,
        "length_ratio": tokenized.sys_len / tokenized.ref_len if tokenized.ref_len else 0.0,
        "sentences": len(hypotheses),
    }


def tokenized_bleu(effective_order: bool = False) -> "sacrebleu.BLEU":
    """Returns a BLEU metric for tokenized lines, by multi-bleu.perl's formula without smoothing."""
    return _sacrebleu().BLEU(
        tokenize="none", smooth_method="none", force=True, effective_order=effective_order
    )


def tokenize_lines(lines: Sequence[str], metric: TranslationMetric) -> list[str]:
    """Tokenizes lines for tokenized BLEU. Spaces separate the tokens."""
    import sacremoses

    normalizer = sacremoses.MosesPunctNormalizer(metric.language)
    tokenizer = sacremoses.MosesTokenizer(metric.language)
    sacrebleu_tokenizer = metric.tokenizer
    detokenizer = sacremoses.MosesDetokenizer(metric.language)
    result = []
    for line in lines:
        if metric.normalize_punctuation:
            line = normalizer.normalize(line)
        # The published scores also escape & and quotes, which does not change BLEU.
        if metric.tokenized:
            line = detokenizer.unescape_xml(line)
        elif sacrebleu_tokenizer:
            line = sacrebleu_tokenizer(line)
        else:
            line = tokenizer.tokenize(line, return_str=True, escape=False)
        if metric.split_compounds:
            line = _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)
        result.append(line.lower() if metric.lowercase else line)
    return result


def plain_lines(lines: Sequence[str], metric: TranslationMetric) -> list[str]:
    """Returns lines for sacreBLEU and chrF. Moses tokens (`metric.tokenized`) are detokenized."""
    if not metric.tokenized:
        return list(lines)
    import sacremoses

    detokenizer = sacremoses.MosesDetokenizer(metric.language)
    return [detokenizer.detokenize(line.split()) for line in lines]


def check_parallel(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raises a `UserError` if the two line counts differ or are 0."""
    if len(hypotheses) != len(references):
        raise UserError(f"{len(hypotheses)} translations do not fit {len(references)} references")
    if not hypotheses:
        raise UserError("there are no translations to score")


# Number of resamples drawn at once. For 3,000 sentences, 100 x 3,000 x 8 bytes are 2.4 MB.
_CHUNK = 100


def paired_bootstrap(
    system_a: Sequence[str],
    system_b: Sequence[str],
    references: Sequence[str],
    metric: TranslationMetric | None = None,
    resamples: int = 1000,
    seed: int = 1,
) -> dict[str, Any]:
    """Compares the tokenized BLEU of two systems on a test set by paired bootstrap resampling.

    sacreBLEU's own paired test is not used. That test takes the absolute value of the difference
    before centering, so a system differs significantly from itself (p = 1 / (resamples + 1)).

    All lines are detokenized, or consist of Moses tokens if `metric.tokenized` is set. Each of the
    `resamples` is drawn with replacement and has the size of the test set.

    Returns:
        A dict of "bleu_a" and "bleu_b" (BLEU of each system on the whole test set, from 0 to 100),
            "difference" (`bleu_b` - `bleu_a`), "interval_a", "interval_b" and "interval" (of the
            difference; intervals contain 95% of the resamples), "resamples", "signature", and
            "p_value", one-sided, (count + 1) / (resamples + 1). `count` is the number of resamples
            in which the system with the higher BLEU on the whole test set is not better than the
            other system. Identical systems have the p-value 1.

    References: Koehn 2004, "Statistical Significance Tests".
    """
    check_parallel(system_a, references)
    check_parallel(system_b, references)
    metric = (metric or TranslationMetric()).for_references(references)
    system_a, system_b, references = (
        tokenize_lines(lines, metric) for lines in (system_a, system_b, references)
    )
    # (2, N, 10)
    counts = np.stack([_sentence_counts(lines, references) for lines in (system_a, system_b)])
    bleu_a, bleu_b = _bleu(counts.sum(axis=1)).tolist()
    rng = np.random.default_rng(seed)
    chunk_scores = []
    for start in range(0, resamples, _CHUNK):
        size = (min(_CHUNK, resamples - start), len(references))
        # `draw_counts` is the number of draws of each sentence. Its product with `counts` sums the
        # counts over each resample.
        chosen = rng.integers(len(references), size=size)
        draw_counts = np.stack([np.bincount(row, minlength=size[1]) for row in chosen])  # (R, N)
        chunk_scores.append(_bleu(draw_counts @ counts))  # (2, R)
    scores = np.concatenate(chunk_scores, axis=1)  # (2, resamples)
    differences, difference = scores[1] - scores[0], bleu_b - bleu_a
    not_better = np.sum(differences * np.sign(difference) <= 0)
    return {
        "bleu_a": bleu_a,
        "bleu_b": bleu_b,
        "interval_a": _interval(scores[0]),
        "interval_b": _interval(scores[1]),
        "difference": difference,
        "interval": _interval(differences),
        "p_value": float((not_better + 1) / (resamples + 1)),
        "resamples": resamples,
        "signature": metric.signature,
    }


def _sentence_counts(lines: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Counts tokens and n-grams of each sentence. The BLEU of a test set follows from the sums.

    Of the `(N, 10)` int64 counts, column 0 counts the tokens of the line, and column 1 the tokens
    of the reference. Columns 2 to 5 count the matched n-grams for n = 1 to 4, and columns 6 to 9
    count all n-grams of the line.
    """
    # `effective_order` changes only sentence scores, not the counts.
    scorer = tokenized_bleu(effective_order=True)
    pairs = zip(lines, references, strict=True)
    scores = [scorer.sentence_score(line, [reference]) for line, reference in pairs]
    rows = [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]
    return np.array(rows, np.int64)


def _bleu(counts: np.ndarray) -> np.ndarray:
    """Computes BLEU scores `(...)` from sums `(..., 10)` of the counts of `_sentence_counts`."""
    bleu = _sacrebleu().BLEU
    scores = [
        bleu.compute_bleu(row[2:6], row[6:], *row[:2], smooth_method="none").score
        for row in counts.reshape(-1, 10).tolist()
    ]
    return np.reshape(scores, counts.shape[:-1])


def _interval(values: np.ndarray) -> tuple[float, float]:
    return tuple(np.percentile(values, [2.5, 97.5]).tolist())
