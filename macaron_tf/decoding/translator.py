"""Translation of token ids and of lines of text with an encoder-decoder."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.decoding.beam_search import BeamSearchConfig, beam_search, target_limits
from macaron_tf.decoding.scoring import padded
from macaron_tf.text.normalization import in_chunks, text_limit


def translate_ids(
    model: Any,
    source: tf.Tensor,
    config: BeamSearchConfig,
    vocabulary_size: int | None = None,
    prefix: Sequence[int] = (),
) -> dict[str, tf.Tensor]:
    """Translates a batch of source ids by `beam_search`, and returns its result.

    Args:
        model: encoder-decoder with `init_decode(source, beams, max_length) -> (context, cache)`
            (`None`: a growing cache),
            `decode_step(tokens, index, context, cache) -> (logits, cache)` (see `beam_search`), and
            the ids `config.special` of PAD, BOS and EOS.
        source: `(B, S)` int32, source ids with EOS and then PAD at the end.
        prefix: ids that the decoder reads before BOS. The length limits do not count the prefix.
    """
    special = model.config.special
    max_length, limits = target_limits(source, config, special.pad)
    capacity = max_length + len(prefix) if isinstance(max_length, int) else None
    context, cache = model.init_decode(source, config.beam_size, capacity)
    batch_size = tf.shape(source)[0] if source.shape[0] is None else source.shape[0]
    return beam_search(
        model.decode_step,
        context,
        cache,
        batch_size,
        config,
        max_length,
        limits=limits,
        vocabulary_size=vocabulary_size,
        prefix=prefix,
        special=special,
    )


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """Translation of a line. For an empty line, the text is empty and all numbers are 0.

    Attributes:
        text: the translation.
        score: log P / penalty(length), by which the n best are sorted. The score of greedy search
            on JAX is log P.
        log_prob: log P (natural logarithm) of the output, including EOS.
        length: number of output tokens, including EOS.
    """

    text: str
    score: float
    log_prob: float
    length: int


@dataclasses.dataclass(frozen=True)
class Translations:
    """Translations of a list of lines.

    Attributes:
        hypotheses: for each line, a list of 1 to `n_best` hypotheses, best first. A line without
            tokens has one empty hypothesis.
        warnings: one warning text for each line that was cut. The text names the number of the
            line.
    """

    hypotheses: list[list[Hypothesis]]
    warnings: list[str]

    @property
    def best(self) -> list[str]:
        """Text of the best hypothesis for each line."""
        return [hypotheses[0].text for hypotheses in self.hypotheses]


@dataclasses.dataclass(eq=False, repr=False)
class LineTranslator:
    """Translator for lines of text, which runs an encoder-decoder.

    The translator sorts lines by length and groups lines of similar length in batches. On Keras's
    JAX backend, which is used only during training, the search is greedy and uses only the length
    limits of `config`, without `prefix`.

    Attributes:
        model: an encoder-decoder (see `translate_ids`).
        vocabulary: vocabulary with the methods `encode_lines` (from lines to lists of ids without
            special ids) and `decode_lines` (from rows of ids to lines), and the attribute `pieces`
            (the number of ids).
        config: settings of beam search.
        batch_tokens: maximum number of source tokens in a batch, including padding and EOS. A line
            with more tokens is a batch by itself.
        max_source_length: maximum number of tokens in a line, without EOS. Longer lines are cut,
            with a warning.
        prefix: ids that the decoder reads before BOS.
    """

    model: Any
    vocabulary: Any
    config: BeamSearchConfig = BeamSearchConfig()
    batch_tokens: int = 2048
    max_source_length: int = 256
    prefix: Sequence[int] = ()

    def __post_init__(self):
        if keras.backend.backend() == "jax":
            from macaron_tf.decoding.greedy import GreedySearch  # needs JAX

            self._search = GreedySearch(self.model, self.vocabulary.pieces, self.config)
            return
        # AutoGraph is off, because all control flow is tf.while_loop and tracing is faster.
        signature = [tf.TensorSpec((None, None), tf.int32)]
        self._search = tf.function(self._outputs, signature, autograph=False)

    def _outputs(self, source: tf.Tensor) -> dict[str, tf.Tensor]:
        return translate_ids(self.model, source, self.config, self.vocabulary.pieces, self.prefix)

    def translate(self, lines: Sequence[str], first_line: int = 1) -> Translations:
        """Translates lines, an empty one to "". Warnings and errors count from `first_line`."""
        rows, warnings, limit = [], [], self.max_source_length
        starts = [line[: text_limit(limit)] for line in lines]
        for line_number, ids in enumerate(self.vocabulary.encode_lines(starts), first_line):
            if len(ids) > limit:
                cut = f"so only the first {limit} tokens are translated."
                warnings.append(f"line {line_number} has more than {limit} tokens, {cut}")
            rows.append(list(ids[:limit]))
        translations: list[list[Hypothesis]] = [[Hypothesis("", 0.0, 0.0, 0)] for _ in rows]
        special = self.model.config.special
        for indices in self._batches(rows):
            source = padded([[*rows[i], special.end] for i in indices], special.pad)
            result = {name: np.asarray(value) for name, value in self._search(source).items()}
            for index, hypotheses in zip(indices, self._hypotheses(result), strict=True):
                translations[index] = hypotheses
        return Translations(translations, warnings)

    def stream(self, lines: Iterable[str], chunk_size: int = 256) -> Iterator[Translations]:
        """Translates lines, as of an open file, in chunks, and yields each chunk's translations.

        A larger chunk takes less time per line, and a smaller chunk yields its first translation
        sooner.
        """
        lines = (line.rstrip("\r\n") for line in lines)
        first = 1
        for chunk in in_chunks(lines, chunk_size):
            yield self.translate(chunk, first)
            first += len(chunk)

    def _batches(self, rows: list[list[int]]) -> Iterator[list[int]]:
        """Yields batches of indices of non-empty rows, sorted by row length in ascending order."""
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
        columns = (result[name].ravel().tolist() for name in ("scores", "log_probs", "lengths"))
        hypotheses = list(map(Hypothesis, texts, *columns))
        n_best = result["ids"].shape[1]
        rows = [hypotheses[start : start + n_best] for start in range(0, len(hypotheses), n_best)]
        # A line may have fewer than n_best outputs, but always has the first.
        return [[row[0], *(other for other in row[1:] if other.length)] for row in rows]
