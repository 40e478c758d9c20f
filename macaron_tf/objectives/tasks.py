"""Objectives for classification, regression, answer spans, tagging, sequences and sentence vectors.

B is the batch size and L the row length. A padding row has weight 0 and an arbitrary label. All
objectives except `SequenceObjective` replace the label of a padding row by 0, because an invalid
label could give a NaN loss, and NaN times the weight 0 is NaN.
"""

import abc
from dataclasses import dataclass
from typing import Annotated, Literal

import tensorflow as tf
from annotated_types import Ge
from keras import ops

from macaron_tf.models.base import Network, encoder_inputs
from macaron_tf.models.tasks import SiameseEncoder, unit_length
from macaron_tf.objectives import base
from macaron_tf.objectives.base import Batch, Objective, Sums, Tensor
from macaron_tf.settings import INT32, Count, Positive


def _labels(batch: Batch) -> Tensor:
    """Returns the labels `(B, ...)` of a batch, with 0 in its padding rows."""
    labels = batch["label"]
    real = ops.reshape(batch["weight"] > 0, (-1, *[1] * (len(labels.shape) - 1)))
    return ops.where(real, labels, ops.zeros_like(labels))


def _check_outputs(name: str, configured: int, outputs: int) -> None:
    if configured != outputs:
        raise ValueError(f"{name}={configured} must be the network's number of outputs, {outputs}")


class TaskObjective(Objective):
    """Base class of the objectives that compare a network's logits with labels.

    The network maps the `encoder_inputs` to logits. Padding has id 0 if the network is not a model
    of this library. The batch also has `label` and, optionally, `weight (B,)` float32, 1 by
    default.

    Returns:
        Dict of `loss_sum`, `weight`, `input_tokens` (the number of tokens that are not padding)
        and, outside training and except for regression, `correct_sum`.
    """

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        logits = network(encoder_inputs(batch), training=training)
        pad_id = network.config.pad_id if isinstance(network, Network) else 0
        return self.sums(logits, base.with_weights(batch), training, pad_id)

    def sums(self, logits: Tensor, batch: Batch, training: bool, pad_id: int = 0) -> Sums:
        """Computes the sums that `__call__` returns, from the network's logits."""
        logits, labels = ops.cast(logits, "float32"), _labels(batch)
        losses, weights, correctness = self.losses(logits, labels, batch["weight"])
        sums = base.weighted_sums(losses, weights, None if training else correctness)
        mask = batch.get("padding_mask")
        counted = (batch["token_ids"], pad_id) if mask is None else (mask, 0)
        return {**sums, "input_tokens": base.count_tokens(*counted)}

    @abc.abstractmethod
    def losses(
        self, logits: Tensor, labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Computes the loss, weight and correctness (0 or 1) of each prediction.

        All are float32, `(B,)` or `(B, L)`. Correctness is `None` for regression. The subclass
        documents the shape of the `labels`, the batch's `label`. The `weights` of the rows are
        `(B,)`.
        """


@dataclass(frozen=True)
class ClassificationObjective(TaskObjective):
    """Cross-entropy for classification, or squared error for regression.

    Attributes:
        num_classes: C, the number of classes. 1 means regression.

    The network is an `EncoderClassifier` or a `CausalReader`. `label (B,)` is int32 from 0 to C -
    1, or float32 for regression.
    """

    num_classes: Count

    def losses(self, logits, labels, weights):
        _check_outputs("num_classes", self.num_classes, logits.shape[-1])
        if self.num_classes == 1:
            return ops.square(logits[:, 0] - labels), weights, None
        return base.cross_entropy(labels, logits), weights, base.correct(logits, labels)


@dataclass(frozen=True)
class MultiLabelObjective(TaskObjective):
    """Mean binary cross-entropy of C classes, of which any number may apply.

    A prediction is correct if it is correct for every class. `label (B, C)` int32 is 1 for each
    class that applies.
    """

    def losses(self, logits, labels, weights):
        losses = ops.binary_crossentropy(ops.cast(labels, "float32"), logits, from_logits=True)
        is_right = ops.all((logits > 0) == (labels > 0), axis=-1)
        return ops.mean(losses, axis=-1), weights, ops.cast(is_right, "float32")


class SpanObjective(TaskObjective):
    """Objective of extractive question answering: mean cross-entropy of answer start and end.

    A prediction is correct if both the most probable start and the most probable end are correct.
    The network is an `EncoderQuestionAnswering`. `label (B, 2)` int32 contains the first and the
    last position of the answer, or two zeros if there is no answer.

    References: Devlin et al. 2018 (BERT), section 4.2 and the released code.
    """

    def losses(self, logits, labels, weights):
        losses = ops.mean(base.cross_entropy(labels, logits), axis=1)  # (B, 2) -> (B,)
        return losses, weights, ops.prod(base.correct(logits, labels), axis=1)


@dataclass(frozen=True)
class TaggingObjective(TaskObjective):
    """Cross-entropy of word tags, averaged over the words of a batch.

    The network is an `EncoderTokenClassifier`. `label (B, L)` int32 is the tag index plus 1 at the
    first subword piece of each word, and 0 elsewhere.

    Attributes:
        num_tags: number of tags.

    References: Devlin et al. 2018 (BERT), section 5.3.
    """

    num_tags: Count

    def losses(self, logits, labels, weights):
        _check_outputs("num_tags", self.num_tags, logits.shape[-1])
        tags = ops.maximum(labels - 1, 0)  # (B, L)
        losses, words = base.cross_entropy(tags, logits), ops.cast(labels > 0, "float32")
        return losses, words, base.correct(logits, tags)


@dataclass(frozen=True)
class SequenceObjective(Objective):
    """Mean loss of sequence models over all positions, or over the last positions of sequences.

    Attributes:
        loss: name of the loss. `"bernoulli"` is the binary cross-entropy (nats), summed over the
            outputs of a position, such as the keys of a piano. `"classes"` is the cross-entropy.
            `"squared_error"` is the squared error, averaged over the outputs of a position.
        skip_padding: whether to compute logits only at positions with a weight above 0. Shapes are
            then dynamic.

    The network is a `TemporalModel`. The batch has `inputs`, `targets` and
    `weight`. The weight, float32, is 0 at positions without a target. The shape of the weight is
    `(B, L)`, or `(B,)` if the network predicts only at the last position. Class indices in
    `targets` have the same shape as the weight, and float targets have one more axis.

    The sums are `loss_sum`, `weight` and, with `loss="classes"`, `nll_sum` (nats) and, outside
    training, `correct_sum`.

    References: Bai et al. 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent
    Networks for Sequence Modeling", section 4.
    """

    loss: Literal["bernoulli", "classes", "squared_error"]
    skip_padding: bool = True

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics. `loss="classes"` adds perplexity and accuracy to the loss."""
        return ("loss", "perplexity", "accuracy") if self.loss == "classes" else ("loss",)

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        hidden = network.hidden_states(batch["inputs"], training=training)  # (..., D)
        rank = len(batch["weight"].shape)
        # (..., D) -> (N, D); (...,) -> (N,); (..., O) or (...,) -> (N, O) or (N,)
        hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))
        weights = ops.reshape(batch["weight"], (-1,))
        targets = batch["targets"]
        targets = ops.reshape(targets, (-1, *targets.shape[rank:]))
        if self.skip_padding:
            used = tf.where(weights > 0)[:, 0]
            hidden, weights, targets = (tf.gather(x, used) for x in (hidden, weights, targets))
        logits = network.logits(hidden)  # (N, O)
        if self.loss == "classes":
            correctness = None if training else base.correct(logits, targets)
            sums = base.weighted_sums(base.cross_entropy(targets, logits), weights, correctness)
            return {**sums, "nll_sum": sums["loss_sum"]}
        scores = ops.cast(logits, "float32")
        if self.loss == "squared_error":
            return base.weighted_sums(ops.mean(ops.square(scores - targets), axis=-1), weights)
        losses = ops.binary_crossentropy(targets, scores, from_logits=True)
        return base.weighted_sums(ops.sum(losses, axis=-1), weights)


class SimilarityObjective(Objective):
    """Base class of the objectives that train the sentence vectors of a `SiameseEncoder`.

    The batch has `token_ids (B, S, L)` int, `label (B,)` (not needed for triplets) and, optionally,
    `weight (B,)` float32. The sums are `loss_sum`, `weight` and `input_tokens`.

    Attributes:
        sentences: S, the number of sentences in an example.

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
    """

    sentences = 2

    def __call__(self, network: SiameseEncoder, batch: Batch, training: bool) -> Sums:
        vectors = network(encoder_inputs(batch), training=training)  # (B, S, D)
        batch = base.with_weights(batch)
        labels = _labels(batch) if "label" in batch else None
        sums = base.weighted_sums(self.loss(network, vectors, labels, training), batch["weight"])
        tokens = base.count_tokens(batch["token_ids"], network.config.pad_id)
        return {**sums, "input_tokens": tokens}

    @abc.abstractmethod
    def loss(self, network, vectors: Tensor, labels: Tensor | None, training=False) -> Tensor:
        """Computes the loss of each example, `(B,)` float32, from sentence vectors `(B, S, D)`.

        `labels` is `None` if the batch has no labels, which only triplets allow.
        """


@dataclass(frozen=True)
class PairClassificationObjective(SimilarityObjective):
    """Cross-entropy for the classification of sentence pairs.

    By default, the network predicts the class by `softmax(W (u, v, |u - v|))` from the sentence
    vectors u and v.

    Attributes:
        num_classes: number of classes, 2 or more.
    """

    num_classes: Annotated[int, Ge(2), INT32]

    def loss(self, network, vectors, labels, training=False):
        _check_outputs("num_classes", self.num_classes, network.num_classes)
        logits = network.pair_logits(vectors[:, 0], vectors[:, 1], training=training)  # (B, C)
        return base.cross_entropy(labels, logits)


@dataclass(frozen=True)
class CosineObjective(SimilarityObjective):
    """Squared error between the label and the cosine similarity of a sentence pair.

    The label is scaled from [`low`, `high`] to [0, 1]. The default is the range of STS-B, [0, 5].

    Attributes:
        low: label that is scaled to 0.
        high: label that is scaled to 1.
    """

    low: float = 0.0
    high: float = 5.0

    def check(self):
        if not self.low < self.high:
            raise self.error(f"low={self.low!r} must be below high={self.high!r}")

    def loss(self, network, vectors, labels, training=False):
        units = unit_length(vectors)  # (B, 2, D)
        cosine = ops.sum(units[:, 0] * units[:, 1], axis=-1)  # (B,)
        return ops.square(cosine - (labels - self.low) / (self.high - self.low))


@dataclass(frozen=True)
class TripletObjective(SimilarityObjective):
    """Triplet loss `max(|a - p| - |a - n| + margin, 0)` of an anchor, a positive and a negative.

    Attributes:
        margin: minimum difference between the two Euclidean distances at which the loss is 0.
    """

    sentences = 3
    margin: Positive = 1.0

    def loss(self, network, vectors, labels=None, training=False):
        anchor, positive, negative = ops.unstack(vectors, axis=1)  # 3 of (B, D)
        gap = _distance(anchor, positive) - _distance(anchor, negative)  # (B,)
        return ops.maximum(gap + self.margin, 0.0)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Computes Euclidean distances `(B,)` between vectors `(B, D)`. The gradient at 0 is 0."""
    # Without the maximum, the gradient of the square root at 0 is infinite. All vectors of a
    # padding row are equal.
    return ops.sqrt(ops.maximum(ops.sum(ops.square(a - b), axis=-1), 1e-12))
