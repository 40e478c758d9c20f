"""From sentence pairs to token-bucketed batches of a few static shapes."""

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import Batch, Buckets, choose_lengths
from macaron_tf.data.translation.pairs import (
    CleaningConfig,
    SamplingConfig,
    counted,
    tokenize,
    tokenized_split,
)
from macaron_tf.errors import UserError
from macaron_tf.text.token_rows import TokenizedPairs
from macaron_tf.text.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class BatchingConfig:
    """How rows are grouped.

    Args:
        max_tokens: rows times padded length of a batch, on one side.
        shapes: greatest number of static shapes.
        length_multiple: padded lengths are multiples of this. On Multi30k 8 shapes give 0.876 real
            tokens in a padded one with 2, 0.856 with 4, 0.770 with 8 (what a TPU wants).
        row_multiple: rows are rounded down to a multiple of this: 8 lets up to 8 replicas share a
            batch and suits the tiles of accelerators.
    """

    max_tokens: int = 4096
    shapes: int = 8
    length_multiple: int = 2
    row_multiple: int = 8

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise UserError(f"batching: {field.name} is {value}: it must be 1 or more")


class TranslationData:
    """A tokenized split, dealt into batches; the same seed and step always give the same batch.

    Args:
        tokens: the rows, source and target, each ids + EOS.
        batching: how they are grouped.
        lengths: lengths of the buckets, instead of the best ones for these rows; give a training
            set's `lengths` to its validation set to share its shapes. A longer row adds a bucket.

    Raises:
        UserError: no row at all, or a row longer than the tokens of a batch.
    """

    def __init__(
        self,
        tokens: TokenizedPairs,
        batching: BatchingConfig | None = None,
        lengths: Sequence[int] | None = None,
    ):
        batching = batching or BatchingConfig()
        self.tokens = tokens
        self.batching = batching
        if not len(tokens.indices):
            raise UserError(f"no pair to batch: {counted(tokens.removed)}")
        # A pair's padded length is that of its longer side.
        self.row_lengths = np.maximum(tokens.source.lengths, tokens.target.lengths)
        best = choose_lengths(self.row_lengths, batching.shapes, batching.length_multiple)
        if lengths is not None:
            best = [*lengths, *([best[-1]] if best[-1] > max(lengths) else [])]
        self.buckets = Buckets(best, batching.max_tokens, batching.row_multiple)
        self.steps_per_epoch = self.buckets.steps(self.row_lengths)

    @classmethod
    def build(
        cls,
        source: str,
        split: str,
        vocabulary: Vocabulary,
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        cleaning: CleaningConfig | None = None,
        batching: BatchingConfig | None = None,
        lengths: Sequence[int] | None = None,
        sampling: SamplingConfig | None = None,
        data_dir: str | os.PathLike | None = None,
        cache_dir: str | os.PathLike | None = None,
        download: bool = False,
    ) -> "TranslationData":
        """Reads, cleans and tokenizes a split, or takes it from the cache.

        Args:
            source, split, data_dir, download: as for `sources.read_pairs`.
            vocabulary: cuts lines into ids.
            source_lang, target_lang: languages; the vocabulary's when None.
            cleaning: limits of a pair.
            batching, lengths: as for the class.
            sampling: BPE-dropout, for training; none when None.
            cache_dir: where tokenized splits are kept; a folder of `files.cache_directory()` when
                None.

        Returns:
            The data.

        Raises:
            UserError: as `read_pairs`; no pair is left; the cache cannot be written.
        """
        tokens = tokenized_split(
            source,
            split,
            vocabulary,
            cleaning or CleaningConfig(),
            (source_lang or vocabulary.languages[0], target_lang or vocabulary.languages[1]),
            sampling=sampling,
            data_dir=data_dir,
            cache_dir=cache_dir,
            download=download,
        )
        return cls(tokens, batching, lengths)

    @classmethod
    def from_pairs(
        cls,
        pairs: Sequence[tuple[str, str]],
        vocabulary: Vocabulary,
        *,
        cleaning: CleaningConfig | None = None,
        batching: BatchingConfig | None = None,
        lengths: Sequence[int] | None = None,
    ) -> "TranslationData":
        """Cleans and tokenizes pairs that are at hand, without a cache.

        Args:
            pairs: (source, target) lines in the vocabulary's languages.
            vocabulary, cleaning, batching, lengths: as for `build`.

        Returns:
            The data.

        Raises:
            UserError: no pair is left.
        """
        cleaning = cleaning or CleaningConfig()
        tokens = tokenize(pairs, vocabulary, cleaning, vocabulary.languages)
        return cls(tokens, batching, lengths)

    def __len__(self) -> int:
        """Number of rows: pairs, or copies of them under BPE-dropout."""
        return len(self.tokens.indices)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(B, L) of every batch that can occur, shortest first."""
        return self.buckets.shapes

    @property
    def lengths(self) -> tuple[int, ...]:
        """The padded lengths, ascending."""
        return self.buckets.lengths

    @property
    def source_tokens(self) -> int:
        """Tokens of the source side, EOS included."""
        return int(self.tokens.source.offsets[-1])

    @property
    def target_tokens(self) -> int:
        """Tokens of the target side, EOS included: those that a loss counts in an epoch."""
        return int(self.tokens.target.offsets[-1])

    def padding_efficiency(self) -> float:
        """Real tokens in a padded one, source and target together, over an epoch."""
        plan = self.batch_plan(seed=0, epoch=0)
        padded = sum(2 * len(batch.rows) * batch.length for batch in plan)
        return (self.source_tokens + self.target_tokens) / padded

    def fingerprint(self) -> str:
        """SHA-256 (hex) over all ids and row lengths: what the model is trained on, to the id."""
        digest = hashlib.sha256()
        for rows in (self.tokens.source, self.tokens.target):
            digest.update(np.ascontiguousarray(rows.offsets))
            digest.update(np.ascontiguousarray(rows.ids))
        return digest.hexdigest()

    def summary(self) -> str:
        """One line for the log: pairs, what was removed, steps, shapes, efficiency."""
        shapes = " ".join(f"{rows}x{length}" for rows, length in self.shapes)
        return (
            f"{len(self):,} pairs ({counted(self.tokens.removed)}), {self.source_tokens:,} source "
            f"and {self.target_tokens:,} target tokens, {self.steps_per_epoch:,} steps an epoch, "
            f"{self.padding_efficiency():.1%} of the padded tokens real, shapes {shapes}"
        )

    def batch_plan(self, seed: int, epoch: int) -> list[Batch]:
        """The batches of an epoch: each pair in exactly one of them.

        Args:
            seed: with the epoch, decides everything.
            epoch: number of the epoch, from 0.

        Returns:
            `steps_per_epoch` batches.
        """
        return self.buckets.plan(self.row_lengths, np.random.default_rng([seed, epoch]))

    def batches(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> Iterator[dict]:
        """The batches from a global step on; the skipped ones cost nothing.

        Args:
            seed: decides the order.
            start_step: number of the first batch, counted from the start of epoch 0.
            repeat: go on with the next epochs for ever, or end with the epoch begun.

        Yields:
            {"source": (B, L) int32, "target": (B, L) int32}.
        """
        epoch, offset = divmod(start_step, self.steps_per_epoch)
        while True:
            for batch in self.batch_plan(seed, epoch)[offset:]:
                yield self._gather(batch)
            if not repeat:
                return
            epoch, offset = epoch + 1, 0

    def dataset(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> tf.data.Dataset:
        """`batches` as a tf.data.Dataset, prefetched.

        Args:
            seed, start_step, repeat: as for `batches`.

        Returns:
            Dataset of {"source": (B, L), "target": (B, L)} int32, of shape (None, None) in its
            specification where there are several shapes; its cardinality is known.
        """
        left = self.steps_per_epoch - start_step % self.steps_per_epoch
        return _dataset(
            lambda: self.batches(seed, start_step, repeat),
            {"source": 2, "target": 2},
            tf.data.INFINITE_CARDINALITY if repeat else left,
            self.shapes,
        )

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Every pair once, in ascending order of length.

        Returns:
            Dataset of {"source": (B, L), "target": (B, L), "index": (B,)} int32; `index` is a
            pair's place among the pairs before cleaning, -1 in rows of padding.
        """

        def batches() -> Iterator[dict]:
            for batch in self.buckets.plan(self.row_lengths, None):
                index = np.where(batch.rows < 0, -1, self.tokens.indices[batch.rows])
                yield {**self._gather(batch), "index": index.astype(np.int32)}

        return _dataset(
            batches, {"source": 2, "target": 2, "index": 1}, self.steps_per_epoch, self.shapes
        )

    def _gather(self, batch: Batch) -> dict[str, np.ndarray]:
        return {
            "source": self.tokens.source.padded(batch.rows, batch.length),
            "target": self.tokens.target.padded(batch.rows, batch.length),
        }


def _dataset(
    generator, ranks: dict[str, int], cardinality: int, shapes: Sequence[tuple[int, int]]
) -> tf.data.Dataset:
    shape = shapes[0] if len(shapes) == 1 else (None, None)
    signature = {
        name: tf.TensorSpec(shape[:rank], tf.int32, name=name) for name, rank in ranks.items()
    }
    dataset = tf.data.Dataset.from_generator(generator, output_signature=signature)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    return dataset.prefetch(tf.data.AUTOTUNE)
