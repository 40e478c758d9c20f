"""A translation that starts from the parts of an encoder or a language model (XLM's table)."""

import dataclasses
import os

from experiments.finetune.init import Init
from experiments.translate.recipe import TranslationRecipe
from experiments.translate.start import FREE, Start
from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import assign
from macaron_tf.models import Encoder, EncoderDecoder, EncoderDecoderConfig
from macaron_tf.models.config import differing_fields
from macaron_tf.models.encoder_decoder import config_from_encoder, copy_embeddings
from macaron_tf.text import PairVocabulary, load_encoder_vocabulary
from macaron_tf.text.base import check_vocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderStart(Start):
    """An encoder's or a language model's weights in both stacks (XLM's table).

    Attributes:
        given: see `Start`.
        init: whose embeddings, stack and vocabulary are taken.
        parts: of `PARTS`, which it begins; the embeddings always.
        decoder: begins the decoder instead of `init`.
    """

    given: str
    init: Init
    parts: tuple[str, ...] = ("encoder", "decoder")
    decoder: Init | None = None

    def apply(self, recipe: TranslationRecipe) -> TranslationRecipe:
        recipe = self.with_model(recipe, self.fitting(recipe.model_config()))
        decoder = self.decoder.given if self.decoder else None
        return dataclasses.replace(
            recipe, init=self.given, init_decoder=decoder, init_parts=self.parts
        )

    def fitting(self, config: EncoderDecoderConfig) -> EncoderDecoderConfig:
        pairs = [(self.init, self.parts)]
        if self.decoder:
            pairs.append((self.decoder, ("decoder",)))
        for init, parts in pairs:
            try:
                config = config_from_encoder(init.config, config, parts)
            except ValueError as error:
                raise UserError(f"--init {init.given}: {error}") from error
        return config

    def check(self, recipe: TranslationRecipe) -> None:
        super().check(recipe)
        if self.decoder:
            hash_, vocabulary = self.init.vocabulary.hash, self.decoder.vocabulary
            check_vocabulary(hash_, vocabulary, self.given)
            one = config_from_encoder(self.init.config, recipe.model_config(), self.parts)
            for name, theirs in differing_fields(self.fitting(one), one).items():
                if name not in FREE:
                    raise UserError(
                        f"--init-decoder {self.decoder.given} was trained with {name}={theirs!r}, "
                        f"--init {self.given} with {getattr(one, name)!r}: give runs of one shape"
                    )
        self._language_rows(recipe)

    def vocabulary(
        self,
        recipe: TranslationRecipe,
        directory: str | os.PathLike | None = None,
        data_dir: str | None = None,
        download: bool = False,
    ) -> PairVocabulary:
        own = self.init.vocabulary
        if directory:
            check_vocabulary(own.hash, load_encoder_vocabulary(directory), self.given)
        return PairVocabulary(own, own, recipe.data.normalization, recipe.data.languages)

    def copy_to(self, network: EncoderDecoder, recipe: TranslationRecipe) -> None:
        encoder = _encoder(self.init)
        copy_embeddings(network, encoder, self._language_rows(recipe))
        if "encoder" in self.parts:
            network.encoder.copy_from(encoder.stack)
        if self.decoder:
            encoder = _encoder(self.decoder)
        if "decoder" in self.parts or self.decoder:
            network.decoder.copy_from(encoder.stack)

    def _language_rows(self, recipe: TranslationRecipe) -> list[int]:
        """Those of the source and the target in the encoder's language embeddings."""
        if not self.init.config.num_languages:
            return [0, 0]
        known = self.init.languages
        for language in recipe.data.languages:
            if language not in known:
                raise UserError(
                    f"--init {self.given} has language embeddings of "
                    f"{', '.join(known) or 'languages that it does not name'}, and none of "
                    f"{language!r}: give a pre-training run that has seen it, or other languages"
                )
        return [known.index(language) for language in recipe.data.languages]


def _encoder(init: Init) -> Encoder:
    """An encoder with the weights of a start."""
    encoder = Encoder(init.config)
    encoder.build()
    for weight, value in zip(encoder.weights, init.weights.encoder, strict=True):
        assign(weight, value)
    return encoder
