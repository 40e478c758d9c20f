"""Export of macaron_tf vocabularies as Hugging Face tokenizers (the inverse of `reading`)."""

import base64
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.hub.config import json_bytes
from macaron_tf.hub.tokenizers import parts
from macaron_tf.hub.tokenizers.folder import SPECIAL
from macaron_tf.hub.tokenizers.sentencepiece import derived_merges
from macaron_tf.special import CLS_SEGMENT, SPECIAL_PIECES
from macaron_tf.text import PieceVocabulary, WordPieceVocabulary
from macaron_tf.text.byte_pairs import (
    WORD_END,
    BytePairVocabulary,
    CharacterPairVocabulary,
    MergedPieceVocabulary,
    MosesPairVocabulary,
)
from macaron_tf.text.sentencepiece import CONTROL, WORD_START, SentencePieceVocabulary

_ANY_LENGTH = 10**9
_INSTEAD = "save the model in macaron_tf's own format"


def tokenizer_files(
    vocabulary: PieceVocabulary,
    *,
    max_length: int | None = None,
    has_segments: bool = True,
    **options,
) -> dict[str, bytes]:
    """Builds the files of a Hugging Face tokenizer that is equivalent to an encoder's vocabulary.

    Args:
        max_length: maximum number of tokens in a sequence; `None` means no limit.
        has_segments: whether the second text of a pair has segment id 1 instead of 0.
        options: further fields of `tokenizer_config.json`.
    """
    draft = _Draft(vocabulary, max_length, has_segments)
    draft.config |= options
    return draft.contents()


def language_tokenizer(
    vocabulary: PieceVocabulary, max_length: int | None, starts: bool
) -> dict[str, bytes]:
    """Builds the files of a language model's tokenizer (see `tokenizer_files`)."""
    refuse_moses(vocabulary)
    draft = _Draft(vocabulary, max_length, has_ends=False)
    if isinstance(vocabulary, CharacterPairVocabulary):
        return draft.contents()
    special, start = vocabulary.special, "cls " if starts else ""
    draft.set_frame(f"{start}A", f"{start}A {start}B")
    if special.mask is None or special.mask < vocabulary.pieces:
        return draft.contents()
    # The special tokens of a GPT-2 or Llama begin and end a text.
    draft.config = {n: v for n, v in draft.config.items() if n not in ("cls_token", "sep_token")}
    if "spiece.model" in draft.files:
        draft.files["tokenizer.model"] = draft.files.pop("spiece.model")
        draft.config["padding_side"] = "left"  # as Llama's tokenizer
    if special.begin == special.end:
        draft.config["unk_token"] = draft.config["eos_token"]
        # This post-processor adds no special tokens.
        processor = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
        draft.fields["post_processor"] = processor
    return draft.contents()


def sequence_tokenizer(
    vocabulary: PieceVocabulary,
    max_length: int | None,
    starts: bool,
    sentinels: Sequence[int] = (),
) -> dict[str, bytes]:
    """Builds an encoder-decoder's tokenizer: [CLS] if it `starts`, source text, [SEP]."""
    refuse_moses(vocabulary)
    names = {f"<extra_id_{index}>": int(token_id) for index, token_id in enumerate(sentinels)}
    draft = _Draft(vocabulary, max_length, sentinels=names)
    start, separators = "cls " if starts else "", "sep " * vocabulary.pair_separators
    draft.set_frame(f"{start}A sep", f"{start}A {separators}B sep")
    return draft.contents()


def refuse_moses(vocabulary: PieceVocabulary) -> None:
    """Raises a UserError for XLM's vocabulary, whose tokenizer has no `tokenizer.json`."""
    if isinstance(vocabulary, MosesPairVocabulary):
        raise UserError(f"only encoders in Hugging Face's library have XLM's tokenizer: {_INSTEAD}")


class _Draft:
    """Tokenizer to write: that of an encoder, until a frame of other special tokens is set.

    Attributes:
        names, special: see `_names`.
        fields: contents of `tokenizer.json`; empty if the tokenizer has no such file.
        config: contents of `tokenizer_config.json`.
        files: dict mapping the name of a vocabulary file to its contents.
    """

    def __init__(
        self,
        vocabulary: PieceVocabulary,
        max_length: int | None,
        has_segments: bool = False,
        has_ends: bool = True,
        sentinels: Mapping[str, int] = types.MappingProxyType({}),
    ):
        writers = _WRITERS if has_ends else {**_WRITERS, CharacterPairVocabulary: _gpt}
        write = next((w for kind, w in writers.items() if isinstance(vocabulary, kind)), None)
        if write is None:
            raise UserError(f"Hugging Face has no {vocabulary.kind!r} tokenizer: {_INSTEAD}")
        self.names, self.special = _names(vocabulary)
        self.token_ids = {name: token_id for token_id, name in enumerate(self.names) if name}
        self.fields: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        write(vocabulary, self)
        self.config["model_max_length"] = max_length or _ANY_LENGTH
        added = [
            self._token(n, name, normalized=name not in vocabulary.unnormalized)
            for name, n in vocabulary.added.items()
        ]
        if not self.fields:
            if added:
                tokens = {token.pop("id"): {**token, "normalized": True} for token in added}
                self.config["added_tokens_decoder"] = tokens
            return
        special = {name: self.token_ids[name] for name in self.special.values()} | {**sentinels}
        spaced = self.special.get("mask_token") if vocabulary.mask_takes_space else None
        added += [
            self._token(n, name, special=True, lstrip=name == spaced) for name, n in special.items()
        ]
        inputs = ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"]
        self.config |= {**self.special, "model_input_names": inputs}
        if sentinels:
            self.config["additional_special_tokens"] = [*sentinels]
        added.sort(key=lambda token: token["id"])
        settings = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
        self.fields = {**settings, "post_processor": None, **self.fields}
        if "cls_token" in self.special:
            separators, second = "sep " * vocabulary.pair_separators, f":{int(has_segments)}"
            start, end = ("", f" cls:{CLS_SEGMENT}") if vocabulary.cls_last else ("cls ", "")
            pair = f"{start}A {separators}B{second} sep{second}{end}"
            self.fields["post_processor"] = self._template(f"{start}A sep{end}", pair)

    def _token(self, token_id: int, name: str, **flags: bool) -> dict[str, Any]:
        """Builds the entry for the token `name` in the field `added_tokens`."""
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        return {"id": token_id, "content": name, **dict.fromkeys(names, False), **flags}

    def contents(self) -> dict[str, bytes]:
        tokenizer = {"tokenizer.json": json_bytes(self.fields)} if self.fields else {}
        config = {"tokenizer_config.json": json_bytes(self.config)}
        return {**self.files, **tokenizer, **config}

    def add_pairs(
        self,
        vocabulary: MergedPieceVocabulary,
        first_line: str = "#version: 0.2\n",
        **fields,
    ) -> dict[str, Any]:
        """Adds the files of a BPE, and returns its model, whose `fields` are not the defaults."""
        lines = first_line + "".join(f"{merge}\n" for merge in vocabulary.merges)
        self.files = {"vocab.json": json_bytes(self.token_ids), "merges.txt": lines.encode()}
        merges = [merge.split(" ") for merge in vocabulary.merges]
        return {"type": "BPE", **fields, "vocab": self.token_ids, "merges": merges}

    def set_frame(self, single: str, pair: str) -> None:
        """Sets the frame of a decoder's tokenizer, with [CLS] and [SEP] (see `_template`)."""
        self.config["bos_token"] = self.config["cls_token"]
        self.config["eos_token"] = self.config["sep_token"]
        self.fields["post_processor"] = self._template(single, pair)

    def _template(self, single: str, pair: str) -> dict[str, Any]:
        """Builds the post-processor that adds special tokens to a text and to a pair of texts.

        In a frame such as "cls A sep B:1 sep:1", A and B stand for the texts, "cls" stands for the
        token in the field `cls_token`, and a segment id other than 0 follows a colon.
        """
        tokens: dict[str, Any] = {}

        def part(word: str) -> dict[str, Any]:
            kind, _, segment = word.partition(":")
            name = self.special.get(f"{kind}_token", kind)
            if kind not in ("A", "B"):
                tokens[name] = {"id": name, "ids": [self.token_ids[name]], "tokens": [name]}
            type_name = "Sequence" if kind in ("A", "B") else "SpecialToken"
            return {type_name: {"id": name, "type_id": int(segment or 0)}}

        frames = {"single": [*map(part, single.split())], "pair": [*map(part, pair.split())]}
        return {"type": "TemplateProcessing", **frames, "special_tokens": tokens}


_FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
# Names of the special tokens in vocabularies that are trained here, as in RoBERTa and XLM-R.
_NAMES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def _names(vocabulary: PieceVocabulary) -> tuple[list[str], dict[str, str]]:
    """Returns the names of a vocabulary's tokens in Hugging Face's tokenizer.

    Returns:
        The names in the order of the ids, with "" for an unused id, and a dict mapping a field of
        `tokenizer_config.json`, such as "cls_token", to the name of the special token.
    """
    special, role_names = vocabulary.special, _NAMES
    if isinstance(vocabulary, SentencePieceVocabulary):
        names = [vocabulary.processor.id_to_piece(n) for n in range(vocabulary.pieces)]
        if vocabulary.cls_last:
            role_names = ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>")
        elif vocabulary.fold_accents:
            role_names = ("<pad>", "<unk>", *CONTROL)
    elif isinstance(vocabulary, WordPieceVocabulary):
        names, role_names = [*vocabulary.words], SPECIAL_PIECES
    else:
        names = [*vocabulary.names]
        if isinstance(vocabulary, MosesPairVocabulary):
            role_names = (*_NAMES[:4], "<special1>")
    fields = {}
    for field, token_id, name in zip(SPECIAL, special.roles, role_names, strict=True):
        if token_id is not None and token_id < len(names):
            fields[field] = name if special.rows is None else names[token_id] or name
            names[token_id] = fields[field]
    return names, fields


def _wordpiece(vocabulary: WordPieceVocabulary, draft: _Draft) -> None:
    draft.fields = {
        "normalizer": parts.bert_normalizer(vocabulary.lower_case),
        "pre_tokenizer": parts.BERT_WORDS,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": draft.token_ids,
        },
    }
    draft.config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": vocabulary.lower_case,
    }
    draft.files = {"vocab.txt": vocabulary.contents()}


def _byte_pairs(vocabulary: BytePairVocabulary, draft: _Draft) -> None:
    # The steps of `BytePairVocabulary.normalized`.
    steps = [*parts.BYTE_CLEANING]
    steps += [parts.NFC] if vocabulary.composed else []
    steps += parts.LOWER if vocabulary.lower_case else []
    prefix, has_split = vocabulary.add_prefix_space, vocabulary.pattern != "gpt2"
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True}
    words = [{**byte_level, "use_regex": not has_split}]
    if has_split:
        split = {"type": "Split", "behavior": "Isolated", "invert": False}
        words = [{**split, "pattern": parts.SPLITS[vocabulary.pattern]}, *words]
    draft.fields = {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": words},
        "decoder": {**byte_level, "use_regex": True},
        "model": draft.add_pairs(vocabulary, ignore_merges=vocabulary.pattern == "llama3"),
    }
    draft.config = {**_FAST, "add_prefix_space": prefix}


def _gpt(vocabulary: CharacterPairVocabulary, draft: _Draft) -> None:
    """Builds GPT's tokenizer, a character-level BPE, whose only special token is UNK."""
    unknown = draft.special["unk_token"]
    draft.fields = {
        "normalizer": parts.bert_normalizer(lower_case=True, strip_accents=True),
        "pre_tokenizer": parts.BERT_WORDS,
        "decoder": {"type": "BPEDecoder", "suffix": WORD_END},
        "model": draft.add_pairs(vocabulary, unk_token=unknown, end_of_word_suffix=WORD_END),
    }
    draft.config = {**_FAST}


def _sentencepiece(vocabulary: SentencePieceVocabulary, draft: _Draft) -> None:
    names, token_ids, unknown = draft.names, draft.token_ids, draft.special["unk_token"]
    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.proto)
    scores = [piece.score for piece in model.pieces] + [0.0] * (len(names) - len(model.pieces))
    pieces = list(zip(names, scores, strict=True))
    if vocabulary.model_type == "unigram":
        fields = {"type": "Unigram", "unk_id": token_ids[unknown], "vocab": pieces}
    else:
        merges = derived_merges(pieces, {*draft.special.values()})
        fields = {"type": "BPE", "unk_token": unknown, "fuse_unk": True}
        fields |= {"vocab": token_ids, "merges": merges}
    prefix = model.normalizer_spec.add_dummy_prefix
    words = parts.metaspace("always" if prefix else "never")
    steps = [parts.WHITE_SPACE, words] if vocabulary.spaces else [words]
    draft.fields = {
        "normalizer": {"type": "Sequence", "normalizers": _steps(vocabulary, model)},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": words,
        "model": {**fields, "byte_fallback": vocabulary.byte_fallback},
    }
    if not model.normalizer_spec.remove_extra_whitespaces:  # a word may begin with several spaces
        steps = [parts.PREPEND, parts.SPACES] if prefix else [parts.SPACES]
        decoders = [parts.replacement(WORD_START, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
        decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        normalizer, words = {"type": "Sequence", "normalizers": steps}, None
        if vocabulary.shares_space:
            normalizer, words = None, parts.metaspace("first", is_split=False)
        draft.fields |= {
            "normalizer": normalizer,
            "pre_tokenizer": words,
            "decoder": {"type": "Sequence", "decoders": decoders},
        }
    draft.config = {**_FAST, "do_lower_case": vocabulary.normalization.lower_case}
    draft.files = {"spiece.model": _model_file(vocabulary, names)}


def _model_file(vocabulary: SentencePieceVocabulary, names: Sequence[str]) -> bytes:
    """Returns the SentencePiece model file, in which the pieces have the given names."""
    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.proto)
    for piece, name in zip(model.pieces, names, strict=False):
        piece.piece = name
    for name in names[len(model.pieces) :]:
        model.pieces.add(piece=name, type=model.SentencePiece.CONTROL)
    spec, special = model.trainer_spec, vocabulary.special
    spec.bos_id = spec.eos_id = -1
    if special.pad < len(names):
        spec.pad_id, spec.pad_piece = special.pad, names[special.pad]
    if special.unk < len(names):
        spec.unk_id, spec.unk_piece = special.unk, names[special.unk]
    del spec.control_symbols[:]
    return model.SerializeToString(deterministic=True)


def _steps(vocabulary: SentencePieceVocabulary, model: Any) -> list[dict[str, Any]]:
    """Builds normalizers for `tokenizer.json` that normalize text as the vocabulary does."""
    config, spec = vocabulary.normalization, model.normalizer_spec
    if config.punctuation:
        why = "Hugging Face's tokenizers cannot normalize punctuation by Moses' rules"
        raise UserError(f"{why}: train with --set data.normalization.punctuation=False")
    cleans = not vocabulary.verbatim
    flags = (vocabulary.fold_accents, cleans, config.remove_nonprinting, config.lower_case)
    steps = [step for flag, group in zip(flags, parts.STEPS, strict=True) if flag for step in group]
    steps += [parts.STRIP] if cleans else []
    if spec.precompiled_charsmap:
        if vocabulary.fold_accents:  # NFKD decomposes Hangul, which `Precompiled` does not compose
            steps.append(parts.NFC)
        table = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    if spec.remove_extra_whitespaces:
        steps += [parts.STRIP, parts.SINGLE_SPACES]
    return steps


def _moses(vocabulary: MosesPairVocabulary, draft: _Draft) -> None:
    """Builds an XLM tokenizer, which has no `tokenizer.json`."""
    token_ids, special = draft.token_ids, draft.special
    languages = {name: language_id for language_id, name in enumerate(vocabulary.languages)}
    draft.config = {
        "tokenizer_class": "XLMTokenizer",
        "do_lowercase_and_remove_accent": vocabulary.lower_case,
        **special,
        "bos_token": special["cls_token"],
        "cls_token": special["sep_token"],
        "additional_special_tokens": [n for n in token_ids if re.fullmatch(r"<special\d+>", n)],
        "lang2id": languages,
        "id2lang": {language_id: name for name, language_id in languages.items()},
    }
    draft.add_pairs(vocabulary, first_line="")


_WRITERS = {
    WordPieceVocabulary: _wordpiece,
    BytePairVocabulary: _byte_pairs,
    SentencePieceVocabulary: _sentencepiece,
    MosesPairVocabulary: _moses,
}
