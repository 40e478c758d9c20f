"""Mask filling: the most probable tokens for each [MASK] in a text."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.models import PretrainingEncoder
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.tasks.base import OnePass, require, trimmed
from macaron_tf.text import PieceVocabulary

MASK = "[MASK]"
_LONGEST = 512  # maximum row length of a model without a length limit
_TRAILING = r"[\t-\r\x{85}\pZ]+\z"  # white space at the end of a text


class Filling(OnePass):
    """Mask filling with an encoder that was trained by masked language modelling.

    The input of the signature `serving_default` is `text (B,)` strings, each with one or more
    [MASK] tokens. M is the maximum number of masks in a text. The outputs are `words (B, M, K)`
    strings and `probabilities (B, M, K)` float32, for the `top` K most probable tokens at each mask
    in descending order of probability. The rows of texts with fewer than M masks are padded with ""
    and 0. A token that continues a word begins with "##". White space is encoded as the vocabulary
    encodes it in any text, but [MASK] may include the white space before it (see
    `PieceVocabulary.mask_takes_space`). The graph raises InvalidArgumentError for a text that is
    too long or has no mask.

    Args:
        longest: maximum number of ids in a row, including special ids. The model may have no
            trained positions beyond this maximum.
    """

    name = "mask filler"
    pipeline = "fill-mask"
    takes = ("top",)
    longest: int

    def __init__(
        self, network: PretrainingEncoder, vocabulary: PieceVocabulary, longest: int, top: int = 5
    ):
        super().__init__(network, vocabulary)
        self.longest, self.top = longest, top

    @classmethod
    def of(cls, model: ModelParts) -> Self:
        longest = model.card.trained_length or model.config.longest or _LONGEST
        return cls(model.network, model.vocabulary, longest)

    def changed(self, **attributes: Any) -> Self:
        top = attributes.get("top", self.top)
        if type(top) is not int or top < 1:
            raise UserError(f"top={top!r} must be a whole number of at least 1")
        return super().changed(**attributes)

    def typical_texts(self) -> Sequence[str]:
        return (f"A dog is {MASK}.",)

    @functools.cached_property
    def _token_texts(self) -> list[str]:
        """Text of each token, with "##" before a token that continues a word."""
        num_pieces = self.vocabulary.pieces
        texts = self.vocabulary.decode_lines([[token_id] for token_id in range(num_pieces)])
        marks = np.where(self.vocabulary.word_starts(), "", "##").tolist()
        return [mark + text for mark, text in zip(marks, texts, strict=False)]

    def prepare(self, text: tf.Tensor) -> tuple[dict, tf.Tensor]:
        vocabulary, special = self.vocabulary, self.vocabulary.special
        parts = tf.strings.split(text, MASK)  # (B, None)
        gaps = tf.cast(parts.row_lengths(), tf.int32) - 1  # (B,)
        parts = require(gaps > 0, f"a text has no {MASK}: write {MASK} for a missing word", parts)
        num_parts = parts.row_lengths()
        last_part = tf.gather(num_parts, parts.value_rowids()) - 1
        is_last = tf.ragged.range(num_parts).values == last_part
        texts = parts.values
        if vocabulary.mask_takes_space:
            texts = tf.where(is_last, texts, tf.strings.regex_replace(texts, _TRAILING, ""))
        ids = tf.cast(vocabulary.encode(texts), tf.int32)  # (parts, None)
        ends = tf.where(is_last, special.end, special.mask)
        joined = tf.concat([ids, ends[:, None]], axis=1)
        tokens = parts.with_values(joined).merge_dims(1, 2)  # (B, None, None) -> (B, None)
        tokens = tf.concat([tf.fill([tf.shape(text)[0], 1], special.begin), tokens], axis=1)
        fits = tokens.row_lengths() <= self.longest
        problem = (
            f"a text has more than the {self.longest} tokens that the model reads: shorten the text"
        )
        token_ids = require(fits, problem, tokens).to_tensor(special.pad)  # (B, L)
        is_gap = token_ids == special.mask
        positions = tf.ragged.boolean_mask(
            tf.broadcast_to(tf.range(tf.shape(token_ids)[1]), tf.shape(token_ids)), is_gap
        ).to_tensor()  # (B, M)
        return {"token_ids": token_ids, "masked_positions": positions}, gaps

    def compute(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.cast(self.network(rows, training=False)["masked_language"], tf.float32)

    def conclude(self, computed: tf.Tensor, extras: tf.Tensor) -> dict[str, tf.Tensor]:
        vocabulary = self.vocabulary
        logits = computed[:, : tf.reduce_max(extras), : vocabulary.pieces]  # (B, M, V)
        special = np.isin(np.arange(vocabulary.pieces), vocabulary.special.ids)
        logits = tf.where(special, -np.inf, logits)
        count = min(self.top, vocabulary.pieces)
        probabilities, best_ids = tf.math.top_k(tf.nn.softmax(logits), count)  # (B, M, K)
        real = tf.sequence_mask(extras, tf.shape(logits)[1])[:, :, None]
        texts = tf.gather(tf.constant(self._token_texts), best_ids)
        return {
            "words": tf.where(real, texts, ""),
            "probabilities": tf.where(real, probabilities, 0.0),
        }

    def rows(self, outputs: Mapping[str, np.ndarray]) -> list[dict[str, list]]:
        gaps = (outputs["probabilities"][:, :, 0] > 0).sum(axis=1)  # (B,)
        return trimmed(super().rows(outputs), gaps)
