"""Base classes of the objectives, and the loss functions that the objectives share."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras import ops

from macaron_tf.kernels import native, runs_native
from macaron_tf.objectives.masking.masking import Batch, MaskingConfig, mask_tokens
from macaron_tf.settings import Settings
from macaron_tf.text.base import PieceVocabulary

Tensor = Any  # tensor of the current Keras backend
Sums = dict[str, Tensor]
# Function that converts a batch of token rows and a seed, `(2,)` int64, to a training batch.
Preparation = Callable[[Batch, tf.Tensor], Batch]


@dataclasses.dataclass(frozen=True)
class Objective(Settings, abc.ABC):
    """Base class of the objectives, which compute the loss of a network on a batch.

    An objective returns float32 sums over the batch, because sums, unlike means, add up exactly
    over micro-batches and replicas. The loss is `loss_sum / weight`. A metric `m` is
    `m_sum / m_weight`, or `m_sum / weight` if there is no `m_weight`. During training, sums that
    only an evaluation needs, such as `correct_sum`, are left out.

    Most objectives run on the TensorFlow and the JAX backend. On JAX, `skip_padding` must be False.
    `BidirectionalLanguageObjective` and `BackTranslationObjective` run only on TensorFlow.

    Attributes:
        metric_names: names of the evaluation metrics, such as `"perplexity"`.
        causal: whether the network predicts the next token, so that the network can continue a
            text.
        fills_masks: whether the network predicts masked tokens, so that the network can fill in
            [MASK].
        encoder_decoder: whether the network is an encoder-decoder.
        has_memory: whether each row of a batch continues the same row of the previous batch, and
            the network keeps the previous hidden states as its memory.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss",)
    causal: ClassVar[bool] = False
    fills_masks: ClassVar[bool] = False
    encoder_decoder: ClassVar[bool] = False
    has_memory: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "__call__" in cls.__dict__:
            call = cls.__call__

            @functools.wraps(call)
            def int32_call(self, network, batch, training):
                # Objectives compute with indices of this type.
                batch = {name: ops.convert_to_tensor(value) for name, value in batch.items()}
                for name, value in batch.items():
                    if keras.backend.is_int_dtype(value.dtype):
                        batch[name] = ops.cast(value, "int32")
                return call(self, network, batch, training)

            cls.__call__ = int32_call

    @abc.abstractmethod
    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        """Computes the sums of the loss and of the metrics over a batch of tensors by feature name.

        The result maps names such as `loss_sum` and `weight` to float32 scalars.
        """


@dataclasses.dataclass(frozen=True)
class PretrainingObjective(Objective):
    """Base class of the objectives that need only unlabelled text.

    A user's objective is a subclass of the built-in objective that trains the same type of network
    on the same rows.

    Attributes:
        name: name of the objective in recipes, or `package.module:Name` for a user's class.
        skip_padding: whether to compute logits only at the positions that count in the loss. The
            number of these positions varies from batch to batch, so set False if shapes must be
            static (XLA, TPU, JAX). `skip_padding` does not change the loss.
        sentinels: number of sentinel ids of T5, which follow the ids of the vocabulary.
        duplicates: number of different masks per row in static masking; `None` without.
    """

    section: ClassVar[str] = "objective"
    sentinels: ClassVar[int] = 0
    duplicates: ClassVar[int | None] = None

    name: str = ""
    skip_padding: bool = True
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "nll", "perplexity", "accuracy")

    def __post_init__(self, trust_code: bool):
        if self.name == type(self).name and "name" not in vars(type(self)):  # a user's class
            location = f"{type(self).__module__}:{type(self).__qualname__}"
            object.__setattr__(self, "name", location)
        super().__post_init__(trust_code)

    @abc.abstractmethod
    def network(self, config: Settings, dtype: Any = None) -> Any:
        """Makes, but does not build, the network that this objective trains."""

    def dataset(
        self, rows: tf.data.Dataset, vocabulary: PieceVocabulary, seed: int, start_step: int = 0
    ) -> tf.data.Dataset:
        """Converts batches of rows, `token_ids (B, L)` int, to training batches.

        The seed of batch i is (`seed`, i), so with dynamic masking each epoch over the same text
        uses new masks. A run that resumes at `start_step`, counted in micro-batches, uses the same
        masks as an uninterrupted run.
        """
        prepare = self.preparation(rows.element_spec, vocabulary)

        @tf.autograph.experimental.do_not_convert
        def prepare_batch(index, batch):
            batch = {n: tf.cast(x, tf.int32) if x.dtype.is_integer else x for n, x in batch.items()}
            return prepare(batch, tf.stack([tf.constant(seed, tf.int64), index]))

        numbered = tf.data.Dataset.zip(tf.data.Dataset.counter(start_step), rows)
        return numbered.map(prepare_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    @abc.abstractmethod
    def preparation(
        self, spec: dict[str, tf.TensorSpec], vocabulary: PieceVocabulary
    ) -> Preparation:
        """Returns the function from a batch of token rows, of specs `spec`, to a training batch.

        The function is traced without AutoGraph, so branches on tensors need `tf.cond`.
        """


@dataclasses.dataclass(frozen=True)
class MaskedObjective(PretrainingObjective):
    """Base class of the objectives that mask tokens and predict them.

    Attributes:
        masking: settings of token masking.
    """

    fills_masks = True

    masking: MaskingConfig = MaskingConfig()

    @property
    def duplicates(self) -> int | None:
        return self.masking.duplicates

    def preparation(self, spec, vocabulary):
        """Returns a function that masks tokens.

        With static masking (`masking.duplicates` = K), each row has K different masks. Epoch e uses
        mask e modulo K, so a batch needs `row_number` and `epoch`, both `(B,)` int.
        """
        masking = self.masking

        def masked(batch, seed):
            if masking.duplicates:
                batch = dict(batch)
                row, epoch = (tf.cast(batch.pop(n), tf.int64) for n in ("row_number", "epoch"))
                mask_index = row * masking.duplicates + epoch % masking.duplicates  # (B,)
                first = tf.fill(tf.shape(mask_index), seed[0])
                seed = tf.stack([first, mask_index], axis=1)  # (B, 2)
            return mask_tokens(batch, seed, masking, vocabulary)

        return masked


def with_weights(batch: Batch) -> Batch:
    """Returns the batch with `weight (B,)`. A missing weight is 1 in every row."""
    if "weight" in batch:
        return batch
    return {**batch, "weight": ops.ones(ops.shape(batch["token_ids"])[:1])}


def cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Computes the cross-entropy `(...,)` in nats, in float32, of logits `(..., C)`."""
    if runs_native(logits):
        labels = tf.convert_to_tensor(labels)
        labels.shape.assert_is_compatible_with(logits.shape[:-1])
        flat_logits = ops.reshape(logits, (-1, ops.shape(logits)[-1]))  # (..., C) -> (N, C)
        losses, _ = native.cross_entropy(flat_logits, ops.reshape(labels, (-1,)))
        return ops.reshape(losses, ops.shape(labels))
    scores = ops.cast(logits, "float32")
    if keras.backend.backend() == "tensorflow":
        return ops.sparse_categorical_crossentropy(labels, scores, from_logits=True)
    # On other backends, Keras multiplies log-probabilities by one-hot labels: 0 times -inf is NaN.
    return -ops.take_along_axis(ops.log_softmax(scores), labels[..., None], axis=-1)[..., 0]


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns 1 where the label's logit is the largest in `(..., C)`, and else 0, as float32."""
    predicted = ops.cast(ops.argmax(logits, axis=-1), labels.dtype)
    return ops.cast(ops.equal(predicted, labels), "float32")


def weighted_sums(losses: Tensor, weights: Tensor, correctness: Tensor | None = None) -> Sums:
    """Computes the weighted sums `loss_sum` and, unless `correctness` is `None`, `correct_sum`.

    All arguments are float32 `(...,)`. `correctness` is 1 at correct predictions and 0 elsewhere.
    The dict also contains `weight`, the sum of the weights.
    """
    sums = {"loss_sum": ops.sum(losses * weights), "weight": ops.sum(weights)}
    return sums if correctness is None else {**sums, "correct_sum": ops.sum(correctness * weights)}


def count_tokens(token_ids: Tensor, pad_id: int) -> Tensor:
    """Counts the ids that are not `pad_id`, as a float32 scalar."""
    return ops.sum(ops.cast(ops.not_equal(token_ids, pad_id), "float32"))


def token_sums(
    logits: Tensor, labels: Tensor, weights: Tensor, token_ids: Tensor, training: bool, pad_id: int
) -> Sums:
    """Computes the weighted sum of the cross-entropies of N predicted tokens.

    Logits are `(N, V)`, labels and weights `(N,)`, and `token_ids (B, L)` the network's input. The
    dict has `loss_sum` and `nll_sum` (equal, in nats), `weight`, `input_tokens` (ids that are not
    padding) and, outside training, `correct_sum`.
    """
    nll = cross_entropy(labels, logits)  # (N,)
    sums = weighted_sums(nll, weights, None if training else correct(logits, labels))
    return {**sums, "nll_sum": sums["loss_sum"], "input_tokens": count_tokens(token_ids, pad_id)}


def flat_rows(
    hidden: Tensor, labels: Tensor, skip_padding: bool, pad_id: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Flattens hidden states `(B, T, D)` and labels `(B, T)` to `(N, D)` and `(N,)`.

    With `skip_padding`, positions whose label is `pad_id` are left out, and N is dynamic. Otherwise
    N = B T. The third result is each label's weight, `(N,)` float32, 0 at padding.
    """
    hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))
    labels = ops.reshape(labels, (-1,))
    if skip_padding:
        used = tf.where(labels != pad_id)[:, 0]
        hidden, labels = tf.gather(hidden, used), tf.gather(labels, used)
    return hidden, labels, ops.cast(ops.not_equal(labels, pad_id), "float32")


@dataclasses.dataclass(frozen=True)
class MaskedPositions:
    """Masked positions of a batch, flattened from `(B, P)` to `(N,)`.

    P is the maximum number of masked positions in a row.

    Attributes:
        used: `(N,)` int32, indices of the masked positions in the flattened `(B P,)`. `None` means
            all B P positions, including padding.
        length: L, the row length.
        weights: `(N,)` float32, 0 at padding.
    """

    used: Tensor | None
    length: Tensor | int
    weights: Tensor
    pad_id: int = 0

    @classmethod
    def of(cls, batch: Batch, skip_padding: bool, pad_id: int = 0) -> "MaskedPositions":
        """Flattens the masked positions of a batch from `mask_tokens`.

        With `skip_padding`, padding is left out, and N is dynamic. Otherwise N = B P.
        """
        weights = ops.reshape(batch["masked_weights"], (-1,))  # (B, P) -> (B P,)
        used = None
        if skip_padding:
            used = tf.cast(tf.where(weights > 0)[:, 0], tf.int32)
            weights = tf.gather(weights, used)
        return cls(used, ops.shape(batch["token_ids"])[1], weights, pad_id)

    def flat(self, values: Tensor) -> Tensor:
        """Flattens one value for each masked position from `(B, P, ...)` to `(N, ...)`."""
        values = ops.reshape(values, (-1, *values.shape[2:]))
        return values if self.used is None else tf.gather(values, self.used)

    def flat_columns(self, columns: Tensor) -> Tensor:
        """Converts positions `(B, P)` in rows to indices `(N,)` in the flattened `(B L,)`."""
        rows = ops.arange(ops.shape(columns)[0], dtype=columns.dtype)
        return self.flat(columns + self.length * rows[:, None])

    def sums(self, logits: Tensor, batch: Batch, training: bool) -> Sums:
        """Computes `token_sums` from logits `(N, V)` and the batch's `masked_labels (B, P)`."""
        labels, ids = self.flat(batch["masked_labels"]), batch["token_ids"]
        return token_sums(logits, labels, self.weights, ids, training, self.pad_id)

    def vectors(self, hidden: Tensor, columns: Tensor) -> Tensor:
        """Gathers hidden states `(B, L, D)` at positions `columns (B, P)`, as `(N, D)`."""
        # (B, L, D) -> (B L, D) -> (N, D)
        rows = ops.reshape(hidden, (-1, hidden.shape[-1]))
        return ops.take(rows, self.flat_columns(columns), axis=0)
