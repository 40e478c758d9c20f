"""A prepared corpus, dealt into batches of one shape."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from macaron_tf.data import storage
from macaron_tf.data.corpus_config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus_files import (
    FORMAT,
    INDEX,
    PROGRESS,
    SPLITS,
    RecordFormat,
    Shard,
    is_whole,
)
from macaron_tf.data.encoder_vocabulary import load_encoder_vocabulary
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.vocabulary import check_vocabulary
from macaron_tf.errors import UserError

# Rows shuffled among each other: 64 Ki rows of 128 two-byte ids are 17 MB, of 512 are 67 MB.
_SHUFFLED_ROWS = 1 << 16


class PretrainingCorpus:
    """Rows of a fixed length in shards; the same seed and step always give the same batch.

    `open` makes one. Rows are shuffled shard by shard, then among the rows of some shards: the
    whole corpus where it has at most `shuffled_rows` rows.

    Args:
        folder: where the shards lie, `gs://` included.
        config: what the corpus was made of.
        vocabulary: what it was cut with.
        shards: of each split.
        shuffled_rows: greatest number of rows, about, that are shuffled among each other.
    """

    def __init__(
        self,
        folder: str,
        config: CorpusConfig,
        vocabulary: PieceVocabulary,
        shards: dict[str, tuple[Shard, ...]],
        shuffled_rows: int = _SHUFFLED_ROWS,
    ):
        self.folder = folder
        self.config = config
        self.vocabulary = vocabulary
        self.shards = shards
        self.shuffled_rows = shuffled_rows
        self.record = RecordFormat.of(config.sequence_length, config.next_sentence, vocabulary.size)

    @classmethod
    def open(cls, folder: str | os.PathLike, verify: bool | None = None) -> "PretrainingCorpus":
        """Opens a folder that `prepare` filled.

        Args:
            folder: the folder, `gs://` included.
            verify: compare the SHA-256 of every shard, about a second a gigabyte, not the sizes
                alone; None does so on disk, and not in a bucket.

        Returns:
            The corpus.

        Raises:
            UserError: no corpus, one that is not finished, a missing or damaged file, or a
                vocabulary that is not the one it was made with.
        """
        folder = os.fspath(folder).rstrip("/") or "/"
        index = read_index(folder)
        verify = not storage.is_remote(folder) if verify is None else verify
        vocabulary = load_encoder_vocabulary(folder)
        check_vocabulary(index["vocabulary"], vocabulary, storage.join(folder, INDEX))
        corpus = cls(folder, index["config"], vocabulary, index["shards"])
        for shard in corpus.shards["train"] + corpus.shards["validation"]:
            if not is_whole(folder, shard, corpus.record, verify):
                raise UserError(
                    f"{storage.join(folder, shard.name)} is missing or damaged: "
                    f"remove {storage.join(folder, INDEX)} and prepare the corpus again"
                )
        return corpus

    @property
    def sequence_length(self) -> int:
        """L of every row."""
        return self.config.sequence_length

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over vocabulary, format and all shards: what a model is trained on."""
        record = [
            FORMAT,
            self.vocabulary.hash,
            dataclasses.asdict(self.record),
            {split: [shard.sha256 for shard in self.shards[split]] for split in SPLITS},
        ]
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    def rows(self, split: str = "train") -> int:
        """Number of rows of a split.

        Args:
            split: "train" or "validation".

        Raises:
            UserError: no such split.
        """
        if split not in self.shards:
            raise UserError(f"a corpus has no split {split!r}: it has {', '.join(SPLITS)}")
        return sum(shard.rows for shard in self.shards[split])

    def summary(self) -> str:
        """One line for the log: rows, lengths, what a row is."""
        kind = "sentence pairs" if self.config.next_sentence else "running text"
        return (
            f"{self.rows('train'):,} training and {self.rows('validation'):,} validation rows of "
            f"{self.sequence_length} ids, {kind}, {self.vocabulary.pieces:,} pieces"
        )

    def dataset(
        self,
        split: str,
        batch_size: int,
        seed: int | None = 0,
        start_step: int = 0,
        repeat: bool = True,
        drop_remainder: bool = True,
    ) -> tf.data.Dataset:
        """The batches from a global step on; of those before it at most some shards are read.

        Args:
            split: "train" or "validation".
            batch_size: B.
            seed: decides the order of each epoch; None takes the rows in the order of the files.
            start_step: number of the first batch.
            repeat: go on with the next epochs for ever, a batch across two of them included, or
                end with the first one.
            drop_remainder: leave out a last batch that is not full; otherwise B is None in the
                dataset's specification.

        Returns:
            Dataset of {"token_ids": (B, L) int32, "segment_ids": (B, L) int32} and, of pairs,
            "next_sentence" (B,) int32; its cardinality is known.

        Raises:
            UserError: no such split, no row in it, or fewer than a batch where none may be
                smaller.
        """
        rows = self.rows(split)
        if batch_size < 1 or start_step < 0:
            raise UserError(
                f"batch_size is {batch_size} and start_step {start_step}: the one must be 1 or "
                "more, the other 0 or more"
            )
        if not rows or (not repeat and drop_remainder and rows < batch_size):
            raise UserError(
                f"the split {split!r} of {self.folder} has {rows} rows, too few for a batch of "
                f"{batch_size}: prepare more text or take a smaller batch"
            )
        epoch, offset = divmod(start_step * batch_size, rows)
        if repeat:
            steps = tf.data.INFINITE_CARDINALITY
        else:
            left = max(rows - start_step * batch_size, 0)
            steps = left // batch_size if drop_remainder else -(-left // batch_size)
            if not steps:
                epoch, offset = 0, rows - 1  # a dataset of this structure, of which none is taken
        groups = tf.data.Dataset.from_generator(
            lambda: self._groups(split, seed, epoch, offset, repeat),
            output_signature=(
                tf.TensorSpec([None], tf.string, name="paths"),
                tf.TensorSpec([None], tf.int64, name="order"),
            ),
        )
        # The next group is read while this one is used.
        records = groups.map(_shuffled_records, num_parallel_calls=1).prefetch(1).unbatch()
        batches = records.batch(batch_size, drop_remainder=drop_remainder)
        dataset = batches.map(
            self.record.decoded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        if not steps:
            dataset = dataset.take(0)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
        return dataset.prefetch(tf.data.AUTOTUNE)

    def _groups(
        self, split: str, seed: int | None, epoch: int, offset: int, repeat: bool
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Paths of some shards and the order in which their rows are taken, for ever or once."""
        while True:
            for shards, rng in self._epoch(split, seed, epoch):
                count = sum(shard.rows for shard in shards)
                order = np.arange(count) if rng is None else rng.permutation(count)
                if offset < count:
                    paths = [storage.join(self.folder, shard.name) for shard in shards]
                    yield paths, order[offset:]
                offset = max(offset - count, 0)
            if not repeat:
                return
            epoch, offset = epoch + 1, 0

    def _epoch(self, split: str, seed: int | None, epoch: int):
        """The groups of an epoch, each with its generator of random numbers."""
        shards = [shard for shard in self.shards[split] if shard.rows]
        split_number = SPLITS.index(split)
        if seed is not None:
            order = np.random.default_rng([seed, split_number, epoch]).permutation(len(shards))
            shards = [shards[i] for i in order]
        group: list[Shard] = []
        for number, shard in enumerate(shards):
            group.append(shard)
            following = shards[number + 1].rows if number + 1 < len(shards) else None
            held = sum(member.rows for member in group)
            if following is None or held + following > self.shuffled_rows:
                rng = None
                if seed is not None:
                    rng = np.random.default_rng([seed, split_number, epoch, number])
                yield group, rng
                group = []


def read_index(folder: str) -> dict:
    """Reads what a prepared folder says of itself.

    Args:
        folder: the folder.

    Returns:
        {"config": CorpusConfig, "vocabulary": hash, "settings": dict, "shards": dict of tuples}.

    Raises:
        UserError: there is no finished corpus, or its index is damaged.
    """
    path = storage.join(folder, INDEX)
    if not storage.exists(path):
        if storage.exists(storage.join(folder, PROGRESS)):
            raise UserError(
                f"the corpus in {folder} is not finished: give the command that prepares it "
                "again, and it goes on"
            )
        raise UserError(f"no corpus in {folder}: there is no {INDEX}; prepare one there")
    try:
        record = json.loads(storage.read_bytes(path))
        if record["format"] != FORMAT:
            raise UserError(
                f"{path} is of format {record['format']}, not {FORMAT}: prepare the corpus again"
            )
        settings = record["settings"]
        config = dict(settings["config"])
        config["sources"] = tuple(CorpusSource(**source) for source in config["sources"])
        return {
            "config": CorpusConfig(**config),
            "vocabulary": settings["vocabulary"],
            "settings": settings,
            "shards": {
                split: tuple(Shard(**shard) for shard in record["shards"][split])
                for split in SPLITS
            },
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: remove it and prepare the corpus again") from error


def _shuffled_records(paths: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """(len(order),) records of the files, in the given order."""
    records = tf.data.TFRecordDataset(paths).batch(tf.int64.max).get_single_element()
    return tf.gather(records, order)
