"""Base classes of the objectives, and the losses and sums that they share."""

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
# From a batch of rows and a seed, `(2,)` int64, to the batch that the network is trained on.
Preparation = Callable[[Batch, tf.Tensor], Batch]


@dataclasses.dataclass(frozen=True)
class Objective(Settings, abc.ABC):
    """Base of the objectives: the loss of a network on a batch.

    An objective is called with the network, a batch and `training`, and returns float32 sums over
    the batch. Sums, unlike means, add up exactly over micro-batches and replicas. The loss is
    `loss_sum / weight`, and a metric `m` is `m_sum / m_weight`, or `m_sum / weight` if there is no
    `m_weight`. Sums that only an evaluation needs, such as `correct_sum`, are left out in training.

    The sums are computed in `keras.ops`, for both engines. Batches are prepared by tf.data, in
    TensorFlow.

    Attributes:
        metric_names: the metrics of an evaluation, as `metrics_from_sums` names them.
        causal: whether the network predicts each next token, so that it can continue a text.
        fills_masks: whether the network predicts masked tokens, so that it can fill in [MASK].
        encoder_decoder: whether the network reads one text and writes another.
        has_memory: whether texts continue from batch to batch, and the network keeps a memory of
            the batches before.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss",)
    causal: ClassVar[bool] = False
    fills_masks: ClassVar[bool] = False
    encoder_decoder: ClassVar[bool] = False
    has_memory: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        """Computes the sums over a batch."""


@dataclasses.dataclass(frozen=True)
class PretrainingObjective(Objective):
    """Base of the objectives that need unlabelled text only.

    Attributes:
        skip_padding: compute logits only at the positions that count in the loss. Their number
            varies from batch to batch: set False where shapes must be static (XLA, TPU, JAX). The
            result is the same.
        learns: name of the objective in recipes. An objective of a user's own has the name of the
            built-in one whose network and input rows it uses.
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
        """Maps batches of rows to training batches: number i is prepared with seed (`seed`, i).

        Each epoch over the same text has new masks. A resumed run has the masks of an uninterrupted
        one. Validation starts at 0 each time, so its masks never change.

        Args:
            start_step: number of the first batch; each micro-batch counts as one.
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
        """Returns the function that makes a training batch of a batch of rows.

        This one masks tokens; objectives with other inputs override it. The function is traced
        without AutoGraph: branches on tensors need `tf.cond`.

        With static masks (`masking.duplicates` = K > 0) a row has K masks in turn: the mask depends
        on the row's number and its epoch modulo K instead of on the batch.

        Args:
            spec: of the batch of rows; static masks need `row_number` and `epoch`, `(B,)` int.
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
    """Adds `weight (B,)` of ones to a batch that has no weights of its examples."""
    if "weight" in batch:
        return batch
    return {**batch, "weight": ops.ones(ops.shape(batch["token_ids"])[:1])}


def cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy of labels `(...,)` and logits `(..., C)`: `(...,)` float32, in nats.

    Raises:
        ValueError: the shapes of labels and logits do not match.
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
    # On other backends Keras multiplies by one-hot labels, and 0 times -inf is NaN.
    return -ops.take_along_axis(ops.log_softmax(scores), labels[..., None], axis=-1)[..., 0]


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """1 where the label has the largest of the logits `(..., C)`, else 0: `(...,)` float32."""
    best = ops.cast(ops.argmax(logits, axis=-1), labels.dtype)
    return ops.cast(ops.equal(best, labels), "float32")


def weighted_sums(losses: Tensor, weights: Tensor, right: Tensor | None = None) -> Sums:
    """Sums losses by their weights, both `(...,)`: `loss_sum` and `weight`.

    With `right (...,)`, 1 at correct answers, also `correct_sum`.
    """
    sums = {"loss_sum": ops.sum(losses * weights), "weight": ops.sum(weights)}
    return sums if right is None else {**sums, "correct_sum": ops.sum(right * weights)}


def count_tokens(token_ids: Tensor) -> Tensor:
    """Number of ids that are not padding, float32."""
    return ops.sum(ops.cast(ops.not_equal(token_ids, PAD), "float32"))


def token_sums(
    logits: Tensor, labels: Tensor, weights: Tensor, token_ids: Tensor, training: bool
) -> Sums:
    """Summed cross-entropy of N tokens.

    Args:
        logits: `(N, V)`, any float type.
        labels: `(N,)` int.
        weights: `(N,)` float32.
        token_ids: `(B, L)`, the network's input.

    Returns:
        `loss_sum` and `nll_sum` (nats), `weight`, `input_tokens` and, outside training,
        `correct_sum`.
    """
    nll = cross_entropy(labels, logits)  # (N,)
    sums = weighted_sums(nll, weights, None if training else correct(logits, labels))
    return {**sums, "nll_sum": sums["loss_sum"], "input_tokens": count_tokens(token_ids)}


def flat_rows(hidden: Tensor, labels: Tensor, skip_padding: bool) -> tuple[Tensor, Tensor]:
    """Flattens hidden states `(B, T, D)` and labels `(B, T)` to `(N, D)` and `(N,)`.

    N = B T, or with `skip_padding` the number of labels that are not PAD.
    """
    hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))
    labels = ops.reshape(labels, (-1,))
    if skip_padding:
        used = tf.where(labels != PAD)[:, 0]
        hidden, labels = tf.gather(hidden, used), tf.gather(labels, used)
    return hidden, labels


@dataclasses.dataclass(frozen=True)
class MaskedPositions:
    """The masked positions of a batch `(B, P)`, flattened to N.

    Attributes:
        used: `(N,)` int32, indices into the flattened `(B P,)`; None: all, padding included.
        length: L, the length of the batch's rows.
        weights: `(N,)` float32, 0 at padding.
    """

    used: Tensor | None
    length: Tensor | int
    weights: Tensor

    @classmethod
    def of(cls, batch: Batch, skip_padding: bool) -> "MaskedPositions":
        """Flattens the positions of a batch made by `mask_tokens`.

        With `skip_padding` padding is left out, and N is dynamic; otherwise N = B P.
        """
        weights = ops.reshape(batch["masked_weights"], (-1,))  # (B, P) -> (B P,)
        used = None
        if skip_padding:
            used = tf.cast(tf.where(weights > 0)[:, 0], tf.int32)
            weights = tf.gather(weights, used)
        return cls(used, ops.shape(batch["token_ids"])[1], weights)

    def flat(self, values: Tensor) -> Tensor:
        """Flattens values of the masked positions: `(B, P, ...) -> (N, ...)`."""
        values = ops.reshape(values, (-1, *values.shape[2:]))
        return values if self.used is None else tf.gather(values, self.used)

    def flat_columns(self, columns: Tensor) -> Tensor:
        """Converts columns `(B, P)` to indices `(N,)` into the flattened tokens `(B L,)`."""
        rows = ops.arange(ops.shape(columns)[0], dtype=columns.dtype)
        return self.flat(columns + self.length * rows[:, None])

    def sums(self, logits: Tensor, batch: Batch, training: bool) -> Sums:
        """`token_sums` of logits `(N, V)` and the batch's `masked_labels (B, P)`."""
        labels = self.flat(batch["masked_labels"])
        return token_sums(logits, labels, self.weights, batch["token_ids"], training)

    def vectors(self, hidden: Tensor, columns: Tensor) -> Tensor:
        """Hidden states `(B, L, D)` at columns `(B, P)`: `(N, D)`."""
        # (B, L, D) -> (B L, D) -> (N, D)
        rows = ops.reshape(hidden, (-1, hidden.shape[-1]))
        return ops.take(rows, self.flat_columns(columns), axis=0)
