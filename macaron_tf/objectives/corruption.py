"""Objectives on corrupted text: the base of T5's and BART's, and those that T5's paper compares."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import numpy as np
import tensorflow as tf
from annotated_types import Ge, Gt, Lt

from macaron_tf.errors import UserError
from macaron_tf.objectives.base import Batch, PretrainingObjective, Sums
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.choice import choose_tokens, numbers_by_count, reduced_by_row
from macaron_tf.objectives.masking.masking import multiple_of_8, static_length
from macaron_tf.objectives.translation import TranslationObjective
from macaron_tf.settings import Settings
from macaron_tf.special_ids import BOS, EOS, PAD
from macaron_tf.text.base import PieceVocabulary

# From text (B, R) and a seed to source (B, S) and target (B, T), which end in EOS.
Corruption = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class CorruptionObjective(PretrainingObjective):
    """Base of the encoder-decoders' objectives: cross-entropy of a target given a corrupted text.

    The text is a row without its [CLS] and last [SEP]. Source and target end in EOS, as in
    translation, and the decoder begins with BOS. A row without text has an empty source and target.

    Called with an `EncoderDecoder` and a batch of `source (B, S)` and `target (B, T)`, it returns
    the sums of a `TranslationObjective` without label smoothing.
    """

    encoder_decoder = True

    @abc.abstractmethod
    def corruption(self, vocabulary: PieceVocabulary, length: int) -> Corruption:
        """Returns the corruption of texts of at most `length` tokens, with static shapes."""

    def preparation(self, spec, masking, vocabulary):
        """Returns the function that makes a source and a target of each row `[CLS] text [SEP]`."""
        if (vocabulary.cls_id, vocabulary.sep_id) != (BOS, EOS):
            raise UserError(
                f"the vocabulary has [CLS] and [SEP] at ids {vocabulary.cls_id} and "
                f"{vocabulary.sep_id}, an encoder-decoder needs {BOS} and {EOS}: train a "
                "vocabulary here, without --vocabulary"
            )
        corrupted = self.corruption(vocabulary, static_length(spec["token_ids"]) - 2)

        def pair(batch: Batch, seed: tf.Tensor) -> Batch:
            ids = batch["token_ids"]
            text = tf.where(ids[:, 2:] != PAD, ids[:, 1:-1], PAD)  # (B, L) -> (B, L - 2)
            source, target = corrupted(text, seed)
            return {"source": source, "target": target}

        return pair

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        translation = TranslationObjective(label_smoothing=0.0, skip_padding=self.skip_padding)
        return translation(network, batch, training)


def lengths_of(text: tf.Tensor) -> tf.Tensor:
    """Number of tokens of each text `(B, R)`: `(B,)` int32."""
    return tf.reduce_sum(tf.cast(text != PAD, tf.int32), axis=-1)


def packed(ids: tf.Tensor, keep: tf.Tensor, room: int) -> tf.Tensor:
    """Moves the kept ids of each row to the left and fills up with PAD: `(B, R)` to `(B, room)`.

    Args:
        keep: `(B, R)` bool, at most `room` True in a row.
    """
    columns = tf.cumsum(tf.cast(keep, tf.int32), axis=-1, exclusive=True)
    return reduced_by_row(tf.where(keep, ids, 0), tf.where(keep, columns, 0), room)


def ended(ids: tf.Tensor, real: tf.Tensor, room: int) -> tf.Tensor:
    """Puts EOS after the last token of each text: `(B, R)`, padding at the end, to `(B, room)`.

    Args:
        real: `(B,)` bool, False for rows that stay empty, without EOS.
        room: length of the result, enough for all texts and their EOS; R + 1 always is.
    """
    ids = tf.pad(ids, [[0, 0], [0, 1]])
    columns = tf.range(ids.shape[1])
    at_end = (columns == lengths_of(ids)[:, None]) & real[:, None]
    return tf.where(at_end, tf.constant(EOS, ids.dtype), ids)[:, :room]


# Number of sentinels. Their ids follow the vocabulary's: V + 0 for a text's first span, V + 1, ...
SENTINELS = 100
# Rows that sentinels add to an embedding table, a multiple of 8.
SENTINEL_ROWS = multiple_of_8(SENTINELS)


# Share of the hidden tokens of "bert_style" that become a random token; the rest become a mask.
_RANDOM = 0.1


@dataclasses.dataclass(frozen=True)
class SpanCorruptionConfig(Settings):
    """Which of the objectives compared in T5's paper is used, and how much it hides.

    Attributes:
        kind: `"random_spans"`, T5's choice, replaces each span by a sentinel; the target has each
            span after its sentinel. `"iid_spans"` does the same for tokens that are hidden one by
            one. `"drop_tokens"` hides as `"iid_spans"`, without sentinels. `"bert_style"` replaces
            each hidden token by the mask, or (10%) by a random token, `"mass_style"` by the mask
            only, and `"deshuffling"` shuffles all tokens; the target of these three is the whole
            text. `"prefix_lm"` splits the text at random; the target is its second part.
        rate: share of the tokens that are hidden; unused by `"deshuffling"` and `"prefix_lm"`.
        mean_span: mean length of a span of `"random_spans"`, in tokens.

    References: Raffel et al. 2020 (T5), section 3.3, table 3 and its released code.
    """

    section: ClassVar[str] = "corruption"
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
        """Most sentinels that a source can have: one for each span, one mask, or none."""
        masks = self.kind in ("bert_style", "mass_style")
        return SENTINELS if self.kind in ("random_spans", "iid_spans") else int(masks)

    def counts(self, tokens: int) -> tuple[int, int]:
        """Number of hidden tokens of a text of n tokens, and the most spans that they form.

        A text of one token hides none.
        """
        if tokens < 2:
            return 0, 0
        hidden = min(max(round(tokens * self.rate), 1), tokens - 1)
        if self.kind != "random_spans":
            return hidden, min(hidden, tokens - hidden + 1)
        return hidden, min(max(round(hidden / self.mean_span), 1), tokens - hidden)

    def lengths(self, tokens: int) -> tuple[int, int]:
        """S and T, the longest source and target, with EOS, of texts of at most n tokens."""
        if self.kind in ("bert_style", "mass_style", "deshuffling"):
            return tokens + 1, tokens + 1
        if self.kind == "prefix_lm":
            return max(tokens, 1), max(tokens, 1)
        each = [(n, *self.counts(n)) for n in range(tokens + 1)]
        if self.kind == "drop_tokens":
            return max(n - h + 1 for n, h, _ in each), max(h + 1 for _, h, _ in each)
        last = self.kind == "iid_spans"  # a sentinel after the last hidden run
        return (
            max(n - hidden + spans + 1 for n, hidden, spans in each),
            max(hidden + spans + last + 1 for _, hidden, spans in each),
        )

    def text_length(self, source_length: int) -> int:
        """The longest text whose source fits into S tokens: 568 for S = 512 with random spans."""
        tokens = source_length - 1
        while self.lengths(tokens + 1)[0] <= source_length:
            tokens += 1
        return tokens


def hidden_spans(
    text: tf.Tensor, seed: tf.Tensor, config: SpanCorruptionConfig = SpanCorruptionConfig()
) -> tf.Tensor:
    """Draws the hidden spans of texts `(B, R)`, R static: `(B, R)` bool.

    The visible and the hidden tokens are each cut into as many parts as there are spans, all cuts
    equally likely. Visible and hidden parts alternate, a visible one first.

    References: Raffel et al. 2020 (T5), its released code, `random_spans_noise_mask`.
    """
    room = text.shape[1]
    tokens = lengths_of(text)
    table = np.array([config.counts(n) for n in range(room + 1)], np.int32)  # (R + 1, 2)
    hidden, spans = tf.unstack(numbers_by_count(table, text != PAD), axis=-1)  # (B,) each
    most = max(int(table[:, 1].max()), 1)
    of_hidden, of_seen = draws.split(seed, 2)
    parts = [
        _random_parts(tokens - hidden, spans, of_seen, room, most),
        _random_parts(hidden, spans, of_hidden, room, most),
    ]
    # 2 of (B, P) -> (B, P, 2) -> (B, 2 P)
    sizes = tf.reshape(tf.stack(parts, axis=-1), [-1, 2 * most])
    columns = tf.broadcast_to(tf.range(room), tf.shape(text))
    part = tf.searchsorted(tf.cumsum(sizes, axis=-1), columns, side="right")  # (B, R)
    return (part % 2 == 1) & (columns < tokens[:, None])


def hidden_tokens(text: tf.Tensor, seed: tf.Tensor, config: SpanCorruptionConfig) -> tf.Tensor:
    """Draws the hidden tokens of texts `(B, R)`, R static, for every `kind`: `(B, R)` bool.

    `counts` gives their number, and all choices are equally likely; T5's released code draws each
    token independently, so that their number varies. "prefix_lm" hides the tokens after a prefix of
    1 to n - 1 tokens, uniformly drawn, and "deshuffling" hides all.
    """
    tokens, real = lengths_of(text), text != PAD
    some = (tokens > 1)[:, None]  # (B, 1)
    if config.kind == "random_spans":
        return hidden_spans(text, seed, config)
    if config.kind == "deshuffling":
        return real & some
    if config.kind == "prefix_lm":
        between = tf.cast(tokens - 1, tf.float32)[:, None]
        uniform = draws.uniform(seed, tf.shape(text)[0], 1)
        prefix = 1 + tf.cast(uniform * between, tf.int32)  # (B, 1)
        return real & some & (tf.range(text.shape[1]) >= prefix)
    table = np.array([config.counts(n)[0] for n in range(text.shape[1] + 1)], np.int32)
    return choose_tokens(real, numbers_by_count(table, real), seed) > 0


def with_sentinels(text: tf.Tensor, hidden: tf.Tensor, first_sentinel: int, room: int) -> tf.Tensor:
    """Replaces each run of hidden tokens by a sentinel and adds EOS: `(B, R)` to `(B, room)`.

    Args:
        hidden: `(B, R)` bool, False at padding; a row that hides nothing becomes all PAD.
        first_sentinel: id of the first run's sentinel; each next run has the next id.
    """
    before = tf.pad(hidden[:, :-1], [[0, 0], [1, 0]])
    starts = hidden & ~before
    numbers = tf.cumsum(tf.cast(starts, text.dtype), axis=-1) - 1
    ids = tf.where(starts, first_sentinel + numbers, text)
    some = tf.reduce_any(hidden, axis=-1)  # (B,)
    keep = (text != PAD) & (starts | ~hidden) & some[:, None]
    return ended(packed(ids, keep, room), some, room)


@dataclasses.dataclass(frozen=True)
class SpanCorruptionObjective(CorruptionObjective):
    """T5's objective: a sentinel replaces each span in the source and precedes it in the target.

    `SpanCorruptionConfig.kind` chooses another objective of T5's comparison. Sentinels have ids
    above the vocabulary's, for which the network has `SENTINEL_ROWS` more embedding rows; the first
    one also serves as the mask. As in T5's code, no sentinel ends the target of a text that ends
    hidden.

    Attributes:
        config: kind of corruption, and how much is hidden.

    References: Raffel et al. 2020 (T5), section 3.1.4.
    """

    learns = "span_corruption"

    config: SpanCorruptionConfig = SpanCorruptionConfig()

    def corruption(self, vocabulary: PieceVocabulary, length: int) -> Corruption:
        """Returns the corruption, see `CorruptionObjective`; S and T are by `config.lengths`."""
        kind, mask = self.config.kind, vocabulary.size
        spans = max(self.config.counts(n)[1] for n in range(length + 1))
        if spans > SENTINELS and kind in ("random_spans", "iid_spans"):
            mend = "raise corruption.mean_span" if kind == "random_spans" else "corruption.rate"
            raise UserError(
                f"rows of {length + 2} tokens have up to {spans} hidden spans, and there are "
                f"{SENTINELS} sentinels: lower corpus.sequence_length or {mend}"
            )
        source_room, target_room = self.config.lengths(length)
        pieces = np.setdiff1d(np.arange(vocabulary.pieces), vocabulary.special_ids)

        def noised(text, hidden, seed):
            """Returns the source of the kinds whose target is the whole text."""
            rows, room = tf.shape(text)[0], text.shape[1]
            of_tokens, of_pieces = draws.split(seed, 2)
            uniform = draws.uniform(of_tokens, rows, room)
            if kind == "deshuffling":
                order = tf.argsort(tf.where(hidden, uniform, 2.0), axis=-1)
                return tf.gather(text, order, batch_dims=1)
            masked = tf.fill(tf.shape(text), tf.constant(mask, text.dtype))
            if kind == "bert_style":
                drawn = draws.uniform(of_pieces, rows, room, len(pieces))
                drawn = tf.gather(tf.constant(pieces, text.dtype), drawn)
                masked = tf.where(uniform < _RANDOM, drawn, masked)
            return tf.where(hidden, masked, text)

        def corrupted(text, seed):
            hiding, noising = (seed, seed) if kind == "random_spans" else draws.split(seed, 2)
            hidden = hidden_tokens(text, hiding, self.config)
            # A row that hides nothing gives neither source nor target.
            some = tf.reduce_any(hidden, axis=-1)  # (B,)
            seen = ~hidden & (text != PAD) & some[:, None]
            if kind in ("random_spans", "iid_spans"):
                # Where a text begins hidden, its target still begins with a sentinel.
                begins = hidden[:, :1]
                before = tf.where(begins, tf.constant(mask, text.dtype), PAD)
                spelled = tf.concat([before, text], 1), tf.concat([begins, seen], 1)
                return (
                    with_sentinels(text, hidden, mask, source_room),
                    with_sentinels(*spelled, mask, target_room),
                )
            if kind in ("drop_tokens", "prefix_lm"):
                return tuple(
                    ended(packed(text, kept, room), some, room)
                    for kept, room in ((seen, source_room), (hidden, target_room))
                )
            source, target = noised(text, hidden, noising), text
            return tuple(
                ended(tf.where(some[:, None], ids, PAD), some, source_room)
                for ids in (source, target)
            )

        return corrupted


def _random_parts(
    items: tf.Tensor, parts: tf.Tensor, seed: tf.Tensor, most_items: int, most_parts: int
) -> tf.Tensor:
    """Sizes of parts `(B,)`, none empty, that items `(B,)` are cut into: `(B, most_parts)` int32.

    All ways to cut are equally likely: the cuts are a uniform choice of the gaps between items.
    """
    columns = tf.range(most_items)
    between = columns < items[:, None] - 1  # (B, most_items)
    cuts = tf.cast(choose_tokens(between, tf.maximum(parts - 1, 0), seed) > 0, tf.int32)
    part = tf.cumsum(cuts, axis=-1, exclusive=True)
    return reduced_by_row(tf.cast(columns < items[:, None], tf.int32), part, most_parts)
