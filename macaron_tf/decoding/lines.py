"""Text to text: lines in, the n best translations of each out, in order."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.decoding.config import BeamSearchConfig, SamplingConfig
from macaron_tf.decoding.translate import sample_ids, translate_ids
from macaron_tf.distribution.replica_map import ReplicaMap
from macaron_tf.errors import UserError
from macaron_tf.special_ids import EOS, PAD


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Args:
        text: the line.
        score: log P / penalty(length), what the n best are ordered by, or log P of a sample; 0
            for an empty line.
        log_prob: log P of the output's ids with EOS, natural logarithm.
        length: tokens with EOS; 0 for an empty line.
    """

    text: str
    score: float
    log_prob: float
    length: int


@dataclasses.dataclass(frozen=True)
class Translations:
    """Translations of some lines.

    Args:
        hypotheses: for each line, in order, one to `n_best` hypotheses, best first.
        warnings: a sentence for each line that was cut, naming it (counted from 1).
    """

    hypotheses: list[list[Hypothesis]]
    warnings: list[str]

    @property
    def best(self) -> list[str]:
        """The best translation of each line."""
        return [found[0].text for found in self.hypotheses]


class LineTranslator:
    """Translates lines with a model and its vocabulary.

    Lines are sorted by length and batched under a budget of padded tokens. One `tf.function` with
    a relaxed signature serves all shapes: it is traced once.

    Args:
        model: see `translate_ids`.
        vocabulary: has `encode_lines(lines) -> ids without specials, a list a line`,
            `decode_lines(rows of ids) -> lines`, and `pieces`, the count of real ids.
        config: beam search settings, or those of sampling.
        batch_tokens: source tokens a batch, padding and EOS included; memory and the work of one
            step grow with it, a line of that length alone always fits.
        max_source_length: pieces of a line that are read, EOS not counted; what follows is cut,
            with a warning.
        seed: of sampling; the same seed and lines give the same samples.
        strategy: in whose scope the model was made: its replicas share the batches, and all of
            its worker processes translate the same lines; None = this moment's.
        before: ids that the decoder reads before BOS.

    Raises:
        UserError: `batch_tokens` or `max_source_length` is below 1.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Any,
        config: BeamSearchConfig | SamplingConfig | None = None,
        batch_tokens: int = 2048,
        max_source_length: int = 256,
        seed: int = 1,
        strategy: tf.distribute.Strategy | None = None,
        before: Sequence[int] = (),
    ):
        for name, value in (
            ("batch_tokens", batch_tokens),
            ("max_source_length", max_source_length),
        ):
            if value < 1:
                raise UserError(f"{name}={value} is not valid: give a whole number of 1 or more.")
        self.model = model
        self.vocabulary = vocabulary
        self.config = config or BeamSearchConfig()
        self.batch_tokens = batch_tokens
        self.max_source_length = max_source_length
        self.seed = seed
        self.before = tuple(before)
        # autograph off: all control flow is tf.while_loop's, and the trace is quicker.
        search = tf.function(
            self._outputs,
            input_signature=[
                tf.TensorSpec((None, None), tf.int32, "source"),
                tf.TensorSpec((2,), tf.int32, "seed"),
            ],
            autograph=False,
        )
        self._search = ReplicaMap(strategy or tf.distribute.get_strategy(), search)

    def _outputs(self, source: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        pieces = self.vocabulary.pieces
        if isinstance(self.config, SamplingConfig):
            found = sample_ids(self.model, source, self.config, seed, pieces, self.before)
            return {**found, "scores": found["log_probs"]}
        return translate_ids(self.model, source, self.config, pieces, self.before)

    def translate(self, lines: Sequence[str], first_line: int = 1) -> Translations:
        """Translates lines; an empty line (or one with no pieces) gives an empty translation.

        Args:
            lines: any number of lines.
            first_line: the number of the first one, for the warnings.

        Returns:
            The n best of every line in the order of the lines, and warnings.
        """
        rows, warnings = [], []
        for number, ids in enumerate(self.vocabulary.encode_lines(lines), first_line):
            if len(ids) > self.max_source_length:
                warnings.append(
                    f"line {number} has {len(ids)} tokens: cut to the first "
                    f"{self.max_source_length}."
                )
            rows.append(list(ids[: self.max_source_length]))
        found: list[list[Hypothesis]] = [[Hypothesis("", 0.0, 0.0, 0)] for _ in rows]
        batches = list(self._batches(rows))
        results = self._search(
            (
                _padded([rows[i] for i in numbers]),
                np.array([self.seed, first_line + numbers[0]], np.int32),
            )
            for numbers in batches
        )
        for numbers, result in zip(batches, results, strict=True):
            for place, hypotheses in zip(numbers, self._hypotheses(result), strict=True):
                found[place] = hypotheses
        return Translations(found, warnings)

    def stream(self, lines: Iterable[str], chunk_size: int = 256) -> Iterator[Translations]:
        """Translates lines as they come, so that the first answers need not await the last line.

        Args:
            lines: any iterable, such as an open file; line ends are stripped.
            chunk_size: lines translated together: more is faster, fewer answer sooner.

        Yields:
            The translations of each chunk, in order.
        """
        lines = (line.rstrip("\r\n") for line in lines)
        first = 1
        while chunk := list(itertools.islice(lines, chunk_size)):
            yield self.translate(chunk, first)
            first += len(chunk)

    def _batches(self, rows: list[list[int]]) -> Iterator[list[int]]:
        """Places of the non-empty rows, by length, in batches whose last row is the longest."""
        batch: list[int] = []
        for place in sorted(range(len(rows)), key=lambda i: len(rows[i])):
            if not rows[place]:
                continue
            if batch and (len(batch) + 1) * (len(rows[place]) + 1) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch

    def _hypotheses(self, result: dict[str, np.ndarray]) -> list[list[Hypothesis]]:
        sentences, n_best, _ = result["ids"].shape
        # (B, N, T) -> (B * N, T)
        texts = self.vocabulary.decode_lines(result["ids"].reshape(sentences * n_best, -1))
        return [
            [
                Hypothesis(
                    texts[b * n_best + n],
                    float(result["scores"][b, n]),
                    float(result["log_probs"][b, n]),
                    int(result["lengths"][b, n]),
                )
                for n in range(n_best)
                # Fewer than n_best outputs may exist; the first always does.
                if n == 0 or result["lengths"][b, n] > 0
            ]
            for b in range(sentences)
        ]


def _padded(rows: list[list[int]]) -> np.ndarray:
    """`(B, S)` int32 ids, each row ending with EOS; the last row is the longest."""
    source = np.full((len(rows), len(rows[-1]) + 1), PAD, np.int32)
    for padded, row in zip(source, rows, strict=True):
        padded[: len(row) + 1] = [*row, EOS]
    return source
