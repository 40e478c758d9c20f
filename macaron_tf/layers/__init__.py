"""Keras layers: embeddings, attention and other mixers, Transformer blocks, and output heads."""

from macaron_tf.layers.alibi import AlibiAttention
from macaron_tf.layers.attention import MultiHeadAttention
from macaron_tf.layers.block import Block
from macaron_tf.layers.blocks import (
    BLOCKS,
    AttentionGatedMLPBlock,
    GatedDeltaNetBlock,
    GatedMLPBlock,
    MacaronBlock,
    SwishRNNBlock,
    TransformerBlock,
    block_class,
)
from macaron_tf.layers.character_cnn import CharacterCNN
from macaron_tf.layers.convolution import CausalConvolution, ConvolutionBlock
from macaron_tf.layers.dense import activation, gelu_tanh
from macaron_tf.layers.embeddings import AdaptiveEmbedding, EncoderEmbeddings, TiedEmbedding
from macaron_tf.layers.feed_forward import FeedForward
from macaron_tf.layers.gated_deltanet import GatedDeltaNet
from macaron_tf.layers.gated_mlp import GatedMLP, SpatialGating
from macaron_tf.layers.heads import ClassificationHead, LayerMixture, Pooler, Pooling, SpanHead
from macaron_tf.layers.language_heads import (
    AdaptiveSoftmax,
    MaskedLanguageHead,
    NextTokenHead,
    ReplacedTokenHead,
    SpanBoundaryHead,
)
from macaron_tf.layers.lstm import ProjectedLSTM, ProjectedLSTMStack
from macaron_tf.layers.mixture_of_experts import MixtureOfExperts
from macaron_tf.layers.positions import LearnedPositions, RelativePositionBias, SinusoidalPositions
from macaron_tf.layers.relative_attention import RelativeAttention
from macaron_tf.layers.residual import Residual
from macaron_tf.layers.rotary import RotaryAttention
from macaron_tf.layers.scheme import Mix
from macaron_tf.layers.swish_rnn import SwishRNN
