"""Reading an encoder's directory, without PyTorch: what is taken, left and refused."""

import dataclasses
import json
import sys

import keras
import numpy as np
import pytest

from macaron_tf.errors import UserError
from macaron_tf.interop import read_encoder
from tests.harness import numpy_of
from tests.interop.bert_directory import CONFIG, WORDS, random_state, write_bert

pytest.importorskip("safetensors")

IDS = np.array([[2, 5, 7, 3, 6, 3], [2, 9, 3, 0, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1], [0] * 6], "int32")
BATCH = {"token_ids": IDS, "segment_ids": SEGMENTS}


def test_everything_is_read(tmp_path):
    state = random_state()
    read = read_encoder(write_bert(tmp_path, state))
    assert read.has_masked_language
    assert read.unread == ()
    config = read.network.config
    assert (config.vocab_size, config.activation, config.dropout) == (16, "gelu", 0.1)
    weights = {
        name: np.concatenate([w.numpy().ravel() for w in part.weights])
        for name, part in (
            ("heads", read.network.sentence_pair),
            ("masked", read.network.masked_language),
            ("pooler", read.network.pooler),
        )
    }
    assert all(np.abs(values).max() > 0.1 for values in weights.values())
    head = read.network.sentence_pair.dense
    np.testing.assert_array_equal(head.kernel, state["cls.seq_relationship.weight"].T)


def test_rows_of_no_piece_change_no_probability(tmp_path):
    state = random_state()
    read = read_encoder(write_bert(tmp_path, state))
    hidden = read.network.hidden_states(BATCH, training=False)
    table = numpy_of(read.network.encoder.embeddings.tokens.table)
    np.testing.assert_array_equal(table[len(WORDS) :], 0)
    probabilities = numpy_of(keras.ops.softmax(read.network.masked_logits(hidden)))
    assert probabilities[..., len(WORDS) :].max() == 0


def test_rows_beyond_the_vocabulary_are_left_out(tmp_path):
    """Some models round their table up to a multiple of 64."""
    write_bert(tmp_path / "a")
    plain = read_encoder(tmp_path / "a").network
    state = random_state()
    for name, rows in (
        ("bert.embeddings.word_embeddings.weight", (54, 8)),
        ("cls.predictions.bias", 54),
    ):
        extra = np.zeros(rows, "float32")
        state[name] = np.concatenate([state[name], extra])
    rounded = read_encoder(write_bert(tmp_path / "b", state, {"vocab_size": 64})).network
    assert rounded.config == plain.config
    hidden = numpy_of(rounded.hidden_states(BATCH))
    np.testing.assert_array_equal(hidden, numpy_of(plain.hidden_states(BATCH)))


def test_early_names_are_read(tmp_path):
    state = random_state()
    early = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in state.items()
    }
    early["bert.embeddings.position_ids"] = np.arange(12)[None]
    early["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    ours = [
        read_encoder(write_bert(tmp_path / name, s)) for name, s in (("a", state), ("b", early))
    ]
    for a, b in zip(*(read.network.get_weights() for read in ours), strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours[1].unread == ()


def test_a_body_alone_is_read_and_its_pooler_reaches_a_classifier(tmp_path):
    state = {
        name.removeprefix("bert."): value
        for name, value in random_state().items()
        if name.startswith("bert.")
    }
    read = read_encoder(write_bert(tmp_path, state))
    assert not read.has_masked_language
    assert read.network.sentence_pair is None
    bias = read.network.masked_language.bias
    np.testing.assert_array_equal(bias, 0)
    network = read.classifier(3, head_dropout=0.2, attention_dropout=0.0)
    assert network.config == dataclasses.replace(read.network.config, attention_dropout=0.0)
    np.testing.assert_array_equal(network.pooler.dense.kernel, state["pooler.dense.weight"].T)
    np.testing.assert_array_equal(
        numpy_of(network.encoder(BATCH)), numpy_of(read.network.encoder(BATCH))
    )


def test_a_sentence_transformers_directory_is_read(tmp_path):
    write_bert(tmp_path / "0_Transformer")
    modules = [{"idx": 0, "path": "0_Transformer"}, {"idx": 1, "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert read_encoder(tmp_path).network.config.num_layers == 2
    # Later ones have the model's files at the top.
    (write_bert(tmp_path / "later") / "modules.json").write_text('[{"path": ""}]')
    assert read_encoder(tmp_path / "later").network.config.num_layers == 2


@pytest.mark.parametrize(("lower_case", "expected"), [(True, [5, 8]), (False, [1, 9])])
def test_case_is_as_the_tokenizer_says(lower_case, expected, tmp_path):
    write_bert(tmp_path, tokenizer_config={"do_lower_case": lower_case})
    vocabulary = read_encoder(tmp_path).vocabulary
    assert vocabulary.lower_case == lower_case
    assert vocabulary.encode_lines(["A café"]) == [expected]


def test_a_tokenizer_json_does_instead_of_a_list_of_words(tmp_path):
    write_bert(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = {
        "normalizer": {"type": "BertNormalizer", "lowercase": False, "strip_accents": None},
        "model": {"type": "WordPiece", "vocab": {w: i for i, w in enumerate(WORDS)}},
        "added_tokens": [{"id": 4, "content": "[MASK]"}],
    }

    def write():
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))

    write()
    vocabulary = read_encoder(tmp_path).vocabulary
    assert list(vocabulary.words) == WORDS
    assert not vocabulary.lower_case
    tokenizer["added_tokens"].append({"id": 10, "content": "[ENTITY]"})
    write()
    with pytest.raises(UserError, match=r"adds the token '\[ENTITY\]'"):
        read_encoder(tmp_path)
    tokenizer["model"]["vocab"]["b"] = 99
    write()
    with pytest.raises(UserError, match="leaves out ids between 0 and 99"):
        read_encoder(tmp_path)
    tokenizer["model"]["type"] = "BPE"
    write()
    with pytest.raises(UserError, match="no byte-level BPE"):
        read_encoder(tmp_path)
    tokenizer["model"]["type"] = "WordLevel"
    write()
    with pytest.raises(UserError, match="no WordPiece vocabulary"):
        read_encoder(tmp_path)


def test_nothing_says_whether_text_is_lower_cased(tmp_path):
    write_bert(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match="give lower_case=True or False"):
        read_encoder(tmp_path)
    assert not read_encoder(tmp_path, lower_case=False).vocabulary.lower_case


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": {"model_type": "mpnet"}}, "model_type 'mpnet': only 'bert', 'roberta'"),
        ({"config": {"position_embedding_type": "relative_key"}}, "type='relative_key'"),
        ({"config": {"is_decoder": True}}, "is_decoder=True"),
        ({"config": {"pad_token_id": 1}}, "pad_token_id=1"),
        ({"config": {"hidden_act": "quick_gelu"}}, "hidden_act='quick_gelu'"),
        ({"config": {"num_attention_heads": 3}}, "hidden_dim=8 is not a multiple of num_heads=3"),
        ({"config": {"num_hidden_layers": 3}}, r"no encoder\.layer\.2\.attention\.self\.query"),
        ({"config": {"num_hidden_layers": 1}}, r"has encoder\.layer\.1\.attention"),
        ({"config": {"max_position_embeddings": 16}}, r"positions/table has shape \(16, 8\)"),
        (
            {"config": {"num_hidden_layers": "2"}},
            r"config\.json has num_hidden_layers='2': it must",
        ),
        ({"config": {"num_hidden_layers": None}}, r"config\.json has num_hidden_layers=None"),
        ({"config": {"num_hidden_layers": 2.0}}, "=2.0: it must be a whole number"),
        ({"config": {"num_hidden_layers": True}}, "=True: it must be a whole number"),
        ({"config": {"hidden_dropout_prob": "0.1"}}, "='0.1': it must be a number"),
        ({"config": {"hidden_act": ["gelu"]}}, r"hidden_act=\['gelu'\]: only relu"),
        ({"config": {"layer_norm_eps": None}}, "layer_norm_eps=None"),
        ({"tokenizer_config": {"strip_accents": False}}, "strip_accents=False"),
        ({"tokenizer_config": {"tokenize_chinese_chars": False}}, "chinese_chars=False"),
        ({"tokenizer_config": {"mask_token": "<mask>"}}, "mask_token='<mask>'"),
        ({"words": [*WORDS, "more"]}, "has 11 pieces and the model embeds only 10"),
        ({"words": [WORDS[1], WORDS[0], *WORDS[2:]]}, r"\[PAD\] stands in line 2"),
    ],
)
def test_what_has_no_place_in_our_model_is_refused(changes, reason, tmp_path):
    with pytest.raises(UserError, match=reason):
        read_encoder(write_bert(tmp_path, **changes))


def test_settings_that_a_file_leaves_out_are_those_of_bert_config(tmp_path):
    config = {**CONFIG, "hidden_dropout_prob": 0}
    del config["num_hidden_layers"], config["type_vocab_size"]
    write_bert(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"no encoder\.layer\.2\."):  # of 12
        read_encoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    read = read_encoder(tmp_path).network.config
    assert (read.num_segments, read.dropout) == (2, 0.0)


def test_an_output_layer_of_its_own_is_refused(tmp_path):
    state = random_state()
    state["cls.predictions.decoder.weight"] = np.ones((len(WORDS), 8), "float32")
    with pytest.raises(UserError, match="one table for both"):
        read_encoder(write_bert(tmp_path, state))


def test_missing_and_damaged_files_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        read_encoder(tmp_path)
    write_bert(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-9])
    with pytest.raises(UserError, match="cannot be read"):
        read_encoder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no weights"):
        read_encoder(tmp_path)
    (tmp_path / "model.safetensors.index.json").touch()
    with pytest.raises(UserError, match="in several files"):
        read_encoder(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(UserError, match="neither vocab.txt, .* nor tokenizer.json"):
        read_encoder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is no JSON"):
        read_encoder(tmp_path)


@pytest.mark.parametrize(
    ("package", "file"), [("safetensors", "model.safetensors"), ("torch", "pytorch_model.bin")]
)
def test_a_missing_package_is_named(package, file, tmp_path, monkeypatch):
    write_bert(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / file)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"pip install {package}"):
        read_encoder(tmp_path)
