"""Tests of reading Hugging Face encoders without PyTorch, and of ignored or refused files.

A sentence-transformers folder adds pooling, normalization and a maximum length.
"""

import dataclasses
import json
import pickle

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from macaron_tf.hub import read_hugging_face
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.families import FAMILIES
from macaron_tf.hub.tokenizers import parts
from macaron_tf.models import EncoderConfig, catalog
from macaron_tf.tasks import SentenceSettings
from macaron_tf.tasks.embedding import SentenceEmbedding
from macaron_tf.text import PieceVocabulary
from tests.harness import refuses
from tests.toys import hugging_face as toys

pytest.importorskip("safetensors")
pytestmark = pytest.mark.quick

OUTPUT = "cls.predictions.decoder.weight"


@pytest.mark.parametrize("layout", ["rounded", "early names"])
def test_other_layouts_are_read_to_the_same_weights(layout, tmp_path, capsys):
    """Tables padded to a multiple of 64, and TensorFlow's weight names, are read correctly.

    Buffers may have any type.
    """
    state, config = toys.random_state(), {}
    plain = read_hugging_face(toys.write_bert(tmp_path / "a", state))
    tokens, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
    if layout == "rounded":
        config = {"vocab_size": 64}
        state[tokens] = np.concatenate([state[tokens], np.zeros((54, 8), "float32")])
        state[bias] = np.concatenate([state[bias], np.zeros(54, "float32")])
    else:
        config = {"quantization_config": None}
        names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, old in names.items():
            state = {name.replace(new, old): value for name, value in state.items()}
        state["bert.embeddings.position_ids"] = np.arange(12)[None]
        state["cls.predictions.decoder.weight"] = state[tokens]
    assert not capsys.readouterr().err
    found = read_hugging_face(toys.write_bert(tmp_path / "b", state, config))
    assert not capsys.readouterr().err
    size = config.get("vocab_size", plain.config.vocab_size)
    assert found.config == dataclasses.replace(plain.config, vocab_size=size)
    assert found.card.unread == ()
    for a, b in zip(found.network.get_weights(), plain.network.get_weights(), strict=True):
        rows = len(toys.WORDS) if len(a) == size else None  # the others have no token
        np.testing.assert_array_equal(a[:rows], b[:rows])


def test_a_body_alone_is_read_with_its_pooler(tmp_path):
    state = {
        name.removeprefix("bert."): value
        for name, value in toys.random_state().items()
        if name.startswith("bert.")
    }
    read = macaron_tf.load(f"hugging-face:{toys.write_bert(tmp_path, state)}")
    # Its masked language head is random, so that the model embeds texts instead.
    assert read.card.objective is None and read.task.name == "sentence encoder"
    assert len(read.predict("a [MASK]")) == 8
    assert read.network.sentence_pair is None
    bias = read.network.masked_language.bias
    np.testing.assert_array_equal(bias, 0)
    kernel = read.network.pooler.dense.kernel
    np.testing.assert_array_equal(kernel, state["pooler.dense.weight"].T)


def test_a_model_class_of_the_user_s_own_is_read_without_its_head(tmp_path, capsys):
    state = toys.random_state()
    own = {n.replace("bert.", "body."): a for n, a in state.items() if not n.startswith("cls.")}
    own["tagger.weight"] = np.ones((2, 8), "float32")
    toys.write_bert(tmp_path, own, {"architectures": ["MyTagger"]})
    read = macaron_tf.load(f"hugging-face:{tmp_path}")
    assert read.card.unread == ("tagger.weight",) and "tagger.weight" in capsys.readouterr().err
    refuses(r"the head of MyTagger \(tagger.weight\) was not read: fine-tune", read.predict, "a")
    whole = read_hugging_face(toys.write_bert(tmp_path / "whole", state))
    for one, other in zip(whole.encoder.get_weights(), read.encoder.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    vectors = SentenceEmbedding.of(read).encode(["a b"])
    np.testing.assert_array_equal(vectors, SentenceEmbedding.of(whole).encode(["a b"]))


QUERY = "bert.encoder.layer.0.attention.self.query.weight"


@pytest.mark.parametrize("dtype", ["int8", ml_dtypes.float8_e4m3fn])
def test_quantized_weights_are_refused(dtype, tmp_path):
    """Quantized weights need scales, which would be read as weights of another layer."""
    toys.write_bert(tmp_path, {**toys.random_state(), QUERY: np.ones((8, 8), dtype)})
    reason = f"model.safetensors has the quantized weight {QUERY} of type"
    refuses(reason, read_hugging_face, tmp_path)


@pytest.mark.parametrize(("lower_case", "expected"), [(True, [5, 8]), (False, [1, 9])])
def test_case_is_as_the_tokenizer_or_else_the_user_says(lower_case, expected, tmp_path):
    toys.write_bert(tmp_path, tokenizer_config={"do_lower_case": lower_case})
    vocabulary = read_hugging_face(tmp_path).vocabulary
    assert vocabulary.lower_case == lower_case
    refuses("do not say .*: leave lower_case", read_hugging_face, tmp_path, lower_case=lower_case)
    assert vocabulary.encode_lines(["A café"]) == [expected]
    (tmp_path / "tokenizer_config.json").write_text("{}")
    refuses("give lower_case=True or False", read_hugging_face, tmp_path)
    assert read_hugging_face(tmp_path, lower_case=lower_case).vocabulary.lower_case == lower_case


def added(number, name="[ENT]"):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return [{"id": number, "content": name, **flags}]


def test_a_tokenizer_json_does_instead_of_a_list_of_words(tmp_path):
    toys.write_bert(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    model |= {"max_input_chars_per_word": 100, "vocab": {w: i for i, w in enumerate(toys.WORDS)}}
    tokenizer = {
        "normalizer": parts.bert_normalizer(lower_case=False),
        "pre_tokenizer": parts.BERT_WORDS,
        "model": model,
        "added_tokens": added(4, "[MASK]"),
    }

    def read():
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
        return read_hugging_face(tmp_path).vocabulary

    vocabulary = read()
    assert list(vocabulary.words) == toys.WORDS and not vocabulary.lower_case
    for part, change, reason in (
        (tokenizer, {"added_tokens": added(10)}, "the vocabulary has 11 tokens, but the model"),
        (model["vocab"], {"b": 99}, "gives the token 'b' the id 99, which is beyond"),
    ):
        part.update(change)
        refuses(reason, read)


BY_ID = {"11": {"content": "covid19"}, "10": {"content": "[ENT]"}}


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize(
    ("file", "tokens"),
    [
        ("added_tokens.json", {"[ENT]": 10, "covid19": 11}),
        ("tokenizer_config.json", {"added_tokens_decoder": BY_ID}),
    ],
)
def test_added_tokens_have_their_ids(file, tokens, lower_case, tmp_path):
    """Added tokens get the ids of the tokenizers package.

    The ids agree in Python, in a graph, with offsets, and after saving.
    """
    tokenizers = pytest.importorskip("tokenizers")
    toys.write_bert(tmp_path, toys.random_state(12), {"vocab_size": 12})
    case = {"do_lower_case": lower_case} if file != "added_tokens.json" else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower_case}))
    (tmp_path / file).write_text(json.dumps({**tokens, **case}))
    vocabulary = read_hugging_face(tmp_path).vocabulary
    theirs = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=lower_case)
    theirs.add_tokens(["[ENT]", "covid19"])
    texts = ["a [ENT] bc covid19 café", "[ENT]covid19a [ent] COVID19", " [ENT]  [ENT]b", ""]
    found = [theirs.encode(text, add_special_tokens=False) for text in texts]
    expected = [one.ids for one in found]
    assert {10, 11} <= {*expected[0]}
    assert vocabulary.encode_lines(texts) == expected
    assert vocabulary.encode_lines(["[MASK]"]) == [[1, 1, 1]]
    assert tf.function(vocabulary.encode)(tf.constant(texts)).to_list() == expected
    located = vocabulary.encode_with_offsets(tf.constant(texts))
    places = zip(located.starts.to_list(), located.ends.to_list(), strict=True)
    assert [[*zip(*pair, strict=True)] for pair in places] == [one.offsets for one in found]
    vocabulary.save(tmp_path / "saved")
    for again in (PieceVocabulary.load(tmp_path / "saved"), pickle.loads(pickle.dumps(vocabulary))):
        assert again.hash == vocabulary.hash and again.encode_lines(texts) == expected
    assert vocabulary.decode_lines([[5, 10, 11]]) == ["a [ENT] covid19"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"config": {"quantization_config": {"bits": 8, "quant_method": "gptq"}}},
            "config.json has quantization_config=.*'quant_method': 'gptq'.*, but only None",
        ),
        ({"config": {"hidden_act": "quick_gelu"}}, "hidden_act='quick_gelu'"),
        (
            {"config": {"num_hidden_layers": 3}},
            r"no array called encoder\.layer\.2\.attention\.self\.query",
        ),
        ({"config": {"num_hidden_layers": 1}}, r"the weight encoder\.layer\.1\.attention"),
        (
            {"config": {"max_position_embeddings": 16}},
            r"positions/table have shape .* must have shape \(16, 8\)",
        ),
        ({"tokenizer_config": {"strip_accents": False}}, "strip_accents=False"),
        ({"tokenizer_config": {"mask_token": "<mask>"}}, "mask_token='<mask>'"),
        ({"tokenizer_config": {"never_split": ["covid19"]}}, "never_split=.*covid"),
        (
            {"tokenizer_config": {"tokenizer_class": "BertJapaneseTokenizer"}},
            "tokenizer_class=BertJapaneseTokenizer",
        ),
        ({"words": [*toys.WORDS, "more"]}, "has 11 tokens, but the model has 10"),
        (
            {"state": {**toys.random_state(), OUTPUT: np.ones((10, 8), "float32")}},
            "only tied embeddings can be read",
        ),
    ],
)
def test_what_has_no_place_in_our_model_is_refused(changes, reason, tmp_path):
    refuses(reason, read_hugging_face, toys.write_bert(tmp_path, **changes))


def test_settings_that_a_file_leaves_out_are_those_of_bert_config(tmp_path):
    config = {**toys.CONFIG, "hidden_dropout_prob": 0}
    del config["num_hidden_layers"], config["type_vocab_size"]
    toys.write_bert(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    # The default is 12 layers.
    refuses(r"no array called encoder\.layer\.2\.", read_hugging_face, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    read = read_hugging_face(tmp_path).network.config
    assert (read.num_segments, read.dropout) == (2, 0.0)


def test_missing_and_damaged_files_are_one_sentence(tmp_path):
    refuses(r"cannot read .*/config\.json", read_hugging_face, tmp_path)
    toys.write_bert(tmp_path)
    weights = tmp_path / "model.safetensors"
    for change, reason in (
        (lambda: weights.write_bytes(weights.read_bytes()[:-9]), "cannot be read"),
        (weights.unlink, "contains no weights"),
        (
            (tmp_path / "model.safetensors.index.json").touch,
            r"index\.json is damaged \(Expecting value",
        ),
        ((tmp_path / "vocab.txt").unlink, "no vocabulary, but .* vocab.txt, .* or tokenizer.json"),
        (lambda: (tmp_path / "config.json").write_text("{"), r"config\.json is damaged"),
    ):
        change()
        refuses(reason, read_hugging_face, tmp_path)


def read_sentence(directory, **changes):
    toys.write_modules(toys.write_bert(directory), **changes)
    return read_hugging_face(directory)


def test_pooling_normalization_and_length_are_read(tmp_path):
    found = read_sentence(tmp_path, sentence={"max_seq_length": 9})
    assert found.settings == SentenceSettings("mean", True, 9)
    assert found.network.config.num_layers == 2
    found = read_sentence(tmp_path, kinds=toys.MODULES[:2], sentence={"max_seq_length": 99})
    assert found.settings == SentenceSettings("mean", False, 12)  # the table has 12 positions
    assert read_sentence(tmp_path, sentence={}).settings.max_length == 12


def test_length_and_prompts_of_early_and_late_versions(tmp_path):
    toys.write_modules(toys.write_bert(tmp_path, tokenizer_config={"model_max_length": 8}))
    assert read_hugging_face(tmp_path).settings.max_length == 8  # as sentence-transformers does
    (tmp_path / "sentence_roberta_config.json").write_text('{"max_seq_length": 6}')
    assert read_hugging_face(tmp_path).settings.max_length == 6
    file = tmp_path / "config_sentence_transformers.json"
    prompts = {"prompts": {"query": "query: ", "document": ""}}
    for name in (None, "document"):
        file.write_text(json.dumps({**prompts, "default_prompt_name": name}))
        assert read_hugging_face(tmp_path).settings.max_length == 6
    file.write_text(json.dumps({**prompts, "default_prompt_name": "query"}))
    refuses("default_prompt_name='query'", read_hugging_face, tmp_path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True, "word_embedding_dimension": 8}, "max"),
        ({"pooling_mode": "mean", "embedding_dimension": 8}, "mean"),
    ],
)
def test_each_pooling_has_our_name(config, expected, tmp_path):
    assert read_sentence(tmp_path, pooling=config).settings.pooling == expected


TWO = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kinds": ["Transformer", "Pooling", "Dense"]}, "Transformer, Pooling, Dense, but only"),
        ({"pooling": TWO}, "to cls_token and max_tokens, but only one of"),
        ({"sentence": {"do_lower_case": True}}, "do_lower_case=True"),
    ],
)
def test_another_sentence_encoder_is_refused(changes, reason, tmp_path):
    refuses(reason, read_sentence, tmp_path, **changes)


def test_missing_files_of_modules_are_named(tmp_path):
    read_sentence(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more/modules.json").write_text('[{"type": "Pooling"}]')
    refuses("each with a path", read_hugging_face, tmp_path / "more")
    (tmp_path / "1_Pooling/config.json").unlink()
    refuses("cannot read .*1_Pooling/config.json", read_hugging_face, tmp_path)


RELEASED = {  # ModernBERT base's fields before transformers 5
    **{"hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22},
    **{"num_attention_heads": 12, "max_position_embeddings": 8192, "norm_eps": 1e-05},
    **{"global_attn_every_n_layers": 3, "local_attention": 128, "global_rope_theta": 160000.0},
    **{"local_rope_theta": 10000.0, "hidden_activation": "gelu", "mlp_dropout": 0.0},
}


def test_the_released_modern_bert_is_the_catalogs():
    settings = FAMILIES["modernbert"].read_settings(ForeignConfig(RELEASED, "config.json"))
    known = catalog.config("modern_bert_base")
    assert EncoderConfig(vocab_size=known.vocab_size, **settings) == known


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"layer_types": ["chunked_attention"] * 22}, "layer_types=.*sliding_attention or full"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear"}}},
            "lacks the field factor",
        ),
    ],
)
def test_damaged_layers_and_rotations_are_named(fields, reason):
    config = ForeignConfig({**RELEASED, **fields}, "config.json")
    refuses(reason, FAMILIES["modernbert"].read_settings, config)
