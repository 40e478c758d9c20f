"""Readers for encoders and GPT-2 from KerasHub, and for BERT from TensorFlow's Model Garden."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError, first_line, needed
from macaron_tf.hub.arrays import Arrays, Raw, Table, transformer_layer
from macaron_tf.hub.config import ForeignConfig, check_files
from macaron_tf.hub.encoders import EncoderFamily, head_table, import_encoder
from macaron_tf.hub.families.bert import BERT
from macaron_tf.hub.families.gpt import GPT2
from macaron_tf.hub.language_models import import_language_model
from macaron_tf.hub.tokenizers.reading import read_keras_hub_vocabulary
from macaron_tf.io.paths import DAMAGE, FILE_ERRORS, read_json
from macaron_tf.layers.dense import activation
from macaron_tf.tasks.model_parts import ModelParts
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary

if TYPE_CHECKING:
    import keras_hub


class KerasArrays(Arrays):
    """Weights of Keras layers, named by variable paths.

    A search for a name finds every path whose last parts are this name. For example, "query/kernel"
    finds "layer_0/query/kernel", but not "layer_0/my_query/kernel".
    """

    kernel_suffix = "/kernel"

    @classmethod
    def of_layers(cls, layers: Mapping[str, keras.layers.Layer]) -> "KerasArrays":
        """Collects the weights of built Keras 3 layers.

        The keys of `layers` replace the layers' own names in the variable paths.
        """
        arrays = {}
        for name, layer in layers.items():
            for weight in layer.weights:
                path = f"{name}/{weight.path.partition('/')[2]}"
                arrays[path] = keras.ops.convert_to_numpy(weight)
        return cls(arrays)

    def find(self, name: str) -> list[str]:
        return [path for path in self.arrays if f"/{path}".endswith(f"/{name}")]

    def layer_array(self, layer: str, variable: str) -> np.ndarray:
        if variable == "table":
            return self.array(f"{layer}/embeddings")
        array = self.array(f"{layer}/{variable}")
        if variable == "bias":
            return array.reshape(-1)  # (H, d) -> (H d,)
        if variable == "kernel":
            # Queries, keys and values have biases (H, d) and kernels (D, H, d) -> (D, H d). The
            # output layer has a kernel (H, d, D) -> (H d, D).
            heads_last = self.array(f"{layer}/bias").ndim > 1
            return array.reshape((len(array), -1) if heads_last else (-1, array.shape[-1]))
        return array


def activation_name(function: Callable | str | None) -> str:
    """Returns macaron_tf's name of a Keras activation. For `None`, the name is "linear".

    The function compares output values, because many activations are lambdas.
    """
    points = np.linspace(-4, 4, 33, dtype="float32")
    values = np.asarray(keras.activations.get(function)(points))
    names = ("gelu", "gelu_tanh", "relu", "silu", "tanh", "linear")
    for name in names:
        outputs = keras.ops.convert_to_numpy(activation(name)(points))
        # The tolerance separates GELU from its tanh approximation, which differ by up to 5e-4.
        if np.allclose(values, outputs, atol=2e-6, rtol=0):
            return name
    raise UserError(
        f"the model has the activation {function}, but only {', '.join(names)} can be read"
    )


def read_checkpoint(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads the TensorFlow checkpoint in a folder, without the variables of the optimizer."""
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    try:
        prefix = tf.train.latest_checkpoint(directory)
        if prefix is None:
            files = list(directory.glob("*.index"))
            if len(files) != 1:
                raise UserError(
                    f"{directory} contains {len(files)} checkpoints: give a folder with one *.index"
                )
            prefix = str(files[0].with_suffix(""))
        reader = tf.train.load_checkpoint(prefix)
        return {
            name.removesuffix(value): reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if name.endswith(value)
            and not re.search("^optimizer/|^save_counter/|OPTIMIZER_SLOT", name)
        }
    except (*FILE_ERRORS, *DAMAGE) as error:
        why = f"{directory} cannot be read ({first_line(error)})"
        raise UserError(f"{why}: download or copy the checkpoint again") from error


def _keras_hub_layer(attention: str) -> Table:
    return transformer_layer(
        "transformer_layer_{}/",
        [f"{attention}/{part}" for part in ("query", "key", "value", "attention_output")],
        "self_attention_layer_norm",
        ("feedforward_intermediate_dense", "feedforward_output_dense"),
        "feedforward_layer_norm",
    )


_KERAS_HUB = EncoderFamily(
    name="KerasHub's BERT",
    tokens=("token_embedding/embeddings",),
    table={
        "embeddings/positions": "position_embedding",
        "embeddings/segments": Raw("segment_embedding/embeddings"),
        "embeddings/norm": "embeddings_layer_norm",
        "encoder/projection": "embeddings_projection",
        **_keras_hub_layer("self_attention_layer"),
        **head_table("masked_lm_head/intermediate_", "layer_norm"),
        "pooler/dense": "pooled_dense",
    },
    bias=("masked_lm_head/output_bias",),
    ignored_suffixes=("masked_lm_head/embeddings",),  # the same table as the token embeddings
)
# Classes of backbones whose tokenizer is WordPiece, or byte-level BPE.
_WORD_PIECES = ("BertBackbone", "DistilBertBackbone", "ElectraBackbone")
_BYTE_PAIRS = ("RobertaBackbone", "GPT2Backbone")
_KERAS_HUB_GPT2 = dataclasses.replace(
    GPT2,
    name="KerasHub's GPT-2",
    tokens=("token_embedding/embeddings",),
    table={
        "embeddings/positions": "position_embedding",
        "stack/final_norm": "layer_norm",
        **_keras_hub_layer("self_attention"),
    },
    output_kernel="",
    body_prefixes=("transformer_layer_",),
)


def _keras_hub_settings(backbone: "keras_hub.models.Backbone") -> dict[str, Any]:
    layer = backbone.transformer_layers[0]
    return {
        "hidden_dim": backbone.hidden_dim,
        "feed_forward_dim": backbone.intermediate_dim,
        "num_heads": backbone.num_heads,
        "num_layers": backbone.num_layers,
        "max_length": backbone.max_sequence_length,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.dropout,
        "activation": activation_name(layer.activation),
        "epsilon": layer.layer_norm_epsilon,
    }


def import_keras_hub_encoder(
    backbone: "keras_hub.models.Backbone",
    masked_lm_head: "keras_hub.layers.MaskedLMHead | None" = None,
    vocabulary: PieceVocabulary | None = None,
) -> ModelParts:
    """Converts a KerasHub BERT, DistilBERT, ELECTRA or RoBERTa in memory to a macaron_tf model.

    Args:
        masked_lm_head: built head of a `MaskedLM`, whose activation and epsilon may differ from the
            backbone's settings; `None` means no head.
        vocabulary: vocabulary of the backbone. `None` means that padding has the id 0.
    """
    settings, family = _keras_hub_settings(backbone), _KERAS_HUB
    layers = {layer.name: layer for layer in backbone.layers}
    segment_layer = layers.get("segment_embedding")
    settings["num_segments"] = segment_layer.input_dim if segment_layer else 0
    if "embeddings_projection" in layers:
        settings["embedding_dim"] = backbone.embedding_dim
    if masked_lm_head is not None:
        layers["masked_lm_head"] = masked_lm_head
        options = {
            "activation": activation_name(masked_lm_head.intermediate_activation),
            "epsilon": masked_lm_head.layer_norm_epsilon,
        }
        family = dataclasses.replace(family, head_options=options)
    return import_encoder(KerasArrays.of_layers(layers), family, settings, vocabulary)


def read_keras_hub(directory: str | pathlib.Path) -> ModelParts:
    """Reads a KerasHub preset of a BERT, DistilBERT, ELECTRA, RoBERTa or GPT-2.

    The head of a `MaskedLM` task is read, and the heads of other tasks are left out (see
    `ModelParts.missing_head`). If the WordPiece tokenizer of the preset lower-cases text, the
    vocabulary of the result also strips accents, as BERT's own tokenizer does. By default,
    KerasHub's tokenizer keeps accents.

    Args:
        directory: folder that `save_to_preset` wrote, or a downloaded preset. The folder contains
            `config.json`, `model.weights.h5`, `tokenizer.json` and the tokenizer's assets. The
            folder of a `MaskedLM` also contains `task.json` and `task.weights.h5`.
    """
    with needed(f"the preset {directory}"):
        import keras_hub
    directory = pathlib.Path(directory)
    check_files(directory, "KerasHub preset", "config.json", "model.weights.h5")
    backbone_class = read_json(directory / "config.json").get("class_name")
    supported = (*_WORD_PIECES, *_BYTE_PAIRS)
    if backbone_class not in supported:
        found = f"{directory}/config.json has class_name={backbone_class!r}"
        raise UserError(f"{found}, but only {', '.join(supported)} can be read")
    task = directory / "task.json"
    task_class = task.is_file() and read_json(task).get("class_name")
    has_masked_lm = task_class == backbone_class.replace("Backbone", "MaskedLM")
    has_masked_lm = has_masked_lm and (directory / "task.weights.h5").is_file()
    vocabulary_file = f"vocabulary.{'txt' if backbone_class in _WORD_PIECES else 'json'}"
    vocabulary = read_keras_hub_vocabulary(directory, vocabulary_file)
    try:
        model_class = keras_hub.models.MaskedLM if has_masked_lm else keras_hub.models.Backbone
        model = model_class.from_preset(str(directory), dtype="float32")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{directory} cannot be read ({first_line(error)}): download or copy the preset again"
        ) from None
    if backbone_class == "GPT2Backbone":
        settings = {**_KERAS_HUB_GPT2.fixed_settings, **_keras_hub_settings(model)}
        arrays = KerasArrays.of_layers({layer.name: layer for layer in model.layers})
        read = import_language_model(arrays, _KERAS_HUB_GPT2, settings, vocabulary)
    else:
        parts = (model.backbone, model.masked_lm_head) if has_masked_lm else (model, None)
        read = import_keras_hub_encoder(*parts, vocabulary)
    if task_class and not has_masked_lm and not task_class.endswith("CausalLM"):
        missing = f"the head of {task_class}"
        read = dataclasses.replace(read, unread=("task.weights.h5",), missing_head=missing)
    return read


# Attributes of Model Garden's `BertEncoderV2`, which are the names of the layers in a checkpoint.
_EMBEDDING_LAYERS = (
    "_embedding_layer",
    "_position_embedding_layer",
    "_type_embedding_layer",
    "_embedding_norm_layer",
)
_MODEL_GARDEN = EncoderFamily(
    name="Model Garden's BERT",
    # In the checkpoint of a pre-trainer, the token embeddings belong to the head.
    tokens=("masked_lm/embedding_table", "_embedding_layer/embeddings"),
    table={
        "embeddings/positions": "_position_embedding_layer",
        "embeddings/segments": Raw("_type_embedding_layer/embeddings"),
        "embeddings/norm": "_embedding_norm_layer",
        **transformer_layer(
            "_transformer_layers/{}/",
            [f"_attention_layer/_{part}_dense" for part in ("query", "key", "value", "output")],
            "_attention_layer_norm",
            ["_intermediate_dense", "_output_dense"],
            "_output_layer_norm",
        ),
        **head_table("masked_lm/", "layer_norm"),
        "pooler/dense": "_pooler_layer",
    },
    # A checkpoint writes "/" within a name as ".S".
    bias=("masked_lm/output_bias.Sbias",),
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
    check_files(directory, "folder of Model Garden's BERT", "bert_config.json", "vocab.txt")
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
    layer_names = dict(enumerate([*_EMBEDDING_LAYERS, *layers, "_pooler_layer"]))

    def layer_name(match: re.Match) -> str:
        return layer_names.get(int(match[1]), match[0])

    numbered, weights = r"layer_with_weights-(\d+)", read_checkpoint(directory).items()
    arrays = KerasArrays({re.sub(numbered, layer_name, name): array for name, array in weights})
    family = _MODEL_GARDEN
    if arrays.has_layer(_NEXT_SENTENCE):
        table = {**family.table, "pooler/dense": _NEXT_SENTENCE}
        family = dataclasses.replace(family, table=table)
    # Raises a UserError if no pooler follows the last layer: the number of layers is then wrong.
    arrays.array(f"{family.table['pooler/dense']}/kernel")
    return import_encoder(arrays, family, settings, vocabulary)
