"""Reads the vocabularies of Hugging Face's directories and KerasHub's presets."""

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

# Candidate names of the special pieces, in our order: first those of XLNet (which also has <s> and
# </s>, but does not use them), then those of RoBERTa and XLM-R, then those of ALBERT.
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
# Kinds of vocabularies, by their names in `tokenizer.json`, for each file of a vocabulary.
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
# The step of Llama 3's `tokenizer.json` that splits text into words.
LLAMA_CUT = {
    "type": "Split",
    "pattern": {"Regex": _LLAMA_WORDS},
    "behavior": "Isolated",
    "invert": False,
}
_SENTINEL = re.compile(r"<extra_id_(\d+)>")  # T5's
_LAST_RESORT = 100.0  # penalty that exceeds the score of any other segmentation of a word


class _Tokenizer:
    """The files of a Hugging Face tokenizer.

    Args:
        directory: the tokenizer's folder.
        files: possible names of the vocabulary's own file.

    Attributes:
        file: the vocabulary's own file; None: only `tokenizer.json` has the vocabulary.
        whole: contents of `tokenizer.json`, with its parts `model` and `normalizer`; {}: missing.
        options: contents of `tokenizer_config.json`; {}: missing.
        named: ids of the tokens, by name, that any file adds to the vocabulary's own.
        added: those of `named` that users added; each is matched as a whole in a text.

    Raises:
        UserError: the directory has neither one of `files` nor `tokenizer.json`, or one is damaged.
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
                f"{directory} has no vocabulary, neither {', '.join(files)} nor tokenizer.json: "
                "restore the tokenizer's files"
            )
        try:
            tokens = {**(self.options.get("added_tokens_decoder") or {})}
            tokens |= {one["id"]: one for one in self.whole.get("added_tokens") or ()}
            named = [(one["content"], number) for number, one in tokens.items()]
            named = [*optional("added_tokens.json").items(), *named]
            self.named = {name: int(number) for name, number in named}
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{directory} has added tokens without ids: restore the tokenizer's files"
            ) from None
        roles = {name for names in _SPECIAL.values() for name in names} | {"<|endoftext|>"}
        roles |= {self.token(field) for field in ("bos_token", "eos_token", *_SPECIAL)}
        self.added = {
            name: number
            for name, number in self.named.items()
            if name not in roles and not _SENTINEL.fullmatch(name)
        }

    def token(self, field: str) -> str | None:
        """Returns the name of a special piece in `tokenizer_config.json`, or None."""
        given = self.options.get(field)
        # In early files a token is an object with its `content`.
        return given.get("content") if isinstance(given, dict) else given

    def special(
        self, present: Collection[str], usual: Mapping[str, Sequence[str]] = _SPECIAL
    ) -> list[str]:
        """Returns the foreign names of padding, unknown, [CLS], [SEP] and [MASK].

        Args:
            present: the names of all pieces.
            usual: the fields of the special pieces to find, with candidate names for a field that
                `tokenizer_config.json` lacks.

        Raises:
            UserError: a special piece is missing.
        """
        names = []
        for field, candidates in usual.items():
            given = self.token(field)
            candidates = (given,) if given else candidates
            name = next((name for name in candidates if name in present), None)
            if name is None:
                raise UserError(
                    f"the tokenizer of {self.directory} has no {field}: only vocabularies with "
                    f"{field} {' or '.join(candidates)} among their pieces can be read"
                )
            names.append(name)
        return names

    @property
    def steps(self) -> list[str]:
        """Types of the normalizers in `tokenizer.json`, in order; []: there are none."""
        steps = self.normalizer.get("normalizers", [self.normalizer])
        return [step["type"] for step in steps if "type" in step]

    def separators(self, usual: int) -> int:
        """Returns the number of [SEP] between two texts in the template of `tokenizer.json`.

        If there is no template, it returns `usual`.
        """
        template = (self.whole.get("post_processor") or {}).get("pair")
        if not template:
            return usual
        kinds = ["Sequence" in part for part in template]
        first = kinds.index(True)
        return kinds.index(True, first + 1) - first - 1

    def merged_pieces(self) -> tuple[dict[str, int], list[str]]:
        """Reads the ids of pieces, by name, and the merges of a BPE vocabulary.

        They are in `vocab.json` and `merges.txt`, or both in `tokenizer.json`.
        """
        if not self.file:
            merges = self.model["merges"]
            # A merge is "left right" in early files, a list of both in later ones.
            merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
            return self.added | self.model["vocab"], merges
        file = self.directory / "merges.txt"
        if not file.is_file():
            raise UserError(f"{self.directory} has {self.file.name} and no {file.name}: restore it")
        lines = (line.removesuffix("\r") for line in file.read_text(encoding="utf-8").split("\n"))
        merges = [n for n in lines if n and not n.startswith("#version")]
        return self.added | read_json(self.file), merges

    def extended(self, pieces: list[_Piece]) -> list[_Piece]:
        """Appends the named tokens that follow a SentencePiece model's pieces.

        It also removes the model's own pieces from `added`, because the model matches them itself.
        """
        self.added = {name: n for name, n in self.added.items() if n >= len(pieces)}
        for name, number in sorted(self.named.items(), key=lambda item: item[1]):
            if number == len(pieces):
                pieces.append(_piece(name))
        return pieces

    def byte_pairs(self) -> tuple[dict[str, int], list[str], dict[str, Any]]:
        """Reads a byte-level BPE: `merged_pieces`, and the options of `BytePairVocabulary`."""
        given = self.whole.get("pre_tokenizer") or {}
        *cuts, last = given.get("pretokenizers") or [given]
        plain = last.get("type") == "ByteLevel"
        found = (plain, last.get("use_regex", True), self.model.get("ignore_merges", False), cuts)
        patterns = {"gpt2": (True, True, False, []), "llama3": (True, False, True, [LLAMA_CUT])}
        pattern = next((name for name, needed in patterns.items() if found == needed), None)
        if not self.file and (pattern is None or self.steps not in ([], ["NFC"])):
            raise UserError(
                f"{self.directory / 'tokenizer.json'} is not a byte-level BPE like that of GPT-2, "
                "ModernBERT or Llama 3: only those can be read"
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
    """Separates special pieces from the others.

    Args:
        numbers: the foreign ids, by the name of the piece.
        special: names of the special pieces in our order; None: there is no such piece.

    Returns:
        The other pieces in the order of their ids; and `(V',)` int, the foreign id for each of our
        ids, the special ones first; -1: none.
    """
    kept = sorted(numbers.keys() - set(special), key=numbers.__getitem__)
    return kept, np.array([numbers.get(name, -1) for name in (*special, *kept)])


def _with_added(vocabulary: _Kind, found: _Tokenizer, ids: np.ndarray) -> _Kind:
    """Adds a tokenizer's `added` tokens to a vocabulary, whose foreign ids are `ids`."""
    ours = {theirs: number for number, theirs in enumerate(ids.tolist())}
    absent = [name for name, number in found.added.items() if number not in ours]
    if absent:
        raise UserError(
            f"{found.directory} adds the token {absent[0]!r} with id {found.added[absent[0]]}, and "
            "the ids before it have no token: only ids without gaps can be read"
        )
    added = {name: ours[number] for name, number in found.added.items()}
    vocabulary.added = {n: i for n, i in added.items() if i not in vocabulary.special_ids}
    return vocabulary


def read_vocabulary(
    directory: pathlib.Path, lower_case: bool | None = None
) -> tuple[PieceVocabulary, np.ndarray | None]:
    """Reads a tokenizer's files: WordPiece, byte-level BPE or SentencePiece.

    Args:
        directory: the tokenizer's folder.
        lower_case: whether text is lower-cased, if the files of a WordPiece tokenizer do not say.

    Returns:
        The vocabulary, and the foreign id for each of its ids, `(V',)` int; None: they are equal.

    Raises:
        UserError: a file is missing or damaged, or the tokenizer is of another kind.
    """
    found = _Tokenizer(directory, _KINDS)
    # Early WordPiece files lack the type.
    kind = _KINDS[found.file.name] if found.file else found.model.get("type")
    if kind == "BPE":
        numbers, merges, options = found.byte_pairs()
        names = found.special(found.named | numbers)
        numbers |= {name: found.named[name] for name in names if name not in numbers}
        kept, ids = _ordered(numbers, names)
        # RoBERTa has two separators; the other byte-level vocabularies have no pairs of texts.
        separators = found.separators(2 if "<s>" in names else 1)
        vocabulary = BytePairVocabulary(kept, merges, **options, pair_separators=separators)
        return _with_added(vocabulary, found, ids), ids
    if kind == "Unigram":
        return _read_sentencepiece(found)
    return _read_wordpiece(found, lower_case), None


def read_gpt2_vocabulary(directory: pathlib.Path) -> tuple[BytePairVocabulary, np.ndarray]:
    """Reads the tokenizer of a GPT-2 or Llama 3; see `read_vocabulary`.

    GPT-2's only special piece, the end of a text, also begins one, so that its id is that of both
    [SEP] and [CLS]; Llama 3 has two pieces. The other special ids have -1.
    """
    found = _Tokenizer(directory, ["vocab.json", "vocabulary.json"])
    numbers, merges, options = found.byte_pairs()
    end, start = found.token("eos_token") or "<|endoftext|>", found.token("bos_token")
    numbers |= {name: found.named[name] for name in (start, end) if name in found.named}
    if end not in numbers:
        raise UserError(
            f"the tokenizer of {directory} has no piece {end!r} for the end of a text: restore it"
        )
    start = start if start in numbers else end
    kept, ids = _ordered(numbers, [None, None, start, end, None])
    vocabulary = BytePairVocabulary(kept, merges, **options)
    return _with_added(vocabulary, found, ids), ids


def read_llama_vocabulary(directory: pathlib.Path) -> tuple[SentencePieceVocabulary, np.ndarray]:
    """Reads the tokenizer of a Llama 2; see `read_vocabulary`.

    It is a SentencePiece BPE without padding and [MASK], whose ids are -1.
    """
    found = _Tokenizer(directory, ["tokenizer.model"])
    model, pieces = _sentencepiece_model(found)
    names = [piece.piece for piece in pieces]
    usual = {"unk_token": ("<unk>",), "bos_token": ("<s>",), "eos_token": ("</s>",)}
    first = [names.index(name) for name in found.special(names, usual)]
    ids = np.array([-1, *first, -1, *np.setdiff1d(np.arange(len(names)), first)])
    vocabulary = SentencePieceVocabulary(_reordered(model, pieces, ids), verbatim=True)
    return _with_added(vocabulary, found, ids), ids


def read_gpt_vocabulary(directory: pathlib.Path) -> tuple[CharacterPairVocabulary, np.ndarray]:
    """Reads the tokenizer of a GPT; see `read_vocabulary`.

    It is a BPE of characters, over lower-cased words that are split as by BERT. The special ids
    have -1, except UNK's.
    """
    found = _Tokenizer(directory, ["vocab.json"])
    suffix = found.model.get("end_of_word_suffix", WORD_END)
    if suffix != WORD_END:
        raise UserError(
            f"{directory / 'tokenizer.json'} ends words with {suffix!r}: only {WORD_END!r} can be "
            "read"
        )
    numbers, merges = found.merged_pieces()
    [unknown] = found.special(numbers, {"unk_token": ("<unk>",)})
    kept, ids = _ordered(numbers, [None, unknown, None, None, None])
    return _with_added(CharacterPairVocabulary(kept, merges), found, ids), ids


def read_language_vocabulary(
    directory: pathlib.Path, gpt2: bool
) -> tuple[PieceVocabulary, np.ndarray, bool]:
    """Reads a language model's tokenizer.

    A Llama 2 is recognized by `tokenizer.model`, and a model that this library wrote by its piece
    for [CLS]; the latter may have any kind of vocabulary.

    Args:
        directory: the tokenizer's folder.
        gpt2: whether other tokenizers are byte-level, like GPT-2's, or of characters, like GPT's.

    Returns:
        The vocabulary, the foreign id for each of its ids, and whether texts begin with [CLS].
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
    """Reads the tokenizer of an XLM, with Moses' rules for `languages`; see `read_vocabulary`."""
    found = _Tokenizer(directory, ["vocab.json"])
    numbers, merges = found.merged_pieces()
    kept, ids = _ordered(numbers, found.special(numbers, _XLM_SPECIAL))
    # Some files have fastBPE's counts after the merges.
    merges = [" ".join(merge.split()[:2]) for merge in merges]
    lower_case = found.options.get("do_lowercase_and_remove_accent", True)
    vocabulary = MosesPairVocabulary(kept, merges, languages, bool(lower_case))
    return _with_added(vocabulary, found, ids), ids


def read_t5_vocabulary(directory: pathlib.Path) -> tuple[PieceVocabulary, np.ndarray, np.ndarray]:
    """Reads T5's tokenizer: a SentencePiece unigram model, followed by sentinels.

    Returns:
        The vocabulary; `(V',)` int, the foreign id for each of its ids; and the foreign ids of the
        sentinels, `<extra_id_0>` first. In a T5 that this library did not write, [MASK] has -1, and
        [CLS] has the id of the padding, with which the decoder begins.
    """
    found = _Tokenizer(directory, ["spiece.model"])
    model, pieces = _sentencepiece_model(found)
    names = [piece.piece for piece in pieces]
    numbers = [_SENTINEL.fullmatch(name) for name in names]
    sentinels = {int(match[1]): index for index, match in enumerate(numbers) if match}
    if not sentinels:  # they are not in the model's file: they follow its pieces, in reverse order
        count = found.options.get("extra_ids", 100)
        sentinels = {number: len(names) + count - 1 - number for number in range(count)}
    usual = {"pad_token": ("<pad>",), "unk_token": ("<unk>",), "eos_token": ("</s>",)}
    pad, unknown, end = map(names.index, found.special(names, usual))
    # A model that this library wrote has its own pieces for [CLS] and [MASK].
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
    # XLM-R's model normalizes text itself; the accents of XLNet's and ALBERT's text are folded
    # before.
    xlnet, fold = "<cls>" in special, "<s>" not in special
    if found.steps:
        fold = "StripAccents" in found.steps
    if xlnet and found.file:
        # XLNet's tokenizer splits pieces that end with a digit and a comma once more. A penalty has
        # this effect; the scores in `tokenizer.json` include it.
        for piece in pieces:
            if re.search(r"\d,$", piece.piece) and piece.type == _Piece.NORMAL:
                piece.score -= _LAST_RESORT
    accents = {"keep_accents": bool(found.options.get("keep_accents"))}
    ForeignConfig(accents, f"the tokenizer of {found.directory}").require({"keep_accents": False})
    # By default ALBERT lower-cases and XLNet does not.
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
    """Reads the settings of a tokenizer's SentencePiece model, and its pieces by foreign id."""
    model = _Model()
    if found.file:
        try:
            model.ParseFromString(found.file.read_bytes())
        except Exception as error:  # protobuf's DecodeError differs between its versions
            raise UserError(
                f"{found.file} is not a SentencePiece model ({error}): restore it"
            ) from None
        pieces = list(model.pieces)
        if found.file.name == "sentencepiece.bpe.model":
            # The file begins with <unk>, <s>, </s>. fairseq has its own four special pieces instead
            # and appends <mask>.
            special = [_piece(text) for text in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
            pieces = [*special[:4], *pieces[3:], special[4]]
        return model, found.extended(pieces)
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    # SentencePiece's table of normalization is the only step or one of several.
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
                    f"{name}: only vocabularies with all 256 bytes can be read"
                )
            by_name[name].type = _Piece.BYTE
    for token in found.whole.get("added_tokens") or ():
        if token["id"] < len(pieces):
            special = token.get("special")
            pieces[token["id"]].type = _Piece.CONTROL if special else _Piece.USER_DEFINED
    return model, found.extended(pieces)


def _reordered(theirs: _Model, pieces: Sequence[_Piece], order: Sequence[int]) -> bytes:
    """Serializes a SentencePiece model with the settings of `theirs` and pieces in our order.

    Args:
        theirs: foreign model, for its settings.
        pieces: foreign pieces, by foreign id.
        order: the foreign id for each of our ids: PAD, UNK, [CLS], [SEP] and [MASK] first.
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
    """Reads BERT's vocabulary.

    As in Hugging Face's library, the options of `tokenizer_config.json` have priority over those of
    `tokenizer.json`.
    """
    directory, whole = found.directory, found.directory / "tokenizer.json"
    settings = {
        "do_lower_case": found.normalizer.get("lowercase"),
        "strip_accents": found.normalizer.get("strip_accents"),
        "tokenize_chinese_chars": found.normalizer.get("handle_chinese_chars"),
    }
    # Options that are None have their default.
    settings.update((name, value) for name, value in found.options.items() if value is not None)
    lower_case = settings["do_lower_case"] if settings["do_lower_case"] is not None else lower_case
    if lower_case is None:
        raise UserError(
            f"no file in {directory} says whether its text is lower-cased: give "
            "lower_case=True or False"
        )
    # BERT strips accents if and only if it lower-cases.
    needed = {"strip_accents": lower_case, "tokenize_chinese_chars": True}
    needed |= {field: piece for field, (_, *_, piece) in _SPECIAL.items()}
    for field, value in needed.items():
        given = found.token(field) if field in _SPECIAL else settings[field]
        if given not in (None, value):
            raise UserError(
                f"the tokenizer of {directory} has {field}={given!r}: only {value!r} can be read "
                f"with do_lower_case={lower_case!r}"
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
                "another model's tokenizer; restore the model's own"
            )
    vocabulary = WordPieceVocabulary(_by_number(numbers, directory), lower_case)
    return _with_added(vocabulary, found, np.arange(vocabulary.pieces))


def _words(file: pathlib.Path, model: Mapping[str, Any]) -> tuple[str, ...]:
    # Early files lack the type.
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise UserError(f"{file} has no WordPiece vocabulary: only BERT's can be read")
    ForeignConfig(model, str(file)).require({"continuing_subword_prefix": "##"})
    return _by_number(model["vocab"], file)


def _by_number(numbers: Mapping[str, int], place: pathlib.Path) -> tuple[str, ...]:
    """Orders words by their ids; an id without a word, as after a repeated piece, has ""."""
    words = [""] * min(1 + max(numbers.values()), 2 * len(numbers))
    for word, number in numbers.items():
        if not 0 <= number < len(words):
            raise UserError(f"{place} leaves out ids between 0 and {number}: restore it")
        words[number] = word
    return tuple(words)


def read_keras_hub_vocabulary(
    directory: pathlib.Path, name: str
) -> tuple[PieceVocabulary, np.ndarray | None]:
    """Reads the tokenizer of a KerasHub preset; see `read_vocabulary`.

    Args:
        directory: the preset's folder.
        name: name of the vocabulary's file: `vocabulary.txt` for WordPiece, or `vocabulary.json`,
            with `merges.txt` beside it.
    """
    record, asset = directory / "tokenizer.json", directory / "assets/tokenizer" / name
    for file in (record, asset):
        if not file.is_file():
            raise UserError(
                f"{directory} has no {file.relative_to(directory)}: save the preset's tokenizer "
                "with it"
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
