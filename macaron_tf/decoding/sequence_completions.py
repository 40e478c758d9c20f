"""Text to text with an encoder-decoder that was pre-trained on corrupted text: T5, BART."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.spelling import as_prompt, as_prompts
from macaron_tf.decoding.completions import TextGenerator
from macaron_tf.decoding.generation import Prompts
from macaron_tf.special_ids import BOS, EOS

HOLE = "[MASK]"


class SequenceGenerator(TextGenerator):
    """Answers texts, which the encoder reads; a `[MASK]` in one is a gap to be filled.

    The source is the text and EOS, the decoder begins with BOS, as models are trained here. Where
    gaps have sentinels of their own, as T5's, the answer says `[MASK]` before what stands in each.

    Args:
        model: has `start(source, beam_size, max_length)` and `step`, see `EncoderDecoder`.
        vocabulary: the one it was trained with.
        longest: tokens of a source, EOS included, and of an answer; None = any number.
        sentinels: ids above the vocabulary's rows, one for each gap in turn; 0 = every gap is
            the vocabulary's [MASK].
        source_start, answer_start: ids before a text, and before its answer.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: PieceVocabulary,
        longest: int | None = None,
        sentinels: int = 0,
        source_start: Sequence[int] = (),
        answer_start: Sequence[int] = (BOS,),
    ):
        super().__init__(model, vocabulary, longest)
        self.sentinels = sentinels
        self.source_start, self.answer_start = tuple(source_start), tuple(answer_start)
        rows = model.config.vocab_size - vocabulary.size
        self.spellings = [*self.spellings, *[f" {HOLE}".encode()] * rows]
        self.barred = np.concatenate([self.barred, np.arange(rows) >= sentinels])

    def _read(self, text: str) -> list[int]:
        return self.rows(tf.constant([as_prompt(text)]))[0].numpy().tolist()

    def rows(self, texts: tf.Tensor) -> tf.RaggedTensor:
        parts = tf.strings.split(as_prompts(texts), HOLE)  # (B, None)
        # What follows a gap keeps its space: to some vocabularies it is a part of the word.
        texts = tf.strings.regex_replace(parts.values, r"[ \t\r\n]+\z", "")
        ids = tf.cast(self.vocabulary.encode(texts), tf.int32)
        numbers = tf.cast(tf.ragged.range(parts.row_lengths()).values, tf.int32)
        last = tf.cast(tf.gather(parts.row_lengths(), parts.value_rowids()), tf.int32) - 1
        # A text of more gaps than there are sentinels ends with the same one again and again.
        gap = self.vocabulary.mask_id
        if self.sentinels:
            gap = self.vocabulary.size + tf.minimum(numbers, self.sentinels - 1)
        ends = tf.where(numbers == last, EOS, gap)
        ids = tf.concat([ids, ends[:, None]], axis=1)  # (parts, None)
        rows = parts.with_values(ids).merge_dims(1, 2)  # (B, None, None) -> (B, None)
        start = tf.constant([self.source_start], tf.int32)  # (1, N)
        return tf.concat([tf.repeat(start, rows.nrows(), axis=0), rows], axis=1)

    def fits(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        return self.longest is None or length <= self.longest

    def room(self, length: int | tf.Tensor) -> int | tf.Tensor | None:
        return None if self.longest is None else self.longest + 1 - len(self.answer_start)

    def begins(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        return length > 0

    def prompts(
        self, rows: tf.Tensor, lengths: tf.Tensor, limits: tf.Tensor, seeds: tf.Tensor
    ) -> Prompts:
        start = tf.repeat(tf.constant([self.answer_start], tf.int32), tf.shape(rows)[0], axis=0)
        return Prompts(start, tf.fill(tf.shape(lengths), len(self.answer_start)), limits, seeds)

    def start(self, rows: tf.Tensor, samples: int, room: int | None = None) -> tuple[Any, Any]:
        return self.model.start(rows, samples, room)
