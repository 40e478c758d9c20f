"""Tokenized examples of labelled tasks, and their batches."""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import BucketBatches
from macaron_tf.data.buckets import Batch, Buckets, choose_lengths
from macaron_tf.errors import UserError
from macaron_tf.text.special import CLS_SEGMENT, Special
from macaron_tf.text.token_rows import TokenRows


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedExamples:
    """N tokenized examples of R rows each.

    R is the number of choices in multiple choice, and the number of sentences per example for
    sentence encoders, such as 2 for pairs. Otherwise R is 1.

    Attributes:
        rows: token ids without padding, including special ids if the model uses any. The R rows of
            example n begin at row index n R.
        boundaries: `(N R,)` int64, first position of segment 1 in each row. In a row with a single
            text, the boundary is the row length, without the last [CLS] if `cls_last` is True.
            `None` means that batches have no "segment_ids".
        labels: `(N,)` int32 classes or float32 scores; `(N, 2)` int32 first and last position of
            an answer; or `TokenRows` with one label per token. `None` means that the examples have
            no labels.
        cls_last: whether rows end with [CLS], which is then segment 2, as in XLNet.
        language_id: language id of all texts. Unless the id is 0, batches also have "language_ids".
        characters: `(words, C)` int32, character ids of each word, for models that read words as
            characters. `rows` then holds indices of words instead of token ids, and batches have
            "token_ids" `(B, L, C)`. `None` means that `rows` holds token ids.
        needs_labels: whether `ExampleBatches.dataset` raises a UserError if `labels` is `None`.
    """

    needs_labels: ClassVar[bool] = True

    rows: TokenRows
    boundaries: np.ndarray | None
    labels: np.ndarray | TokenRows | None
    max_length: int
    rows_per_example: int = dataclasses.field(default=1, kw_only=True)
    cls_last: bool = dataclasses.field(default=False, kw_only=True)
    pad_id: int = dataclasses.field(default=Special.pad, kw_only=True)
    language_id: int = dataclasses.field(default=0, kw_only=True)
    characters: np.ndarray | None = dataclasses.field(default=None, kw_only=True)


class ExampleBatches(BucketBatches):
    """Batches of B tokenized examples. An epoch of N examples has ceil(N / B) steps.

    A batch is a dict of these arrays, with R rows per example:

    - "token_ids" `(B, L)` int32, or `(B, R, L)` if R is above 1.
    - "segment_ids" int32 of the same shape, unless `EncodedExamples.boundaries` is `None`.
    - "language_ids" int32 of the same shape, unless `EncodedExamples.language_id` is 0.
    - "weight" `(B,)` float32, 1 for examples and 0 for padding.
    - "label" `(B,)`, `(B, 2)` or `(B, L)`, as in `EncodedExamples.labels`, with 0 for padding,
      unless the examples have no labels.

    If the model reads words as characters, "token_ids" is `(B, L, C)`, and "padding_mask" `(B, L)`
    int32 is 1 at words.

    Args:
        batch_size: number of examples per batch, B. If this number exceeds the smallest power of
            two above N, B is that power of two.
        shapes: maximum number of different padded lengths.
    """

    def __init__(self, encoded: EncodedExamples, batch_size: int, shapes: int = 4):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} is less than 1: give 1 or more")
        self.encoded = encoded
        labels = encoded.labels
        labels = labels.ids if isinstance(labels, TokenRows) else labels

        def make_buckets(row_lengths: np.ndarray) -> Buckets:
            # Rounding up must not exceed the positions of the model: 100 would become 104.
            padded_lengths = choose_lengths(row_lengths, shapes, 8)
            lengths = [min(n, encoded.max_length) for n in padded_lengths]
            # A batch far larger than an epoch would be mostly padding and may not fit into memory.
            max_rows = 1 << len(row_lengths).bit_length()
            return Buckets.of_rows(lengths, min(batch_size, max_rows))

        count = len(encoded.rows) // encoded.rows_per_example
        other_arrays = [encoded.boundaries, labels, encoded.characters]
        super().__init__([encoded.rows], count, make_buckets, other_arrays=other_arrays)

    def dataset(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> tf.data.Dataset:
        if self.encoded.needs_labels and self.encoded.labels is None:
            raise UserError("the training examples have no labels: train on a split with labels")
        return super().dataset(seed, start_step, repeat)

    def labels(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Gathers the labels of a batch, `(B,)`, `(B, 2)` or `(B, L)`, with 0 for padding."""
        labels = self.encoded.labels
        if isinstance(labels, TokenRows):
            return labels.padded(rows, length)
        batch_labels = labels[rows]
        batch_labels[rows < 0] = 0
        return batch_labels

    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        encoded, examples = self.encoded, batch.rows
        count = encoded.rows_per_example
        rows = examples[:, None] * count + np.arange(count)  # (B, R)
        rows = np.where(examples[:, None] < 0, -1, rows).reshape(-1)  # (B, R) -> (B R,)
        shape = (len(examples), *((count,) if count > 1 else ()), batch.length)
        token_ids = encoded.rows.padded(rows, batch.length, encoded.pad_id)  # (B R, L)
        is_real = token_ids != encoded.pad_id
        arrays = {"token_ids": token_ids.reshape(shape)}  # (B R, L) -> (B, L) or (B, R, L)
        if encoded.boundaries is not None:
            positions = np.arange(batch.length)
            is_second = positions >= encoded.boundaries[rows][:, None]  # (B R, L)
            segment_ids = (is_second & is_real).astype(np.int32)
            if encoded.cls_last:
                lengths = is_real.sum(axis=1, keepdims=True)  # (B R, 1)
                segment_ids[positions == lengths - 1] = CLS_SEGMENT
            arrays["segment_ids"] = segment_ids.reshape(shape)
        if encoded.language_id:
            arrays["language_ids"] = np.full(shape, encoded.language_id, np.int32)
        if encoded.characters is not None:
            arrays["padding_mask"] = is_real.astype(np.int32).reshape(shape)
            arrays["token_ids"] = encoded.characters[arrays["token_ids"]]
        arrays["weight"] = (examples >= 0).astype(np.float32)
        if encoded.labels is not None:
            arrays["label"] = self.labels(*batch)
        return arrays
