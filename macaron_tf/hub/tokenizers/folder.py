"""Contents of a Hugging Face tokenizer folder, with the special and added tokens that it names."""

import itertools
import operator
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from macaron_tf.errors import UserError
from macaron_tf.io.paths import read_json, refuse_damage
from macaron_tf.special import Special
from macaron_tf.text import PieceVocabulary

# Candidate names of the special tokens, in the order of macaron_tf's ids. XLNet's names come first,
# because XLNet also has the unused tokens <s> and </s>. RoBERTa's and XLM-R's names come next, and
# ALBERT's names come last.
SPECIAL = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "cls_token": ("<cls>", "<s>", "[CLS]"),
    "sep_token": ("<sep>", "</s>", "[SEP]"),
    "mask_token": ("<mask>", "[MASK]"),
}
_AnyVocabulary = TypeVar("_AnyVocabulary", bound=PieceVocabulary)
_LLAMA_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Dict mapping `BytePairVocabulary.pattern` to the regular expression in `tokenizer.json`.
_SPLITS = {
    "llama3": _LLAMA_PATTERN,
    "cl100k": _LLAMA_PATTERN,
    "qwen2": _LLAMA_PATTERN.replace("{1,3}", ""),
}
SENTINEL = re.compile(r"<extra_id_(\d+)>")  # sentinels of T5
MEND = "download or copy the tokenizer's files again"


def split(pattern: str) -> dict[str, Any]:
    """Builds the pre-tokenizer of `tokenizer.json` that splits text by a pattern in `_SPLITS`."""
    regex = {"Regex": _SPLITS[pattern]}
    return {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}


class Tokenizer:
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
        normalizer_types: types of the normalizers in `tokenizer.json`, in order.
        pre_tokenizers: pre-tokenizers in `tokenizer.json`, in order. If the file has none, the list
            contains an empty dict.
        options: contents of `tokenizer_config.json`, or an empty dict if the file is missing.
        all_added: dict mapping name to id, for the tokens that the folder's files add to the
            vocabulary.
        added: the tokens in `all_added` that are neither special tokens nor T5's sentinels. Text
            that equals such a token is always encoded as this single token.
        unnormalized: names of the added tokens that are found in text that is not normalized.

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
        names = ("model", "normalizer", "pre_tokenizer", "post_processor")
        with refuse_damage(directory / "tokenizer.json", MEND):
            values = ({**(self.tokenizer_json.get(name) or {})} for name in names)
            self.model, self.normalizer, pre_tokenizer, processor = values
            steps = self.normalizer.get("normalizers", [self.normalizer])
            self.normalizer_types = [step["type"] for step in steps if "type" in step]
            steps = pre_tokenizer.get("pretokenizers") or [pre_tokenizer]
            self.pre_tokenizers = [{**step} for step in steps]
            template = processor.get("pair") or ()
            texts = [index for index, part in enumerate(template) if "Sequence" in part]
            if template and len(texts) != 2:
                raise ValueError("the template for pairs does not contain two texts")
            self._separators = texts[1] - texts[0] - 1 if texts else None
        paths = (directory / name for name in files if (directory / name).is_file())
        self.file = next(paths, None)
        if not self.tokenizer_json and not self.file:
            raise UserError(
                f"{directory} contains no vocabulary, neither "
                f"{', '.join(name for name in files if name != 'tokenizer.json')} nor "
                "tokenizer.json: download or copy the tokenizer's files again"
            )
        try:
            tokens = {**(self.options.get("added_tokens_decoder") or {})}
            tokens |= {
                token["id"]: token for token in self.tokenizer_json.get("added_tokens") or ()
            }
            added = [(token["content"], token_id) for token_id, token in tokens.items()]
            added = [*optional("added_tokens.json").items(), *added]
            # Hugging Face's tokenizers leave out a token without a name.
            self.all_added = {name: int(token_id) for name, token_id in added if name}
            self._entries = {token["content"]: token for token in tokens.values()}
            self.unnormalized = [
                name
                for name, token in self._entries.items()
                if not token.get("normalized", not token.get("special"))
            ]
            sentinels = {name for name in self.all_added if SENTINEL.fullmatch(name)}
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{directory} lists added tokens without valid ids or names: {MEND}"
            ) from None
        roles = {name for names in SPECIAL.values() for name in names} | {"<|endoftext|>"}
        roles |= {self.token(field) for field in ("bos_token", "eos_token", *SPECIAL)}
        self.added = {
            name: token_id
            for name, token_id in self.all_added.items()
            if name not in roles | sentinels
        }

    def token(self, field: str) -> str | None:
        """Returns the name of the special token in a field such as "cls_token".

        The field belongs to `tokenizer_config.json`. If the field is missing or null, the result is
        `None`.

        Raises:
            UserError: the field contains another value than a name.
        """
        value = self.options.get(field)
        # In early files, a token is a dict with the key `content`.
        value = value.get("content") if isinstance(value, dict) else value
        if not isinstance(value, str | None):
            raise UserError(
                f"{self.directory / 'tokenizer_config.json'} has {field}={value!r}, but {field} "
                f"must be a token's name: {MEND}"
            )
        return value

    def special_tokens(
        self, tokens: Collection[str], defaults: Mapping[str, Sequence[str]] = SPECIAL
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

    def separators(self, default: int) -> int:
        """Returns the number of [SEP] tokens between two texts.

        The number comes from the template in `tokenizer.json`. If there is no template, the result
        is `default`.
        """
        return default if self._separators is None else self._separators

    def takes_space(self, name: str) -> bool:
        """Returns whether the mask token `name` includes the white space before it (`lstrip`).

        If the files do not say so, the result is True, as in transformers' RoBERTa.
        """
        token = self._entries.get(name) or self.options.get("mask_token")
        return bool(token.get("lstrip", True)) if isinstance(token, dict) else True

    def ids_and_merges(self) -> tuple[dict[str, int], list[str]]:
        """Reads a BPE vocabulary from `file` and `merges.txt`, or else from `tokenizer.json`.

        Returns:
            A dict mapping name to id, for all tokens including `added`, and a list of merges as
            `"left right"`.

        Raises:
            UserError: the folder has `file`, but lacks `merges.txt`, or a file is damaged.
        """
        with refuse_damage(self.file or self.directory / "tokenizer.json", MEND):
            token_ids = read_json(self.file) if self.file else self.model["vocab"]
            token_ids = self.added | {name: operator.index(n) for name, n in token_ids.items()}
            if not self.file:
                # In early files, a merge is the string "left right". In later files, it is a list.
                merges = [m if isinstance(m, str) else " ".join(m) for m in self.model["merges"]]
                return token_ids, merges
        file = self.directory / "merges.txt"
        if not file.is_file():
            raise UserError(
                f"{self.directory} contains {self.file.name} but lacks {file.name}: download or "
                f"copy {file.name} again"
            )
        with refuse_damage(file, MEND):
            text = file.read_text(encoding="utf-8")
        lines = (line.removesuffix("\r") for line in text.split("\n"))
        merges = [n for n in lines if n and not n.startswith("#version")]
        return token_ids, merges

    def byte_pairs(self) -> tuple[dict[str, int], list[str], dict[str, Any]]:
        """Reads a byte-level BPE tokenizer.

        Returns:
            The dict and the list that `ids_and_merges` returns, and a dict of further constructor
            arguments for `BytePairVocabulary`.

        Raises:
            UserError: `merges.txt` is missing, a file is damaged, or the folder has only
                `tokenizer.json`, which contains another type of tokenizer.
        """
        *splits, last = self.pre_tokenizers
        is_byte_level = last.get("type") == "ByteLevel"
        use_regex = last.get("use_regex", True)
        ignore_merges = self.model.get("ignore_merges", False)
        properties = (is_byte_level, use_regex, ignore_merges, splits)
        patterns = {
            "gpt2": (True, True, False, []),
            **{name: (True, False, name == "llama3", [split(name)]) for name in _SPLITS},
        }
        pattern = next((name for name, value in patterns.items() if value == properties), None)
        if not self.file and (pattern is None or self.normalizer_types not in ([], ["NFC"])):
            raise UserError(
                f"{self.directory / 'tokenizer.json'} is not a byte-level BPE tokenizer as in "
                "GPT-2, ModernBERT, Llama 3 or Qwen, but only such tokenizers can be read: give "
                "another model"
            )
        prefix = self.options.get("add_prefix_space", last.get("add_prefix_space", False))
        return *self.ids_and_merges(), {
            "lower_case": "Lowercase" in self.normalizer_types,
            "add_prefix_space": bool(prefix),
            "composed": "NFC" in self.normalizer_types,
            "pattern": pattern or "gpt2",
        }


def special_of(ids: Sequence[int | None], pieces: int, sentinels: Sequence[int] = ()) -> Special:
    """Returns the special tokens of a tokenizer, in which each of them but UNK has an id.

    The missing tokens get the ids after the pieces.

    Args:
        ids: ids of PAD, UNK, [CLS], [SEP] and [MASK], with `None` for a missing token.
        pieces: number of ids in the tokenizer.
        sentinels: ids of T5's sentinels.
    """
    free = itertools.count(pieces)
    pad, unk, *others = ids
    pad, *others = (next(free) if token_id is None else token_id for token_id in (pad, *others))
    return Special(pad, unk, *others, sentinels=tuple(sentinels), rows=pieces)


def with_added(vocabulary: _AnyVocabulary, tokenizer: Tokenizer) -> _AnyVocabulary:
    """Sets `vocabulary.added` from the tokenizer's added tokens, and returns the vocabulary.

    Raises:
        UserError: normalization removes an added token or the white space around it.
    """
    special = vocabulary.special.ids
    vocabulary.added = {n: i for n, i in tokenizer.added.items() if i not in special}
    vocabulary.unnormalized = [name for name in tokenizer.unnormalized if name in vocabulary.added]
    names = [name for name in vocabulary.added if name not in vocabulary.unnormalized]
    for name, normalized in zip(names, vocabulary.normalized_lines(names), strict=True):
        is_stripped = normalized == normalized.strip()
        if is_stripped and (not normalized or name != name.strip()):
            raise UserError(
                f"{tokenizer.directory} adds the token {name!r}, but normalization leaves only "
                f"{normalized!r} of it: set normalized to false for the token in tokenizer.json"
            )
    return vocabulary
