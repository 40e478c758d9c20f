"""Added tokens of a vocabulary that was read, and the proof that its ids are the tokenizer's."""
# ruff: noqa: RUF001 -- the texts contain look-alike characters

import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from macaron_tf.errors import UserError, first_line
from macaron_tf.hub.tokenizers.folder import PYTHON, Tokenizer
from macaron_tf.text import NormalizationConfig, PieceVocabulary, SentencePieceVocabulary
from macaron_tf.text.normalization import normalize_lines

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
    "\n", "\ta\n",
)  # fmt: skip


def finish(vocabulary: _AnyVocabulary, tokenizer: Tokenizer) -> _AnyVocabulary:
    """Sets `vocabulary.added` from the tokenizer's added tokens, and proves the ids."""
    special = vocabulary.special.ids
    vocabulary.added = {n: i for n, i in tokenizer.added.items() if i not in special}
    vocabulary.unnormalized = [name for name in tokenizer.unnormalized if name in vocabulary.added]
    for name, flag in itertools.product(vocabulary.added, ("single_word", "lstrip", "rstrip")):
        if tokenizer.entries.get(name, {}).get(flag):
            raise tokenizer.refusal(f"the added token {name!r} with {flag}=true")
    if tokenizer.model.get("unk_id") not in (None, vocabulary.special.unk):
        raise tokenizer.refusal("an unk_id that is not the id of unk_token")
    names = [name for name in vocabulary.added if name not in vocabulary.unnormalized]
    lines = vocabulary.normalized_lines(names)
    if isinstance(vocabulary, SentencePieceVocabulary):  # it strips lines itself
        lines = normalize_lines(lines, NormalizationConfig(), "")
    for name, normalized in zip(names, lines, strict=True):
        is_stripped = normalized == normalized.strip()
        if is_stripped and (not normalized or name != name.strip()):
            why = f"adds the token {name!r}, but normalization leaves only {normalized!r}"
            raise UserError(f"{tokenizer.directory} {why}: set normalized to false for the token")
    _prove(vocabulary, tokenizer)
    return vocabulary


def is_same(model: Mapping[str, Any], ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Returns whether two rows of ids are equal, or of equal probability in a unigram model.

    Of several splits of equal probability, the libraries choose different ones.
    """
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
    """Compares the ids of about 100 texts with those of `tokenizer.json`, where both are at hand.

    The names of special tokens are plain text in a vocabulary, so no text has them.
    """
    file = tokenizer.directory / "tokenizer.json"
    if "vocab" not in tokenizer.model:
        return
    try:
        import tokenizers
    except ImportError:
        return
    special = {n for n in tokenizer.all_added if tokenizer.entries.get(n, {}).get("special")}
    special -= {*vocabulary.added}
    added = itertools.islice(vocabulary.added, 20)
    texts = [*_TEXTS, *(f"{name} the{name}dog {name}, x {name}{name}\n" for name in added)]
    texts = [text for text in texts if not any(name and name in text for name in special)]
    try:
        theirs = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.tokenizer_json))
        theirs.no_truncation()
        theirs.no_padding()
        found = theirs.encode_batch(texts, add_special_tokens=False)
    except Exception as error:  # the package has no class of its own for a file it cannot read
        why = first_line(error)
        print(f"note: the ids of {file} were not compared, because {why:.200}", file=sys.stderr)
        return
    rows = vocabulary.encode_lines(texts)
    for text, ours, row in zip(texts, rows, found, strict=True):
        if not is_same(tokenizer.model, ours, row.ids):
            why = f"{text!r} has the ids {ours} instead of {row.ids}"
            raise UserError(f"{file} cannot be read, because {why}: load the model by {PYTHON}")
