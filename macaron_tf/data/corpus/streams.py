"""Batches for models with memory, in which each row continues a row of an earlier batch."""

import itertools

import tensorflow as tf

from macaron_tf.data.batches import prefetch
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import UserError, plural


def stream_dataset(
    corpus: PretrainingCorpus,
    split: str,
    batch_size: int,
    start_step: int = 0,
    repeat: bool = True,
    micro_batches: int = 1,
    bidirectional: bool = False,
) -> tf.data.Dataset:
    """Returns batches for models with memory, such as Transformer-XL.

    Row b of batch t + 1 continues row b of batch t. To this end, the rows of the split, in the
    order of the files, are divided into B texts of n consecutive rows each. Up to B - 1 rows at the
    end of the split are left out. Only the index of a batch determines its rows, so that a resumed
    run reads the same batches as a run that was not stopped. Of the rows before `start_step`, the
    dataset reads at most one shard per text.

    Args:
        corpus: the corpus. Consecutive rows are continuous text if `packing` is "full_text".
        repeat: whether all texts start again after their last row, forever. If False, the dataset
            ends with the last row of all texts.
        micro_batches: number of micro-batches per update, A. Each micro-batch has its own texts.
            There are then A B texts, and row b of batch t + A continues row b of batch t.
        bidirectional: whether the second half of the A B rows of an update reads the texts of the
            first half backward (Yang et al. 2019 (XLNet), section 2.4, and its released code). A
            backward text starts at its last row, and each row has the ids between [CLS] and the
            last [SEP] reversed. There are then A B / 2 texts, and batches have "backward" `(B,)`
            bool.

    Returns:
        Dataset of batches as in `PretrainingCorpus.dataset` with two more arrays. "previous_ids"
        `(B, L)` int32 has the token ids of the row that each row continues, or 0 if the row starts
        a text. "starts" `(B,)` bool says whether the row starts a text.
    """
    if micro_batches > 1:
        step, skipped = divmod(start_step, micro_batches)
        size = micro_batches * batch_size
        joined = stream_dataset(corpus, split, size, step, repeat, bidirectional=bidirectional)
        batches = joined.rebatch(batch_size, drop_remainder=True).skip(skipped)
        steps = int(joined.cardinality())
        return prefetch(batches, steps if steps < 0 else steps * micro_batches - skipped)
    shards, paths = corpus.files(split)
    total = sum(shard.rows for shard in shards)
    if bidirectional and batch_size % 2:
        raise UserError(f"batch_size={batch_size} must be even, to read half of the rows backward")
    texts = batch_size // 2 if bidirectional else batch_size
    length = total // texts
    if not length:
        raise UserError(
            f"{corpus.folder} has {total} {plural('row', total)}, fewer than the {texts} texts of "
            "an update: lower batch_size"
        )
    paths = tf.constant(paths)
    firsts = list(itertools.accumulate((shard.rows for shard in shards), initial=0))[:-1]
    firsts = tf.constant(firsts, tf.int64)  # index of the first row of each shard

    def records_of(shard_index: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(tf.gather(paths, shard_index))

    def reversed_records(shard_index: tf.Tensor) -> tf.data.Dataset:
        """Reads the records of a shard in reverse order. The whole shard is read into memory."""
        records = records_of(shard_index).batch(tf.int64.max).get_single_element()
        return tf.data.Dataset.from_tensor_slices(tf.reverse(records, [0]))

    def rows(start: tf.Tensor, count: int, backward: bool) -> tf.data.Dataset:
        """Reads `count` rows from row `start` on, in reverse order if `backward` is True."""
        shard = tf.searchsorted(firsts, [start], side="right", out_type=tf.int64)[0] - 1
        if backward:
            ends = firsts + tf.constant([shard.rows for shard in shards], tf.int64)
            records = tf.data.Dataset.range(shard, -1, -1).flat_map(reversed_records)
            return records.skip(tf.gather(ends, shard) - 1 - start).take(count)
        records = tf.data.Dataset.range(shard, len(shards)).flat_map(records_of)
        return records.skip(start - tf.gather(firsts, shard)).take(count)

    # Begin one batch earlier, because the first batch needs its `previous_ids`.
    first = max(start_step - 1, 0)
    skipped = first % length if repeat else min(first, length)

    def interleaved_rows(backward: bool) -> tf.data.Dataset:
        def text(text_index: tf.Tensor) -> tf.data.Dataset:
            start = (text_index + 1) * length - 1 if backward else text_index * length
            begin = start - skipped if backward else start + skipped
            tail = rows(begin, length - skipped, backward)
            return tail.concatenate(rows(start, length, backward).repeat()) if repeat else tail

        interleaved = tf.data.Dataset.range(texts).interleave(
            text, cycle_length=texts, block_length=1
        )
        return interleaved.batch(texts, drop_remainder=True)

    records = interleaved_rows(backward=False)
    if bidirectional:
        both = tf.data.Dataset.zip(records, interleaved_rows(backward=True))
        records = both.map(lambda *halves: tf.concat(halves, axis=0))

    @tf.autograph.experimental.do_not_convert
    def make_batch(index: tf.Tensor, records: tf.Tensor) -> dict[str, tf.Tensor]:
        features = corpus.record_format.features(corpus.record_format.decode(records))
        if bidirectional:
            backward = tf.range(batch_size) >= texts
            pad_id = corpus.vocabulary.special.pad
            features |= {"token_ids": _reverse_ids(features["token_ids"], backward, pad_id)}
            features["backward"] = backward
        return {**features, "starts": tf.fill([batch_size], index % length == 0)}

    indices = tf.data.Dataset.counter(first, dtype=tf.int64)
    dataset = tf.data.Dataset.zip(indices, records).map(
        make_batch, tf.data.AUTOTUNE, deterministic=True
    )

    def add_previous_ids(last_ids: tf.Tensor, features: dict) -> tuple[tf.Tensor, dict]:
        previous_ids = tf.where(features["starts"][:, None], 0, last_ids)
        return features["token_ids"], {**features, "previous_ids": previous_ids}

    no_ids = tf.zeros((batch_size, corpus.config.sequence_length), tf.int32)
    dataset = dataset.scan(no_ids, add_previous_ids).skip(start_step - first)
    steps = tf.data.INFINITE_CARDINALITY if repeat else max(length - start_step, 0)
    return prefetch(dataset, steps)


def _reverse_ids(token_ids: tf.Tensor, backward: tf.Tensor, pad_id: int) -> tf.Tensor:
    """Reverses the ids between [CLS] and the last [SEP] in some rows."""
    inside = tf.math.count_nonzero(token_ids != pad_id, axis=1) - 2  # (B,)
    inside = tf.where(backward, tf.maximum(inside, 0), 0)
    return tf.concat([token_ids[:, :1], tf.reverse_sequence(token_ids[:, 1:], inside, 1)], axis=1)
