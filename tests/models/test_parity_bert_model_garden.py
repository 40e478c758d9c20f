"""Our BERT against TensorFlow Model Garden's (tf_keras), from memory and from a checkpoint."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.interop import copy_model_garden_bert, read_model_garden_bert
from macaron_tf.models import EncoderClassifier, EncoderConfig, PretrainingEncoder
from tests.models.bert_parity import (
    HEADS,
    INNER,
    LAYERS,
    LENGTH,
    SEGMENTS,
    SETTINGS,
    VOCAB,
    WIDTH,
    WORDS,
    check_equal,
    check_hidden,
    check_masked_logits,
    inputs,
    noise,
)

tf_keras = pytest.importorskip("tf_keras")
models = pytest.importorskip("official.nlp.modeling.models")
tf_utils = pytest.importorskip("official.modeling.tf_utils")
layers = pytest.importorskip("official.nlp.modeling.layers")
networks = pytest.importorskip("official.nlp.modeling.networks")

# Model Garden's functional encoders are given the head's positions too.
pytestmark = pytest.mark.filterwarnings("ignore:Input dict contained keys")

CONFIG = {
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


def their_inputs():
    batch = inputs()
    mask = (batch["token_ids"] != 0).astype("int32")
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return dict(zip(names, (batch["token_ids"], mask, batch["segment_ids"]), strict=True))


@functools.cache
def pretrainer(kind="BertEncoder", activation="gelu", heads=(), **options):
    """A pre-trainer on a small encoder, with random weights in every place."""
    encoder = getattr(networks, kind)(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_layers=LAYERS,
        num_attention_heads=HEADS,
        inner_dim=INNER,
        max_sequence_length=LENGTH,
        type_vocab_size=SEGMENTS,
        dict_outputs=True,
        **options,
    )
    function = tf_utils.get_activation(activation)
    model = models.BertPretrainerV2(
        encoder, mlm_activation=function, classification_heads=list(heads)
    )
    call(model)
    model.set_weights([w + noise(seed, w.shape) for seed, w in enumerate(model.get_weights())])
    return model


def call(model):
    batch = {k: tf.constant(v) for k, v in their_inputs().items()}
    rows, length = batch["input_word_ids"].shape
    batch["masked_lm_positions"] = tf.tile(tf.range(length)[None], [rows, 1])
    return {k: v for k, v in model(batch, training=False).items() if k != "encoder_outputs"}


def our_config(**options):
    return EncoderConfig(**{**SETTINGS, "activation": "gelu_tanh", **options})


@pytest.mark.parametrize("kind", ["BertEncoder", "BertEncoderV2"])
def test_all_parts_agree(kind):
    theirs = pretrainer(kind)
    expected = call(theirs)
    model, network = PretrainingEncoder(our_config()), EncoderClassifier(our_config(), 2)
    copy_model_garden_bert(model, theirs.encoder_network, theirs.masked_lm)
    hidden = check_hidden(model, expected["sequence_output"])
    check_masked_logits(model, hidden, expected["mlm_logits"])
    copy_model_garden_bert(network, theirs.encoder_network)
    check_equal(network.pooler(hidden), expected["pooled_output"])


def test_the_exact_gelu_is_told_from_its_tanh_form():
    theirs = pretrainer(activation=tf_keras.activations.gelu, inner_activation="gelu")
    model = PretrainingEncoder(our_config(activation="gelu"))
    copy_model_garden_bert(model, theirs.encoder_network, theirs.masked_lm)
    expected = call(theirs)
    hidden = check_hidden(model, expected["sequence_output"])
    check_masked_logits(model, hidden, expected["mlm_logits"])
    with pytest.raises(UserError, match="activation 'gelu' and the model 'gelu_tanh'"):
        copy_model_garden_bert(PretrainingEncoder(our_config()), theirs.encoder_network)


def write(directory, checkpoint, **config):
    checkpoint.save(str(directory / "bert_model.ckpt"))
    # A published folder has no `checkpoint` file that names the last.
    (directory / "checkpoint").unlink()
    (directory / "bert_config.json").write_text(json.dumps({**CONFIG, **config}))
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")


@pytest.mark.parametrize("kind", ["BertEncoder", "BertEncoderV2"])
@pytest.mark.parametrize("part", ["encoder", "model", "items"])
def test_a_checkpoint_is_read(kind, part, tmp_path):
    theirs = pretrainer(kind)
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(theirs.trainable_variables)
    parts = {
        "encoder": {"encoder": theirs.encoder_network},
        "model": {"model": theirs, "optimizer": optimizer},
        "items": theirs.checkpoint_items,
    }
    write(tmp_path, tf.train.Checkpoint(**parts[part]))
    read = read_model_garden_bert(tmp_path, lower_case=True)
    expected = call(theirs)
    hidden = check_hidden(read.model, expected["sequence_output"])
    check_equal(read.classifier(2).pooler(hidden), expected["pooled_output"])
    assert read.has_masked_language == (part != "encoder")
    if read.has_masked_language:
        check_masked_logits(read.model, hidden, expected["mlm_logits"])
    assert read.model.config == our_config()


def test_the_pooler_is_the_one_that_was_trained(tmp_path):
    head = layers.ClassificationHead(inner_dim=WIDTH, num_classes=2, name="next_sentence")
    theirs = pretrainer(heads=(head,))
    write(tmp_path, tf.train.Checkpoint(**theirs.checkpoint_items))
    read = read_model_garden_bert(tmp_path, lower_case=True)
    expected = call(theirs)
    pooled = read.classifier(2).pooler(expected["sequence_output"].numpy())
    check_equal(
        np.asarray(pooled) @ head.out_proj.get_weights()[0],
        expected["next_sentence"] - head.out_proj.get_weights()[1],
    )


def test_what_is_no_bert_is_refused(tmp_path):
    theirs = pretrainer(norm_first=True).encoder_network
    with pytest.raises(UserError, match="norm_first=True"):
        copy_model_garden_bert(PretrainingEncoder(our_config()), theirs)
    with pytest.raises(UserError, match=r"has no bert_config\.json"):
        read_model_garden_bert(tmp_path, lower_case=True)
    write(tmp_path, tf.train.Checkpoint(encoder=theirs), hidden_act="mish")
    with pytest.raises(UserError, match="hidden_act='mish'"):
        read_model_garden_bert(tmp_path, lower_case=True)
    (tmp_path / "bert_config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 9}))
    with pytest.raises(UserError, match="no weight called layer_with_weights-"):
        read_model_garden_bert(tmp_path, lower_case=True)
    (tmp_path / "bert_config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": "2"}))
    with pytest.raises(UserError, match=r"bert_config\.json has num_hidden_layers='2': it must be"):
        read_model_garden_bert(tmp_path, lower_case=True)
    (tmp_path / "bert_config.json").write_text('{"hidden_size": 32}')
    with pytest.raises(UserError, match=r"bert_config\.json has no intermediate_size"):
        read_model_garden_bert(tmp_path, lower_case=True)
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "other.index").touch()
    with pytest.raises(UserError, match="has 2 checkpoints"):
        read_model_garden_bert(tmp_path, lower_case=True)
