"""Vocabularies of Hugging Face's directories and KerasHub's presets, with our ids."""

import base64
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import ForeignConfig, read_json
from macaron_tf.text import NormalizationConfig, PieceVocabulary, WordPieceVocabulary
from macaron_tf.text.byte_pairs import (
    WORD_END,
    BytePairVocabulary,
    CharacterPairVocabulary,
    MosesPairVocabulary,
)
from macaron_tf.text.sentencepiece import CONTROL, SentencePieceVocabulary

# In our order, by the names of XLNet (which has <s> and </s> too, and does not use them), by those
# of RoBERTa and XLM-R, and by those of ALBERT.
_SPECIAL = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "cls_token": ("<cls>", "<s>", "[CLS]"),
    "sep_token": ("<sep>", "</s>", "[SEP]"),
    "mask_token": ("<mask>", "[MASK]"),
}
_XLM_SPECIAL = {
    "pad_token": ("<pad>",),
    "unk_token": ("<unk>",),
    "bos_token": ("<s>",),
    "sep_token": ("</s>",),
    "mask_token": ("<special1>",),
}
# Kinds of vocabularies as `tokenizer.json` calls them, by the files of their own.
_KINDS = {
    "vocab.txt": "WordPiece",
    "vocab.json": "BPE",
    "vocabulary.json": "BPE",  # KerasHub's
    "spiece.model": "Unigram",
    "sentencepiece.bpe.model": "Unigram",
}
_Model: TypeAlias = sentencepiece_model_pb2.ModelProto
_Piece: TypeAlias = sentencepiece_model_pb2.ModelProto.SentencePiece
_Kind = TypeVar("_Kind", bound=PieceVocabulary)
_LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The step of `tokenizer.json` by which Llama 3's cuts words.
LLAMA_CUT = {
    "type": "Split",
    "pattern": {"Regex": _LLAMA_WORDS},
    "behavior": "Isolated",
    "invert": False,
}
_SENTINEL = re.compile(r"<extra_id_(\d+)>")  # T5's
_LAST_RESORT = 100.0  # more than the score of any other way to cut a word


class _Tokenizer:
    """The files of a tokenizer: one of `files`, or `tokenizer.json`; a UserError without either.

    Attributes:
        file: the vocabulary's own file; None where only `tokenizer.json` holds it.
        whole: contents of `tokenizer.json`, `model` and `normalizer` its parts, or {}.
        options: contents of `tokenizer_config.json`, or {}.
        named: ids of the tokens that any file names beside the vocabulary's own.
        added: those of `named` that users added, which are matched whole in a text.
    """

    def __init__(self, directory: pathlib.Path, files: Collection[str]):
        def optional(name: str) -> dict:
            return read_json(directory / name) if (directory / name).is_file() else {}

        self.directory = directory
        self.whole = optional("tokenizer.json")
        self.options = optional("tokenizer_config.json")
        self.model = self.whole.get("model") or {}
        self.normalizer = self.whole.get("normalizer") or {}
        found = (directory / name for name in files if (directory / name).is_file())
        self.file = next(found, None)
        if not self.whole and not self.file:
            raise UserError(
                f"{directory} has no vocabulary: neither {', '.join(files)} nor tokenizer.json."
            )
        try:
            tokens = {**(self.options.get("added_tokens_decoder") or {})}
            tokens |= {one["id"]: one for one in self.whole.get("added_tokens") or ()}
            named = [(one["content"], number) for number, one in tokens.items()]
            named = [*optional("added_tokens.json").items(), *named]
            self.named = {name: int(number) for name, number in named}
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{directory} names added tokens without ids: restore it.") from None
        roles = {name for names in _SPECIAL.values() for name in names} | {"<|endoftext|>"}
        roles |= {self.token(field) for field in ("bos_token", "eos_token", *_SPECIAL)}
        self.added = {
            name: number
            for name, number in self.named.items()
            if name not in roles and not _SENTINEL.fullmatch(name)
        }

    def token(self, field: str) -> str | None:
        """The name that `tokenizer_config.json` gives a special piece."""
        given = self.options.get(field)
        # Early files keep a token as an object with its `content`.
        return given.get("content") if isinstance(given, dict) else given

    def special(
        self, present: Collection[str], usual: Mapping[str, Sequence[str]] = _SPECIAL
    ) -> list[str]:
        """Their names of padding, unknown, [CLS], [SEP] and [MASK], or of the fields of `usual`.

        Args:
            present: the names of all pieces.
            usual: names by field, where the options give none.
        """
        names = []
        for field, candidates in usual.items():
            given = self.token(field)
            candidates = (given,) if given else candidates
            name = next((name for name in candidates if name in present), None)
            if name is None:
                raise UserError(
                    f"the tokenizer of {self.directory} has no {field}: only vocabularies with "
                    f"{field} {' or '.join(candidates)} among their pieces can be read."
                )
            names.append(name)
        return names

    @property
    def steps(self) -> list[str]:
        """The types of the normalizers in `tokenizer.json`, in order; [] where it names none."""
        steps = self.normalizer.get("normalizers", [self.normalizer])
        return [step["type"] for step in steps if "type" in step]

    def separators(self, usual: int) -> int:
        """Number of [SEP] between two texts by `tokenizer.json`'s template; `usual` without one."""
        template = (self.whole.get("post_processor") or {}).get("pair")
        if not template:
            return usual
        kinds = ["Sequence" in part for part in template]
        first = kinds.index(True)
        return kinds.index(True, first + 1) - first - 1

    def merged_pieces(self) -> tuple[dict[str, int], list[str]]:
        """Pieces and their ids, and merges, from their own two files or from `tokenizer.json`."""
        if not self.file:
            merges = self.model["merges"]
            # Early files have "left right", later ones a list of the two.
            merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
            return self.added | self.model["vocab"], merges
        file = self.directory / "merges.txt"
        if not file.is_file():
            raise UserError(f"{self.directory} has {self.file.name} and no {file.name}.")
        lines = (line.removesuffix("\r") for line in file.read_text(encoding="utf-8").split("\n"))
        merges = [n for n in lines if n and not n.startswith("#version")]
        return self.added | read_json(self.file), merges

    def extended(self, pieces: list[_Piece]) -> list[_Piece]:
        """A SentencePiece model's pieces and the named ones behind them; its own need no match."""
        self.added = {name: n for name, n in self.added.items() if n >= len(pieces)}
        for name, number in sorted(self.named.items(), key=lambda item: item[1]):
            if number == len(pieces):
                pieces.append(_piece(name))
        return pieces

    def byte_pairs(self) -> tuple[dict[str, int], list[str], dict[str, Any]]:
        """`merged_pieces` of bytes, and options of their vocabulary."""
        given = self.whole.get("pre_tokenizer") or {}
        *cuts, last = given.get("pretokenizers") or [given]
        plain = last.get("type") == "ByteLevel"
        found = (plain, last.get("use_regex", True), self.model.get("ignore_merges", False), cuts)
        patterns = {"gpt2": (True, True, False, []), "llama3": (True, False, True, [LLAMA_CUT])}
        pattern = next((name for name, needed in patterns.items() if found == needed), None)
        if not self.file and (pattern is None or self.steps not in ([], ["NFC"])):
            raise UserError(
                f"{self.directory / 'tokenizer.json'} is of no byte-level BPE as GPT-2's, "
                "ModernBERT's or Llama 3's: only those can be read."
            )
        prefix = self.options.get("add_prefix_space", last.get("add_prefix_space", False))
        return *self.merged_pieces(), {
            "lower_case": "Lowercase" in self.steps,
            "add_prefix_space": bool(prefix),
            "composed": "NFC" in self.steps,
            "pattern": pattern or "gpt2",
        }


def _ordered(
    numbers: Mapping[str, int], special: Sequence[str | None]
) -> tuple[list[str], np.ndarray]:
    """Ordinary pieces in the order of their ids; ids of `special` (-1 of None) and of these."""
    kept = sorted(numbers.keys() - set(special), key=numbers.__getitem__)
    return kept, np.array([numbers.get(name, -1) for name in (*special, *kept)])


def _with_added(vocabulary: _Kind, found: _Tokenizer, ids: np.ndarray) -> _Kind:
    """The vocabulary with its added tokens at our ids; `ids` are theirs for each of ours."""
    ours = {theirs: number for number, theirs in enumerate(ids.tolist())}
    absent = [name for name, number in found.added.items() if number not in ours]
    if absent:
        raise UserError(
            f"{found.directory} adds the token {absent[0]!r} with id {found.added[absent[0]]}, and "
            "the ids before it have no token: only ids in a row can be read."
        )
    added = {name: ours[number] for name, number in found.added.items()}
    vocabulary.added = {n: i for n, i in added.items() if i not in vocabulary.special_ids}
    return vocabulary


def read_vocabulary(
    directory: pathlib.Path, lower_case: bool | None = None
) -> tuple[PieceVocabulary, np.ndarray | None]:
    """Reads a tokenizer's files: WordPiece, byte-level BPE or SentencePiece.

    Args:
        lower_case: whether text is lower-cased, for a WordPiece directory that does not say so.

    Returns:
        The vocabulary, and at each of its ids theirs, `(V',)` int; None where all are the same.
    """
    found = _Tokenizer(directory, _KINDS)
    # Early files of WordPiece do not name the type.
    kind = _KINDS[found.file.name] if found.file else found.model.get("type")
    if kind == "BPE":
        numbers, merges, options = found.byte_pairs()
        names = found.special(found.named | numbers)
        numbers |= {name: found.named[name] for name in names if name not in numbers}
        kept, ids = _ordered(numbers, names)
        # RoBERTa's; other byte-level ones have no pairs.
        separators = found.separators(2 if "<s>" in names else 1)
        vocabulary = BytePairVocabulary(kept, merges, **options, pair_separators=separators)
        return _with_added(vocabulary, found, ids), ids
    if kind == "Unigram":
        return _read_sentencepiece(found)
    return _read_wordpiece(found, lower_case), None


def read_gpt2_vocabulary(directory: pathlib.Path) -> tuple[BytePairVocabulary, np.ndarray]:
    """`read_vocabulary` of GPT-2, whose one special piece is the end of a text.

    That piece's id stands for [SEP], and for [CLS] too, for theirs begins a text with it, unless
    another piece does (Llama's); -1 for our other special ids.
    """
    found = _Tokenizer(directory, ["vocab.json", "vocabulary.json"])
    numbers, merges, options = found.byte_pairs()
    end, start = found.token("eos_token") or "<|endoftext|>", found.token("bos_token")
    numbers |= {name: found.named[name] for name in (start, end) if name in found.named}
    if end not in numbers:
        raise UserError(f"the tokenizer of {directory} has no piece {end!r} for the end of a text.")
    start = start if start in numbers else end
    kept, ids = _ordered(numbers, [None, None, start, end, None])
    vocabulary = BytePairVocabulary(kept, merges, **options)
    return _with_added(vocabulary, found, ids), ids


def read_llama_vocabulary(directory: pathlib.Path) -> tuple[SentencePieceVocabulary, np.ndarray]:
    """`read_vocabulary` of Llama 2, byte pairs of SentencePiece without padding and [MASK]."""
    found = _Tokenizer(directory, ["tokenizer.model"])
    model, pieces = _sentencepiece_model(found)
    names = [piece.piece for piece in pieces]
    usual = {"unk_token": ("<unk>",), "bos_token": ("<s>",), "eos_token": ("</s>",)}
    first = [names.index(name) for name in found.special(names, usual)]
    ids = np.array([-1, *first, -1, *np.setdiff1d(np.arange(len(names)), first)])
    vocabulary = SentencePieceVocabulary(_reordered(model, pieces, ids), verbatim=True)
    return _with_added(vocabulary, found, ids), ids


def read_gpt_vocabulary(directory: pathlib.Path) -> tuple[CharacterPairVocabulary, np.ndarray]:
    """`read_vocabulary` of GPT: BERT's words in small letters, merges that mark where they end.

    Of our special ids all but that of an unknown character have -1.
    """
    found = _Tokenizer(directory, ["vocab.json"])
    suffix = found.model.get("end_of_word_suffix", WORD_END)
    if suffix != WORD_END:
        raise UserError(
            f"{directory / 'tokenizer.json'} ends words with {suffix!r}: only {WORD_END!r} can be "
            "read."
        )
    numbers, merges = found.merged_pieces()
    [unknown] = found.special(numbers, {"unk_token": ("<unk>",)})
    kept, ids = _ordered(numbers, [None, unknown, None, None, None])
    return _with_added(CharacterPairVocabulary(kept, merges), found, ids), ids


def read_language_vocabulary(
    directory: pathlib.Path, gpt2: bool
) -> tuple[PieceVocabulary, np.ndarray, bool]:
    """A language model's vocabulary, their id for each of ours, and whether [CLS] begins texts.

    One that was written here has a piece of its own for [CLS], and may be of any kind.

    Args:
        gpt2: whether pieces are bytes as GPT-2's, not GPT's characters; Llama 2's `tokenizer.model`
            goes before both.
    """
    if (directory / "tokenizer.model").is_file():
        return *read_llama_vocabulary(directory), True
    if _Tokenizer(directory, ["vocab.json", "tokenizer.json"]).token("cls_token"):
        vocabulary, ids = read_vocabulary(directory)
        return vocabulary, np.arange(vocabulary.pieces) if ids is None else ids, True
    read = read_gpt2_vocabulary if gpt2 else read_gpt_vocabulary
    return *read(directory), gpt2


def read_xlm_vocabulary(
    directory: pathlib.Path, languages: Sequence[str] = ()
) -> tuple[MosesPairVocabulary, np.ndarray]:
    """`read_vocabulary` of an XLM of `languages`, by Moses's rules and fastBPE's codes."""
    found = _Tokenizer(directory, ["vocab.json"])
    numbers, merges = found.merged_pieces()
    kept, ids = _ordered(numbers, found.special(numbers, _XLM_SPECIAL))
    # Some files keep fastBPE's counts behind the merges.
    merges = [" ".join(merge.split()[:2]) for merge in merges]
    lower_case = found.options.get("do_lowercase_and_remove_accent", True)
    vocabulary = MosesPairVocabulary(kept, merges, languages, bool(lower_case))
    return _with_added(vocabulary, found, ids), ids


def read_t5_vocabulary(directory: pathlib.Path) -> tuple[PieceVocabulary, np.ndarray, np.ndarray]:
    """Reads T5's tokenizer: SentencePiece's unigrams, followed by sentinels.

    Returns:
        The vocabulary; at each of its ids theirs, `(V',)` int; of T5's own -1 for [MASK], for which
        it has none, and for [CLS] that of padding, with which its decoder begins; their ids of the
        sentinels, `<extra_id_0>` first.
    """
    found = _Tokenizer(directory, ["spiece.model"])
    model, pieces = _sentencepiece_model(found)
    names = [piece.piece for piece in pieces]
    numbers = [_SENTINEL.fullmatch(name) for name in names]
    sentinels = {int(match[1]): index for index, match in enumerate(numbers) if match}
    if not sentinels:  # the model's file does not hold them: they follow it, the last one first
        count = found.options.get("extra_ids", 100)
        sentinels = {number: len(names) + count - 1 - number for number in range(count)}
    usual = {"pad_token": ("<pad>",), "unk_token": ("<unk>",), "eos_token": ("</s>",)}
    pad, unknown, end = map(names.index, found.special(names, usual))
    # One that was written here has pieces of its own for [CLS] and [MASK].
    given = (found.token(field) for field in ("cls_token", "mask_token"))
    start, mask = (names.index(name) if name in names else None for name in given)
    own = [number for number in (start, mask) if number is not None]
    rest = np.setdiff1d(np.arange(len(names)), [pad, unknown, end, *own, *sentinels.values()])
    first = [pad, unknown, pad if start is None else start, end, -1 if mask is None else mask]
    ids = np.array([*first, *rest])
    vocabulary = SentencePieceVocabulary(_reordered(model, pieces, ids))
    vocabulary = _with_added(vocabulary, found, ids)
    return vocabulary, ids, np.array([sentinels[number] for number in sorted(sentinels)], int)


def _read_sentencepiece(found: _Tokenizer) -> tuple[PieceVocabulary, np.ndarray]:
    model, pieces = _sentencepiece_model(found)
    names = [piece.piece for piece in pieces]
    special = found.special(set(names))
    # XLM-R's model does all that is done to text; XLNet's and ALBERT's text is folded before.
    xlnet, fold = "<cls>" in special, "<s>" not in special
    if found.steps:
        fold = "StripAccents" in found.steps
    if xlnet and found.file:
        # XLNet cut a piece of a digit and a comma once more: it is a last resort. Its
        # `tokenizer.json` has these scores.
        for piece in pieces:
            if re.search(r"\d,$", piece.piece) and piece.type == _Piece.NORMAL:
                piece.score -= _LAST_RESORT
    accents = {"keep_accents": bool(found.options.get("keep_accents"))}
    ForeignConfig(accents, f"the tokenizer of {found.directory}").require({"keep_accents": False})
    # Their defaults: ALBERT lower-cases, XLNet does not.
    small = "Lowercase" in found.steps if found.whole else fold and not xlnet
    lower_case = bool(found.options.get("do_lower_case", small))
    first = [names.index(name) for name in special]
    order = np.array([*first, *np.setdiff1d(np.arange(len(pieces)), first)])
    vocabulary = SentencePieceVocabulary(
        _reordered(model, pieces, order),
        NormalizationConfig(lower_case=lower_case),
        fold_accents=fold,
        pair_separators=found.separators(1 if fold else 2),
        cls_last=xlnet,
    )
    return _with_added(vocabulary, found, order), order


def _sentencepiece_model(found: _Tokenizer) -> tuple[_Model, list[_Piece]]:
    """A model with the settings of theirs, and their pieces in the order of their ids."""
    model = _Model()
    if found.file:
        try:
            model.ParseFromString(found.file.read_bytes())
        except Exception as error:  # protobuf's DecodeError differs between its versions
            raise UserError(f"{found.file} is no SentencePiece model: {error}.") from None
        pieces = list(model.pieces)
        if found.file.name == "sentencepiece.bpe.model":
            # Theirs are <unk>, <s>, </s>; fairseq puts its own four before the rest, one after it.
            special = [_piece(text) for text in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
            pieces = [*special[:4], *pieces[3:], special[4]]
        return model, found.extended(pieces)
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    # The table of SentencePiece's normalization, alone or among other steps.
    for step in found.normalizer.get("normalizers", [found.normalizer]):
        if charsmap := step.get("precompiled_charsmap"):
            model.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmap)
    pieces = [_piece(text, score) for text, score in found.model["vocab"]]
    if found.model.get("byte_fallback"):
        model.trainer_spec.byte_fallback = True
        by_name = {piece.piece: piece for piece in pieces}
        for name in (f"<0x{byte:02X}>" for byte in range(256)):
            if name not in by_name:
                raise UserError(
                    f"{found.directory / 'tokenizer.json'} has byte_fallback=true and no piece "
                    f"{name}: only all 256 bytes can be read."
                )
            by_name[name].type = _Piece.BYTE
    for token in found.whole.get("added_tokens") or ():
        if token["id"] < len(pieces):
            special = token.get("special")
            pieces[token["id"]].type = _Piece.CONTROL if special else _Piece.USER_DEFINED
    return model, found.extended(pieces)


def _reordered(theirs: _Model, pieces: Sequence[_Piece], order: Sequence[int]) -> bytes:
    """A serialized model of the settings of `theirs`, with `pieces` in our order.

    Args:
        order: at each of our ids the one of theirs, PAD, UNK, [CLS], [SEP] and [MASK] first.
    """
    model = _Model()
    model.trainer_spec.CopyFrom(theirs.trainer_spec)
    model.normalizer_spec.CopyFrom(theirs.normalizer_spec)
    spec = model.trainer_spec
    spec.pad_piece, spec.unk_piece = "<pad>", "<unk>"
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = 0, 1, -1, -1
    special = ("<pad>", "<unk>", *CONTROL)
    for ours, name in enumerate(special):
        kind = _Piece.UNKNOWN if ours == spec.unk_id else _Piece.CONTROL
        model.pieces.add(piece=name, type=kind)
    model.pieces.extend(pieces[number] for number in order[len(special) :])
    return model.SerializeToString(deterministic=True)


def _piece(text: str, score: float = 0.0) -> _Piece:
    return _Piece(piece=text, score=score, type=_Piece.NORMAL)


def _read_wordpiece(found: _Tokenizer, lower_case: bool | None) -> WordPieceVocabulary:
    """BERT's vocabulary; `tokenizer_config.json` goes before `tokenizer.json`, as there."""
    directory, whole = found.directory, found.directory / "tokenizer.json"
    settings = {
        "do_lower_case": found.normalizer.get("lowercase"),
        "strip_accents": found.normalizer.get("strip_accents"),
        "tokenize_chinese_chars": found.normalizer.get("handle_chinese_chars"),
    }
    # None is the default of some.
    settings.update((name, value) for name, value in found.options.items() if value is not None)
    lower_case = settings["do_lower_case"] if settings["do_lower_case"] is not None else lower_case
    if lower_case is None:
        raise UserError(
            f"no file in {directory} says whether its text is lower-cased: give "
            "lower_case=True or False."
        )
    # BERT takes accents off exactly where it lower-cases.
    needed = {"strip_accents": lower_case, "tokenize_chinese_chars": True}
    needed |= {field: piece for field, (_, *_, piece) in _SPECIAL.items()}
    for field, value in needed.items():
        given = found.token(field) if field in _SPECIAL else settings[field]
        if given not in (None, value):
            raise UserError(
                f"the tokenizer of {directory} has {field}={given!r}: only {value!r} can be read "
                f"with do_lower_case={lower_case!r}."
            )
    if found.file:
        words = WordPieceVocabulary.from_file(found.file, lower_case).words
    else:
        words = _words(whole, found.model)
    numbers = {word: number for number, word in enumerate(words)} | found.named
    for name, number in found.named.items():
        if words[number : number + 1] not in ((), ("",), (name,)):
            raise UserError(
                f"{directory} adds the token {name!r} with the id of {words[number]!r}: it is "
                "another model's tokenizer."
            )
    vocabulary = WordPieceVocabulary(_by_number(numbers, directory), lower_case)
    return _with_added(vocabulary, found, np.arange(vocabulary.pieces))


def _words(file: pathlib.Path, model: Mapping[str, Any]) -> tuple[str, ...]:
    # Early files do not name the type.
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise UserError(f"{file} holds no WordPiece vocabulary: only BERT's can be read.")
    ForeignConfig(model, str(file)).require({"continuing_subword_prefix": "##"})
    return _by_number(model["vocab"], file)


def _by_number(numbers: Mapping[str, int], place: pathlib.Path) -> tuple[str, ...]:
    """Words in the order of their ids, "" where there is none, as behind a piece named twice."""
    words = [""] * min(1 + max(numbers.values()), 2 * len(numbers))
    for word, number in numbers.items():
        if not 0 <= number < len(words):
            raise UserError(f"{place} leaves out ids between 0 and {number}.")
        words[number] = word
    return tuple(words)


def read_keras_hub_vocabulary(
    directory: pathlib.Path, name: str
) -> tuple[PieceVocabulary, np.ndarray | None]:
    """Reads a preset's `tokenizer.json` and its assets; see `read_vocabulary`.

    Args:
        name: of the asset: `vocabulary.txt`, WordPiece's, or `vocabulary.json` beside `merges.txt`.
    """
    record, asset = directory / "tokenizer.json", directory / "assets/tokenizer" / name
    for file in (record, asset):
        if not file.is_file():
            raise UserError(
                f"{directory} has no {file.relative_to(directory)}: save the preset's tokenizer "
                "with it."
            )
    fields = read_json(record)
    config = ForeignConfig(fields.get("config", {}), str(record))
    if name == "vocabulary.json":
        config.require({"add_prefix_space": False})
        gpt2 = fields.get("class_name") == "GPT2Tokenizer"
        return (read_gpt2_vocabulary if gpt2 else read_vocabulary)(asset.parent)
    config.require({"split": True, "suffix_indicator": "##", "oov_token": "[UNK]"})
    lower_case = bool(config.get("lowercase", False))
    return WordPieceVocabulary.from_file(asset, lower_case=lower_case), None
