"""A classification task's examples, tokenized and batched."""

import numpy as np
import tensorflow as tf

from macaron_tf.data.cache import TokenRows
from macaron_tf.data.causal_encoding import row_encoder
from macaron_tf.data.example_batches import (
    EncodedExamples,
    ExampleBatches,
    Progress,
    in_parts,
)
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.task_data import Examples
from macaron_tf.errors import UserError

_CHUNK = 1024  # texts tokenized at once: at 512 ids a row, 2 MB of ids


def encode_examples(
    vocabulary: PieceVocabulary,
    examples: Examples,
    max_length: int,
    progress: Progress | None = None,
    causal: bool = False,
) -> EncodedExamples:
    """Tokenizes a split once, by `encode_pairs` or `encode_causal`.

    Args:
        vocabulary: an encoder vocabulary.
        examples: a split.
        max_length: greatest length of a row, special ids included.
        progress: see `in_parts`.
        causal: whether the rows are a causal model's.

    Returns:
        The rows, in the examples' order.

    Raises:
        UserError: no example, or `max_length` is too small.
    """
    if not len(examples):
        raise UserError("no example to encode: take a larger split")
    rows, boundaries = [], []
    for part in in_parts(len(examples), _CHUNK, progress):
        first, second = (
            None if texts is None else tf.constant(texts[part])
            for texts in (examples.first, examples.second)
        )
        encoded = row_encoder(causal)(vocabulary, first, second, max_length)
        token_ids = encoded["token_ids"].numpy()  # (B, L)
        lengths = (token_ids != 0).sum(axis=1)  # (B,): PAD is 0 and stands only at the end
        boundaries.append(lengths - (encoded["segment_ids"].numpy() != 0).sum(axis=1))
        rows += [row[:length] for row, length in zip(token_ids, lengths, strict=True)]
    return EncodedExamples(
        TokenRows.from_lists(rows, vocabulary.size),
        np.concatenate(boundaries).astype(np.int64),
        examples.labels,
        max_length,
        cls_last=vocabulary.cls_last,
    )


class ClassificationData(ExampleBatches):
    """`ExampleBatches` of a classification task; its labels are classes or scores."""

    @classmethod
    def from_examples(
        cls,
        examples: Examples,
        vocabulary: PieceVocabulary,
        max_length: int,
        batch_size: int,
        **options,
    ) -> "ClassificationData":
        """Tokenizes and batches a split.

        Args:
            examples, vocabulary, max_length: as for `encode_examples`.
            batch_size, options: as for `ExampleBatches`.

        Returns:
            The data.

        Raises:
            UserError: as those two.
        """
        return cls(encode_examples(vocabulary, examples, max_length), batch_size, **options)
