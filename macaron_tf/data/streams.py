"""A corpus read in its own order: rows that go on, from batch to batch, where they ended."""

import itertools
import os

import tensorflow as tf

from macaron_tf.data import storage
from macaron_tf.data.corpus_reading import PretrainingCorpus
from macaron_tf.errors import UserError


def stream_dataset(
    corpus: PretrainingCorpus,
    split: str,
    batch_size: int,
    start_step: int = 0,
    repeat: bool = True,
) -> tf.data.Dataset:
    """The rows of a split as B texts side by side: row b of batch t + 1 follows row b of batch t.

    Text b is n = rows // B rows from row b n on, in the order of the files; the rest, fewer than B
    rows, is left out. The batches follow from their number alone, so that a run that goes on at a
    step reads what it would have read; of the rows before them at most one shard a text is read.
    No Python runs while they are read.

    Args:
        corpus: prepared; its rows are continuous text with `packing="full_text"`.
        split: "train" or "validation".
        batch_size: B.
        start_step: number of the first batch.
        repeat: begin again after n batches, for ever.

    Returns:
        Dataset of the corpus's batches, with `previous_ids (B, L)` int32, the row before each, 0
        where a text begins, and `starts (B,)` bool, whether one does.

    Raises:
        UserError: fewer rows than texts.
    """
    shards = [shard for shard in corpus.shards[split] if shard.rows]
    total = sum(shard.rows for shard in shards)
    length = total // batch_size
    if not length:
        raise UserError(
            f"the split {split!r} of {corpus.folder} has {total} rows, fewer than the {batch_size} "
            "texts of a batch: prepare more text or take a smaller batch"
        )
    folder = corpus.folder
    folder = folder if storage.is_remote(folder) else os.path.abspath(folder)
    paths = tf.constant([storage.join(folder, shard.name) for shard in shards])
    firsts = list(itertools.accumulate((shard.rows for shard in shards), initial=0))[:-1]
    firsts = tf.constant(firsts, tf.int64)  # number of the first row of each shard

    def rows(start: tf.Tensor, count: int) -> tf.data.Dataset:
        shard = tf.searchsorted(firsts, [start], side="right", out_type=tf.int64)[0] - 1
        files = tf.data.Dataset.range(shard, len(shards))
        records = files.flat_map(lambda number: tf.data.TFRecordDataset(tf.gather(paths, number)))
        return records.skip(start - tf.gather(firsts, shard)).take(count)

    # One batch earlier than asked for where that is the row before.
    first = max(start_step - 1, 0)
    passed = first % length if repeat else min(first, length)

    def text(number: tf.Tensor) -> tf.data.Dataset:
        rest = rows(number * length + passed, length - passed)
        return rest.concatenate(rows(number * length, length).repeat()) if repeat else rest

    records = tf.data.Dataset.range(batch_size).interleave(
        text, cycle_length=batch_size, block_length=1
    )
    records = records.batch(batch_size, drop_remainder=True)

    def batch(number: tf.Tensor, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        features = corpus.record.features(corpus.record.table(texts))
        starts = tf.fill([batch_size], number % length == 0)
        return {**features, "starts": starts}

    numbers = tf.data.Dataset.counter(first, dtype=tf.int64)
    dataset = tf.data.Dataset.zip(numbers, records).map(batch, tf.data.AUTOTUNE, deterministic=True)

    def follow(before: tf.Tensor, features: dict) -> tuple[tf.Tensor, dict]:
        previous = tf.where(features["starts"][:, None], 0, before)
        return features["token_ids"], {**features, "previous_ids": previous}

    nothing = tf.zeros((batch_size, corpus.sequence_length), tf.int32)
    dataset = dataset.scan(nothing, follow).skip(start_step - first)
    steps = tf.data.INFINITE_CARDINALITY if repeat else max(length - start_step, 0)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset.prefetch(tf.data.AUTOTUNE)
