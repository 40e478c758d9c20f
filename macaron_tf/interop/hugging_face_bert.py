"""BERT models of Hugging Face, and the encoders of sentence-transformers that are BERTs."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.bert_import import BertImport, import_bert
from macaron_tf.interop.bert_vocabulary import read_hugging_face_vocabulary
from macaron_tf.interop.bert_weights import (
    BertPaths,
    BertWeights,
    MaskedLanguageWeights,
    read_weights,
)
from macaron_tf.interop.hugging_face import (
    ACTIVATIONS,
    TorchArrays,
    read_choice,
    read_config,
    read_json,
    read_number,
    read_state,
)

_PATHS = BertPaths(
    tokens="embeddings/word_embeddings/weight",
    positions="embeddings/position_embeddings/weight",
    segments="embeddings/token_type_embeddings/weight",
    norm="embeddings/LayerNorm",
    layer="encoder/layer/{}",
    query="attention/self/query",
    key="attention/self/key",
    value="attention/self/value",
    output="attention/output/dense",
    inner="intermediate/dense",
    outer="output/dense",
    attention_norm="attention/output/LayerNorm",
    feed_forward_norm="output/LayerNorm",
)
# Settings that our encoder has no place for when they are otherwise, and what they must be.
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
# Ours, by their names, with BertConfig's defaults: `save_pretrained` once left those out.
_SETTINGS = {
    "hidden_dim": ("hidden_size", 768),
    "feed_forward_dim": ("intermediate_size", 3072),
    "num_heads": ("num_attention_heads", 12),
    "num_layers": ("num_hidden_layers", 12),
    "max_length": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "epsilon": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
# Kept twice: the positions 0, 1, 2, ... and the output layer, which is the tokens' table.
_REPEATED = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
)


def read_bert(directory: str | pathlib.Path, lower_case: bool | None = None) -> BertImport:
    """Reads a BERT directory as `save_pretrained` writes it, heads included where there are any.

    Args:
        directory: holds `config.json`, `model.safetensors` or `pytorch_model.bin` (read with the
            safetensors package, or PyTorch, which must be installed), and `vocab.txt` or
            `tokenizer.json`; or a sentence-transformers directory around such a one.
        lower_case: whether text is lower-cased, for a directory whose files do not say so.

    Raises:
        UserError: a file is missing or damaged, or the model has what ours has no place for.
    """
    directory = _transformer_directory(pathlib.Path(directory))
    config = read_config(directory, "bert", "BERT")
    settings = _our_settings(config, str(directory / "config.json"))
    vocabulary = read_hugging_face_vocabulary(directory, lower_case)
    state = read_state(directory)
    weights, unread = _read(state, settings["num_layers"])
    return import_bert(settings, weights, vocabulary, unread)


def _transformer_directory(directory: pathlib.Path) -> pathlib.Path:
    """The model's own one: early sentence-transformers kept it in `0_Transformer`."""
    if (directory / "modules.json").is_file():
        modules = read_json(directory / "modules.json", list)
        return directory / modules[0]["path"]
    return directory


def _our_settings(config: Mapping[str, Any], where: str) -> dict:
    for field, needed in _REQUIRED.items():
        if config.get(field, needed) != needed:
            raise UserError(f"{where} has {field}={config[field]!r}: only {needed!r} can be read.")
    settings = {
        ours: read_number(config, theirs, type(default), where, default)
        for ours, (theirs, default) in _SETTINGS.items()
    }
    name = read_choice(config, "hidden_act", ACTIVATIONS, where, default="gelu")
    return {**settings, "activation": name}


def _read(state: Mapping[str, np.ndarray], num_layers: int) -> tuple[BertWeights, tuple[str, ...]]:
    arrays = TorchArrays({name.removeprefix("bert."): array for name, array in state.items()})
    heads = {}
    if arrays.has("pooler/dense/weight"):
        heads["pooler"] = arrays.dense("pooler/dense")
    if arrays.has("cls/predictions/transform/dense/weight"):
        heads["masked_language"] = MaskedLanguageWeights(
            dense=arrays.dense("cls/predictions/transform/dense"),
            norm=arrays.norm("cls/predictions/transform/LayerNorm"),
            bias=arrays.array("cls/predictions/bias", "cls/predictions/decoder/bias"),
        )
    if "pooler" in heads and arrays.has("cls/seq_relationship/weight"):
        heads["next_sentence"] = arrays.dense("cls/seq_relationship")
    weights = read_weights(arrays, _PATHS, num_layers, **heads)
    output = arrays.state.get("cls.predictions.decoder.weight")
    if output is not None and not np.array_equal(output, weights.tokens):
        raise UserError(
            "the BERT model's cls.predictions.decoder.weight is not its token embeddings: ours "
            "has one table for both."
        )
    unread = sorted(set(arrays.state) - arrays.read - set(_REPEATED))
    inner = [name for name in unread if name.startswith(("embeddings.", "encoder."))]
    if inner:
        raise UserError(f"the BERT model has {inner[0]}, for which ours has no place.")
    return weights, tuple(unread)
