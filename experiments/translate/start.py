"""What the two ways have in common in which a translation starts from pre-trained weights."""

import abc
import dataclasses
import os

from experiments.translate.recipe import TranslationRecipe
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig, catalog
from macaron_tf.models.config import DROPOUTS, differing_fields
from macaron_tf.text import PairVocabulary

# Fields of the model that no pre-trained weight depends on.
FREE = (*DROPOUTS, "initializer_range", "vocab_size")


class Start(abc.ABC):
    """What a translation starts from.

    Attributes:
        given: what the command line named it.
    """

    given: str

    @abc.abstractmethod
    def apply(self, recipe: TranslationRecipe) -> TranslationRecipe:
        """The recipe with the model that the weights fit in; dropouts stay the recipe's.

        Raises:
            UserError: no translation model has such layers.
        """

    @abc.abstractmethod
    def fitting(self, config: EncoderDecoderConfig) -> EncoderDecoderConfig:
        """A configuration with every field that the weights depend on as theirs."""

    def check(self, recipe: TranslationRecipe) -> None:
        """Refuses settings under which weights or vocabulary do not fit.

        Raises:
            UserError: the sentence names the setting.
        """
        wanted = recipe.model_config()
        fitting = self.fitting(wanted)
        for name, theirs in differing_fields(fitting, wanted).items():
            if name not in FREE:
                raise UserError(
                    f"the weights of {self.given} were trained with model.{name}={theirs!r}, not "
                    f"{getattr(wanted, name)!r}: leave that setting, or train without --init"
                )
        if recipe.data.sampling.dropout:
            raise UserError(
                "data.sampling.dropout cuts with a vocabulary that is trained for the run: with "
                "--init set data.sampling.dropout=0"
            )

    @abc.abstractmethod
    def vocabulary(
        self,
        recipe: TranslationRecipe,
        directory: str | os.PathLike | None = None,
        data_dir: str | None = None,
        download: bool = False,
    ) -> PairVocabulary:
        """The vocabulary of the translation.

        Args:
            recipe: names the languages and the text.
            directory: what `--vocabulary` names.
            data_dir, download: as for `macaron_tf.data.read_pairs`.

        Raises:
            UserError: another vocabulary than the weights', or text that cannot be read.
        """

    @abc.abstractmethod
    def copy_to(self, network: EncoderDecoder, recipe: TranslationRecipe) -> None:
        """Gives a built network the weights; what they do not hold stays drawn."""

    def with_model(
        self, recipe: TranslationRecipe, config: EncoderDecoderConfig
    ) -> TranslationRecipe:
        """The recipe with a configuration, and with limits that its positions allow."""
        options = differing_fields(config, catalog.config(recipe.model))
        options.pop("vocab_size", None)
        data, decoding = recipe.data, recipe.decoding
        if config.longest is not None:
            cleaning = data.cleaning
            most = min(cleaning.max_tokens, config.longest)
            data = dataclasses.replace(
                data, cleaning=dataclasses.replace(cleaning, max_tokens=most)
            )
            most = min(decoding.max_length, config.longest)
            decoding = dataclasses.replace(decoding, max_length=most)
        return dataclasses.replace(
            recipe, model_options=tuple(sorted(options.items())), data=data, decoding=decoding
        )
