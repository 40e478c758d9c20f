"""Steps of `tokenizer.json` that our vocabularies run in a graph, for reading and for writing."""

from typing import Any

from macaron_tf.text.sentencepiece import WORD_START

_LLAMA_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Dict mapping `BytePairVocabulary.pattern` to the field `pattern` of the step `Split`.
SPLITS = {
    "llama3": {"Regex": _LLAMA_PATTERN},
    "cl100k": {"Regex": _LLAMA_PATTERN},
    "qwen2": {"Regex": _LLAMA_PATTERN.replace("{1,3}", "")},
}


def replacement(pattern: str, content: str, pattern_type: str = "String") -> dict[str, Any]:
    """Builds a normalizer that replaces `pattern`, a "String" or a "Regex", by `content`."""
    return {"type": "Replace", "pattern": {pattern_type: pattern}, "content": content}


def bert_normalizer(lower_case: bool, strip_accents: bool | None = None) -> dict[str, Any]:
    """Builds BERT's normalizer. It strips accents if it lower-cases, or as `strip_accents` says."""
    options = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": strip_accents}
    return {"type": "BertNormalizer", **options, "lowercase": lower_case}


def metaspace(scheme: str, is_split: bool = True) -> dict[str, Any]:
    """Builds the pre-tokenizer of `tokenizer.json` that writes spaces as `WORD_START`."""
    step = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": scheme}
    return {**step, "split": is_split}


BERT_WORDS = {"type": "BertPreTokenizer"}
NFC, LOWERCASE = {"type": "NFC"}, {"type": "Lowercase"}
# Lower-casing. `Lowercase` does not produce the final form of sigma, so a replacement precedes it.
LOWER = (replacement(r"(?<=[\p{L}\p{M}])Σ(?![\p{M}]*\p{L})", "ς", "Regex"), LOWERCASE)
# What `BytePairVocabulary.normalized` does to every text.
BYTE_CLEANING = (replacement("\U0010ffff", ""), replacement("\x00", "\ufffd"))
# Steps of `tokenizer.json` that `SentencePieceVocabulary` has: ALBERT's, our own, and Llama's.
FOLDING = (
    replacement("``", '"'),
    replacement("''", '"'),
    {"type": "NFKD"},
    {"type": "StripAccents"},
)
CONTROLS = replacement(r"[\p{Cc}\x{2028}\x{2029}]", " ", "Regex")
NONPRINTING = replacement(r"\p{C}", "", "Regex")
# Groups of steps for `fold_accents`, without `verbatim`, for `remove_nonprinting`, `lower_case`.
STEPS = (FOLDING, (CONTROLS,), (NONPRINTING,), LOWER)
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
SINGLE_SPACES = replacement(" {2,}", " ", "Regex")
WHITE_SPACE = {"type": "WhitespaceSplit"}
# White space that is left after SentencePiece's table of characters (`True`), or without it.
LEFT_SPACES = {True: r"[\x{85}\x{1680}]", False: r"[\s\v\x{85}\pZ]"}
PREPEND = {"type": "Prepend", "prepend": WORD_START}
SPACES = replacement(" ", WORD_START)
# Options of `tokenizer_config.json` that replace those of a step, as in transformers.
OVERRIDES = {
    "BertNormalizer": {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    },
    "ByteLevel": {"add_prefix_space": "add_prefix_space"},
}
