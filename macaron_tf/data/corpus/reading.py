"""Batches of rows from a prepared corpus. The seed and the step determine each batch."""

import dataclasses
import functools
import hashlib
import itertools
import json
import os

import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.batches import prefetch
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.order import ALGORITHM, RowOrder
from macaron_tf.data.corpus.shards import (
    FORMAT,
    INDEX,
    SPLITS,
    RecordFormat,
    Shard,
    check_shards,
    read_index,
)
from macaron_tf.errors import UserError, check_count, plural
from macaron_tf.io import paths as storage
from macaron_tf.text import check_vocabulary, load_encoder_vocabulary
from macaron_tf.text.base import PieceVocabulary

# Number of rows that are shuffled together. With ids of two bytes, 65,536 rows of 128 ids take
# 17 MB, and rows of 512 ids take 67 MB.
_SHUFFLED_ROWS = 1 << 16


@dataclasses.dataclass(eq=False)
class PretrainingCorpus:
    """A prepared corpus of rows of a fixed length. The seed and the step determine each batch.

    `PretrainingCorpus.open` opens a corpus. In each epoch, the shards are shuffled, and the rows
    are then shuffled within groups of shards (see `RowOrder`).

    Attributes:
        shuffled_rows: maximum number of rows that are shuffled together, but at least one shard.
        first_rows: dict mapping the name of each shard to the index of its first row in the split
            of the whole corpus, of which this object may be a part.
    """

    folder: epath.Path
    config: CorpusConfig
    vocabulary: PieceVocabulary
    shards: dict[str, tuple[Shard, ...]]
    first_rows: dict[str, int]
    shuffled_rows: int = _SHUFFLED_ROWS

    @classmethod
    def open(cls, folder: str | os.PathLike, verify: bool | None = None) -> "PretrainingCorpus":
        """Opens a corpus that `writing.prepare` wrote.

        Args:
            verify: whether to check the SHA-256 of every shard in addition to its size. Computing
                SHA-256 takes about a second per gigabyte. `None` means True for a local folder and
                False for a bucket.
        """
        folder = storage.as_path(folder)
        config, settings, state = read_index(folder)
        verify = not storage.is_remote(folder) if verify is None else verify
        vocabulary = load_encoder_vocabulary(folder)
        remedy = f"restore the vocabulary files in {folder}, or prepare the corpus again"
        check_vocabulary(settings["vocabulary"], vocabulary.hash, folder / INDEX, remedy)
        shards = {"train": state.train, "validation": state.validation}
        first_rows = {}
        for split in shards.values():
            counts = itertools.accumulate((shard.rows for shard in split), initial=0)
            first_rows |= zip((shard.name for shard in split), counts, strict=False)
        corpus = cls(folder, config, vocabulary, shards, first_rows)
        corpus._check(verify)
        return corpus

    @functools.cached_property
    def record_format(self) -> RecordFormat:
        """Binary layout of the records in the shards."""
        vocabulary = self.vocabulary
        return RecordFormat.of(self.config, vocabulary.size, vocabulary.special.pad)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the vocabulary, the format and the files in `shards`."""
        digests = {split: [shard.sha256 for shard in self.shards[split]] for split in SPLITS}
        layout = dataclasses.asdict(self.record_format)
        record = [FORMAT, self.vocabulary.hash, layout, digests]
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    def rows(self, split: str = "train") -> int:
        """Returns the number of rows in a split."""
        if split not in self.shards:
            raise UserError(f"a corpus has no split {split!r}: give one of {', '.join(SPLITS)}")
        return sum(shard.rows for shard in self.shards[split])

    def summary(self) -> str:
        """Returns row counts, row length, task, languages and vocabulary size in one line."""
        content = self.config.pairs.replace("_", " ") if self.config.paired else "running text"
        if self.config.languages:
            content += f" in {', '.join(self.config.languages)}"
        return (
            f"{self.rows('train'):,} training and {self.rows('validation'):,} validation rows of "
            f"{self.config.sequence_length} ids, {content}, {self.vocabulary.pieces:,} pieces"
        )

    def shard(self, index: int, count: int) -> "PretrainingCorpus":
        """Returns the part of the corpus for one of several training processes.

        A part has some of the training files and all validation files, and its fingerprint differs
        from the fingerprint of the corpus. Training files are assigned in descending order of size,
        each to the process with the fewest rows so far. Each process counts its own epochs, so that
        a process with fewer rows repeats its rows sooner. For dynamic masking, each process should
        draw its masks with `process_seed`. With a common seed, all processes would mask the same
        positions.
        """
        shards, _ = self.files("train")
        if len(shards) < count:
            raise UserError(
                f"{self.folder} has {len(shards)} training {plural('file', len(shards))}, fewer "
                f"than {count} processes: lower corpus.rows_per_shard, or leave --own-shards out"
            )
        parts: list[list[Shard]] = [[] for _ in range(count)]
        row_counts = [0] * count
        for shard in sorted(shards, key=lambda shard: -shard.rows):
            process = row_counts.index(min(row_counts))
            parts[process].append(shard)
            row_counts[process] += shard.rows
        return dataclasses.replace(self, shards={**self.shards, "train": tuple(parts[index])})

    def shard_error(self, error: tf.errors.OpError) -> UserError | None:
        """Converts an error that TensorFlow raised while reading the corpus to a `UserError`.

        This method checks all shards, because TensorFlow's error often does not name the file.

        Returns:
            The `UserError`, or `None` if reading the corpus did not cause `error`.
        """
        # The file sizes show all damage except changed bytes, which make TFRecord's checksums fail.
        try:
            self._check(verify="corrupted record" in error.message)
        except UserError as damage:
            return damage
        if str(storage.absolute(self.folder)) not in error.message:
            return None
        return UserError(f"the corpus in {self.folder} cannot be read ({storage.reason(error)})")

    def dataset(
        self,
        split: str,
        batch_size: int,
        seed: int | None = 0,
        start_step: int = 0,
        repeat: bool = True,
        drop_remainder: bool = True,
        numbered: bool = False,
    ) -> tf.data.Dataset:
        """Returns the batches of a split from `start_step` on.

        Of the rows before `start_step`, the dataset reads only the rows in the group of shards to
        which the first row of the first batch belongs.

        Args:
            seed: seed of the row order; `None` means the order of the files.
            repeat: whether to continue with further epochs forever. A batch may then contain rows
                of two epochs. If False, the dataset ends with epoch 0.
            drop_remainder: whether to leave out a last batch of fewer than B rows. If False, the
                batch dimension of the dataset's `element_spec` is `None`.
            numbered: whether batches also have "row_number" `(B,)` int64, the index of each row in
                the unshuffled split, and "epoch" `(B,)` int64. Masks that are seeded by these two
                arrays do not depend on the batch size.

        Returns:
            Dataset of known cardinality. Batches have the arrays of `RecordFormat.features`.
        """
        rows = self.rows(split)
        check_count("batch_size", batch_size)
        check_count("start_step", start_step, minimum=0)
        if not rows:
            raise UserError(f"the split {split!r} of {self.folder} has no rows: give more text")
        if not repeat and drop_remainder and rows < batch_size:
            raise UserError(f"{self.folder} has {rows} rows in {split!r}: lower batch_size")
        start_row, steps = start_step * batch_size, tf.data.INFINITE_CARDINALITY
        if not repeat:
            rounding = 0 if drop_remainder else batch_size - 1
            steps = max(rows - start_row + rounding, 0) // batch_size
        shards, paths = self.files(split)
        order = RowOrder(
            tuple(paths),
            tuple(shard.rows for shard in shards),
            tuple(self.first_rows[shard.name] for shard in shards),
            self.shuffled_rows,
            None if seed is None else (seed, SPLITS.index(split)),
        )
        record_format = self.record_format
        tables = order.batches(start_row, batch_size, record_format.decode, repeat, drop_remainder)

        @tf.autograph.experimental.do_not_convert
        def features(table: tf.Tensor, row_number: tf.Tensor, epoch: tf.Tensor):
            extra = {"row_number": row_number, "epoch": epoch} if numbered else {}
            return {**record_format.features(table), **extra}

        dataset = tables.map(features, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        # INFINITE_CARDINALITY is -1, and `take(-1)` takes all batches.
        return prefetch(dataset.take(steps), steps)

    def files(self, split: str) -> tuple[list[Shard], list[str]]:
        """Returns the non-empty shards of a split, and their absolute paths."""
        folder = storage.absolute(self.folder)
        shards = [shard for shard in self.shards[split] if shard.rows]
        return shards, [str(folder / shard.name) for shard in shards]

    def _check(self, verify: bool) -> None:
        shards = itertools.chain(*self.shards.values())
        mend = f"remove {self.folder / INDEX} and prepare the corpus again, or restore the file"
        check_shards(self.folder, shards, self.record_format.file_bytes, verify, mend)


def with_documents(rows: tf.data.Dataset, sep_id: int) -> tf.data.Dataset:
    """Adds "document_ids" `(B, L)` int32 to batches: the index of each token's document in its row.

    The first document of a row has the index 0. A [SEP] is the last token of a document. Padding
    counts as one more document.
    """

    @tf.autograph.experimental.do_not_convert
    def add(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        ends = tf.cast(batch["token_ids"] == sep_id, tf.int32)
        return {**batch, "document_ids": tf.cumsum(ends, axis=1, exclusive=True)}

    return rows.map(add, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def process_seed(seed: int, process: int) -> int:
    """Returns an independent seed for one of several training processes.

    Process 0 gets `seed`. Every other process gets 63 bits from a child of NumPy's
    `SeedSequence(seed)`. The index of the process is the child's spawn key.
    """
    if not process:
        return seed
    sequence = np.random.SeedSequence(seed, spawn_key=(process,))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


_DRAWS_PER_CHUNK = 1 << 14  # number of batches whose languages are drawn at once


def language_batches(
    corpus: PretrainingCorpus,
    batch_size: int,
    seed: int = 0,
    start_step: int = 0,
    per_update: int = 1,
    numbered: bool = False,
) -> tf.data.Dataset:
    """Returns an infinite dataset of training batches, each in one language or one language pair.

    Language i is drawn with a probability proportional to p_i^alpha, where p_i is the share of
    language i in the rows, and alpha is `batch_alpha` of the corpus. If the corpus also has
    translation pairs, updates on running text and on translation pairs alternate, and language
    pairs are drawn by the same rule. Only the seed and the index of a batch determine its language,
    so that a resumed run reads the same batches as a run that was not stopped.

    Args:
        per_update: number of batches per update. The batches of one update are either all running
            text or all translation pairs.

    References: Conneau and Lample 2019 (XLM), sections 3.1 to 3.5.
    """
    check_count("start_step", start_step, minimum=0)
    files: dict[tuple[int, ...], list[Shard]] = {}
    for shard in corpus.files("train")[0]:
        files.setdefault(shard.languages, []).append(shard)
    rows = np.array([sum(shard.rows for shard in shards) for shards in files.values()])
    is_pair = np.array([len(set(languages)) > 1 for languages in files])
    masks = [mask for mask in (~is_pair, is_pair) if mask.any()]
    alpha = corpus.config.batch_alpha
    powers = [mask * (rows / rows[mask].sum()) ** alpha for mask in masks]
    bounds = np.cumsum(powers, axis=1)  # (masks, languages)
    bounds = tf.constant(bounds / bounds[:, -1:], tf.float64)

    @tf.autograph.experimental.do_not_convert
    def draw_indices(chunk_index: tf.Tensor) -> tf.Tensor:
        """Draws an index into `files` for each of the `_DRAWS_PER_CHUNK` batches of a chunk."""
        first = chunk_index * _DRAWS_PER_CHUNK
        batch_indices = tf.range(_DRAWS_PER_CHUNK, dtype=tf.int64) + first
        # The row orders of the splits are seeded by [seed, 0] and [seed, 1].
        key = tf.random.experimental.stateless_fold_in(
            tf.constant([seed, len(SPLITS)], tf.int64), chunk_index, alg=ALGORITHM
        )
        draws = tf.random.stateless_uniform(
            [_DRAWS_PER_CHUNK, 1], key, dtype=tf.float64, alg=ALGORITHM
        )
        # (_DRAWS_PER_CHUNK, languages)
        is_below = tf.gather(bounds, batch_indices // per_update % len(masks)) <= draws
        return tf.reduce_sum(tf.cast(is_below, tf.int64), axis=1)

    chunk_index, offset = divmod(start_step, _DRAWS_PER_CHUNK)
    counts = np.zeros(len(files), np.int64)  # number of batches per language before `start_step`
    with tf.device("CPU"):
        for index in range(chunk_index + 1):
            indices = draw_indices(tf.constant(index, tf.int64)).numpy()
            indices = indices[:offset] if index == chunk_index else indices
            counts += np.bincount(indices, minlength=len(files))
    chunks = tf.data.Dataset.range(chunk_index, tf.int64.max)
    choices = chunks.map(draw_indices).unbatch().skip(offset)
    batches, shuffled_rows = [], max(1, corpus.shuffled_rows // len(files))
    for language_shards, count in zip(files.values(), counts, strict=True):
        shards = {**corpus.shards, "train": tuple(language_shards)}
        part = dataclasses.replace(corpus, shards=shards, shuffled_rows=shuffled_rows)
        batches.append(part.dataset("train", batch_size, seed, int(count), numbered=numbered))
    chosen = tf.data.Dataset.choose_from_datasets(batches, choices)
    return prefetch(chosen, tf.data.INFINITE_CARDINALITY)
