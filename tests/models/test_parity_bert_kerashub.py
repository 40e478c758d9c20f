"""Our BERT against KerasHub's, from memory and from a preset's folder."""

import keras
import numpy as np
import pytest

from macaron_tf.errors import UserError
from macaron_tf.interop import copy_keras_hub_bert, read_keras_hub_bert
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

keras_hub = pytest.importorskip("keras_hub")


def shake(layer):
    layer.set_weights([w + noise(seed, w.shape) for seed, w in enumerate(layer.get_weights())])


@pytest.fixture(scope="module")
def backbone():
    model = keras_hub.models.BertBackbone(
        vocabulary_size=VOCAB,
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=WIDTH,
        intermediate_dim=INNER,
        max_sequence_length=LENGTH,
        num_segments=SEGMENTS,
    )
    shake(model)
    return model


def call(backbone):
    batch = inputs()
    batch["padding_mask"] = (batch["token_ids"] != 0).astype("int32")
    return {name: np.asarray(value) for name, value in backbone(batch, training=False).items()}


def our_config(**options):
    return EncoderConfig(**{**SETTINGS, "activation": "gelu_tanh", **options})


def masked_head(backbone, **options):
    head = keras_hub.layers.MaskedLMHead(token_embedding=backbone.token_embedding, **options)
    head.build((None, None, WIDTH))
    shake(head)
    return head


def test_encoder_and_pooler_agree(backbone):
    network = EncoderClassifier(our_config(), 2)
    copy_keras_hub_bert(network, backbone)
    expected = call(backbone)
    hidden = check_hidden(network, expected["sequence_output"])
    check_equal(network.pooler(hidden), expected["pooled_output"])


def test_a_masked_language_head_agrees(backbone):
    def tanh_form(x):
        return keras.activations.gelu(x, approximate=True)

    table = backbone.token_embedding.get_weights()
    head = masked_head(backbone, intermediate_activation=tanh_form, layer_norm_epsilon=1e-12)
    backbone.token_embedding.set_weights(table)
    model = PretrainingEncoder(our_config())
    copy_keras_hub_bert(model, backbone, head)
    check_head(model, backbone, head)


def check_head(model, backbone, head):
    expected = call(backbone)["sequence_output"]
    hidden = check_hidden(model, expected)
    everywhere = np.tile(np.arange(hidden.shape[1]), (len(hidden), 1))
    check_masked_logits(model, hidden, head(expected, everywhere))


def masked_lm(backbone):
    """A `BertMaskedLM` whose head is as random as the backbone, and its tokenizer."""
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=WORDS, lowercase=True)
    preprocessor = keras_hub.models.BertMaskedLMPreprocessor(tokenizer, sequence_length=8)
    task = keras_hub.models.BertMaskedLM(backbone, preprocessor)
    table = backbone.token_embedding.get_weights()
    shake(task.masked_lm_head)
    backbone.token_embedding.set_weights(table)
    return task, tokenizer


def test_a_preset_is_read_with_its_masked_language_head(backbone, tmp_path):
    task, tokenizer = masked_lm(backbone)
    task.save_to_preset(str(tmp_path))
    read = read_keras_hub_bert(tmp_path)
    expected = call(backbone)
    hidden = check_hidden(read.model, expected["sequence_output"])
    check_equal(read.classifier(2).pooler(hidden), expected["pooled_output"])
    assert read.model.config == our_config()
    assert read.has_masked_language
    check_head(read.model, backbone, task.masked_lm_head)
    copy = PretrainingEncoder.from_config(read.model.get_config())
    assert copy.masked_language.get_config() == read.model.masked_language.get_config()
    text = "AB word3, c abd"
    assert read.vocabulary.encode_lines([text]) == [np.asarray(tokenizer(text)).tolist()]


def test_a_preset_of_another_task_is_read_without_its_head(backbone, tmp_path):
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=WORDS, lowercase=True)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
    classifier = keras_hub.models.BertTextClassifier(backbone, 2, preprocessor)
    classifier.save_to_preset(str(tmp_path))
    read = read_keras_hub_bert(tmp_path)
    check_hidden(read.model, call(backbone)["sequence_output"])
    assert not read.has_masked_language


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"activation": "gelu"}, "backbone has activation='gelu_tanh' and the model 'gelu'"),
        ({"epsilon": 1e-5}, "backbone has epsilon=1e-12 and the model 1e-05"),
        ({"num_layers": 3}, "2 layers and the model has num_layers=3"),
        ({"vocab_size": 56}, r"tokens/table has shape \(56, 32\), what was read has \(44, 32\)"),
        ({"num_segments": 0}, "num_segments=0"),
        ({"block": "macaron"}, "a model with block='macaron'"),
        ({"norm": "pre"}, "a model with norm='pre'"),
        ({"sharing": "all"}, "a model with sharing='all'"),
        ({"num_languages": 2}, "have 0 languages and the model has num_languages=2"),
        ({"embedding_dim": 16}, r"tokens/table has shape \(48, 16\)"),
    ],
)
def test_another_model_is_refused(backbone, options, reason):
    with pytest.raises(UserError, match=reason):
        copy_keras_hub_bert(PretrainingEncoder(our_config(**options)), backbone)


def test_the_head_of_bert_masked_lm_has_settings_of_its_own(backbone):
    head = masked_lm(backbone)[0].masked_lm_head
    with pytest.raises(UserError, match="head has activation='gelu' and the model 'gelu_tanh'"):
        copy_keras_hub_bert(PretrainingEncoder(our_config()), backbone, head)
    options = {"activation": "gelu", "epsilon": 1e-5}
    model = PretrainingEncoder(our_config(), head_options=options)
    copy_keras_hub_bert(model, backbone, head)
    check_head(model, backbone, head)


def test_a_folder_that_is_no_bert_preset_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        read_keras_hub_bert(tmp_path)
    (tmp_path / "config.json").write_text('{"class_name": "GPT2Backbone"}')
    with pytest.raises(UserError, match=r"no model\.weights\.h5"):
        read_keras_hub_bert(tmp_path)
    (tmp_path / "model.weights.h5").touch()
    with pytest.raises(UserError, match="GPT2Backbone: only BertBackbone"):
        read_keras_hub_bert(tmp_path)
    (tmp_path / "config.json").write_text('{"class_name": "BertBackbone"}')
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        read_keras_hub_bert(tmp_path)
