# ruff: noqa: RUF001 -- letters of several scripts
"""Saved encoders that transformers opens have the same weights, ids and outputs as ours."""

import functools
import pathlib

import numpy as np
import pytest

import macaron_tf
from macaron_tf import models
from macaron_tf.model import Model
from macaron_tf.models.model_parts import Card
from macaron_tf.models.pretraining import generator_config
from macaron_tf.text import NormalizationConfig, WordPieceVocabulary
from macaron_tf.text.byte_pairs import BytePairVocabulary, MosesPairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from tests.harness import numpy_of
from tests.toys.hugging_face import opened, random, written

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

TEXTS = [
    "Hello, world! It's fine.",
    "",
    "   ",
    "  two  spaces  and\ttab\nnewline ",
    "\ttab first",
    "Äpfel, naïve café, Ångström ÆØ ß İI ı",
    "中文和日本語テキスト、한국어",
    "emoji 😀👩‍👩‍👧 🇩🇪 ✌🏽 end",
    "\x00\x01\x1b control \u200b\u200d zero\u00a0nbsp\u3000ideographic",
    "Ελληνικά ΣΊΣΥΦΟΣ σς Σ",
    "русский текст Ёж йод",
    "عربى العربية ١٢٣",
    "हिन्दी देवनागरी",
    "e\u0301 combining a\u0327",
    "\ufeffBOM \ufffd replacement \U0010ffff private \ue000",
    "x" * 120 + " y",
    "1,234.56 $ 3€ 50% a+b=c <tag> `code` ''quotes'' ``more``",
    "ﬁ ligature ½ ² ™ Ⅳ ǅ Ǆ ŉ ẞ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈",
    "\u2028line sep\u2029para",
    "don't we'll I'VE they're CamelCase_snake-case/path\\back",
]
LETTERS = ["a", "b", "c", "d", "e", "f", "g", "h"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *LETTERS, "##b", "##c", "hello", "caf", "##e"]
# The vocabulary and configuration determine the family: name, and our options.
FAMILIES = {
    "bert": {},
    "bert of the tanh form": {"activation": "gelu_tanh", "num_segments": 3},
    "albert": {"sharing": "all", "embedding_dim": 16, "activation": "relu"},
    "electra": {"embedding_dim": 16},
    "roberta": {"num_segments": 0},
    "xlm-roberta": {"num_segments": 0, "epsilon": 1e-5},
}


VOCABULARIES = {
    "words": lambda lines: WordPieceVocabulary(WORDS),
    "cased words": lambda lines: WordPieceVocabulary.train(lines, 600, lower_case=False),
    "bytes": lambda lines: BytePairVocabulary.train(lines, 400),
    "bytes without a space": lambda lines: without_space(BytePairVocabulary.train(lines, 400)),
    "small bytes": lambda lines: BytePairVocabulary.train(lines, 400, lower_case=True),
    "pieces": lambda lines: SentencePieceVocabulary.train(lines, 300),
    "unigrams": lambda lines: SentencePieceVocabulary.train(
        lines, 300, model_type="unigram", normalization_rule="identity"
    ),
    "folded": lambda lines: SentencePieceVocabulary.train(
        lines,
        300,
        model_type="unigram",
        fold_accents=True,
        normalization=NormalizationConfig(lower_case=True),
    ),
}


def without_space(pairs: BytePairVocabulary) -> BytePairVocabulary:
    return BytePairVocabulary(pairs.units, pairs.merges, pair_separators=2)


@functools.cache
def vocabulary_of(kind: str):
    lines = [text for text in TEXTS if text.strip()] * 4
    lines += [line for line in pathlib.Path(__file__).read_text().splitlines() if line.strip()]
    return VOCABULARIES[kind](lines)


def model(network, vocabulary, objective="masked_language", **facts) -> Model:
    return Model(random(network), vocabulary, card=Card(objective=objective, **facts))


def in_transformers(made: Model, place):
    """Saves a model; returns the transformers model, tokenizer and configuration loaded from it."""
    fields = written(made, place)
    theirs = opened(getattr(transformers, fields["architectures"][0]), place)
    return theirs, transformers.AutoTokenizer.from_pretrained(place), fields


def outputs(theirs, inputs):
    with torch.no_grad():
        return theirs(**{n: torch.tensor(rows).long() for n, rows in inputs.items()})


def config(vocabulary, options) -> models.EncoderConfig:
    return models.EncoderConfig(vocabulary.size, 32, 128, 4, 2, max_length=20, **options)


def check_equal(ours, theirs) -> None:
    """Asserts that two float arrays agree within 1e-5 and are not below 0.01 everywhere."""
    assert np.abs(theirs).max() > 0.01
    np.testing.assert_allclose(numpy_of(ours), theirs, atol=1e-5, rtol=0)


NETWORKS = {
    "classes": lambda c: models.EncoderClassifier(c, 3),
    "tags": lambda c: models.EncoderTokenClassifier(c, 3),
    "spans": models.EncoderQuestionAnswering,
    "choices": models.EncoderMultipleChoice,
    "masked": models.PretrainingEncoder,
    "masked and pairs": lambda c: models.PretrainingEncoder(c, sentence_pair=True),
    "vectors": models.SiameseEncoder,
    "body": models.Encoder,
    "replaced": lambda c: models.GeneratorDiscriminator(c, generator_config(c)),
}
VOCABULARY = {"roberta": "bytes without a space", "xlm-roberta": "unigrams", "albert": "folded"}


# ELECTRA's classifier differs, and only ELECTRA detects replaced tokens.
PAIRS = [
    (family, kind)
    for family in FAMILIES
    for kind in NETWORKS
    if kind not in ("classes", "replaced") or (kind == "replaced") == (family == "electra")
]


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_outputs_are_theirs(family, kind, tmp_path):
    vocabulary = vocabulary_of(VOCABULARY.get(family, "words"))
    network = NETWORKS[kind](config(vocabulary, FAMILIES[family]))
    theirs, tokenizer, fields = in_transformers(model(network, vocabulary), tmp_path / "out")
    assert fields["model_type"] == family.partition(" ")[0]
    rows = tokenizer(["a bc d", "Abc"], ["e f g h", "a"], padding=True)
    ids = np.array(rows["input_ids"])
    inputs = {name: np.array(values) for name, values in rows.items()}
    if kind == "choices":
        inputs = {name: values[None] for name, values in inputs.items()}
    found = outputs(theirs, inputs)
    ours = {"token_ids": inputs["input_ids"].astype("int32")}
    if "token_type_ids" in inputs:
        ours["segment_ids"] = inputs["token_type_ids"].astype("int32")
    real = ids != 0
    if kind.startswith("masked"):
        expected = found.get("prediction_logits", found.get("logits")).numpy()[real]
        logits = numpy_of(network(ours)["masked_language"])[real]
        check_equal(logits[:, : vocabulary.pieces], expected)
        if "seq_relationship_logits" in found or "sop_logits" in found:
            pairs = found.get("seq_relationship_logits", found.get("sop_logits"))
            check_equal(network(ours)["sentence_pair"], pairs.numpy())
    elif kind == "spans":
        # Our model hides positions where no answer can be.
        ours.setdefault("segment_ids", np.ones_like(ours["token_ids"]))
        logits = numpy_of(network(ours))
        expected = torch.stack([found.start_logits, found.end_logits], 1).numpy()
        check_equal(logits[logits > -1e8], expected[logits > -1e8])
    elif kind in ("vectors", "body"):
        encoder = getattr(network, "encoder", None) or network
        check_equal(numpy_of(encoder(ours))[real], found.last_hidden_state.numpy()[real])
    elif kind == "replaced":
        check_equal(numpy_of(network.replaced_logits(ours))[real], found.logits.numpy()[real])
    else:
        where = real if kind == "tags" else ...
        check_equal(numpy_of(network(ours))[where], found.logits.numpy()[where])


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_ids_are_theirs_and_read_back(kind, tmp_path):
    vocabulary = vocabulary_of(kind)
    made = model(models.Encoder(config(vocabulary, {})), vocabulary)
    written(made, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = vocabulary.encode_lines(TEXTS)
    assert tokenizer(TEXTS, add_special_tokens=False)["input_ids"] == expected
    cls, sep = vocabulary.special.begin, vocabulary.special.end
    [first, second] = vocabulary.encode_lines(["a b", "c"])
    rows = tokenizer("a b", "c")
    between = [sep] * vocabulary.pair_separators
    assert rows["input_ids"] == [cls, *first, *between, *second, sep]
    assert sum(rows["token_type_ids"]) == len(second) + 1
    assert tokenizer.pad_token_id == 0 and tokenizer.mask_token_id == vocabulary.special.mask
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'out'}")
    assert read.special.rows == vocabulary.pieces
    assert read.vocabulary.encode_lines(TEXTS) == expected
    assert read.vocabulary.pair_separators == vocabulary.pair_separators


def test_an_xlm_with_its_tokenizer_is_theirs(tmp_path):
    pytest.importorskip("sacremoses")
    units = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "ab</w>", "covid19"]
    vocabulary = MosesPairVocabulary(units, ["a b</w>"], ("en", "fr"))
    vocabulary.added = {"covid19": vocabulary.names.index("covid19")}
    options = {"num_segments": 0, "num_languages": 2}
    network = models.PretrainingEncoder(
        config(vocabulary, options), head_options={"transform": False}
    )
    made = model(network, vocabulary, languages=("en", "fr"))
    theirs, tokenizer, fields = in_transformers(made, tmp_path / "out")
    assert fields["model_type"] == "xlm" and fields["lang2id"] == {"en": 0, "fr": 1}
    texts = ["Ab, cd h.", "« ab » l'abc", "É a"]
    found = [tokenizer.convert_tokens_to_ids(tokenizer._tokenize(t, lang="fr")) for t in texts]
    assert found == vocabulary.encode_lines(texts, "fr")
    with_added = ["ab covid19 h"]
    rows = tokenizer(with_added, add_special_tokens=False)["input_ids"]
    assert rows == vocabulary.encode_lines(with_added)
    assert vocabulary.added["covid19"] in rows[0]
    rows = np.array([[2, *found[0][:4], 3]])
    languages = np.ones_like(rows)
    expected = outputs(theirs, {"input_ids": rows, "langs": languages}).logits.numpy()
    ours = {"token_ids": rows.astype("int32"), "language_ids": languages.astype("int32")}
    logits = numpy_of(network(ours)["masked_language"])
    check_equal(logits[..., : vocabulary.pieces], expected)
