"""Models: stacks of blocks between embeddings and scores."""

from macaron_tf.models import catalog
from macaron_tf.models.classifier import EncoderClassifier
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.models.stack import Stack

__all__ = [
    "Encoder",
    "EncoderClassifier",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "PretrainingEncoder",
    "Stack",
    "catalog",
]
