"""Translation of text lines by beam search."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import tensorflow as tf

from macaron_tf.decoding import BeamSearchConfig, LineTranslator, score_ids, translate_ids
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderDecoder
from macaron_tf.models.encoder_decoder import Backward
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.tasks.base import Decoding, DecodingSettings, require
from macaron_tf.text import PairVocabulary, PieceVocabulary

_MAX_SOURCE = 256  # maximum number of tokens in a source line, without EOS


@dataclasses.dataclass(frozen=True)
class TranslationSettings(DecodingSettings):
    """Settings of a translator."""

    kind = "translation"
    decoding: BeamSearchConfig = BeamSearchConfig()

    def lines(self, network: Any, vocabulary: Any, decoding: BeamSearchConfig) -> LineTranslator:
        """Creates a translator of lines of text."""
        return Translation(network, vocabulary, decoding).lines()


class Translation(Decoding):
    """Translation of text lines by beam search.

    The signature `serving_default` has the input `text (B,)` strings. Its outputs are `translations
    (B, N)` strings and `scores (B, N)` float32, for the N best translations in descending order of
    score. An empty line has empty translations with score 0.

    The signature `score` has the inputs `source (B,)` and `target (B,)` strings. Its outputs are
    `log_probs (B,)` float32, the natural logarithm of P(target | source), and `tokens (B,)` int32,
    the number of target tokens. Both outputs count EOS.

    The graph raises InvalidArgumentError for a line of more than `max_tokens` tokens.

    Args:
        decoding: settings of the beam search; `None` means the default settings.

    Attributes:
        max_tokens: maximum number of tokens in a line, without EOS: 256, or one less than the
            model's number of positions if this is smaller.
    """

    name = "translator"
    pipeline = "translation"
    takes: ClassVar = tuple(field.name for field in dataclasses.fields(BeamSearchConfig))

    def __init__(
        self,
        network: EncoderDecoder,
        vocabulary: PieceVocabulary,
        decoding: BeamSearchConfig | None = None,
    ):
        super().__init__(network, vocabulary)
        self.decoding = decoding or BeamSearchConfig()
        self.decoder: Any = network
        longest = network.config.longest
        self.max_tokens = _MAX_SOURCE if longest is None else min(_MAX_SOURCE, longest - 1)

    @classmethod
    def of(cls, model: ModelParts) -> Self:
        settings = model.settings
        decoding = settings.decoding if isinstance(settings, TranslationSettings) else None
        return cls(model.network, model.vocabulary, decoding)

    @classmethod
    def from_exported(cls, decoder: Any, vocabulary: Any, facts: Mapping[str, Any]) -> Self:
        return cls(decoder, vocabulary, BeamSearchConfig(**facts["decoding"]))

    def changed(self, **fields: Any) -> Self:
        """Returns a copy with changed `BeamSearchConfig` fields."""
        return super().changed(decoding=dataclasses.replace(self.decoding, **fields))

    def with_decoder(self, decoder: Any) -> Self:
        return super().changed(decoder=decoder)

    def lines(
        self, decoding: BeamSearchConfig | None = None, backward: bool = False
    ) -> LineTranslator:
        """Creates a translator of lines of any length.

        The translator truncates lines of more than `max_tokens` tokens, and then prints a warning.

        Args:
            decoding: settings of beam search; `None` means `self.decoding`. On Keras's JAX backend,
                the search is greedy (see `LineTranslator`).
            backward: whether to translate from the target language to the source language.
        """
        network, vocabulary = self.decoder, self.vocabulary
        if backward and not self.network.config.two_way:
            raise UserError("--backward is not possible: give a run with unsupervised=True")
        if backward:
            pair, network = vocabulary, Backward(self.network)
            sides = (pair.target, pair.source, pair.normalization, pair.languages[::-1])
            vocabulary = PairVocabulary(*sides)
        decoding = decoding or self.decoding
        return LineTranslator(network, vocabulary, decoding, max_source_length=self.max_tokens)

    def functions(self):
        score = {"source": tf.string, "target": tf.string}
        return {**super().functions(), "score": (self.likelihood, score)}

    def facts(self) -> dict[str, Any]:
        return {"decoding": dataclasses.asdict(self.decoding)}

    def ids(self, lines: tf.Tensor, language: str) -> tf.Tensor:
        """Encodes lines `(B,)` as ids `(B, L)`, with EOS at the end and padding by PAD."""
        rows = self.vocabulary.encode(lines, language)
        fits = rows.row_lengths() <= self.max_tokens
        rows = require(fits, f"a line has more than {self.max_tokens} tokens: split it", rows)
        special = self.vocabulary.special
        end = tf.fill([tf.shape(lines)[0], 1], special.end)
        return tf.concat([rows, end], axis=1).to_tensor(special.pad)

    def serve(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        source = self.ids(text, self.vocabulary.languages[0])
        result = translate_ids(self.decoder, source, self.decoding, self.vocabulary.pieces)
        n_best = self.decoding.n_best
        # (B, N, T) -> (B N, T)
        ids = tf.reshape(result["ids"], (-1, tf.shape(result["ids"])[2]))
        # (B N,) -> (B, N)
        translations = tf.reshape(self.vocabulary.decode(ids), (-1, n_best))
        empty = (source[:, 0] == self.vocabulary.special.end)[:, None]  # (B, 1)
        return {
            "translations": tf.where(empty, "", translations),
            "scores": tf.where(empty, 0.0, result["scores"]),
        }

    def likelihood(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes log-probabilities of targets given their sources, for the signature `score`."""
        languages = self.vocabulary.languages
        ids = self.ids(source, languages[0]), self.ids(target, languages[1])
        scores = score_ids(self.network, *ids)
        return {"log_probs": scores["log_probs"], "tokens": scores["lengths"]}
