"""Weights of KerasHub's Transformer layers."""

from collections.abc import Sequence

import keras
import numpy as np

from macaron_tf.interop.assign import assign, assign_attention, assign_dense, assign_norm
from macaron_tf.interop.keras_arrays import KerasArrays
from macaron_tf.models.encoder_decoder import EncoderDecoder

# Our residuals, and KerasHub's names of the same attention and LayerNorm.
_ENCODER = {"attention_0": ("self_attention_layer", "self_attention_layer_norm")}
_DECODER = {
    "attention_0": ("self_attention", "self_attention_layer_norm"),
    "cross_attention_0": ("cross_attention", "cross_attention_layer_norm"),
}


def copy_keras_hub(
    model: EncoderDecoder,
    table: np.ndarray,
    encoder: Sequence[keras.layers.Layer],
    decoder: Sequence[keras.layers.Layer],
    final_norms: tuple[Sequence[np.ndarray], Sequence[np.ndarray]] | None = None,
) -> None:
    """Copies KerasHub layers into our model, which must have Transformer blocks.

    Args:
        model: built, `block="transformer"`, as many layers as given, `norm="pre"` where theirs
            have `normalize_first=True`.
        table: token embeddings `(V, D)`.
        encoder: `keras_hub.layers.TransformerEncoder`s, built, first to last.
        decoder: `keras_hub.layers.TransformerDecoder`s, built with cross-attention.
        final_norms: (scale, offset) of the LayerNorms after the encoder and the decoder, for
            `norm="pre"`: KerasHub leaves them to the caller.

    Raises:
        UserError: a shape differs; the sentence names the weight.
    """
    assign(model.embedding.table, table)
    for ours, theirs in zip(model.encoder.blocks, encoder, strict=True):
        _copy_block(ours, theirs, _ENCODER)
    for ours, theirs in zip(model.decoder.blocks, decoder, strict=True):
        _copy_block(ours, theirs, _DECODER)
    if final_norms is not None:
        for stack, norm in zip((model.encoder, model.decoder), final_norms, strict=True):
            assign_norm(stack.final_norm, norm)


def _copy_block(block, layer: keras.layers.Layer, attentions: dict) -> None:
    arrays = KerasArrays.of_layer(layer)

    def attention(name: str):
        parts = {"output": "attention_output"}
        return lambda part: arrays.dense(f"{name}/{parts.get(part, part)}")

    for residual_name, (attention_name, norm_name) in attentions.items():
        residual = getattr(block, residual_name)
        assign_attention(residual.sublayer, attention(attention_name))
        assign_norm(residual.layer_norm, arrays.norm(norm_name))
    feed_forward = block.feed_forward_1
    for ours, theirs in (("inner", "intermediate"), ("outer", "output")):
        part = arrays.dense(f"feedforward_{theirs}_dense")
        assign_dense(getattr(feed_forward.sublayer, ours), [part])
    assign_norm(feed_forward.layer_norm, arrays.norm("feedforward_layer_norm"))
