"""Batches of rows from a prepared corpus, in a seeded order.

Only TensorFlow operations compute the order, so that a tf.data service can read the rows in another
process.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.batches import prefetch
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.packing import RecordFormat
from macaron_tf.errors import UserError, plural
from macaron_tf.io import paths as storage
from macaron_tf.text import check_vocabulary, load_encoder_vocabulary
from macaron_tf.text.base import PieceVocabulary

FORMAT = 2  # increase this number if the layout or the meaning of the files changes
INDEX = "corpus.json"  # a folder with this file is a finished corpus
PROGRESS = "progress.json"  # settings and state of an unfinished corpus
SPLITS = ("train", "validation")

# A fixed algorithm draws the same numbers on all devices. TensorFlow's default does not.
_ALGORITHM = "philox"
# Number of rows that are shuffled together. With ids of two bytes, 65,536 rows of 128 ids take
# 17 MB, and rows of 512 ids take 67 MB.
_SHUFFLED_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Shard:
    """A TFRecord file of rows in the folder of a corpus.

    Attributes:
        name: name of the file.
        rows: number of rows in the file.
        sha256: SHA-256 (hex) of the file.
        languages: language ids of the first and second half of all rows in the file. The two ids
            differ only for translation pairs. The tuple is empty if the corpus has no
            `batch_alpha`.
    """

    name: str
    rows: int
    sha256: str
    languages: tuple[int, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "languages", tuple(self.languages))  # a list if read from JSON


def check_shards(
    folder: epath.Path,
    shards: Iterable[Shard],
    record_format: RecordFormat,
    verify: bool,
    mend: str,
) -> None:
    """Raises a UserError if a shard is missing or has the wrong size.

    Args:
        folder: folder of the corpus.
        shards: shards of the corpus in `folder`.
        record_format: layout of the rows.
        verify: whether to check the SHA-256 of each shard as well.
        mend: end of the error message, which says what the user can do.
    """
    for shard in shards:
        path = folder / shard.name
        try:
            is_intact = storage.size(path) == shard.rows * record_format.file_bytes
            is_intact = is_intact and (not verify or storage.file_digest(path) == shard.sha256)
        except tf.errors.OpError:
            is_intact = False
        if not is_intact:
            raise UserError(f"{path} is missing or damaged: {mend}")


@dataclasses.dataclass(frozen=True)
class CorpusState:
    """The state of a corpus after its last complete shard, from which preparation can resume.

    Attributes:
        documents: number of documents that were packed.
        counted: sum of `PackedBlock.counted`, the rows among which validation rows are chosen.
        tokens: number of ids without padding.
        train: training files.
        validation: validation files. While a corpus of running text is unfinished, each block has
            its own file. A corpus of segment pairs has validation files only when it is finished.
    """

    documents: int = 0
    counted: int = 0
    tokens: int = 0
    train: tuple[Shard, ...] = ()
    validation: tuple[Shard, ...] = ()

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.train + self.validation)


def read_record(path: epath.Path, mend: str) -> tuple[CorpusConfig, dict[str, Any], CorpusState]:
    """Reads the record of a corpus.

    Args:
        path: path of the record, a JSON file.
        mend: end of the error message, which says what the user can do.

    Returns:
        The configuration of the corpus, all its settings (see `writing.corpus_settings`), and its
        state.

    Raises:
        UserError: the file is damaged or has another format.
    """
    with storage.refuse_damage(path, mend):
        record = storage.read_json(path, mend=mend, state=dict, settings=dict)
        if record["format"] != FORMAT:
            raise UserError(
                f"{path} has corpus format {record['format']}, but this version of the package "
                f"reads format {FORMAT}: {mend}"
            )
        state, settings = record["state"], record["settings"]
        shards = {split: tuple(Shard(**shard) for shard in state[split]) for split in SPLITS}
        return CorpusConfig(**settings["config"]), settings, CorpusState(**{**state, **shards})


def read_index(folder: epath.Path) -> tuple[CorpusConfig, dict[str, Any], CorpusState]:
    """Reads `corpus.json`, the record of a finished corpus.

    Raises:
        UserError: the folder has no finished corpus, or the record is damaged.
    """
    path = folder / INDEX
    if not path.exists():
        if (folder / PROGRESS).exists():
            raise UserError(
                f"the corpus in {folder} is not finished: run the command that prepares the "
                "corpus again"
            )
        raise UserError(
            f"{folder} contains no corpus, because {INDEX} is missing: prepare a corpus in this "
            "folder"
        )
    return read_record(path, "remove the file and prepare the corpus again")


@dataclasses.dataclass(frozen=True)
class RowOrder:
    """Seeded order of the rows of a corpus, with a new order in each epoch.

    In each epoch, the shards are shuffled and divided into groups of consecutive shards. The rows
    are then shuffled within each group. The shard counts of any two groups differ by at most one.

    Attributes:
        paths: paths of the non-empty shards.
        rows: number of rows in each shard.
        first_rows: index in the corpus of the first row of each shard.
        shuffled_rows: maximum number of rows in a group. If any shard has more rows, every shard
            forms a group of its own.
        seed: two integers that seed the order. `None` means the order of the files.
    """

    paths: tuple[str, ...]
    rows: tuple[int, ...]
    first_rows: tuple[int, ...]
    shuffled_rows: int
    seed: tuple[int, int] | None

    @functools.cached_property
    def group_count(self) -> int:
        """Number of groups of shards in an epoch."""
        shards = max(1, self.shuffled_rows // max(self.rows))
        return -(-len(self.paths) // shards)

    def batches(
        self,
        start_row: int,
        batch_size: int,
        decode: Callable[[tf.Tensor], tf.Tensor],
        repeat: bool,
        drop_remainder: bool,
    ) -> tf.data.Dataset:
        """Returns batches of the rows from `start_row` on.

        Of the rows before `start_row`, the dataset reads only the rows in the group of `start_row`.

        Args:
            start_row: index of the first row, counted over all epochs.
            batch_size: number of rows per batch, B.
            decode: function from N records to a tensor `(N, ...)`. The function is called once per
                group, before shuffling, because shuffling and batching records as strings takes
                twice as long.
            repeat: whether to continue with further epochs forever.
            drop_remainder: whether to leave out a last batch of fewer than B rows.

        Returns:
            Dataset of the decoded rows `(B, ...)`, their indices in the corpus `(B,)` int64, and
            their epochs `(B,)` int64. Reading raises a tf.errors.OpError if a shard is missing or
            damaged or has an unexpected number of records.
        """
        epoch, offset = divmod(start_row, sum(self.rows))
        with tf.device("CPU"):
            order = self._shards(tf.constant(epoch, tf.int64)).numpy()
        starts = [self._first_shard(group) for group in range(self.group_count)]
        sizes = np.add.reduceat(np.array(self.rows)[order], starts)  # (groups,)
        ends = np.cumsum(sizes)
        group = int(np.searchsorted(ends, offset, side="right"))
        first_group = epoch * self.group_count + group
        skipped = offset - int(ends[group] - sizes[group])  # number of rows to skip in this group
        end = tf.int64.max if repeat else (epoch + 1) * self.group_count
        group_indices = tf.data.Dataset.range(first_group, end)

        @tf.autograph.experimental.do_not_convert
        def group_rows(group_index: tf.Tensor) -> tuple[tf.Tensor, ...]:
            start = tf.where(group_index == first_group, skipped, 0)
            return tuple(column[start:] for column in self._group(group_index, decode))

        # The prefetch reads the next group while the model consumes this group.
        groups = group_indices.map(group_rows, num_parallel_calls=1).prefetch(1)
        return groups.rebatch(batch_size, drop_remainder)

    def _group(
        self, group_index: tf.Tensor, decode: Callable[[tf.Tensor], tf.Tensor]
    ) -> tuple[tf.Tensor, ...]:
        """Reads and shuffles a group.

        Args:
            group_index: index of the group, counted over all epochs.
            decode: function from N records to a tensor `(N, ...)`.

        Returns:
            The rows `(N, ...)`, their indices in the corpus and their epochs, both `(N,)` int64.
        """
        epoch, group = group_index // self.group_count, group_index % self.group_count
        members = self._shards(epoch)[self._first_shard(group) : self._first_shard(group + 1)]
        paths = tf.gather(tf.constant(self.paths), members)
        counts = tf.gather(tf.constant(self.rows, tf.int64), members)
        expected = tf.reduce_sum(counts)
        records = tf.data.TFRecordDataset(paths).batch(tf.int64.max).get_single_element()
        # TFRecord does not notice if a file is cut off between two records.
        record_count = tf.size(records, tf.int64)
        with tf.control_dependencies([tf.debugging.assert_equal(record_count, expected)]):
            rows = decode(records)
        # For each shard, the index of its first row in the corpus minus its index in the group.
        shifts = tf.gather(tf.constant(self.first_rows, tf.int64), members)
        shifts -= tf.cumsum(counts, exclusive=True)
        row_numbers = tf.range(expected) + tf.repeat(shifts, counts)  # (N,)
        epochs = tf.fill([expected], epoch)
        if self.seed is None:
            return rows, row_numbers, epochs
        order = _permutation(expected, self.seed, epoch, group)
        return tf.gather(rows, order), tf.gather(row_numbers, order), epochs

    def _first_shard(self, group):
        """Returns the position of a group's first shard in the shard order of an epoch."""
        return group * len(self.paths) // self.group_count

    def _shards(self, epoch: tf.Tensor) -> tf.Tensor:
        """Returns the indices of all S shards in the reading order of an epoch, `(S,)` int64."""
        if self.seed is None:
            return tf.range(len(self.paths), dtype=tf.int64)
        # No group has the index -1, so that the seed differs from the seeds of all groups.
        return _permutation(tf.constant(len(self.paths), tf.int64), self.seed, epoch, -1)


def _permutation(count: tf.Tensor, seed: tuple[int, int], *integers: tf.Tensor | int) -> tf.Tensor:
    """Draws a permutation of 0 to count - 1, `(count,)` int64.

    Args:
        count: number of elements, a scalar int64.
        seed: two integers.
        integers: further integers, which are folded into the seed.
    """
    seed = tf.constant(seed, tf.int64)
    for integer in integers:
        integer = tf.cast(integer, tf.int64)
        seed = tf.random.experimental.stateless_fold_in(seed, integer, alg=_ALGORITHM)
    return tf.random.experimental.stateless_shuffle(
        tf.range(count, dtype=tf.int64), seed, alg=_ALGORITHM
    )


@dataclasses.dataclass(eq=False)
class PretrainingCorpus:
    """A prepared corpus of rows of a fixed length. The seed and the step determine each batch.

    `PretrainingCorpus.open` opens a corpus. In each epoch, the shards are shuffled, and the rows
    are then shuffled within groups of shards (see `RowOrder`). If a corpus has fewer rows than
    `shuffled_rows`, all of its rows are shuffled together.

    Attributes:
        folder: folder of the shards, on disk or in a bucket (`gs://`).
        config: settings of the corpus.
        vocabulary: vocabulary of the token ids.
        shards: dict mapping each split to its shards.
        shuffled_rows: approximate number of rows that are shuffled together.
        all_shards: dict mapping each split to all shards of the corpus, if this object is only a
            part of the corpus. Row indices then count the rows of all shards. `None` means that
            this object is the whole corpus.
    """

    folder: epath.Path
    config: CorpusConfig
    vocabulary: PieceVocabulary
    shards: dict[str, tuple[Shard, ...]]
    shuffled_rows: int = _SHUFFLED_ROWS
    all_shards: dict[str, tuple[Shard, ...]] | None = None

    @classmethod
    def open(cls, folder: str | os.PathLike, verify: bool | None = None) -> "PretrainingCorpus":
        """Opens a corpus that `writing.prepare` wrote.

        Args:
            folder: folder of the corpus.
            verify: whether to check the SHA-256 of every shard in addition to its size. Computing
                SHA-256 takes about a second per gigabyte. `None` means True for a local folder and
                False for a bucket.

        Raises:
            UserError: the folder has no finished corpus, or a file is missing or damaged.
        """
        folder = storage.as_path(folder)
        config, settings, state = read_index(folder)
        verify = not storage.is_remote(folder) if verify is None else verify
        vocabulary = load_encoder_vocabulary(folder)
        check_vocabulary(settings["vocabulary"], vocabulary.hash, folder / INDEX)
        shards = {"train": state.train, "validation": state.validation}
        corpus = cls(folder, config, vocabulary, shards)
        corpus._check(verify)
        return corpus

    @functools.cached_property
    def record_format(self) -> RecordFormat:
        """Binary layout of the records in the shards."""
        return RecordFormat.of(self.config, self.vocabulary.size)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the vocabulary, the format and all shards."""
        record = [
            FORMAT,
            self.vocabulary.hash,
            dataclasses.asdict(self.record_format),
            {split: [shard.sha256 for shard in self.shards[split]] for split in SPLITS},
        ]
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    def rows(self, split: str = "train") -> int:
        """Returns the number of rows in a split.

        Raises:
            UserError: `split` is neither "train" nor "validation".
        """
        if split not in self.shards:
            raise UserError(f"a corpus has no split {split!r}: give one of {', '.join(SPLITS)}")
        return sum(shard.rows for shard in self.shards[split])

    def summary(self) -> str:
        """Returns row counts, row length, pre-training task and vocabulary size in one line."""
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
        a process with fewer rows repeats its rows sooner. Each process should draw its masks with
        `process_seed`. With a common seed, all processes would mask the same positions.

        Args:
            index: index of the process.
            count: number of processes.

        Raises:
            UserError: there are fewer training files than processes.
            ValueError: `index` is not between 0 and `count` - 1.
        """
        if not 0 <= index < count:
            raise ValueError(
                f"process index {index} is out of range: pass an index from 0 to {count - 1}"
            )
        shards, _ = self.files("train")
        if len(shards) < count:
            raise UserError(
                f"{self.folder} has {len(shards)} training {plural('file', len(shards))}, "
                f"which is fewer than {count} processes: prepare the corpus again with a smaller "
                "rows_per_shard, or use fewer processes"
            )
        parts: list[list[Shard]] = [[] for _ in range(count)]
        row_counts = [0] * count
        for shard in sorted(shards, key=lambda shard: -shard.rows):
            process = row_counts.index(min(row_counts))
            parts[process].append(shard)
            row_counts[process] += shard.rows
        part = {**self.shards, "train": tuple(parts[index])}
        return dataclasses.replace(self, shards=part, all_shards=self.all_shards or self.shards)

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
        return UserError(
            f"the corpus in {self.folder} cannot be read ({storage.reason(error)}): check the "
            "folder and its permissions, then run the same command again"
        )

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

        Of the rows before `start_step`, the dataset reads only rows in the same group of shards.

        Args:
            split: "train" or "validation".
            batch_size: number of rows per batch, B.
            seed: seed of the row order; `None` means the order of the files.
            start_step: index of the first batch, counted over all epochs.
            repeat: whether to continue with further epochs forever. A batch may then contain rows
                of two epochs.
            drop_remainder: whether to leave out a last batch of fewer than B rows. If False, the
                batch dimension of the dataset's `element_spec` is `None`.
            numbered: whether batches also have "row_number" `(B,)` int64, the index of each row in
                the unshuffled split, and "epoch" `(B,)` int64. Masks that are seeded by these two
                arrays do not depend on the batch size.

        Returns:
            Dataset of known cardinality. Batches have the arrays of `RecordFormat.features`.

        Raises:
            UserError: the split does not exist or has too few rows for a batch, or an argument is
                negative.
        """
        rows = self.rows(split)
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}, but must be at least 1: raise batch_size")
        if start_step < 0:
            raise UserError(f"start_step is {start_step}, but must be at least 0: raise start_step")
        if not rows or (not repeat and drop_remainder and rows < batch_size):
            raise UserError(
                f"the split {split!r} of {self.folder} has {rows} {plural('row', rows)}, which "
                f"is too few for batch_size={batch_size}: prepare more text, or give a smaller "
                "batch_size"
            )
        start_row, steps = start_step * batch_size, tf.data.INFINITE_CARDINALITY
        if not repeat:
            remaining_rows = max(rows - start_row, 0)
            steps = (
                remaining_rows // batch_size if drop_remainder else -(-remaining_rows // batch_size)
            )
        shards, paths = self.files(split)
        all_shards = (self.all_shards or self.shards)[split]
        counts = itertools.accumulate((shard.rows for shard in all_shards), initial=0)
        first_rows = {shard.name: count for shard, count in zip(all_shards, counts, strict=False)}
        order = RowOrder(
            tuple(paths),
            tuple(shard.rows for shard in shards),
            tuple(first_rows[shard.name] for shard in shards),
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
        mend = f"remove {self.folder / INDEX} and prepare the corpus again, or put it back"
        check_shards(self.folder, shards, self.record_format, verify, mend)


def with_documents(rows: tf.data.Dataset, sep_id: int) -> tf.data.Dataset:
    """Adds "document_ids" `(B, L)` int32 to batches: the index in the row of each token's document.

    The first document of a row has the index 0. A [SEP] is the last token of a document.

    Args:
        rows: dataset of batches with "token_ids" `(B, L)`.
        sep_id: token id of [SEP].
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
    so that a resumed run reads the same batches.

    Args:
        corpus: corpus with `batch_alpha`.
        batch_size, seed, start_step, numbered: arguments of `PretrainingCorpus.dataset`.
        per_update: number of batches per update. The batches of one update are either all running
            text or all translation pairs.

    References: Conneau and Lample 2019 (XLM), sections 3.1 to 3.5.
    """
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
            tf.constant([seed, len(SPLITS)], tf.int64), chunk_index, alg=_ALGORITHM
        )
        draws = tf.random.stateless_uniform(
            [_DRAWS_PER_CHUNK, 1], key, dtype=tf.float64, alg=_ALGORITHM
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
    choices = (
        tf.data.Dataset.range(chunk_index, tf.int64.max).map(draw_indices).unbatch().skip(offset)
    )
    batches = [
        dataclasses.replace(
            corpus,
            shards={**corpus.shards, "train": tuple(shards)},
            shuffled_rows=max(1, corpus.shuffled_rows // len(files)),
            all_shards=corpus.all_shards or corpus.shards,
        ).dataset("train", batch_size, seed, int(count), numbered=numbered)
        for shards, count in zip(files.values(), counts, strict=True)
    ]
    chosen = tf.data.Dataset.choose_from_datasets(batches, choices)
    return prefetch(chosen, tf.data.INFINITE_CARDINALITY)


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
    run reads the same batches. Of the rows before `start_step`, the dataset reads at most one shard
    per text.

    Args:
        corpus: the corpus. Consecutive rows are continuous text if `packing` is "full_text".
        split: "train" or "validation".
        batch_size: number of rows per batch, B.
        start_step: index of the first batch.
        repeat: whether all texts start again after every n batches, forever.
        micro_batches: number of micro-batches per update, A. Each micro-batch has its own texts.
            There are then A B texts, and row b of batch t + A continues row b of batch t.
        bidirectional: whether the second half of a batch reads the texts of the first half backward
            (Yang et al. 2019 (XLNet), section 2.4, and its released code). A backward text starts
            at its last row, and each row has the ids between [CLS] and the last [SEP] reversed.
            There are then B / 2 texts, and batches have "backward" `(B,)` bool.

    Returns:
        Dataset of batches as in `PretrainingCorpus.dataset` with two more arrays. "previous_ids"
        `(B, L)` int32 has the token ids of the row before each row, or 0 if the row starts a text.
        "starts" `(B,)` bool says whether the row starts a text.

    Raises:
        UserError: the split has fewer rows than there are texts, or `bidirectional` is True and B
            is odd.
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
        raise UserError(
            f"batch_size is {batch_size}, but must be even, because half of the rows are read "
            "backward: give an even batch_size"
        )
    texts = batch_size // 2 if bidirectional else batch_size
    length = total // texts
    if not length:
        raise UserError(
            f"the split {split!r} of {corpus.folder} has {total} {plural('row', total)}, fewer "
            f"than the {texts} texts that an update reads in parallel: prepare more text, or give "
            "a smaller batch_size or fewer accumulation_steps"
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
            features |= {"token_ids": _reverse_ids(features["token_ids"], backward)}
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


def _reverse_ids(token_ids: tf.Tensor, backward: tf.Tensor) -> tf.Tensor:
    """Reverses the ids between [CLS] and the last [SEP] in some rows.

    Args:
        token_ids: `(B, L)` int32, padded with 0.
        backward: `(B,)` bool, True for each row to reverse.
    """
    inside = tf.math.count_nonzero(token_ids, axis=1) - 2  # (B,)
    inside = tf.where(backward, tf.maximum(inside, 0), 0)
    return tf.concat([token_ids[:, :1], tf.reverse_sequence(token_ids[:, 1:], inside, 1)], axis=1)
