"""Translation of id batches and of lines of text with an encoder-decoder."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.decoding.beam_search import BeamSearchConfig, beam_search, target_limits
from macaron_tf.decoding.sampling import SamplingConfig, sample
from macaron_tf.decoding.scoring import padded
from macaron_tf.distribution.replicas import ReplicaMap
from macaron_tf.errors import UserError, check_whole
from macaron_tf.special_ids import EOS


def translate_ids(
    model: Any,
    source: tf.Tensor,
    config: BeamSearchConfig | SamplingConfig,
    vocabulary_size: int | None = None,
    prefix: Sequence[int] = (),
    seed: tf.Tensor | int | None = None,
) -> dict[str, tf.Tensor]:
    """Translates a batch of source ids by beam search or, with a `SamplingConfig`, by sampling.

    Args:
        model: has `init_decode(source, beams, max_length) -> (context, cache)`, where `max_length`
            None gives a growing cache, and `decode_step(tokens, index, context, cache) -> (logits,
            cache)`, see `beam_search`.
        source: `(B, S)` int32, each row ended by EOS, then PAD.
        config: settings of the search.
        vocabulary_size: size of the vocabulary without padding; ids from this one on are never
            produced.
        prefix: ids that the decoder reads before BOS; they do not count in the limits.
        seed: seed of sampling, scalar or `(2,)` int.

    Returns:
        The dictionary of `beam_search`: "ids" `(B, N, T)`, "scores", "log_probs" and "lengths"
        `(B, N)`; or that of `sample`, without "scores".
    """
    max_length, limits = target_limits(source, config)
    sampling = isinstance(config, SamplingConfig)
    rows = config.num_samples if sampling else config.beam_size
    room = max_length + len(prefix) if isinstance(max_length, int) else None
    context, cache = model.init_decode(source, rows, room)
    batch_size = tf.shape(source)[0] if source.shape[0] is None else source.shape[0]
    options = {"limits": limits, "vocabulary_size": vocabulary_size, "prefix": prefix}
    given = (model.decode_step, context, cache, batch_size, config, max_length)
    if sampling:
        return sample(*given, seed=seed, **options)
    return beam_search(*given, **options)


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation of a line. For an empty line, all numbers are 0.

    Attributes:
        text: the translation.
        score: log P / penalty(length), by which the n best are ordered; for a sample log P.
        log_prob: log P (natural logarithm) of the output's ids with EOS.
        length: number of tokens with EOS.
    """

    text: str
    score: float
    log_prob: float
    length: int


@dataclasses.dataclass(frozen=True)
class Translations:
    """Translations of lines.

    Attributes:
        hypotheses: 1 to `n_best` hypotheses of each line, best first.
        warnings: a sentence about each line that was cut, with its number, counted from 1.
    """

    hypotheses: list[list[Hypothesis]]
    warnings: list[str]

    @property
    def best(self) -> list[str]:
        """The best translation of each line."""
        return [found[0].text for found in self.hypotheses]


@dataclasses.dataclass(eq=False, repr=False)
class LineTranslator:
    """Translates lines of text with a model and its vocabulary.

    Lines are sorted by length and batched by their padded tokens. One `tf.function` with a relaxed
    signature, traced once, serves all shapes. The replicas of the current strategy share the
    batches; all worker processes translate the same lines. On Keras's JAX backend, which is used
    during training only, the search is greedy.

    Attributes:
        model: see `translate_ids`.
        vocabulary: has `encode_lines(lines)`, which returns a list of ids without special ones for
            each line, `decode_lines(rows of ids) -> lines`, and `pieces`, the number of real ids.
        config: settings of the search.
        batch_tokens: source tokens per batch, with padding and EOS; a longer line is a batch of its
            own.
        max_source_length: most tokens of a line without EOS; longer lines are cut, with a warning.
        seed: seed of sampling; equal seeds and lines give equal samples.
        prefix: ids that the decoder reads before BOS.
    """

    model: Any
    vocabulary: Any
    config: BeamSearchConfig | SamplingConfig = BeamSearchConfig()
    batch_tokens: int = 2048
    max_source_length: int = 256
    seed: int = 1
    prefix: Sequence[int] = ()

    def __post_init__(self):
        for name in ("batch_tokens", "max_source_length"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be 1 or more.")
        if keras.backend.backend() == "jax":
            from macaron_tf.decoding.greedy import GreedySearch  # it needs JAX

            self._search = GreedySearch(self.model, self.vocabulary.pieces, self.config)
            return
        # autograph off: all control flow is tf.while_loop, and tracing is faster.
        signature = [tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((2,), tf.int32)]
        search = tf.function(self._outputs, input_signature=signature, autograph=False)
        self._search = ReplicaMap(tf.distribute.get_strategy(), search)

    def _outputs(self, source: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        pieces = self.vocabulary.pieces
        found = translate_ids(self.model, source, self.config, pieces, self.prefix, seed)
        return {"scores": found["log_probs"], **found}

    def translate(self, lines: Sequence[str], first_line: int = 1) -> Translations:
        """Translates lines; a line without tokens stays empty.

        Args:
            first_line: number of the first line in warnings and errors.
        """
        check_whole(lines, first_line)
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
                padded([[*rows[i], EOS] for i in numbers]),
                np.array([self.seed, first_line + numbers[0]]).astype(np.int32),
            )
            for numbers in batches
        )
        for numbers, result in zip(batches, results, strict=True):
            for index, hypotheses in zip(numbers, self._hypotheses(result), strict=True):
                found[index] = hypotheses
        return Translations(found, warnings)

    def stream(self, lines: Iterable[str], chunk_size: int = 256) -> Iterator[Translations]:
        """Translates lines as they arrive, in chunks.

        Args:
            lines: any iterable, such as an open file; line ends are removed.
            chunk_size: lines translated together. More lines are faster, fewer answer sooner.
        """
        lines = (line.rstrip("\r\n") for line in lines)
        first = 1
        while chunk := list(itertools.islice(lines, chunk_size)):
            yield self.translate(chunk, first)
            first += len(chunk)

    def _batches(self, rows: list[list[int]]) -> Iterator[list[int]]:
        """Indices of the non-empty rows, by length, in batches whose last row is the longest."""
        batch: list[int] = []
        for index in sorted(range(len(rows)), key=lambda i: len(rows[i])):
            if not rows[index]:
                continue
            if batch and (len(batch) + 1) * (len(rows[index]) + 1) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _hypotheses(self, result: dict[str, np.ndarray]) -> list[list[Hypothesis]]:
        # (B, N, T) -> (B N, T)
        texts = self.vocabulary.decode_lines(result["ids"].reshape(-1, result["ids"].shape[2]))
        numbers = (result[name].ravel().tolist() for name in ("scores", "log_probs", "lengths"))
        found = list(map(Hypothesis, texts, *numbers))
        n_best = result["ids"].shape[1]
        rows = [found[first : first + n_best] for first in range(0, len(found), n_best)]
        # A line may have fewer than n_best outputs, but always has the first.
        return [[row[0], *(one for one in row[1:] if one.length)] for row in rows]
