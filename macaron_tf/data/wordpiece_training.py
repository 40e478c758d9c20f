"""Learning the pieces of a WordPiece vocabulary."""

import collections
import itertools
from collections.abc import Iterable, Iterator

import sentencepiece
import tensorflow as tf

from macaron_tf.data.normalization import in_chunks
from macaron_tf.data.sentencepiece_training import train_pieces
from macaron_tf.data.wordpiece_text import CONTINUES, spaced_words
from macaron_tf.errors import UserError

_WORD_START = "\u2581"  # SentencePiece's mark


def train_wordpiece(
    lines: Iterable[str],
    size: int,
    *,
    special: int,
    lower_case: bool,
    max_characters: int,
    max_lines: int,
) -> list[str]:
    """Learns pieces by byte-pair merges within words; the same lines give the same pieces.

    The merges are SentencePiece's: `tokenizers` numbers equal merges by chance (two runs on six
    novels gave two vocabularies), and tensorflow_text's learner took 150 s for their 21,000 words
    and gave 5,900 pieces where 8,000 were asked for.

    Args:
        lines: lines of text.
        size: number of pieces, special ones included.
        special: number of those, which are not learnt.
        lower_case: as for `clean`.
        max_characters: characters that become pieces, the most frequent ones.
        max_lines: lines read at most.

    Returns:
        The single characters in Unicode's order, each as a word's start and as a continuation,
        then the merges in the order they were made.

    Raises:
        UserError: no text, too little of it for `size` pieces, or too much.
    """
    text = list(_words(itertools.islice(lines, max_lines), lower_case))
    counts = collections.Counter(character for line in text for character in line)
    counts.pop(" ", None)
    # By number and character: a tie must not depend on the order of the text.
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    alphabet = sorted(ranked[:max_characters])
    if len(alphabet) < len(ranked):
        kept = {*alphabet, " "}
        text = [_without_rare_words(line, kept) for line in text]
    text = [line for line in text if line]
    if not text:
        raise UserError("no text to train a vocabulary on: every line is empty")
    singles = [*alphabet, *(CONTINUES + character for character in alphabet)]
    least = special + len(singles)
    if size < least:
        raise UserError(
            f"a vocabulary of {size} pieces is too small: the text's characters alone need "
            f"{least}; ask for {least} pieces or more, or lower max_characters"
        )
    merges = _merges(text, size - special, len(singles))
    if len(merges) < size - least:
        most = len(merges) + least
        raise UserError(
            f"a vocabulary of {size} pieces is too large for this text: it gives at most {most}; "
            f"ask for {most} or fewer, or bring more text"
        )
    return [*singles, *merges[: size - least]]


def _words(lines: Iterable[str], lower_case: bool) -> Iterator[str]:
    """Lines of words set apart by spaces, none empty."""
    for chunk in in_chunks(lines):
        raw = [line.encode("utf-8", "surrogatepass") for line in chunk]
        with tf.device("CPU"):
            spaced = spaced_words(tf.constant(raw), lower_case).numpy().tolist()
        for line in spaced:
            # SentencePiece would take its own mark in a text for a space.
            if text := line.decode("utf-8").replace(_WORD_START, "").strip():
                yield text


def _without_rare_words(line: str, kept: set[str]) -> str:
    if kept.issuperset(line):
        return line
    return " ".join(word for word in line.split(" ") if kept.issuperset(word))


def _merges(text: list[str], size: int, singles: int) -> list[str]:
    """The merged pieces, WordPiece's way, in the order of the merges; fewer where the text ends."""
    special = 4
    # SentencePiece counts these too: its specials, its own mark, and for each character the
    # character (half of `singles`) and at most one merge "▁" + character, which is a single here.
    proto = train_pieces(
        text,
        special + 1 + size,
        model_type="bpe",
        character_coverage=1.0,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
    )
    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(proto)
    pieces = (model.id_to_piece(i) for i in range(special, model.get_piece_size()))
    merged = (
        piece.removeprefix(_WORD_START) if piece.startswith(_WORD_START) else CONTINUES + piece
        for piece in pieces
    )
    return [piece for piece in merged if len(piece.removeprefix(CONTINUES)) > 1]
