"""Rows of two texts, and the configuration of their tiny model."""

import numpy as np

from macaron_tf import models

START, DELIMITER, EXTRACT = 2, 3, 4
CONFIG = models.EncoderConfig(
    24, 16, 32, 2, 2, max_length=12, causal=True, num_segments=0, norm="pre",
    embedding_norm=False, dropout=0.0, attention_dropout=0.0, initializer_range=0.3,
)  # fmt: skip
# Rows: start a delimiter b extract, with several lengths, and a row of padding.
PAIRS = [([5, 6, 7], [8]), ([5], [9, 10, 11, 12]), ([], [13]), ([14], []), None]


def row(first, second, length=10):
    ids = [START, *first, DELIMITER, *second, EXTRACT]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return [values + [0] * (length - len(ids)) for values in (ids, segments)]


def batch(pairs):
    rows = [row(*pair) if pair else [[0] * 10] * 2 for pair in pairs]
    ids, segments = (np.array(columns, "int32") for columns in zip(*rows, strict=True))
    return {"token_ids": ids, "segment_ids": segments}
