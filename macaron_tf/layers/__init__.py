"""Keras layers: tensors in, tensors out."""

from macaron_tf.layers.attention import MultiHeadAttention
from macaron_tf.layers.blocks import (
    BLOCKS,
    Block,
    MacaronBlock,
    Mix,
    TransformerBlock,
    block_class,
)
from macaron_tf.layers.embeddings import TiedEmbedding
from macaron_tf.layers.feed_forward import FeedForward
from macaron_tf.layers.positions import LearnedPositions, SinusoidalPositions
from macaron_tf.layers.residual import Residual

__all__ = [
    "BLOCKS",
    "Block",
    "FeedForward",
    "LearnedPositions",
    "MacaronBlock",
    "Mix",
    "MultiHeadAttention",
    "Residual",
    "SinusoidalPositions",
    "TiedEmbedding",
    "TransformerBlock",
    "block_class",
]
