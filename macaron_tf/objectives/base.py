"""What of a batch goes into an encoder."""

import abc
import dataclasses

import tensorflow as tf

from macaron_tf.objectives.masking.config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.masking.masking import masked_dataset
from macaron_tf.special_ids import PAD

ENCODER_INPUTS = ("token_ids", "segment_ids", "language_ids", "position_ids")


def encoder_inputs(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """`token_ids`, and `segment_ids`, `language_ids` and `position_ids` where there are any.

    All `(B, L)`.
    """
    return {name: batch[name] for name in ENCODER_INPUTS if name in batch}


def label_smoothed_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy of each row against `(1 - e) * one_hot(label) + e / V`.

    With `p = softmax(logits)` the loss is `nll + e * (logit[label] - mean(logits))` and its
    gradient `p - target`. The one kernel that gives nll gives `p - one_hot` as well; writing the
    rest of the gradient into that buffer saves five passes over the largest tensor of a training
    step: 4,096 tokens x 10,000 words x 4 bytes = 164 MB a pass.

    Args:
        logits: `(N, V)`, any float type; the loss is computed in float32.
        labels: `(N,)` int, from 0 to V - 1.
        label_smoothing: e, from 0 to 1. It spreads over all V words, as in fairseq.

    Returns:
        The smoothed loss `(N,)` and the plain negative log-likelihood `(N,)` in nats, both
        float32; gradients flow through the first only.

    References: Szegedy et al. 2016, section 7.
    """

    @tf.custom_gradient
    def smoothed(logits):
        scores = tf.cast(logits, tf.float32)
        nll, slope = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=scores, labels=labels)
        label_score = tf.gather(scores, labels, batch_dims=1)
        loss = nll + label_smoothing * (label_score - tf.reduce_mean(scores, axis=-1))

        def gradient(upstream, _):
            rows = tf.range(tf.shape(labels, out_type=labels.dtype)[0])
            at_labels = tf.fill(tf.shape(labels), tf.constant(label_smoothing, tf.float32))
            vocab_size = tf.cast(tf.shape(scores)[1], tf.float32)
            back = slope - label_smoothing / vocab_size
            back = tf.tensor_scatter_nd_add(back, tf.stack([rows, labels], axis=1), at_labels)
            return tf.cast(back * upstream[:, None], logits.dtype)

        return (loss, nll), gradient

    loss, nll = smoothed(logits)
    return loss, tf.stop_gradient(nll)


def hits(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """1 where the largest of `(..., C)` logits is at the label, `(...,)` float32."""
    best = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.cast(best == labels, tf.float32)


class PretrainingObjective(abc.ABC):
    """What is learnt from rows of text alone: base of the objectives.

    Attributes:
        metric_names: the metrics of an evaluation, as `metrics_from_sums` names them.

    Called with the network; a batch that `dataset` made; and `training`, it returns float32 sums
    over the batch, `loss_sum` and `weight` among them.
    """

    metric_names: tuple[str, ...]

    @abc.abstractmethod
    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        """Sums over a batch."""

    def dataset(
        self,
        rows: tf.data.Dataset,
        masking: MaskingConfig,
        vocabulary: MaskingVocabulary,
        seed: int,
        start_step: int = 0,
    ) -> tf.data.Dataset:
        """Batches to learn from, out of batches of rows: masked ones, see `masked_dataset`."""
        return masked_dataset(rows, masking, vocabulary, seed, start_step)


@dataclasses.dataclass(frozen=True)
class MaskedPlaces:
    """The masked positions of a batch, one after the other: N of them.

    Attributes:
        used: `(N,)` int32, which of the B P there are; None = all, padding included.
        length: L.
        weights: `(N,)` float32, 0 where there is nothing masked.
    """

    used: tf.Tensor | None
    length: tf.Tensor | int
    weights: tf.Tensor

    @classmethod
    def of(cls, batch: dict[str, tf.Tensor], skip_padding: bool) -> "MaskedPlaces":
        """Those of `mask_tokens`'s batch.

        Args:
            batch: with `masked_weights (B, P)`.
            skip_padding: leave out what is not masked; N is then dynamic.
        """
        weights = tf.reshape(batch["masked_weights"], (-1,))  # (B, P) -> (B P,)
        used = None
        if skip_padding:
            used = tf.cast(tf.where(weights > 0)[:, 0], tf.int32)
            weights = tf.gather(weights, used)
        return cls(used, tf.shape(batch["token_ids"])[1], weights)

    def flat(self, values: tf.Tensor) -> tf.Tensor:
        """`(B, P) -> (N,)`."""
        values = tf.reshape(values, (-1,))
        return values if self.used is None else tf.gather(values, self.used)

    def tokens(self, columns: tf.Tensor) -> tf.Tensor:
        """Columns `(B, P)` of their rows as places `(N,)` in a batch laid out as `(B L,)`."""
        return self.flat(columns + self.length * tf.range(tf.shape(columns)[0])[:, None])

    def vectors(self, hidden: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """What `hidden (B, L, D)` has at columns `(B, P)`: `(N, D)`."""
        # (B, L, D) -> (B L, D) -> (N, D)
        return tf.gather(tf.reshape(hidden, (-1, hidden.shape[-1])), self.tokens(columns))


def token_sums(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, real: tf.Tensor, training: bool
) -> dict[str, tf.Tensor]:
    """Cross-entropy of tokens, summed.

    Args:
        logits: `(N, V)`, any float type; the loss is computed in float32.
        labels: `(N,)` int.
        weights: `(N,)` float32.
        real: `(B, L)` bool, False where the input is padding.
        training: leave out what only an evaluation wants to know.

    Returns:
        Float32 `loss_sum` and `nll_sum` (nats), `weight`, `input_tokens` and, outside training,
        `correct_sum`.
    """
    logits = tf.cast(logits, tf.float32)
    nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (N,)
    nll_sum = tf.reduce_sum(nll * weights)
    sums = {
        "loss_sum": nll_sum,
        "weight": tf.reduce_sum(weights),
        "nll_sum": nll_sum,
        "input_tokens": tf.reduce_sum(tf.cast(real, tf.float32)),
    }
    if not training:
        sums["correct_sum"] = tf.reduce_sum(hits(logits, labels) * weights)
    return sums


def next_token_sums(
    network,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    real: tf.Tensor,
    skip_padding: bool,
    training: bool,
) -> dict[str, tf.Tensor]:
    """`token_sums` of a language model that has a label at every position.

    Args:
        network: with `logits`.
        hidden: `(B, T, D)`, its hidden states.
        labels: `(B, T)` int, the token to be predicted at each, PAD where there is none.
        real, training: as of `token_sums`.
        skip_padding: as in `MaskedLanguageObjective`.
    """
    # (B, T, D) -> (N, D) and (B, T) -> (N,), N = B T
    hidden = tf.reshape(hidden, (-1, hidden.shape[-1]))
    labels = tf.reshape(labels, (-1,))
    if skip_padding:
        used = tf.where(labels != PAD)[:, 0]
        hidden, labels = tf.gather(hidden, used), tf.gather(labels, used)
    weights = tf.cast(labels != PAD, tf.float32)
    return token_sums(network.logits(hidden), labels, weights, real=real, training=training)
