"""The next token: GPT's objective, with a memory, in both directions (ELMo), or beside a task."""

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
    """Cross-entropy of each real token given those before it in its row; the first is given.

    Call arguments: `network`, a `LanguageModel`; `batch` of `encoder_inputs`, and optionally
    `labels (B, L - 1)`, which are the ids themselves from the second on. Returns `token_sums` over
    the predicted tokens.

    References: Radford et al. 2018 (GPT), eq. 1; on text of one language a row, with its embedding,
    Conneau and Lample 2019 (XLM), section 3.2.
    """

    learns = "causal_language"
    causal = True

    def preparation(self, spec, masking, vocabulary):
        """Rows stay as they are: nothing is masked.

        With `document_ids (B, L)` a [SEP] is predicted as the end of its document, and read as the
        [CLS] of the next one: each document of a row is `[CLS] ids [SEP]`, as in a row of its own.
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
        """`token_sums` of states `(B, T, D)` and labels `(B, T)`, PAD where there is none."""
        hidden, labels = flat_rows(hidden, labels, self.skip_padding)
        weights = ops.cast(ops.not_equal(labels, PAD), "float32")
        return token_sums(network.logits(hidden), labels, weights, token_ids, training)


@dataclass(frozen=True)
class SegmentLanguageObjective(CausalLanguageObjective):
    """Cross-entropy of each token given those before it, in its segment and in the memory.

    Call arguments: `network`, a `SegmentLanguageModel` with `memories`, one for training and one
    for evaluation; `batch` of this objective's `dataset`, whose rows go on from batch to batch.
    Returns `token_sums`.

    References: Dai et al. 2019 (Transformer-XL), section 3.2.
    """

    learns = "segment_language"
    has_memory = True

    def preparation(self, spec, masking, vocabulary):
        """Segments of `stream_dataset`'s rows: `labels (B, L - 2)`, and the token before each.

        Rows lose their [CLS] and their last column, a [SEP] in all but the last row of a shard.
        The [SEP]s between documents stay, and a text begins behind a [CLS].
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
    """`L3 = L2 + lambda L1`: the loss of the answer and that of the language model.

    An example's L1 is the mean over its rows, each the mean cross-entropy of the row's tokens given
    those before them, as in the paper's released code (its text has sums). The first token is
    given, and the last, which the answer is read from, is not part of the text.

    Attributes:
        num_classes: see `ClassificationObjective`; for a `CausalChooser` the choices, R.
        language_weight: lambda; 0 leaves L1 out.

    Call arguments: those of `ClassificationObjective`, with a `CausalReader` as `network`. Returns
    the same sums and, with L1, its `language_loss_sum` (nats) over the examples, before lambda.

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
    """L1 of each example: ids `(B, R, L)` and hidden states `(B, R, L, D)` to `(B,)` float32."""
    labels = token_ids[:, :, 1:]  # (B, R, L - 1)
    # (B, R, L - 1, D) -> (N, D) and (B, R, L - 1) -> (N,), N = B R (L - 1)
    rows = ops.reshape(hidden[:, :, :-1], (-1, hidden.shape[-1]))
    nll = cross_entropy(ops.reshape(labels, (-1,)), language_model.logits(rows))  # (N,)
    nll = ops.reshape(nll, ops.shape(labels))  # (N,) -> (B, R, L - 1)
    # Not the last token of a row: behind the others there is one more.
    used = ops.cast(ops.not_equal(labels[:, :, 1:], PAD), "float32")
    used = ops.pad(used, [[0, 0], [0, 0], [0, 1]])
    count = ops.maximum(ops.sum(used, axis=2), 1.0)  # (B, R)
    return ops.mean(ops.sum(nll * used, axis=2) / count, axis=1)


@dataclass(frozen=True)
class BidirectionalLanguageObjective(Objective):
    """Cross-entropy of each word given the words before it, and of each given those after it.

    Attributes:
        samples: in training score a word against so many others, drawn by frequency, instead of
            all; 0 = all. The vocabulary must then be in order of frequency. A batch decides its
            draws: a resumed run draws as an uninterrupted one.

    Call arguments: `network`, an `Elmo`; `batch` of `characters (B, L, C)` and `words (B, L)`, the
    words' numbers in the vocabulary, -1 at padding. Returns `loss_sum` and `nll_sum` (nats) over
    both directions, `weight`, the number of words predicted, `forward_sum`, `backward_sum` with
    `forward_weight` and `backward_weight`, and, outside training, `correct_sum`.

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
        # Position k of the forward model answers for k + 1, of the backward one for k - 1.
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
    """Cross-entropy `(N,)` and `correct (N,)`; with samples the latter is unknown: 0."""
    if samples:
        output = network.output_layer
        kernel, bias = tf.convert_to_tensor(output.kernel), tf.convert_to_tensor(output.bias)
        draw = log_uniform(seed, samples, bias.shape[0])
        losses = sampled_cross_entropy(tf.cast(hidden, tf.float32), kernel, bias, answers, draw)
        return losses, tf.zeros_like(losses)
    scores = network.logits(hidden)  # (N, V)
    return cross_entropy(answers, scores), correct(scores, answers)


def log_uniform(seed: tf.Tensor, count: int, classes: int) -> tf.Tensor:
    """S = `count` draws with replacement of V classes, as frequent as words are: `(S,)` int32.

    Class k has probability ln((k + 2) / (k + 1)) / ln(V + 1), by Zipf's law.
    """
    uniform = draws.uniform(seed, 1, count)[0]
    # The inverse of the distribution function ln(k + 2) / ln(V + 1).
    drawn = tf.cast(tf.exp(uniform * math.log(classes + 1)), tf.int32) - 1
    return tf.minimum(drawn, classes - 1)  # float32 may round up to V


def log_probability(classes: tf.Tensor, count: int) -> tf.Tensor:
    """ln of the probability of each class in one draw of `log_uniform` from `count` classes."""
    k = tf.cast(classes, tf.float32)
    return tf.math.log(tf.math.log1p(1.0 / (k + 1.0)) / math.log(count + 1))


def sampled_cross_entropy(
    hidden: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, labels: tf.Tensor, draw: tf.Tensor
) -> tf.Tensor:
    """Cross-entropy of each label against drawn classes instead of all: a sampled softmax.

    The sum over all classes is estimated: the label's own part is known, and each draw of another
    class counts 1 / (S P) of that class's part, since S draws hit it S P times on average. With
    more draws the loss tends to the whole softmax's. All shapes are static: XLA lacks an op of
    TensorFlow's own sampled loss.

    Args:
        hidden: `(N, D)`.
        kernel: `(D, V)`, the classes in order of frequency; bias: `(V,)`.
        labels: `(N,)` int.
        draw: `(S,)`, of `log_uniform`.

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
