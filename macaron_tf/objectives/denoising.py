"""Denoising (BART): the decoder restores a text from a noised one."""

import dataclasses
import math
from typing import Annotated, ClassVar

import numpy as np
import tensorflow as tf
from annotated_types import Gt, Le

from macaron_tf.objectives.corruption import (
    Corruption,
    CorruptionObjective,
    ended,
    lengths_of,
    packed,
)
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.choice import choose_tokens, numbers_by_count, words_of
from macaron_tf.objectives.masking.masking import rounded_up
from macaron_tf.settings import Fraction, NonNegative, Settings
from macaron_tf.special_ids import PAD
from macaron_tf.text.base import PieceVocabulary

# Draws beyond the budget, because spans of 0 words do not spend it. All 16 have 0 words with
# probability e^-48 at mean 3; such a row would spend less than its budget.
_SPARE = 16


def poisson_limits(mean: float) -> np.ndarray:
    """P(X <= k) of a Poisson X, for k = 0, 1, ... until 1 - P is below 1e-7: `(N,)` float32."""
    probabilities, k, rest = [math.exp(-mean)], 0, 1.0 - math.exp(-mean)
    while rest > 1e-7:
        k += 1
        probabilities.append(probabilities[-1] * mean / k)
        rest -= probabilities[-1]
    return np.cumsum(probabilities).astype(np.float32)


def draw_spans(
    budget: tf.Tensor, seed: tf.Tensor, mean: float, most: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws lengths of spans until their sum reaches the budget; the last span is cut to fit.

    Args:
        budget: `(B,)` int32, words to hide.
        mean: of the lengths' Poisson distribution, in words.
        most: the greatest budget.

    Returns:
        Lengths `(B, M)` int32, of which some are 0, and `(B, M)` bool, True for each row's drawn
        spans, which come first.
    """
    room = most + _SPARE
    uniform = draws.uniform(seed, tf.shape(budget)[0], room)  # (B, M)
    limits = tf.constant(poisson_limits(mean))
    lengths = tf.reshape(
        tf.searchsorted(limits, tf.reshape(uniform, [-1]), side="right"), tf.shape(uniform)
    )
    left = budget[:, None] - tf.cumsum(lengths, axis=-1, exclusive=True)
    drawn = left > 0
    return tf.where(drawn, tf.minimum(lengths, left), 0), drawn


def infill(
    text: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, rate: float, mean: float, mask_id: int
) -> tf.Tensor:
    """Text infilling: hides ceil(rate W) of a text's W words, and puts one mask for each span.

    The lengths of spans are drawn from a Poisson distribution until they add up to that number of
    words; a span of 0 words inserts a mask. All orders of the spans among the remaining words are
    equally likely. Spans do not overlap, so each keeps its length and its mask. In the released
    code spans may overlap; their masks then merge, and fewer words are hidden.

    A text never grows beyond R tokens: spans of 0 words without room are left out, which happens in
    texts of a few words only.

    Args:
        text: `(B, R)` int, R static, padding at the end, as in the result.
        starts: `(B, R)` bool, True where a token begins a word.
        rate: share of the words that are hidden.
        mean: mean length of a span, in words.

    References: Lewis et al. 2020 (BART), section 2.2.
    """
    rows, room = tf.shape(text)[0], text.shape[1]
    of_lengths, of_order, of_positions = draws.split(seed, 3)
    columns = tf.range(room)
    _, sizes = words_of(text != PAD, starts)  # (B, R), tokens of word 0, 1, ...
    words = tf.reduce_sum(tf.cast(sizes > 0, tf.int32), axis=-1)  # (B,)
    budgets = rounded_up(rate, np.arange(room + 1))
    budget = tf.gather(tf.constant(budgets), words)
    lengths, drawn = draw_spans(budget, of_lengths, mean, int(budgets[-1]))  # (B, M) each
    hidden = tf.reduce_sum(lengths, axis=-1)  # (B,), words
    inserts = tf.cast(drawn & (lengths == 0), tf.int32)
    spans = tf.reduce_sum(tf.cast(lengths > 0, tf.int32), axis=-1)
    spare = room - lengths_of(text) + hidden - spans
    drawn &= (inserts == 0) | (tf.cumsum(inserts, axis=-1) <= spare[:, None])
    masks = tf.reduce_sum(tf.cast(drawn, tf.int32), axis=-1)
    # Shuffled, because the last span drawn may be cut: it must be able to stand anywhere.
    order = draws.uniform(of_order, rows, drawn.shape[1])
    order = tf.argsort(tf.where(drawn, order, 2.0), axis=-1)
    lengths = tf.gather(lengths, order, batch_dims=1)

    # The infilled text is a row of slots, each a word or a mask.
    slots = words - hidden + masks  # (B,)
    masked = choose_tokens(columns < slots[:, None], masks, of_positions) > 0  # (B, R)
    before = tf.cumsum(tf.cast(masked, tf.int32), axis=-1, exclusive=True)  # masks
    at = tf.minimum(before, lengths.shape[1] - 1)
    length = tf.where(masked, tf.gather(lengths, at, batch_dims=1), 0)
    word = columns - before + tf.cumsum(length, axis=-1, exclusive=True)  # of a slot with a word
    word = tf.minimum(word, room - 1)
    size = tf.where(masked, 1, tf.gather(sizes, word, batch_dims=1))
    size = tf.where(columns < slots[:, None], size, 0)  # (B, R), tokens of a slot
    ends = tf.cumsum(size, axis=-1)

    # From slots to tokens: find the slot of each column, and the token's offset in the slot.
    wide = tf.broadcast_to(columns, tf.shape(text))
    slot = tf.minimum(tf.searchsorted(ends, wide, side="right"), room - 1)  # (B, R)

    def of_slot(values):
        return tf.gather(values, slot, batch_dims=1)

    first = tf.gather(tf.cumsum(sizes, axis=-1, exclusive=True), of_slot(word), batch_dims=1)
    token = tf.clip_by_value(first + columns - of_slot(ends - size), 0, room - 1)
    ids = tf.gather(text, token, batch_dims=1)
    ids = tf.where(of_slot(masked), tf.constant(mask_id, text.dtype), ids)
    return tf.where(columns < ends[:, -1:], ids, PAD)


def shuffle_sentences(text: tf.Tensor, stops: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Puts the sentences of each text in a uniformly random order.

    Args:
        text: `(B, R)` int, R static, padding at the end.
        stops: `(B, R)` bool, True at full stops; a sentence ends with one or several in a row.
    """
    more = tf.pad(stops[:, 1:], [[0, 0], [0, 1]])
    ends = tf.cast(stops & ~more, tf.int32)
    sentence = tf.cumsum(ends, axis=-1, exclusive=True)  # (B, R)
    keys = draws.uniform(seed, tf.shape(text)[0], text.shape[1])  # of sentences
    keys = tf.where(text != PAD, tf.gather(keys, sentence, batch_dims=1), 2.0)
    return tf.gather(text, tf.argsort(keys, axis=-1, stable=True), batch_dims=1)


def shuffle_near(text: tf.Tensor, seed: tf.Tensor, reach: float) -> tf.Tensor:
    """Moves tokens of each text `(B, R)` nearby: token i is sorted by i + U(0, reach).

    Padding stays at the end.

    References: Lample et al. 2018, "Unsupervised Machine Translation Using Monolingual Corpora
    Only", section 2.3.
    """
    keys = draws.uniform(seed, tf.shape(text)[0], text.shape[1]) * reach
    keys += tf.range(text.shape[1], dtype=tf.float32)
    keys = tf.where(text != PAD, keys, tf.float32.max)
    return tf.gather(text, tf.argsort(keys, axis=-1, stable=True), batch_dims=1)


def rotate(text: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Rotates each text `(B, R)` to begin at a uniformly drawn token; padding stays at the end."""
    tokens = lengths_of(text)[:, None]  # (B, 1)
    columns = tf.range(text.shape[1])
    uniform = draws.uniform(seed, tf.shape(text)[0], 1)
    first = tf.cast(uniform * tf.cast(tokens, tf.float32), tf.int32)  # (B, 1)
    turned = (columns + first) % tf.maximum(tokens, 1)  # (B, R)
    return tf.where(columns < tokens, tf.gather(text, turned, batch_dims=1), PAD)


def some_tokens(text: tf.Tensor, seed: tf.Tensor, rate: float, least: int = 0) -> tf.Tensor:
    """Chooses ceil(rate n) of n tokens uniformly, but leaves at least `least`: `(B, R)` bool."""
    numbers = np.arange(text.shape[1] + 1, dtype=np.int32)
    counts = np.minimum(rounded_up(rate, numbers), np.maximum(numbers - least, 0))
    return choose_tokens(text != PAD, numbers_by_count(counts, text != PAD), seed) > 0


@dataclasses.dataclass(frozen=True)
class DenoisingConfig(Settings):
    """How much of each kind of noise a text gets; the defaults are BART's.

    Attributes:
        infilling: share of the words that are hidden in spans, each replaced by one mask.
        mean_span: mean of the Poisson-distributed lengths of spans, in words.
        shuffling: share of the texts whose sentences are put in random order.
        rotation: share of the texts that are rotated to begin at a random token.
        masking: share of the tokens that are replaced by a mask one by one.
        deletion: share of the tokens that are removed one by one; one token always stays.
        reach: limit of the distance that a token moves at random, in tokens (XLM: 3).

    References: Lewis et al. 2020 (BART), section 2.2 and figure 2.
    """

    section: ClassVar[str] = "denoising"
    infilling: Fraction = 0.3
    mean_span: Annotated[float, Gt(0), Le(50)] = 3.0
    shuffling: Fraction = 1.0
    rotation: Fraction = 0.0
    masking: Fraction = 0.0
    deletion: Fraction = 0.0
    reach: NonNegative = 0.0

    def check(self):
        shares = ("infilling", "shuffling", "rotation", "masking", "deletion", "reach")
        if not any(getattr(self, name) for name in shares):
            raise self.error(
                f"infilling, {', '.join(shares[1:])}: one must be above 0, or there is no noise"
            )


@dataclasses.dataclass(frozen=True)
class DenoisingObjective(CorruptionObjective):
    """BART's objective: the source is the noised text, the target the original one.

    Noise is applied in the order shuffling, rotation, moving by `reach`, masking, deletion,
    infilling. Sentences end with full stops; the vocabulary says where words begin.

    Attributes:
        config: how much of each kind of noise.

    References: Lewis et al. 2020 (BART), section 2.2.
    """

    learns = "denoising"

    config: DenoisingConfig = DenoisingConfig()

    def corruption(self, vocabulary: PieceVocabulary, length: int) -> Corruption:
        """Returns the noise, see `CorruptionObjective`; S and T are both `length` + 1."""
        noise, mask_id = self.config, vocabulary.mask_id
        if noise.infilling:
            begins = np.array(vocabulary.word_starts(), bool)  # (V,)
        ends = [row[-1] for row in vocabulary.encode_lines([".", "a."]) if row]
        full_stops = np.setdiff1d(ends, vocabulary.special_ids)  # alone and after a word
        stops = np.isin(np.arange(vocabulary.size), full_stops)  # (V,)

        def corrupted(text, seed):
            rows = tf.shape(text)[0]
            shuffling, rotation, moving, masking, deletion, infilling = draws.split(seed, 6)
            moved = draws.uniform(moving, rows, 2)  # (B, 2)
            noised = text
            if noise.shuffling:
                shuffled = shuffle_sentences(noised, tf.gather(stops, noised), shuffling)
                noised = tf.where(moved[:, :1] < noise.shuffling, shuffled, noised)
            if noise.rotation:
                noised = tf.where(moved[:, 1:] < noise.rotation, rotate(noised, rotation), noised)
            if noise.reach:
                noised = shuffle_near(noised, draws.fold_in(seed, 1), noise.reach)
            if noise.masking:
                hidden = some_tokens(noised, masking, noise.masking)
                noised = tf.where(hidden, tf.constant(mask_id, text.dtype), noised)
            if noise.deletion:
                deleted = some_tokens(noised, deletion, noise.deletion, least=1)
                noised = packed(noised, (noised != PAD) & ~deleted, length)
            if noise.infilling:
                starts = tf.gather(begins, noised)
                noised = infill(
                    noised, starts, infilling, noise.infilling, noise.mean_span, mask_id
                )
            real = tf.reduce_any(text != PAD, axis=-1)  # (B,)
            return ended(noised, real, length + 1), ended(text, real, length + 1)

        return corrupted
