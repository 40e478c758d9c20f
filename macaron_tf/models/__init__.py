"""Models: encoders, encoder-decoders, language models, and models with heads for tasks."""

from macaron_tf.models import catalog
from macaron_tf.models.config import EncoderConfig, EncoderDecoderConfig
from macaron_tf.models.elmo import Elmo, ElmoConfig, WordEncoder, WordEncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.models.pretraining import (
    GeneratorDiscriminator,
    PretrainingEncoder,
    generator_config,
)
from macaron_tf.models.segment_memory import SegmentLanguageModel, TwoStreamModel
from macaron_tf.models.stack import Stack
from macaron_tf.models.tasks import (
    CausalClassifier,
    CausalMultipleChoice,
    EncoderClassifier,
    EncoderMultipleChoice,
    EncoderQuestionAnswering,
    EncoderTokenClassifier,
    SiameseEncoder,
)
from macaron_tf.models.tcn import TemporalConfig, TemporalConvolution, TemporalModel
