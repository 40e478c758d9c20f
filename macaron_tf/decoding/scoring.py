"""Scoring: log-probabilities of given texts and of given translations."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.special_ids import BOS, PAD
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.words import cut_lines


def score_ids(model: Any, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
    """Computes log-probabilities of given outputs of an encoder-decoder.

    Args:
        model: called as `model({"source": (B, S), "target": (B, T)}, training=False)`.
        source, target: int32 ids, each row ended by EOS, then PAD.

    Returns:
        "token_log_probs" `(B, T)` float32, 0 at PAD; "log_probs" `(B,)` float32, their sums;
        "lengths" `(B,)` int32, tokens with EOS.
    """
    decoder_input = tf.pad(target[:, :-1], [[0, 0], [1, 0]], constant_values=BOS)
    logits = model({"source": source, "target": decoder_input}, training=False)
    logits = tf.cast(logits, tf.float32)  # (B, T, V)
    present = target != PAD
    chosen = tf.gather(logits, target, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
    token_log_probs = tf.where(present, chosen, 0.0)
    return {
        "token_log_probs": token_log_probs,
        "log_probs": tf.reduce_sum(token_log_probs, axis=-1),
        "lengths": tf.reduce_sum(tf.cast(present, tf.int32), axis=-1),
    }


def padded(rows: Sequence[Sequence[int]], width: int = 0) -> np.ndarray:
    """Pads rows of ids to `(N, L)` int32; L is the greatest length, at least `width`."""
    ids = np.full((len(rows), max(width, *map(len, rows))), PAD, np.int32)
    for place, row in zip(ids, rows, strict=True):
        place[: len(row)] = row
    return ids


class Scores(NamedTuple):
    """Scores of N continuations.

    Attributes:
        log_probs: `(N,)` float64, log-probability (natural logarithm) of each continuation.
        lengths: `(N,)` int64, tokens of each continuation.
        greedy: `(N,)` bool, whether all its tokens are the most probable at their positions.
    """

    log_probs: np.ndarray
    lengths: np.ndarray
    greedy: np.ndarray


@dataclasses.dataclass(eq=False, repr=False)
class TextScorer:
    """Scores texts with a language model, in rows `[CLS] context continuation`.

    Attributes:
        network: has `hidden_states({"token_ids": (B, L)}, training=False) -> (B, L, D)` and
            `logits (N, D) -> (N, V)`, as `LanguageModel`.
        vocabulary: of the network.
        window: greatest length of a row with [CLS], 2 or more.
        batch_tokens: tokens per batch, with padding.
        starts: whether rows begin with [CLS]. Without it a row's first token is not scored.
    """

    network: Any
    vocabulary: PieceVocabulary
    window: int
    batch_tokens: int = 4096
    starts: bool = True

    def __post_init__(self):
        if self.window < 2:
            raise UserError(f"a window of {self.window} tokens holds [CLS] alone: give 2 or more")
        self.prefix = [self.vocabulary.cls_id] if self.starts else []
        signature = [tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None,), tf.int32)]
        self._batch = tf.function(self._score, input_signature=signature, autograph=False)

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Scores:
        """Scores continuations of contexts.

        Args:
            pairs: ids of a context, which may be empty, and of its continuation. The beginning of a
                context that is too long for the window is cut off.

        Raises:
            UserError: a continuation is empty, or too long for the window.
        """
        rows, starts = [], []
        for context, continuation in pairs:
            # Without [CLS] a row's first token has no probability.
            if not self.prefix and not context:
                raise UserError("the model cannot begin a text: give some text before the answer")
            if not 1 <= len(continuation) < self.window:
                raise UserError(
                    f"an answer has {len(continuation)} tokens: give 1 to {self.window - 1}, as "
                    "many as a row of the model holds"
                )
            room = self.window - len(self.prefix) - len(continuation)
            row = [*self.prefix, *context[max(len(context) - room, 0) :]]
            starts.append(len(row))
            rows.append([*row, *continuation])
        return self._scored(rows, starts)

    def text_ids(self, text: str) -> list[int]:
        """Encodes a long text. Line ends become spaces, as in the rows of a corpus."""
        lines = cut_lines(text)
        if not lines:
            raise UserError("there is no text to score: give a file with some")
        # A line's first word is encoded like any other, with a space before it.
        spaced = [lines[0], *(f" {line}" for line in lines[1:])]
        return [i for row in self.vocabulary.encode_lines(spaced) for i in row]

    def score_text(self, ids: Sequence[int], stride: int | None = None) -> Scores:
        """Scores each token of a long text once, in overlapping windows.

        Every window except the first has at least `window - 1 - stride` tokens of context that were
        scored before.

        Args:
            ids: ids of the text, see `text_ids`.
            stride: tokens from one window to the next; None: half a window.

        Returns:
            The scores of the windows, in order.

        Raises:
            UserError: there is no text, or the stride is beyond the window.
        """
        most, room = self.window - 1, self.window - len(self.prefix)
        stride = max(most // 2, 1) if stride is None else stride
        if not 1 <= stride <= most:
            raise UserError(f"a stride of {stride}: give 1 to {most}, or tokens are skipped")
        rows, starts, done, begin = [], [], 1 - len(self.prefix), 0
        if done >= len(ids):
            raise UserError("the model cannot score a text's first token: give two or more tokens")
        while done < len(ids):
            rows.append([*self.prefix, *ids[begin : begin + room]])
            starts.append(len(self.prefix) + done - begin)
            done, begin = begin + room, begin + stride
        return self._scored(rows, starts)

    def _scored(self, rows: list[list[int]], starts: list[int]) -> Scores:
        count = len(rows)
        found = Scores(np.zeros(count), np.zeros(count, np.int64), np.zeros(count, bool))
        order = sorted(range(count), key=lambda index: len(rows[index]))
        while order:
            together = max(1, self.batch_tokens // len(rows[order[-1]]))
            batch, order = order[-together:], order[:-together]
            token_ids = padded([rows[index] for index in batch])
            result = self._batch(token_ids, np.array([starts[i] for i in batch], np.int32))
            for values, part in zip(found, result, strict=True):
                values[batch] = part.numpy()
        return found

    def _score(self, token_ids: tf.Tensor, starts: tf.Tensor) -> Scores:
        """Scores tokens of rows `(B, L)`, from the positions `starts (B,)`, 1 or more, on."""
        hidden = self.network.hidden_states({"token_ids": token_ids[:, :-1]}, training=False)
        labels = token_ids[:, 1:]  # (B, L - 1)
        counted = (labels != PAD) & (tf.range(1, tf.shape(token_ids)[1]) >= starts[:, None])
        positions = tf.where(counted)  # (N, 2): only these need logits
        logits = self.network.logits(tf.gather_nd(hidden, positions))
        logits = tf.cast(logits, tf.float32)  # (N, V)
        wanted, rows = tf.gather_nd(labels, positions), positions[:, 0]  # (N,)
        chosen = tf.gather(logits, wanted, batch_dims=1) - tf.reduce_logsumexp(logits, axis=-1)
        missed = tf.cast(tf.argmax(logits, -1, output_type=wanted.dtype) != wanted, tf.int32)
        log_probs, lengths, missed = (
            tf.math.unsorted_segment_sum(values, rows, tf.shape(token_ids)[0])
            for values in (chosen, tf.ones_like(wanted), missed)
        )
        return Scores(log_probs, lengths, missed == 0)
