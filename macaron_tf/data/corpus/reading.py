"""Batches of rows from a prepared corpus. The seed and the step determine each batch."""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.batches import prefetch
from macaron_tf.data.corpus import shards as store
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.shards import INDEX, SPLITS, RecordFormat, Shard
from macaron_tf.data.sampler import fold_in, in_parts, row_groups
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.text import check_vocabulary, load_encoder_vocabulary
from macaron_tf.text.base import PieceVocabulary

# Number of rows that are shuffled together. With ids of two bytes, 65,536 rows of 128 ids take
# 17 MB, and rows of 512 ids take 67 MB.
_SHUFFLED_ROWS = 1 << 16
BLOCK_ROWS = 1 << 12  # number of rows that are read at once; 4096 rows of 128 ids take 1 MB


@dataclasses.dataclass(eq=False)
class PretrainingCorpus:
    """A prepared corpus of rows of a fixed length. The seed and the step determine each batch.

    `PretrainingCorpus.open` opens a corpus. In each epoch, the shards are shuffled, and the rows
    are then shuffled within groups of shards (see `row_groups`).

    Attributes:
        shuffled_rows: maximum number of rows that are shuffled together, but at least one shard.
    """

    folder: epath.Path
    config: CorpusConfig
    vocabulary: PieceVocabulary
    shards: dict[str, tuple[Shard, ...]]
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
        config, settings, state = store.read_index(folder)
        if not state.finished:
            raise UserError(f"the corpus in {folder} is not finished: prepare it again")
        verify = not storage.is_remote(folder) if verify is None else verify
        vocabulary = load_encoder_vocabulary(folder)
        remedy = f"restore the vocabulary files in {folder}, or prepare the corpus again"
        check_vocabulary(settings["vocabulary"], vocabulary.hash, folder / INDEX, remedy)
        shards = {}
        for split, parts in (("train", state.train), ("validation", state.validation)):
            firsts = itertools.accumulate((shard.rows for shard in parts), initial=0)
            pairs = zip(parts, firsts, strict=False)  # the last sum is the number of rows
            shards[split] = tuple(dataclasses.replace(part, first=first) for part, first in pairs)
        corpus = cls(folder, config, vocabulary, shards)
        for shard in itertools.chain(*shards.values()):
            corpus.record_format.read(folder, shard, slice(None) if verify else slice(0))
        return corpus

    @functools.cached_property
    def record_format(self) -> RecordFormat:
        """Layout of the tables in the shards."""
        return RecordFormat.of(self.config, self.vocabulary.size, self.vocabulary.special.pad)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the vocabulary, the format and the files in `shards`."""
        digests = {split: [shard.sha256 for shard in self.shards[split]] for split in SPLITS}
        layout = dataclasses.asdict(self.record_format)
        record = [store.FORMAT, self.vocabulary.hash, layout, digests]
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    def rows(self, split: str = "train") -> int:
        """Returns the number of rows in a split."""
        if split not in self.shards:
            raise UserError(f"a corpus has no split {split!r}: give one of {', '.join(SPLITS)}")
        return sum(shard.rows for shard in self.shards[split])

    def summary(self) -> str:
        """Returns row counts, row length, task, languages and vocabulary size in one line."""
        config, rows = self.config, {split: f"{self.rows(split):,}" for split in SPLITS}
        content = config.pairs.replace("_", " ") if config.paired else "running text"
        content += f" in {', '.join(config.languages)}" if config.languages else ""
        found = f"{rows['train']} training and {rows['validation']} validation rows"
        ids, pieces = f"{config.sequence_length} ids", f"{self.vocabulary.pieces:,} pieces"
        return f"{found} of {ids}, {content}, {pieces}"

    def shard(self, index: int, count: int) -> "PretrainingCorpus":
        """Returns the part of the corpus for one of several training processes.

        A part has some of the training files and all validation files, and its fingerprint differs
        from the fingerprint of the corpus. Training files are assigned in descending order of size,
        each to the process with the fewest rows so far. Each process counts its own epochs, so that
        a process with fewer rows repeats its rows sooner. For dynamic masking, each process should
        draw its masks with `process_seed`. With a common seed, all processes would mask the same
        positions.
        """
        shards = self.filled("train")
        if len(shards) < count:
            found = f"{self.folder} has {len(shards)} training files, fewer than {count} processes"
            raise UserError(f"{found}: lower data.rows_per_shard, or leave --own-shards out")
        parts: list[list[Shard]] = [[] for _ in range(count)]
        row_counts = [0] * count
        for shard in sorted(shards, key=lambda shard: -shard.rows):
            process = row_counts.index(min(row_counts))
            parts[process].append(shard)
            row_counts[process] += shard.rows
        return dataclasses.replace(self, shards={**self.shards, "train": tuple(parts[index])})

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
        if rows < (1 if repeat or not drop_remainder else batch_size):
            mend = "give more text, or lower data.batch_size"
            raise UserError(f"{self.folder} has {rows} rows in {split!r}: {mend}")
        steps = tf.data.INFINITE_CARDINALITY
        if not repeat:
            rounding = 0 if drop_remainder else batch_size - 1
            steps = max(rows - start_step * batch_size + rounding, 0) // batch_size
        shards = self.filled(split)
        split_seed = None if seed is None else (seed, SPLITS.index(split))
        order = [shard.rows for shard in shards], self.shuffled_rows, split_seed

        def blocks() -> Iterator[dict[str, np.ndarray]]:
            for members, places, epoch in row_groups(*order, start_step * batch_size, repeat):
                group = [shards[member] for member in members]
                table = np.concatenate([self.record_format.read(self.folder, s) for s in group])
                numbers = np.concatenate([s.first + np.arange(s.rows) for s in group])
                for part in in_parts(len(places), BLOCK_ROWS):
                    rows = places[part]
                    extra = {"row_number": numbers[rows], "epoch": np.full_like(rows, epoch)}
                    yield {"table": table[rows], **(extra if numbered else {})}

        spec = dict.fromkeys(("row_number", "epoch") if numbered else (), (tf.int64, ()))
        return self.batches(blocks, spec, batch_size, steps, drop_remainder)

    def read_rows(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Reads the rows with the numbers `rows (N,)` in a split, as a table.

        In each shard, the rows from the first to the last of `rows` are read. A checksum covers a
        whole shard, and is not verified here; `open` verifies them for a local folder.
        """
        shards, record_format = self.filled(split), self.record_format
        ends = np.cumsum([shard.rows for shard in shards])
        indices = np.searchsorted(ends, rows, side="right")  # (N,), the shard of each row
        result = np.empty((len(rows), record_format.integer_count), record_format.dtype)
        for index in np.unique(indices):
            mine, shard = indices == index, shards[index]
            places = rows[mine] - (ends[index] - shard.rows)
            first = int(places.min())
            part = slice(first, int(places.max()) + 1)
            result[mine] = record_format.read(self.folder, shard, part)[places - first]
        return result

    def batches(
        self,
        blocks: Callable[[], Iterator[dict[str, np.ndarray]]],
        spec: dict[str, tuple],
        batch_size: int,
        steps: int,
        drop_remainder: bool = True,
    ) -> tf.data.Dataset:
        """Divides blocks of rows into batches, and adds the arrays of `RecordFormat.features`.

        Args:
            blocks: function that yields a dict of arrays for N rows at a time. The array "table"
                is `(N, integer_count)`.
            spec: dict mapping the name of each other array to its dtype and its shape without N.
        """
        record_format = self.record_format
        spec = {"table": (record_format.dtype, (record_format.integer_count,)), **spec}
        signature = {n: tf.TensorSpec((None, *shape), dtype) for n, (dtype, shape) in spec.items()}
        rows = tf.data.Dataset.from_generator(blocks, output_signature=signature)

        @tf.autograph.experimental.do_not_convert
        def features(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return {**record_format.features(batch.pop("table")), **batch}

        # The prefetch reads the next block while the model consumes this block.
        dataset = rows.prefetch(1).rebatch(batch_size, drop_remainder)
        dataset = dataset.map(features, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        # INFINITE_CARDINALITY is -1, and `take(-1)` takes all batches.
        return prefetch(dataset.take(steps), steps)

    def filled(self, split: str) -> list[Shard]:
        """Returns the shards of a split that are not empty."""
        return [shard for shard in self.shards[split] if shard.rows]


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
    end of the split are left out.

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
    total, size = corpus.rows(split), micro_batches * batch_size
    if bidirectional and size % 2:
        raise UserError(f"batch_size={size} must be even, to read half of the rows backward")
    texts = size // 2 if bidirectional else size
    length = total // texts
    if not length:
        rows = f"{total} rows, fewer than the {texts} texts of an update"
        raise UserError(f"{corpus.folder} has {rows}: lower data.batch_size")
    is_backward = np.arange(size) >= texts
    firsts = np.arange(size) % texts * length  # (size,), first row of each text
    first_update, turn = divmod(start_step, micro_batches)
    updates = max(1, BLOCK_ROWS // size)  # number of updates per block
    width, pad_id = corpus.config.sequence_length, corpus.vocabulary.special.pad

    def blocks() -> Iterator[dict[str, np.ndarray]]:
        skipped = turn * batch_size
        for first in itertools.count(first_update, updates):
            # One update more, because the first update needs its `previous_ids`.
            places = np.arange(first - 1, first + updates)[:, None] % length  # (updates + 1, 1)
            rows = firsts + np.where(is_backward, length - 1 - places, places)
            table = corpus.read_rows(split, rows.reshape(-1)).reshape(*rows.shape, -1)
            table[:, is_backward, :width] = _reverse_ids(table[:, is_backward, :width], pad_id)
            starts = places[1:] == 0
            previous_ids = np.where(starts[..., None], 0, table[:-1, :, :width]).astype(np.int32)
            block = {"table": table[1:], "previous_ids": previous_ids}
            block["starts"] = np.broadcast_to(starts, (updates, size))
            if bidirectional:
                block["backward"] = np.broadcast_to(is_backward, (updates, size))
            # (updates, size, ...) -> (updates size, ...)
            yield {n: a.reshape(-1, *a.shape[2:])[skipped:] for n, a in block.items()}
            skipped = 0

    spec = {"previous_ids": (tf.int32, (width,)), "starts": (tf.bool, ())}
    spec |= {"backward": (tf.bool, ())} if bidirectional else {}
    steps = tf.data.INFINITE_CARDINALITY if repeat else max(length * micro_batches - start_step, 0)
    return corpus.batches(blocks, spec, batch_size, steps)


def _reverse_ids(token_ids: np.ndarray, pad_id: int) -> np.ndarray:
    """Reverses the ids between [CLS] and the last [SEP] in each row of `(..., L)`."""
    inside = np.count_nonzero(token_ids != pad_id, axis=-1, keepdims=True) - 2
    columns = np.arange(token_ids.shape[-1]) - 1
    columns = np.where((columns >= 0) & (columns < inside), inside - 1 - columns, columns) + 1
    return np.take_along_axis(token_ids, columns, axis=-1)


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
    files: dict[tuple[int, ...], list[Shard]] = {}
    for shard in corpus.filled("train"):
        files.setdefault(shard.languages, []).append(shard)
    rows = np.array([sum(shard.rows for shard in shards) for shards in files.values()])
    is_pair = np.array([len(set(languages)) > 1 for languages in files])
    masks = [mask for mask in (~is_pair, is_pair) if mask.any()]
    powers = [mask * (rows / rows[mask].sum()) ** corpus.config.batch_alpha for mask in masks]
    bounds = np.cumsum(powers, axis=1)  # (masks, languages)
    bounds = bounds / bounds[:, -1:]

    def drawn(chunk: int) -> np.ndarray:
        """Draws an index into `files` for each of the `_DRAWS_PER_CHUNK` batches of a chunk."""
        turns = (np.arange(_DRAWS_PER_CHUNK) + chunk * _DRAWS_PER_CHUNK) // per_update
        # The row orders of the splits are seeded by [seed, 0] and [seed, 1].
        with tf.device("CPU"):
            key, shape = fold_in((seed, len(SPLITS)), chunk), [_DRAWS_PER_CHUNK]
            draws = tf.random.stateless_uniform(shape, key, dtype=tf.float64, alg="philox").numpy()
        return np.sum(bounds[turns % len(masks)] <= draws[:, None], axis=1)

    chunk, offset = divmod(start_step, _DRAWS_PER_CHUNK)
    earlier = np.concatenate([*map(drawn, range(chunk)), drawn(chunk)[:offset]])
    counts = np.bincount(earlier, minlength=len(files))  # batches per language before `start_step`
    choices = tf.data.Dataset.from_generator(
        lambda: map(drawn, itertools.count(chunk)), output_signature=tf.TensorSpec([None], tf.int64)
    )
    batches, shuffled_rows = [], max(1, corpus.shuffled_rows // len(files))
    for language_shards, count in zip(files.values(), counts, strict=True):
        shards = {**corpus.shards, "train": tuple(language_shards)}
        part = dataclasses.replace(corpus, shards=shards, shuffled_rows=shuffled_rows)
        batches.append(part.dataset("train", batch_size, seed, int(count), numbered=numbered))
    chosen = tf.data.Dataset.choose_from_datasets(batches, choices.unbatch().skip(offset))
    return prefetch(chosen, tf.data.INFINITE_CARDINALITY)
