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

from macaron_tf.data import rows as stores
from macaron_tf.data.batches import prefetch
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.rows import Shard
from macaron_tf.data.sampler import fold_in, in_parts, row_groups
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.text import check_vocabulary, load_encoder_vocabulary
from macaron_tf.text.base import PieceVocabulary

SPLITS = ("train", "validation")
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
        store = stores.Store.open(folder)
        with stores.refuse_damage(folder):
            config, digest = CorpusConfig(**store.settings["config"]), store.settings["vocabulary"]
        if not store.finished:
            raise UserError(f"the corpus in {folder} is not finished: prepare it again")
        verify = not storage.is_remote(folder) if verify is None else verify
        vocabulary = load_encoder_vocabulary(folder)
        remedy = f"restore the vocabulary files in {folder}, or prepare the corpus again"
        check_vocabulary(digest, vocabulary.hash, folder / stores.INDEX, remedy)
        store.check(verify)
        shards = {split: tuple(store.shards.get(split, ())) for split in SPLITS}
        return cls(folder, config, vocabulary, shards)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the vocabulary, the format and the files in `shards`."""
        files = {n: [(shard.arrays, shard.sha256) for shard in self.shards[n]] for n in SPLITS}
        record = [stores.FORMAT, self.vocabulary.hash, files]
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
            Dataset of known cardinality. Batches have the arrays of `features`.
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
                columns = stores.read_shards(self.folder, group)
                numbers = np.concatenate([s.first + np.arange(s.rows) for s in group])
                for part in in_parts(len(places), BLOCK_ROWS):
                    rows = places[part]
                    extra = {"row_number": numbers[rows], "epoch": np.full_like(rows, epoch)}
                    yield stores.take_rows(columns, rows) | (extra if numbered else {})

        spec = dict.fromkeys(("row_number", "epoch") if numbered else (), (tf.int64, ()))
        return self.batches(split, blocks, spec, batch_size, steps, drop_remainder)

    def batches(
        self,
        split: str,
        blocks: Callable[[], Iterator[dict[str, np.ndarray]]],
        spec: dict[str, tuple],
        batch_size: int,
        steps: int,
        drop_remainder: bool = True,
    ) -> tf.data.Dataset:
        """Divides blocks of rows into batches, and adds the arrays of `features`.

        Args:
            blocks: function that yields a dict of arrays for N rows at a time, the columns of the
                shards of `split` and others.
            spec: dict mapping the name of each other array to its dtype and its shape without N.
        """
        arrays = self.filled(split)[0].arrays
        spec = {n: (np.dtype(dtype), shape[1:]) for n, (dtype, shape) in arrays.items()} | spec
        signature = {n: tf.TensorSpec((None, *shape), dtype) for n, (dtype, shape) in spec.items()}
        rows = tf.data.Dataset.from_generator(blocks, output_signature=signature)

        inputs = functools.partial(features, pad_id=self.vocabulary.special.pad)
        # The prefetch reads the next block while the model consumes this block.
        dataset = rows.prefetch(1).rebatch(batch_size, drop_remainder)
        dataset = dataset.map(inputs, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        # INFINITE_CARDINALITY is -1, and `take(-1)` takes all batches.
        return prefetch(dataset.take(steps), steps)

    def filled(self, split: str) -> list[Shard]:
        """Returns the shards of a split that are not empty."""
        return [shard for shard in self.shards[split] if shard.rows]


@tf.autograph.experimental.do_not_convert
def features(batch: dict[str, tf.Tensor], pad_id: int) -> dict[str, tf.Tensor]:
    """Replaces the columns of a batch of rows (see `Packer.columns`) by the model inputs.

    Returns:
        Dict with "token_ids" `(B, L)` int32 and "segment_ids" `(B, L)` int32. Segment ids are 1 in
        the second segment and 0 elsewhere, including padding. Segment pairs add "pair_label" `(B,)`
        int32. A corpus with languages adds "language_ids" `(B, L)` int32. A corpus with translation
        pairs adds "position_ids" `(B, L)` int32. Position ids restart at 0 in the second half
        (Conneau and Lample 2019, section 3.4). Other arrays of `batch` stay.
    """
    names = "token_ids", "boundary", "pair_label", "language", "second_language"
    column = {name: tf.cast(batch.pop(name), tf.int32) for name in names if name in batch}
    token_ids = column["token_ids"]
    positions = tf.range(token_ids.shape[1])
    boundaries = column.get("boundary", token_ids.shape[1])
    is_second = (positions >= boundaries) & tf.ones_like(token_ids, tf.bool)  # (B, L)
    batch["token_ids"] = token_ids
    batch["segment_ids"] = tf.cast(is_second & (token_ids != pad_id), tf.int32)
    if "pair_label" in column:
        batch["pair_label"] = column["pair_label"][:, 0]
    if "language" in column:
        first = column["language"]
        batch["language_ids"] = tf.where(is_second, column.get("second_language", first), first)
    if "second_language" in column:
        batch["position_ids"] = positions - tf.where(is_second, boundaries, 0)
    return batch


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
    shards, pad_id = corpus.filled(split), corpus.vocabulary.special.pad

    def blocks() -> Iterator[dict[str, np.ndarray]]:
        skipped = turn * batch_size
        for first in itertools.count(first_update, updates):
            # One update more, because the first update needs its `previous_ids`.
            places = np.arange(first - 1, first + updates)[:, None] % length  # (updates + 1, 1)
            rows = firsts + np.where(is_backward, length - 1 - places, places)
            # (updates + 1, size, ...)
            columns = stores.read_rows(corpus.folder, shards, rows)
            ids = columns["token_ids"]
            ids[:, is_backward] = _reverse_ids(ids[:, is_backward], pad_id)
            starts = places[1:] == 0
            block = {name: column[1:] for name, column in columns.items()}
            block["previous_ids"] = np.where(starts[..., None], 0, ids[:-1]).astype(np.int32)
            block["starts"] = np.broadcast_to(starts, (updates, size))
            if bidirectional:
                block["backward"] = np.broadcast_to(is_backward, (updates, size))
            # (updates, size, ...) -> (updates size, ...)
            yield {n: a.reshape(-1, *a.shape[2:])[skipped:] for n, a in block.items()}
            skipped = 0

    spec = {"previous_ids": (tf.int32, (corpus.config.sequence_length,)), "starts": (tf.bool, ())}
    spec |= {"backward": (tf.bool, ())} if bidirectional else {}
    steps = tf.data.INFINITE_CARDINALITY if repeat else max(length * micro_batches - start_step, 0)
    return corpus.batches(split, blocks, spec, batch_size, steps)


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
        files.setdefault(tuple(shard.languages), []).append(shard)
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
