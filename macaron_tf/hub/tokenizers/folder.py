"""Contents of a Hugging Face tokenizer folder, with the special and added tokens that it names."""

import itertools
import operator
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.hub.tokenizers import parts
from macaron_tf.hub.tokenizers.parts import take
from macaron_tf.io.paths import read_bytes, read_json, refuse_damage
from macaron_tf.special import Special

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
SENTINEL = re.compile(r"<extra_id_(\d+)>")  # sentinels of T5
MEND = "download or copy the tokenizer's files again"
PYTHON = 'macaron_tf.load(..., tokenizer="python")'  # runs tokenizer.json in Python instead
# Vocabulary files of all tokenizers.
_FILES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_ENDS = ("bos_token", "eos_token")


# Values that a field of the model may have; an empty tuple means any value.
_MODEL_FIELDS = {
    **dict.fromkeys(("unk_id", "unk_token", "fuse_unk"), ()),
    "dropout": (None, 0),
    **dict.fromkeys(("byte_fallback", "ignore_merges"), (None, False)),
    **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), (None, "")),
}
# Fields of a step that change the positions of tokens, not their ids.
_POSITIONS = ("trim_offsets", "str_rep")
# Names of tokenizer classes, without the ending, that read the files of each kind of model alike.
_CLASSES = {
    "WordPiece": ("Bert", "ConvBert", "DistilBert", "Electra", "Funnel", "LayoutLM", "MobileBert"),
    "BPE": ("Bart", "GPT2", "Longformer", "Qwen2", "Roberta"),
    "GPT": ("OpenAIGPT",),
    "Unigram": ("Albert", "Llama", "MT5", "T5", "XLMRoberta", "XLNet"),
}


def _canonical(step: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a step with its defaults, and without the fields that change no ids."""
    step = {name: value for name, value in step.items() if name not in _POSITIONS}
    if step.get("type") == "ByteLevel":
        return {"use_regex": True, **step}
    if step.get("type") == "Metaspace":
        prefix = step.pop("add_prefix_space", True)
        return {"prepend_scheme": "always" if prefix else "never", "split": True, **step}
    # Our patterns match all of a text.
    if (step.get("behavior"), step.get("invert")) == ("Removed", True):
        return {**step, "behavior": "Isolated", "invert": False}
    return step


class Tokenizer:
    """Contents of a Hugging Face tokenizer folder.

    Attributes:
        file: path of the vocabulary file, or `None` if only `tokenizer.json` contains the
            vocabulary.
        tokenizer_json: contents of `tokenizer.json`, or an empty dict if the file is missing. As in
            transformers, options of `tokenizer_config.json` replace those of its steps.
        model: value of this field in `tokenizer.json`. The value of a missing field is an empty
            dict.
        normalizers, pre_tokenizers: steps in `tokenizer.json`, in order; `None` if the file or the
            field is missing.
        frame: names of the special tokens before a text, between two texts and after the texts;
            `None` if `tokenizer.json` has no template.
        options: contents of `tokenizer_config.json`, with the special tokens that only
            `special_tokens_map.json` names.
        all_added: dict mapping name to id, for the tokens that the folder's files add to the
            vocabulary.
        added: the tokens in `all_added` that are neither special tokens nor T5's sentinels. Text
            that equals such a token is always encoded as this single token.
        unnormalized: names of the added tokens that are found in text that is not normalized.
    """

    def __init__(self, directory: pathlib.Path, files: Collection[str] = _FILES):
        def optional(name: str) -> dict:
            return read_json(directory / name) if (directory / name).is_file() else {}

        self.directory = directory
        self.tokenizer_json = optional("tokenizer.json")
        self.options = optional("tokenizer_config.json")
        with refuse_damage(directory / "tokenizer.json", MEND):
            self.model = {**(self.tokenizer_json.get("model") or {})}
            self.normalizers = self._steps("normalizer", "normalizers")
            self.pre_tokenizers = self._steps("pre_tokenizer", "pretokenizers")
            self.frame = self._frame()
        for field, value in optional("special_tokens_map.json").items():
            if field in (*_ENDS, *SPECIAL) and self.token(field) is None:
                self.options[field] = value
        found = [name for name in (*files, *_FILES) if (directory / name).is_file()]
        self.file = directory / found[0] if found and found[0] in files else None
        if not self.tokenizer_json and not self.file:
            what = f"has the tokenizer {found[0]}" if found else "contains no vocabulary"
            needed = f"a model of this type is read with {', '.join(files)} or tokenizer.json"
            raise UserError(f"{directory} {what}, but {needed}: {MEND}, or load it by {PYTHON}")
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
        roles = {"<|endoftext|>", *(name for names in SPECIAL.values() for name in names)}
        roles |= {self.token(field) for field in (*_ENDS, *SPECIAL)}
        roles |= {*filter(SENTINEL.fullmatch, self.all_added)}
        self.added = {name: n for name, n in self.all_added.items() if name not in roles}

    def _steps(self, field: str, group: str) -> list[dict[str, Any]] | None:
        """Returns the steps in a field of `tokenizer.json`, without nested sequences."""

        def flat(step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
            if step and step.get("type") == "Sequence":
                for part in step[group]:
                    yield from flat(part)
            elif step:
                for option, name in parts.OVERRIDES.get(step.get("type", ""), {}).items():
                    if self.options.get(option) is not None:
                        step[name] = self.options[option]
                yield _canonical(step)

        if field not in self.tokenizer_json:
            return None
        return [*flat(self.tokenizer_json[field])]

    def _frame(self) -> tuple[list[str], list[str], list[str]] | None:
        steps = self._steps("post_processor", "processors") or ()
        steps = [step for step in steps if step.get("type") != "ByteLevel"]
        if not steps:
            return None
        kind = steps[0].get("type")
        if kind in ("BertProcessing", "RobertaProcessing"):
            start, end = steps[0]["cls"][0], steps[0]["sep"][0]
            return [start], [end] * (2 if kind == "RobertaProcessing" else 1), [end]
        if len(steps) > 1 or "pair" not in steps[0]:
            raise self.refusal(f"the post-processor {steps[-1].get('type')}")
        single, pair = (  # with "" for a text
            [part["SpecialToken"]["id"] if "SpecialToken" in part else "" for part in steps[0][n]]
            for n in ("single", "pair")
        )
        if single.count("") != 1 or pair.count("") != 2:
            raise ValueError("the templates do not contain one and two texts")
        before, after = single[: single.index("")], single[single.index("") + 1 :]
        between = pair[len(before) + 1 : len(pair) - len(after) - 1]
        if pair != [*before, "", *between, "", *after]:
            raise ValueError("the templates differ in what surrounds the texts")
        return before, between, after

    def refusal(self, what: str, file: str = "tokenizer.json") -> UserError:
        """Returns the error for a step or field that the TensorFlow tokenizers do not support."""
        way_out = "load the" if self.tokenizer_json else "save tokenizer.json, and load the"
        return UserError(
            f"{self.directory / file} has {what}, which macaron_tf's TensorFlow tokenizers do not "
            f"support: {way_out} model by {PYTHON}"
        )

    def refuse_steps(
        self, kind: str, steps: Sequence[Mapping[str, Any]], is_found: bool = True
    ) -> None:
        """Raises a UserError that names the first of the steps that nothing has taken.

        Without such a step, it says that a step of this kind is missing unless `is_found`.
        """
        for step in steps or ([] if is_found else [{"type": None}]):
            values = [f"{name}={value!s:.40}" for name, value in step.items() if name != "type"]
            fields = f" ({', '.join(values)})" if values else ""
            raise self.refusal(f"the {kind} {step.get('type')}{fields}")

    def require_steps(
        self, kind: str, steps: Sequence[Mapping[str, Any]] | None, *allowed: Mapping[str, Any]
    ) -> None:
        """Raises a UserError unless `steps` is one of the `allowed` steps, or `None`."""
        rest = [*(steps or ())]
        is_found = any(take(rest, step) for step in allowed)
        self.refuse_steps(kind, rest, is_found or steps is None)

    def check_model(self, kind: str, **known: Collection) -> None:
        """Refuses a field of the model with another value, and a class of the folder's tokenizer.

        `known` maps the fields that may differ from `_MODEL_FIELDS` to their allowed values.
        """
        known = {**_MODEL_FIELDS, **known}
        for name, value in self.model.items():
            if name in ("type", "vocab", "merges") or (name in known and not known[name]):
                continue
            if value not in known.get(name, (None,)):
                raise self.refusal(f"{name}={value!r} in its model")
        name = str(self.options.get("tokenizer_class") or "PreTrainedTokenizer")
        name = name.removesuffix("Fast").removesuffix("Tokenizer")
        if not self.tokenizer_json and name not in ("PreTrained", *_CLASSES[kind]):
            raise self.refusal(f"tokenizer_class={name}Tokenizer", "tokenizer_config.json")

    def check_frame(self, role: str, names: Sequence[str | None], cls_last: bool = False) -> None:
        """Refuses a template with other special tokens than a model of this role has.

        Args:
            role: "encoder" ([CLS] and [SEP] around a text), "sequence" (the source of an
                encoder-decoder, which ends with [SEP]) or "language".
            names: names of [CLS], [SEP] and [MASK].
            cls_last: whether the row of an encoder ends with [CLS].
        """
        before, between, after = self.frame or ([], [], [])
        start, end, mask = names
        starts, ends = ([], [start]), {"sequence": ([end],), "language": ([], [mask])}.get(role, ())
        if role == "encoder":
            starts, ends = ([[]], [[end, start]]) if cls_last else ([[start]], [[end]])
        is_known = before in starts and after in ends
        if self.frame and not (is_known and (role != "encoder" or {*between} == {end})):
            found = [*before, "A", *between, "B", *after]
            raise self.refusal(f"the template {' '.join(found)}")

    def token(self, field: str) -> str | None:
        """Returns the name of the special token in a field such as "cls_token", or `None`.

        The field belongs to `tokenizer_config.json`.
        """
        value = self.options.get(field)
        # In early files, a token is a dict with the key `content`.
        value = value.get("content") if isinstance(value, dict) else value
        if not isinstance(value, str | None):
            raise UserError(f"{self.directory} has {field}={value!r}, which is no name: {MEND}")
        return value

    def special_tokens(
        self, tokens: Collection[str], defaults: Mapping[str, Sequence[str]] = SPECIAL
    ) -> list[str]:
        """Returns the names of the tokenizer's special tokens, in the order of `defaults`.

        Args:
            defaults: dict mapping a field, such as "cls_token", to candidate names. The candidates
                are used if `tokenizer_config.json` lacks the field.
        """
        names = []
        for field, candidates in defaults.items():
            token = self.token(field)
            candidates = (token,) if token else candidates
            name = next((name for name in candidates if name in tokens), None)
            if name is None:
                lack = f"has no {field}, but needs {' or '.join(candidates)}"
                raise UserError(f"the tokenizer of {self.directory} {lack}: {MEND}")
            names.append(name)
        return names

    def separators(self, default: int) -> int:
        """Returns the number of [SEP] tokens between two texts: `default` without a template."""
        return len(self.frame[1]) if self.frame else default

    def takes_space(self, name: str) -> bool:
        """Returns whether the mask token `name` includes the white space before it (`lstrip`).

        If the files do not say so, the result is True, as in transformers' RoBERTa.
        """
        token = self.entries.get(name) or self.options.get("mask_token")
        if isinstance(token, dict) and (token.get("rstrip") or token.get("single_word")):
            raise self.refusal(f"the mask token {name!r} with rstrip=true or single_word=true")
        return bool(token.get("lstrip", True)) if isinstance(token, dict) else True

    def ids_and_merges(self) -> tuple[dict[str, int], list[str]]:
        """Reads a BPE vocabulary from `tokenizer.json`, or else from `file` and `merges.txt`.

        Returns:
            A dict mapping name to id, for all tokens including `added`, and a list of merges as
            `"left right"`.
        """
        is_whole, file = self.file is None or "vocab" in self.model, self.directory / "merges.txt"
        with refuse_damage(self.directory / "tokenizer.json" if is_whole else self.file, MEND):
            token_ids = self.model["vocab"] if is_whole else read_json(self.file)
            token_ids = self.added | {name: operator.index(n) for name, n in token_ids.items()}
            # In early files, a merge is the string "left right". In later files, it is a list.
            merges = self.model["merges"] if is_whole else read_bytes(file).decode().split("\n")
            merges = [m.removesuffix("\r") if isinstance(m, str) else " ".join(m) for m in merges]
        return token_ids, [m for m in merges if is_whole or (m and not m.startswith("#version"))]

    def byte_pairs(self) -> tuple[dict[str, int], list[str], dict[str, Any]]:
        """Reads a byte-level BPE tokenizer.

        Returns:
            The dict and the list that `ids_and_merges` returns, and a dict of further constructor
            arguments for `BytePairVocabulary`.
        """
        is_qwen = str(self.options.get("tokenizer_class")).startswith("Qwen2")
        pattern, prefix = "qwen2" if is_qwen else "gpt2", self.options.get("add_prefix_space")
        steps = [step for step in self.normalizers or () if step not in parts.BYTE_CLEANING]
        composed = take(steps, parts.NFC) or (is_qwen and self.normalizers is None)
        lower_case = take(steps, *parts.LOWER)
        self.refuse_steps("normalizer", steps)
        if self.pre_tokenizers is not None:
            steps = [*self.pre_tokenizers]
            patterns = (name for name in parts.SPLITS if take(steps, parts.split(name)))
            pattern = next(patterns, "gpt2")
            level = {"type": "ByteLevel", "use_regex": pattern == "gpt2"}
            prefix = take(steps, {**level, "add_prefix_space": True})
            is_found = prefix or take(steps, {**level, "add_prefix_space": False})
            self.refuse_steps("pre-tokenizer", steps, is_found)
        if pattern == "llama3" and not self.model.get("ignore_merges"):
            pattern = "cl100k"
        # Each byte is a piece, so a text has no unknown part.
        self.check_model("BPE", byte_fallback=(), ignore_merges=(None, pattern == "llama3"))
        options = {"lower_case": lower_case, "add_prefix_space": bool(prefix)}
        return *self.ids_and_merges(), {**options, "composed": composed, "pattern": pattern}


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
