"""Batches for models with memory, in which each row continues a row of an earlier batch."""

import itertools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from macaron_tf.data.corpus.order import BLOCK_ROWS
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import UserError, plural


def stream_dataset(
    corpus: PretrainingCorpus,
    split: str,
    batch_size: int,
    start_step: int = 0,
    repeat: bool = True,
    micro_batches: int = 1,
    bidirectional: bool = False,
) -> tf.data.Dataset:
    """Returns batches for models with memory, such as Transformer-XL.

    Row b of batch t + 1 continues row b of batch t. To this end, the rows of the split, in the
    order of the files, are divided into B texts of n consecutive rows each. Up to B - 1 rows at the
    end of the split are left out.

    Args:
        corpus: the corpus. Consecutive rows are continuous text if `packing` is "full_text".
        repeat: whether all texts start again after their last row, forever. If False, the dataset
            ends with the last row of all texts.
        micro_batches: number of micro-batches per update, A. Each micro-batch has its own texts.
            There are then A B texts, and row b of batch t + A continues row b of batch t.
        bidirectional: whether the second half of the A B rows of an update reads the texts of the
            first half backward (Yang et al. 2019 (XLNet), section 2.4, and its released code). A
            backward text starts at its last row, and each row has the ids between [CLS] and the
            last [SEP] reversed. There are then A B / 2 texts, and batches have "backward" `(B,)`
            bool.

    Returns:
        Dataset of batches as in `PretrainingCorpus.dataset` with two more arrays. "previous_ids"
        `(B, L)` int32 has the token ids of the row that each row continues, or 0 if the row starts
        a text. "starts" `(B,)` bool says whether the row starts a text.
    """
    total, size = corpus.rows(split), micro_batches * batch_size
    if bidirectional and size % 2:
        raise UserError(f"batch_size={size} must be even, to read half of the rows backward")
    texts = size // 2 if bidirectional else size
    length = total // texts
    if not length:
        raise UserError(
            f"{corpus.folder} has {total} {plural('row', total)}, fewer than the {texts} texts of "
            "an update: lower batch_size"
        )
    is_backward = np.arange(size) >= texts
    firsts = np.arange(size) % texts * length  # (size,), first row of each text
    first_update, turn = divmod(start_step, micro_batches)
    updates = max(1, BLOCK_ROWS // size)  # number of updates per block
    width, pad_id = corpus.config.sequence_length, corpus.vocabulary.special.pad

    def blocks() -> Iterator[dict[str, np.ndarray]]:
        read, skipped = corpus.row_reader(split), turn * batch_size
        for first in itertools.count(first_update, updates):
            # One update more, because the first update needs its `previous_ids`.
            places = np.arange(first - 1, first + updates)[:, None] % length  # (updates + 1, 1)
            rows = firsts + np.where(is_backward, length - 1 - places, places)
            table = read(rows.reshape(-1)).reshape(*rows.shape, -1)
            table[:, is_backward, :width] = _reverse_ids(table[:, is_backward, :width], pad_id)
            starts = places[1:] == 0
            block = {
                "table": table[1:],
                "previous_ids": np.where(starts[..., None], 0, table[:-1, :, :width]).astype(
                    np.int32
                ),
                "starts": np.broadcast_to(starts, (updates, size)),
                "backward": np.broadcast_to(is_backward, (updates, size)),
            }
            names = block if bidirectional else [*block][:3]
            yield {n: block[n].reshape(-1, *block[n].shape[2:])[skipped:] for n in names}
            skipped = 0

    spec = {"previous_ids": (tf.int32, (width,)), "starts": (tf.bool, ())}
    spec |= {"backward": (tf.bool, ())} if bidirectional else {}
    steps = tf.data.INFINITE_CARDINALITY
    if not repeat:
        steps = max(length * micro_batches - start_step, 0)
    return corpus.batches(blocks, spec, batch_size, steps)


def _reverse_ids(token_ids: np.ndarray, pad_id: int) -> np.ndarray:
    """Reverses the ids between [CLS] and the last [SEP] in each row of `(..., L)`."""
    inside = np.count_nonzero(token_ids != pad_id, axis=-1, keepdims=True) - 2
    columns = np.arange(token_ids.shape[-1]) - 1
    columns = np.where((columns >= 0) & (columns < inside), inside - 1 - columns, columns) + 1
    return np.take_along_axis(token_ids, columns, axis=-1)
