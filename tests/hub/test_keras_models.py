"""Our models agree with KerasHub and TensorFlow Model Garden models that have equal weights."""

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from macaron_tf import hub
from macaron_tf.model import Model
from macaron_tf.models import (
    EncoderConfig,
    PretrainingEncoder,
)
from macaron_tf.text.byte_pairs import BYTE_ALPHABET
from tests.harness import numpy_of, refuses
from tests.toys.hugging_face import check_equal, noise

keras_hub = pytest.importorskip("keras_hub")

from macaron_tf.hub.keras_hub import read_preset  # noqa: E402

# Of the table's 48 rows, 4 have no token.
VOCAB, WIDTH, INNER, HEADS, LAYERS, LENGTH, SEGMENTS = 44, 32, 64, 4, 2, 16, 3
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b", "##c"]
WORDS += [f"word{i}" for i in range(VOCAB - len(WORDS))]
CONFIG = EncoderConfig(
    48,
    WIDTH,
    INNER,
    HEADS,
    LAYERS,
    max_length=LENGTH,
    num_segments=SEGMENTS,
    activation="gelu_tanh",
)

SIZES = {
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "hidden_dim": WIDTH,
    "intermediate_dim": INNER,
    "max_sequence_length": LENGTH,
}


def inputs() -> dict[str, np.ndarray]:
    """Returns token ids and segment ids of five padded rows: `(5, 13)`."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, VOCAB, (5, 13)).astype("int32")
    segments = np.zeros_like(tokens)
    for row, length in enumerate((13, 9, 2, 12, 9)):
        tokens[row, 0] = 2
        tokens[row, length:] = 0
        segments[row, length // 2 : length] = 1 + row % 2
    return {"token_ids": tokens, "segment_ids": segments}


def shake(layer):
    layer.set_weights([w + noise(seed, w.shape) for seed, w in enumerate(layer.get_weights())])


@pytest.fixture(scope="module")
def backbone():
    model = keras_hub.models.BertBackbone(vocabulary_size=VOCAB, num_segments=SEGMENTS, **SIZES)
    shake(model)
    return model


def check_bert(read, hidden, pooled, logits=None):
    """Checks that our BERT has the given hidden states, pooled vectors and token logits.

    `logits` is `None` for a model without a masked-token head. Rows of the embedding table without
    a token must have logits below -9,000.
    """
    real = inputs()["token_ids"] != 0
    found = numpy_of(read.network.encoder(inputs(), training=False))
    check_equal(found[real], np.asarray(hidden)[real])
    check_equal(read.network.pooler(found), pooled)
    assert (read.card.objective == "masked_language") == (logits is not None)
    if logits is not None:
        scores = numpy_of(read.network.masked_logits(found))
        check_equal(scores[..., :VOCAB][real], np.asarray(logits)[real])
        assert (scores[..., VOCAB:] < -9_000).all()
    assert read.config == CONFIG


def check_backbone(read, backbone, head=None):
    batch = inputs()
    mask = (batch["token_ids"] != 0).astype("int32")
    expected = backbone({**batch, "padding_mask": mask}, training=False)
    logits, hidden = None, expected["sequence_output"]
    if head is not None:
        everywhere = np.tile(np.arange(hidden.shape[1]), (len(hidden), 1))
        logits = head(hidden, everywhere)
    check_bert(read, hidden, expected["pooled_output"], logits)


def shake_head(head, backbone):
    """Draws random weights for a head, except the embedding table, which the backbone shares."""
    table = backbone.token_embedding.get_weights()
    shake(head)
    backbone.token_embedding.set_weights(table)


def tanh_form(x):
    return keras.activations.gelu(x, approximate=True)


# `BertMaskedLM`'s head has exact GELU and epsilon 1e-5, on a backbone with tanh GELU and 1e-12.
@pytest.mark.parametrize(
    ("activation", "name", "epsilon"),
    [(tanh_form, "gelu_tanh", 1e-12), ("gelu", "gelu", 1e-5), (None, None, None)],
)
def test_a_keras_hub_bert_in_memory_agrees(backbone, activation, name, epsilon):
    head = None
    if name:
        options = {"intermediate_activation": activation, "layer_norm_epsilon": epsilon}
        head = keras_hub.layers.MaskedLMHead(token_embedding=backbone.token_embedding, **options)
        head.build((None, None, WIDTH))
        shake_head(head, backbone)
    read = hub.import_keras_hub(backbone, head)
    check_backbone(read, backbone, head)
    if head:
        assert read.network.head_options == {"activation": name, "epsilon": epsilon}


def tokenizer(lowercase=True, **options):
    return keras_hub.models.BertTokenizer(vocabulary=WORDS, lowercase=lowercase, **options)


@pytest.mark.parametrize("task", ["BertMaskedLM", "BertTextClassifier"])
def test_a_preset_is_read_with_its_masked_language_head(task, backbone, tmp_path):
    kind, options = getattr(keras_hub.models, task), {}
    if task == "BertTextClassifier":
        options["num_classes"] = 2
    preprocessor = kind.preprocessor_cls(tokenizer(), sequence_length=8)
    model = kind(backbone=backbone, preprocessor=preprocessor, **options)
    head = None
    if task == "BertMaskedLM":
        head = model.masked_lm_head
        shake_head(head, backbone)
    model.save_to_preset(str(tmp_path))
    read = Model(**vars(read_preset(tmp_path)))
    check_backbone(read, backbone, head)
    if head:
        assert read.card.unread == () and read.predict("a [MASK]")["words"]
    else:
        assert read.card.unread == ("task.weights.h5",)
        refuses("the head of BertTextClassifier was not read: fine-tune", read.predict, "a")
    copy = PretrainingEncoder.from_config(read.network.get_config())
    assert copy.masked_language.get_config() == read.network.masked_language.get_config()
    text = "AB word3, c abd"
    assert read.vocabulary.encode_lines([text]) == [np.asarray(tokenizer()(text)).tolist()]


BYTES = [*BYTE_ALPHABET, "Ġa", "ab"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", *BYTES, "<mask>"]


@pytest.mark.parametrize("name", ["DistilBert", "Electra", "Roberta", "GPT2"])
def test_presets_of_other_families_agree(name, tmp_path):
    kinds = keras_hub.models
    pieces = {"Roberta": ROBERTA, "GPT2": [*BYTES, "<|endoftext|>"]}.get(name, WORDS)
    sizes = {"embedding_dim": 8, "vocab_size": len(pieces)} if name == "Electra" else {}
    sizes = sizes or {"vocabulary_size": len(pieces)}
    backbone = vars(kinds)[f"{name}Backbone"](**SIZES, **sizes)
    shake(backbone)
    backbone.save_to_preset(str(tmp_path))
    options = {"vocabulary": pieces, "lowercase": True}
    if name in ("Roberta", "GPT2"):
        numbers = {piece: number for number, piece in enumerate(pieces)}
        options = {"vocabulary": numbers, "merges": ["Ġ a", "a b"]}
    cutter = vars(kinds)[f"{name}Tokenizer"](**options)
    cutter.save_to_preset(str(tmp_path))
    read = read_preset(tmp_path)
    text = "ab a fgh"
    [ours], theirs = read.vocabulary.encode_lines([text]), np.asarray(cutter(text))
    np.testing.assert_array_equal(ours, theirs)
    row = theirs[None]
    given = {"token_ids": row, "padding_mask": np.ones_like(row)}
    if name == "Electra":
        given["segment_ids"] = np.zeros_like(row)
    expected = backbone(given)
    if name == "GPT2":
        expected = backbone.token_embedding(expected, reverse=True)
        found = numpy_of(read.network(np.array([ours])))[..., : len(pieces)]  # `(1, L, V')`
    else:
        found = read.network.encoder({"token_ids": np.array([ours])})
    check_equal(found, numpy_of(expected["sequence_output"] if name == "Electra" else expected))


tf_keras = pytest.importorskip("tf_keras")
models = pytest.importorskip("official.nlp.modeling.models")
tf_utils = pytest.importorskip("official.modeling.tf_utils")
layers = pytest.importorskip("official.nlp.modeling.layers")
networks = pytest.importorskip("official.nlp.modeling.networks")

# Model Garden's functional encoders receive unused inputs.
pytestmark = pytest.mark.filterwarnings("ignore:Input dict contained keys")

MODEL_GARDEN = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": LENGTH,
    "type_vocab_size": SEGMENTS,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}


@functools.cache
def pretrainer(kind="BertEncoder", heads=()):
    """Returns a Model Garden pre-trainer on a small encoder with random weights."""
    encoder = getattr(networks, kind)(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_layers=LAYERS,
        num_attention_heads=HEADS,
        inner_dim=INNER,
        max_sequence_length=LENGTH,
        type_vocab_size=SEGMENTS,
        dict_outputs=True,
    )
    model = models.BertPretrainerV2(
        encoder,
        mlm_activation=tf_utils.get_activation("gelu"),
        classification_heads=list(heads),
    )
    call_pretrainer(model)
    shake(model)
    return model


def call_pretrainer(model):
    batch = inputs()
    rows, length = batch["token_ids"].shape
    theirs = {
        "input_word_ids": batch["token_ids"],
        "input_mask": (batch["token_ids"] != 0).astype("int32"),
        "input_type_ids": batch["segment_ids"],
        "masked_lm_positions": np.tile(np.arange(length), (rows, 1)),
    }
    found = model({name: tf.constant(value) for name, value in theirs.items()}, training=False)
    return {name: value for name, value in found.items() if name != "encoder_outputs"}


def write(directory, checkpoint, **config):
    checkpoint.save(str(directory / "bert_model.ckpt"))
    # Published folders have no `checkpoint` file.
    (directory / "checkpoint").unlink()
    (directory / "bert_config.json").write_text(json.dumps({**MODEL_GARDEN, **config}))
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")


@pytest.mark.parametrize("kind", ["BertEncoder", "BertEncoderV2"])
@pytest.mark.parametrize("part", ["encoder", "model", "items"])
def test_a_model_garden_checkpoint_is_read(kind, part, tmp_path):
    theirs = pretrainer(kind)
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(theirs.trainable_variables)
    parts = {
        "encoder": {"encoder": theirs.encoder_network},
        "model": {"model": theirs, "optimizer": optimizer},
        "items": theirs.checkpoint_items,
    }
    write(tmp_path, tf.train.Checkpoint(**parts[part]))
    read = hub.read_model_garden_bert(tmp_path, lower_case=True)
    expected = call_pretrainer(theirs)
    logits = None if part == "encoder" else expected["mlm_logits"]
    check_bert(read, expected["sequence_output"], expected["pooled_output"], logits)


def test_the_name_of_a_model_garden_folder_says_whether_text_is_lower_cased(tmp_path):
    for name in ("uncased_L-2", "cased_L-2", "bert"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, tf.train.Checkpoint(encoder=pretrainer().encoder_network))
    for name, given, expected in (
        ("uncased_L-2", None, True),
        ("cased_L-2", None, False),
        ("bert", True, True),
    ):
        found = macaron_tf.load(f"model-garden:{tmp_path / name}", lower_case=given)
        assert found.vocabulary.lower_case == expected and found.card.name == name
    refuses("neither the files nor the name", macaron_tf.load, f"model-garden:{tmp_path / 'bert'}")


def test_the_pooler_is_the_one_that_was_trained(tmp_path):
    head = layers.ClassificationHead(inner_dim=WIDTH, num_classes=2, name="next_sentence")
    theirs = pretrainer(heads=(head,))
    write(tmp_path, tf.train.Checkpoint(**theirs.checkpoint_items))
    read = hub.read_model_garden_bert(tmp_path, lower_case=True)
    expected = call_pretrainer(theirs)
    pooled = read.network.pooler(expected["sequence_output"].numpy())
    check_equal(
        np.asarray(pooled) @ head.out_proj.get_weights()[0],
        expected["next_sentence"] - head.out_proj.get_weights()[1],
    )


def test_a_folder_that_is_no_model_garden_bert_is_one_sentence(tmp_path):
    def read(reason):
        refuses(reason, hub.read_model_garden_bert, tmp_path, lower_case=True)

    read(r"cannot read .*bert_config\.json")
    for config, reason in (
        ({"num_hidden_layers": 9}, "no array called _pooler_layer.weight"),
        ({"embedding_size": 16}, "embedding_size=16, but only 32"),
        ({"hidden_act": "mish"}, "hidden_act='mish'"),
    ):
        write(tmp_path, tf.train.Checkpoint(encoder=pretrainer().encoder_network), **config)
        read(reason)
    write(tmp_path, tf.train.Checkpoint(encoder=pretrainer().encoder_network))
    (tmp_path / "other.index").touch()
    read("contains 2 checkpoints")
    (tmp_path / "other.index").unlink()
    for file in (*tmp_path.glob("*.data-*"), *tmp_path.glob("*.index")):
        file.write_bytes(b"")
        read(r"cannot be read \(.*: download or copy the checkpoint again")
    (tmp_path / "bert_config.json").write_text('{"hidden_size": 32}')
    read(r"bert_config\.json lacks the field num_attention_heads")
