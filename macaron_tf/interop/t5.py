"""T5 models of Hugging Face, 1.0 and 1.1: their weights in our encoder-decoder."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.assign import assign, assign_attention, assign_dense
from macaron_tf.interop.hugging_face import (
    TorchArrays,
    read_choice,
    read_config,
    read_number,
    read_state,
)
from macaron_tf.interop.sequence_import import SequenceImport, order_of_ids, read_table
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder

# Settings that our model has no place for when they are otherwise, and what they must be.
_REQUIRED = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
# The one table's names: `save_pretrained` keeps only one of the tied.
_TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_OUTPUT = "lm_head.weight"
_FEED_FORWARDS = {"relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}
_PARTS = {"query": "q", "key": "k", "value": "v", "output": "o"}
_ATTENTIONS = {"attention_0": "SelfAttention", "cross_attention_0": "EncDecAttention"}


def read_t5(directory: str | pathlib.Path, ids: np.ndarray | None = None) -> SequenceImport:
    """Reads a T5ForConditionalGeneration directory as `save_pretrained` writes it.

    Its sentinels come last among our ids, the first of them as its own last ones do.

    Args:
        directory: holds `config.json` and `model.safetensors` or `pytorch_model.bin` (read with
            the safetensors package, or PyTorch, which must be installed).
        ids: theirs at each of ours, in another order than that of `order_of_ids`.

    Raises:
        UserError: a file is missing, or the model has what ours has no place for.
    """
    directory = pathlib.Path(directory)
    config = read_config(directory, ("t5",))
    return _read(read_state(directory), config, str(directory / "config.json"), ids)


def read_t5_state(state: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> SequenceImport:
    """Makes our model of a T5ForConditionalGeneration's `state_dict` and configuration.

    Args:
        state: arrays by PyTorch's names.
        config: the fields of its `T5Config`.

    Raises:
        UserError: the model has what ours has no place for; the sentence names the field.
    """
    return _read(state, config, "the T5 configuration")


def _read(
    state: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    where: str,
    ids: np.ndarray | None = None,
) -> SequenceImport:
    ids = order_of_ids(config, where) if ids is None else ids
    table = read_table(state, _TABLES, ids, where)
    output = read_table(state, (_OUTPUT,), ids, where) if _OUTPUT in state else table
    tied = np.array_equal(output, table)
    model = EncoderDecoder(_our_config(config, len(ids), tied, where))
    model.build()
    assign(model.embedding.table, table)
    if not tied:
        assign(model.output_projection.kernel, output.T)
    arrays = TorchArrays(state)
    for stack, name in ((model.encoder, "encoder"), (model.decoder, "decoder")):
        for number, block in enumerate(stack.blocks):
            _read_block(block, arrays, f"{name}/block/{number}/layer", model.config.gated)
        bias = f"{name}/block/0/layer/0/SelfAttention/relative_attention_bias/weight"
        assign(stack.biases[0].table, arrays.array(bias))
        assign(stack.final_norm.scale, arrays.array(f"{name}/final_layer_norm/weight"))
    return SequenceImport(model, ids)


def _our_config(
    config: Mapping[str, Any], vocab_size: int, tied: bool, where: str
) -> EncoderDecoderConfig:
    for field, needed in _REQUIRED.items():
        if config.get(field, needed) != needed:
            raise UserError(f"{where} has {field}={config[field]!r}: only {needed!r} can be read.")

    def number(field: str, **default) -> int:
        return read_number(config, field, int, where, **default)

    layers = number("num_layers")
    kind = config.get("feed_forward_proj", "relu")
    # A tied model divides its output by sqrt(D), 1.1 does not: newer files say so themselves.
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        hidden_dim=number("d_model"),
        feed_forward_dim=number("d_ff"),
        num_heads=number("num_heads"),
        num_encoder_layers=layers,
        num_decoder_layers=layers
        if config.get("num_decoder_layers") is None
        else number("num_decoder_layers"),
        block="transformer",
        activation=read_choice(config, "feed_forward_proj", _FEED_FORWARDS, where, "relu"),
        gated=kind.startswith("gated-"),
        norm="pre",
        norm_type="rms",
        epsilon=read_number(config, "layer_norm_epsilon", float, where, 1e-6),
        positions="none",
        relative_bias="shared",
        use_bias=False,
        head_dim=number("d_kv"),
        scaled=False,
        embedding_scale=False,
        tied=tied,
        scaled_logits=bool(scaled),
        initializer="lecun_normal",
    )


def _read_block(block, arrays: TorchArrays, prefix: str, gated: bool) -> None:
    """Sub-layer number n of theirs is ours in the same order."""

    def dense(name: str) -> tuple[np.ndarray, None]:
        # PyTorch keeps a Linear as (outputs, inputs).
        return arrays.array(f"{prefix}/{name}/weight").T, None

    names = [name for name in _ATTENTIONS if hasattr(block, name)]
    for number, name in enumerate(names):
        residual, theirs = getattr(block, name), f"{number}/{_ATTENTIONS[name]}"
        assign_attention(
            residual.sublayer, lambda part, theirs=theirs: dense(f"{theirs}/{_PARTS[part]}")
        )
        _read_norm(residual, arrays, f"{prefix}/{number}")
    residual, last = block.feed_forward_1, len(names)
    inner = ("wi_0", "wi_1") if gated else ("wi",)
    assign_dense(
        residual.sublayer.inner, [dense(f"{last}/DenseReluDense/{name}") for name in inner]
    )
    assign_dense(residual.sublayer.outer, [dense(f"{last}/DenseReluDense/wo")])
    _read_norm(residual, arrays, f"{prefix}/{last}")


def _read_norm(residual, arrays: TorchArrays, prefix: str) -> None:
    assign(residual.layer_norm.scale, arrays.array(f"{prefix}/layer_norm/weight"))
