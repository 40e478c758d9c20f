"""BERT models of KerasHub: a backbone in memory, or a preset's folder."""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from macaron_tf.errors import UserError
from macaron_tf.interop.bert_vocabulary import read_keras_hub_vocabulary
from macaron_tf.interop.encoder_import import EncoderImport, import_encoder
from macaron_tf.interop.encoder_weights import (
    EncoderPaths,
    EncoderWeights,
    MaskedLanguageWeights,
    assign_encoder,
    read_weights,
)
from macaron_tf.interop.hugging_face import read_json
from macaron_tf.interop.keras_arrays import KerasArrays, activation_name
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.models.tasks import EncoderClassifier

if TYPE_CHECKING:
    import keras_hub

_PATHS = EncoderPaths(
    tokens="token_embedding/embeddings",
    positions="position_embedding/embeddings",
    segments="segment_embedding/embeddings",
    norm="embeddings_layer_norm",
    layer="transformer_layer_{}",
    query="self_attention_layer/query",
    key="self_attention_layer/key",
    value="self_attention_layer/value",
    output="self_attention_layer/attention_output",
    inner="feedforward_intermediate_dense",
    outer="feedforward_output_dense",
    attention_norm="self_attention_layer_norm",
    feed_forward_norm="feedforward_layer_norm",
)


def copy_keras_hub_bert(
    model: PretrainingEncoder | EncoderClassifier,
    backbone: "keras_hub.models.BertBackbone",
    masked_lm_head: "keras_hub.layers.MaskedLMHead | None" = None,
) -> None:
    """Copies a KerasHub BERT into our model, its pooler too where ours has one.

    Args:
        model: a BERT of the same shapes, with their `activation="gelu_tanh"` and
            `epsilon=1e-12`, and up to 7 more tokens.
        backbone: built.
        masked_lm_head: built; for a model whose head has its activation and epsilon. Those of
            `BertMaskedLM`, on a backbone with the tanh form and 1e-12, are the exact GELU and
            1e-5: `head_options={"activation": "gelu", "epsilon": 1e-5}`.

    Raises:
        UserError: a shape or a setting differs; the sentence names it.
    """
    ours = {"activation": model.config.activation, "epsilon": model.config.epsilon}
    _check_settings(ours, _activation_and_epsilon(backbone), "backbone")
    masked_language = None
    if masked_lm_head is not None and isinstance(model, PretrainingEncoder):
        masked_language = _read_head(masked_lm_head)
        head = model.masked_language
        ours = {"activation": activation_name(head.activation), "epsilon": head.epsilon}
        _check_settings(ours, masked_language.options, "masked language head")
    assign_encoder(model, _read(backbone, masked_language=masked_language))


def read_keras_hub_bert(directory: str | pathlib.Path) -> EncoderImport:
    """Reads a BERT preset's folder as KerasHub's `save_to_preset` writes it.

    The head of a `BertMaskedLM` is read, another task's is left behind. Text is cut as BERT's
    tokenizer does, which for lower-cased text also strips accents; KerasHub's keeps them.

    Args:
        directory: holds `config.json`, `model.weights.h5`, `tokenizer.json` and the tokenizer's
            assets, of a `BertMaskedLM` also `task.json` and `task.weights.h5`; or a downloaded
            preset with these files.

    Raises:
        UserError: a file is missing, the preset is of another model, or keras_hub is not
            installed.
    """
    try:
        import keras_hub
    except ImportError:
        raise UserError(
            f"reading the preset {directory} needs a package: pip install keras-hub."
        ) from None
    directory = pathlib.Path(directory)
    for name in ("config.json", "model.weights.h5"):
        if not (directory / name).is_file():
            raise UserError(f"{directory} is no KerasHub preset: it has no {name}.")
    kind = read_json(directory / "config.json").get("class_name")
    if kind != "BertBackbone":
        raise UserError(f"{directory}/config.json has a {kind}: only BertBackbone can be read.")
    vocabulary = read_keras_hub_vocabulary(directory)
    heads = {}
    if _is_masked_lm(directory):
        task = keras_hub.models.BertMaskedLM.from_preset(str(directory), dtype="float32")
        backbone = task.backbone
        heads["masked_language"] = _read_head(task.masked_lm_head)
    else:
        backbone = keras_hub.models.BertBackbone.from_preset(str(directory), dtype="float32")
    settings = {
        "hidden_dim": backbone.hidden_dim,
        "feed_forward_dim": backbone.intermediate_dim,
        "num_heads": backbone.num_heads,
        "num_layers": backbone.num_layers,
        "max_length": backbone.max_sequence_length,
        "num_segments": backbone.num_segments,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.dropout,
        **_activation_and_epsilon(backbone),
    }
    return import_encoder(settings, _read(backbone, **heads), vocabulary)


def _is_masked_lm(directory: pathlib.Path) -> bool:
    task = directory / "task.json"
    if not task.is_file() or not (directory / "task.weights.h5").is_file():
        return False
    return read_json(task).get("class_name") == "BertMaskedLM"


def _read(backbone: "keras_hub.models.BertBackbone", **heads) -> EncoderWeights:
    arrays = KerasArrays.of_layer(backbone)
    pooler = arrays.dense("pooled_dense")
    return read_weights(arrays, _PATHS, backbone.num_layers, pooler=pooler, **heads)


def _activation_and_epsilon(backbone: "keras_hub.models.BertBackbone") -> dict:
    layer = backbone.transformer_layers[0]
    return {
        "activation": activation_name(layer.activation),
        "epsilon": layer.layer_norm_epsilon,
    }


def _read_head(head: "keras_hub.layers.MaskedLMHead") -> MaskedLanguageWeights:
    arrays = KerasArrays.of_layer(head)
    return MaskedLanguageWeights(
        dense=arrays.dense("intermediate_dense"),
        norm=arrays.norm("intermediate_layer_norm"),
        bias=arrays.array("output_bias"),
        options={
            "activation": activation_name(head.intermediate_activation),
            "epsilon": head.layer_norm_epsilon,
        },
    )


def _check_settings(ours: Mapping, theirs: Mapping, name: str) -> None:
    for field, value in theirs.items():
        if ours[field] != value:
            raise UserError(
                f"KerasHub's {name} has {field}={value!r} and the model {ours[field]!r}: they "
                "must be the same."
            )
