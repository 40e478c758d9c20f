"""Vocabularies read from tokenizer files give the ids of the transformers library."""

import collections
import functools
import json
import pathlib
import re

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    AddedToken,
    ByteLevelBPETokenizer,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.errors import UserError
from macaron_tf.hub.tokenizers.reading import (
    read_language_vocabulary,
    read_vocabulary,
    read_xlm_vocabulary,
)
from macaron_tf.hub.tokenizers.writing import language_tokenizer, tokenizer_files
from macaron_tf.tasks.filling import Filling
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.normalization import moses_words
from tests.harness import refuses
from tests.toys.hard_texts import hard_texts
from tests.toys.marks import slow
from tests.toys.vocabularies import (
    TRAINING,
    XLNET,
    byte_level_tokenizer,
    byte_pair_tokenizer,
    train_bytes,
    train_sentencepiece,
)

read_t5_vocabulary = functools.partial(read_vocabulary, role="t5")
TEXTS = [
    *TRAINING[:3],
    "",
    "Fox  fox\tDOG",
    " ``Quotes'' and 'more' Straße ﬁne ① café, naïve",
    "[MASK] </s> are text",
    "日本語 xyz🙂 the",
]


ALBERT = {
    "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}  # fmt: skip


def check(directory: pathlib.Path, tokenizer) -> None:
    """Checks that the vocabulary in a directory gives the same ids as `tokenizer`.

    The ids include the special ids and pairs of texts.
    """
    vocabulary = read_vocabulary(directory)
    special = ("pad", "unk", "cls", "sep", "mask")
    theirs = tuple(getattr(tokenizer, f"{name}_token_id") for name in special)
    assert vocabulary.special.ids == theirs
    assert vocabulary.pieces == vocabulary.special.rows == len(tokenizer)
    # Hugging Face parses special tokens in a text; our vocabulary treats their names as text.
    texts = [text for text in TEXTS if "[MASK]" not in text]
    expected = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert vocabulary.encode_lines(texts) == expected
    # A pair row has as many separators as Hugging Face's pair row.
    a, b = texts[0], texts[1]
    row = encode_pairs(vocabulary, tf.constant([a]), tf.constant([b]), 512)["token_ids"][0]
    assert row.numpy().tolist() == tokenizer(a, b)["input_ids"]
    forged = vocabulary.encode_lines(["[MASK] </s> <mask> [SEP] <s>"])[0]
    assert not {*vocabulary.special.ids} - {vocabulary.special.unk} & set(forged)


@pytest.mark.parametrize(
    ("system", "options"),
    [("Roberta", {}), ("Roberta", {"add_prefix_space": True}), ("Bart", {})],
)
@pytest.mark.parametrize("files", ["its own", "tokenizer.json"])
def test_byte_pairs(system, files, options, tmp_path):
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, f"{system}Tokenizer")
    tokenizer = byte_pair_tokenizer(kind, files, tmp_path, **options)
    check(tmp_path, tokenizer)
    vocabulary = read_vocabulary(tmp_path)
    [row], special = vocabulary.encode_lines([TEXTS[0]]), vocabulary.special
    assert [special.begin, *row, special.end] == tokenizer(TEXTS[0])["input_ids"]
    names = tokenizer.all_special_tokens
    hard = [text for text in hard_texts() if not any(name in text for name in names)]
    hard = [*vocabulary.normalized_lines(hard)]  # which replaces U+0000 and removes U+10FFFF
    expected = tokenizer(hard, add_special_tokens=False)["input_ids"]
    assert vocabulary.encode_lines(hard) == expected and len(hard) > 180


def write_xlm(lines: list[list[str]], directory: pathlib.Path, **options) -> None:
    """Writes XLM's tokenizer files in Hugging Face format, with merges trained on `lines` of words.

    Some merged strings and some letters are not in the vocabulary.
    """
    suffix = {"end_of_word_suffix": "</w>"}
    learner = Tokenizer(models.BPE(**suffix))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False, **suffix)
    learner.train_from_iterator(map(" ".join, lines[::2]), trainer)
    found = json.loads(learner.to_str())["model"]
    used = collections.Counter(
        piece for words in lines[::2] for piece in learner.encode(" ".join(words)).tokens
    )
    pieces = [piece for piece, _ in used.most_common(len(used) - 20)]
    special = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]
    assert set(found["vocab"]) - set(pieces)
    numbers = {name: number for number, name in enumerate(special + pieces)}
    (directory / "vocab.json").write_text(json.dumps(numbers))
    merges = [" ".join(merge) for merge in found["merges"]]
    (directory / "merges.txt").write_text("".join(f"{merge} 7\n" for merge in merges))
    (directory / "tokenizer_config.json").write_text(json.dumps(options))


def read_side(name: str, code: str, tfds) -> list[str]:
    pairs = read_pairs(f"tfds:multi30k/{name}", "train[:300]", *name.split("-"), tfds)
    return [pair[name.split("-").index(code)] for pair in pairs]


@pytest.mark.parametrize("lower_case", [True, False])
def test_xlms_words_and_codes(lower_case, tmp_path, tfds):
    """Ids agree with XLM's tokenizer in English, German, French and Romanian.

    Some texts are unusual, and Romanian has its own rules.
    """
    transformers = pytest.importorskip("transformers")
    texts = {
        "en": [
            *read_side("de-en", "en", tfds),
            *(text for text in TEXTS if "</s>" not in text),
            "“Odd”… \uff12\uff0c\u00a0\uff05 \u200bzero\ttab don't U.S. $5",
        ],
        "de": read_side("de-en", "de", tfds),
        "fr": [*read_side("fr-en", "fr", tfds), "« L'été » n'a-t-il pas 1 000 €?"],
        "ro": ["Această ţară și oraşul său în înalt."],
    }
    words = [moses_words(text, code, lower_case) for code in texts for text in texts[code]]
    write_xlm(words, tmp_path, do_lowercase_and_remove_accent=lower_case)
    theirs = transformers.XLMTokenizer.from_pretrained(tmp_path)
    vocabulary = read_xlm_vocabulary(tmp_path, tuple(texts))
    names = ("pad", "unk", "bos", "sep", "mask")
    special = tuple(getattr(theirs, f"{name}_token_id") for name in names)
    assert vocabulary.special.ids == special and vocabulary.pieces == len(theirs)
    unknown = 0
    for code, lines in texts.items():
        # Their public method applies English rules to every text.
        cut = [theirs._tokenize(line, lang=code) for line in lines]
        rows = vocabulary.encode_lines(lines, code)
        assert rows == [*map(theirs.convert_tokens_to_ids, cut)]
        unknown += sum(row.count(vocabulary.special.unk) for row in rows)
        back = zip(vocabulary.decode_lines(rows), rows, cut, strict=True)
        for line, row, tokens in back:
            assert vocabulary.special.unk in row or line == theirs.convert_tokens_to_string(tokens)
    assert unknown
    assert vocabulary.encode_lines([texts["en"][0]]) == vocabulary.encode_lines(
        texts["en"][:1], "en"
    )


@pytest.mark.parametrize(
    ("system", "file", "special", "other_case"),
    [
        ("Albert", "spiece.model", ALBERT, {"do_lower_case": False}),
        ("XLNet", "spiece.model", XLNET, {"do_lower_case": True}),
        ("XLMRoberta", "sentencepiece.bpe.model", {}, None),
    ],
)
def test_sentencepieces(system, file, special, other_case, tmp_path):
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, f"{system}Tokenizer")
    (tmp_path / file).write_bytes(train_sentencepiece(**special))
    tokenizer = kind.from_pretrained(tmp_path)
    check(tmp_path, tokenizer)
    tokenizer.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / file).exists()
    check(tmp_path / "saved", tokenizer)
    if other_case:
        vocabulary = read_vocabulary(tmp_path)
        for second in (None, TEXTS[1]):
            rows = None if second is None else tf.constant([second])
            ours = encode_pairs(vocabulary, tf.constant(TEXTS[:1]), rows, 512)["segment_ids"][0]
            theirs = tokenizer(TEXTS[0], second, return_token_type_ids=True)["token_type_ids"]
            assert ours.numpy().tolist() == theirs
        (tmp_path / "saved/tokenizer_config.json").unlink()
        check(tmp_path / "saved", tokenizer)
        other = kind.from_pretrained(tmp_path, **other_case)
        other.save_pretrained(tmp_path / "other")
        check(tmp_path / "other", other)


def test_xlnets_digits_stand_without_their_commas(tmp_path):
    """A comma after digits is a separate piece, as in XLNet's code and `tokenizer.json`."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(train_sentencepiece(**XLNET))
    normal = proto.SentencePiece.NORMAL
    for text in ("1,", "\u25811", "\u25811,", "234", ","):
        if text not in {piece.piece for piece in proto.pieces}:
            proto.pieces.add(piece=text, score=-0.5, type=normal)
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    vocabulary = read_vocabulary(tmp_path)
    names = [proto.pieces[number].piece for number in vocabulary.encode_lines(["1,234"])[0]]
    assert names == ["\u25811", ",", "234"]


@pytest.mark.parametrize("system", ["Albert", "XLNet"])
def test_signs_are_pieces_of_their_own_as_in_sentencepiece(system, tmp_path):
    """Texts with user-defined symbols have SentencePiece's ids, or those of tokenizer.json.

    The transformers library places spaces around these symbols differently.
    """
    transformers = pytest.importorskip("transformers")
    options = {"Albert": ALBERT, "XLNet": XLNET}[system]
    proto = train_sentencepiece(**{**options, "user_defined_symbols": ["(", "€", "<eop>"]})
    (tmp_path / "spiece.model").write_bytes(proto)
    tokenizer = getattr(transformers, f"{system}Tokenizer").from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path / "saved")
    model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    text = ["the dog (and the €-fox) sprang", "(€ ("]
    assert read_vocabulary(tmp_path).encode_lines(text) == model.encode(text)
    rows = read_vocabulary(tmp_path / "saved").encode_lines(text)
    assert rows == tokenizer(text, add_special_tokens=False)["input_ids"] != model.encode(text)


def test_t5s(tmp_path):
    transformers = pytest.importorskip("transformers")
    proto = train_sentencepiece(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (tmp_path / "spiece.model").write_bytes(proto)
    tokenizer = transformers.T5Tokenizer.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved/spiece.model").exists()
    # Hugging Face parses special tokens in a text; our vocabulary treats their names as text.
    texts = [text for text in TEXTS if "</s>" not in text]
    expected = tokenizer(texts)["input_ids"]
    for directory in (tmp_path, tmp_path / "saved"):
        vocabulary = read_t5_vocabulary(directory)
        special = vocabulary.special
        assert (special.pad, special.unk, special.begin, special.end) == (0, 2, 0, 1)
        assert special.mask == vocabulary.pieces == len(tokenizer)  # it has no [MASK]
        rows = vocabulary.encode_lines(texts)
        assert [[*row, special.end] for row in rows] == expected
        graph = tf.function(vocabulary.encode)(tf.constant(texts))
        assert graph.to_list() == rows
        names = [f"<extra_id_{number}>" for number in range(100)]
        assert list(special.sentinels) == tokenizer.convert_tokens_to_ids(names)
        [forged] = vocabulary.encode_lines(["<pad> </s> <extra_id_0>"])
        assert not {special.pad, special.end, *special.sentinels} & set(forged)


def test_added_tokens_of_byte_pairs_and_of_sentencepiece(tmp_path):
    """Added tokens get the ids after the vocabulary file, and are split off before merging."""
    texts = ["the <e1> dog<é>the", "<e1>", "<é> <e1>the "]
    learnt = BytePairVocabulary.train(TRAINING, 300)
    names = ["<s>", "<pad>", "</s>", "<unk>", *learnt.units, "<mask>"]
    numbers = {name: number for number, name in enumerate(names)}
    added = {"<e1>": len(names), "<é>": len(names) + 1}
    (tmp_path / "vocab.json").write_text(json.dumps(numbers))
    (tmp_path / "merges.txt").write_text("\n".join(learnt.merges))
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    files = (str(tmp_path / name) for name in ("vocab.json", "merges.txt"))
    theirs = ByteLevelBPETokenizer(*files)
    theirs.add_tokens([*added])
    vocabulary = read_vocabulary(tmp_path)
    rows = vocabulary.encode_lines(texts)
    assert rows == [theirs.encode(text).ids for text in texts]
    assert vocabulary.decode_lines(rows) == texts
    located = vocabulary.encode_with_offsets(tf.constant(texts))
    places = zip(located.starts.to_list()[0], located.ends.to_list()[0], strict=True)
    assert [text for text in (texts[0][a:b] for a, b in places) if "<" in text] == ["<e1>", "<é>"]
    for file in ("vocab.json", "merges.txt"):
        (tmp_path / file).unlink()
    (tmp_path / "spiece.model").write_bytes(train_sentencepiece(**ALBERT))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<e1>": 75, "<é>": 76}))
    vocabulary = read_vocabulary(tmp_path)
    assert vocabulary.pieces == 77
    rows = vocabulary.encode_lines(texts)
    assert tf.function(vocabulary.encode)(tf.constant(texts)).to_list() == rows
    [the], [dog] = vocabulary.encode_lines(["the"]), vocabulary.encode_lines(["dog"])
    # The second token's accent is folded, like the text's.
    assert rows == [[*the, 75, *dog, 76, *the], [75], [76, 75, *the]]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<e1>": 99}))
    vocabulary = read_vocabulary(tmp_path)
    assert vocabulary.encode_lines(["<e1>the"]) == [[99, *the]] and vocabulary.pieces == 100
    assert vocabulary.decode_lines([[99, *the, 80]]) == ["<e1> the"]  # no token has id 80


def written(kind: str, directory: pathlib.Path, *added: AddedToken) -> Tokenizer:
    """Writes a tokenizer.json with added tokens in the form of a BERT, a GPT-2 or a T5."""
    steps, options = pre_tokenizers.Sequence, {}
    if kind == "bert":
        words = ["a", "b", "c", "##a", "##b", "##c", "the", "cat", ",", "##at"]
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
        model = models.WordPiece({n: i for i, n in enumerate(words)}, unk_token="[UNK]")
        tokenizer, options = Tokenizer(model), {"do_lower_case": True}
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif kind == "gpt2":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({n: i for i, n in enumerate(letters)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(["<|endoftext|>"])
    else:
        proto = train_sentencepiece(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        model = sentencepiece_model_pb2.ModelProto.FromString(proto)
        tokenizer = Tokenizer(models.Unigram([(p.piece, p.score) for p in model.pieces], 2))
        charsmap = model.normalizer_spec.precompiled_charsmap
        tokenizer.normalizer = normalizers.Precompiled(charsmap)
        words = pre_tokenizers.WhitespaceSplit()
        tokenizer.pre_tokenizer = steps([words, pre_tokenizers.Metaspace(prepend_scheme="always")])
        sentinels = [f"<extra_id_{n}>" for n in reversed(range(100))]
        tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", *sentinels])
    tokenizer.add_tokens([*added])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(options))
    return tokenizer


READERS = {
    "bert": read_vocabulary,
    "gpt2": lambda directory: read_language_vocabulary(directory)[0],
    "t5": read_t5_vocabulary,
}
WHITE = ["the cat\nab", "the  cat", " \n\r\n", "c\u200dab\u0301", "", " a\t [X]b [x]\n", "xab cat"]


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("name", ["\n", "\t", " ", "\r\n", "  ", " cat", "\u200d", "\u0301", "[X]"])
@pytest.mark.parametrize("kind", READERS)
def test_added_tokens_of_white_space_or_of_marks(kind, name, normalized, tmp_path):
    """Such tokens get the ids of the tokenizers library, or are refused at load."""
    theirs = written(kind, tmp_path, AddedToken(name, normalized=normalized))
    try:
        vocabulary = READERS[kind](tmp_path)
    except UserError as error:
        assert normalized and kind != "gpt2"
        assert re.search(
            "has (the ids .* for .*, not |an added token that normalization removes)", str(error)
        )
        return
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in WHITE]
    assert theirs.token_to_id(name) in np.concatenate(expected)
    rows = vocabulary.encode_lines(WHITE)
    assert rows == expected
    assert vocabulary.encode_with_offsets(tf.constant(WHITE)).ids.to_list() == rows
    vocabulary.save(tmp_path / "saved")
    assert PieceVocabulary.load(tmp_path / "saved").encode_lines(WHITE) == rows
    if kind == "bert":  # our own files say which tokens are found in raw text
        files = tokenizer_files(vocabulary)
        (tmp_path / "tokenizer.json").write_bytes(files["tokenizer.json"])
        again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert [again.encode(text, add_special_tokens=False).ids for text in WHITE] == expected


@pytest.mark.parametrize("kind", READERS)
def test_an_added_token_without_a_name_is_never_found(kind, tmp_path):
    theirs = written(kind, tmp_path)
    contents = json.loads((tmp_path / "tokenizer.json").read_text())
    token = {"id": theirs.get_vocab_size(), "content": "", "normalized": True, "special": False}
    contents["added_tokens"].append(
        {**token, "single_word": False, "lstrip": False, "rstrip": False}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in WHITE]
    assert READERS[kind](tmp_path).encode_lines(WHITE) == expected


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_bytes_of_unknown_characters(model_type, tmp_path):
    """Byte fallback works for SentencePiece files, and for `tokenizer.json` without token types."""
    proto = sentencepiece_model_pb2.ModelProto()
    options = {"unk_id": 0, "pad_id": -1, "bos_id": 1, "eos_id": 2, "model_type": model_type}
    proto.ParseFromString(train_bytes(TRAINING, 320, **options))
    (tmp_path / "sentencepiece.bpe.model").write_bytes(proto.SerializeToString())
    texts = ["5 ☃ cost 日本 🙂", "the dog"]
    plain = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    vocabulary = read_vocabulary(tmp_path)
    rows = vocabulary.encode_lines(texts)
    assert rows == [[i + 1 for i in row] for row in plain.encode(texts)]
    assert vocabulary.decode_lines(rows) == texts
    if model_type == "bpe":
        return
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    scores = [(piece.piece, piece.score) for piece in proto.pieces[3:]]
    scores = [*((name, 0.0) for name in names), *scores, ("<mask>", 0.0)]
    theirs = Tokenizer(models.Unigram(scores, unk_id=3, byte_fallback=True))
    theirs.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    theirs.pre_tokenizer = pre_tokenizers.Sequence(words)
    (tmp_path / "sentencepiece.bpe.model").unlink()
    theirs.save(str(tmp_path / "tokenizer.json"))
    vocabulary = read_vocabulary(tmp_path)
    rows = vocabulary.encode_lines(texts)
    assert rows == [theirs.encode(text).ids for text in texts]
    assert vocabulary.decode_lines(rows) == texts
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    whole["model"]["vocab"][5][0] = "no byte"
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    refuses("tokenizer.json is damaged", read_vocabulary, tmp_path)


def test_the_real_albert_vocabulary(shared_data):
    """ALBERT's ids agree with SentencePiece on text that ALBERT's normalization keeps."""
    directory = shared_data / "vocabularies" / "albert-base-v2"
    vocabulary = read_vocabulary(directory)
    assert vocabulary.pieces == 30_000 and vocabulary.special.ids == (0, 1, 2, 3, 4)
    model = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spiece.model"))
    texts = ["the quick brown fox jumped over the lazy dog.", "1,234 unaffable (words)"]
    assert vocabulary.encode_lines(texts) == model.encode(texts)
    assert vocabulary.encode_lines(["``Café''"]) == model.encode(['"cafe"'])
    assert vocabulary.model_type == "unigram"


WORDS = [
    *TEXTS,
    "I'LL don't  DON'T\n\n\nfoo \n bar",
    "a1234567 89.\n\n  x_y --\r\n\tz   ",
    " \u00a0 two\u2003spaces,   three\n",
    "e\u0301te\u0301 Å",
]


def byte_level(pattern: str, directory: pathlib.Path):
    """Saves a byte-level tokenizer that the tokenizers package trained on `TRAINING`."""
    whole = byte_level_tokenizer(pattern, 320, ignore_merges=pattern == "llama3")
    if pattern == "llama3":  # a piece that no merge yields
        fields = json.loads(whole.to_str())
        fields["model"]["vocab"]["\u0120texts"] = len(fields["model"]["vocab"])
        whole = Tokenizer.from_str(json.dumps(fields))
    special = {
        "gpt2": ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"],
        "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    }
    llama = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    whole.add_special_tokens(special.get(pattern, llama))
    whole.save(str(directory / "tokenizer.json"))
    return whole


def written_back(vocabulary, starts: bool, directory: pathlib.Path) -> Tokenizer:
    """Writes the tokenizer of a language model, which is read back; returns it for the package."""
    directory.mkdir()
    for name, contents in language_tokenizer(vocabulary, None, starts).items():
        (directory / name).write_bytes(contents)
    again, _ = read_language_vocabulary(directory)
    assert again.encode_lines(WORDS) == vocabulary.encode_lines(WORDS)
    assert again.special == vocabulary.special
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.mark.parametrize(
    ("pattern", "begin", "end"),
    [
        ("qwen2", None, "<|im_end|>"),
        ("qwen2", None, "<|endoftext|>"),
        ("llama3", "<|begin_of_text|>", "<|eot_id|>"),
        ("cl100k", "<|begin_of_text|>", "<|eot_id|>"),
    ],
)
def test_words_of_qwen_and_llama_3(pattern, begin, end, tmp_path):
    """Qwen pads with its end-of-text token; a base model also ends texts with it."""
    theirs = byte_level(pattern, tmp_path)
    pad = "<|endoftext|>" if pattern == "qwen2" else None
    options = {"bos_token": begin, "eos_token": end, "pad_token": pad}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    vocabulary, starts = read_language_vocabulary(tmp_path)
    special, size = vocabulary.special, theirs.get_vocab_size()
    assert starts == (begin is not None) and vocabulary.pieces == size
    assert special.end == theirs.token_to_id(end)
    assert special.pad == (size if pad in (None, end) else theirs.token_to_id(pad))
    texts = [*WORDS, *hard_texts(), "<|im_start|>user\nhi 1234<|im_start|> "]
    texts = [*vocabulary.normalized_lines(texts)]  # which replaces U+0000 and removes U+10FFFF
    texts = [text for text in texts if "<pad>" not in text]  # a token that we may add
    rows = vocabulary.encode_lines(texts)
    assert rows == [theirs.encode(text).ids for text in texts]
    if pattern == "llama3":
        assert vocabulary.encode_lines([" texts"]) == [[theirs.token_to_id("Ġtexts")]]
    if starts:
        assert special.begin == theirs.token_to_id(begin)
        assert special.mask == size + 1
        rows = [[special.begin, *row] for row in rows]
    written = written_back(vocabulary, starts, tmp_path / "out")
    assert [written.encode(text).ids for text in texts] == rows


GAPS = [
    "fox [MASK] jumped",
    "the[MASK]dog",
    "[MASK] the dog ",
    "  the [MASK]  dog",
    "the \u00a0\u2003[MASK]\u2003dog\t",
    "the[MASK],[MASK] [MASK] [MASK]s\n[MASK]",
    "the \x85[MASK]\ndog \u180e[MASK] e\u0301",
]


@pytest.mark.parametrize(
    ("prefix", "lstrip"),
    [(False, True), *slow((True, False), (True, True), (False, False))],
)
def test_the_space_before_a_mask_is_part_of_the_mask_and_the_space_behind_is_not(
    prefix, lstrip, tmp_path
):
    theirs = byte_level("gpt2", tmp_path)
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    theirs.add_special_tokens([AddedToken("[MASK]", lstrip=lstrip, special=True)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    for _ in range(2):  # the tokenizer itself, then the tokenizer as we write it
        vocabulary = read_vocabulary(tmp_path)
        assert vocabulary.mask_takes_space is lstrip
        prepare = tf.function(Filling(None, vocabulary, 512).prepare, autograph=False)
        for text in GAPS:
            row = prepare(tf.constant([text]))[0]["token_ids"][0].numpy()
            assert row[1:-1].tolist() == theirs.encode(text, add_special_tokens=False).ids
        for name, contents in tokenizer_files(vocabulary).items():
            (tmp_path / name).write_bytes(contents)
        theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    vocabulary.save(tmp_path / "own")
    assert PieceVocabulary.load(tmp_path / "own").mask_takes_space is lstrip


def test_llama_2s_pieces(tmp_path):
    options = {"byte_fallback": True, "normalization_rule_name": "identity", "pad_id": -1}
    options |= {"remove_extra_whitespaces": False, "model_type": "bpe", "vocab_size": 340}
    proto = train_sentencepiece(**options)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=proto)
    (tmp_path / "tokenizer.model").write_bytes(proto)
    vocabulary, starts = read_language_vocabulary(tmp_path)
    assert starts and vocabulary.special.ids == (340, 0, 1, 2, 341)
    found = vocabulary.encode_lines(WORDS)
    assert found == theirs.encode(WORDS)
    assert vocabulary.decode_lines(vocabulary.encode_lines(WORDS[:3])) == WORDS[:3]
    written = written_back(vocabulary, starts, tmp_path / "out")
    texts = [text for text in WORDS if text and "</s>" not in text]
    assert [written.encode(text).ids[1:] for text in texts] == theirs.encode(texts)
    assert [written.decode(row) for row in theirs.encode(texts)] == theirs.decode(
        theirs.encode(texts)
    )


FIELDS = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
LOWER = {**FIELDS, "normalizer": {"lowercase": True}}


@pytest.mark.parametrize(
    ("file", "contents", "reason"),
    [
        ("vocab.json", {}, r"cannot read .*merges\.txt"),
        ("merges.txt", "", "no pad_token, but needs <pad> or"),
        ("spiece.model", "no model", "is not a SentencePiece model"),
        ("tokenizer.json", {**LOWER, "model": 3}, "is .*damaged"),
        ("tokenizer.json", {**FIELDS, "model": {"type": "BPE", "vocab": {"a": 0}}}, "is .*damaged"),
    ],
)
def test_files_that_are_no_tokenizer_are_one_sentence(file, contents, reason, tmp_path):
    if file == "merges.txt":
        (tmp_path / "vocab.json").write_text("{}")
    text = contents if isinstance(contents, str) else json.dumps(contents)
    (tmp_path / file).write_text(text)
    refuses(reason, read_vocabulary, tmp_path)
