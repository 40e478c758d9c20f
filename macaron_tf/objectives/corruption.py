"""Objectives on corrupted text: the base class for T5 and BART, and T5's objectives.

B is the batch size, R the maximum text length, S the source length and T the target length.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import tensorflow as tf
from annotated_types import Ge, Gt, Lt

from macaron_tf.errors import UserError
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.objectives.base import Batch, PretrainingObjective, Sums
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.translation import TranslationObjective
from macaron_tf.special import Special
from macaron_tf.text.base import PieceVocabulary

# Function from a text `(B, R)` and a seed to a source `(B, S)` and a target `(B, T)`, which both
# end in EOS.
Corruption = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class CorruptionObjective(PretrainingObjective):
    """Base class of the pre-training objectives of encoder-decoders.

    The source (the encoder's input) is a corrupted text, and the loss is the cross-entropy of the
    target given the source. The text is a row without [CLS] and the last [SEP]. Source and target
    end in EOS, and the decoder's input begins with BOS. A row of padding gives a source and a
    target of only PAD.

    An `EncoderDecoder` reads `source (B, S)` and `target (B, T)` int. The sums are those of a
    `TranslationObjective` without label smoothing.
    """

    encoder_decoder = True

    @abc.abstractmethod
    def corruption(self, vocabulary: PieceVocabulary, length: int) -> Corruption:
        """Returns a function that corrupts texts `(B, R)`, R <= `length`, with a seed `(2,)`.

        It returns the sources `(B, S)` and the targets `(B, T)`.
        """

    def network(self, config, dtype=None) -> EncoderDecoder:
        return EncoderDecoder(config, dtype=dtype)

    def preparation(self, spec, vocabulary):
        """Returns a function that makes `source` and `target` from rows `[CLS] text [SEP]`."""
        pad = vocabulary.special.pad
        corrupt = self.corruption(vocabulary, spec["token_ids"].shape[1] - 2)

        def make_pair(batch: Batch, seed: tf.Tensor) -> Batch:
            ids = batch["token_ids"]
            text = tf.where(ids[:, 2:] != pad, ids[:, 1:-1], pad)  # (B, L) -> (B, L - 2)
            return dict(zip(("source", "target"), corrupt(text, seed), strict=True))

        return make_pair

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        translation = TranslationObjective(label_smoothing=0.0, skip_padding=self.skip_padding)
        return translation(network, batch, training)


def lengths_of(text: tf.Tensor, pad: int) -> tf.Tensor:
    """Counts the tokens of each text `(B, R)` that are not `pad`, as `(B,)` int32."""
    return tf.reduce_sum(tf.cast(text != pad, tf.int32), axis=-1)


def pack_left(ids: tf.Tensor, keep: tf.Tensor, new_length: int, pad: int) -> tf.Tensor:
    """Removes ids from each row, moves the remaining ids to the left and fills the row with `pad`.

    `ids` is `(B, R)` and the result `(B, new_length)`. `keep (B, R)` is True at ids to keep, at
    most `new_length` in a row.
    """
    columns = tf.cumsum(tf.cast(keep, tf.int32), axis=-1, exclusive=True)
    ids = tf.where(keep, ids - pad, 0)
    return pad + draws.reduced_by_row(ids, tf.where(keep, columns, 0), new_length)


def add_eos(ids: tf.Tensor, real: tf.Tensor, new_length: int, special: Special) -> tf.Tensor:
    """Adds EOS after the last token of each text `(B, R)`, to `(B, new_length)`.

    `real (B,)` is False for rows that get no EOS. `new_length` is large enough for the longest text
    and EOS: R + 1 is always enough.
    """
    ids = tf.pad(ids, [[0, 0], [0, 1]], constant_values=special.pad)
    columns = tf.range(ids.shape[1])
    at_end = (columns == lengths_of(ids, special.pad)[:, None]) & real[:, None]
    return tf.where(at_end, tf.constant(special.end, ids.dtype), ids)[:, :new_length]


# Number of sentinels. With a vocabulary of size V, the first span's sentinel has id V, the second
# span's sentinel V + 1, ...
SENTINELS = 100
# Number of embedding rows for the sentinels, a multiple of 8.
SENTINEL_ROWS = -(-SENTINELS // 8) * 8
# Fraction of the tokens hidden by "bert_style" that become a random token instead of the mask.
_RANDOM = 0.1


def with_sentinels(
    text: tf.Tensor, hidden: tf.Tensor, sentinels: np.ndarray, new_length: int, special: Special
) -> tf.Tensor:
    """Replaces each span of hidden tokens by a sentinel and adds EOS, to rows `(B, new_length)`.

    `text (B, R)` int has padding at the end, and `hidden (B, R)` bool is False there.
    `sentinels (N,)` are the ids of the first span's sentinel, of the second's, and so on. A row
    without hidden tokens becomes padding.
    """
    before = tf.pad(hidden[:, :-1], [[0, 0], [1, 0]])
    starts = hidden & ~before
    sentinel_indices = tf.cumsum(tf.cast(starts, text.dtype), axis=-1) - 1
    ids = tf.where(starts, tf.gather(sentinels, tf.maximum(sentinel_indices, 0)), text)
    has_hidden = tf.reduce_any(hidden, axis=-1)  # (B,)
    keep = (text != special.pad) & (starts | ~hidden) & has_hidden[:, None]
    return add_eos(pack_left(ids, keep, new_length, special.pad), has_hidden, new_length, special)


@dataclasses.dataclass(frozen=True)
class SpanCorruptionObjective(CorruptionObjective):
    """T5's span corruption objective, or another objective from the comparison in T5's paper.

    In span corruption, a sentinel replaces each hidden span in the source and precedes the span in
    the target. Sentinel ids follow the ids of the vocabulary, and the network has `SENTINEL_ROWS`
    additional embedding rows for the sentinels. The first sentinel also serves as the mask. As in
    T5's code, the target of a text that ends with a hidden span does not end with a sentinel. The
    defaults are T5's.

    Attributes:
        kind: name of the objective. `"random_spans"` (T5) replaces each hidden span by a sentinel,
            and the target contains each sentinel followed by its span. `"iid_spans"` differs from
            `"random_spans"` in the choice of the hidden tokens, which are drawn uniformly. Adjacent
            hidden tokens form a span. `"drop_tokens"` deletes the hidden tokens from the source,
            and the target consists of the hidden tokens without sentinels. `"bert_style"` replaces
            each hidden token by the mask (90%) or by a random token (10%), and the target is the
            whole text. `"mass_style"` replaces every hidden token by the mask, and the target is
            the whole text. `"deshuffling"` shuffles all tokens, and the target is the whole text.
            `"prefix_lm"` splits the text at a random position, and the target is the second part.
        rate: fraction of the tokens that are hidden. `"deshuffling"` and `"prefix_lm"` ignore
            `rate`.
        mean_span: mean span length of `"random_spans"`, in tokens.

    References: Raffel et al. 2020 (T5), sections 3.1.4 and 3.3, table 3 and the released code.
    """

    name: str = "span_corruption"
    kind: Literal[
        "random_spans",
        "iid_spans",
        "drop_tokens",
        "bert_style",
        "mass_style",
        "deshuffling",
        "prefix_lm",
    ] = "random_spans"
    rate: Annotated[float, Gt(0), Lt(1)] = 0.15
    mean_span: Annotated[float, Ge(1)] = 3.0

    @property
    def sentinels(self) -> int:
        """Maximum number of different sentinel ids in a source (the encoder's input).

        `"bert_style"` and `"mass_style"` use only one sentinel id, which serves as the mask.
        """
        masks = self.kind in ("bert_style", "mass_style")
        return SENTINELS if self.kind in ("random_spans", "iid_spans") else int(masks)

    def counts(self, tokens: int) -> tuple[int, int]:
        """Computes the number of hidden tokens and the maximum number of hidden spans in a text.

        In a text of fewer than two tokens, no token is hidden.
        """
        if tokens < 2:
            return 0, 0
        hidden = min(max(round(tokens * self.rate), 1), tokens - 1)
        if self.kind != "random_spans":
            return hidden, min(hidden, tokens - hidden + 1)
        return hidden, min(max(round(hidden / self.mean_span), 1), tokens - hidden)

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Computes the maximum lengths of a source and of a target, both including EOS.

        `tokens` is the maximum number of tokens in a text before the corruption.
        """
        if self.kind in ("bert_style", "mass_style", "deshuffling"):
            return tokens + 1, tokens + 1
        if self.kind == "prefix_lm":
            return max(tokens, 1), max(tokens, 1)
        # The target of "iid_spans" may have a sentinel after its last hidden span.
        sides, last = [], self.kind == "iid_spans"
        for n in range(tokens + 1):
            hidden, spans = self.counts(n)
            sentinels = 0 if self.kind == "drop_tokens" else spans
            sides.append((n - hidden + sentinels + 1, hidden + sentinels + last + 1))
        sources, targets = zip(*sides, strict=True)
        return max(sources), max(targets)

    def text_length(self, source_length: int) -> int:
        """Computes the maximum number of tokens in a text whose source fits into `source_length`.

        The source is the corrupted text, in which one sentinel replaces a span, and EOS. With the
        default settings, a text may have up to 568 tokens if `source_length` is 512.
        """
        tokens = source_length - 1
        while self.lengths(tokens + 1)[0] <= source_length:
            tokens += 1
        return tokens

    def hidden_spans(self, text: tf.Tensor, seed: tf.Tensor, pad: int) -> tf.Tensor:
        """Draws random spans to hide in each text: `(B, R)` bool, True at hidden tokens.

        The settings and the number of tokens determine the numbers of hidden tokens and of spans,
        n. Hidden and visible tokens are divided at random into n non-empty parts, all divisions
        equally likely. The parts alternate, beginning with a visible part.

        References: Raffel et al. 2020 (T5), function `random_spans_noise_mask` of the released
        code.
        """
        length = text.shape[1]
        tokens = lengths_of(text, pad)
        table = np.array([self.counts(n) for n in range(length + 1)], np.int32)  # (R + 1, 2)
        hidden, spans = tf.unstack(draws.lookup_by_count(table, text != pad), axis=-1)  # (B,) each
        max_spans = max(int(table[:, 1].max()), 1)
        hidden_seed, visible_seed = draws.split(seed, 2)
        parts = [
            _random_parts(items, spans, part_seed, length, max_spans)
            for items, part_seed in ((tokens - hidden, visible_seed), (hidden, hidden_seed))
        ]
        # 2 of (B, P) -> (B, P, 2) -> (B, 2 P)
        sizes = tf.reshape(tf.stack(parts, axis=-1), [-1, 2 * max_spans])
        columns = tf.broadcast_to(tf.range(length), tf.shape(text))
        part = tf.searchsorted(tf.cumsum(sizes, axis=-1), columns, side="right")  # (B, R)
        return (part % 2 == 1) & (columns < tokens[:, None])

    def hidden_tokens(self, text: tf.Tensor, seed: tf.Tensor, pad: int) -> tf.Tensor:
        """Draws the hidden tokens of each text, as `kind` specifies: `(B, R)` bool.

        "deshuffling" hides all tokens, and "prefix_lm" those after a prefix, whose length is
        uniform from 1 to n - 1 for n tokens. Every other kind but "random_spans" chooses a fixed
        number of tokens uniformly (see `counts`), whereas T5's released code hides each token
        independently. In a text of fewer than two tokens, no token is hidden.
        """
        tokens, real = lengths_of(text, pad), text != pad
        has_hidden = (tokens > 1)[:, None]  # (B, 1)
        if self.kind == "random_spans":
            return self.hidden_spans(text, seed, pad)
        if self.kind == "deshuffling":
            return real & has_hidden
        if self.kind == "prefix_lm":
            between = tf.cast(tokens - 1, tf.float32)[:, None]
            uniform = draws.uniform(seed, tf.shape(text)[0], 1)
            prefix = 1 + tf.cast(uniform * between, tf.int32)  # (B, 1)
            return real & has_hidden & (tf.range(text.shape[1]) >= prefix)
        table = np.array([self.counts(n)[0] for n in range(text.shape[1] + 1)], np.int32)
        return draws.choose_tokens(real, draws.lookup_by_count(table, real), seed) > 0

    def corruption(self, vocabulary: PieceVocabulary, length: int) -> Corruption:
        """Returns the corruption function, with shapes from `lengths`."""
        kind, special, size = self.kind, vocabulary.special, vocabulary.size
        sentinels = np.array(special.sentinels or range(size, size + SENTINELS), np.int32)
        spans = max(self.counts(n)[1] for n in range(length + 1))
        if spans > SENTINELS and kind in ("random_spans", "iid_spans"):
            mend = "raise objective.mean_span" if kind == "random_spans" else "lower objective.rate"
            raise UserError(f"{length + 2} tokens need {spans} of {SENTINELS} sentinels: {mend}")
        source_length, target_length = self.lengths(length)
        piece_ids = np.setdiff1d(np.arange(vocabulary.pieces), special.ids)

        def add_noise(text, hidden, seed):
            """Returns the sources for `"bert_style"`, `"mass_style"` and `"deshuffling"`."""
            rows, columns = tf.shape(text)[0], text.shape[1]
            token_seed, piece_seed = draws.split(seed, 2)
            uniform = draws.uniform(token_seed, rows, columns)
            if kind == "deshuffling":
                order = tf.argsort(tf.where(hidden, uniform, 2.0), axis=-1)
                return tf.gather(text, order, batch_dims=1)
            masked = tf.fill(tf.shape(text), tf.constant(sentinels[0], text.dtype))
            if kind == "bert_style":
                random_ids = draws.uniform(piece_seed, rows, columns, len(piece_ids))
                random_ids = tf.gather(tf.constant(piece_ids, text.dtype), random_ids)
                masked = tf.where(uniform < _RANDOM, random_ids, masked)
            return tf.where(hidden, masked, text)

        def corrupt(text, seed):
            seeds = (seed, seed) if kind == "random_spans" else draws.split(seed, 2)
            hidden = self.hidden_tokens(text, seeds[0], special.pad)
            # A row without hidden tokens gets an empty source and an empty target.
            has_hidden = tf.reduce_any(hidden, axis=-1)  # (B,)
            visible = ~hidden & (text != special.pad) & has_hidden[:, None]
            if kind in ("random_spans", "iid_spans"):
                # The target always begins with a sentinel, even if the text begins with a hidden
                # token. The added first column makes this sentinel.
                starts_hidden = hidden[:, :1]
                first = tf.constant(sentinels[0], text.dtype)
                wide_text = tf.concat([tf.where(starts_hidden, first, special.pad), text], 1)
                wide_visible = tf.concat([starts_hidden, visible], 1)
                return (
                    with_sentinels(text, hidden, sentinels, source_length, special),
                    with_sentinels(wide_text, wide_visible, sentinels, target_length, special),
                )
            if kind in ("drop_tokens", "prefix_lm"):
                source = pack_left(text, visible, source_length, special.pad)
                target = pack_left(text, hidden, target_length, special.pad)
            else:
                pair = add_noise(text, hidden, seeds[1]), text
                source, target = (tf.where(has_hidden[:, None], x, special.pad) for x in pair)
            sides = ((source, source_length), (target, target_length))
            return tuple(add_eos(ids, has_hidden, length, special) for ids, length in sides)

        return corrupt


def _random_parts(
    items: tf.Tensor, parts: tf.Tensor, seed: tf.Tensor, max_items: int, max_parts: int
) -> tf.Tensor:
    """Divides the items of each row into non-empty parts at random, all divisions equally likely.

    The result is the sizes of the parts, `(B, max_parts)` int32. Sizes beyond a row's `parts` are
    0.
    """
    columns = tf.range(max_items)
    between = columns < items[:, None] - 1  # (B, max_items)
    cuts = tf.cast(draws.choose_tokens(between, tf.maximum(parts - 1, 0), seed) > 0, tf.int32)
    part = tf.cumsum(cuts, axis=-1, exclusive=True)
    return draws.reduced_by_row(tf.cast(columns < items[:, None], tf.int32), part, max_parts)
