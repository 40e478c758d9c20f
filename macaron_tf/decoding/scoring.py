"""Log-probabilities of given outputs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.special_ids import PAD
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.words import cut_lines


def score_targets(logits: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
    """Log-probabilities of given target ids.

    Args:
        logits: (B, T, V), the model's output for the decoder input BOS + target[:-1].
        target: (B, T) int32, ids with EOS, PAD after.

    Returns:
        "token_log_probs" (B, T) float32, 0 at PAD; "log_probs" (B,) float32, their sum;
        "lengths" (B,) int32, tokens with EOS.
    """
    logits = tf.cast(logits, tf.float32)
    present = target != PAD
    chosen = tf.gather(logits, target, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
    token_log_probs = tf.where(present, chosen, 0.0)
    return {
        "token_log_probs": token_log_probs,
        "log_probs": tf.reduce_sum(token_log_probs, axis=-1),
        "lengths": tf.reduce_sum(tf.cast(present, tf.int32), axis=-1),
    }


def score_continuations(network, token_ids: tf.Tensor, starts: tf.Tensor) -> dict[str, tf.Tensor]:
    """Log-probabilities of the ends of rows, given their beginnings.

    Args:
        network: has `hidden_states({"token_ids": (B, L)}, training=False) -> (B, L, D)` and
            `logits (N, D) -> (N, V)`, as `LanguageModel`.
        token_ids: (B, L) int32, PAD after.
        starts: (B,) int32, 1 or more: the position of the first token that counts.

    Returns:
        "log_probs" (B,) float32, the sum over the tokens from `starts` on; "lengths" (B,) int32,
        their number; "greedy" (B,) bool, whether each is the most probable at its position.
    """
    hidden = network.hidden_states({"token_ids": token_ids[:, :-1]}, training=False)
    labels = token_ids[:, 1:]  # (B, L - 1)
    counted = (labels != PAD) & (tf.range(1, tf.shape(token_ids)[1]) >= starts[:, None])
    positions = tf.where(counted)  # (N, 2): logits are computed at these only
    logits = tf.cast(network.logits(tf.gather_nd(hidden, positions)), tf.float32)  # (N, V)
    wanted, rows = tf.gather_nd(labels, positions), positions[:, 0]  # (N,)
    chosen = tf.gather(logits, wanted, batch_dims=1) - tf.reduce_logsumexp(logits, axis=-1)
    likeliest = tf.argmax(logits, axis=-1, output_type=wanted.dtype)
    count = tf.shape(token_ids)[0]
    missed = tf.math.unsorted_segment_sum(tf.cast(likeliest != wanted, tf.int32), rows, count)
    return {
        "log_probs": tf.math.unsorted_segment_sum(chosen, rows, count),
        "lengths": tf.math.unsorted_segment_sum(tf.ones_like(wanted), rows, count),
        "greedy": missed == 0,
    }


class Scores(NamedTuple):
    """Scores of N continuations.

    Attributes:
        log_probs: (N,) float64, natural logarithms.
        lengths: (N,) int64, tokens.
        greedy: (N,) bool, whether each token is the most probable at its position.
    """

    log_probs: np.ndarray
    lengths: np.ndarray
    greedy: np.ndarray


class TextScorer:
    """Scores texts in rows `[CLS] context continuation`.

    Args:
        network: see `score_continuations`.
        window: greatest length of a row, [CLS] included.
        batch_tokens: tokens scored together, padding included.
        starts: whether rows begin with [CLS]; without it a row's first token is not scored.

    Raises:
        UserError: the window holds no token beside [CLS].
    """

    def __init__(
        self,
        network: Any,
        vocabulary: PieceVocabulary,
        window: int,
        batch_tokens: int = 4096,
        starts: bool = True,
    ):
        if window < 2:
            raise UserError(f"a window of {window} tokens holds [CLS] alone: give 2 or more")
        self.vocabulary = vocabulary
        self.window = window
        self.batch_tokens = batch_tokens
        self.prefix = [vocabulary.cls_id] if starts else []
        self._score = tf.function(
            lambda token_ids, starts: score_continuations(network, token_ids, starts),
            input_signature=[
                tf.TensorSpec((None, None), tf.int32),
                tf.TensorSpec((None,), tf.int32),
            ],
            autograph=False,
        )

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Scores:
        """Scores continuations.

        Args:
            pairs: ids of a context, which may be empty, and of its continuation. A context that is
                too long for the window loses its beginning.

        Raises:
            UserError: a continuation is empty, or too long for the window.
        """
        rows, starts = [], []
        for context, continuation in pairs:
            # Without [CLS] a row's first token has no probability.
            if not self.prefix and not context:
                raise UserError("the model begins no texts: give one behind which it is to answer")
            room = self.window - 1 - len(continuation)
            if not continuation or room < 0:
                raise UserError(
                    f"an answer of {len(continuation)} tokens: give 1 to {self.window - 1}, what "
                    "a row of the model holds"
                )
            room += 1 - len(self.prefix)
            kept = list(context[max(len(context) - room, 0) :])
            starts.append(len(self.prefix) + len(kept))
            rows.append([*self.prefix, *kept, *continuation])
        return self._scored(rows, starts)

    def score_text(self, text: str, stride: int | None = None) -> Scores:
        """Scores each token of a long text once, in windows that overlap.

        Every window but the first repeats `window - 1 - stride` tokens or more that were scored
        before. Line ends are read as spaces, as in the rows of a corpus.

        Args:
            stride: tokens from one window to the next; half a window by default.

        Returns:
            The scores of the windows, in order.

        Raises:
            UserError: no text, or a stride beyond the window.
        """
        lines = cut_lines(text)
        if not lines:
            raise UserError("there is no text to score: give a file with some")
        # A line's first word is encoded like any other, with a space before it.
        spaced = [lines[0], *(f" {line}" for line in lines[1:])]
        ids = [i for row in self.vocabulary.encode_lines(spaced) for i in row]
        most, room = self.window - 1, self.window - len(self.prefix)
        stride = max(most // 2, 1) if stride is None else stride
        if not 1 <= stride <= most:
            raise UserError(f"a stride of {stride}: give 1 to {most}, or tokens are skipped")
        rows, starts, done, begin = [], [], 1 - len(self.prefix), 0
        if done >= len(ids):
            raise UserError("one token is no text to score for a model that begins none: give more")
        while done < len(ids):
            end = min(begin + room, len(ids))
            rows.append([*self.prefix, *ids[begin:end]])
            starts.append(len(self.prefix) + done - begin)
            done, begin = end, begin + stride
        return self._scored(rows, starts)

    def _scored(self, rows: list[list[int]], starts: list[int]) -> Scores:
        count = len(rows)
        found = Scores(np.zeros(count), np.zeros(count, np.int64), np.zeros(count, bool))
        order = sorted(range(count), key=lambda index: len(rows[index]))
        while order:
            longest = len(rows[order[-1]])
            together = max(1, self.batch_tokens // longest)
            batch, order = order[-together:], order[:-together]
            token_ids = np.full((len(batch), longest), PAD, np.int32)
            for padded, index in zip(token_ids, batch, strict=True):
                padded[: len(rows[index])] = rows[index]
            result = self._score(token_ids, np.array([starts[i] for i in batch], np.int32))
            for name, values in found._asdict().items():
                values[batch] = result[name].numpy()
        return found
