"""What sentence vectors learn: the class of a pair, its cosine, or which of two is nearer.

Each objective is called with `network`, a `SiameseEncoder`; `batch` of `token_ids (B, S, L)`, S
sentences an example, `weight (B,)` float32, 0 in rows of padding, and, but for triplets,
`label (B,)`, which may be anything where the weight is 0; and `training`. It returns float32 sums
over the batch: `loss_sum`, `weight` and `input_tokens`. `loss` is the same from vectors that are
there already.

References: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
"""

import abc
import dataclasses

import tensorflow as tf

from macaron_tf.checks import check_count
from macaron_tf.models.siamese import SiameseEncoder, unit_length
from macaron_tf.objectives.base import encoder_inputs
from macaron_tf.special_ids import PAD


class SimilarityObjective(abc.ABC):
    """Base of the three.

    Attributes:
        sentences: S, sentences an example.
    """

    sentences = 2

    def __call__(
        self, network: SiameseEncoder, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        vectors = network(encoder_inputs(batch), training=training)  # (B, S, D)
        if vectors.shape[1] != self.sentences:
            raise ValueError(f"{vectors.shape[1]} sentences an example, not {self.sentences}")
        weights, labels = batch["weight"], batch.get("label")
        if labels is not None:
            # A loss of NaN stays NaN when multiplied by 0.
            labels = tf.where(weights > 0, labels, tf.zeros_like(labels))
        loss = self.loss(network, vectors, labels, training)  # (B,)
        real = tf.cast(batch["token_ids"] != PAD, tf.float32)  # (B, S, L)
        return {
            "loss_sum": tf.reduce_sum(loss * weights),
            "weight": tf.reduce_sum(weights),
            "input_tokens": tf.reduce_sum(real),
        }

    @abc.abstractmethod
    def loss(
        self,
        network: SiameseEncoder,
        vectors: tf.Tensor,
        labels: tf.Tensor | None,
        training: bool = False,
    ) -> tf.Tensor:
        """Vectors `(B, S, D)` and labels `(B,)` to losses `(B,)` float32."""


@dataclasses.dataclass(frozen=True)
class PairClassificationObjective(SimilarityObjective):
    """Cross-entropy of a pair's class: `softmax(W (u, v, |u - v|))`, or other features of the two.

    Attributes:
        num_classes: C, the network's.

    Raises:
        ValueError: fewer than 2 classes; (when called) the network has another number.
    """

    num_classes: int

    def __post_init__(self):
        check_count("num_classes", self.num_classes, least=2)

    def loss(self, network, vectors, labels, training=False):
        if network.num_classes != self.num_classes:
            raise ValueError(
                f"num_classes={self.num_classes}, but the network scores {network.num_classes}"
            )
        logits = network.pair_logits(vectors[:, 0], vectors[:, 1], training=training)  # (B, C)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))


@dataclasses.dataclass(frozen=True)
class CosineObjective(SimilarityObjective):
    """Squared error of a pair's cosine against its score, scaled to [0, 1].

    Attributes:
        low, high: the scores that become 0 and 1; 0 and 5 of STS-B.

    Raises:
        ValueError: `low` is not below `high`.
    """

    low: float = 0.0
    high: float = 5.0

    def __post_init__(self):
        if not self.low < self.high:
            raise ValueError(f"low={self.low!r} must be below high={self.high!r}")

    def loss(self, network, vectors, labels, training=False):
        units = unit_length(vectors)  # (B, 2, D)
        cosine = tf.reduce_sum(units[:, 0] * units[:, 1], axis=-1)  # (B,)
        return tf.square(cosine - (labels - self.low) / (self.high - self.low))


@dataclasses.dataclass(frozen=True)
class TripletObjective(SimilarityObjective):
    """`max(|a - p| - |a - n| + margin, 0)`: an anchor is nearer to its positive than its negative.

    Attributes:
        margin: by how much, in Euclidean distance.

    Raises:
        ValueError: the margin is not above 0.
    """

    sentences = 3
    margin: float = 1.0

    def __post_init__(self):
        if not self.margin > 0:
            raise ValueError(f"margin={self.margin!r} must be above 0")

    def loss(self, network, vectors, labels=None, training=False):
        anchor, positive, negative = tf.unstack(vectors, axis=1)  # 3 of (B, D)
        gap = _distance(anchor, positive) - _distance(anchor, negative)  # (B,)
        return tf.maximum(gap + self.margin, 0.0)


def _distance(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Euclidean: `(B, D)` and `(B, D)` to `(B,)`; the gradient between equal vectors is 0."""
    # Of a root at 0 the slope is infinite, and in a row of padding all three vectors are equal.
    return tf.sqrt(tf.maximum(tf.reduce_sum(tf.square(a - b), axis=-1), 1e-12))
