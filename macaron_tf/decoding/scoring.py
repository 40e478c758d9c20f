"""Scoring of texts with a language model, and of translations with an encoder-decoder."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.words import cut_lines


def score_ids(model: Any, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
    """Computes the log-probabilities of given targets under an encoder-decoder.

    `source (B, S)` and `target (B, T)` int32 end in EOS and then PAD. The result has
    `"token_log_probs"` `(B, T)` float32, 0 at PAD, their sums `"log_probs"` `(B,)` float32, and
    `"lengths"` `(B,)` int32, with EOS.
    """
    special = model.config.special
    decoder_input = tf.pad(target[:, :-1], [[0, 0], [1, 0]], constant_values=special.begin)
    logits = model({"source": source, "target": decoder_input}, training=False)
    logits = tf.cast(logits, tf.float32)  # (B, T, V)
    is_target = target != special.pad
    log_probs = tf.gather(logits, target, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
    token_log_probs = tf.where(is_target, log_probs, 0.0)
    return {
        "token_log_probs": token_log_probs,
        "log_probs": tf.reduce_sum(token_log_probs, axis=-1),
        "lengths": tf.reduce_sum(tf.cast(is_target, tf.int32), axis=-1),
    }


def padded(rows: Sequence[Sequence[int]], pad: int, width: int = 0) -> np.ndarray:
    """Pads rows of ids with `pad` to `(N, L)` int32, where L is at least `width`."""
    length = max(width, *map(len, rows))
    return keras.utils.pad_sequences(rows, length, padding="post", value=pad)


def split_ids(vocabulary: PieceVocabulary, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """Encodes texts that consist of parts, and splits the ids where the parts end.

    Parts that are encoded one by one may have other ids: Llama 2 adds a space to the beginning of
    each, and GPT-2 encodes two line ends as one token only at the end of a text. A token with
    characters of two parts belongs to the later part. A part includes the space before its first
    word.
    """
    heads = [[*itertools.accumulate(parts)] for parts in texts]
    rows = iter(vocabulary.encode_lines([head for text in heads for head in text]))
    result = []
    for text in heads:
        encoded = [next(rows) for _ in text]
        whole, bounds = encoded[-1], [0]
        for row in encoded:
            pairs = enumerate(zip(row, whole, strict=False))
            length = next((i for i, (ours, theirs) in pairs if ours != theirs), len(row))
            bounds.append(max(length, bounds[-1]))
        result.append([whole[begin:end] for begin, end in itertools.pairwise(bounds)])
    return result


class Scores(NamedTuple):
    """Scores of N continuations.

    `TextScorer.score_text` scores a long text in windows. The tokens that it scores in one window
    are one continuation.

    Attributes:
        log_probs: `(N,)` float64, log-probability (natural logarithm) of each continuation.
        lengths: `(N,)` int64, number of tokens in each continuation.
        greedy: `(N,)` bool, whether greedy search would produce the continuation.
    """

    log_probs: np.ndarray
    lengths: np.ndarray
    greedy: np.ndarray


@dataclasses.dataclass(eq=False, repr=False)
class TextScorer:
    """Scorer that computes log-probabilities of texts with a language model.

    The model reads rows `[CLS] context continuation`.

    Attributes:
        network: a `LanguageModel`, or another network with `hidden_states` and `logits`.
        window: maximum row length in tokens, including [CLS], 2 or more.
        batch_tokens: maximum number of tokens in a batch, including padding. A row with more tokens
            is a batch by itself.
        starts: whether rows begin with [CLS]. Without [CLS], the first token of a row has no score.
        line_ends: whether the model was trained with line ends. Otherwise, line ends in a text
            become spaces.
    """

    network: Any
    vocabulary: PieceVocabulary
    window: int
    batch_tokens: int = 4096
    starts: bool = True
    line_ends: bool = False

    def __post_init__(self):
        self.prefix = [self.vocabulary.special.begin] if self.starts else []
        signature = [tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None,), tf.int32)]
        options = {"input_signature": signature, "autograph": False}
        self._compiled_score_batch = tf.function(self._score_batch, **options)

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Scores:
        """Computes the log-probability of each continuation, given the ids of its context.

        A context that is too long for the window loses its beginning, and may be empty if `starts`
        is True. A continuation that is empty or too long for the window raises a UserError.
        """
        rows, first_scored = [], []
        for number, (context, continuation) in enumerate(pairs, 1):
            # Without [CLS], the model gives no probability for the first token of a row.
            if not self.prefix and not context:
                raise UserError(f"context {number} is empty, but there is no [CLS]: give a token")
            if not 1 <= len(continuation) < self.window:
                raise UserError(f"answer {number} must have 1 to {self.window - 1} tokens")
            max_context = self.window - len(self.prefix) - len(continuation)
            row = [*self.prefix, *context[max(len(context) - max_context, 0) :]]
            first_scored.append(len(row))
            rows.append([*row, *continuation])
        return self._score_rows(rows, first_scored)

    def read(self, text: str) -> str:
        """Returns a text as the model reads it: unless `line_ends` is True, as in the corpora here.

        These have neither empty lines nor white space around lines, and spaces for line ends.
        """
        return text if self.line_ends else " ".join(cut_lines(text))

    def text_ids(self, text: str) -> list[int]:
        """Returns the token ids of a text, without [CLS] (see `read`)."""
        if not text.strip():
            raise UserError("the text to score has no words: give a text with at least one word")
        return self.vocabulary.encode_lines([self.read(text)])[0]

    def score_text(self, ids: Sequence[int], stride: int | None = None) -> Scores:
        """Computes the log-probability of a long text in windows that start `stride` tokens apart.

        Every token is scored once, except the first token of the text if `starts` is False. The
        first `window - 1 - stride` tokens of a later window, by default half of it, serve only as
        context. The scores have one entry per window, the sum over the tokens scored in it.
        """
        max_stride, tokens_per_window = self.window - 1, self.window - len(self.prefix)
        stride = max(max_stride // 2, 1) if stride is None else stride
        if not 1 <= stride <= max_stride:
            raise UserError(f"stride={stride} skips tokens or is below 1: give 1 to {max_stride}")
        rows, first_scored, next_index, window_start = [], [], 1 - len(self.prefix), 0
        if next_index >= len(ids):
            raise UserError(f"the text has {len(ids)} tokens: give at least {next_index + 1}")
        while next_index < len(ids):
            rows.append([*self.prefix, *ids[window_start : window_start + tokens_per_window]])
            first_scored.append(len(self.prefix) + next_index - window_start)
            next_index, window_start = window_start + tokens_per_window, window_start + stride
        return self._score_rows(rows, first_scored)

    def _score_rows(self, rows: list[list[int]], first_scored: list[int]) -> Scores:
        scores = Scores(*(np.zeros(len(rows), dtype) for dtype in (np.float64, np.int64, bool)))
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        while order:
            batch_size = max(1, self.batch_tokens // len(rows[order[-1]]))
            batch, order = order[-batch_size:], order[:-batch_size]
            token_ids = padded([rows[index] for index in batch], self.vocabulary.special.pad)
            positions = np.array([first_scored[index] for index in batch], np.int32)
            result = self._compiled_score_batch(token_ids, positions)
            for values, batch_values in zip(scores, result, strict=True):
                values[batch] = batch_values.numpy()
        return scores

    def _score_batch(self, token_ids: tf.Tensor, first_scored: tf.Tensor) -> Scores:
        """Scores the tokens of rows `(B, L)` from the positions `first_scored (B,)` >= 1 on."""
        hidden = self.network.hidden_states({"token_ids": token_ids[:, :-1]}, training=False)
        labels = token_ids[:, 1:]  # (B, L - 1)
        is_scored = tf.range(1, tf.shape(token_ids)[1]) >= first_scored[:, None]
        is_scored &= labels != self.vocabulary.special.pad
        positions = tf.where(is_scored)  # (N, 2), the positions that need logits
        logits = self.network.logits(tf.gather_nd(hidden, positions))
        logits = tf.cast(logits, tf.float32)  # (N, V)
        targets, row_indices = tf.gather_nd(labels, positions), positions[:, 0]  # (N,)
        log_totals = tf.reduce_logsumexp(logits, axis=-1)
        target_log_probs = tf.gather(logits, targets, batch_dims=1) - log_totals
        is_wrong = tf.cast(tf.argmax(logits, -1, output_type=targets.dtype) != targets, tf.int32)
        log_probs, lengths, is_wrong = (
            tf.math.unsorted_segment_sum(values, row_indices, tf.shape(token_ids)[0])
            for values in (target_log_probs, tf.ones_like(targets), is_wrong)
        )
        return Scores(log_probs, lengths, is_wrong == 0)
