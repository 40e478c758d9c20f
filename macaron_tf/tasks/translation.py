"""Translation of text lines by beam search."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import tensorflow as tf

from macaron_tf.decoding import (
    BeamSearchConfig,
    LineTranslator,
    SamplingConfig,
    score_ids,
    translate_ids,
)
from macaron_tf.decoding.sampling import Prompts, State, first_state
from macaron_tf.errors import UserError
from macaron_tf.io.serving import EXAMPLE
from macaron_tf.kernels import implementation_scope
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
        compiled: whether to compile the search by XLA for requests with a single line.

    Attributes:
        max_tokens: maximum number of tokens in a line, without EOS: 256, or one less than the
            model's number of positions if this is smaller.
    """

    name = "translator"
    pipeline = "translation"
    takes: ClassVar = (*(field.name for field in dataclasses.fields(BeamSearchConfig)), "compiled")

    def __init__(
        self,
        network: EncoderDecoder,
        vocabulary: PieceVocabulary,
        decoding: BeamSearchConfig | None = None,
        compiled: bool = False,
    ):
        super().__init__(network, vocabulary)
        self.decoding, self.compiled = decoding or BeamSearchConfig(), compiled
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

    def changed(self, compiled: bool = False, **fields: Any) -> Self:
        """Returns a copy with changed `BeamSearchConfig` fields. A compiled task stays compiled."""
        decoding = dataclasses.replace(self.decoding, **fields)
        return super().changed(decoding=decoding, compiled=compiled or self.compiled)

    def with_decoder(self, decoder: Any) -> Self:
        return super().changed(decoder=decoder)

    def begin(self, text: tf.Tensor) -> tuple[Prompts, Any, State]:
        source = self.ids(text, self.vocabulary.languages[0])
        ones = tf.ones((tf.shape(source)[0],), tf.int32)
        begin = self.vocabulary.special.begin
        prompts = Prompts(begin * ones[:, None], ones, ones, ones[:, None])
        context, cache = self.decoder.init_decode(source, 1)
        return prompts, context, first_state(prompts, context, cache)

    def lines(
        self,
        decoding: BeamSearchConfig | SamplingConfig | None = None,
        seed: int = 1,
        backward: bool = False,
    ) -> LineTranslator:
        """Creates a translator of lines of any length.

        The translator truncates lines of more than `max_tokens` tokens, and then prints a warning.

        Args:
            decoding: settings of beam search or sampling; `None` means `self.decoding`. On Keras's
                JAX backend, the search is greedy (see `LineTranslator`).
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
        return LineTranslator(
            network, vocabulary, decoding, max_source_length=self.max_tokens, seed=seed
        )

    def functions(self):
        score = {"source": tf.string, "target": tf.string}
        return {**super().functions(), "score": (self.likelihood, score)}

    def facts(self) -> dict[str, Any]:
        return {"decoding": dataclasses.asdict(self.decoding)}

    def typical_texts(self) -> Sequence[str]:
        if not self.compiled:
            return super().typical_texts()
        language = self.vocabulary.languages[0]
        words = EXAMPLE.split() * _COMPILED_LENGTHS[-1]
        texts = [" ".join(words[:count]) for count in range(1, _COMPILED_LENGTHS[-1])]
        sizes = [len(ids) for ids in self.vocabulary.encode_lines(texts, language)]
        selected = []
        for length in _COMPILED_LENGTHS:
            # Select the longest text that fits into the row with EOS.
            max_tokens = min(length - 1, self.max_tokens)
            fitting = [text for text, size in zip(texts, sizes, strict=True) if size <= max_tokens]
            selected += fitting[-1:]
        return list(dict.fromkeys(selected))

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
        special = self.vocabulary.special
        if self.compiled:
            result = _run_compiled(self.search, source, special.pad)
        else:
            result = self.search(source)
        n_best = self.decoding.n_best
        # (B, N, T) -> (B N, T)
        ids = tf.reshape(result["ids"], (-1, tf.shape(result["ids"])[2]))
        # (B N,) -> (B, N)
        translations = tf.reshape(self.vocabulary.decode(ids), (-1, n_best))
        empty = (source[:, 0] == special.end)[:, None]  # (B, 1)
        return {
            "translations": tf.where(empty, "", translations),
            "scores": tf.where(empty, 0.0, result["scores"]),
        }

    def search(self, source: tf.Tensor) -> dict[str, tf.Tensor]:
        """Finds the `n_best` translations of source ids `(B, L)` by `translate_ids`."""
        return translate_ids(self.decoder, source, self.decoding, self.vocabulary.pieces)

    def likelihood(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes log-probabilities of targets given their sources, for the signature `score`."""
        languages = self.vocabulary.languages
        ids = self.ids(source, languages[0]), self.ids(target, languages[1])
        scores = score_ids(self.network, *ids)
        return {"log_probs": scores["log_probs"], "tokens": scores["lengths"]}


# Row lengths for which XLA compiles a function. Other rows are padded to the next length.
_COMPILED_LENGTHS = (16, 32, 64, 128)


def _run_compiled(function: Callable, ids: tf.Tensor, pad: int) -> Any:
    """Calls `function` on ids `(B, L)`, compiled by XLA for a single row of at most 128 ids.

    For a single row, launching the operations takes as long as their computation. XLA fuses
    operations, so that fewer operations are launched. The row is padded with `pad` to the next
    length in `_COMPILED_LENGTHS`. The first request with a padded length compiles the function.
    """

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def compiled(row):
        with implementation_scope("xla"):
            return function(row)

    def run_padded(length: int) -> Any:
        paddings = [[0, 0], [0, length - tf.shape(ids)[1]]]
        row = tf.pad(ids, paddings, constant_values=pad)
        return compiled(tf.reshape(row, (1, length)))  # a static shape, which XLA needs

    branches = [functools.partial(run_padded, length) for length in _COMPILED_LENGTHS]
    index = tf.reduce_sum(tf.cast(tf.shape(ids)[1] > _COMPILED_LENGTHS, tf.int32))
    index = tf.where(tf.shape(ids)[0] == 1, index, len(branches))
    return tf.switch_case(index, [*branches, lambda: function(ids)])
