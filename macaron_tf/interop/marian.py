"""MarianMT models of Hugging Face: their weights in our encoder-decoder."""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

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
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder

# Settings that our model has no place for when they are otherwise, and what they must be.
_REQUIRED = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "scale_embedding": True,
    "static_position_embeddings": True,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
# The one table's names: `save_pretrained` keeps only one of the tied.
_TABLES = ("model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
_ATTENTION_PARTS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


class MarianImport(NamedTuple):
    """A model and the meaning of its ids.

    Attributes:
        model: an `EncoderDecoder` that gives the same logits.
        ids: `(V',)` int, at each of our ids the one of theirs. Ours begin with PAD=0, UNK=1,
            BOS=2, EOS=3; BOS is their decoder's start token, which may be their padding too.
    """

    model: EncoderDecoder
    ids: np.ndarray


def read_marian(directory: str | pathlib.Path) -> MarianImport:
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


def read_marian_state(state: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> MarianImport:
    """Makes our model of a MarianMTModel's `state_dict` and configuration.

    Args:
        state: arrays by PyTorch's names.
        config: the fields of its `MarianConfig`.

    Raises:
        UserError: the model has what ours has no place for; the sentence names the field.
    """
    return _read(state, config, "the MarianMT configuration")


def _read(state: Mapping[str, np.ndarray], config: Mapping[str, Any], where: str) -> MarianImport:
    ids = _order_of_ids(config, where)
    model = EncoderDecoder(_our_config(config, len(ids), where))
    model.build()
    bias = state.get("final_logits_bias")
    if bias is not None and np.any(bias):
        raise UserError("the MarianMT model has a final_logits_bias, for which ours has no place.")
    try:
        table = np.asarray(next(state[name] for name in _TABLES if name in state))
    except StopIteration:
        raise UserError(f"the MarianMT model has no {_TABLES[0]}.") from None
    if len(table) <= ids.max():
        raise UserError(
            f"{where} has ids up to {ids.max()} and the model's table only {len(table)} rows."
        )
    assign(model.embedding.table, table[ids])
    try:
        for stack, name, cross in (
            (model.encoder, "encoder", False),
            (model.decoder, "decoder", True),
        ):
            for number, block in enumerate(stack.blocks):
                _read_block(block, state, f"model.{name}.layers.{number}", cross)
    except KeyError as error:
        raise UserError(f"the MarianMT model has no {error}.") from None
    return MarianImport(model, ids)


def _our_config(config: Mapping[str, Any], vocab_size: int, where: str) -> EncoderDecoderConfig:
    # MarianConfig's default, which no MarianMT model has.
    required = {"scale_embedding": False, **config}
    for field, needed in _REQUIRED.items():
        if required.get(field, needed) != needed:
            raise UserError(
                f"{where} has {field}={required[field]!r}: only {needed!r} can be read."
            )

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
        position_layout="concatenated",
    )


def _order_of_ids(config: Mapping[str, Any], where: str) -> np.ndarray:
    """Their special ids at our places, then the others in their order."""
    pad, start, eos = (
        read_number(config, f"{name}_token_id", int, where)
        for name in ("pad", "decoder_start", "eos")
    )
    # MarianConfig does not name the unknown token; converted Marian vocabularies have </s>, <unk>.
    if config.get("unk_token_id") is None:
        taken = {pad, start, eos}
        unknown = 1 if 1 not in taken else min(set(range(5)) - taken)
    else:
        unknown = read_number(config, "unk_token_id", int, where)
    special = [pad, unknown, start, eos]
    rest = np.setdiff1d(np.arange(read_number(config, "vocab_size", int, where)), special)
    return np.concatenate([special, rest])


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
