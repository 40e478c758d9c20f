"""The base of the objectives, and the inputs and sums that they share."""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import tensorflow as tf

from macaron_tf.objectives.masking.masking import Batch, MaskingConfig, mask_tokens
from macaron_tf.settings import Settings
from macaron_tf.special_ids import PAD
from macaron_tf.text.base import PieceVocabulary

Sums = dict[str, tf.Tensor]
# A batch and its seed, `(2,)` int64, to the batch that is learned from.
Preparation = Callable[[Batch, tf.Tensor], Batch]


@dataclasses.dataclass(frozen=True)
class Objective(Settings, abc.ABC):
    """A network's loss on a batch: base of the objectives.

    Called with the network, a batch and `training`, it returns float32 sums over the batch,
    `loss_sum` and `weight` among them, so that micro-batches and replicas add up exactly: the loss
    is the quotient of the two. A metric `m` is `m_sum` over `m_weight`, or over `weight`. Sums that
    only an evaluation needs, such as `correct_sum`, are left out in training.

    Attributes:
        metric_names: the metrics of an evaluation, as `metrics_from_sums` names them.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss",)

    @abc.abstractmethod
    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        """Sums over a batch."""


@dataclasses.dataclass(frozen=True)
class PretrainingObjective(Objective):
    """Base of the objectives that learn from rows of text alone.

    Attributes:
        skip_padding: compute the scores of used positions only. The number of rows is then
            dynamic: set False where shapes must be static (XLA, TPU); the result is the same.
        learns: name of the objective in recipes; of a user's own, the one whose network and rows
            it takes.
    """

    learns: ClassVar[str] = "masked_language"

    skip_padding: bool = True
    metric_names = ("loss", "nll", "perplexity", "accuracy")

    def dataset(
        self,
        rows: tf.data.Dataset,
        masking: MaskingConfig,
        vocabulary: PieceVocabulary,
        seed: int,
        start_step: int = 0,
    ) -> tf.data.Dataset:
        """Batches to learn from: batch number i of rows is prepared with the seed (`seed`, i).

        Text that is repeated is masked anew, and a run resumed at batch `start_step`, micro-batches
        counted singly, masks as one that never stopped. A validation set starts at 0 each time and
        so keeps its masks.
        """
        prepare = self.preparation(rows.element_spec, masking, vocabulary)

        @tf.autograph.experimental.do_not_convert
        def prepared(number, batch):
            return prepare(batch, tf.stack([tf.constant(seed, tf.int64), number]))

        numbered = tf.data.Dataset.zip(tf.data.Dataset.counter(start_step), rows)
        return numbered.map(prepared, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def preparation(
        self, spec: dict[str, tf.TensorSpec], masking: MaskingConfig, vocabulary: PieceVocabulary
    ) -> Preparation:
        """Makes a batch of rows, of this `spec`, one to learn from; masks it if not overridden.

        The function is traced as it stands, without AutoGraph: branches on tensors are `tf.cond`.
        Static masks, `masking.duplicates` = K of them, are of a row r and its epoch modulo K, which
        `row_number` and `epoch (B,)` int say, and not of the batch's seed.
        """
        missing = {"row_number", "epoch"} - set(spec)
        if masking.duplicates and missing:
            raise ValueError(f"static masks need {' and '.join(sorted(missing))} in every batch")

        def masked(batch, seed):
            if masking.duplicates:
                batch = dict(batch)
                row, epoch = (tf.cast(batch.pop(n), tf.int64) for n in ("row_number", "epoch"))
                copy = row * masking.duplicates + epoch % masking.duplicates  # (B,)
                seed = tf.stack([tf.fill(tf.shape(copy), seed[0]), copy], axis=1)  # (B, 2)
            return mask_tokens(batch, seed, masking, vocabulary)

        return masked


def with_weights(batch: Batch) -> Batch:
    """The batch, every example of which counts 1 where it has no `weight (B,)`."""
    if "weight" in batch:
        return batch
    return {**batch, "weight": tf.ones(tf.shape(batch["token_ids"])[:1])}


def correct(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """1 where the largest of `(..., C)` logits is at the label, `(...,)` float32."""
    best = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.cast(best == labels, tf.float32)


def weighted_sums(losses: tf.Tensor, weights: tf.Tensor, right: tf.Tensor | None = None) -> Sums:
    """`loss_sum` and `weight` of losses and weights `(...,)`; of `right (...,)`, `correct_sum`."""
    sums = {"loss_sum": tf.reduce_sum(losses * weights), "weight": tf.reduce_sum(weights)}
    return sums if right is None else {**sums, "correct_sum": tf.reduce_sum(right * weights)}


def count_tokens(token_ids: tf.Tensor) -> tf.Tensor:
    """The number of ids that are not padding, float32."""
    return tf.reduce_sum(tf.cast(token_ids != PAD, tf.float32))


def token_sums(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, token_ids: tf.Tensor, training: bool
) -> Sums:
    """Cross-entropy of tokens, summed.

    Args:
        logits: `(N, V)`, any float type; the loss is computed in float32.
        labels: `(N,)` int; weights: `(N,)` float32.
        token_ids: `(B, L)`, the network's input.

    Returns:
        `loss_sum` and `nll_sum` (nats), `weight`, `input_tokens` and, outside training,
        `correct_sum`.
    """
    logits = tf.cast(logits, tf.float32)
    nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (N,)
    sums = weighted_sums(nll, weights, None if training else correct(logits, labels))
    return {**sums, "nll_sum": sums["loss_sum"], "input_tokens": count_tokens(token_ids)}


def flat_rows(
    hidden: tf.Tensor, labels: tf.Tensor, skip_padding: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """`(B, T, D)` and `(B, T)` to `(N, D)` and `(N,)`, N = B T, or only labels that are not PAD."""
    hidden = tf.reshape(hidden, (-1, hidden.shape[-1]))
    labels = tf.reshape(labels, (-1,))
    if skip_padding:
        used = tf.where(labels != PAD)[:, 0]
        hidden, labels = tf.gather(hidden, used), tf.gather(labels, used)
    return hidden, labels


@dataclasses.dataclass(frozen=True)
class MaskedPositions:
    """The N masked positions of a batch, one after the other.

    Attributes:
        used: `(N,)` int32, indices among the B P positions; None = all, padding included.
        length: L.
        weights: `(N,)` float32, 0 at unused positions.
    """

    used: tf.Tensor | None
    length: tf.Tensor | int
    weights: tf.Tensor

    @classmethod
    def of(cls, batch: Batch, skip_padding: bool) -> "MaskedPositions":
        """The masked positions of a batch, see `mask_tokens`.

        With `skip_padding` unused ones are left out, and N is dynamic.
        """
        weights = tf.reshape(batch["masked_weights"], (-1,))  # (B, P) -> (B P,)
        used = None
        if skip_padding:
            used = tf.cast(tf.where(weights > 0)[:, 0], tf.int32)
            weights = tf.gather(weights, used)
        return cls(used, tf.shape(batch["token_ids"])[1], weights)

    def flat(self, values: tf.Tensor) -> tf.Tensor:
        """`(B, P, ...) -> (N, ...)`."""
        values = tf.reshape(values, (-1, *values.shape[2:]))
        return values if self.used is None else tf.gather(values, self.used)

    def flat_columns(self, columns: tf.Tensor) -> tf.Tensor:
        """Columns `(B, P)` of their rows as indices `(N,)` into a batch laid out as `(B L,)`."""
        return self.flat(columns + self.length * tf.range(tf.shape(columns)[0])[:, None])

    def sums(self, logits: tf.Tensor, batch: Batch, training: bool) -> Sums:
        """`token_sums` of logits `(N, V)` against the batch's `masked_labels (B, P)`."""
        labels = self.flat(batch["masked_labels"])
        return token_sums(logits, labels, self.weights, batch["token_ids"], training)

    def vectors(self, hidden: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """`hidden (B, L, D)` at columns `(B, P)`: `(N, D)`."""
        # (B, L, D) -> (B L, D) -> (N, D)
        return tf.gather(tf.reshape(hidden, (-1, hidden.shape[-1])), self.flat_columns(columns))
