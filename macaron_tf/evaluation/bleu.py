"""BLEU and chrF of translations: sacreBLEU's, and the tokenized BLEU that the papers print."""

import dataclasses
import re
from collections.abc import Sequence

import sacrebleu
import sacremoses

from macaron_tf.errors import UserError

# The compound splitting of the published WMT14 En-De scores; as there, neighbouring matches do
# not overlap: a-b-c becomes a ##AT##-##AT## b-c.
_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclasses.dataclass(frozen=True)
class TranslationMetric:
    """How translations are scored; hypotheses and references are treated alike.

    Args:
        language: target language, for the Moses rules.
        lowercase: compare without case, in every metric.
        normalize_punctuation: Moses punctuation normalization before the Moses tokenizer, for
            models trained on normalized text. Tokenized BLEU only.
        split_hyphens: Moses's aggressive option, "a-b" to "a @-@ b". Tokenized BLEU only.
        split_compounds: "a-b" to "a ##AT##-##AT## b" after tokenization, as in the papers' WMT14
            En-De scores. Tokenized BLEU only.
        tokenized: the lines are Moses tokens already, escaped or not ("it &apos;s"), as IWSLT14's
            files are. Tokenized BLEU unescapes them and compares them as they stand, which is
            what multi-bleu.perl gives on them; sacreBLEU and chrF see them detokenized.

    Raises:
        UserError: `tokenized` with `split_hyphens`, which is a step of the tokenizer.
    """

    language: str = "de"
    lowercase: bool = False
    normalize_punctuation: bool = False
    split_hyphens: bool = False
    split_compounds: bool = False
    tokenized: bool = False

    def __post_init__(self):
        if self.tokenized and self.split_hyphens:
            raise UserError(
                "metric.split_hyphens is a step of the tokenizer, which metric.tokenized leaves "
                "out: set one of the two to False"
            )

    @property
    def signature(self) -> str:
        """The settings of tokenized BLEU in one word, in sacreBLEU's manner."""
        tokenizer = "given-unescaped" if self.tokenized else f"moses-{self.language}"
        options = [
            ("norm:moses", self.normalize_punctuation),
            ("hyphens:split", self.split_hyphens),
            ("compounds:split", self.split_compounds),
        ]
        chosen = "".join(f"|{name}" for name, on in options if on)
        return (
            f"case:{'lc' if self.lowercase else 'mixed'}|tok:{tokenizer}{chosen}"
            f"|smooth:none|sacremoses:{sacremoses.__version__}"
        )

    @property
    def plain_suffix(self) -> str:
        """What is added to sacreBLEU's own signatures: how tokens became plain lines, if at all."""
        if not self.tokenized:
            return ""
        return f"|detok:moses-{self.language}|sacremoses:{sacremoses.__version__}"


@dataclasses.dataclass(frozen=True)
class TranslationScores:
    """Scores of one system; BLEU and chrF run from 0 to 100.

    Args:
        bleu: sacreBLEU's corpus BLEU.
        bleu_signature: its settings.
        chrf: sacreBLEU's chrF2.
        chrf_signature: its settings.
        tokenized_bleu: BLEU on Moses tokens without smoothing, multi-bleu.perl's formula.
        tokenized_signature: its settings.
        precisions: tokenized BLEU's n-gram precisions in percent, n = 1 to 4.
        brevity_penalty: tokenized BLEU's, from 0 to 1.
        length_ratio: tokens of the hypotheses over tokens of the references.
        sentences: number of pairs.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    tokenized_bleu: float
    tokenized_signature: str
    precisions: tuple[float, ...]
    brevity_penalty: float
    length_ratio: float
    sentences: int

    def as_dict(self) -> dict:
        """The fields, ready for JSON."""
        return {**dataclasses.asdict(self), "precisions": list(self.precisions)}

    def __str__(self) -> str:
        return (
            f"sacreBLEU {self.bleu:.2f} ({self.bleu_signature})\n"
            f"chrF {self.chrf:.2f} ({self.chrf_signature})\n"
            f"tokenized BLEU {self.tokenized_bleu:.2f} ({self.tokenized_signature})\n"
            f"length ratio {self.length_ratio:.3f}, {self.sentences} sentences"
        )


def evaluate_translations(
    hypotheses: Sequence[str], references: Sequence[str], metric: TranslationMetric | None = None
) -> TranslationScores:
    """Scores one system's translations.

    Args:
        hypotheses: plain (detokenized) lines; Moses tokens where the settings say `tokenized`.
        references: lines of the same kind, one for each hypothesis.
        metric: the settings.

    Returns:
        The scores.

    Raises:
        UserError: the two are not of equal number, or empty.
    """
    metric = metric or TranslationMetric()
    check_parallel(hypotheses, references)
    # force: lines that look tokenized are the user's own affair, and cost one warning a call.
    bleu = sacrebleu.BLEU(lowercase=metric.lowercase, force=True)
    plain = plain_lines(hypotheses, metric), [plain_lines(references, metric)]
    bleu_score = bleu.corpus_score(*plain)
    chrf = sacrebleu.CHRF(lowercase=metric.lowercase)
    chrf_score = chrf.corpus_score(*plain)
    tokenized = tokenized_bleu().corpus_score(
        tokenize_lines(hypotheses, metric), [tokenize_lines(references, metric)]
    )
    return TranslationScores(
        bleu=bleu_score.score,
        bleu_signature=f"{bleu.get_signature()}{metric.plain_suffix}",
        chrf=chrf_score.score,
        chrf_signature=f"{chrf.get_signature()}{metric.plain_suffix}",
        tokenized_bleu=tokenized.score,
        tokenized_signature=metric.signature,
        precisions=tuple(tokenized.precisions),
        brevity_penalty=tokenized.bp,
        length_ratio=tokenized.sys_len / tokenized.ref_len if tokenized.ref_len else 0.0,
        sentences=len(hypotheses),
    )


def tokenized_bleu(effective_order: bool = False) -> sacrebleu.BLEU:
    """BLEU on lines that are tokens already: multi-bleu.perl's formula, no smoothing."""
    return sacrebleu.BLEU(
        tokenize="none", smooth_method="none", force=True, effective_order=effective_order
    )


def tokenize_lines(lines: Sequence[str], metric: TranslationMetric) -> list[str]:
    """What tokenized BLEU compares: lower-cased, normalized, tokenized, split, as the settings say.

    Args:
        lines: plain lines, or Moses tokens where the settings say `tokenized`.
        metric: the settings.

    Returns:
        The lines as tokens with a space between.
    """
    normalizer = sacremoses.MosesPunctNormalizer(metric.language)
    tokenizer = sacremoses.MosesTokenizer(metric.language)
    detokenizer = sacremoses.MosesDetokenizer(metric.language)
    result = []
    for line in lines:
        if metric.normalize_punctuation:
            line = normalizer.normalize(line)
        # The published scores escape & and quotes too; that is one to one, so BLEU is the same.
        if metric.tokenized:
            line = detokenizer.unescape_xml(line)
        else:
            line = tokenizer.tokenize(
                line, aggressive_dash_splits=metric.split_hyphens, return_str=True, escape=False
            )
        if metric.split_compounds:
            line = _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)
        result.append(line.lower() if metric.lowercase else line)
    return result


def plain_lines(lines: Sequence[str], metric: TranslationMetric) -> list[str]:
    """What sacreBLEU compares: the lines, detokenized where the settings say `tokenized`.

    Args:
        lines: plain lines, or Moses tokens where the settings say `tokenized`.
        metric: the settings.

    Returns:
        Plain lines.
    """
    if not metric.tokenized:
        return list(lines)
    detokenizer = sacremoses.MosesDetokenizer(metric.language)
    return [detokenizer.detokenize(line.split()) for line in lines]


def check_parallel(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuses sets that cannot be compared line by line.

    Raises:
        UserError: the two are not of equal number, or empty.
    """
    if len(hypotheses) != len(references):
        raise UserError(
            f"cannot score {len(hypotheses)} translations against {len(references)} references: "
            "give one reference line for each translation."
        )
    if not hypotheses:
        raise UserError("cannot score an empty set: give at least one translation and reference.")
