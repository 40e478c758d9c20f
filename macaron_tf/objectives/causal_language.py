"""Next-token prediction: GPT's, with Transformer-XL's memory, ELMo's, and beside a task's loss."""

import math
from dataclasses import dataclass

import tensorflow as tf
from keras import ops

from macaron_tf.models.base import encoder_inputs
from macaron_tf.objectives.base import (
    Batch,
    Objective,
    PretrainingObjective,
    Sums,
    Tensor,
    correct,
    cross_entropy,
    flat_rows,
    token_sums,
    weighted_sums,
    with_weights,
)
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.tasks import ClassificationObjective
from macaron_tf.settings import Natural, NonNegative
from macaron_tf.special_ids import PAD


@dataclass(frozen=True)
class CausalLanguageObjective(PretrainingObjective):
    """Cross-entropy of each token of a row given the tokens before it, padding left out.

    The first token of a row is not predicted.

    Call arguments: `network`, a `LanguageModel`; `batch` of `encoder_inputs`, and optionally
    `labels (B, L - 1)`, by default the ids from the second on. Returns `token_sums` over the
    predicted tokens.

    References: Radford et al. 2018 (GPT), eq. 1; Conneau and Lample 2019 (XLM), section 3.2, with
    language embeddings and rows of one language each.
    """

    learns = "causal_language"
    causal = True

    def preparation(self, spec, masking, vocabulary):
        """Returns the batch unchanged, or sets its documents apart.

        With `document_ids (B, L)`, each [SEP] is the last label of its document and, as an input,
        becomes the [CLS] of the next one. Every document then reads `[CLS] ids [SEP]`, as it would
        in a row of its own.
        """
        if "document_ids" not in spec:
            return lambda batch, seed: batch

        def apart(batch: Batch, seed) -> Batch:
            ids = batch["token_ids"]
            ends = ids == vocabulary.sep_id
            return {
                **batch,
                "token_ids": tf.where(ends, vocabulary.cls_id, ids),
                "document_ids": batch["document_ids"] + tf.cast(ends, tf.int32),
                "labels": ids[:, 1:],
            }

        return apart

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        if not network.config.causal:
            raise ValueError("causal language modelling needs a network with causal=True")
        ids = batch["token_ids"]
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        return self.sums(network, hidden[:, :-1], batch.get("labels", ids[:, 1:]), ids, training)

    def sums(
        self, network, hidden: Tensor, labels: Tensor, token_ids: Tensor, training: bool
    ) -> Sums:
        """`token_sums` of hidden states `(B, T, D)` and labels `(B, T)`; PAD is not counted."""
        hidden, labels = flat_rows(hidden, labels, self.skip_padding)
        weights = ops.cast(ops.not_equal(labels, PAD), "float32")
        return token_sums(network.logits(hidden), labels, weights, token_ids, training)


@dataclass(frozen=True)
class SegmentLanguageObjective(CausalLanguageObjective):
    """Cross-entropy of each token given those before it in its segment and in the memory.

    Call arguments: `network`, a `SegmentLanguageModel` with two `memories`, one for training and
    one for evaluation; `batch` of this objective's `dataset`, where row b of a batch continues row
    b of the batch before. Returns `token_sums`.

    References: Dai et al. 2019 (Transformer-XL), section 3.2.
    """

    learns = "segment_language"
    has_memory = True

    def preparation(self, spec, masking, vocabulary):
        """Makes segments of `stream_dataset`'s rows: `labels` and `token_ids`, both `(B, L - 2)`.

        A segment is a row without its [CLS] and its last column, which is a [SEP] except in the
        last row of a shard. [SEP]s between documents stay. The input token before the first label
        is the previous row's last token, or [CLS] where a text starts.
        """

        def segment(batch: Batch, seed) -> Batch:
            labels, previous = batch["token_ids"][:, 1:-1], batch["previous_ids"]
            # The last row of a shard may end in padding, behind a [SEP].
            real = tf.reduce_sum(tf.cast(previous != PAD, tf.int32), axis=-1)  # (B,)
            last = tf.clip_by_value(real - 1, 0, previous.shape[1] - 2)
            before = tf.gather(previous, last, batch_dims=1)
            before = tf.where(batch["starts"], batch["token_ids"][:, 0], before)
            token_ids = tf.concat([before[:, None], labels[:, :-1]], axis=1)
            return {"token_ids": token_ids, "labels": labels, "starts": batch["starts"]}

        return segment

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        memory = network.memories["training" if training else "evaluation"]
        past = memory.read(batch["starts"])
        hidden, past = network.with_memory(encoder_inputs(batch), past, training=training)
        memory.write(past)
        return self.sums(network, hidden, batch["labels"], batch["token_ids"], training)


@dataclass(frozen=True)
class AuxiliaryLanguageObjective(ClassificationObjective):
    """GPT's fine-tuning loss `L3 = L2 + lambda L1`: the task's loss plus a language model's.

    L1 of an example is the mean over its rows of the mean cross-entropy of a row's tokens, as in
    the paper's released code; the paper's text has sums. A row's first token is not predicted, nor
    is its last, at which the network answers.

    Attributes:
        num_classes: see `ClassificationObjective`; for a `CausalChooser` the number of choices, R.
        language_weight: lambda; 0 leaves L1 out.

    Call arguments: those of `ClassificationObjective`, with a `CausalReader` as `network`. Returns
    the same sums and, with L1, `language_loss_sum` (nats), summed over examples without lambda.

    References: Radford et al. 2018 (GPT), eq. 5.
    """

    language_weight: NonNegative = 0.5

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        logits, token_ids, hidden = network.answers_and_hidden(
            encoder_inputs(batch), training=training
        )
        batch = with_weights(batch)
        sums = self.sums(logits, batch, training)
        if self.language_weight:
            nll = _language_loss(network.language_model, token_ids, hidden)  # (B,)
            language = ops.sum(nll * batch["weight"])
            sums["loss_sum"] += self.language_weight * language
            sums["language_loss_sum"] = language
        return sums


def _language_loss(language_model, token_ids: Tensor, hidden: Tensor) -> Tensor:
    """L1 of each example, `(B,)` float32, of ids `(B, R, L)` and hidden states `(B, R, L, D)`."""
    labels = token_ids[:, :, 1:]  # (B, R, L - 1)
    # (B, R, L - 1, D) -> (N, D) and (B, R, L - 1) -> (N,), N = B R (L - 1)
    rows = ops.reshape(hidden[:, :, :-1], (-1, hidden.shape[-1]))
    nll = cross_entropy(ops.reshape(labels, (-1,)), language_model.logits(rows))  # (N,)
    nll = ops.reshape(nll, ops.shape(labels))  # (N,) -> (B, R, L - 1)
    # A row's last token is not predicted: every label that counts has another one after it.
    used = ops.cast(ops.not_equal(labels[:, :, 1:], PAD), "float32")
    used = ops.pad(used, [[0, 0], [0, 0], [0, 1]])
    count = ops.maximum(ops.sum(used, axis=2), 1.0)  # (B, R)
    return ops.mean(ops.sum(nll * used, axis=2) / count, axis=1)


@dataclass(frozen=True)
class BidirectionalLanguageObjective(Objective):
    """ELMo's loss: each word is predicted from the words before it, and from those after it.

    Attributes:
        samples: S, the classes that a word is scored against in training (sampled softmax); 0: the
            whole vocabulary. Sampling needs a vocabulary in order of frequency. The draws depend on
            the batch only, so a resumed run has those of an uninterrupted one.

    Call arguments: `network`, an `Elmo`; `batch` of `characters (B, L, C)` and `words (B, L)`, ids
    of words, -1 at padding. Returns `loss_sum` and `nll_sum` (nats) over both directions, `weight`,
    the number of predicted words, `forward_sum` and `backward_sum` with their `_weight`s, and,
    outside training, `correct_sum`.

    References: Peters et al. 2018 (ELMo), section 3.1; sampling: Jean et al. 2015.
    """

    samples: Natural = 0
    metric_names = ("loss", "perplexity", "forward", "backward", "accuracy")

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        forward, backward = network.hidden_states(batch["characters"], training=training)
        words = batch["words"]
        sums: Sums = {}
        numbers = tf.range(1, tf.size(words) + 1)
        seed = [tf.reduce_sum(words), tf.reduce_sum(tf.reshape(words, (-1,)) * numbers)]
        seeds = draws.split(tf.stack(seed), 2)
        # Position k of the forward model predicts word k + 1, of the backward one word k - 1.
        for name, hidden, answers, given, seed in (
            ("forward", forward[:, :-1], words[:, 1:], words[:, :-1], seeds[0]),
            ("backward", backward[:, 1:], words[:, :-1], words[:, 1:], seeds[1]),
        ):
            # (B, L - 1, P) -> (N, P) and (B, L - 1) -> (N,), N = B (L - 1)
            hidden = tf.reshape(hidden, (-1, hidden.shape[-1]))
            weights = tf.cast((answers >= 0) & (given >= 0), tf.float32)
            weights, answers = tf.reshape(weights, (-1,)), tf.reshape(answers, (-1,))
            answers = tf.maximum(answers, 0)
            samples = self.samples if training else 0
            losses, right = _losses(network, hidden, answers, samples, seed)
            own = weighted_sums(losses, weights, None if training else right)
            sums |= {key: sums.get(key, 0.0) + value for key, value in own.items()}
            sums |= {f"{name}_sum": own["loss_sum"], f"{name}_weight": own["weight"]}
        return {**sums, "nll_sum": sums["loss_sum"]}


def _losses(network, hidden, answers, samples: int, seed) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy `(N,)`, and `correct (N,)`, which is 0 with samples: it is then unknown."""
    if samples:
        output = network.output_layer
        kernel, bias = tf.convert_to_tensor(output.kernel), tf.convert_to_tensor(output.bias)
        draw = log_uniform(seed, samples, bias.shape[0])
        losses = sampled_cross_entropy(tf.cast(hidden, tf.float32), kernel, bias, answers, draw)
        return losses, tf.zeros_like(losses)
    scores = network.logits(hidden)  # (N, V)
    return cross_entropy(answers, scores), correct(scores, answers)


def log_uniform(seed: tf.Tensor, count: int, classes: int) -> tf.Tensor:
    """Draws S = `count` of V classes from a log-uniform distribution, with replacement.

    Class k has probability ln((k + 2) / (k + 1)) / ln(V + 1), which follows Zipf's law if words are
    in order of frequency.

    Returns:
        `(S,)` int32.
    """
    uniform = draws.uniform(seed, 1, count)[0]
    # The inverse of the distribution function ln(k + 2) / ln(V + 1).
    drawn = tf.cast(tf.exp(uniform * math.log(classes + 1)), tf.int32) - 1
    return tf.minimum(drawn, classes - 1)  # float32 may round up to V


def log_probability(classes: tf.Tensor, count: int) -> tf.Tensor:
    """Log-probability of each class in one draw of `log_uniform` from `count` classes."""
    k = tf.cast(classes, tf.float32)
    return tf.math.log(tf.math.log1p(1.0 / (k + 1.0)) / math.log(count + 1))


def sampled_cross_entropy(
    hidden: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, labels: tf.Tensor, draw: tf.Tensor
) -> tf.Tensor:
    """Sampled softmax: cross-entropy of each label against drawn classes instead of all.

    It estimates the softmax's sum over classes. The label's term is exact; the term of a drawn
    class with probability P is weighted by 1 / (S P), because S draws hit the class S P times on
    average. The loss tends to the full softmax's as S grows. All shapes are static, for XLA, which
    lacks an op of TensorFlow's own sampled loss.

    Args:
        hidden: `(N, D)`.
        kernel: `(D, V)`, classes in order of frequency.
        bias: `(V,)`.
        labels: `(N,)` int.
        draw: `(S,)`, classes drawn by `log_uniform`.

    Returns:
        `(N,)` float32, nats.

    References: Bengio and Senecal 2008, "Adaptive Importance Sampling to Accelerate Training of a
    Neural Probabilistic Language Model"; Jean et al. 2015, section 3.
    """
    own = tf.reduce_sum(hidden * tf.gather(tf.transpose(kernel), labels), axis=-1)  # (N,)
    own += tf.gather(bias, labels)
    others = hidden @ tf.gather(kernel, draw, axis=1) + tf.gather(bias, draw)  # (N, S)
    others -= log_probability(draw, bias.shape[0]) + math.log(draw.shape[0])
    others = tf.where(labels[:, None] == draw, others.dtype.min, others)
    return tf.reduce_logsumexp(tf.concat([own[:, None], others], axis=1), axis=1) - own
