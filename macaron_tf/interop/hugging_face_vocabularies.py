"""The vocabularies of Hugging Face's models, with our ids."""

import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import read_json
from macaron_tf.interop.bert_vocabulary import read_hugging_face_vocabulary
from macaron_tf.interop.sentencepiece_models import (
    encoder_model,
    pieces_of_file,
    pieces_of_tokenizer,
    without_commas,
)
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.byte_pairs import WORD_END, BytePairVocabulary, CharacterPairVocabulary

# In our order, by the names of XLNet (which has <s> and </s> too, and does not use them), by those
# of RoBERTa and XLM-R, and by those of ALBERT.
_SPECIAL = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "cls_token": ("<cls>", "<s>", "[CLS]"),
    "sep_token": ("<sep>", "</s>", "[SEP]"),
    "mask_token": ("<mask>", "[MASK]"),
}
# Kinds of vocabularies as `tokenizer.json` calls them, by the files of their own.
_FILES = {
    "vocab.txt": "WordPiece",
    "vocab.json": "BPE",
    "spiece.model": "Unigram",
    "sentencepiece.bpe.model": "Unigram",
}


def read_vocabulary(
    directory: pathlib.Path, lower_case: bool | None = None
) -> tuple[PieceVocabulary, np.ndarray | None]:
    """Reads a tokenizer's files: WordPiece, byte-level BPE or SentencePiece.

    Args:
        directory: holds them.
        lower_case: whether text is lower-cased, for a WordPiece directory that does not say so.

    Returns:
        The vocabulary, and at each of its ids theirs, `(V',)` int; None where all are the same.

    Raises:
        UserError: there is no vocabulary, or it cuts text otherwise than ours.
    """
    tokenizer = _optional(directory / "tokenizer.json")
    file = next((name for name in _FILES if (directory / name).is_file()), None)
    # Early files of WordPiece do not name the type.
    kind = _FILES.get(file) or (tokenizer.get("model") or {}).get("type")
    if not tokenizer and file is None:
        raise UserError(
            f"{directory} has no vocabulary: neither {', '.join(_FILES)} nor tokenizer.json."
        )
    if kind not in ("BPE", "Unigram"):
        return read_hugging_face_vocabulary(directory, lower_case), None
    reader = _read_byte_pairs if kind == "BPE" else _read_sentencepiece
    return reader(directory, tokenizer, _optional(directory / "tokenizer_config.json"))


def _optional(file: pathlib.Path) -> dict:
    return read_json(file) if file.is_file() else {}


def read_gpt2_vocabulary(directory: pathlib.Path) -> tuple[BytePairVocabulary, np.ndarray]:
    """Reads GPT-2's tokenizer, whose one special piece is the end of a text.

    Args:
        directory: as of `read_vocabulary`.

    Returns:
        The vocabulary, and at each of its ids theirs, `(V',)` int: the end's for [SEP], and for
        [CLS] too, for theirs begins a text with it; -1 for our other special ids.

    Raises:
        UserError: there is no vocabulary, or it cuts text otherwise than ours.
    """
    tokenizer = _optional(directory / "tokenizer.json")
    options = _optional(directory / "tokenizer_config.json")
    if not tokenizer and not (directory / "vocab.json").is_file():
        raise UserError(f"{directory} has no vocabulary: neither vocab.json nor tokenizer.json.")
    numbers, merges, prefix = _byte_pairs(directory, tokenizer, options)
    end = options.get("eos_token") or "<|endoftext|>"
    end = end.get("content") if isinstance(end, dict) else end
    if end not in numbers:
        raise UserError(f"the tokenizer of {directory} has no piece {end!r} for the end of a text.")
    kept = sorted(numbers.keys() - {end}, key=numbers.__getitem__)
    special = [-1, -1, numbers[end], numbers[end], -1]
    vocabulary = BytePairVocabulary(kept, merges, add_prefix_space=prefix)
    return vocabulary, np.array([*special, *(numbers[name] for name in kept)])


def read_gpt_vocabulary(directory: pathlib.Path) -> tuple[CharacterPairVocabulary, np.ndarray]:
    """Reads GPT's tokenizer: BERT's words in small letters, merges that mark where they end.

    Args:
        directory: as of `read_vocabulary`.

    Returns:
        The vocabulary, and at each of its ids theirs, `(V',)` int; -1 for our special ids but that
        of an unknown character.

    Raises:
        UserError: there is no vocabulary, or it cuts text otherwise than ours.
    """
    tokenizer = _optional(directory / "tokenizer.json")
    if not tokenizer and not (directory / "vocab.json").is_file():
        raise UserError(f"{directory} has no vocabulary: neither vocab.json nor tokenizer.json.")
    suffix = (tokenizer.get("model") or {}).get("end_of_word_suffix", WORD_END)
    if suffix != WORD_END:
        raise UserError(
            f"{directory / 'tokenizer.json'} ends words with {suffix!r}: only {WORD_END!r} can be "
            "read."
        )
    numbers, merges = _merged_pieces(directory, tokenizer)
    options = _optional(directory / "tokenizer_config.json")
    [unknown] = _special_names(directory, options, numbers, {"unk_token": ("<unk>",)})
    kept = sorted(numbers.keys() - {unknown}, key=numbers.__getitem__)
    special = [-1, numbers[unknown], -1, -1, -1]
    vocabulary = CharacterPairVocabulary(kept, merges)
    return vocabulary, np.array([*special, *(numbers[name] for name in kept)])


def read_t5_vocabulary(directory: pathlib.Path) -> tuple[PieceVocabulary, np.ndarray, np.ndarray]:
    """Reads T5's tokenizer: SentencePiece's unigrams, and sentinels behind them.

    Args:
        directory: as of `read_vocabulary`.

    Returns:
        The vocabulary; at each of its ids theirs, `(V',)` int, -1 for [MASK], for which they have
        none, and for [CLS] that of padding, with which their decoder begins; theirs of the
        sentinels, `<extra_id_0>` first.

    Raises:
        UserError: there is no vocabulary, or it has no padding, end or unknown piece.
    """
    tokenizer, file = _optional(directory / "tokenizer.json"), directory / "spiece.model"
    options = _optional(directory / "tokenizer_config.json")
    if not tokenizer and not file.is_file():
        raise UserError(f"{directory} has no vocabulary: neither {file.name} nor tokenizer.json.")
    source = pieces_of_file(file) if file.is_file() else pieces_of_tokenizer(tokenizer)
    names = [piece.piece for piece in source.pieces]
    numbers = [re.fullmatch(r"<extra_id_(\d+)>", name) for name in names]
    sentinels = {int(found[1]): place for place, found in enumerate(numbers) if found}
    if not sentinels:  # the model's file knows nothing of them: they follow it, the last one first
        count = options.get("extra_ids", 100)
        sentinels = {number: len(names) + count - 1 - number for number in range(count)}
    usual = {"pad_token": ("<pad>",), "unk_token": ("<unk>",), "eos_token": ("</s>",)}
    special = _special_names(directory, options, names, usual)
    pad, unknown, end = (names.index(name) for name in special)
    rest = np.setdiff1d(np.arange(len(names)), [pad, unknown, end, *sentinels.values()])
    ids = np.array([pad, unknown, pad, end, -1, *rest])
    vocabulary = encoder_model(source, ids, lower_case=False)
    return vocabulary, ids, np.array([sentinels[number] for number in sorted(sentinels)], int)


def _byte_pairs(
    directory: pathlib.Path, tokenizer: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, int], list[str], bool]:
    """Pieces and their ids, merges, and whether a line begins with a space."""
    steps = tokenizer.get("pre_tokenizer") or {}
    if not (directory / "vocab.json").is_file():
        plain = steps.get("type") == "ByteLevel" and steps.get("use_regex", True)
        if not plain or tokenizer.get("normalizer"):
            raise UserError(
                f"{directory / 'tokenizer.json'} is of no byte-level BPE as GPT-2's: only that can "
                "be read."
            )
    prefix = options.get("add_prefix_space", steps.get("add_prefix_space", False))
    return *_merged_pieces(directory, tokenizer), bool(prefix)


def _merged_pieces(
    directory: pathlib.Path, tokenizer: Mapping[str, Any]
) -> tuple[dict[str, int], list[str]]:
    """Pieces and their ids, and merges, of their own two files or of `tokenizer.json`."""
    file, merges_file = directory / "vocab.json", directory / "merges.txt"
    if file.is_file():
        if not merges_file.is_file():
            raise UserError(f"{directory} has {file.name} and no {merges_file.name}.")
        lines = merges_file.read_text(encoding="utf-8").split("\n")
        lines = [line.removesuffix("\r") for line in lines]
        return read_json(file), [n for n in lines if n and not n.startswith("#version")]
    model = tokenizer["model"]
    # Early files have "left right", later ones a list of the two.
    return model["vocab"], [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def _read_byte_pairs(
    directory: pathlib.Path, tokenizer: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[PieceVocabulary, np.ndarray]:
    numbers, merges, prefix = _byte_pairs(directory, tokenizer, options)
    names = _special_names(directory, options, numbers)
    kept = sorted(numbers.keys() - set(names), key=numbers.__getitem__)
    # RoBERTa's; what else is byte-level has no pairs.
    vocabulary = BytePairVocabulary(
        kept, merges, add_prefix_space=prefix, pair_separators=2 if "<s>" in names else 1
    )
    return vocabulary, np.array([numbers[name] for name in [*names, *kept]])


def _read_sentencepiece(
    directory: pathlib.Path, tokenizer: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[PieceVocabulary, np.ndarray]:
    files = [directory / name for name in _FILES if name.endswith(".model")]
    file = next((file for file in files if file.is_file()), None)
    source = pieces_of_file(file) if file else pieces_of_tokenizer(tokenizer)
    names = _special_names(directory, options, {piece.piece for piece in source.pieces})
    places = {piece.piece: place for place, piece in enumerate(source.pieces)}
    special = [places[name] for name in names]
    order = [*special, *np.setdiff1d(np.arange(len(source.pieces)), special)]
    # XLM-R's model does all that is done to text; XLNet's and ALBERT's text is folded before.
    xlnet, fold = "<cls>" in names, "<s>" not in names
    if xlnet and file:
        source = without_commas(source)
    if options.get("keep_accents"):
        raise UserError(
            f"the tokenizer of {directory} has keep_accents=True: only False can be read."
        )
    # What is not said is the default of theirs: ALBERT is of small letters, XLNet is not.
    small = "Lowercase" in _steps(tokenizer) if tokenizer else not xlnet
    lower_case = options.get("do_lower_case", small)
    vocabulary = encoder_model(
        source,
        order,
        lower_case=fold and bool(lower_case),
        fold_accents=fold,
        pair_separators=1 if fold else 2,
        cls_last=xlnet,
    )
    return vocabulary, np.array(order)


def _steps(tokenizer: Mapping[str, Any]) -> list[str]:
    """Types of what a `tokenizer.json` does to text before it is cut."""
    normalizer = tokenizer.get("normalizer") or {}
    return [step.get("type") for step in normalizer.get("normalizers", [normalizer])]


def _special_names(
    directory: pathlib.Path,
    options: Mapping[str, Any],
    present: Collection[str],
    special: Mapping[str, Sequence[str]] = _SPECIAL,
) -> Sequence[str]:
    """Their names of padding, unknown, [CLS], [SEP] and [MASK], or of those in `special`."""
    names = []
    for field, usual in special.items():
        given = options.get(field)
        # Early files keep a token as an object with its `content`.
        given = given.get("content") if isinstance(given, dict) else given
        name = next((n for n in ((given,) if given else usual) if n in present), None)
        if name is None:
            raise UserError(
                f"the tokenizer of {directory} has no {field}: only vocabularies with {field} "
                f"{given or ' or '.join(usual)} among their pieces can be read."
            )
        names.append(name)
    return names
