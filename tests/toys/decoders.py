"""Language models and encoder-decoders that the transformers library can read."""

import functools

from macaron_tf.model import Model
from macaron_tf.models import EncoderConfig, EncoderDecoder, EncoderDecoderConfig, LanguageModel
from macaron_tf.models.model_parts import Card
from macaron_tf.text.byte_pairs import BYTE_ALPHABET, BytePairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from tests.toys import hugging_face

random = functools.partial(hugging_face.random, scale=0.5)
LINES = ["the cat sat on the mat", "a dog ran", "hello world, the world", "a café 1 2 3"] * 5
GPT = {
    **dict(causal=True, num_segments=0, embedding_norm=False, activation="gelu_tanh"),
    **dict(epsilon=1e-5, max_length=64),
}
BART = {
    **dict(norm="post", positions="learned", max_length=50, embedding_norm=True),
    **dict(embedding_scale=False, logits_bias=True, activation="gelu"),
}
LLAMA = {
    **dict(positions="rotary", num_kv_heads=2, rotary_base=500.0, norm_type="rms", gated=True),
    **dict(use_bias=False, activation="silu", tied=False, attention_dropout=0.0),
    **dict(rotary_scaling=(8.0, 1.0, 4.0, 12.0)),
}
T5 = {
    "rnn_step_sizes": (1, 2, 4),  # recipes for any block have step sizes; this block ignores them
    **dict(norm="pre", norm_type="rms", positions="none", relative_bias="shared"),
    **dict(use_bias=False, scaled=False, embedding_scale=False, epsilon=1e-6),
}


@functools.cache
def byte_pairs() -> BytePairVocabulary:
    pieces = [*BYTE_ALPHABET, "th", "the", "\u0120the"]
    return BytePairVocabulary(pieces, ["t h", "th e", "\u0120 the"], add_prefix_space=True)


@functools.cache
def sentencepiece(masks: bool, kind: str) -> SentencePieceVocabulary:
    options = {"model_type": kind, "character_coverage": 1.0}
    size = 30 if kind == "unigram" else 40
    return SentencePieceVocabulary.train(LINES, size, masks=masks, **options)


# Model options, (vocabulary arguments), fields of `Model`, and the model_type.
SEQUENCES = {
    "marian": ({"norm": "post", "position_layout": "concatenated"}, (False, "bpe"), {}, "marian"),
    "denoiser": (BART, None, {"objective": "denoising"}, "bart"),
    "t5": (
        {**T5, "scaled_logits": True},
        (True, "unigram"),
        {"objective": "span_corruption", "sentinels": 10},
        "t5",
    ),
    "t5 1.1": (
        {**T5, "gated": True, "activation": "gelu_tanh", "tied": False},
        (True, "unigram"),
        {"objective": "span_corruption", "sentinels": 10},
        "t5",
    ),
}


def language_model(norm: str = "pre", **options) -> Model:
    options = {"feed_forward_dim": 128, "norm": norm, **GPT, **options}
    config = EncoderConfig(byte_pairs().size, 32, num_heads=4, num_layers=2, **options)
    return Model(random(LanguageModel(config)), vocabulary=byte_pairs())


def sequence_model(kind: str, **options) -> Model:
    given, pieces, fields, _ = SEQUENCES[kind]
    vocabulary = sentencepiece(*pieces) if pieces else byte_pairs()
    size = vocabulary.size + (16 if fields.get("sentinels") else 0)
    settings = {"block": "transformer", **given, **options}
    config = EncoderDecoderConfig(size, 32, 64, 4, 2, 2, **settings)
    return Model(random(EncoderDecoder(config)), vocabulary, card=Card(**fields))
