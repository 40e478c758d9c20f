"""Tests of every vocabulary type in graphs and in Python: files, hashes, offsets and pairs."""

import functools
import json
import re
import unicodedata
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.hub.tokenizers.writing import tokenizer_files
from macaron_tf.text import (
    BytePairVocabulary,
    CharacterPairVocabulary,
    NormalizationConfig,
    PairVocabulary,
    PieceVocabulary,
    SentencePieceVocabulary,
    TextVocabulary,
    WordPieceVocabulary,
    check_vocabulary,
    load_encoder_vocabulary,
)
from macaron_tf.text.base import draw_sample
from macaron_tf.text.wordpiece import clean
from macaron_tf.text.words import CharacterWords
from tests import ram_paths
from tests.harness import refuses
from tests.toys.hard_texts import HARDEST, hard_texts
from tests.toys.vocabularies import MERGES, UNITS, train_bytes, train_joint

LINES = ["the cat sat on the mat .", "a naïve café, 日本 !", "two  spaces", "it's the cat's"] * 8
LOWER = NormalizationConfig(lower_case=True)
MAKERS = {
    "wordpiece": lambda: WordPieceVocabulary.train(LINES, 60),
    "sentencepiece": lambda: SentencePieceVocabulary.train(LINES, 60, character_coverage=1.0),
    "translation": lambda: train_joint([(line, line) for line in LINES], 60),
    "byte_fallback": lambda: SentencePieceVocabulary(train_bytes(LINES, 300)),
    "byte_bpe": lambda: BytePairVocabulary.train(LINES, 300),
    "character_bpe": lambda: CharacterPairVocabulary(UNITS, MERGES),
    "pair": lambda: PairVocabulary(*[MAKERS["wordpiece"]()] * 2, LOWER, ("fr", "en")),
}


@pytest.fixture(scope="module", params=MAKERS)
def maker(request) -> Callable[[], PieceVocabulary]:
    return MAKERS[request.param]


@pytest.fixture(scope="module")
def vocabulary(maker) -> PieceVocabulary:
    return maker()


def test_the_same_lines_give_the_same_vocabulary(maker, vocabulary):
    assert maker().hash == vocabulary.hash


def test_the_graph_equals_the_outside(vocabulary):
    text = [*LINES, *HARDEST, "x" * 20_000]
    rows = vocabulary.encode_lines(text)
    in_graph = tf.function(vocabulary.encode)(tf.constant(text))
    assert in_graph.dtype == tf.int32 and in_graph.to_list() == rows
    assert vocabulary.encode(tf.constant(text)).to_list() == rows
    ids = tf.ragged.constant(rows, dtype=tf.int32)
    decoded = [line.decode() for line in vocabulary.decode(ids).numpy()]
    assert decoded == vocabulary.decode_lines(rows)


def test_no_text_gives_no_ids(vocabulary):
    assert vocabulary.encode(tf.constant([], tf.string)).to_list() == []
    assert vocabulary.encode(tf.constant(["", ""])).to_list() == [[], []]
    assert vocabulary.encode_lines([]) == [] and vocabulary.decode_lines([]) == []
    assert vocabulary.decode(tf.zeros([0, 4], tf.int32)).shape == [0]
    (ids,) = vocabulary.encode_lines(["[MASK] [CLS] <pad> </s> [PAD] [SEP]x"])
    assert not set(ids) & (set(vocabulary.special.ids) - {vocabulary.special.unk})


def test_a_row_ends_at_its_first_sep_and_special_ids_add_nothing(vocabulary):
    line = {"character_bpe": "hello"}.get(vocabulary.kind, "the cat")
    (ids,) = vocabulary.encode_lines([line])
    begin, end, beyond = vocabulary.special.begin, vocabulary.special.end, vocabulary.size
    unknown, first = vocabulary.special.unk, ids[0]
    rows = [
        [begin, *ids, end, first, first],
        [*ids[:1], unknown, 0, *ids[1:], end],
        [*ids[:1], beyond - 1, 10**6, -1, *ids[1:]],  # a padding row, and out of range
        [end, *ids],
        [0],
    ]
    if vocabulary.pieces == vocabulary.size:
        rows[2].remove(beyond - 1)
    rows = tf.ragged.constant(rows, dtype=tf.int32).to_tensor(0)
    expected = [line, line, line, "", ""]
    assert vocabulary.decode_lines(rows.numpy()) == expected
    assert [text.decode() for text in vocabulary.decode(rows).numpy()] == expected


def test_first_use_inside_a_graph(vocabulary):
    fresh = type(vocabulary).restore(vocabulary.contents(), vocabulary.settings())
    dataset = tf.data.Dataset.from_tensors(["the man"]).map(lambda x: fresh.encode(x).to_tensor())
    assert next(iter(dataset)).numpy()[0].tolist() == fresh.encode_lines(["the man"])[0]


def test_files_and_hash(vocabulary, tmp_path):
    folder = tmp_path / "new" / "folder"
    vocabulary.save(folder)
    names = sorted(["vocabulary.json", vocabulary.contents_name])
    assert sorted(path.name for path in folder.iterdir()) == names
    loaded = PieceVocabulary.load(folder)
    assert type(loaded) is type(vocabulary) and loaded.hash == vocabulary.hash
    assert loaded.settings() == vocabulary.settings()
    assert loaded.encode_lines(LINES) == vocabulary.encode_lines(LINES)
    (tmp_path / "file").write_text("in the way")
    refuses("cannot write", vocabulary.save, tmp_path / "file")
    bucket = ram_paths.folder(tmp_path)
    vocabulary.save(f"{bucket}/vocabulary")
    assert PieceVocabulary.load(f"{bucket}/vocabulary").hash == vocabulary.hash
    refuses(r"no vocabulary in ram://", PieceVocabulary.load, f"{bucket}/nothing")
    check_vocabulary(vocabulary.hash, vocabulary.hash, "run")
    other, message = "0123456789abcdef", r"between RUN/checkpoint \(hash 0123456789ab\)"
    refuses(message, check_vocabulary, other, vocabulary.hash, "RUN/checkpoint")


def test_the_hash_covers_every_switch(vocabulary):
    settings = vocabulary.settings()
    for name in (name for name, value in settings.items() if isinstance(value, bool)):
        flipped = {**settings, name: not settings[name]}
        changed = type(vocabulary).restore(vocabulary.contents(), flipped)
        assert changed.settings() == flipped and changed.hash != vocabulary.hash


def test_damage_is_refused(vocabulary, tmp_path):
    missing = r"no vocabulary in .*, because vocabulary\.json is missing"
    refuses(missing, PieceVocabulary.load, tmp_path)
    vocabulary.save(tmp_path)
    record, own = tmp_path / "vocabulary.json", tmp_path / vocabulary.contents_name
    whole = record.read_text()
    changed = {**json.loads(whole), "hash": "0123456789abcdef"}
    for content, message in (
        (json.dumps(changed), r"have the hash \w+, not the saved 0123456789ab:"),
        (whole.replace('"settings"', '"other"'), r"vocabulary\.json is damaged"),
        (whole.replace(f'"{vocabulary.kind}"', '"runes"'), "of kind 'runes', not "),
    ):
        record.write_text(content)
        refuses(message, PieceVocabulary.load, tmp_path)
    record.write_text(whole)
    own.write_bytes(b"\xff[]")
    reason = "(the file|line 1 is not|the Sent)"
    refuses(rf"cannot read .*{own.name}: {reason}", PieceVocabulary.load, tmp_path)
    own.unlink()
    refuses(rf"cannot read .*{own.name}", PieceVocabulary.load, tmp_path)


def test_kinds_are_told_apart(tmp_path):
    MAKERS["sentencepiece"]().save(tmp_path)
    message = "'sentencepiece', not wordpiece"
    refuses(message, WordPieceVocabulary.load, tmp_path)
    assert load_encoder_vocabulary(tmp_path).special.mask == 4
    MAKERS["translation"]().save(tmp_path)
    refuses(r"has no \[MASK\]", load_encoder_vocabulary, tmp_path)


@pytest.mark.parametrize(
    ("train", "units"),
    [
        (WordPieceVocabulary.train, r"characters and the special pieces need \d+"),
        (SentencePieceVocabulary.train, r"characters and the special pieces need \d+"),
        (BytePairVocabulary.train, "bytes and the special pieces need 261"),
    ],
)
def test_training_errors_are_sentences(train, units):
    refuses(r"too large for this text, which gives at most \d+", train, LINES, 5000)
    refuses(f"too small, because .*{units}", train, LINES, 10)
    for nothing in ([], ["", "  "]):
        refuses("no text to train a vocabulary on", train, nothing, 300)


@pytest.mark.parametrize(
    ("train", "size", "knows"),
    [
        (functools.partial(WordPieceVocabulary.train, max_characters=3), 12, False),
        (functools.partial(SentencePieceVocabulary.train, character_coverage=0.99), 10, False),
        (functools.partial(SentencePieceVocabulary.train, masks=False), 10, True),
        (BytePairVocabulary.train, 262, True),
    ],
)
def test_training_says_how_much_of_the_text_is_unknown(train, size, knows, capsys):
    lines = ["ab c"] * 60 + ["ab \u2603 c"] * (not knows)
    vocabulary = train(lines, size)
    share = np.mean(vocabulary.encode_rows(lines).ids == vocabulary.special.unk)
    assert (share == 0) == knows
    said = f"unknown to the vocabulary: {share:.3%} of the tokens in {len(lines)} lines\n"
    assert capsys.readouterr().out == said
    # If there are more lines, every second line is counted, up to the last lines.
    more = ["ab c"] * 10_000 + lines * 20
    train(more, size)
    [share, count] = re.findall(r"[\d.,]+", capsys.readouterr().out)
    assert float(share) > 0 or knows
    assert int(count.replace(",", "")) == -(-len(more) // 2)


def test_bytes_joined_are_the_decoded_line(vocabulary):
    detokenizer = vocabulary.detokenizer
    assert len(detokenizer.token_bytes) == vocabulary.size
    assert not any(detokenizer.token_bytes[i] for i in vocabulary.special.ids)
    for ids in vocabulary.encode_lines(LINES[:4]):
        whole = detokenizer([vocabulary.special.begin, *ids, vocabulary.special.end])
        assert whole.removeprefix(" ") == vocabulary.decode_lines([ids])[0]
        # In two halves; the second half continues the first half.
        halves = [detokenizer(part) for part in (ids[:3], ids[3:])]
        if "\ufffd" not in halves[0] and not vocabulary.spaces_after:
            assert "".join(halves) == whole


def test_a_stream_and_a_graph_say_the_same(vocabulary):
    """A streaming detokenizer and a graph give the same text, even for random ids."""
    detokenizer = vocabulary.detokenizer
    rng = np.random.default_rng(0)
    rows = rng.integers(0, vocabulary.size, (40, 25)).astype(np.int32)
    ids = vocabulary.encode_lines(LINES[1:2])[0]
    rows[0, : len(ids)] = ids
    in_graph = tf.function(detokenizer.in_graph)(rows).numpy()
    for row, found in zip(rows, in_graph, strict=True):
        stream = detokenizer.stream()
        text = "".join(stream.add(i) for i in row) + stream.end()
        assert text == detokenizer(row) == found.decode()


GERMAN = ["Ein HUND läuft", "", "zwei  Hunde  laufen .", "ein Überhund"]


@pytest.fixture(scope="module")
def pair() -> PairVocabulary:
    """Returns a vocabulary pair: SentencePiece for English and cased WordPiece for German."""
    english = ["a dog runs", "two dogs run ."] * 9
    german = ["ein hund läuft", "zwei hunde laufen .", "überhund"] * 9
    source = SentencePieceVocabulary.train(english, 40, character_coverage=1.0)
    target = WordPieceVocabulary.train(german, 40, lower_case=False)
    return PairVocabulary(source, target, LOWER, ("en", "de"))


def test_each_language_of_a_pair_has_its_side(pair):
    [first] = pair.encode_lines(["a dog"])
    assert [first] == pair.source.encode_lines(["a dog"]) != pair.target.encode_lines(["a dog"])
    assert pair.encode_lines(["EIN hund"], "de") == pair.target.encode_lines(["ein hund"])
    assert pair.pieces == pair.target.pieces
    rows = pair.encode_lines(GERMAN, "de")
    assert pair.encode(tf.constant(GERMAN), "de").to_list() == rows
    assert pair.decode_lines(rows) == ["ein hund läuft", "", "zwei hunde laufen .", "ein überhund"]


def test_the_hash_of_a_pair_covers_its_settings(pair):
    a, b = pair.source, pair.target
    others = [(b, b, LOWER), (a, b, LOWER, ("en", "fr")), (a, b, NormalizationConfig())]
    assert len({pair.hash, *(PairVocabulary(*other).hash for other in others)}) == 4


def test_two_sides_have_their_special_tokens_at_the_same_ids(pair):
    words = WordPieceVocabulary(["[PAD]", "a", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    refuses("special tokens at different ids", PairVocabulary, pair.source, words)
    assert PairVocabulary(words, words).special.end == 4
    assert TextVocabulary(words, 9, 9, starts=True).encode_lines(["a"]) == [[3, 1]]


def test_lines_of_a_text_vocabulary_leave_room_for_eos(pair):
    texts = TextVocabulary(pair.source, 4, 3, starts=True)
    [row] = pair.source.encode_lines(["a dog runs"])
    assert len(row) >= 3
    assert texts.encode_lines(["a dog runs", ""]) == [[2, *row[:2]], []]
    assert texts.encode_lines(["a dog runs"], "target") == [[2, row[0]]]
    assert texts.decode_lines([row]) == ["a dog runs"]


def located(vocabulary, texts):
    """Returns, for each text, a list of (piece id, text that the piece covers)."""
    found = vocabulary.encode_with_offsets(tf.constant(texts))
    rows = (part.to_list() for part in (found.ids, found.starts, found.ends))
    return [
        [(i, text[a:b]) for i, a, b in zip(*places, strict=True)]
        for text, *places in zip(texts, *rows, strict=True)
    ]


ALL = hard_texts()


@functools.cache
def trained(kind: str) -> PieceVocabulary:
    """Returns a vocabulary of the hard texts, which lacks some of their characters."""
    if kind in ("bpe", "unigram"):
        options = {"character_coverage": 0.98, "model_type": kind}
        return SentencePieceVocabulary.train(ALL, 900 if kind == "bpe" else 250, **options)
    if kind == "bytes":
        return BytePairVocabulary.train(ALL, 400)
    return WordPieceVocabulary.train(ALL, 700, lower_case=kind == "uncased", max_characters=250)


def with_added(vocabulary: PieceVocabulary) -> PieceVocabulary:
    vocabulary.added = {"[MASK]": 10, "\n": 11, "dog": 12, "É": 13}
    vocabulary.unnormalized = ["\n", "dog"]
    return vocabulary


def byte_pairs(**options) -> BytePairVocabulary:
    return BytePairVocabulary(trained("bytes").units, trained("bytes").merges, **options)


def pieces(kind: str, lower_case: bool, **options) -> SentencePieceVocabulary:
    config = NormalizationConfig(lower_case=lower_case, remove_nonprinting=lower_case)
    return SentencePieceVocabulary(trained(kind).proto, config, **options)


KINDS = {
    "uncased": lambda: trained("uncased"),
    "cased": lambda: trained("cased"),
    "cased, added": lambda: with_added(WordPieceVocabulary(trained("cased").words, False)),
    "gpt2": byte_pairs,
    "gpt2, added": lambda: with_added(byte_pairs()),
    "lower, prefix": lambda: byte_pairs(lower_case=True, add_prefix_space=True),
    "composed": lambda: byte_pairs(composed=True),
    "llama3": lambda: byte_pairs(pattern="llama3", lower_case=True, composed=True),
    "unigram": lambda: pieces("unigram", False),
    "albert": lambda: pieces("unigram", True, fold_accents=True),
    "bpe, added": lambda: with_added(pieces("bpe", True, fold_accents=True)),
    "llama": lambda: pieces("bpe", False, verbatim=True),
    "words": lambda: CharacterWords(20),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_ways_to_encode_give_the_same_ids(kind):
    """In Python, in a graph and with offsets; each piece lies within its text, in order."""
    vocabulary = KINDS[kind]()
    rows = vocabulary.encode_lines(ALL)
    found = vocabulary.encode_with_offsets(tf.constant(ALL))
    assert found.ids.to_list() == rows
    if kind != "words":  # a graph numbers its words itself
        assert tf.function(vocabulary.encode)(tf.constant(ALL)).to_list() == rows
    for text, *places in zip(ALL, found.starts.to_list(), found.ends.to_list(), strict=True):
        assert all(0 <= start < end <= len(text) for start, end in zip(*places, strict=True))
        for ends in places:
            assert ends == sorted(ends)


@pytest.mark.parametrize(
    "kind", ["uncased", "cased", "gpt2", "lower, prefix", "composed", "unigram", "albert"]
)
def test_offsets_are_those_of_the_tokenizers_library(kind):
    """Pieces lie where the tokenizers library puts them, in texts without combining marks."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = KINDS[kind]()
    contents = tokenizer_files(vocabulary)["tokenizer.json"].decode()
    theirs = tokenizers.Tokenizer.from_str(contents)
    compared = 0
    for text, row in zip(ALL, located(vocabulary, ALL), strict=True):
        expected = theirs.encode(text, add_special_tokens=False)
        has_marks = any(unicodedata.category(c)[0] == "M" for c in text)
        has_marks |= unicodedata.normalize("NFKC", text) != text
        # The library puts two quotation marks on the second of them.
        odd = any(mark in text for mark in ("▁", "``", "''"))
        if has_marks or odd or [i for i, _ in row] != expected.ids:
            continue
        places = [text[a:b].strip() for a, b in expected.offsets]
        assert [piece.strip() for _, piece in row] == places, text
        compared += 1
    assert compared > 80


@pytest.mark.parametrize("kind", ["gpt2", "lower, prefix"])
def test_offsets_pass_over_characters_that_are_replaced_or_removed(kind):
    [row] = located(KINDS[kind](), ["a\x00\U0010ffffb ein"])
    covered = dict.fromkeys(piece.strip() for _, piece in row)  # bytes of a character are equal
    assert "".join(covered) == "a\x00bein"


def test_wordpieces_lie_on_the_text_they_were_made_of():
    vocabulary = KINDS["uncased"]()
    known = [one for row in located(vocabulary, ALL) for one in row]
    known = [(i, text) for i, text in known if i != vocabulary.special.unk]
    cleaned = clean(tf.constant([text for _, text in known]), True).numpy()
    words = [vocabulary.words[i].removeprefix("##") for i, _ in known]
    assert all(word in text.decode() for word, text in zip(words, cleaned, strict=True))
    [row] = located(vocabulary, ["cafe\u0301 nai\u0308ve"])
    pieces = [text for _, text in row]
    assert pieces[-1] == "e" and "e\u0301" in pieces
    assert "".join(pieces) == "cafe\u0301nai\u0308ve"


def test_two_quotation_marks_are_one_piece_on_both():
    vocabulary = KINDS["albert"]()
    text = "He said ``no'' and ```yes'''"
    [row] = located(vocabulary, [text])
    assert [piece for _, piece in row if piece[0] in "`'"] == ["``", "''", "``", "`", "''", "'"]
    assert [i for i, _ in row] == vocabulary.encode_lines(['He said "no" and "`yes"\''])[0]


def test_a_sample_is_drawn_in_one_pass():
    def sample(count, size, seed=0):
        return list(draw_sample(iter(range(count)), size, seed))

    assert sample(9, 9) == sample(9, 100) == list(range(9)) and sample(0, 5) == []
    assert sample(20_000, 500) == sample(20_000, 500) != sample(20_000, 500, 1)
    assert len({*sample(20_000, 500)}) == 500
    counts = np.bincount(np.concatenate([sample(20, 5, seed) for seed in range(2000)]))
    # 500 are expected for each, with a standard deviation of 19.
    assert abs(counts - 500).max() < 80
