"""The peer of the input benchmark: Hugging Face's tokenizer, packed and masked with NumPy."""

import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

RATE, MASK, RANDOM = 0.15, 0.8, 0.1  # BERT's
NOT_ASKED = -100  # the label that PyTorch's cross entropy leaves out


class InputPeer:
    """Masked batches of a text, as one would write them around `tokenizers`.

    Args:
        vocabulary: a WordPieceVocabulary, whose pieces Hugging Face's BERT tokenizer takes.
        length: L of the rows.
        folder: takes the vocabulary's file.
    """

    def __init__(self, vocabulary, length: int, folder: pathlib.Path):
        import tokenizers

        self._vocabulary, self._length = vocabulary, length
        path = folder / "vocabulary.txt"
        path.write_bytes(vocabulary.contents())
        self._tokenizer = tokenizers.BertWordPieceTokenizer(
            str(path), lowercase=vocabulary.lower_case
        )

    def rows(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """`[CLS] ids [SEP]` of each document, `(N, L)`, all but its last row full."""
        room = self._length - 2
        for text in texts:
            lines = [line for line in text.split("\n") if line]
            encoded = self._tokenizer.encode_batch(lines, add_special_tokens=False)
            ids = np.concatenate([np.array(one.ids, np.int32) for one in encoded])
            count = -(-len(ids) // room)
            rows = np.zeros((count, self._length), np.int32)
            rows[:, 0] = self._vocabulary.cls_id
            rows[:, -1] = self._vocabulary.sep_id
            rows[:, 1:-1] = np.pad(ids, (0, count * room - len(ids))).reshape(count, room)
            if len(ids) % room:
                rows[-1, -1] = 0
                rows[-1, len(ids) % room + 1] = self._vocabulary.sep_id
            yield rows

    def batches(
        self, texts: Iterable[str], batch_size: int, seed: int = 0
    ) -> Iterator[dict[str, np.ndarray]]:
        """What `mask_rows` gives, of B rows each; the last batch may be smaller."""
        rng = np.random.default_rng(seed)
        for rows in batched(self.rows(texts), batch_size):
            yield mask_rows(rows, self._vocabulary, rng)


def batched(blocks: Iterable[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Rows of any blocks `(N, L)` as batches `(B, L)`; the last one may be smaller."""
    held: list[np.ndarray] = []
    count = 0
    for block in blocks:
        held.append(block)
        count += len(block)
        if count >= batch_size:
            rows = np.concatenate(held)
            whole = count - count % batch_size
            for start in range(0, whole, batch_size):
                yield rows[start : start + batch_size]
            held, count = [rows[whole:]], count - whole
    if count:
        yield np.concatenate(held)


def mask_rows(token_ids: np.ndarray, vocabulary, rng: np.random.Generator) -> dict:
    """Masks a batch with NumPy as Hugging Face's collator does: each token for itself.

    Args:
        token_ids: (B, L) int32.
        vocabulary: its special ids are left alone.
        rng: one draw a token says whether it is asked for and what becomes of it.

    Returns:
        {"token_ids": (B, L), "labels": (B, L), -100 where nothing is asked}.
    """
    ordinary = np.ones(vocabulary.size, bool)
    ordinary[[*vocabulary.special_ids, *range(vocabulary.pieces, vocabulary.size)]] = False
    draws = rng.random(token_ids.shape, np.float32) / RATE
    asked = (draws < 1) & ordinary[token_ids]
    masked = np.where(asked & (draws < MASK), vocabulary.mask_id, token_ids)
    exchanged = asked & (draws >= MASK) & (draws < MASK + RANDOM)
    choice = np.flatnonzero(ordinary)
    masked[exchanged] = choice[rng.integers(0, len(choice), np.count_nonzero(exchanged))]
    return {"token_ids": masked, "labels": np.where(asked, token_ids, NOT_ASKED)}
