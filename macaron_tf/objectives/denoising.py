"""Denoising (BART): an encoder-decoder reconstructs a text from a noised copy.

B is the batch size, and R the maximum text length in tokens.
"""

import dataclasses
import math
from typing import Annotated, ClassVar

import numpy as np
import tensorflow as tf
from annotated_types import Gt, Le

from macaron_tf.objectives import corruption
from macaron_tf.objectives.corruption import Corruption, CorruptionObjective, lengths_of
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.masking import rounded_up
from macaron_tf.settings import Fraction, NonNegative, Settings
from macaron_tf.special import Special
from macaron_tf.text.base import PieceVocabulary

# Number of draws in addition to the budget, because spans of 0 words do not reduce the budget. With
# mean 3, the probability of too few draws is below e^-48.
_SPARE = 16


def draw_spans(
    budget: tf.Tensor, seed: tf.Tensor, mean: float, max_budget: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws span lengths from a Poisson distribution until the sum in a row reaches the budget.

    The last span is cut so that the sum equals the `budget (B,)` int32 of words, at most
    `max_budget`.

    Returns span lengths `(B, M)` int32, which may be 0, and `(B, M)` bool, True at the spans of a
    row, which precede the padding.
    """
    num_draws = max_budget + _SPARE
    uniform = draws.uniform(seed, tf.shape(budget)[0], num_draws)  # (B, M)
    # P(X <= k) of the Poisson distribution, up to the first k at which P(X > k) is at most 1e-7.
    probabilities, tail = [math.exp(-mean)], 1.0 - math.exp(-mean)
    while tail > 1e-7:
        probabilities.append(probabilities[-1] * mean / len(probabilities))
        tail -= probabilities[-1]
    limits = tf.constant(np.cumsum(probabilities), tf.float32)
    lengths = tf.searchsorted(limits, tf.reshape(uniform, [-1]), side="right")
    lengths = tf.reshape(lengths, tf.shape(uniform))
    remaining = budget[:, None] - tf.cumsum(lengths, axis=-1, exclusive=True)
    drawn = remaining > 0
    return tf.where(drawn, tf.minimum(lengths, remaining), 0), drawn


def infill(
    text: tf.Tensor, starts: tf.Tensor, seed: tf.Tensor, noise: "DenoisingConfig", special: Special
) -> tf.Tensor:
    """Applies text infilling, which replaces each of several spans of words by one mask token.

    Of W words in a text, ceil(infilling * W) words are hidden, in spans whose lengths are drawn
    from a Poisson distribution. A span of 0 words inserts a mask token. All arrangements of the
    spans among the remaining words are equally likely. In the released code, overlapping spans
    share one mask token, and fewer words are hidden.

    `text (B, R)` has padding at the end, as the result, and `starts (B, R)` is True where a token
    begins a word. In texts of a few words, spans of 0 words that exceed R tokens are left out.

    References: Lewis et al. 2020 (BART), section 2.2.
    """
    rows, length, pad = tf.shape(text)[0], text.shape[1], special.pad
    length_seed, order_seed, position_seed = draws.split(seed, 3)
    columns = tf.range(length)
    _, sizes = draws.words_of(text != pad, starts)  # (B, R), tokens of word 0, 1, ...
    words = tf.reduce_sum(tf.cast(sizes > 0, tf.int32), axis=-1)  # (B,)
    budgets = rounded_up(noise.infilling, np.arange(length + 1))
    budget = tf.gather(tf.constant(budgets), words)
    max_budget = int(budgets[-1])
    lengths, drawn = draw_spans(budget, length_seed, noise.mean_span, max_budget)  # (B, M) each
    hidden = tf.reduce_sum(lengths, axis=-1)  # (B,), words
    inserts = tf.cast(drawn & (lengths == 0), tf.int32)
    spans = tf.reduce_sum(tf.cast(lengths > 0, tf.int32), axis=-1)
    spare = length - lengths_of(text, pad) + hidden - spans
    drawn &= (inserts == 0) | (tf.cumsum(inserts, axis=-1) <= spare[:, None])
    masks = tf.reduce_sum(tf.cast(drawn, tf.int32), axis=-1)
    # Shuffle the lengths. Otherwise the cut span would always be the last span of the text.
    order = draws.uniform(order_seed, rows, drawn.shape[1])
    order = tf.argsort(tf.where(drawn, order, 2.0), axis=-1)
    lengths = tf.gather(lengths, order, batch_dims=1)

    # The infilled text is a sequence of slots. Each slot is a word or a mask token.
    slots = words - hidden + masks  # (B,)
    masked = draws.choose_tokens(columns < slots[:, None], masks, position_seed) > 0  # (B, R)
    before = tf.cumsum(tf.cast(masked, tf.int32), axis=-1, exclusive=True)  # masks before a slot
    index = tf.minimum(before, lengths.shape[1] - 1)
    span_length = tf.where(masked, tf.gather(lengths, index, batch_dims=1), 0)
    # Index of a slot's word in the original text.
    word = columns - before + tf.cumsum(span_length, axis=-1, exclusive=True)
    word = tf.minimum(word, length - 1)
    size = tf.where(masked, 1, tf.gather(sizes, word, batch_dims=1))
    size = tf.where(columns < slots[:, None], size, 0)  # (B, R), tokens per slot
    ends = tf.cumsum(size, axis=-1)

    # Convert slots to tokens: find the slot of each column and the token's offset in the slot.
    wide_columns = tf.broadcast_to(columns, tf.shape(text))
    slot = tf.minimum(tf.searchsorted(ends, wide_columns, side="right"), length - 1)  # (B, R)

    def gather_slots(values):
        return tf.gather(values, slot, batch_dims=1)

    first = tf.gather(tf.cumsum(sizes, axis=-1, exclusive=True), gather_slots(word), batch_dims=1)
    token = tf.clip_by_value(first + columns - gather_slots(ends - size), 0, length - 1)
    ids = tf.gather(text, token, batch_dims=1)
    ids = tf.where(gather_slots(masked), tf.constant(special.mask, text.dtype), ids)
    return tf.where(columns < ends[:, -1:], ids, pad)


def shuffle_sentences(text: tf.Tensor, stops: tf.Tensor, seed: tf.Tensor, pad: int) -> tf.Tensor:
    """Shuffles the sentences of each text `(B, R)` uniformly. Padding stays at the end.

    `stops (B, R)` is True at full stops. A sentence ends after the last of one or more consecutive
    full stops.
    """
    continues = tf.pad(stops[:, 1:], [[0, 0], [0, 1]])
    ends = tf.cast(stops & ~continues, tf.int32)
    sentence = tf.cumsum(ends, axis=-1, exclusive=True)  # (B, R)
    keys = draws.uniform(seed, tf.shape(text)[0], text.shape[1])  # one sort key per sentence
    keys = tf.where(text != pad, tf.gather(keys, sentence, batch_dims=1), 2.0)
    return tf.gather(text, tf.argsort(keys, axis=-1, stable=True), batch_dims=1)


def shuffle_near(text: tf.Tensor, seed: tf.Tensor, reach: float, pad: int) -> tf.Tensor:
    """Shuffles the tokens of each text `(B, R)` locally, before the padding.

    They are sorted by i + u with the position i and u from U(0, reach), so a token moves by at most
    `reach` positions.

    References: Lample et al. 2018, "Unsupervised Machine Translation Using Monolingual Corpora
    Only", section 2.3.
    """
    keys = draws.uniform(seed, tf.shape(text)[0], text.shape[1]) * reach
    keys = tf.where(text != pad, keys + tf.range(text.shape[1], dtype=tf.float32), tf.float32.max)
    return tf.gather(text, tf.argsort(keys, axis=-1, stable=True), batch_dims=1)


def rotate(text: tf.Tensor, seed: tf.Tensor, pad: int) -> tf.Tensor:
    """Rotates each text `(B, R)` to begin with a uniformly drawn token; padding stays last."""
    tokens = lengths_of(text, pad)[:, None]  # (B, 1)
    columns = tf.range(text.shape[1])
    uniform = draws.uniform(seed, tf.shape(text)[0], 1)
    first = tf.cast(uniform * tf.cast(tokens, tf.float32), tf.int32)  # (B, 1)
    indices = (columns + first) % tf.maximum(tokens, 1)  # (B, R)
    return tf.where(columns < tokens, tf.gather(text, indices, batch_dims=1), pad)


def choose_fraction(
    text: tf.Tensor, seed: tf.Tensor, rate: float, pad: int, min_unchosen: int = 0
) -> tf.Tensor:
    """Chooses ceil(rate * n) of the n tokens in each text uniformly: bool `(B, R)`.

    At least `min_unchosen` tokens of each text are not chosen.
    """
    lengths = np.arange(text.shape[1] + 1, dtype=np.int32)
    counts = np.minimum(rounded_up(rate, lengths), np.maximum(lengths - min_unchosen, 0))
    return draws.choose_tokens(text != pad, draws.lookup_by_count(counts, text != pad), seed) > 0


@dataclasses.dataclass(frozen=True)
class DenoisingConfig(Settings):
    """Noise settings of a denoising objective. The defaults are BART's.

    Attributes:
        infilling: fraction of a text's words that are hidden in spans. One mask token replaces each
            span.
        mean_span: mean length of the hidden spans, in words. The lengths are drawn from a Poisson
            distribution.
        shuffling: fraction of the texts whose sentences are shuffled.
        rotation: fraction of the texts that are rotated to begin with a random token.
        masking: fraction of the tokens that are each replaced by a mask token.
        deletion: fraction of the tokens that are deleted. At least one token remains.
        reach: maximum distance that the local shuffle moves a token, in tokens. XLM uses 3, and 0
            means no local shuffle.

    References: Lewis et al. 2020 (BART), section 2.2 and figure 2.
    """

    section: ClassVar[str] = "task.denoising"
    infilling: Fraction = 0.3
    mean_span: Annotated[float, Gt(0), Le(50)] = 3.0
    shuffling: Fraction = 1.0
    rotation: Fraction = 0.0
    masking: Fraction = 0.0
    deletion: Fraction = 0.0
    reach: NonNegative = 0.0

    def check(self):
        names = ("infilling", "shuffling", "rotation", "masking", "deletion", "reach")
        if not any(getattr(self, name) for name in names):
            raise self.error(f"{f', {self.section}.'.join(names)} are all 0: raise one of them")


@dataclasses.dataclass(frozen=True)
class DenoisingObjective(DenoisingConfig, CorruptionObjective):
    """BART's objective: the source is the noised text, and the target is the original text.

    The noise functions are applied in the order sentence shuffling, rotation, local shuffling,
    token masking, token deletion and text infilling. Sentences end with a full stop. Word
    boundaries come from the vocabulary.

    References: Lewis et al. 2020 (BART), section 2.2.
    """

    section = "objective"

    name: str = "denoising"

    def corruption(self, vocabulary: PieceVocabulary, length: int) -> Corruption:
        """Returns the function that adds noise: sources and targets are `(B, length + 1)`."""
        noise, special, pad = self, vocabulary.special, vocabulary.special.pad
        if noise.infilling:
            starts_word = np.array(vocabulary.word_starts(), bool)  # (V,)
        ends = [row[-1] for row in vocabulary.encode_lines([".", "a."]) if row]
        # The full stop may have different ids alone and after a word.
        full_stops = np.setdiff1d(ends, special.ids)
        stops = np.isin(np.arange(vocabulary.size), full_stops)  # (V,)

        def corrupt(text, seed):
            rows = tf.shape(text)[0]
            shuffle_seed, rotation_seed, decision_seed, *seeds = draws.split(seed, 6)
            mask_seed, deletion_seed, infill_seed = seeds
            decisions = draws.uniform(decision_seed, rows, 2)  # (B, 2)
            noised = text
            if noise.shuffling:
                shuffled = shuffle_sentences(noised, tf.gather(stops, noised), shuffle_seed, pad)
                noised = tf.where(decisions[:, :1] < noise.shuffling, shuffled, noised)
            if noise.rotation:
                rotated = rotate(noised, rotation_seed, pad)
                noised = tf.where(decisions[:, 1:] < noise.rotation, rotated, noised)
            if noise.reach:
                noised = shuffle_near(noised, draws.fold_in(seed, 1), noise.reach, pad)
            if noise.masking:
                hidden = choose_fraction(noised, mask_seed, noise.masking, pad)
                noised = tf.where(hidden, tf.constant(special.mask, text.dtype), noised)
            if noise.deletion:
                deleted = choose_fraction(noised, deletion_seed, noise.deletion, pad, 1)
                noised = corruption.pack_left(noised, (noised != pad) & ~deleted, length, pad)
            if noise.infilling:
                starts = tf.gather(starts_word, noised)
                noised = infill(noised, starts, infill_seed, noise, special)
            real = tf.reduce_any(text != pad, axis=-1)  # (B,)
            ends_at = (real, length + 1, special)
            return tuple(corruption.add_eos(ids, *ends_at) for ids in (noised, text))

        return corrupt
