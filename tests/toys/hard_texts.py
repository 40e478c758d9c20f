"""Texts on which tokenizers, graphs and protocols are likely to disagree."""
# ruff: noqa: RUF001 -- the texts contain look-alike characters

import unicodedata

import numpy as np

# The dozen texts that revealed most of the differences, for tests that run every time.
HARDEST = (
    "",
    " \t ",
    "a\x00b\rc\x85d\u2028e\x1cf\x7f",
    "\u202bשלום\u202c\u200f, مرحبا\u200e!",
    "👩🏽\u200d🚀👨\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈🇩🇪 1\ufe0f\u20e3",
    "\ufefffi\u200b\u200cx\u2060\xad [MASK] <s></s><pad>[SEP]##ing \u2581 ",
    unicodedata.normalize("NFD", "Ångström Tiếng Việt ế") + " \u0301\u0323z\u035c\u0361",
    "漢字かな交じり文。ไทยไม่เว้นวรรค 한국어",
    "𝔐𝕒𝓽𝗵 ﬁ½Ⅷ ẞß İı ΣΑΣ \U000f0000\ue000\ufdd0\U0001fffe\ufffd",
    "\xa0don't\u3000\u2009say: ``1,234.5''\u2019s—\u201cx\u201d  $5+5%",
    "a" * 101 + "\u0301 " + "\U0001f600" * 60,
    "\n\nline\n \r\n<b>&amp;</b>\\n\\u0041%s{}\"'\x1b[0m\n",
)

_HARD = (
    "The old cat saw the red dog.", "A man is riding a bike in Rome, and Ann is not.", " ",
    "\xa0", "\u3000\u3000", "\u200b", "\ufeff", "\u200d\u200d\u200d", "\x00",
    "\x00\x00 \x01\x02\x03", "\x7f\x80\x9f", "\x0b\x0c", "\x1c\x1d\x1e\x1f", "\u2028\u2029",
    "a\u2028b\u2029c", "\x85", "a\x85b", "\r", "one\rtwo\r\nthree", "\n", "a\nb\n\nc\n",
    "x\x0by\x0cz", ".", "...", "?!?!", "-", "\u2014", "''", "``", "\"\"", "`", "\\", "\\\\n",
    "/", "%", "%s %d", "{0}", "$&", "\\1", "[MASK]", "[mask]", "[CLS] a [SEP] b [PAD] [UNK]",
    "a[MASK]b [MASK][MASK] .", "<s>", "</s>", "<pad>", "<unk>", "<mask> <s> x </s>",
    "<S> a </S>", "<UNK>", "##", "##ing", "## ing ##", "\u2581", "\u2581\u2581a\u2581 b",
    "</w>", "a</w> b</w>", "<extra_id_0> x <extra_id_1>", "<0x41><0xFF>",
    "\u0120the\u0120cat\u010a", "<p class=\"x\">Hello &nbsp;<b>bold</b>&lt;</p>",
    "<!-- x --><script>alert('1')</script>", "https://www.example.com/a?b=c&d=%20#e",
    "me@example.com", "C:\\dir\\file.txt", "~/.x/*.py", "0", "-1", "1e400", "nan",
    "NaN inf -Infinity", "null", "true", "007", "3.14159265358979", "1,234,567.89",
    "١٢٣ ४५६ 七八九", "½ ⅓ Ⅷ ⅻ ² ₃ ①", "{\"b64\": \"AAAA\"}", "[1, [2]]", "None",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
    "السَّلَامُ عَلَيْكُمْ", "\u202eabc\u202c def", "\u2066x\u2067y\u2069\u2069",
    "\u200fa\u200eb\u061c", "عربي English עברית 123", "ﷺ ﷽ ﻻ", "نمی\u200cخواهم", "👍", "👍🏿",
    "👩\u200d❤\ufe0f\u200d💋\u200d👨", "🇫🇷🇯🇵🇦", "#\ufe0f\u20e3", "☺︎☺️",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "e\u0301", "\u00e9",
    "\u0301", "\u0301a", "a" + "\u0301" * 40, "Z͑ͫ̓a̴l̵g̶o̷", "q\u0323\u0307", "q\u0307\u0323",
    "\u1e69", "가", "\u1100\u1161", "Å Å Å", "ﬁn ﬂow ﬀ", "Straße STRASSE ẞ", "İstanbul ıssız",
    "ΟΔΥΣΣΕΥΣ ς σ Σ", "ǅ ǆ Ǆ", "ŉ ĳ", "漢字", "中文没有空格的句子。", "「日本語」、ー・",
    "ひらがなカタカナﾊﾝｶｸ",
    "한국어 띄어쓰기", "\U00020000\U0002a6df\U00030000", "豈更", "ภาษาไทย", "ກຂຄ", "မြန်မာ",
    "हिन्दी में", "தமிழ்", "বাংলা", "ქართული", "Հայերեն", "ᏣᎳᎩ", "አማርኛ", "ᠮᠣᠩᠭᠣᠯ", "𐍈𐌰", "𒀀𒁀",
    "𝐁𝒐𝓵𝔡 𝕋𝖊𝗑𝚝", "Ｆｕｌｌ　ｗｉｄｔｈ", "ⓒⓘⓡⓒⓛⓔ", "ℌℍℎ™℠", "\ue000\uf8ff", "\U000f0000\U0010fffd",
    "\U0010ffff", "a\U0010ffffb", "\ufdd0\ufffe\uffff", "\ufffd", "a\ufffdb \ufffd", "\u0378",
    "\ufff9a\ufffab\ufffb", "\ufe0f", "\u034f", "\u180e", "\u115f", "\xad", "soft\xadhyphen",
    "wo\u2060rd\ufeffs", "non\u2011breaking a\u202fb c\u2007d", "don't they'll I'd 's 'S can’t",
    "e.g. Dr. Smith's 3.5% U.S.A.", "a  b   c    d", " lead", "trail ", "\ttab", "a" * 100,
    "a" * 101, "\u00e9" * 101, "e\u0301" * 101, "x" * 400, "字" * 130,
    "Donaudampfschifffahrtsgesellschaftskapitän" * 4, "ab-" * 60, "🙂" * 101, "aaaa bbbb " * 12,
    "the " * 40, "\u0e01" * 120,
)  # fmt: skip
_SCRIPTS = (
    (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF),
    (0x590, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE5B), (0x1100, 0x11FF),
    (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2190, 0x22FF), (0x3000, 0x30FF), (0x4E00, 0x4FFF),
    (0xAC00, 0xAD00), (0xFB00, 0xFDFF), (0xFE00, 0xFFFD), (0x1D400, 0x1D4FF),
    (0x1F300, 0x1F6FF), (0x0, 0x1F),
)  # fmt: skip


def _drawn(rng: np.random.Generator) -> str:
    """Returns 1 to 11 random words, each of up to 8 characters from one range of `_SCRIPTS`."""
    words = []
    for _ in range(rng.integers(1, 12)):
        low, high = _SCRIPTS[rng.integers(len(_SCRIPTS))]
        codes = rng.integers(low, high + 1, rng.integers(1, 9))
        words.append("".join(map(chr, codes)))
    return " ".join(words)


def hard_texts(count: int = 200, seed: int = 1) -> list[str]:
    """Returns `count` distinct texts.

    The list begins with `HARDEST`, two texts of 10,000 characters and `_HARD`. Random texts fill
    the rest.
    """
    rng = np.random.default_rng(seed)
    long = ["the old cat saw 😀 漢字 é\u0301, " * 500, "aé漢😀" * 250 + "theoldcat" * 1_000]
    texts = dict.fromkeys([*HARDEST, *(text[:10_000] for text in long), *_HARD])
    while len(texts) < count:
        texts[_drawn(rng)] = None
    return list(texts)[:count]
