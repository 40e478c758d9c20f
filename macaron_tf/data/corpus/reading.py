"""A prepared corpus: its files, and its rows as batches in an order that a seed decides.

The order is made of TensorFlow operations alone, so that a tf.data service can read the rows in
another process.
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

from macaron_tf.data.batches import prefetched
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.packing import RecordFormat
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.text import check_vocabulary, load_encoder_vocabulary
from macaron_tf.text.base import PieceVocabulary

FORMAT = 2  # raise it when the files' layout or meaning changes
INDEX = "corpus.json"  # makes a folder a finished corpus
PROGRESS = "progress.json"  # the state of an unfinished one
SPLITS = ("train", "validation")

# Named, so that every device draws the same numbers from a seed.
_ALGORITHM = "philox"
# Rows shuffled among each other: 64 Ki rows of 128 two-byte ids are 17 MB, of 512 are 67 MB.
_SHUFFLED_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of records in the corpus's folder: its number of rows and its bytes' SHA-256.

    Attributes:
        languages: with `batch_alpha`, the ids of all rows' languages: one twice, or those of a
            translation pair's halves.
    """

    name: str
    rows: int
    sha256: str
    languages: tuple[int, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "languages", tuple(self.languages))  # JSON gives a list


def check_shards(
    folder: epath.Path, shards: Iterable[Shard], record: RecordFormat, verify: bool, mend: str
) -> None:
    """Refuses the first shard that is missing, of another size or, to `verify`, SHA-256."""
    for shard in shards:
        path = folder / shard.name
        try:
            whole = storage.size(path) == shard.rows * record.file_bytes
            whole = whole and (not verify or storage.file_digest(path) == shard.sha256)
        except tf.errors.OpError:
            whole = False
        if not whole:
            raise UserError(f"{path} is missing or damaged: {mend}")


@dataclasses.dataclass(frozen=True)
class CorpusState:
    """The state of a corpus after a shard, from which its preparation resumes.

    Attributes:
        counted: rows that were numbered for the choice of validation rows.
        tokens: ids without padding.
        validation: of an unfinished corpus the validation rows of each training shard, in files of
            their own; of pairs none.
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
    """Configuration, settings and state of a corpus; a damaged record is refused."""
    with storage.refuse_damage(path, mend):
        record = storage.read_json(path, mend=mend, state=dict, settings=dict)
        if record["format"] != FORMAT:
            raise UserError(f"{path} is of format {record['format']}, not {FORMAT}: {mend}")
        state, settings = record["state"], record["settings"]
        shards = {split: tuple(Shard(**shard) for shard in state[split]) for split in SPLITS}
        return CorpusConfig(**settings["config"]), settings, CorpusState(**{**state, **shards})


def read_index(folder: epath.Path) -> tuple[CorpusConfig, dict[str, Any], CorpusState]:
    """The record of a finished corpus; refuses a folder without one."""
    path = folder / INDEX
    if not path.exists():
        if (folder / PROGRESS).exists():
            raise UserError(
                f"the corpus in {folder} is not finished: give the command that prepares it "
                "again, and it goes on"
            )
        raise UserError(f"no corpus in {folder}: there is no {INDEX}; prepare one there")
    return read_record(path, "remove it and prepare the corpus again")


@dataclasses.dataclass(frozen=True)
class RowOrder:
    """Shuffles shards, then the rows of each group of shards, anew in each epoch.

    All groups of an epoch have the same number of shards, give or take one, so that a group's
    number tells its shards without a look at the groups before it.

    Attributes:
        paths: of the shards, none of them empty.
        first_rows: number of the first row of each shard, which no shuffling changes.
        shuffled_rows: greatest number of rows of a group, a single larger shard excepted.
        seed: two numbers that decide the order; None keeps the order of the files.
    """

    paths: tuple[str, ...]
    rows: tuple[int, ...]
    first_rows: tuple[int, ...]
    shuffled_rows: int
    seed: tuple[int, int] | None

    @functools.cached_property
    def groups(self) -> int:
        """The number of groups of an epoch."""
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
        """The rows from `start_row` on; of the rows before it at most one group is read.

        Args:
            decode: makes a tensor `(N, ...)` of N records, a group at once: numbers are shuffled
                and cut into batches in half the time that strings take.

        Returns:
            Dataset of a tensor `(B, ...)`, the numbers of its rows `(B,)` int64 and their epochs
            `(B,)` int64. It raises a tf.errors.OpError where a shard is missing, damaged, or has
            another number of records than recorded.
        """
        epoch, offset = divmod(start_row, sum(self.rows))
        with tf.device("CPU"):
            order = self._shards(tf.constant(epoch, tf.int64)).numpy()
        starts = [self._first_shard(group) for group in range(self.groups)]
        sizes = np.add.reduceat(np.array(self.rows)[order], starts)  # (groups,)
        ends = np.cumsum(sizes)
        group = int(np.searchsorted(ends, offset, side="right"))
        first = epoch * self.groups + group
        passed = offset - int(ends[group] - sizes[group])  # rows of the first group
        end = tf.int64.max if repeat else (epoch + 1) * self.groups
        numbers = tf.data.Dataset.range(first, end)

        @tf.autograph.experimental.do_not_convert
        def rows(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
            start = tf.where(number == first, passed, 0)
            return tuple(column[start:] for column in self._group(number, decode))

        # The next group is read while this one is used.
        groups = numbers.map(rows, num_parallel_calls=1).prefetch(1)
        return groups.rebatch(batch_size, drop_remainder)

    def _group(
        self, number: tf.Tensor, decode: Callable[[tf.Tensor], tf.Tensor]
    ) -> tuple[tf.Tensor, ...]:
        """The rows `(N, ...)` of a group, their numbers and epochs, `(N,)` int64."""
        epoch, group = number // self.groups, number % self.groups
        members = self._shards(epoch)[self._first_shard(group) : self._first_shard(group + 1)]
        paths = tf.gather(tf.constant(self.paths), members)
        counts = tf.gather(tf.constant(self.rows, tf.int64), members)
        expected = tf.reduce_sum(counts)
        records = tf.data.TFRecordDataset(paths).batch(tf.int64.max).get_single_element()
        # A file cut between two records is whole to TFRecord.
        found = tf.size(records, tf.int64)
        with tf.control_dependencies([tf.debugging.assert_equal(found, expected)]):
            rows = decode(records)
        # Of each shard: its first row's number, less its first row's place in the group.
        shifts = tf.gather(tf.constant(self.first_rows, tf.int64), members)
        shifts -= tf.cumsum(counts, exclusive=True)
        row_numbers = tf.range(expected) + tf.repeat(shifts, counts)  # (N,)
        epochs = tf.fill([expected], epoch)
        if self.seed is None:
            return rows, row_numbers, epochs
        order = _permutation(expected, self.seed, epoch, group)
        return tf.gather(rows, order), tf.gather(row_numbers, order), epochs

    def _first_shard(self, group):
        """Position of a group's first shard in the epoch's order."""
        return group * len(self.paths) // self.groups

    def _shards(self, epoch: tf.Tensor) -> tf.Tensor:
        """The numbers of all shards, `(S,)` int64, in the order of an epoch."""
        if self.seed is None:
            return tf.range(len(self.paths), dtype=tf.int64)
        # Groups count from 0: no group draws what the shards do.
        return _permutation(tf.constant(len(self.paths), tf.int64), self.seed, epoch, -1)


def _permutation(count: tf.Tensor, seed: tuple[int, int], *numbers: tf.Tensor | int) -> tf.Tensor:
    """The numbers below a count, `(count,)` int64, in an order of the seed and further numbers."""
    seed = tf.constant(seed, tf.int64)
    for number in numbers:
        number = tf.cast(number, tf.int64)
        seed = tf.random.experimental.stateless_fold_in(seed, number, alg=_ALGORITHM)
    return tf.random.experimental.stateless_shuffle(
        tf.range(count, dtype=tf.int64), seed, alg=_ALGORITHM
    )


@dataclasses.dataclass(eq=False)
class PretrainingCorpus:
    """Rows of a fixed length in shards; the same seed and step always give the same batch.

    `open` makes one. Rows are shuffled shard by shard, then among the rows of a group of shards:
    the whole corpus where it has at most `shuffled_rows` rows.

    Attributes:
        folder: the shards' folder, `gs://` included.
        shuffled_rows: greatest number of rows, about, that are shuffled among each other.
        whole: all shards of the corpus that this is a part of, None = itself; rows are numbered
            in the whole.
    """

    folder: epath.Path
    config: CorpusConfig
    vocabulary: PieceVocabulary
    shards: dict[str, tuple[Shard, ...]]
    shuffled_rows: int = _SHUFFLED_ROWS
    whole: dict[str, tuple[Shard, ...]] | None = None

    @classmethod
    def open(cls, folder: str | os.PathLike, verify: bool | None = None) -> "PretrainingCorpus":
        """Opens a folder that `prepare` filled.

        Args:
            verify: compare the SHA-256 of every shard, about a second a gigabyte, not the sizes
                alone; None does so on disk, and not in a bucket.
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
    def record(self) -> RecordFormat:
        """The layout of the rows in the files."""
        return RecordFormat.of(self.config, self.vocabulary.size)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over vocabulary, format and all shards."""
        record = [
            FORMAT,
            self.vocabulary.hash,
            dataclasses.asdict(self.record),
            {split: [shard.sha256 for shard in self.shards[split]] for split in SPLITS},
        ]
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    def rows(self, split: str = "train") -> int:
        """Number of rows of a split; refuses one that is neither "train" nor "validation"."""
        if split not in self.shards:
            raise UserError(f"a corpus has no split {split!r}: it has {', '.join(SPLITS)}")
        return sum(shard.rows for shard in self.shards[split])

    def summary(self) -> str:
        """One line for the log: rows, lengths, what a row is."""
        kind = self.config.pairs.replace("_", " ") if self.config.paired else "running text"
        if self.config.languages:
            kind += f" in {', '.join(self.config.languages)}"
        return (
            f"{self.rows('train'):,} training and {self.rows('validation'):,} validation rows of "
            f"{self.config.sequence_length} ids, {kind}, {self.vocabulary.pieces:,} pieces"
        )

    def shard(self, index: int, count: int) -> "PretrainingCorpus":
        """The part of the corpus for one of several training processes: its own training files.

        The largest file goes to the first process, each next one to whoever has the fewest rows.
        A step's global batch is then made of the processes' own batches, the same for a seed and
        a number of processes. Each process has epochs of its own: where the files do not divide
        evenly, the rows of a smaller part come again sooner. Masks are drawn with
        `process_seed`, or all processes would mask the same positions. The part has all validation
        files and its own fingerprint; fewer training files than processes are refused.
        """
        if not 0 <= index < count:
            raise ValueError(f"no process {index} of {count}")
        shards, _ = self.files("train")
        if len(shards) < count:
            raise UserError(
                f"{self.folder} has {len(shards)} training files for {count} processes: prepare "
                "it again with a smaller rows_per_shard, or train with fewer processes"
            )
        parts: list[list[Shard]] = [[] for _ in range(count)]
        held = [0] * count
        for shard in sorted(shards, key=lambda shard: -shard.rows):
            fewest = held.index(min(held))
            parts[fewest].append(shard)
            held[fewest] += shard.rows
        part = {**self.shards, "train": tuple(parts[index])}
        return dataclasses.replace(self, shards=part, whole=self.whole or self.shards)

    def shard_error(self, error: tf.errors.OpError) -> UserError | None:
        """The error to raise for a failed reading, None where `error` has another cause.

        TensorFlow seldom names the file, so all are examined.
        """
        # Sizes show all damage but changed bytes, which TFRecord's checksums have found.
        try:
            self._check(verify="corrupted record" in error.message)
        except UserError as damage:
            return damage
        if str(storage.absolute(self.folder)) not in error.message:
            return None
        return UserError(
            f"the corpus in {self.folder} cannot be read ({storage.reason(error)}): see that it "
            "can, then give the same command again"
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
        """The batches from a global step on; of the rows before it at most one group is read.

        Args:
            seed: of the order of each epoch; None keeps the order of the files.
            repeat: go on with the next epochs for ever, a batch across two of them included, or
                end with the epoch of the first row.
            drop_remainder: leave out a last batch that is not full; otherwise B is None in the
                dataset's specification.
            numbered: add "row_number" (B,) int64, a row's number in the split, the same in every
                order and in a part of `shard`, and "epoch" (B,) int64, how often all rows have
                come before: a mask drawn from the two does not depend on the step.

        Returns:
            Dataset of the batches of `RecordFormat.features`; its cardinality is known.
        """
        rows = self.rows(split)
        if batch_size < 1 or start_step < 0:
            raise UserError(
                f"batch_size={batch_size} must be 1 or more, start_step={start_step} 0 or more"
            )
        if not rows or (not repeat and drop_remainder and rows < batch_size):
            raise UserError(
                f"the split {split!r} of {self.folder} has {rows} rows, too few for a batch of "
                f"{batch_size}: prepare more text or take a smaller batch"
            )
        start_row, steps = start_step * batch_size, tf.data.INFINITE_CARDINALITY
        if not repeat:
            left = max(rows - start_row, 0)
            steps = left // batch_size if drop_remainder else -(-left // batch_size)
        shards, paths = self.files(split)
        whole = (self.whole or self.shards)[split]
        counts = itertools.accumulate((shard.rows for shard in whole), initial=0)
        first_rows = {shard.name: count for shard, count in zip(whole, counts, strict=False)}
        order = RowOrder(
            tuple(paths),
            tuple(shard.rows for shard in shards),
            tuple(first_rows[shard.name] for shard in shards),
            self.shuffled_rows,
            None if seed is None else (seed, SPLITS.index(split)),
        )
        record = self.record
        tables = order.batches(start_row, batch_size, record.table, repeat, drop_remainder)

        @tf.autograph.experimental.do_not_convert
        def features(table: tf.Tensor, row_number: tf.Tensor, epoch: tf.Tensor):
            numbers = {"row_number": row_number, "epoch": epoch} if numbered else {}
            return {**record.features(table), **numbers}

        dataset = tables.map(features, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        # INFINITE_CARDINALITY, -1, takes all.
        return prefetched(dataset.take(steps), steps)

    def files(self, split: str) -> tuple[list[Shard], list[str]]:
        """The shards of a split that have rows, and their absolute paths, for a data service."""
        folder = storage.absolute(self.folder)
        shards = [shard for shard in self.shards[split] if shard.rows]
        return shards, [str(folder / shard.name) for shard in shards]

    def _check(self, verify: bool) -> None:
        shards = itertools.chain(*self.shards.values())
        mend = f"remove {self.folder / INDEX} and prepare the corpus again, or put it back"
        check_shards(self.folder, shards, self.record, verify, mend)


def with_documents(rows: tf.data.Dataset, sep_id: int) -> tf.data.Dataset:
    """Batches with `document_ids (B, L)` int32, the documents of each row numbered from 0 on.

    A [SEP] ends a document, so that the rows on disk need no other record of it.
    """

    @tf.autograph.experimental.do_not_convert
    def numbered(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        ends = tf.cast(batch["token_ids"] == sep_id, tf.int32)
        return {**batch, "document_ids": tf.cumsum(ends, axis=1, exclusive=True)}

    return rows.map(numbered, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def process_seed(seed: int, process: int) -> int:
    """A seed for the draws of one of several training processes: the run's own for process 0.

    Others have 63 bits from NumPy's SeedSequence, whose children do not overlap.
    """
    if not process:
        return seed
    sequence = np.random.SeedSequence(seed, spawn_key=(process,))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


_DRAWS = 1 << 14  # languages drawn at once


def language_batches(
    corpus: PretrainingCorpus,
    batch_size: int,
    seed: int = 0,
    start_step: int = 0,
    per_update: int = 1,
    numbered: bool = False,
) -> tf.data.Dataset:
    """Endless training batches of one language, or one pair of languages, each.

    A batch's language is drawn with q_i ~ p_i^alpha, `batch_alpha` of the corpus, where p_i is its
    share of the rows. In a corpus of running text and translation pairs, updates from the one and
    from the other alternate, and a pair is drawn likewise among the pairs. Both follow from the
    seed and the batch's number, so that a resumed run reads the same batches.

    Args:
        per_update: batches of an update, which are of one kind.
        batch_size, seed, start_step, numbered: see `PretrainingCorpus.dataset`.

    References: Conneau and Lample 2019 (XLM), sections 3.1 to 3.5.
    """
    files: dict[tuple[int, ...], list[Shard]] = {}
    for shard in corpus.files("train")[0]:
        files.setdefault(shard.languages, []).append(shard)
    rows = np.array([sum(shard.rows for shard in shards) for shards in files.values()])
    is_pair = np.array([len(set(languages)) > 1 for languages in files])
    kinds = [kind for kind in (~is_pair, is_pair) if kind.any()]
    alpha = corpus.config.batch_alpha
    powers = [kind * (rows / rows[kind].sum()) ** alpha for kind in kinds]
    bounds = np.cumsum(powers, axis=1)  # (kinds, languages)
    bounds = tf.constant(bounds / bounds[:, -1:], tf.float64)

    @tf.autograph.experimental.do_not_convert
    def drawn(part: tf.Tensor) -> tf.Tensor:
        """The languages of `_DRAWS` batches, numbers in `files`."""
        numbers = tf.range(_DRAWS, dtype=tf.int64) + part * _DRAWS
        # The splits' orders have 0 and 1 for the second number.
        key = tf.random.experimental.stateless_fold_in(
            tf.constant([seed, len(SPLITS)], tf.int64), part, alg=_ALGORITHM
        )
        draws = tf.random.stateless_uniform([_DRAWS, 1], key, dtype=tf.float64, alg=_ALGORITHM)
        passed = (
            tf.gather(bounds, numbers // per_update % len(kinds)) <= draws
        )  # (_DRAWS, languages)
        return tf.reduce_sum(tf.cast(passed, tf.int64), axis=1)

    part, rest = divmod(start_step, _DRAWS)
    counts = np.zeros(len(files), np.int64)  # of each language's batches before the first one
    with tf.device("CPU"):
        for number in range(part + 1):
            found = drawn(tf.constant(number, tf.int64)).numpy()
            found = found[:rest] if number == part else found
            counts += np.bincount(found, minlength=len(files))
    choices = tf.data.Dataset.range(part, tf.int64.max).map(drawn).unbatch().skip(rest)
    batches = [
        dataclasses.replace(
            corpus,
            shards={**corpus.shards, "train": tuple(shards)},
            shuffled_rows=max(1, corpus.shuffled_rows // len(files)),
            whole=corpus.whole or corpus.shards,
        ).dataset("train", batch_size, seed, int(count), numbered=numbered)
        for shards, count in zip(files.values(), counts, strict=True)
    ]
    chosen = tf.data.Dataset.choose_from_datasets(batches, choices)
    return prefetched(chosen, tf.data.INFINITE_CARDINALITY)


def stream_dataset(
    corpus: PretrainingCorpus,
    split: str,
    batch_size: int,
    start_step: int = 0,
    repeat: bool = True,
    turns: int = 1,
    bidirectional: bool = False,
) -> tf.data.Dataset:
    """The rows of a split as texts side by side: row b of batch t + 1 follows row b of batch t.

    Of B texts, text b is n = rows // B rows from row b n on, in the order of the files; the rest,
    fewer than B rows, is left out. A batch follows from its number alone, so that a resumed run
    reads the same batches; of the rows before them at most one shard a text is read.

    Args:
        corpus: its rows are continuous text with `packing="full_text"`.
        batch_size: B.
        repeat: begin again after n batches, for ever.
        turns: batches that have texts of their own, an update's micro-batches: with A of them there
            are A B texts, and row b of batch t + A follows row b of batch t.
        bidirectional: there are half as many texts, and each is read twice: in the first half of
            the rows, and in the second half from its end, the ids of a row between its [CLS] and
            its last [SEP] in reverse order (Yang et al. 2019 (XLNet), section 2.4, and its released
            code). Batches then have `backward (B,)` bool, which is true of the second half.

    Returns:
        Dataset of the corpus's batches, with `previous_ids (B, L)` int32, the row before each, 0
        where a text begins, and `starts (B,)` bool, whether one does.
    """
    if turns > 1:
        step, passed = divmod(start_step, turns)
        rows = turns * batch_size
        together = stream_dataset(corpus, split, rows, step, repeat, bidirectional=bidirectional)
        batches = together.rebatch(batch_size, drop_remainder=True).skip(passed)
        steps = int(together.cardinality())
        return prefetched(batches, steps if steps < 0 else steps * turns - passed)
    shards, paths = corpus.files(split)
    total = sum(shard.rows for shard in shards)
    if bidirectional and batch_size % 2:
        raise UserError(
            f"{batch_size} rows of an update cannot be read in both directions, half of them in "
            "each: take an even batch_size"
        )
    texts = batch_size // 2 if bidirectional else batch_size
    length = total // texts
    if not length:
        raise UserError(
            f"the split {split!r} of {corpus.folder} has {total} rows, fewer than the {texts} "
            "texts of an update: prepare more text, or take a smaller batch_size or fewer "
            "accumulation_steps"
        )
    paths = tf.constant(paths)
    firsts = list(itertools.accumulate((shard.rows for shard in shards), initial=0))[:-1]
    firsts = tf.constant(firsts, tf.int64)  # number of the first row of each shard

    def records_of(number: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(tf.gather(paths, number))

    def turned(number: tf.Tensor) -> tf.data.Dataset:
        """The records of a shard from its end, all in memory at once."""
        records = records_of(number).batch(tf.int64.max).get_single_element()
        return tf.data.Dataset.from_tensor_slices(tf.reverse(records, [0]))

    def rows(start: tf.Tensor, count: int, back: bool) -> tf.data.Dataset:
        """The row `start` and those after it, or before it."""
        shard = tf.searchsorted(firsts, [start], side="right", out_type=tf.int64)[0] - 1
        if back:
            ends = firsts + tf.constant([shard.rows for shard in shards], tf.int64)
            records = tf.data.Dataset.range(shard, -1, -1).flat_map(turned)
            return records.skip(tf.gather(ends, shard) - 1 - start).take(count)
        records = tf.data.Dataset.range(shard, len(shards)).flat_map(records_of)
        return records.skip(start - tf.gather(firsts, shard)).take(count)

    # Begin one batch earlier, for the rows before the first ones.
    first = max(start_step - 1, 0)
    passed = first % length if repeat else min(first, length)

    def side_by_side(back: bool) -> tf.data.Dataset:
        def text(number: tf.Tensor) -> tf.data.Dataset:
            start = (number + 1) * length - 1 if back else number * length
            rest = rows(start - passed if back else start + passed, length - passed, back)
            return rest.concatenate(rows(start, length, back).repeat()) if repeat else rest

        found = tf.data.Dataset.range(texts).interleave(text, cycle_length=texts, block_length=1)
        return found.batch(texts, drop_remainder=True)

    records = side_by_side(back=False)
    if bidirectional:
        both = tf.data.Dataset.zip(records, side_by_side(back=True))
        records = both.map(lambda *halves: tf.concat(halves, axis=0))

    @tf.autograph.experimental.do_not_convert
    def batch(number: tf.Tensor, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        features = corpus.record.features(corpus.record.table(rows))
        if bidirectional:
            backward = tf.range(batch_size) >= texts
            features |= {"token_ids": _turned(features["token_ids"], backward)}
            features["backward"] = backward
        return {**features, "starts": tf.fill([batch_size], number % length == 0)}

    numbers = tf.data.Dataset.counter(first, dtype=tf.int64)
    dataset = tf.data.Dataset.zip(numbers, records).map(batch, tf.data.AUTOTUNE, deterministic=True)

    def follow(before: tf.Tensor, features: dict) -> tuple[tf.Tensor, dict]:
        previous = tf.where(features["starts"][:, None], 0, before)
        return features["token_ids"], {**features, "previous_ids": previous}

    nothing = tf.zeros((batch_size, corpus.config.sequence_length), tf.int32)
    dataset = dataset.scan(nothing, follow).skip(start_step - first)
    steps = tf.data.INFINITE_CARDINALITY if repeat else max(length - start_step, 0)
    return prefetched(dataset, steps)


def _turned(token_ids: tf.Tensor, backward: tf.Tensor) -> tf.Tensor:
    """Rows `(B, L)` with their ids between [CLS] and the last [SEP] reversed, where `backward`."""
    inside = tf.math.count_nonzero(token_ids, axis=1) - 2  # (B,)
    inside = tf.where(backward, tf.maximum(inside, 0), 0)
    return tf.concat([token_ids[:, :1], tf.reverse_sequence(token_ids[:, 1:], inside, 1)], axis=1)
