"""Whether one system is better than another: paired bootstrap resampling of BLEU."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import sacrebleu

from macaron_tf.errors import UserError
from macaron_tf.evaluation.bleu import (
    TranslationMetric,
    check_parallel,
    plain_lines,
    tokenize_lines,
    tokenized_bleu,
)

_ORDERS = 4
# Resamples drawn at once: 100 x 3,000 sentences x 8 bytes is 2.4 MB of indices.
_CHUNK = 100


@dataclasses.dataclass(frozen=True)
class PairedBootstrap:
    """System B against system A on the same sentences; intervals hold 95% of the resamples.

    Args:
        bleu_a: BLEU of system A on the whole set, 0 to 100.
        bleu_b: the same of system B.
        interval_a: of A's BLEU.
        interval_b: of B's BLEU.
        difference: bleu_b - bleu_a.
        interval: of the difference.
        p_value: one-sided: share of resamples in which the system that is better on the whole
            set is not better, (count + 1) / (resamples + 1). 1 for identical systems.
        resamples: how many were drawn.
        signature: which BLEU.
    """

    bleu_a: float
    bleu_b: float
    interval_a: tuple[float, float]
    interval_b: tuple[float, float]
    difference: float
    interval: tuple[float, float]
    p_value: float
    resamples: int
    signature: str

    def as_dict(self) -> dict:
        """The fields, ready for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    def __str__(self) -> str:
        def line(name, value, interval):
            return f"{name} {value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"

        return (
            f"{line('A', self.bleu_a, self.interval_a)}, "
            f"{line('B', self.bleu_b, self.interval_b)}, "
            f"{line('B - A', self.difference, self.interval)}, "
            f"p = {self.p_value:.4f} ({self.resamples} resamples, {self.signature})"
        )


def paired_bootstrap(
    system_a: Sequence[str],
    system_b: Sequence[str],
    references: Sequence[str],
    metric: TranslationMetric | None = None,
    tokenized: bool = True,
    resamples: int = 1000,
    seed: int = 1,
) -> PairedBootstrap:
    """Compares two systems on the same test set (Koehn 2004, "Statistical Significance Tests").

    sacreBLEU's own paired test is not used: it takes the absolute difference before it centers
    it, and finds a system significantly different from itself (p = 1 / (resamples + 1)).

    Args:
        system_a: lines, of the kind that the metric takes.
        system_b: as many.
        references: as many.
        metric: how lines are compared.
        tokenized: compare the papers' tokenized BLEU; else sacreBLEU's.
        resamples: test sets drawn with replacement, each as large as the real one.
        seed: the same seed gives the same result; 0 or more.

    Returns:
        Both BLEUs, the difference, their intervals and the p-value.

    Raises:
        UserError: the sets are not of equal number, or empty; `resamples` is below 1 or `seed`
            below 0.
    """
    metric = metric or TranslationMetric()
    if resamples < 1:
        raise UserError(f"resamples={resamples} is not valid: give a whole number of 1 or more.")
    if seed < 0:
        raise UserError(f"seed={seed} is not valid: give a whole number of 0 or more.")
    check_parallel(system_a, references)
    check_parallel(system_b, references)
    prepare = tokenize_lines if tokenized else plain_lines
    system_a, system_b, references = (
        prepare(lines, metric) for lines in (system_a, system_b, references)
    )
    if tokenized:
        scorer, signature = tokenized_bleu(effective_order=True), metric.signature
    else:
        # The order only matters to a sentence's own score; its counts are the corpus score's.
        scorer = sacrebleu.BLEU(lowercase=metric.lowercase, force=True, effective_order=True)
        case = "lc" if metric.lowercase else "mixed"
        signature = f"sacreBLEU|case:{case}|tok:13a|smooth:exp{metric.plain_suffix}"
    counts = np.stack(
        [_sentence_counts(scorer, lines, references) for lines in (system_a, system_b)]
    )  # (2, N, 10)
    smooth = not tokenized
    whole = bleu_from_counts(counts.sum(axis=1), smooth)  # (2,)
    rng = np.random.default_rng(seed)
    drawn = []
    for start in range(0, resamples, _CHUNK):
        size = (min(_CHUNK, resamples - start), len(references))
        # How often each sentence is drawn: a product with the counts sums each resample.
        chosen = rng.integers(len(references), size=size)
        times = np.stack([np.bincount(row, minlength=size[1]) for row in chosen])  # (R, N)
        drawn.append(bleu_from_counts(times @ counts, smooth))  # (2, R)
    scores = np.concatenate(drawn, axis=1)  # (2, resamples)
    differences = scores[1] - scores[0]
    difference = float(whole[1] - whole[0])
    not_better = np.sum(differences * np.sign(difference) <= 0)
    return PairedBootstrap(
        bleu_a=float(whole[0]),
        bleu_b=float(whole[1]),
        interval_a=_interval(scores[0]),
        interval_b=_interval(scores[1]),
        difference=difference,
        interval=_interval(differences),
        p_value=float((not_better + 1) / (resamples + 1)),
        resamples=resamples,
        signature=signature,
    )


def bleu_from_counts(counts: np.ndarray, smooth: bool) -> np.ndarray:
    """Corpus BLEU from its sufficient statistics, for many test sets at once.

    Args:
        counts: (..., 10): hypothesis tokens, reference tokens, matched n-grams and n-grams of the
            hypotheses for n = 1 to 4.
        smooth: sacreBLEU's "exp" smoothing of orders without a match; else BLEU is then 0.

    Returns:
        (...) float64, from 0 to 100.
    """
    counts = counts.astype(np.float64)
    length, reference = counts[..., 0], counts[..., 1]
    matched, total = counts[..., 2 : 2 + _ORDERS], counts[..., 2 + _ORDERS :]
    empty = matched == 0
    if smooth:
        # The k-th order without a match counts as 1 / 2^k matches.
        matched = np.where(empty, 0.5 ** np.cumsum(empty, axis=-1), matched)
        zero = empty.all(axis=-1) | (total == 0).any(axis=-1)
    else:
        zero = empty.any(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.log(matched / total).mean(axis=-1)
        brevity = np.minimum(0.0, 1.0 - reference / length)
        return np.where(zero, 0.0, 100.0 * np.exp(precision + brevity))


def _sentence_counts(
    scorer: sacrebleu.BLEU, lines: Sequence[str], references: Sequence[str]
) -> np.ndarray:
    """(N, 10) int64, the rows `bleu_from_counts` adds up."""
    rows = []
    for line, reference in zip(lines, references, strict=True):
        score = scorer.sentence_score(line, [reference])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return np.array(rows, np.int64)


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
