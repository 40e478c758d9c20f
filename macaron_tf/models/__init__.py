"""Models: stacks of blocks between embeddings and scores."""

from macaron_tf.models import catalog
from macaron_tf.models.causal_reader import CausalChooser, CausalClassifier
from macaron_tf.models.classifier import EncoderClassifier
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.elmo import Elmo
from macaron_tf.models.elmo_config import ElmoConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.generator_discriminator import GeneratorDiscriminator, generator_config
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.models.segment_language_model import SegmentLanguageModel
from macaron_tf.models.siamese import SiameseEncoder
from macaron_tf.models.span_reader import EncoderSpanReader
from macaron_tf.models.stack import Stack
from macaron_tf.models.tagger import EncoderTagger
from macaron_tf.models.tcn import TemporalConvolution
from macaron_tf.models.temporal_config import TemporalConfig
from macaron_tf.models.temporal_model import TemporalModel
from macaron_tf.models.two_stream import TwoStreamModel
from macaron_tf.models.word_tagger import WordTagger, WordTaggerConfig

__all__ = [
    "CausalChooser",
    "CausalClassifier",
    "Elmo",
    "ElmoConfig",
    "Encoder",
    "EncoderClassifier",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "EncoderSpanReader",
    "EncoderTagger",
    "GeneratorDiscriminator",
    "LanguageModel",
    "PretrainingEncoder",
    "SegmentLanguageModel",
    "SiameseEncoder",
    "Stack",
    "TemporalConfig",
    "TemporalConvolution",
    "TemporalModel",
    "TwoStreamModel",
    "WordTagger",
    "WordTaggerConfig",
    "catalog",
    "generator_config",
]
