"""Next-token prediction, as in GPT, Transformer-XL and ELMo, and as an auxiliary task loss.

B is the batch size, L the row length and V the vocabulary size.
"""

import math
from dataclasses import dataclass

import tensorflow as tf
from keras import ops

from macaron_tf.errors import UserError
from macaron_tf.models.base import encoder_inputs
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.models.segment_memory import SegmentLanguageModel
from macaron_tf.objectives import base
from macaron_tf.objectives.base import Batch, Objective, PretrainingObjective, Sums, Tensor
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.tasks import ClassificationObjective
from macaron_tf.settings import Count, Natural, NonNegative


@dataclass(frozen=True)
class CausalLanguageObjective(PretrainingObjective):
    """Causal language modelling: cross-entropy of each token given the previous tokens of the row.

    The first token of a row and padding are not predicted. A causal `LanguageModel` reads the
    `encoder_inputs`. The labels `(B, L - 1)` are `token_ids[:, 1:]` unless the batch has `labels`.
    The sums are those of `token_sums`.

    References: Radford et al. 2018 (GPT), eq. 1; Conneau and Lample 2019 (XLM), section 3.2.
    """

    causal = True

    name: str = "causal_language"

    def network(self, config, dtype=None) -> LanguageModel:
        return LanguageModel(config, dtype=dtype)

    def preparation(self, spec, vocabulary):
        """Returns a function that separates the documents of a row with `document_ids (B, L)`.

        A [SEP] between two documents ends the first in the labels, and [CLS] in its place begins
        the second in the inputs: the network reads `[CLS] ids` and predicts `ids [SEP]` for every
        document.
        """
        if "document_ids" not in spec:
            return lambda batch, seed: batch

        def separate_documents(batch: Batch, seed) -> Batch:
            ids = batch["token_ids"]
            ends = ids == vocabulary.special.end
            return {
                **batch,
                "token_ids": tf.where(ends, vocabulary.special.begin, ids),
                "document_ids": batch["document_ids"] + tf.cast(ends, tf.int32),
                "labels": ids[:, 1:],
            }

        return separate_documents

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        if not network.config.causal:
            raise ValueError("causal language modelling needs a causal network: set causal=True")
        ids = batch["token_ids"]
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        return self.sums(network, hidden[:, :-1], batch.get("labels", ids[:, 1:]), ids, training)

    def sums(
        self, network, hidden: Tensor, labels: Tensor, token_ids: Tensor, training: bool
    ) -> Sums:
        """Computes `token_sums` over all labels that are not padding.

        `hidden (B, T, D)` predicts `labels (B, T)`, by the network's `logits`.
        """
        pad_id = network.config.pad_id
        hidden, labels, weights = base.flat_rows(hidden, labels, self.skip_padding, pad_id)
        return base.token_sums(network.logits(hidden), labels, weights, token_ids, training, pad_id)


def prefix_mask(prefixes: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Returns the attention mask `(B, L, L)` of rows of `length` L, True = attend.

    Every position sees the first `prefixes (B,)` positions of its row and, as in a causal mask, all
    positions up to its own.
    """
    columns = tf.range(length)
    return (columns < prefixes[:, None, None]) | (columns <= columns[:, None])


@dataclass(frozen=True)
class PrefixLanguageObjective(PretrainingObjective):
    """Prefix language modelling: cross-entropy of the tokens after a prefix of the row.

    [CLS] and the next tokens are the prefix, whose length is drawn uniformly from 1 to n - 1 for n
    ids. Attention is bidirectional within the prefix and causal after it. Tokens of the prefix and
    padding are not predicted.

    The network is a bidirectional `PretrainingEncoder` that reads the `encoder_inputs` with
    `attention_mask (B, L, L)`. The hidden state at position t predicts the token at position t + 1.
    The labels `(B, L - 1)` are padding where no token is predicted. The sums are those of
    `token_sums`.

    References: Raffel et al. 2020 (T5), section 3.2.1 and figure 4; Dong et al. 2019 (UniLM).
    """

    name: str = "prefix_language"

    def network(self, config, dtype=None) -> PretrainingEncoder:
        if config.without_attention:
            blocks = " and ".join(config.without_attention)
            raise UserError(f"objective {self.name!r} hides tokens by attention: replace {blocks}")
        return PretrainingEncoder(config, head_options={"transform": False}, dtype=dtype)

    def preparation(self, spec, vocabulary):
        """Returns a function that draws prefixes, and adds `attention_mask` and `labels`."""
        if "document_ids" in spec:
            raise UserError(f"objective {self.name!r} joins documents: omit data.isolate_documents")
        pad = vocabulary.special.pad

        def split(batch: Batch, seed) -> Batch:
            ids = batch["token_ids"]
            count = tf.reduce_sum(tf.cast(ids != pad, tf.int32), axis=-1)  # (B,)
            uniform = draws.uniform(seed, tf.shape(ids)[0], 1)[:, 0]
            prefixes = 1 + tf.cast(uniform * tf.cast(count - 1, tf.float32), tf.int32)  # (B,)
            length = ids.shape[1]
            is_target = tf.range(1, length) >= prefixes[:, None]
            return {
                **batch,
                "attention_mask": prefix_mask(prefixes, length),
                "labels": tf.where(is_target, ids[:, 1:], pad),
            }

        return split

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        ids, pad_id = batch["token_ids"], network.config.pad_id
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        rows = base.flat_rows(hidden[:, :-1], batch["labels"], self.skip_padding, pad_id)
        hidden, labels, weights = rows
        logits = network.masked_logits(hidden)  # (N, V)
        return base.token_sums(logits, labels, weights, ids, training, pad_id)


@dataclass(frozen=True)
class SegmentLanguageObjective(CausalLanguageObjective):
    """Transformer-XL's objective: causal language modelling of segments, with memory.

    Each token is predicted given the previous tokens of its segment and the memory, which holds
    hidden states of the previous segments. The network is a `SegmentLanguageModel` with the
    memories `training` and `evaluation`. Row b of a batch continues row b of the previous batch,
    unless `starts (B,)` is True for the row. The sums are those of `token_sums`.

    Attributes:
        memory_length: number of positions in earlier rows that attention can see.

    References: Dai et al. 2019 (Transformer-XL), section 3.2.
    """

    has_memory = True

    name: str = "segment_language"
    memory_length: Count = 128

    def network(self, config, dtype=None) -> SegmentLanguageModel:
        return SegmentLanguageModel(config, self.memory_length, dtype=dtype)

    def preparation(self, spec, vocabulary):
        """Returns a function that converts rows of `stream_dataset` to segments `(B, L - 2)`.

        The labels are the row without the first column, which has [CLS], and the last, which has
        [SEP] or padding. A [SEP] between two documents remains. The inputs are the labels shifted
        right by one token, after the last label of the previous row, or [CLS] if the row starts a
        text.
        """

        def make_segment(batch: Batch, seed) -> Batch:
            labels, previous = batch["token_ids"][:, 1:-1], batch["previous_ids"]
            # The last row of a shard may end with [SEP] and padding.
            is_real = previous != vocabulary.special.pad
            real = tf.reduce_sum(tf.cast(is_real, tf.int32), axis=-1)  # (B,)
            last = tf.clip_by_value(real - 1, 0, previous.shape[1] - 2)
            first_ids = tf.gather(previous, last, batch_dims=1)
            first_ids = tf.where(batch["starts"], batch["token_ids"][:, 0], first_ids)
            token_ids = tf.concat([first_ids[:, None], labels[:, :-1]], axis=1)
            return {"token_ids": token_ids, "labels": labels, "starts": batch["starts"]}

        return make_segment

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        memory = network.memories["training" if training else "evaluation"]
        past = memory.read(batch["starts"])
        hidden, past = network.with_memory(encoder_inputs(batch), past, training=training)
        memory.write(past)
        return self.sums(network, hidden, batch["labels"], batch["token_ids"], training)


@dataclass(frozen=True)
class AuxiliaryLanguageObjective(ClassificationObjective):
    """GPT's fine-tuning objective `L3 = L2 + lambda L1`: the task loss plus a language model loss.

    L2 is the classification loss. L1 of an example is the mean cross-entropy of the tokens in a
    row, averaged over the rows of the example, as in the released code. In the paper, L1 is a sum
    over tokens. The first token of a row is not predicted, and neither is the last token, at which
    the network classifies.

    Attributes:
        num_classes: number of classes (see `ClassificationObjective`). For a
            `CausalMultipleChoice`, `num_classes` is the number of choices, which is also the number
            of rows per example.
        language_weight: lambda, the weight of the language model loss. At 0, L1 is not computed.

    The network is a `CausalReader`. The sums are those of `ClassificationObjective`, with lambda L1
    in `loss_sum`, and, unless lambda is 0, `language_loss_sum`, the sum of L1 over examples (nats).

    References: Radford et al. 2018 (GPT), eq. 5.
    """

    language_weight: NonNegative = 0.5

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        inputs, batch = encoder_inputs(batch), base.with_weights(batch)
        logits, token_ids, hidden = network.answers_and_hidden(inputs, training=training)
        sums = self.sums(logits, batch, training, network.config.pad_id)
        if self.language_weight:
            # `token_ids (B, R, L)` has R rows per example, and `hidden` is `(B, R, L, D)`.
            labels = token_ids[:, :, 1:]  # (B, R, L - 1)
            # (B, R, L - 1, D) -> (N, D) and (B, R, L - 1) -> (N,), N = B R (L - 1)
            hidden = ops.reshape(hidden[:, :, :-1], (-1, hidden.shape[-1]))
            logits = network.language_model.logits(hidden)
            nll = base.cross_entropy(ops.reshape(labels, (-1,)), logits)  # (N,)
            nll = ops.reshape(nll, ops.shape(labels))  # (N,) -> (B, R, L - 1)
            # A row's last token is not predicted, so only labels that precede another label count.
            used = ops.not_equal(labels[:, :, 1:], network.config.pad_id)
            used = ops.pad(ops.cast(used, "float32"), [[0, 0], [0, 0], [0, 1]])
            count = ops.maximum(ops.sum(used, axis=2), 1.0)  # (B, R)
            nll = ops.mean(ops.sum(nll * used, axis=2) / count, axis=1)  # (B,)
            sums["language_loss_sum"] = ops.sum(nll * batch["weight"])
            sums["loss_sum"] += self.language_weight * sums["language_loss_sum"]
        return sums


@dataclass(frozen=True)
class BidirectionalLanguageObjective(Objective):
    """ELMo's bidirectional language modelling objective.

    A forward model predicts each word from the previous words, and a backward model predicts each
    word from the following words. The loss is the mean cross-entropy over both directions.

    Attributes:
        samples: number of classes drawn for the sampled softmax in training; 0 means the full
            softmax. The sampled softmax needs a vocabulary sorted by descending frequency. The
            draws depend only on the batch, so a resumed run equals an uninterrupted run.

    An `Elmo` reads `characters (B, L, C)` int, C characters per word, and the labels are `words (B,
    L)` int, word ids, -1 at padding.

    The sums are `loss_sum` and `nll_sum` (which are equal, in nats, over both directions), `weight`
    (number of predictions), `forward_sum`, `forward_weight`, `backward_sum`, `backward_weight` and,
    outside training, `correct_sum`.

    References: Peters et al. 2018 (ELMo), section 3.1; Jean et al. 2015 (sampled softmax).
    """

    samples: Natural = 0
    metric_names = ("loss", "perplexity", "forward", "backward", "accuracy")

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        forward, backward = network.hidden_states(batch["characters"], training=training)
        words = tf.cast(batch["words"], tf.int32)  # NumPy's default is int64
        sums: Sums = {}
        indices = tf.range(1, tf.size(words) + 1)
        seed = [tf.reduce_sum(words), tf.reduce_sum(tf.reshape(words, (-1,)) * indices)]
        seeds = draws.split(tf.stack(seed), 2)
        # At position k, the forward model predicts word k + 1, and the backward model word k - 1.
        for name, hidden, targets, context_words, seed in (
            ("forward", forward[:, :-1], words[:, 1:], words[:, :-1], seeds[0]),
            ("backward", backward[:, 1:], words[:, :-1], words[:, 1:], seeds[1]),
        ):
            # (B, L - 1, P) -> (N, P) and (B, L - 1) -> (N,), N = B (L - 1)
            hidden = tf.reshape(hidden, (-1, hidden.shape[-1]))
            weights = tf.cast((targets >= 0) & (context_words >= 0), tf.float32)
            weights, targets = tf.reshape(weights, (-1,)), tf.reshape(targets, (-1,))
            targets = tf.maximum(targets, 0)
            correctness = None
            if self.samples and training:
                output = network.output_layer
                kernel, bias = map(tf.convert_to_tensor, (output.kernel, output.bias))
                sampled_ids = log_uniform(seed, self.samples, bias.shape[0])
                hidden = tf.cast(hidden, tf.float32)
                losses = sampled_cross_entropy(hidden, kernel, bias, targets, sampled_ids)
            else:
                scores = network.logits(hidden)  # (N, V)
                losses = base.cross_entropy(targets, scores)
                correctness = None if training else base.correct(scores, targets)
            direction_sums = base.weighted_sums(losses, weights, correctness)
            sums |= {key: sums.get(key, 0.0) + value for key, value in direction_sums.items()}
            sums[f"{name}_sum"] = direction_sums["loss_sum"]
            sums[f"{name}_weight"] = direction_sums["weight"]
        return {**sums, "nll_sum": sums["loss_sum"]}


def log_uniform(seed: tf.Tensor, count: int, num_classes: int) -> tf.Tensor:
    """Draws class indices from a log-uniform (Zipfian) distribution, with replacement.

    Class k of V classes has probability ln((k + 2) / (k + 1)) / ln(V + 1). Word frequencies are
    close to this distribution if the classes are words sorted by descending frequency.
    """
    uniform = draws.uniform(seed, 1, count)[0]
    # The inverse of the distribution function ln(k + 2) / ln(V + 1).
    class_ids = tf.cast(tf.exp(uniform * math.log(num_classes + 1)), tf.int32) - 1
    return tf.minimum(class_ids, num_classes - 1)  # because float32 may round up to V


def log_probability(class_ids: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Computes the log-probability with which `log_uniform` draws each of the given classes."""
    k = tf.cast(class_ids, tf.float32)
    return tf.math.log(tf.math.log1p(1.0 / (k + 1.0)) / math.log(num_classes + 1))


def sampled_cross_entropy(
    hidden: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, labels: tf.Tensor, sampled_ids: tf.Tensor
) -> tf.Tensor:
    """Computes the cross-entropy `(N,)` of a sampled softmax, in nats.

    The label's term of the softmax denominator is exact. The term of a drawn class with probability
    p is weighted by 1 / (S p), because S draws contain it S p times on average. Draws of the label
    are ignored. As S grows, the loss approaches that of the full softmax. Unlike
    `tf.nn.sampled_softmax_loss`, this function compiles with XLA.

    Args:
        hidden: `(N, D)` float32.
        kernel: `(D, V)`, the output layer's kernel, with classes sorted by descending frequency.
            The bias is `(V,)`.
        sampled_ids: `(S,)` int, class indices from `log_uniform`.

    References: Bengio and Senecal 2008, "Adaptive Importance Sampling to Accelerate Training of a
    Neural Probabilistic Language Model"; Jean et al. 2015, section 3.
    """
    label_scores = tf.reduce_sum(hidden * tf.gather(tf.transpose(kernel), labels), axis=-1)  # (N,)
    label_scores += tf.gather(bias, labels)
    sampled_scores = hidden @ tf.gather(kernel, sampled_ids, axis=1)  # (N, S)
    sampled_scores += tf.gather(bias, sampled_ids)
    sampled_scores -= log_probability(sampled_ids, bias.shape[0]) + math.log(sampled_ids.shape[0])
    is_label = labels[:, None] == sampled_ids
    sampled_scores = tf.where(is_label, sampled_scores.dtype.min, sampled_scores)
    scores = tf.concat([label_scores[:, None], sampled_scores], axis=1)
    return tf.reduce_logsumexp(scores, axis=1) - label_scores
