"""Toy vocabularies, rows, models and losses in NumPy, for tests of the objectives."""

import dataclasses
import types

import numpy as np
import tensorflow as tf

from macaron_tf.models import EncoderConfig
from macaron_tf.objectives import MaskingConfig, mask_tokens
from macaron_tf.special import Special

UNK, CLS, SEP, MASK = 1, 2, 3, 4
CONFIG = types.SimpleNamespace(pad_id=0)  # of a toy network
CHOICES = ("tokens", "whole_words", "ngrams", "spans")
SPECIAL = (0, UNK, CLS, SEP, MASK)


STOP = 9


@dataclasses.dataclass(frozen=True)
class ToyVocabulary:
    """A toy vocabulary, in which ids 0 to 4 are special and id 9 is the full stop.

    The last `continuing` pieces continue a word.
    """

    pieces: int = 60
    continuing: int = 0
    special: Special = Special(mask=MASK)

    @property
    def size(self) -> int:
        return -(-self.pieces // 8) * 8

    def word_starts(self) -> np.ndarray:
        return np.arange(self.size) < self.pieces - self.continuing

    def encode_lines(self, lines):
        return [[10] * (len(line) - 1) + [STOP] for line in lines]


VOCABULARY = ToyVocabulary()
# Ids 5 to 44 begin a word, and ids 45 to 59 continue a word.
WORD_VOCABULARY = ToyVocabulary(continuing=15)


def full_rows(rows: int, length: int, pieces: int = 60, seed: int = 0) -> np.ndarray:
    """Returns rows `[CLS] a ... [SEP]` without padding: `(B, L)` int32."""
    ids = np.random.default_rng(seed).integers(5, pieces, (rows, length)).astype("int32")
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


def ragged_rows(lengths, length: int, pieces: int = 60, seed: int = 0) -> np.ndarray:
    """Returns rows `[CLS] a ... [SEP] b ... [SEP]` with padding: `(B, L)` int32.

    `lengths` is the number of ordinary ids in each row.
    """
    ids = np.random.default_rng(seed).integers(5, pieces, (len(lengths), length)).astype("int32")
    for row, count in zip(ids, lengths, strict=True):
        first = count // 2 + 1
        row[0] = CLS
        row[first + 1 : count + 2] = row[first : count + 1].copy()
        row[first] = row[count + 2] = SEP
        row[count + 3 :] = 0
    return ids


def words_of(sizes, seed=0):
    """Returns the token ids of words in `WORD_VOCABULARY`; word i has `sizes[i]` tokens."""
    rng = np.random.default_rng(seed)
    return [
        int(rng.integers(5, 45) if place == 0 else rng.integers(45, 60))
        for size in sizes
        for place in range(size)
    ]


def text_rows(rows, length, seed=0):
    """Returns rows `[CLS] words [SEP]` with natural word lengths: 1 to 5 tokens, 1.4 on average."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((rows, length), "int32")
    for row in ids:
        sizes = rng.choice([1, 2, 3, 4, 5], length, p=[0.75, 0.15, 0.06, 0.03, 0.01])
        row[:] = [CLS, *words_of(sizes, int(rng.integers(1 << 30)))[: length - 2], SEP]
    return ids


def word_numbers(row):
    """Returns the word index of each token; special tokens have the index -1."""
    starts = (row < 45) | (np.r_[0, row[:-1]] < 5)
    return np.where(row < 5, -1, np.cumsum(starts))


def texts(lengths, room: int, first: int = 10) -> np.ndarray:
    """Returns texts of ids `first`, `first` + 1, ...: `(B, room)` int32.

    Text i has `lengths[i]` tokens, followed by zeros.
    """
    columns = np.arange(room)
    return np.where(columns < np.array(lengths)[:, None], columns + first, 0).astype("int32")


def rows_of(text: np.ndarray) -> np.ndarray:
    """Returns rows `[CLS] text [SEP]`: `(B, R) -> (B, R + 2)`; empty texts become padding."""
    rows = np.zeros((len(text), text.shape[1] + 2), "int32")
    for row, one in zip(rows, text, strict=True):
        ids = one[one != 0]
        if len(ids):
            row[: len(ids) + 2] = [CLS, *ids, SEP]
    return rows


V = 64


def tiny(**overrides) -> EncoderConfig:
    """Returns a configuration without dropout and with large initial weights."""
    sizes = {"vocab_size": V, "hidden_dim": 16, "feed_forward_dim": 32, "num_heads": 2}
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.3}
    return EncoderConfig(**{**sizes, "num_layers": 1, "max_length": 24, **plain, **overrides})


def rows(lengths, length=24, batch=None, **more) -> tf.data.Dataset:
    """Returns endless batches of ragged rows; a length of `None` means a row of padding."""
    ids = ragged_rows([count or 0 for count in lengths], length)
    ids[[count is None for count in lengths]] = 0
    dataset = tf.data.Dataset.from_tensor_slices({"token_ids": ids, **more})
    return dataset.batch(batch or len(lengths), drop_remainder=True).repeat()


def batches(objective, lengths, count=1, seed=1, start=0, **more) -> list[dict]:
    """Returns `count` batches of an objective's dataset, beginning with batch `start`."""
    dataset = objective.dataset(rows(lengths, **more).skip(start), VOCABULARY, seed, start)
    return list(dataset.take(count))


def nll_of(logits, labels) -> np.ndarray:
    """Returns the float64 cross-entropy of logits `(..., C)`."""
    logits = np.asarray(logits, "float64")
    top = logits.max(-1)
    total = np.log(np.exp(logits - top[..., None]).sum(-1)) + top
    return total - np.take_along_axis(logits, np.asarray(labels)[..., None], -1)[..., 0]


def scored(logits, labels, where=None) -> tuple[float, int, int]:
    """Returns the summed cross-entropy of labels, the number of correct ones, and their number.

    Labels count where `where` is true, or everywhere.
    """
    where = np.ones(np.shape(labels), bool) if where is None else np.asarray(where) > 0
    logits, labels = np.asarray(logits)[where], np.asarray(labels)[where]
    return nll_of(logits, labels).sum(), (logits.argmax(-1) == labels).sum(), len(labels)


def floats(sums: dict) -> dict[str, float]:
    assert all(value.dtype == tf.float32 for value in sums.values())
    return {name: float(value) for name, value in sums.items()}


def loss_and_gradients(objective, network, batch, training=False) -> list[tf.Tensor]:
    """Returns the summed loss and its gradients for all trainable weights."""
    with tf.GradientTape() as tape:
        loss = objective(network, batch, training=training)["loss_sum"]
    found = tape.gradient(loss, [weight.value for weight in network.trainable_variables])
    return [loss, *map(tf.convert_to_tensor, found)]


def masked(token_ids, config=None, seed=(3, 7), vocabulary=VOCABULARY, **more) -> dict:
    """Returns the batch that `mask_tokens` makes from `token_ids`, as NumPy arrays."""
    batch = {"token_ids": tf.constant(token_ids), **more}
    seed = tf.constant(seed, tf.int64)
    batch = mask_tokens(batch, seed, config or MaskingConfig(), vocabulary)
    return {name: tensor.numpy() for name, tensor in batch.items()}


def of_masks(batch, *names) -> list[np.ndarray]:
    """Returns the row of each masked token, and its values of features `(B, P)`, as `(N,)`."""
    used = np.nonzero(batch["masked_weights"])
    return [used[0], *(np.asarray(batch[name])[used] for name in names)]


def masked_at(batch) -> np.ndarray:
    """Returns a `(B, L)` bool array that is True at the masked positions of a batch."""
    where = np.zeros(batch["token_ids"].shape, bool)
    where[tuple(of_masks(batch, "masked_positions"))] = True
    return where
