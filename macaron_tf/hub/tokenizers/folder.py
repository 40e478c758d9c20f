"""Contents of a Hugging Face tokenizer folder, with the special and added tokens that it names."""

import itertools
import json
import operator
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from macaron_tf.errors import UserError, first_line, needed
from macaron_tf.hub.tokenizers.parts import OVERRIDES
from macaron_tf.io.paths import read_bytes, read_json, refuse_damage
from macaron_tf.special import Special

# Candidate names of the special tokens, in the order of macaron_tf's ids. XLNet's names come first,
# because XLNet also has the unused tokens <s> and </s>. RoBERTa's and XLM-R's names come next, and
# ALBERT's names come last, before the end of a text in GPT-2.
SPECIAL = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "cls_token": ("<cls>", "<s>", "[CLS]"),
    "sep_token": ("<sep>", "</s>", "[SEP]", "<|endoftext|>"),
    "mask_token": ("<mask>", "[MASK]"),
}
# Fields that name the token if the field of `SPECIAL` is missing.
_ENDS = {"cls_token": "bos_token", "sep_token": "eos_token"}
SENTINEL = re.compile(r"<extra_id_(\d+)>")  # sentinels of T5
MEND = "download or copy the tokenizer's files again"
# Kind of a tokenizer without `tokenizer.json`, by its vocabulary file.
_FILES = {
    **dict.fromkeys(("spiece.model", "sentencepiece.bpe.model", "tokenizer.model"), "Unigram"),
    "vocab.txt": "WordPiece",
    "vocab.json": "BPE",
    "vocabulary.json": "BPE",  # in KerasHub presets
}
# Names of tokenizer classes, without the ending, that read these files alike.
_CLASSES = (
    *("PreTrained", "Bert", "ConvBert", "DistilBert", "Electra", "Funnel", "LayoutLM"),
    *("MobileBert", "Bart", "GPT2", "Longformer", "Roberta", "OpenAIGPT", "XLM"),
    *("Albert", "Llama", "MT5", "T5", "XLMRoberta", "XLNet"),
)


class Tokenizer:
    """Contents of a Hugging Face tokenizer folder.

    Attributes:
        file: path of the vocabulary file, or `None` if only `tokenizer.json` contains the
            vocabulary.
        tokenizer_json: contents of `tokenizer.json`, or an empty dict if the file is missing. As in
            transformers, options of `tokenizer_config.json` replace those of its steps.
        package: tokenizer of the package tokenizers for `tokenizer_json`, or `None`.
        model: value of this field in `tokenizer.json`. The value of a missing field is an empty
            dict.
        kind: "WordPiece", "BPE", or "Unigram" for every SentencePiece model.
        normalizers, pre_tokenizers: steps in `tokenizer.json`, in order.
        frame: ids of the special tokens before a text, between two texts and after the texts;
            `None` if `tokenizer.json` has no template.
        options: contents of `tokenizer_config.json`, with the special tokens that only
            `special_tokens_map.json` names.
        all_added: dict mapping name to id, for the tokens that the folder's files add to the
            vocabulary.
        added: the tokens in `all_added` that are neither special tokens nor T5's sentinels. Text
            that equals such a token is always encoded as this single token.
        unnormalized: names of the added tokens that are found in text that is not normalized.
    """

    def __init__(self, directory: pathlib.Path):
        def optional(name: str) -> dict:
            return read_json(directory / name) if (directory / name).is_file() else {}

        self.directory = directory
        self.tokenizer_json = optional("tokenizer.json")
        self.options = optional("tokenizer_config.json")
        for field, value in optional("special_tokens_map.json").items():
            if field in (*_ENDS.values(), *SPECIAL) and self.token(field) is None:
                self.options[field] = value
        self.file = next((directory / n for n in _FILES if (directory / n).is_file()), None)
        if not self.tokenizer_json and not self.file:
            files = f"{', '.join(_FILES)} or tokenizer.json"
            raise UserError(f"{directory} contains no vocabulary, but needs {files}: {MEND}")
        with refuse_damage(directory / "tokenizer.json", MEND):
            self.normalizers = self._steps("normalizer", "normalizers")
            self.pre_tokenizers = self._steps("pre_tokenizer", "pretokenizers")
            self.model = {**(self.tokenizer_json.get("model") or {})}
            self._find_kind()
        with refuse_damage(directory, MEND):
            tokens = {**(self.options.get("added_tokens_decoder") or {})}
            tokens |= {
                token["id"]: token for token in self.tokenizer_json.get("added_tokens") or ()
            }
            self.entries = {token["content"]: token for token in tokens.values()}
            added = optional("added_tokens.json")
            added |= {token["content"]: token_id for token_id, token in tokens.items()}
            # Hugging Face's tokenizers leave out a token without a name.
            self.all_added = {name: int(token_id) for name, token_id in added.items() if name}
            flags = {n: t.get("normalized", not t.get("special")) for n, t in self.entries.items()}
            self.unnormalized = [name for name, is_normalized in flags.items() if not is_normalized]
        roles = {name for names in SPECIAL.values() for name in names}
        roles |= {self.token(field) for field in (*_ENDS.values(), *SPECIAL)}
        roles |= {*filter(SENTINEL.fullmatch, self.all_added)}
        self.added = {name: n for name, n in self.all_added.items() if name not in roles}

    def _find_kind(self) -> None:
        self.package, self.frame, types = None, None, {step["type"] for step in self.pre_tokenizers}
        if not self.tokenizer_json:
            name = str(self.options.get("tokenizer_class") or "PreTrainedTokenizer")
            if name.removesuffix("Fast").removesuffix("Tokenizer") not in _CLASSES:
                raise self.refusal(f"tokenizer_class={name}", "tokenizer_config.json")
            self.kind = _FILES[self.file.name]
            return
        with needed("a tokenizer.json"):
            import tokenizers
        try:
            self.package = tokenizers.Tokenizer.from_str(json.dumps(self.tokenizer_json))
            self.package.encode("a\ue0f0")  # fails if the token for unknown text is missing
        except Exception as error:  # the package has no class of its own for this error
            why = f"is damaged or too new for the package tokenizers ({first_line(error):.200})"
            raise UserError(f"{self.directory}/tokenizer.json {why}: {MEND}") from error
        self.package.no_truncation()
        self.package.no_padding()
        self.kind = type(self.package.model).__name__
        is_model = self.file is not None and self.file.suffix == ".model"
        has_pieces = is_model or self.model.get("byte_fallback")
        if self.kind == "BPE" and has_pieces and "ByteLevel" not in types:
            self.kind = "Unigram"
        if self.kind != "Unigram" or not is_model:
            self.file = None
        if {step["type"] for step in self._steps("post_processor", "processors")} <= {"ByteLevel"}:
            return
        row = self.package.encode("a", "a")
        texts = [*row.sequence_ids]
        ends = [(texts.index(n), len(texts) - texts[::-1].index(n)) for n in (0, 1)]
        (first, last), (second, end) = ends
        self.frame = row.ids[:first], row.ids[last:second], row.ids[end:]

    def _steps(self, field: str, group: str) -> list[dict[str, Any]]:
        """Returns the steps in a field of `tokenizer.json`, without nested sequences."""

        def flat(step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
            if step and step["type"] == "Sequence":
                for part in step[group]:
                    yield from flat(part)
            elif step:
                for option, name in OVERRIDES.get(step["type"], {}).items():
                    if self.options.get(option) is not None:
                        step[name] = self.options[option]
                yield step

        return [*flat(self.tokenizer_json.get(field))]

    def refusal(self, what: str, file: str = "tokenizer.json") -> UserError:
        """Returns the error for what the TensorFlow tokenizers do not support."""
        return UserError(
            f"{self.directory / file} has {what}, which macaron_tf's TensorFlow tokenizers do not "
            "support: use the model in transformers"
        )

    def token(self, field: str) -> str | None:
        """Returns the special token in a field of `tokenizer_config.json`, or `None`."""
        value = self.options.get(field)
        # In early files, a token is a dict with the key `content`.
        value = value.get("content") if isinstance(value, dict) else value
        if not isinstance(value, str | None):
            raise UserError(f"{self.directory} has {field}={value!r}, which is no name: {MEND}")
        return value

    def special_ids(self, token_ids: Mapping[str, int], role: str) -> list[int | None]:
        """Returns the ids of PAD, UNK, [CLS], [SEP] and [MASK], with `None` for a missing token.

        Without a [CLS], T5 begins with the padding, and other models with [SEP]. If GPT-2 pads with
        the end of a text, the padding is missing. A language model has a [MASK] only if macaron_tf
        exported it, with a `cls_token`.

        Args:
            role: "encoder", "sequence" (encoder-decoder), "t5" or "language".
        """
        known = {**token_ids, **self.all_added}
        # A large vocabulary may have an ordinary piece of the name.
        listed = self.all_added if self.package and self.all_added else token_ids
        defaults = {*listed, self.model.get("unk_token")}
        ids: dict[str, int | None] = {}
        for field, names in SPECIAL.items():
            given = (self.token(name) for name in (field, _ENDS.get(field, field)))
            if role == "t5" and field in ("cls_token", "mask_token"):
                names = ()
            candidates = [*filter(None, given)] or [name for name in names if name in defaults]
            ids[field] = next((known[name] for name in candidates if name in known), None)
            is_needed = role in ("encoder", "sequence") or field == "sep_token"
            if ids[field] is None and (is_needed or (role == "t5" and names)):
                lack = f"has no {_ENDS.get(field, field)}, but needs {' or '.join(names)}"
                raise UserError(f"the tokenizer of {self.directory} {lack}: {MEND}")
        pad, unk, begin, end, mask = ids.values()
        if role == "t5":
            return [pad, unk, pad if begin is None else begin, end, mask]
        begin = end if begin is None else begin
        pad, unk = (None if token_id in (begin, end) else token_id for token_id in (pad, unk))
        if role == "language" and not self.token("cls_token"):
            mask = None
        return [pad, unk, begin, end, mask]

    def separators(self, default: int) -> int:
        """Returns the number of [SEP] tokens between two texts: `default` without a template."""
        return len(self.frame[1]) if self.frame else default

    def takes_space(self, name: str) -> bool:
        """Returns whether the mask token `name` takes the white space before it, by default yes."""
        token = self.entries.get(name) or self.options.get("mask_token")
        if isinstance(token, dict) and (token.get("rstrip") or token.get("single_word")):
            raise self.refusal(f"the mask token {name!r} with rstrip=true or single_word=true")
        return bool(token.get("lstrip", True)) if isinstance(token, dict) else True

    def ids_and_merges(self) -> tuple[dict[str, int], list[str]]:
        """Reads a BPE's ids by name, with `added`, and its merges, as `"left right"`."""
        file = self.directory / "merges.txt"
        with refuse_damage(self.file or self.directory / "tokenizer.json", MEND):
            token_ids = self.model["vocab"] if self.model else read_json(self.file)
            token_ids = self.added | {name: operator.index(n) for name, n in token_ids.items()}
            # In early files, a merge is the string "left right". In later files, it is a list.
            merges = self.model["merges"] if self.model else read_bytes(file).decode().split("\n")
            merges = [m.removesuffix("\r") if isinstance(m, str) else " ".join(m) for m in merges]
        return token_ids, [m for m in merges if self.model or (m and not m.startswith("#version"))]


def sentinels_of(token_ids: Mapping[str, int]) -> dict[int, int]:
    """Returns the ids of T5's sentinels by their numbers."""
    matches = filter(None, map(SENTINEL.fullmatch, token_ids))
    return {int(match[1]): token_ids[match[0]] for match in matches}


def special_of(
    ids: Sequence[int | None], pieces: int, sentinels: Mapping[int, int] | None = None
) -> Special:
    """Returns the special tokens of a tokenizer, in which each of them but UNK has an id.

    The missing tokens get the ids after the pieces.

    Args:
        ids: ids of PAD, UNK, [CLS], [SEP] and [MASK], with `None` for a missing token.
        sentinels: dict mapping the index of a sentinel to its id.
    """
    free = itertools.count(pieces)
    pad, unk, *others = ids
    pad, *others = (next(free) if token_id is None else token_id for token_id in (pad, *others))
    in_order = tuple(token_id for _, token_id in sorted((sentinels or {}).items()))
    return Special(pad, unk, *others, sentinels=in_order, rows=pieces)
