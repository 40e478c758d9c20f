"""The base of the objectives, and the inputs and sums that they share."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras import ops

from macaron_tf.kernels import native, runs_native
from macaron_tf.objectives.masking.masking import Batch, MaskingConfig, mask_tokens
from macaron_tf.settings import Settings
from macaron_tf.special_ids import PAD
from macaron_tf.text.base import PieceVocabulary

Tensor = Any  # of Keras's backend
Sums = dict[str, Tensor]
# A batch and its seed, `(2,)` int64, to the batch that is learned from.
Preparation = Callable[[Batch, tf.Tensor], Batch]


@dataclasses.dataclass(frozen=True)
class Objective(Settings, abc.ABC):
    """A network's loss on a batch: base of the objectives.

    Called with the network, a batch and `training`, it returns float32 sums over the batch,
    `loss_sum` and `weight` among them, so that micro-batches and replicas add up exactly: the loss
    is the quotient of the two. A metric `m` is `m_sum` over `m_weight`, or over `weight`. Sums that
    only an evaluation needs, such as `correct_sum`, are left out in training.

    The sums are in `keras.ops`, for both engines; batches are prepared by tf.data, in TensorFlow.

    Attributes:
        metric_names: the metrics of an evaluation, as `metrics_from_sums` names them.
        causal: the network predicts each next token: it goes on with any text.
        fills_masks: the network predicts masked tokens: it fills in each [MASK].
        encoder_decoder: the network reads one text and writes another.
        has_memory: texts go on from batch to batch, and the network remembers what came before.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss",)
    causal: ClassVar[bool] = False
    fills_masks: ClassVar[bool] = False
    encoder_decoder: ClassVar[bool] = False
    has_memory: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        """Sums over a batch."""


@dataclasses.dataclass(frozen=True)
class PretrainingObjective(Objective):
    """Base of the objectives that learn from rows of text alone.

    Attributes:
        skip_padding: compute the scores of used positions only. The number of rows is then
            dynamic: set False where shapes must be static (XLA, TPU, JAX); the result is the same.
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
    return {**batch, "weight": ops.ones(ops.shape(batch["token_ids"])[:1])}


def cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy, float32 nats, of labels `(...,)` under logits `(..., C)` of any float type.

    Raises:
        ValueError: the shapes do not fit each other.
    """
    if runs_native(logits):
        labels = tf.convert_to_tensor(labels)
        labels.shape.assert_is_compatible_with(logits.shape[:-1])
        rows = ops.reshape(logits, (-1, ops.shape(logits)[-1]))  # (..., C) -> (N, C)
        losses, _ = native.cross_entropy(rows, ops.reshape(labels, (-1,)))
        return ops.reshape(losses, ops.shape(labels))
    scores = ops.cast(logits, "float32")
    if keras.backend.backend() == "tensorflow":
        return ops.sparse_categorical_crossentropy(labels, scores, from_logits=True)
    # Keras multiplies by one-hot labels there: 0 times a -inf is NaN.
    return -ops.take_along_axis(ops.log_softmax(scores), labels[..., None], axis=-1)[..., 0]


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """1 where the largest of `(..., C)` logits is at the label, `(...,)` float32."""
    best = ops.cast(ops.argmax(logits, axis=-1), labels.dtype)
    return ops.cast(ops.equal(best, labels), "float32")


def weighted_sums(losses: Tensor, weights: Tensor, right: Tensor | None = None) -> Sums:
    """`loss_sum` and `weight` of losses and weights `(...,)`; of `right (...,)`, `correct_sum`."""
    sums = {"loss_sum": ops.sum(losses * weights), "weight": ops.sum(weights)}
    return sums if right is None else {**sums, "correct_sum": ops.sum(right * weights)}


def count_tokens(token_ids: Tensor) -> Tensor:
    """The number of ids that are not padding, float32."""
    return ops.sum(ops.cast(ops.not_equal(token_ids, PAD), "float32"))


def token_sums(
    logits: Tensor, labels: Tensor, weights: Tensor, token_ids: Tensor, training: bool
) -> Sums:
    """Cross-entropy of tokens, summed.

    Args:
        logits: `(N, V)`, any float type.
        labels: `(N,)` int; weights: `(N,)` float32.
        token_ids: `(B, L)`, the network's input.

    Returns:
        `loss_sum` and `nll_sum` (nats), `weight`, `input_tokens` and, outside training,
        `correct_sum`.
    """
    nll = cross_entropy(labels, logits)  # (N,)
    sums = weighted_sums(nll, weights, None if training else correct(logits, labels))
    return {**sums, "nll_sum": sums["loss_sum"], "input_tokens": count_tokens(token_ids)}


def flat_rows(hidden: Tensor, labels: Tensor, skip_padding: bool) -> tuple[Tensor, Tensor]:
    """`(B, T, D)` and `(B, T)` to `(N, D)` and `(N,)`, N = B T, or only labels that are not PAD."""
    hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))
    labels = ops.reshape(labels, (-1,))
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

    used: Tensor | None
    length: Tensor | int
    weights: Tensor

    @classmethod
    def of(cls, batch: Batch, skip_padding: bool) -> "MaskedPositions":
        """The masked positions of a batch, see `mask_tokens`.

        With `skip_padding` unused ones are left out, and N is dynamic.
        """
        weights = ops.reshape(batch["masked_weights"], (-1,))  # (B, P) -> (B P,)
        used = None
        if skip_padding:
            used = tf.cast(tf.where(weights > 0)[:, 0], tf.int32)
            weights = tf.gather(weights, used)
        return cls(used, ops.shape(batch["token_ids"])[1], weights)

    def flat(self, values: Tensor) -> Tensor:
        """`(B, P, ...) -> (N, ...)`."""
        values = ops.reshape(values, (-1, *values.shape[2:]))
        return values if self.used is None else tf.gather(values, self.used)

    def flat_columns(self, columns: Tensor) -> Tensor:
        """Columns `(B, P)` of their rows as indices `(N,)` into a batch laid out as `(B L,)`."""
        rows = ops.arange(ops.shape(columns)[0], dtype=columns.dtype)
        return self.flat(columns + self.length * rows[:, None])

    def sums(self, logits: Tensor, batch: Batch, training: bool) -> Sums:
        """`token_sums` of logits `(N, V)` against the batch's `masked_labels (B, P)`."""
        labels = self.flat(batch["masked_labels"])
        return token_sums(logits, labels, self.weights, batch["token_ids"], training)

    def vectors(self, hidden: Tensor, columns: Tensor) -> Tensor:
        """`hidden (B, L, D)` at columns `(B, P)`: `(N, D)`."""
        # (B, L, D) -> (B L, D) -> (N, D)
        rows = ops.reshape(hidden, (-1, hidden.shape[-1]))
        return ops.take(rows, self.flat_columns(columns), axis=0)
