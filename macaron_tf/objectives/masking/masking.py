"""Token masking: each predicted token becomes [MASK] or a random piece, or stays unchanged.

B is the batch size, L the row length, and P the maximum number of masked tokens in a row.
"""

import dataclasses
import functools
from typing import Annotated, ClassVar, Literal

import numpy as np
import tensorflow as tf
from annotated_types import Gt, Le

from macaron_tf.objectives.masking import choice as draws
from macaron_tf.settings import Count, Fraction, Settings
from macaron_tf.text.base import PieceVocabulary

Batch = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Settings):
    """Settings of token masking. The defaults are BERT's.

    Settings of other papers:
        SwishRNN: `MaskingConfig(mask=1.0, random=0.0)`.
        ALBERT: `MaskingConfig(choice="ngrams")`.
        ELECTRA: `MaskingConfig(mask=1.0, random=0.0, round_up=True)`.
        SpanBERT: `MaskingConfig(choice="spans", fate="span", round_up=True)`.

    Attributes:
        rate: fraction of the tokens in a row, without special tokens, that are chosen and
            predicted.
        mask: fraction of the chosen tokens that [MASK] replaces.
        random: fraction of the chosen tokens that a random subword piece replaces. The remaining
            chosen tokens stay unchanged.
        choice: unit of masking. `"tokens"` chooses single tokens, and `"whole_words"` chooses whole
            words. `"ngrams"` chooses n-grams of 1 to 3 whole words with p(n) ~ 1/n. `"spans"`
            chooses spans of 1 to 10 whole words with geometrically distributed lengths.
        fate: unit of replacement. `"token"` decides for each chosen token between [MASK], a random
            piece and no change. `"span"` decides once for all tokens of a word, n-gram or span.
            Random pieces are drawn per token in both cases.
        round_up: whether to mask `ceil(rate n)` of n tokens instead of `round(rate n)`.
        duplicates: number of different masks per row in static masking (10 in BERT's released
            data). Epoch e uses mask e modulo `duplicates`. `None` means dynamic masking, with a new
            mask in each epoch.

    References: Devlin et al. 2018 (BERT), appendix A.1; Lan et al. 2020 (ALBERT), section 4.1;
    Joshi et al. 2020 (SpanBERT), section 3.1; Clark et al. 2020 (ELECTRA), section 2; Liu et al.
    2019 (RoBERTa), section 4.1, for static and dynamic masks.
    """

    section: ClassVar[str] = "objective.masking"
    rate: Annotated[float, Gt(0), Le(1)] = 0.15
    mask: Fraction = 0.8
    random: Fraction = 0.1
    choice: Literal["tokens", "whole_words", "ngrams", "spans"] = "tokens"
    fate: Literal["token", "span"] = "token"
    round_up: bool = False
    duplicates: Count | None = None

    def check(self):
        if self.mask + self.random > 1:
            total = f"mask={self.mask} + {self.section}.random={self.random}"
            raise self.error(f"{total} must be at most 1")

    def counts(self, length: int) -> np.ndarray:
        """Returns the number of masked tokens in rows of n = 0 to L tokens, `(L + 1,)` int32.

        Special tokens do not count in n.
        """
        tokens = np.arange(1, length + 1)
        counts = rounded_up(self.rate, tokens) if self.round_up else np.rint(self.rate * tokens)
        return np.array([0, *np.maximum(1, counts)], np.int32)


def rounded_up(rate: float, tokens: int | np.ndarray) -> np.ndarray:
    """Computes `ceil(rate * tokens)` as int32, ignoring float rounding errors below 1e-9."""
    # For example, 0.07 * 100 is 7.000000000000001 in float64 and must not become 8.
    return np.ceil(rate * np.asarray(tokens) - 1e-9).astype(np.int32)


def mask_tokens(
    batch: Batch, seed: tf.Tensor, config: MaskingConfig, vocabulary: PieceVocabulary
) -> Batch:
    """Masks tokens of a batch. Equal seeds mask the same tokens on every device.

    Let n be the number of tokens in a row, without special tokens. If n is above 0, then `max(1,
    round(rate n))` tokens are masked (`ceil` instead of `round` with `config.round_up`), or fewer
    if only whole words may be chosen. BERT's released code also counts [CLS] and [SEP] in n, so it
    sometimes masks one token more.

    Random pieces are drawn uniformly from the vocabulary without its special tokens. BERT draws
    from the whole vocabulary, but this library would treat a drawn [PAD] as padding.

    Args:
        batch: dict with `token_ids (B, L)` int, L static. Other entries are passed through.
        seed: `(2,)` int, or `(B, 2)` int with one seed per row. With one seed per row, the mask of
            a row does not depend on the other rows of the batch.

    Returns:
        The batch with masked `token_ids` and these new entries:

        - `masked_positions (B, P)` int32, ascending in each row.
        - `masked_labels (B, P)` int, the original ids at the masked positions.
        - `masked_weights (B, P)` float32, 1 at masked tokens. A row with fewer than P masked tokens
          is padded with 0 in these three entries.
        - with `config.choice == "spans"`, the entries of `outer_boundaries`.
        - if the batch has `pair_label`, `pair_weights (B,)` float32. The weight of a row is the
          number of masked tokens in the batch divided by the number of rows that are not all
          padding, or 0 for a row of padding. Rows on different replicas that share the batch
          therefore have equal weights.

    References: Devlin et al. 2018 (BERT), section 3.1 and appendix A.1; the references of
    `MaskingConfig`.
    """
    token_ids = batch["token_ids"]
    length = token_ids.shape[1]
    choice_seed, fate_seed, piece_seed = draws.split(seed, 3)

    maskable = maskable_tokens(token_ids, vocabulary)  # (B, L)
    counts = draws.lookup_by_count(config.counts(length), maskable)  # (B,)
    # (B, L), a positive number that identifies the token, word or span at chosen tokens, or 0
    if config.choice == "tokens":
        chosen = draws.choose_tokens(maskable, counts, choice_seed)
    else:
        starts = tf.gather(tf.constant(vocabulary.word_starts()), token_ids)  # (B, L)
        arguments = (maskable, starts, counts, choice_seed)
        if config.choice == "whole_words":
            chosen = draws.choose_words(*arguments)
        elif config.choice == "ngrams":
            chosen = draws.choose_spans(*arguments, draws.ngram_lengths())
        else:
            chosen = draws.choose_spans(*arguments, draws.span_lengths(), apart=True)

    max_count = -(-int(rounded_up(config.rate, length)) // 8) * 8  # P
    masked, flat, real = masked_features(token_ids, chosen > 0, max_count)  # (B, P) each
    labels = masked["masked_labels"]
    chosen_ids = tf.gather(tf.reshape(chosen, [-1]), flat)  # (B, P), equal within a span
    is_new_span = tf.cast(chosen_ids[:, 1:] != chosen_ids[:, :-1], tf.int32)
    # (B, P), from 0 in each row
    span_ids = tf.pad(tf.cumsum(is_new_span, axis=-1), [[0, 0], [1, 0]])
    rows, columns = tf.shape(flat)[0], flat.shape[1]
    drawn = draws.uniform(fate_seed, rows, columns)  # (B, P), in [0, 1)
    if config.fate == "span":
        drawn = tf.gather(drawn, span_ids, batch_dims=1)
    ordinary_ids = np.setdiff1d(np.arange(vocabulary.pieces), vocabulary.special.ids)
    indices = draws.uniform(piece_seed, rows, columns, len(ordinary_ids))
    random_pieces = tf.gather(tf.constant(ordinary_ids, token_ids.dtype), indices)
    replaced = tf.where(drawn < config.mask + config.random, random_pieces, labels)
    replaced = tf.where(drawn < config.mask, vocabulary.special.mask, replaced)

    extra = {}
    if config.choice == "spans":
        extra = draws.outer_boundaries(span_ids, masked["masked_positions"], real, length)
    if "pair_label" in batch:
        is_real = token_ids != vocabulary.special.pad
        rows = tf.cast(tf.reduce_any(is_real, axis=-1), tf.float32)  # (B,)
        tokens = tf.reduce_sum(tf.cast(real, tf.float32))
        extra["pair_weights"] = rows * tokens / tf.maximum(tf.reduce_sum(rows), 1.0)
    ids = tf.reshape(token_ids, [-1])  # (B, L) -> (B L,)
    change = tf.where(real, replaced - tf.gather(ids, flat), 0)
    masked_ids = ids + tf.math.unsorted_segment_sum(change, flat, tf.size(ids))
    masked_ids = tf.reshape(masked_ids, tf.shape(token_ids))
    return {**batch, **masked, **extra, "token_ids": masked_ids}


def maskable_tokens(token_ids: tf.Tensor, vocabulary: PieceVocabulary) -> tf.Tensor:
    """Returns a `(B, L)` bool tensor that is False at special tokens such as [CLS] and [PAD]."""
    different = [token_ids != token_id for token_id in sorted(vocabulary.special.ids)]
    return functools.reduce(tf.logical_and, different)


def masked_features(
    token_ids: tf.Tensor, masked: tf.Tensor, count: int
) -> tuple[Batch, tf.Tensor, tf.Tensor]:
    """Builds `masked_positions`, `masked_labels` and `masked_weights` (see `mask_tokens`).

    `masked (B, L)` is True at P = `count` or fewer positions of each row. The second result is
    their indices `(B, P)` int32 in the flattened `(B L,)`, ascending in each row, and the third,
    `(B, P)` bool, is True at valid ones.
    """
    counts = tf.reduce_sum(tf.cast(masked, tf.int32), axis=-1)  # (B,)
    columns = tf.range(count)
    indices = tf.cast(tf.where(tf.reshape(masked, [-1]))[:, 0], tf.int32)
    firsts = tf.cumsum(counts, exclusive=True)[:, None]  # (B, 1)
    flat = tf.gather(tf.pad(indices, [[0, count]]), firsts + columns)
    real = columns < counts[:, None]
    features = {
        "masked_positions": tf.where(real, flat % token_ids.shape[1], 0),
        "masked_labels": tf.where(real, tf.gather(tf.reshape(token_ids, [-1]), flat), 0),
        "masked_weights": tf.cast(real, tf.float32),
    }
    return features, flat, real
