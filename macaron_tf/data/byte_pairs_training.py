"""Learning the pieces of a byte-level BPE vocabulary."""

import itertools
import json
from collections.abc import Iterable, Iterator

import tensorflow as tf

from macaron_tf.data.byte_pairs_text import byte_alphabet, clean
from macaron_tf.data.normalization import in_chunks
from macaron_tf.errors import UserError


def train_byte_pairs(
    lines: Iterable[str],
    size: int,
    *,
    special: int,
    lower_case: bool,
    add_prefix_space: bool,
    max_lines: int,
) -> tuple[list[str], list[str]]:
    """Learns pieces by merges of bytes within words; the same lines give the same pieces.

    Args:
        lines: lines of text.
        size: number of pieces, special ones included.
        special: number of those, which are not learnt.
        lower_case, add_prefix_space: as for `clean`.
        max_lines: lines read at most.

    Returns:
        The pieces, the 256 bytes first, and the merges, `"left right"`, in the order of learning.

    Raises:
        UserError: no text, too little of it for `size` pieces, or `size` is less than the bytes
            take; or the tokenizers package is not installed.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError:
        raise UserError(
            "training a byte-level BPE vocabulary needs a package: pip install tokenizers"
        ) from None
    least = special + len(byte_alphabet())
    if size < least:
        raise UserError(
            f"a vocabulary of {size} pieces is too small: the bytes alone need {least}; ask for "
            f"{least} pieces or more"
        )
    text = cleaned(itertools.islice(lines, max_lines), lower_case, add_prefix_space)
    text = filter(str.strip, text)
    first = next(text, None)
    if first is None:
        raise UserError("no text to train a vocabulary on: every line is empty")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - special, initial_alphabet=list(byte_alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(itertools.chain([first], text), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    if len(pieces) < size - special:
        most = len(pieces) + special
        raise UserError(
            f"a vocabulary of {size} pieces is too large for this text: it gives at most {most}; "
            f"ask for {most} or fewer, or bring more text"
        )
    return pieces, [" ".join(merge) for merge in model["merges"]]


def cleaned(lines: Iterable[str], lower_case: bool, add_prefix_space: bool) -> Iterator[str]:
    """`clean` outside a graph, chunk by chunk; a lone surrogate becomes U+FFFD."""
    for chunk in in_chunks(lines):
        raw = [line.encode("utf-8", "surrogatepass") for line in chunk]
        with tf.device("CPU"):
            text = clean(tf.constant(raw), lower_case, add_prefix_space).numpy().tolist()
        for line in text:
            yield line.decode("utf-8")
