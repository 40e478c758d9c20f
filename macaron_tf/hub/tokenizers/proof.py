"""Added tokens of a vocabulary that was read, and the proof that its ids are the tokenizer's."""
# ruff: noqa: RUF001 -- the texts contain look-alike characters

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from macaron_tf.errors import first_line
from macaron_tf.hub.tokenizers.folder import Tokenizer
from macaron_tf.text import PieceVocabulary

_AnyVocabulary = TypeVar("_AnyVocabulary", bound=PieceVocabulary)
# Texts on which two tokenizers are likely to differ: white space, line ends, control characters,
# digits, contractions, punctuation, accents and their forms, compatibility characters, scripts. No
# text has a run of one character or of combining marks, where SentencePiece itself and the package
# tokenizers differ, or U+0000 and U+10FFFF, which our graphs replace.
_TEXTS = (
    "", "a", "The quick brown fox jumped over the lazy dog.", " lead", "trail ",
    "two  spaces   and", "   ", "a\tb\t\tc", "\tab", "line\nend", "a\n\nb\n", "a \n b",
    "one\r\ntwo", "\n \n  x", "a\u00a0b", "a\u3000b \u2003c\x85d", "x\x0by\x0cz", "a\x07b\x1bc\x7f",
    "a\u200bb\u200dc\ufeff", "soft\xadhyphen", "0", "7 77", "12345678 90",
    "3.14159, 1,234,567.89", "2024-11-29T12:30", "a1b22c333", "$5+5% = #1", "№ 5 ¼ ½ Ⅷ ² ①",
    "don't they'll I'd we're I've I'm he's", "DON'T THEY'LL I'M", "'s 't ''s", "can’t it’s",
    "'single' \"double\"", "``Quotes''", "“curly” ‘single’ «guillemets»", "(a) [b] {c} <d>",
    "a-b_c/d\\e|f", "a,b;c:d.e!f?g", "...", "?!?!", "-- --- — –",
    "https://www.example.com/a?b=c&d=%20#e", "me@example.com", "C:\\dir\\file.txt",
    "x += y[i]; // z", "def f(x):\n    return x\n", "<b>&amp;</b>", "UPPER lower MiXeD camelCase",
    "café naïve Ångström", "cafe\u0301 e\u0301", "Straße ẞ", "İstanbul ıssız", "ǅ ŉ ĳ",
    "ﬁn ﬂow ﬀ", "ｆｕｌｌ Ｗｉｄｔｈ", "𝔐𝕒𝓽", "ℌ ™ ℠ ©", "ΟΔΟΣ άλφα", "Привет, мир",
    "Українська їжа", "שלום עולם", "مرحبا بالعالم", "हिन्दी में", "বাংলা", "தமிழ்", "ภาษาไทย",
    "ქართული", "Հայերեն", "አማርኛ", "漢字かな交じり文。", "中文没有空格的句子，对吗？",
    "「日本語」、ー・", "한국어 띄어쓰기", "カタカナﾊﾝｶｸ", "日本 and Tokyo", "👍",
    "👍🏿 👩\u200d🚀", "🇫🇷🇯🇵", "a😀b", "☺ ☃ ★", "→ ≤ ∞ ∑", 
    "##ing ## a##b", "_under_ __score__", "- — –",
    "".join(map(chr, range(97, 123))) * 4, "Donaudampfschifffahrtsgesellschaft",
    "pneumonoultramicroscopicsilicovolcanoconiosis", "e.g. Dr. Smith's 3.5% U.S.A.",
    "Hello,World", "hello , world !", "i.e., (see §3.2)", "Zürich–Genève", "xyz\n", "  \n", "a  ",
    "\n", "\ta\n", "a\ue0f0b \ue0f0",
)  # fmt: skip

# Texts without a run of one character, in scripts whose letters no version of Unicode changes.
_PLAIN = re.compile(r"(?!.*(.)\1\1)[ -~À-ʯА-я]+")


def finish(vocabulary: _AnyVocabulary, tokenizer: Tokenizer, role: str) -> _AnyVocabulary:
    """Sets `vocabulary.added` from the tokenizer's added tokens, and proves ids and template."""
    special = vocabulary.special.ids
    vocabulary.added = {n: i for n, i in tokenizer.added.items() if i not in special}
    vocabulary.unnormalized = [name for name in tokenizer.unnormalized if name in vocabulary.added]
    names = [name for name in vocabulary.added if name not in vocabulary.unnormalized]
    if not all(vocabulary.normalized_lines(names)):  # at which the package breaks off
        raise tokenizer.refusal("an added token that normalization removes")
    if tokenizer.package:
        _prove(vocabulary, tokenizer)
    if tokenizer.frame:
        _check_frame(vocabulary, tokenizer, role)
    return vocabulary


def _check_frame(vocabulary: PieceVocabulary, tokenizer: Tokenizer, role: str) -> None:
    """Refuses a template with other special tokens than a model of this role has."""
    before, between, after = tokenizer.frame
    start, end = vocabulary.special.begin, vocabulary.special.end
    starts, ends = ([], [start]), ([] if role == "language" else [end],)
    if role == "encoder":
        starts, ends = ([[]], [[end, start]]) if vocabulary.cls_last else ([[start]], [[end]])
    if before not in starts or after not in ends or (role == "encoder" and {*between} != {end}):
        template = [*before, "A", *between, "B", *after]
        names = (n if n in ("A", "B") else tokenizer.package.id_to_token(n) for n in template)
        raise tokenizer.refusal(f"the template {' '.join(names)}")


def is_same(model: Mapping[str, Any], ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Returns whether two rows of ids are equal, or equally probable in a unigram model."""
    if list(ours) == list(theirs):
        return True
    if model.get("type") != "Unigram":
        return False
    pieces = dict(enumerate(model["vocab"]))
    rows = [[pieces.get(n, (str(n), 0.0)) for n in row] for row in (ours, theirs)]
    texts = ["".join(piece for piece, _ in row) for row in rows]
    scores = [math.fsum(score for _, score in row) for row in rows]
    return texts[0] == texts[1] and math.isclose(*scores, rel_tol=1e-6)


def _prove(vocabulary: PieceVocabulary, tokenizer: Tokenizer) -> None:
    """Compares the ids of up to 1,100 texts with those of `tokenizer.json`.

    The names of special tokens are plain text in a vocabulary, so no text has them.
    """
    special = {n for n in tokenizer.all_added if tokenizer.entries.get(n, {}).get("special")}
    special -= {*vocabulary.added}
    texts = [f"{name} the{name}dog {name}, x {name}{name}\n" for name in vocabulary.added]
    ids = np.linspace(0, vocabulary.pieces - 1, 4096, dtype=int).reshape(-1, 8)
    words = vocabulary.decode_lines([*ids[:, :1], *ids])  # of the vocabulary, alone and in rows
    texts += [*_TEXTS, *filter(_PLAIN.fullmatch, words)]
    texts = [text for text in texts if not any(name and name in text for name in special)]
    try:
        found = tokenizer.package.encode_batch(texts, add_special_tokens=False)
    except Exception as error:  # the package has no class of its own for this error
        raise tokenizer.refusal(f"an error for a text ({first_line(error):.200})") from error
    rows = vocabulary.encode_lines(texts)
    for text, ours, row in zip(texts, rows, found, strict=True):
        if not is_same(tokenizer.model, ours, row.ids):
            raise tokenizer.refusal(f"the ids {row.ids} for {text!r}, not {ours}")
