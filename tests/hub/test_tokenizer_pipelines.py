"""Each step, field and flag of tokenizer.json gives the ids of its library, or is refused."""

import copy
import functools
import itertools
import json
import pathlib

import pytest
import sentencepiece
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import macaron_tf
from macaron_tf.errors import UserError
from macaron_tf.hub.tokenizers import proof
from macaron_tf.hub.tokenizers.reading import (
    read_language_vocabulary,
    read_vocabulary,
)
from macaron_tf.text import PieceVocabulary
from tests.harness import refuses
from tests.toys import hugging_face as toys
from tests.toys.hard_texts import hard_texts
from tests.toys.vocabularies import TRAINING, byte_level_tokenizer, train_sentencepiece

read_t5_vocabulary = functools.partial(read_vocabulary, role="t5")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LINES = [*TRAINING, *(text.replace("\n", " ") for text in proof._TEXTS[:-1])]  # all are known


def word_piece() -> Tokenizer:
    whole = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    whole.normalizer = normalizers.BertNormalizer(lowercase=True)
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    whole.train_from_iterator(LINES, trainer)
    return whole


def unigram() -> Tokenizer:
    options = {"vocab_size": 500, "character_coverage": 1.0, "hard_vocab_limit": False}
    lines = filter(str.strip, LINES)
    proto = sentencepiece_model_pb2.ModelProto.FromString(train_sentencepiece(lines, **options))
    pieces = [*((name, 0.0) for name in SPECIAL), *((p.piece, p.score) for p in proto.pieces[3:])]
    whole = Tokenizer(models.Unigram(pieces, 1))
    whole.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    whole.pre_tokenizer = pre_tokenizers.Sequence(words)
    return whole


def llama() -> Tokenizer:
    """Returns a SentencePiece BPE with byte fallback, with its merges as transformers has them."""
    options = {"byte_fallback": True, "normalization_rule_name": "identity", "pad_id": -1}
    options |= {"remove_extra_whitespaces": False, "model_type": "bpe", "vocab_size": 340}
    proto = sentencepiece_model_pb2.ModelProto.FromString(train_sentencepiece(**options))
    ids = {piece.piece: n for n, piece in enumerate(proto.pieces)}
    merges = []
    for piece in proto.pieces:
        name, score = piece.piece, piece.score
        cuts = ((name[:i], name[i:]) for i in range(1, len(name)))
        merges += [(-score, ids[a], ids[b], a, b) for a, b in cuts if {a, b} <= ids.keys()]
    pairs = [(a, b) for *_, a, b in sorted(merges)]
    whole = Tokenizer(models.BPE(ids, pairs, fuse_unk=True, byte_fallback=True, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    whole.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return whole


def gpt() -> Tokenizer:
    whole = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    whole.normalizer = normalizers.BertNormalizer(lowercase=True)
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    whole.decoder = decoders.BPEDecoder()
    options = {"end_of_word_suffix": "</w>", "special_tokens": ["<unk>"], "show_progress": False}
    whole.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=900, **options))
    return whole


KINDS = {
    "byte_level": lambda: byte_level_tokenizer("gpt2", 400),
    "qwen": lambda: byte_level_tokenizer("qwen2", 400),
    "word_piece": word_piece, "unigram": unigram, "llama": llama, "gpt": gpt,
}  # fmt: skip
NORMALIZERS = [
    None, normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(),
    normalizers.Lowercase(), normalizers.StripAccents(), normalizers.Strip(),
    normalizers.Strip(left=False), normalizers.Prepend("▁"), normalizers.Prepend("x"),
    normalizers.Replace("e", "i"), normalizers.Replace(" ", "▁"), normalizers.Nmt(),
    normalizers.Replace(Regex(" {2,}"), " "), normalizers.ByteLevel(),
    normalizers.BertNormalizer(clean_text=False), normalizers.BertNormalizer(lowercase=False),
    normalizers.BertNormalizer(handle_chinese_chars=False),
    normalizers.BertNormalizer(lowercase=True, strip_accents=False),
    normalizers.BertNormalizer(lowercase=False, strip_accents=True),
]  # fmt: skip
WORDS = [
    None, pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(),
    pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(), pre_tokenizers.Punctuation(),
    pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.UnicodeScripts(),
    pre_tokenizers.Split(Regex(r"\d"), "isolated"), pre_tokenizers.Split(" ", "removed"),
    pre_tokenizers.CharDelimiterSplit("-"), pre_tokenizers.ByteLevel(add_prefix_space=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), pre_tokenizers.Metaspace(),
    pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Metaspace("_"),
    pre_tokenizers.Metaspace(prepend_scheme="never"), pre_tokenizers.Metaspace(split=False),
    pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
]  # fmt: skip
MODEL = [
    {"dropout": 0.5}, {"continuing_subword_prefix": "@"}, {"end_of_word_suffix": "</w>"},
    {"ignore_merges": True}, {"byte_fallback": False}, {"max_input_chars_per_word": 5},
    {"unk_token": "[CLS]"}, {"continuing_subword_prefix": "#"}, {"unk_id": 7},
]  # fmt: skip
FLAGS = [{}, {"single_word": True}, {"lstrip": True}, {"rstrip": True}, {"normalized": True}]


def variants(base: dict):
    """Yields a name and the fields of tokenizer.json, with one part changed at a time."""
    yield "itself", base
    for field, group, steps in (
        ("normalizer", "normalizers", NORMALIZERS),
        ("pre_tokenizer", "pretokenizers", WORDS),
    ):
        for step in steps:
            fields = step and json.loads(step.__getstate__())
            yield f"{field} {fields}", {**base, field: fields}
            for parts in ((fields, base[field]), (base[field], fields)):
                whole = {"type": "Sequence", group: [*parts]}
                if None not in parts:
                    yield f"{field} {parts}", {**base, field: whole}
    for change in MODEL:
        yield f"model {change}", {**base, "model": {**base["model"], **change}}
    size = Tokenizer.from_str(json.dumps(base)).get_vocab_size()
    token = {"id": size, "content": "<e>", "single_word": False, "lstrip": False, "rstrip": False}
    for flags, special in itertools.product(FLAGS, (True, False)):
        added = {**token, "normalized": False, "special": special, **flags}
        yield f"token {added}", {**base, "added_tokens": [*base["added_tokens"], added]}


def read(kind: str, directory: pathlib.Path) -> PieceVocabulary:
    if kind in ("word_piece", "unigram"):
        return read_vocabulary(directory)
    return read_language_vocabulary(directory)[0]


def write(fields: dict, directory: pathlib.Path, **options) -> None:
    """Writes tokenizer.json, beside the files of the vocabulary that early tokenizers have."""
    (directory / "tokenizer.json").write_text(json.dumps(fields))
    model = fields["model"]
    if model["type"] != "Unigram":
        (directory / "vocab.json").write_text(json.dumps(model["vocab"]))
    if model["type"] == "BPE":
        (directory / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])))
    if model["type"] == "WordPiece":
        (directory / "vocab.txt").write_text(
            "\n".join(sorted(model["vocab"], key=model["vocab"].get))
        )
    (directory / "tokenizer_config.json").write_text(json.dumps(options))


def base_of(kind: str) -> tuple[dict, dict]:
    """Returns tokenizer.json with special tokens, and tokenizer_config.json."""
    whole = KINDS[kind]()
    if kind == "gpt":
        return json.loads(whole.to_str()), {}
    names = {"qwen": ["<|endoftext|>"], "byte_level": ["<|endoftext|>"], "llama": ["<s>", "</s>"]}
    whole.add_special_tokens(names.get(kind, SPECIAL))
    if kind == "llama":
        return json.loads(whole.to_str()), {"bos_token": "<s>", "eos_token": "</s>"}
    return json.loads(whole.to_str()), {}


@pytest.mark.parametrize("kind", KINDS)
def test_each_variant_is_read_right_or_refused(kind, tmp_path):
    """What the comparison of a hundred texts at load lets pass is right on other texts too."""
    base, options = base_of(kind)
    texts = ["a\x85b", "x<e>y <e> z<e><e>", "<e>", " <e> a"]
    if kind in ("byte_level", "qwen", "word_piece"):
        texts += hard_texts(150)
    names = [*SPECIAL, "<s>", "</s>", "<|endoftext|>", "<unk>", "▁"]
    texts = [text for text in texts if not any(name in text for name in names)]
    texts = [text for text in texts if "\x00" not in text and "\U0010ffff" not in text]
    wrong, equal = [], []
    for name, fields in variants(base):
        try:
            theirs = Tokenizer.from_str(json.dumps(fields))
        except Exception:  # the package refuses the combination, too
            continue
        write(copy.deepcopy(fields), tmp_path, **options)
        try:
            vocabulary = read(kind, tmp_path)
        except UserError as error:
            assert "\n" not in str(error), error
            continue
        rows = vocabulary.encode_lines(texts)
        pairs = zip(texts, rows, theirs.encode_batch(texts, add_special_tokens=False), strict=True)
        bad = [
            (text, row, t.ids)
            for text, row, t in pairs
            if not proof.is_same(fields["model"], row, t.ids)
        ]
        (wrong if bad else equal).append((name, bad[:2]))
    assert not wrong, wrong
    assert "itself" in dict(equal) and len(equal) >= 7
    if kind == "unigram":  # whose accents stay without a normalizer
        assert "normalizer None" in dict(equal)


def test_a_difference_is_an_error_with_the_text_and_both_ids(tmp_path, monkeypatch):
    base, _ = base_of("byte_level")
    write(base, tmp_path)
    vocabulary, starts = read_language_vocabulary(tmp_path)
    assert not starts
    monkeypatch.setattr(type(vocabulary), "tokenize", lambda self, lines: tf.ragged.constant(
        [[7]] * len(lines), tf.int32
    ))  # fmt: skip
    reason = r"has the ids \[\] for '', not \[7\], which "
    refuses(reason, read, "qwen", tmp_path)


def test_a_template_with_other_tokens_is_refused(tmp_path):
    whole = word_piece()
    whole.add_special_tokens(SPECIAL)
    ids = {name: whole.token_to_id(name) for name in SPECIAL}
    for names, is_right in ((("[CLS]", "[SEP]"), True), (("[MASK]", "[SEP]"), False)):
        pair = f"{names[0]} $A {names[1]} $B {names[1]}"
        single = f"{names[0]} $A {names[1]}"
        tokens = [(name, ids[name]) for name in names]
        whole.post_processor = processors.TemplateProcessing(single, pair, tokens)
        whole.save(str(tmp_path / "tokenizer.json"))
        if is_right:
            assert read_vocabulary(tmp_path).pair_separators == 1
        else:
            reason = r"has the template \[MASK\] A \[SEP\] B \[SEP\], which"
            refuses(reason, read_vocabulary, tmp_path)


@pytest.mark.parametrize(
    ("single", "bos", "starts"),
    [
        ("<s> $A", "<s>", True),
        ("$A", "<s>", False),
        ("$A", "</s>", False),
        (None, "<s>", False),  # as in GPT-2
        ("$A </s>", "<s>", None),
    ],
)
def test_a_template_says_whether_texts_begin_with_a_special_token(single, bos, starts, tmp_path):
    whole = KINDS["byte_level"]()
    whole.add_special_tokens(["<s>", "</s>"])
    if single:
        ids = [(name, whole.token_to_id(name)) for name in ("<s>", "</s>")]
        pair = f"{single} {single.replace('A', 'B')}"
        whole.post_processor = processors.TemplateProcessing(single, pair, ids)
    write(json.loads(whole.to_str()), tmp_path, bos_token=bos, eos_token="</s>")
    if starts is None:
        refuses(r"has the template A </s> B </s>, which", read_language_vocabulary, tmp_path)
    else:
        assert read_language_vocabulary(tmp_path)[1] is starts


def test_special_tokens_map_names_what_the_config_leaves_out(tmp_path):
    base, _ = base_of("byte_level")
    base["added_tokens"][0]["content"] = "<end>"
    write(base, tmp_path)
    refuses("has no eos_token, but needs", read_language_vocabulary, tmp_path)
    names = {"bos_token": "<end>", "eos_token": {"content": "<end>"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    vocabulary, _ = read_language_vocabulary(tmp_path)
    assert vocabulary.special.end == base["added_tokens"][0]["id"]


@pytest.mark.parametrize(
    ("read", "file", "kind"),
    [
        (read_language_vocabulary, "vocab.txt", "WordPiece"),
        (read_t5_vocabulary, "vocab.txt", "WordPiece"),
        (read_t5_vocabulary, "vocab.json", "BPE"),
    ],
)
def test_another_tokenizer_is_named(read, file, kind, tmp_path):
    (tmp_path / file).write_text("a\n")
    refuses(rf"has a vocabulary of the kind {kind}, which", read, tmp_path)


def test_legacy_matters_only_with_added_tokens(tmp_path):
    proto = train_sentencepiece(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (tmp_path / "spiece.model").write_bytes(proto)
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": false}')
    assert read_t5_vocabulary(tmp_path).encode_lines(["the dog"])
    (tmp_path / "added_tokens.json").write_text('{"<new>": 75}')
    refuses("both added tokens and legacy=False", read_t5_vocabulary, tmp_path)


def test_a_step_that_no_graph_has_is_refused(tmp_path):
    toys.write_bert(tmp_path, toys.random_state(11), {"vocab_size": 11})
    whole = Tokenizer(models.WordPiece({w: n for n, w in enumerate(toys.WORDS)}, unk_token="[UNK]"))
    whole.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    whole.save(str(tmp_path / "tokenizer.json"))
    location = f"hugging-face:{tmp_path}"
    refuses("json has the ids .* use the model in transformers", macaron_tf.load, location)


def test_a_bert_with_the_tokenizer_of_xlm_r(tmp_path):
    """The tokenizer pads with 1, the model's field says 0, as in multilingual-e5."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(train_sentencepiece())
    size = len(proto.pieces) + 2
    toys.write_bert(tmp_path, toys.random_state(size), {"vocab_size": size, "pad_token_id": 0})
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    (tmp_path / "sentencepiece.bpe.model").write_bytes(proto.SerializeToString())
    model = macaron_tf.load(f"hugging-face:{tmp_path}")
    assert model.special.pad == 1 and model.network.config.pad_id == 1
    pieces = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    [row] = model.vocabulary.encode_lines(TRAINING[:1])
    assert row == [token_id + 1 for token_id in pieces.encode(TRAINING[0])]
