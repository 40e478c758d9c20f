"""BERT models of TensorFlow's Model Garden: an encoder in memory, or a checkpoint's folder."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.interop.encoder_import import EncoderImport, import_encoder
from macaron_tf.interop.encoder_weights import (
    EncoderPaths,
    EncoderWeights,
    MaskedLanguageWeights,
    assign_encoder,
    read_weights,
)
from macaron_tf.interop.hugging_face import read_choice, read_json, read_number
from macaron_tf.interop.keras_arrays import KerasArrays, activation_name
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.models.tasks import EncoderClassifier
from macaron_tf.text.wordpiece import WordPieceVocabulary

if TYPE_CHECKING:
    import tf_keras

# Names of variables.
_VARIABLES = EncoderPaths(
    tokens="word_embeddings/embeddings",
    positions="position_embedding/embeddings",
    segments="type_embeddings/embeddings",
    norm="embeddings/layer_norm",
    layer="transformer/layer_{}",
    query="self_attention/query",
    key="self_attention/key",
    value="self_attention/value",
    output="self_attention/attention_output",
    inner="intermediate",
    outer="output",
    attention_norm="self_attention_layer_norm",
    feed_forward_norm="output_layer_norm",
)
# Paths of attributes in a checkpoint of `BertEncoderV2`, and in one of `BertEncoder`, which as a
# functional model has numbers for layers.
_ATTRIBUTES = EncoderPaths(
    tokens="_embedding_layer/embeddings",
    positions="_position_embedding_layer/embeddings",
    segments="_type_embedding_layer/embeddings",
    norm="_embedding_norm_layer",
    layer="_transformer_layers/{}",
    query="_attention_layer/_query_dense",
    key="_attention_layer/_key_dense",
    value="_attention_layer/_value_dense",
    output="_attention_layer/_output_dense",
    inner="_intermediate_dense",
    outer="_output_dense",
    attention_norm="_attention_layer_norm",
    feed_forward_norm="_output_layer_norm",
)
_NUMBERS = dataclasses.replace(
    _ATTRIBUTES,
    tokens="layer_with_weights-0/embeddings",
    positions="layer_with_weights-1/embeddings",
    segments="layer_with_weights-2/embeddings",
    norm="layer_with_weights-3",
    layer="layer_with_weights-{}",
    first_layer=4,
)
# A pre-trainer's checkpoint keeps the tokens' table with the head.
_TABLE_OF_HEAD = "masked_lm/embedding_table"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_EPSILON = 1e-12
# Ours, by their names.
_SETTINGS = {
    "hidden_dim": ("hidden_size", int),
    "feed_forward_dim": ("intermediate_size", int),
    "num_heads": ("num_attention_heads", int),
    "num_layers": ("num_hidden_layers", int),
    "max_length": ("max_position_embeddings", int),
    "num_segments": ("type_vocab_size", int),
    "dropout": ("hidden_dropout_prob", float),
    "attention_dropout": ("attention_probs_dropout_prob", float),
    "initializer_range": ("initializer_range", float),
}
# Model Garden's "gelu" is the tanh form.
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "swish": "silu", "tanh": "tanh"}


def copy_model_garden_bert(
    model: PretrainingEncoder | EncoderClassifier,
    encoder: "tf_keras.layers.Layer",
    masked_lm: "tf_keras.layers.Layer | None" = None,
) -> None:
    """Copies a Model Garden BERT into our model, its pooler too where ours has one.

    Args:
        model: a BERT of the same shapes and activation, with `epsilon=1e-12` and up to 7 more
            tokens. Model Garden's own activation is `"gelu_tanh"`.
        encoder: `official.nlp.modeling.networks.BertEncoder` or a built `BertEncoderV2`.
        masked_lm: `official.nlp.modeling.layers.MaskedLM`, built, with the encoder's activation.

    Raises:
        UserError: a shape or a setting differs; the sentence names it.
    """
    config = encoder.get_config()
    if config["norm_first"] or config["embedding_width"] != config["hidden_size"]:
        raise UserError(
            "the Model Garden encoder has norm_first=True or an embedding_width other than its "
            "hidden_size: only a BERT can be read."
        )
    # The configuration has only a lambda's name.
    _check_activation(model, encoder.transformer_layers[0].get_config()["inner_activation"])
    if model.config.epsilon != _EPSILON:
        raise UserError(
            f"Model Garden's BERT has epsilon={_EPSILON} and the model {model.config.epsilon}: "
            "they must be the same."
        )
    masked_language = None
    if masked_lm is not None:
        _check_activation(model, masked_lm.activation)
        arrays = _arrays(masked_lm)
        masked_language = MaskedLanguageWeights(
            dense=arrays.dense("transform/dense"),
            norm=arrays.norm("transform/LayerNorm"),
            bias=arrays.array("output_bias/bias"),
        )
    arrays = _arrays(encoder)
    weights = read_weights(
        arrays,
        _VARIABLES,
        config["num_layers"],
        pooler=arrays.dense("pooler_transform"),
        masked_language=masked_language,
    )
    assign_encoder(model, weights)


def read_model_garden_bert(directory: str | pathlib.Path, lower_case: bool) -> EncoderImport:
    """Reads a folder of Model Garden's BERT for TensorFlow 2, as it is published.

    Args:
        directory: holds `bert_config.json`, `vocab.txt` and a checkpoint of the encoder or of a
            pre-trainer, such as `bert_model.ckpt-1.index` and its data.
        lower_case: whether text is lower-cased: no file says so, the folder's name
            (`uncased_...`) may.

    Raises:
        UserError: a file is missing, or the checkpoint is of another model.
    """
    directory = pathlib.Path(directory)
    for name in ("bert_config.json", "vocab.txt"):
        if not (directory / name).is_file():
            raise UserError(f"{directory} is no folder of Model Garden's BERT: it has no {name}.")
    file = directory / "bert_config.json"
    settings = _our_settings(read_json(file), str(file))
    vocabulary = WordPieceVocabulary.from_file(directory / "vocab.txt", lower_case=lower_case)
    arrays = KerasArrays(_read_checkpoint(directory))
    return import_encoder(settings, _checkpoint_weights(arrays, settings["num_layers"]), vocabulary)


def _arrays(layer: "tf_keras.layers.Layer") -> KerasArrays:
    return KerasArrays({w.name.removesuffix(":0"): w.numpy() for w in layer.weights})


def _check_activation(model: PretrainingEncoder | EncoderClassifier, function) -> None:
    name = activation_name(function)
    if model.config.activation != name:
        raise UserError(
            f"Model Garden's layer has the activation {name!r} and the model "
            f"{model.config.activation!r}: they must be the same."
        )


def _our_settings(config: Mapping[str, Any], where: str) -> dict:
    if config.get("embedding_size") not in (None, config.get("hidden_size")):
        raise UserError(
            f"{where} has embedding_size={config['embedding_size']!r}: only hidden_size can be "
            "read."
        )
    settings = {
        ours: read_number(config, theirs, kind, where) for ours, (theirs, kind) in _SETTINGS.items()
    }
    name = read_choice(config, "hidden_act", _ACTIVATIONS, where)
    return {**settings, "activation": name, "epsilon": _EPSILON}


def _read_checkpoint(directory: pathlib.Path) -> dict:
    prefix = tf.train.latest_checkpoint(directory)
    if prefix is None:
        files = list(directory.glob("*.index"))
        if len(files) != 1:
            raise UserError(
                f"{directory} has {len(files)} checkpoints (files ending in .index): leave one."
            )
        prefix = str(files[0].with_suffix(""))
    reader = tf.train.load_checkpoint(prefix)
    names = reader.get_variable_to_shape_map()
    return {
        name.removesuffix(_VALUE): reader.get_tensor(name)
        for name in names
        if name.endswith(_VALUE) and "OPTIMIZER_SLOT" not in name
    }


def _checkpoint_weights(arrays: KerasArrays, num_layers: int) -> EncoderWeights:
    paths, pooler = _ATTRIBUTES, "_pooler_layer"
    if any(arrays.found(_NUMBERS.positions)):
        paths, pooler = _NUMBERS, f"layer_with_weights-{_NUMBERS.first_layer + num_layers}"
    masked_language = None
    if any(arrays.found(_TABLE_OF_HEAD)):
        paths = dataclasses.replace(paths, tokens=_TABLE_OF_HEAD)
        masked_language = MaskedLanguageWeights(
            dense=arrays.dense("masked_lm/dense"),
            norm=arrays.norm("masked_lm/layer_norm"),
            # A checkpoint's spelling of output_bias/bias.
            bias=arrays.array("masked_lm/output_bias.Sbias"),
        )
    # Its next-sentence head has a pooler of its own, trained in place of the encoder's; a
    # checkpoint's spelling of next_sentence.pooler_dense.
    if any(arrays.found("next_sentence..pooler_dense/kernel")):
        pooler = "next_sentence..pooler_dense"
    return read_weights(
        arrays, paths, num_layers, pooler=arrays.dense(pooler), masked_language=masked_language
    )
