"""Objectives of tasks: classes, answer spans, tags, sequences, and sentence vectors.

A row of padding has weight 0 and an arbitrary label. Its label is set to 0, because a NaN loss
stays NaN when multiplied by weight 0.
"""

import abc
from dataclasses import dataclass
from typing import Annotated, Literal

import tensorflow as tf
from annotated_types import Ge
from keras import ops

from macaron_tf.models.base import encoder_inputs
from macaron_tf.models.tasks import SiameseEncoder, unit_length
from macaron_tf.objectives.base import (
    Batch,
    Objective,
    Sums,
    Tensor,
    correct,
    count_tokens,
    cross_entropy,
    weighted_sums,
    with_weights,
)
from macaron_tf.settings import INT32, Count, Positive


def _labels_where(real: Tensor, labels: Tensor) -> Tensor:
    """Labels where `real`, else 0."""
    return ops.where(real, labels, ops.zeros_like(labels))


def _check_scores(name: str, asked: int, scored: int) -> None:
    if asked != scored:
        raise ValueError(f"{name}={asked}, but the network scores {scored}")


class TaskObjective(Objective):
    """Base of the objectives that compare a network's logits with labels.

    Call arguments: `network`, from `encoder_inputs` to logits; `batch` of these inputs, `label` and
    optionally `weight (B,)` float32, by default 1. Returns `loss_sum`, `weight`, `input_tokens`
    and, for classes outside training, `correct_sum`.
    """

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        logits = network(encoder_inputs(batch), training=training)
        return self.sums(logits, with_weights(batch), training)

    def sums(self, logits: Tensor, batch: Batch, training: bool) -> Sums:
        """Computes the returned sums from the network's logits."""
        losses, weights, right = self.answers(ops.cast(logits, "float32"), batch)
        sums = weighted_sums(losses, weights, None if training else right)
        tokens = count_tokens(batch.get("padding_mask", batch["token_ids"]))
        return {**sums, "input_tokens": tokens}

    @abc.abstractmethod
    def answers(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Losses, weights and correctness (0 or 1) of answers, all `(B,)` or `(B, L)` float32.

        Correctness is None where answers are numbers.
        """


@dataclass(frozen=True)
class ClassificationObjective(TaskObjective):
    """Cross-entropy of classes, or squared error of numbers.

    Attributes:
        num_classes: C; 1 for a number.

    Call arguments: `network`, an `EncoderClassifier` or `CausalReader`; `label (B,)`, int32 from 0
    to C - 1, or float32 for a number.
    """

    num_classes: Count

    def answers(self, logits, batch):
        _check_scores("num_classes", self.num_classes, logits.shape[-1])
        weights = batch["weight"]
        labels = _labels_where(weights > 0, batch["label"])
        if self.num_classes == 1:
            return ops.square(logits[:, 0] - labels), weights, None
        return cross_entropy(labels, logits), weights, correct(logits, labels)


class SpanObjective(TaskObjective):
    """Mean of two cross-entropies over positions: of the answer's start and of its end.

    Call arguments: `network`, an `EncoderSpanReader`; `label (B, 2)` int32, the first and the last
    position of the answer, both 0 if there is none. A row is correct if the likeliest start and the
    likeliest end both are.

    References: Devlin et al. 2018 (BERT), section 4.2 and its released code.
    """

    def answers(self, logits, batch):
        weights = batch["weight"]
        labels = _labels_where(weights[:, None] > 0, batch["label"])
        losses = ops.mean(cross_entropy(labels, logits), axis=1)  # (B, 2) -> (B,)
        return losses, weights, ops.prod(correct(logits, labels), axis=1)


@dataclass(frozen=True)
class TaggingObjective(TaskObjective):
    """Cross-entropy of the tags of words, averaged over the words of a batch.

    Attributes:
        num_tags: C.

    Call arguments: `network`, an `EncoderTagger`; `label (B, L)` int32, at the first piece of each
    word the tag's number plus 1, from 1 to C, and 0 elsewhere. The sums are over words.

    References: Devlin et al. 2018 (BERT), section 5.3.
    """

    num_tags: Count

    def answers(self, logits, batch):
        _check_scores("num_tags", self.num_tags, logits.shape[-1])
        words = (batch["label"] > 0) & (batch["weight"][:, None] > 0)  # (B, L)
        tags = _labels_where(words, batch["label"] - 1)  # (B, L)
        return cross_entropy(tags, logits), ops.cast(words, "float32"), correct(logits, tags)


@dataclass(frozen=True)
class SequenceObjective(Objective):
    """Mean loss over the answers to sequences: one at each position, or one a sequence.

    Attributes:
        loss: `"bernoulli"`: negative log-likelihood (nats) of O keys, each pressed or not, summed
            over the keys of a frame. `"classes"`: cross-entropy. `"squared_error"`: mean over the O
            numbers of an answer.
        skip_padding: compute logits only where the weight is above 0; the shapes are then dynamic.

    Call arguments: `network`, a `TemporalModel` or `WordTagger`; `batch` of `inputs`; `targets`,
    `(..., O)` floats or `(...,)` classes; and `weight (...,)` float32, 0 where there is no answer.
    `...` is `(B, L)`, or `(B,)` if the network answers at the last position only. Returns
    `loss_sum`, `weight` and, for classes, `nll_sum` and, outside training, `correct_sum`.

    References: Bai et al. 2018, section 4.
    """

    loss: Literal["bernoulli", "classes", "squared_error"]
    skip_padding: bool = True

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics: the loss, and for classes perplexity and accuracy."""
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
            right = None if training else correct(logits, targets)
            sums = weighted_sums(cross_entropy(targets, logits), weights, right)
            return {**sums, "nll_sum": sums["loss_sum"]}
        scores = ops.cast(logits, "float32")
        if self.loss == "squared_error":
            return weighted_sums(ops.mean(ops.square(scores - targets), axis=-1), weights)
        losses = ops.binary_crossentropy(targets, scores, from_logits=True)
        return weighted_sums(ops.sum(losses, axis=-1), weights)


class SimilarityObjective(Objective):
    """Base of the objectives that train sentence vectors.

    Call arguments: `network`, a `SiameseEncoder`; `batch` of `token_ids (B, S, L)` with S sentences
    per example, optionally `weight (B,)` float32, and `label (B,)` except for triplets. Returns
    `loss_sum`, `weight` and `input_tokens`.

    Attributes:
        sentences: S.

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
    """

    sentences = 2

    def __call__(self, network: SiameseEncoder, batch: Batch, training: bool) -> Sums:
        vectors = network(encoder_inputs(batch), training=training)  # (B, S, D)
        if vectors.shape[1] != self.sentences:
            raise ValueError(f"{vectors.shape[1]} sentences an example, not {self.sentences}")
        weights, labels = with_weights(batch)["weight"], batch.get("label")
        if labels is not None:
            labels = _labels_where(weights > 0, labels)
        loss = self.loss(network, vectors, labels, training)  # (B,)
        sums = weighted_sums(loss, weights)
        return {**sums, "input_tokens": count_tokens(batch["token_ids"])}

    @abc.abstractmethod
    def loss(
        self,
        network: SiameseEncoder,
        vectors: Tensor,
        labels: Tensor | None,
        training: bool = False,
    ) -> Tensor:
        """Computes losses `(B,)` float32 of vectors `(B, S, D)` and labels `(B,)`."""


@dataclass(frozen=True)
class PairClassificationObjective(SimilarityObjective):
    """Cross-entropy of a pair's class, predicted by `softmax(W (u, v, |u - v|))` by default.

    Attributes:
        num_classes: C of the network, 2 or more.
    """

    num_classes: Annotated[int, Ge(2), INT32]

    def loss(self, network, vectors, labels, training=False):
        _check_scores("num_classes", self.num_classes, network.num_classes)
        logits = network.pair_logits(vectors[:, 0], vectors[:, 1], training=training)  # (B, C)
        return cross_entropy(labels, logits)


@dataclass(frozen=True)
class CosineObjective(SimilarityObjective):
    """Squared error between a pair's cosine and its score, scaled to [0, 1].

    Attributes:
        low, high: the scores that are scaled to 0 and 1; the defaults are STS-B's.
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
    """Triplet loss `max(|a - p| - |a - n| + margin, 0)` of anchor, positive and negative.

    Attributes:
        margin: difference of the two Euclidean distances above which the loss is 0.
    """

    sentences = 3
    margin: Positive = 1.0

    def loss(self, network, vectors, labels=None, training=False):
        anchor, positive, negative = ops.unstack(vectors, axis=1)  # 3 of (B, D)
        gap = _distance(anchor, positive) - _distance(anchor, negative)  # (B,)
        return ops.maximum(gap + self.margin, 0.0)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distance of `(B, D)` and `(B, D)`: `(B,)`; its gradient at distance 0 is 0."""
    # The slope of a square root at 0 is infinite. In a row of padding all vectors are equal.
    return ops.sqrt(ops.maximum(ops.sum(ops.square(a - b), axis=-1), 1e-12))
