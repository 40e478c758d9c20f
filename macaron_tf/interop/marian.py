"""MarianMT and BART models of Hugging Face: their weights in our encoder-decoder."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.assign import assign, assign_attention, assign_dense, assign_norm
from macaron_tf.interop.hugging_face import (
    ACTIVATIONS,
    read_choice,
    read_config,
    read_number,
    read_state,
)
from macaron_tf.interop.sequence_import import SequenceImport, order_of_ids, read_table
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder

# Settings that our model has no place for when they are otherwise, and what they must be.
_REQUIRED = {
    "normalize_before": False,
    "add_final_layer_norm": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
_MARIAN = {
    "normalize_embedding": False,
    "scale_embedding": True,
    "static_position_embeddings": True,
}
# In BART's vocabulary, which its configuration does not say.
_BART_UNKNOWN = 3
# BART's tables of positions begin with two that are never used.
_BART_OFFSET = 2
# The one table's names: `save_pretrained` keeps only one of the tied.
_TABLES = ("model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
_ATTENTION_PARTS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


def read_marian(directory: str | pathlib.Path) -> SequenceImport:
    """Reads a MarianMT directory as `save_pretrained` writes it.

    Args:
        directory: holds `config.json` and `model.safetensors` or `pytorch_model.bin` (read with
            the safetensors package, or PyTorch, which must be installed).

    Raises:
        UserError: a file is missing, or the model has what ours has no place for.
    """
    directory = pathlib.Path(directory)
    config = read_config(directory, ("marian",))
    return _read(read_state(directory), config, str(directory / "config.json"))


def read_marian_state(state: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> SequenceImport:
    """Makes our model of a MarianMTModel's `state_dict` and configuration.

    Args:
        state: arrays by PyTorch's names.
        config: the fields of its `MarianConfig`.

    Raises:
        UserError: the model has what ours has no place for; the sentence names the field.
    """
    return _read(state, config, "the MarianMT configuration")


def read_bart(directory: str | pathlib.Path, ids: np.ndarray | None = None) -> SequenceImport:
    """Reads a directory of a BartForConditionalGeneration, see `read_marian`.

    Args:
        directory: as there.
        ids: theirs at each of ours, in another order than that of `order_of_ids`.

    Raises:
        UserError: as `read_marian`.
    """
    directory = pathlib.Path(directory)
    config, where = read_config(directory, ("bart",)), str(directory / "config.json")
    ids = order_of_ids(config, where, _BART_UNKNOWN) if ids is None else ids
    return _read(read_state(directory), config, where, ids)


def _read(
    state: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    where: str,
    ids: np.ndarray | None = None,
) -> SequenceImport:
    """BART where `ids` are given, else MarianMT."""
    bart = ids is not None
    ids = ids if bart else order_of_ids(config, where)
    bias = np.asarray(state.get("final_logits_bias", 0.0))
    settings = _bart_settings(config, where) if bart else _marian_settings(config, where)
    model = EncoderDecoder(
        dataclasses.replace(
            _our_config(config, len(ids), where), **settings, logits_bias=bool(np.any(bias))
        )
    )
    model.build()
    assign(model.embedding.table, read_table(state, _TABLES, ids, where))
    if model.logits_bias is not None:
        assign(model.logits_bias, bias.reshape(-1)[ids])
    try:
        for stack, embeddings, name, cross in (
            (model.encoder, model.source_embeddings, "encoder", False),
            (model.decoder, model.target_embeddings, "decoder", True),
        ):
            if bart:
                positions = np.asarray(state[f"model.{name}.embed_positions.weight"])
                assign(embeddings.position_layer.table, positions[_BART_OFFSET:])
                norm = f"model.{name}.layernorm_embedding"
                parts = [np.asarray(state[f"{norm}.{part}"]) for part in ("weight", "bias")]
                assign_norm(embeddings.layer_norm, parts)
            for number, block in enumerate(stack.blocks):
                _read_block(block, state, f"model.{name}.layers.{number}", cross)
    except KeyError as error:
        raise UserError(f"the model to be read has no {error}.") from None
    return SequenceImport(model, ids)


def _marian_settings(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    # MarianConfig's default, which no MarianMT model has.
    _check({"scale_embedding": False, **config}, _MARIAN, where)
    return {"position_layout": "concatenated"}


def _bart_settings(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {
        "positions": "learned",
        "max_length": read_number(config, "max_position_embeddings", int, where),
        "embedding_norm": True,
        "embedding_scale": bool(config.get("scale_embedding", False)),
    }


def _check(config: Mapping[str, Any], required: Mapping[str, Any], where: str) -> None:
    for field, needed in required.items():
        if config.get(field, needed) != needed:
            raise UserError(f"{where} has {field}={config[field]!r}: only {needed!r} can be read.")


def _our_config(config: Mapping[str, Any], vocab_size: int, where: str) -> EncoderDecoderConfig:
    _check(config, _REQUIRED, where)

    def number(field: str) -> int:
        return read_number(config, field, int, where)

    for one, other in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("vocab_size", "decoder_vocab_size"),
    ):
        if config.get(other, number(one)) != number(one):
            raise UserError(
                f"{where} has {one}={number(one)} and {other}={config[other]!r}: only equal ones "
                "can be read."
            )
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        hidden_dim=number("d_model"),
        feed_forward_dim=number("encoder_ffn_dim"),
        num_heads=number("encoder_attention_heads"),
        num_encoder_layers=number("encoder_layers"),
        num_decoder_layers=number("decoder_layers"),
        block="transformer",
        activation=read_choice(config, "activation_function", ACTIVATIONS, where),
        norm="post",
        epsilon=1e-5,
    )


def _read_block(block, state: Mapping[str, np.ndarray], prefix: str, cross: bool) -> None:
    def dense(name: str) -> tuple[np.ndarray, np.ndarray]:
        # PyTorch keeps a Linear as (outputs, inputs).
        kernel, bias = (state[f"{prefix}.{name}.{part}"] for part in ("weight", "bias"))
        return np.asarray(kernel).T, np.asarray(bias)

    def norm(name: str) -> list[np.ndarray]:
        return [np.asarray(state[f"{prefix}.{name}.{part}"]) for part in ("weight", "bias")]

    attentions = {"attention_0": "self_attn"}
    if cross:
        attentions["cross_attention_0"] = "encoder_attn"
    for ours, theirs in attentions.items():
        residual = getattr(block, ours)
        assign_attention(
            residual.sublayer,
            lambda part, theirs=theirs: dense(f"{theirs}.{_ATTENTION_PARTS[part]}"),
        )
        assign_norm(residual.layer_norm, norm(f"{theirs}_layer_norm"))
    feed_forward = block.feed_forward_1
    assign_dense(feed_forward.sublayer.inner, [dense("fc1")])
    assign_dense(feed_forward.sublayer.outer, [dense("fc2")])
    assign_norm(feed_forward.layer_norm, norm("final_layer_norm"))
