"""Readers for vocabularies in Hugging Face folders and KerasHub presets."""

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

# Candidate names of the special tokens, in the order of macaron_tf's ids. XLNet's names come first,
# because XLNet also has the unused tokens <s> and </s>. RoBERTa's and XLM-R's names come next, and
# ALBERT's names come last.
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
# Dict mapping the name of a vocabulary file to the type of the model in `tokenizer.json`.
_MODEL_TYPES = {
    "vocab.txt": "WordPiece",
    "vocab.json": "BPE",
    "vocabulary.json": "BPE",  # in KerasHub presets
    "spiece.model": "Unigram",
    "sentencepiece.bpe.model": "Unigram",
}
_Model: TypeAlias = sentencepiece_model_pb2.ModelProto
_Piece: TypeAlias = sentencepiece_model_pb2.ModelProto.SentencePiece
_AnyVocabulary = TypeVar("_AnyVocabulary", bound=PieceVocabulary)
_LLAMA_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Pre-tokenizer in Llama 3's `tokenizer.json` that splits text into words.
LLAMA_PRE_TOKENIZER = {
    "type": "Split",
    "pattern": {"Regex": _LLAMA_PATTERN},
    "behavior": "Isolated",
    "invert": False,
}
_SENTINEL = re.compile(r"<extra_id_(\d+)>")  # sentinels of T5
_SCORE_PENALTY = 100.0  # makes any other segmentation of a word preferable


class _Tokenizer:
    """Contents of a Hugging Face tokenizer folder.

    Args:
        directory: folder of the tokenizer.
        files: possible names of the vocabulary file.

    Attributes:
        file: path of the vocabulary file, or `None` if only `tokenizer.json` contains the
            vocabulary.
        tokenizer_json: contents of `tokenizer.json`, or an empty dict if the file is missing.
        model, normalizer: values of these two fields in `tokenizer.json`. The value of a missing
            field is an empty dict.
        options: contents of `tokenizer_config.json`, or an empty dict if the file is missing.
        all_added: dict mapping name to id, for the tokens that the folder's files add to the
            vocabulary.
        added: the tokens in `all_added` that are neither special tokens nor T5's sentinels. Text
            that equals such a token is always encoded as this single token.

    Raises:
        UserError: the folder has neither a file in `files` nor `tokenizer.json`, or a file is
            damaged.
    """

    def __init__(self, directory: pathlib.Path, files: Collection[str]):
        def optional(name: str) -> dict:
            return read_json(directory / name) if (directory / name).is_file() else {}

        self.directory = directory
        self.tokenizer_json = optional("tokenizer.json")
        self.options = optional("tokenizer_config.json")
        self.model = self.tokenizer_json.get("model") or {}
        self.normalizer = self.tokenizer_json.get("normalizer") or {}
        paths = (directory / name for name in files if (directory / name).is_file())
        self.file = next(paths, None)
        if not self.tokenizer_json and not self.file:
            raise UserError(
                f"{directory} contains no vocabulary, neither {', '.join(files)} nor "
                "tokenizer.json: download or copy the tokenizer's files again"
            )
        try:
            tokens = {**(self.options.get("added_tokens_decoder") or {})}
            tokens |= {
                token["id"]: token for token in self.tokenizer_json.get("added_tokens") or ()
            }
            added = [(token["content"], token_id) for token_id, token in tokens.items()]
            added = [*optional("added_tokens.json").items(), *added]
            self.all_added = {name: int(token_id) for name, token_id in added}
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{directory} lists added tokens without valid ids: download or copy the "
                "tokenizer's files again"
            ) from None
        roles = {name for names in _SPECIAL.values() for name in names} | {"<|endoftext|>"}
        roles |= {self.token(field) for field in ("bos_token", "eos_token", *_SPECIAL)}
        self.added = {
            name: token_id
            for name, token_id in self.all_added.items()
            if name not in roles and not _SENTINEL.fullmatch(name)
        }

    def token(self, field: str) -> str | None:
        """Returns the name of the special token in a field such as "cls_token".

        The field belongs to `tokenizer_config.json`. If the field is missing, the result is `None`.
        """
        value = self.options.get(field)
        # In early files, a token is a dict with the key `content`.
        return value.get("content") if isinstance(value, dict) else value

    def special_tokens(
        self, tokens: Collection[str], defaults: Mapping[str, Sequence[str]] = _SPECIAL
    ) -> list[str]:
        """Returns the names of the tokenizer's special tokens, in the order of `defaults`.

        Args:
            tokens: names of all tokens in the vocabulary.
            defaults: dict mapping a field, such as "cls_token", to candidate names. The candidates
                are used if `tokenizer_config.json` lacks the field.

        Raises:
            UserError: the vocabulary lacks a special token.
        """
        names = []
        for field, candidates in defaults.items():
            token = self.token(field)
            candidates = (token,) if token else candidates
            name = next((name for name in candidates if name in tokens), None)
            if name is None:
                raise UserError(
                    f"the tokenizer of {self.directory} has no {field}, but needs "
                    f"{' or '.join(candidates)} in its vocabulary: give another tokenizer"
                )
            names.append(name)
        return names

    @property
    def normalizer_types(self) -> list[str]:
        """Types of the normalizers in `tokenizer.json`, in order."""
        steps = self.normalizer.get("normalizers", [self.normalizer])
        return [step["type"] for step in steps if "type" in step]

    def separators(self, default: int) -> int:
        """Returns the number of [SEP] tokens between two texts.

        The number comes from the template in `tokenizer.json`. If there is no template, the result
        is `default`.
        """
        template = (self.tokenizer_json.get("post_processor") or {}).get("pair")
        if not template:
            return default
        are_texts = ["Sequence" in part for part in template]
        first = are_texts.index(True)
        return are_texts.index(True, first + 1) - first - 1

    def ids_and_merges(self) -> tuple[dict[str, int], list[str]]:
        """Reads a BPE vocabulary from `vocab.json` and `merges.txt`, or from `tokenizer.json`.

        Returns:
            A dict mapping the name of a token to its id, and the list of merges.
        """
        if not self.file:
            merges = self.model["merges"]
            # In early files, a merge is the string "left right". In later files, it is a list.
            merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
            return self.added | self.model["vocab"], merges
        file = self.directory / "merges.txt"
        if not file.is_file():
            raise UserError(
                f"{self.directory} contains {self.file.name} but lacks {file.name}: download or "
                f"copy {file.name} again"
            )
        lines = (line.removesuffix("\r") for line in file.read_text(encoding="utf-8").split("\n"))
        merges = [n for n in lines if n and not n.startswith("#version")]
        return self.added | read_json(self.file), merges

    def with_added_pieces(self, pieces: list[_Piece]) -> list[_Piece]:
        """Appends added tokens to the pieces of a SentencePiece model, and returns the pieces.

        The method appends the tokens in `all_added` whose ids follow the ids of the pieces without
        a gap. The method also removes tokens that were already in `pieces` from `added`, because
        SentencePiece itself finds these tokens in text.
        """
        self.added = {name: n for name, n in self.added.items() if n >= len(pieces)}
        for name, token_id in sorted(self.all_added.items(), key=lambda item: item[1]):
            if token_id == len(pieces):
                pieces.append(_piece(name))
        return pieces

    def byte_pairs(self) -> tuple[dict[str, int], list[str], dict[str, Any]]:
        """Reads a byte-level BPE tokenizer.

        Returns:
            The dict and the list that `ids_and_merges` returns, and a dict of further constructor
            arguments for `BytePairVocabulary`.
        """
        pre_tokenizer = self.tokenizer_json.get("pre_tokenizer") or {}
        *splits, last = pre_tokenizer.get("pretokenizers") or [pre_tokenizer]
        is_byte_level = last.get("type") == "ByteLevel"
        use_regex = last.get("use_regex", True)
        ignore_merges = self.model.get("ignore_merges", False)
        properties = (is_byte_level, use_regex, ignore_merges, splits)
        patterns = {
            "gpt2": (True, True, False, []),
            "llama3": (True, False, True, [LLAMA_PRE_TOKENIZER]),
        }
        pattern = next((name for name, value in patterns.items() if value == properties), None)
        if not self.file and (pattern is None or self.normalizer_types not in ([], ["NFC"])):
            raise UserError(
                f"{self.directory / 'tokenizer.json'} is not a byte-level BPE tokenizer as in "
                "GPT-2, ModernBERT or Llama 3, but only such tokenizers can be read: give another "
                "model"
            )
        prefix = self.options.get("add_prefix_space", last.get("add_prefix_space", False))
        return *self.ids_and_merges(), {
            "lower_case": "Lowercase" in self.normalizer_types,
            "add_prefix_space": bool(prefix),
            "composed": "NFC" in self.normalizer_types,
            "pattern": pattern or "gpt2",
        }


def _put_special_first(
    token_ids: Mapping[str, int], special: Sequence[str | None]
) -> tuple[list[str], np.ndarray]:
    """Moves the special tokens before all other tokens.

    Args:
        token_ids: dict mapping the name of a token to its Hugging Face id.
        special: names of the special tokens in macaron_tf's order, with `None` for a token that the
            vocabulary lacks.

    Returns:
        The names of all tokens except special tokens, sorted by Hugging Face id, and a `(V',)` int
        array. The array contains the Hugging Face ids of all tokens in the new order, with -1 for a
        special token that the vocabulary lacks.
    """
    units = sorted(token_ids.keys() - set(special), key=token_ids.__getitem__)
    return units, np.array([token_ids.get(name, -1) for name in (*special, *units)])


def _with_added(
    vocabulary: _AnyVocabulary, tokenizer: _Tokenizer, ids: np.ndarray
) -> _AnyVocabulary:
    """Sets `vocabulary.added` from the tokenizer's added tokens, and returns the vocabulary.

    Args:
        vocabulary: converted vocabulary.
        tokenizer: Hugging Face tokenizer.
        ids: Hugging Face id for each id of `vocabulary`.

    Raises:
        UserError: the vocabulary does not contain an added token, because an unused id precedes the
            id of this token.
    """
    new_ids = {old_id: new_id for new_id, old_id in enumerate(ids.tolist())}
    absent = [name for name, old_id in tokenizer.added.items() if old_id not in new_ids]
    if absent:
        raise UserError(
            f"{tokenizer.directory} adds the token {absent[0]!r} with id "
            f"{tokenizer.added[absent[0]]}, but a smaller id has no token: give a tokenizer "
            "whose ids have no gaps"
        )
    added = {name: new_ids[old_id] for name, old_id in tokenizer.added.items()}
    vocabulary.added = {n: i for n, i in added.items() if i not in vocabulary.special_ids}
    return vocabulary


def read_vocabulary(
    directory: pathlib.Path, lower_case: bool | None = None
) -> tuple[PieceVocabulary, np.ndarray | None]:
    """Reads a Hugging Face tokenizer: WordPiece, byte-level BPE or SentencePiece.

    Args:
        directory: folder of the tokenizer.
        lower_case: whether to lower-case text, for a WordPiece tokenizer whose files lack this
            setting.

    Returns:
        The vocabulary, and a `(V',)` int array with the Hugging Face id for each id of the
        vocabulary. `None` instead of the array means that the ids are equal.

    Raises:
        UserError: a file is missing or damaged, or the type of the tokenizer is not supported.
    """
    tokenizer = _Tokenizer(directory, _MODEL_TYPES)
    # Early WordPiece files lack the type.
    model_type = tokenizer.model.get("type")
    if tokenizer.file:
        model_type = _MODEL_TYPES[tokenizer.file.name]
    if model_type == "BPE":
        token_ids, merges, options = tokenizer.byte_pairs()
        names = tokenizer.special_tokens(tokenizer.all_added | token_ids)
        token_ids |= {name: tokenizer.all_added[name] for name in names if name not in token_ids}
        units, ids = _put_special_first(token_ids, names)
        # RoBERTa separates two texts by two tokens. Other byte-level BPE models read single texts.
        separators = tokenizer.separators(2 if "<s>" in names else 1)
        vocabulary = BytePairVocabulary(units, merges, **options, pair_separators=separators)
        return _with_added(vocabulary, tokenizer, ids), ids
    if model_type == "Unigram":
        return _read_sentencepiece(tokenizer)
    return _read_wordpiece(tokenizer, lower_case), None


def read_gpt2_vocabulary(directory: pathlib.Path) -> tuple[BytePairVocabulary, np.ndarray]:
    """Reads the tokenizer of a GPT-2 or Llama 3 model.

    GPT-2 uses one special token for both the beginning and the end of a text, so [CLS] and [SEP]
    have the same Hugging Face id. Llama 3 has a separate token for each.

    Returns:
        The vocabulary, and a `(V',)` int array with the Hugging Face id for each id of the
        vocabulary. The array contains -1 for PAD, UNK and [MASK], which the tokenizer lacks.

    Raises:
        UserError: a file is missing or damaged, or the type of the tokenizer is not supported.
    """
    tokenizer = _Tokenizer(directory, ["vocab.json", "vocabulary.json"])
    token_ids, merges, options = tokenizer.byte_pairs()
    end, start = tokenizer.token("eos_token") or "<|endoftext|>", tokenizer.token("bos_token")
    added = tokenizer.all_added
    token_ids |= {name: added[name] for name in (start, end) if name in added}
    if end not in token_ids:
        raise UserError(
            f"the tokenizer of {directory} has no end-of-text token {end!r}: download or copy the "
            "tokenizer's files again"
        )
    start = start if start in token_ids else end
    units, ids = _put_special_first(token_ids, [None, None, start, end, None])
    vocabulary = BytePairVocabulary(units, merges, **options)
    return _with_added(vocabulary, tokenizer, ids), ids


def read_llama_vocabulary(directory: pathlib.Path) -> tuple[SentencePieceVocabulary, np.ndarray]:
    """Reads the tokenizer of a Llama 2, which is a SentencePiece BPE model.

    Returns:
        The vocabulary, and a `(V',)` int array with the Hugging Face id for each id of the
        vocabulary. The array contains -1 for PAD and [MASK], which the tokenizer lacks.
    """
    tokenizer = _Tokenizer(directory, ["tokenizer.model"])
    model, pieces = _sentencepiece_model(tokenizer)
    names = [piece.piece for piece in pieces]
    defaults = {"unk_token": ("<unk>",), "bos_token": ("<s>",), "eos_token": ("</s>",)}
    special_ids = [names.index(name) for name in tokenizer.special_tokens(names, defaults)]
    ids = np.array([-1, *special_ids, -1, *np.setdiff1d(np.arange(len(names)), special_ids)])
    vocabulary = SentencePieceVocabulary(_reorder(model, pieces, ids), verbatim=True)
    return _with_added(vocabulary, tokenizer, ids), ids


def read_gpt_vocabulary(directory: pathlib.Path) -> tuple[CharacterPairVocabulary, np.ndarray]:
    """Reads the tokenizer of a GPT, which is a character-level BPE.

    Text is lower-cased and split into words as in BERT.

    Returns:
        The vocabulary, and a `(V',)` int array with the Hugging Face id for each id of the
        vocabulary. The array contains -1 for PAD, [CLS], [SEP] and [MASK], which the tokenizer
        lacks.
    """
    tokenizer = _Tokenizer(directory, ["vocab.json"])
    suffix = tokenizer.model.get("end_of_word_suffix", WORD_END)
    if suffix != WORD_END:
        raise UserError(
            f"{directory / 'tokenizer.json'} has end_of_word_suffix={suffix!r}, but only "
            f"{WORD_END!r} can be read: give another tokenizer"
        )
    token_ids, merges = tokenizer.ids_and_merges()
    [unknown] = tokenizer.special_tokens(token_ids, {"unk_token": ("<unk>",)})
    units, ids = _put_special_first(token_ids, [None, unknown, None, None, None])
    return _with_added(CharacterPairVocabulary(units, merges), tokenizer, ids), ids


def read_language_vocabulary(
    directory: pathlib.Path, is_gpt2: bool
) -> tuple[PieceVocabulary, np.ndarray, bool]:
    """Reads the tokenizer of a language model.

    A folder with the file `tokenizer.model` is read as a Llama 2 tokenizer. A tokenizer with a
    `cls_token` comes from a model that macaron_tf exported, and may have any type of vocabulary.

    Args:
        directory: folder of the tokenizer.
        is_gpt2: type of all remaining tokenizers: byte-level BPE, as in GPT-2, if `True`, and
            character-level BPE, as in GPT, if `False`.

    Returns:
        The vocabulary, a `(V',)` int array with the Hugging Face id for each id of the vocabulary,
        and whether texts begin with [CLS].
    """
    if (directory / "tokenizer.model").is_file():
        return *read_llama_vocabulary(directory), True
    if _Tokenizer(directory, ["vocab.json", "tokenizer.json"]).token("cls_token"):
        vocabulary, ids = read_vocabulary(directory)
        return vocabulary, np.arange(vocabulary.pieces) if ids is None else ids, True
    read = read_gpt2_vocabulary if is_gpt2 else read_gpt_vocabulary
    return *read(directory), is_gpt2


def read_xlm_vocabulary(
    directory: pathlib.Path, languages: Sequence[str] = ()
) -> tuple[MosesPairVocabulary, np.ndarray]:
    """Reads the tokenizer of an XLM, which is a character-level BPE.

    Text is split into words by Moses' rules.

    Args:
        directory: folder of the tokenizer.
        languages: language codes in the order of the language embeddings.

    Returns:
        The vocabulary, and a `(V',)` int array with the Hugging Face id for each id of the
        vocabulary.
    """
    tokenizer = _Tokenizer(directory, ["vocab.json"])
    token_ids, merges = tokenizer.ids_and_merges()
    units, ids = _put_special_first(token_ids, tokenizer.special_tokens(token_ids, _XLM_SPECIAL))
    # In some files, fastBPE's count follows each merge.
    merges = [" ".join(merge.split()[:2]) for merge in merges]
    lower_case = tokenizer.options.get("do_lowercase_and_remove_accent", True)
    vocabulary = MosesPairVocabulary(units, merges, languages, bool(lower_case))
    return _with_added(vocabulary, tokenizer, ids), ids


def read_t5_vocabulary(directory: pathlib.Path) -> tuple[PieceVocabulary, np.ndarray, np.ndarray]:
    """Reads the tokenizer of a T5, which is a SentencePiece unigram model.

    The tokenizer also has sentinels, the tokens `<extra_id_0>`, `<extra_id_1>` and so on, which T5
    puts in place of corrupted spans. If macaron_tf did not export the T5, no token corresponds to
    [MASK], so its Hugging Face id is -1. [CLS] then has the Hugging Face id of the padding token,
    with which T5's decoder starts.

    Returns:
        The vocabulary, a `(V',)` int array with the Hugging Face id for each id of the vocabulary,
        and an int array with the Hugging Face ids of the sentinels, sorted by their number.
    """
    tokenizer = _Tokenizer(directory, ["spiece.model"])
    model, pieces = _sentencepiece_model(tokenizer)
    names = [piece.piece for piece in pieces]
    matches = [_SENTINEL.fullmatch(name) for name in names]
    sentinels = {int(match[1]): index for index, match in enumerate(matches) if match}
    if not sentinels:  # the model's file lacks sentinels, which follow its pieces in reverse order
        count = tokenizer.options.get("extra_ids", 100)
        sentinels = {index: len(names) + count - 1 - index for index in range(count)}
    defaults = {"pad_token": ("<pad>",), "unk_token": ("<unk>",), "eos_token": ("</s>",)}
    pad, unknown, end = map(names.index, tokenizer.special_tokens(names, defaults))
    # A model that macaron_tf exported has separate tokens for [CLS] and [MASK].
    extra_names = (tokenizer.token(field) for field in ("cls_token", "mask_token"))
    start, mask = (names.index(name) if name in names else None for name in extra_names)
    extra_ids = [index for index in (start, mask) if index is not None]
    reserved = [pad, unknown, end, *extra_ids, *sentinels.values()]
    other_ids = np.setdiff1d(np.arange(len(names)), reserved)
    special_ids = [pad, unknown, pad if start is None else start, end, -1 if mask is None else mask]
    ids = np.array([*special_ids, *other_ids])
    vocabulary = SentencePieceVocabulary(_reorder(model, pieces, ids))
    vocabulary = _with_added(vocabulary, tokenizer, ids)
    return vocabulary, ids, np.array([sentinels[index] for index in sorted(sentinels)], int)


def _read_sentencepiece(tokenizer: _Tokenizer) -> tuple[PieceVocabulary, np.ndarray]:
    model, pieces = _sentencepiece_model(tokenizer)
    names = [piece.piece for piece in pieces]
    special = tokenizer.special_tokens(set(names))
    # XLM-R's SentencePiece model normalizes text. XLNet and ALBERT strip accents before
    # SentencePiece.
    is_xlnet, fold_accents = "<cls>" in special, "<s>" not in special
    if tokenizer.normalizer_types:
        fold_accents = "StripAccents" in tokenizer.normalizer_types
    if is_xlnet and tokenizer.file:
        # XLNet's tokenizer splits pieces that end in a digit and a comma again. A score penalty has
        # the same effect. The scores in `tokenizer.json` include the penalty.
        for piece in pieces:
            if re.search(r"\d,$", piece.piece) and piece.type == _Piece.NORMAL:
                piece.score -= _SCORE_PENALTY
    accents = {"keep_accents": bool(tokenizer.options.get("keep_accents"))}
    ForeignConfig(accents, f"the tokenizer of {tokenizer.directory}").require(
        {"keep_accents": False}
    )
    # By default ALBERT lower-cases and XLNet does not.
    lower_by_default = fold_accents and not is_xlnet
    if tokenizer.tokenizer_json:
        lower_by_default = "Lowercase" in tokenizer.normalizer_types
    lower_case = bool(tokenizer.options.get("do_lower_case", lower_by_default))
    special_ids = [names.index(name) for name in special]
    order = np.array([*special_ids, *np.setdiff1d(np.arange(len(pieces)), special_ids)])
    vocabulary = SentencePieceVocabulary(
        _reorder(model, pieces, order),
        NormalizationConfig(lower_case=lower_case),
        fold_accents=fold_accents,
        pair_separators=tokenizer.separators(1 if fold_accents else 2),
        cls_last=is_xlnet,
    )
    return _with_added(vocabulary, tokenizer, order), order


def _sentencepiece_model(tokenizer: _Tokenizer) -> tuple[_Model, list[_Piece]]:
    """Reads a SentencePiece model.

    Returns:
        The model, and a list of all pieces and added tokens in the order of the Hugging Face ids.
        The caller must use this list instead of `model.pieces`, which may be empty or in another
        order.
    """
    model = _Model()
    if tokenizer.file:
        try:
            model.ParseFromString(tokenizer.file.read_bytes())
        except Exception as error:  # protobuf's DecodeError differs between its versions
            raise UserError(
                f"{tokenizer.file} is not a SentencePiece model ({error}): download or copy the "
                "file again"
            ) from None
        pieces = list(model.pieces)
        if tokenizer.file.name == "sentencepiece.bpe.model":
            # The file begins with <unk>, <s> and </s>. fairseq replaces these three by four special
            # pieces and appends <mask>.
            special = [_piece(text) for text in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
            pieces = [*special[:4], *pieces[3:], special[4]]
        return model, tokenizer.with_added_pieces(pieces)
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    # The normalizer with SentencePiece's table is the only step or one of several steps.
    for step in tokenizer.normalizer.get("normalizers", [tokenizer.normalizer]):
        if charsmap := step.get("precompiled_charsmap"):
            model.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmap)
    pieces = [_piece(text, score) for text, score in tokenizer.model["vocab"]]
    if tokenizer.model.get("byte_fallback"):
        model.trainer_spec.byte_fallback = True
        by_name = {piece.piece: piece for piece in pieces}
        for name in (f"<0x{byte:02X}>" for byte in range(256)):
            if name not in by_name:
                raise UserError(
                    f"{tokenizer.directory / 'tokenizer.json'} has byte_fallback=true, but lacks "
                    f"the token {name} of the 256 byte tokens: give another tokenizer"
                )
            by_name[name].type = _Piece.BYTE
    for token in tokenizer.tokenizer_json.get("added_tokens") or ():
        if token["id"] < len(pieces):
            special = token.get("special")
            pieces[token["id"]].type = _Piece.CONTROL if special else _Piece.USER_DEFINED
    return model, tokenizer.with_added_pieces(pieces)


def _reorder(source: _Model, pieces: Sequence[_Piece], order: Sequence[int]) -> bytes:
    """Builds a serialized SentencePiece model with macaron_tf's special pieces first.

    Args:
        source: SentencePiece model that supplies the settings of the result.
        pieces: pieces in the order of their Hugging Face ids.
        order: Hugging Face ids in the new order, which begins with PAD, UNK, [CLS], [SEP] and
            [MASK].
    """
    model = _Model()
    model.trainer_spec.CopyFrom(source.trainer_spec)
    model.normalizer_spec.CopyFrom(source.normalizer_spec)
    spec = model.trainer_spec
    spec.pad_piece, spec.unk_piece = "<pad>", "<unk>"
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = 0, 1, -1, -1
    special = ("<pad>", "<unk>", *CONTROL)
    for index, name in enumerate(special):
        piece_type = _Piece.UNKNOWN if index == spec.unk_id else _Piece.CONTROL
        model.pieces.add(piece=name, type=piece_type)
    model.pieces.extend(pieces[piece_id] for piece_id in order[len(special) :])
    return model.SerializeToString(deterministic=True)


def _piece(text: str, score: float = 0.0) -> _Piece:
    return _Piece(piece=text, score=score, type=_Piece.NORMAL)


def _read_wordpiece(tokenizer: _Tokenizer, lower_case: bool | None) -> WordPieceVocabulary:
    """Reads a WordPiece tokenizer.

    As in transformers, settings in `tokenizer_config.json` override settings in `tokenizer.json`.
    `lower_case` applies only if neither file says whether to lower-case text.
    """
    directory = tokenizer.directory
    settings = {
        "do_lower_case": tokenizer.normalizer.get("lowercase"),
        "strip_accents": tokenizer.normalizer.get("strip_accents"),
        "tokenize_chinese_chars": tokenizer.normalizer.get("handle_chinese_chars"),
    }
    # The value `None` of an option means the default.
    settings.update((name, value) for name, value in tokenizer.options.items() if value is not None)
    lower_case = settings["do_lower_case"] if settings["do_lower_case"] is not None else lower_case
    if lower_case is None:
        raise UserError(
            f"no file in {directory} says whether the tokenizer lower-cases text: give "
            "lower_case=True or False"
        )
    # BERT strips accents if and only if it lower-cases.
    expected = {"strip_accents": lower_case, "tokenize_chinese_chars": True}
    expected |= {field: piece for field, (_, *_, piece) in _SPECIAL.items()}
    for field, value in expected.items():
        actual = tokenizer.token(field) if field in _SPECIAL else settings[field]
        if actual not in (None, value):
            raise UserError(
                f"the tokenizer of {directory} has {field}={actual!r}, but with "
                f"do_lower_case={lower_case!r} only {value!r} can be read: give another tokenizer"
            )
    if tokenizer.file:
        pieces = WordPieceVocabulary.from_file(tokenizer.file, lower_case).words
    else:
        pieces = _wordpieces(directory / "tokenizer.json", tokenizer.model)
    piece_ids = {piece: piece_id for piece_id, piece in enumerate(pieces)} | tokenizer.all_added
    for name, piece_id in tokenizer.all_added.items():
        if pieces[piece_id : piece_id + 1] not in ((), ("",), (name,)):
            raise UserError(
                f"{directory} gives the added token {name!r} the id {piece_id}, which belongs to "
                f"{pieces[piece_id]!r}: use the tokenizer files that belong to the model"
            )
    vocabulary = WordPieceVocabulary(_in_id_order(piece_ids, directory), lower_case)
    return _with_added(vocabulary, tokenizer, np.arange(vocabulary.pieces))


def _wordpieces(file: pathlib.Path, model: Mapping[str, Any]) -> tuple[str, ...]:
    # Early files lack the type.
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise UserError(
            f"{file} contains no WordPiece vocabulary: give the tokenizer of a BERT model"
        )
    ForeignConfig(model, str(file)).require({"continuing_subword_prefix": "##"})
    return _in_id_order(model["vocab"], file)


def _in_id_order(piece_ids: Mapping[str, int], path: pathlib.Path) -> tuple[str, ...]:
    """Returns a tuple in which each subword token is at the index of its id.

    An unused id gets an empty string. Ids are unused, for example, if a vocabulary file repeats a
    token.

    Args:
        piece_ids: dict mapping subword token to id.
        path: file or folder to name in the error message.

    Raises:
        UserError: an id is negative, or at least twice the number of tokens.
    """
    pieces = [""] * min(1 + max(piece_ids.values()), 2 * len(piece_ids))
    for piece, piece_id in piece_ids.items():
        if not 0 <= piece_id < len(pieces):
            raise UserError(
                f"{path} gives the word {piece!r} the id {piece_id}, but ids must be from 0 to "
                f"{len(pieces) - 1}: download or copy the file again"
            )
        pieces[piece_id] = piece
    return tuple(pieces)


def read_keras_hub_vocabulary(
    directory: pathlib.Path, name: str
) -> tuple[PieceVocabulary, np.ndarray | None]:
    """Reads the tokenizer of a KerasHub preset.

    Args:
        directory: folder of the preset.
        name: name of the vocabulary file: `vocabulary.txt` for WordPiece, or `vocabulary.json` for
            byte-level BPE.

    Returns:
        The vocabulary, and a `(V',)` int array with KerasHub's id for each id of the vocabulary.
        `None` instead of the array means that the ids are equal.
    """
    record, asset = directory / "tokenizer.json", directory / "assets/tokenizer" / name
    for file in (record, asset):
        if not file.is_file():
            raise UserError(
                f"{directory} lacks {file.relative_to(directory)}: save the preset together with "
                "its tokenizer"
            )
    fields = read_json(record)
    config = ForeignConfig(fields.get("config", {}), str(record))
    if name == "vocabulary.json":
        config.require({"add_prefix_space": False})
        is_gpt2 = fields.get("class_name") == "GPT2Tokenizer"
        return (read_gpt2_vocabulary if is_gpt2 else read_vocabulary)(asset.parent)
    config.require({"split": True, "suffix_indicator": "##", "oov_token": "[UNK]"})
    lower_case = bool(config.get("lowercase", False))
    return WordPieceVocabulary.from_file(asset, lower_case=lower_case), None
