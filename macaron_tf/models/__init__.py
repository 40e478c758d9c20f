"""Models: stacks of blocks between embeddings and scores."""

from macaron_tf.models import catalog
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.stack import Stack

__all__ = ["EncoderDecoder", "EncoderDecoderConfig", "Stack", "catalog"]
