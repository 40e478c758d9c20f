"""Readers for encoders and GPT-2 from KerasHub, and for BERT from TensorFlow's Model Garden."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError, first_line
from macaron_tf.hub.arrays import Arrays, Table, transformer_layer
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.encoders import EncoderFamily, head_table
from macaron_tf.hub.families.bert import BERT
from macaron_tf.hub.families.gpt import GPT2
from macaron_tf.io.paths import DAMAGE, FILE_ERRORS, read_json
from macaron_tf.layers.dense import activation
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary


def keras_arrays(weights: Mapping[str, np.ndarray]) -> Arrays:
    """Returns Keras weights, by paths such as "layer_0/query/kernel", with PyTorch's names.

    In the names, dots replace slashes. A search for a name finds names with other parts before it.
    """
    names = {**dict.fromkeys(("kernel", "embeddings", "gamma"), "weight"), "beta": "bias"}
    state = {}
    for path, array in weights.items():
        layer, _, variable = path.rpartition("/")
        if variable == "bias":
            array = array.reshape(-1)  # (H, d) -> (H d,)
        if variable == "kernel":
            # Queries, keys and values have biases (H, d) and kernels (D, H, d) -> (D, H d). The
            # output layer has a kernel (H, d, D) -> (H d, D).
            bias = weights.get(f"{layer}/bias")
            heads_last = bias is not None and bias.ndim > 1
            array = array.reshape((len(array), -1) if heads_last else (-1, array.shape[-1])).T
        state[f"{layer}/{names.get(variable, variable)}".replace("/", ".")] = array
    return Arrays(state, by_end=True)


def layer_weights(layers: Mapping[str, keras.layers.Layer]) -> Arrays:
    """Returns the weights of built Keras 3 layers, whose names in the paths are the keys."""
    return keras_arrays(
        {
            f"{name}/{weight.path.partition('/')[2]}": keras.ops.convert_to_numpy(weight)
            for name, layer in layers.items()
            for weight in layer.weights
        }
    )


def activation_name(function: Callable | str | None) -> str:
    """Returns macaron_tf's name of a Keras activation, by its values, as many are lambdas."""
    points = np.linspace(-4, 4, 33, dtype="float32")
    values = np.asarray(keras.activations.get(function)(points))
    names = ("gelu", "gelu_tanh", "relu", "silu", "tanh", "linear")
    for name in names:
        outputs = keras.ops.convert_to_numpy(activation(name)(points))
        # The tolerance separates GELU from its tanh approximation, which differ by up to 5e-4.
        if np.allclose(values, outputs, atol=2e-6, rtol=0):
            return name
    raise UserError(f"the activation {function} is none of {', '.join(names)}: give another model")


def read_checkpoint(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads the TensorFlow checkpoint in a folder, without the variables of the optimizer."""
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    try:
        files = list(directory.glob("*.index"))
        if len(files) != 1:
            raise UserError(f"{directory} contains {len(files)} checkpoints: leave one *.index")
        reader = tf.train.load_checkpoint(str(files[0].with_suffix("")))
        names = [n for n in reader.get_variable_to_shape_map() if n.endswith(value)]
        others = re.compile("^optimizer/|^save_counter/|OPTIMIZER_SLOT")
        names = [name for name in names if not others.search(name)]
        return {name.removesuffix(value): reader.get_tensor(name) for name in names}
    except (*FILE_ERRORS, *DAMAGE) as error:
        why = f"{directory} cannot be read ({first_line(error)})"
        raise UserError(f"{why}: download or copy the checkpoint again") from error


def _keras_hub_layer(attention: str) -> Table:
    return transformer_layer(
        "transformer_layer_{}.",
        [f"{attention}.{part}" for part in ("query", "key", "value", "attention_output")],
        "self_attention_layer_norm",
        ("feedforward_intermediate_dense", "feedforward_output_dense"),
        "feedforward_layer_norm",
    )


_KERAS_HUB = EncoderFamily(
    name="KerasHub's BERT",
    tokens=("token_embedding.weight",),
    table={
        "embeddings/norm": "embeddings_layer_norm",
        "encoder/projection": "embeddings_projection",
        **_keras_hub_layer("self_attention_layer"),
        "pooler/dense": "pooled_dense",
    },
    heads=head_table("masked_lm_head.intermediate_", "layer_norm"),
    positions="position_embedding.weight",
    segments="segment_embedding.weight",
    bias=("masked_lm_head.output_bias",),
    ignored_suffixes=("masked_lm_head.weight",),  # the same table as the token embeddings
)
_KERAS_HUB_GPT2 = dataclasses.replace(
    GPT2,
    name="KerasHub's GPT-2",
    tokens=("token_embedding.weight",),
    table={
        "embeddings/positions": "position_embedding",
        "stack/final_norm": "layer_norm",
        **_keras_hub_layer("self_attention"),
    },
    output_kernel="",
    body_prefixes=("transformer_layer_",),
)
# Classes of the backbones that can be read.
BACKBONES = tuple(
    f"{name}Backbone" for name in ("Bert", "DistilBert", "Electra", "Roberta", "GPT2")
)


def import_keras_hub(
    backbone: keras.Model,
    masked_lm_head: keras.layers.Layer | None = None,
    vocabulary: PieceVocabulary | None = None,
) -> ModelParts:
    """Converts a KerasHub BERT, DistilBERT, ELECTRA, RoBERTa or GPT-2 in memory.

    Args:
        masked_lm_head: built head of a `MaskedLM`, whose activation and epsilon may differ from the
            backbone's settings; `None` means no head.
        vocabulary: vocabulary of the backbone. `None` means that padding has the id 0.
    """
    layers, block = {layer.name: layer for layer in backbone.layers}, backbone.transformer_layers[0]
    settings = {
        "hidden_dim": backbone.hidden_dim,
        "feed_forward_dim": backbone.intermediate_dim,
        "num_heads": backbone.num_heads,
        "num_layers": backbone.num_layers,
        "max_length": backbone.max_sequence_length,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.dropout,
        "activation": activation_name(block.activation),
        "epsilon": block.layer_norm_epsilon,
    }
    if type(backbone).__name__ == "GPT2Backbone":
        settings = {**GPT2.fixed_settings, **settings}
        return _KERAS_HUB_GPT2.convert(layer_weights(layers), settings, vocabulary)
    family, segments = _KERAS_HUB, layers.get("segment_embedding")
    settings["num_segments"] = segments.input_dim if segments else 0
    if "embeddings_projection" in layers:
        settings["embedding_dim"] = backbone.embedding_dim
    if masked_lm_head is not None:
        layers["masked_lm_head"] = masked_lm_head
        options = {
            "activation": activation_name(masked_lm_head.intermediate_activation),
            "epsilon": masked_lm_head.layer_norm_epsilon,
        }
        family = dataclasses.replace(family, head_options=options)
    return family.convert(layer_weights(layers), settings, vocabulary)


# Attributes of Model Garden's `BertEncoderV2`, which are the names of the layers in a checkpoint.
_EMBEDDINGS = ("embedding", "position_embedding", "type_embedding", "embedding_norm")
_MODEL_GARDEN = EncoderFamily(
    name="Model Garden's BERT",
    # In the checkpoint of a pre-trainer, the token embeddings belong to the head.
    tokens=("masked_lm.embedding_table", "_embedding_layer.weight"),
    table={
        "embeddings/norm": "_embedding_norm_layer",
        **transformer_layer(
            "_transformer_layers.{}.",
            [f"_attention_layer._{part}_dense" for part in ("query", "key", "value", "output")],
            "_attention_layer_norm",
            ["_intermediate_dense", "_output_dense"],
            "_output_layer_norm",
        ),
        "pooler/dense": "_pooler_layer",
    },
    heads=head_table("masked_lm.", "layer_norm"),
    positions="_position_embedding_layer.weight",
    segments="_type_embedding_layer.weight",
    # A checkpoint writes "/" within a name as ".S".
    bias=("masked_lm.output_bias.Sbias",),
)
# A next-sentence head has its own pooler, which was trained instead of the encoder's pooler. A
# checkpoint writes "." within a name as "..".
_NEXT_SENTENCE = "next_sentence..pooler_dense"
# In Model Garden, "gelu" means the tanh approximation.
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "swish": "silu", "tanh": "tanh"}


def read_model_garden_bert(directory: str | pathlib.Path, lower_case: bool) -> ModelParts:
    """Reads a BERT that TensorFlow's Model Garden released for TensorFlow 2.

    Args:
        directory: folder with `bert_config.json`, `vocab.txt`, and the checkpoint of an encoder or
            a pre-trainer, such as `bert_model.ckpt-1.index` with its data file.
        lower_case: whether to lower-case text. No file contains this setting, but the name of the
            folder (`uncased_...`) may.
    """
    directory = pathlib.Path(directory)
    file = directory / "bert_config.json"
    config = ForeignConfig(read_json(file), str(file))
    fields = [item for item in BERT.settings.items() if item[0] not in ("epsilon", "activation")]
    settings = {n: config.number(f, value_type=type(default)) for n, (f, default) in fields}
    if config.get("embedding_size") is not None:
        config.require({"embedding_size": settings["hidden_dim"]})
    settings |= {"activation": config.choice("hidden_act", _ACTIVATIONS), "epsilon": 1e-12}
    vocabulary = WordPieceVocabulary.from_file(directory / "vocab.txt", lower_case=lower_case)
    # `BertEncoder` is a functional model, whose checkpoints number the layers. The pooler is last.
    layers = [f"_transformer_layers/{index}" for index in range(settings["num_layers"])]
    layers = [*(f"_{name}_layer" for name in _EMBEDDINGS), *layers, "_pooler_layer"]
    names = {f"layer_with_weights-{index}": name for index, name in enumerate(layers)}
    weights = {
        re.sub(r"layer_with_weights-\d+", lambda match: names.get(match[0], match[0]), name): array
        for name, array in read_checkpoint(directory).items()
    }
    arrays = keras_arrays(weights)
    family = _MODEL_GARDEN
    if arrays.has_layer(_NEXT_SENTENCE):
        table = {**family.table, "pooler/dense": _NEXT_SENTENCE}
        family = dataclasses.replace(family, table=table)
    # Raises a UserError if no pooler follows the last layer: the number of layers is then wrong.
    arrays.array(f"{family.table['pooler/dense']}.weight")
    return family.convert(arrays, settings, vocabulary)
