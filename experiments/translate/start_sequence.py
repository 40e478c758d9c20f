"""A translation that starts from a whole encoder-decoder, behind a new encoder of the source."""

import dataclasses
import os

from experiments.pretrain.run import PretrainingRun
from experiments.translate.recipe import TranslationRecipe
from experiments.translate.start import DROPOUTS, FREE, Start
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import assign
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig, catalog
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.text import PairVocabulary, SentencePieceVocabulary, load_encoder_vocabulary
from macaron_tf.text.sentencepiece import normalized_text

_MAX_LINES = 10_000_000  # that a vocabulary is trained on, as `SentencePieceVocabulary.train`'s


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceStart(Start):
    """A whole encoder-decoder, behind a new encoder of the source (BART's translation).

    Attributes:
        given: see `Start`.
        run: of its pre-training.
        checkpoint: which weights, see `Run.checkpoint`.
    """

    given: str
    run: PretrainingRun
    checkpoint: str | None = None

    def apply(self, recipe: TranslationRecipe) -> TranslationRecipe:
        theirs, base = self.run.recipe, recipe.model_config()
        options = {**dict(theirs.model_options), **base.options(*DROPOUTS)}
        # The paper's is as deep as the encoder of its base size.
        depth = base.num_source_layers or theirs.model_config().num_encoder_layers
        config = catalog.config(theirs.model, **{**options, "num_source_layers": depth})
        recipe = dataclasses.replace(
            recipe,
            init=self.given,
            model=theirs.model,
            sentinel_rows=SENTINEL_ROWS if theirs.objective == "span_corruption" else 0,
        )
        return self.with_model(recipe, config)

    def fitting(self, config: EncoderDecoderConfig) -> EncoderDecoderConfig:
        free = config.options(*FREE, "num_source_layers", "source_vocab_size")
        return dataclasses.replace(self.run.recipe.model_config(), **free)

    def check(self, recipe: TranslationRecipe) -> None:
        super().check(recipe)
        if not recipe.model_config().num_source_layers:
            raise UserError(
                f"model.num_source_layers is 0, but {self.given} reads another language through "
                "an encoder of its own: set 1 or more"
            )

    def vocabulary(
        self,
        recipe: TranslationRecipe,
        directory: str | os.PathLike | None = None,
        data_dir: str | None = None,
        download: bool = False,
    ) -> PairVocabulary:
        data, (language, _) = recipe.data, recipe.data.languages
        if directory:
            source = load_encoder_vocabulary(directory)
        else:
            print(
                f"training a vocabulary of {data.vocabulary_size:,} pieces of {language!r}",
                flush=True,
            )
            pairs = read_pairs(data.source, data.train_split, *data.languages, data_dir, download)
            source_lines = (line for line, _ in pairs)
            lines = normalized_text(source_lines, data.normalization, [language], _MAX_LINES)
            source = SentencePieceVocabulary.train(
                lines, data.vocabulary_size, languages=(language,), character_coverage=1.0
            )
        return PairVocabulary(source, self.run.vocabulary, data.normalization, data.languages)

    def copy_to(self, network: EncoderDecoder, recipe: TranslationRecipe) -> None:
        own = {id(weight) for weight in network.source_encoder.weights}
        rest = [weight for weight in network.weights if id(weight) not in own]
        weights = self.run.load_network(self.checkpoint).get_weights()
        for weight, value in zip(rest, weights, strict=True):
            assign(weight, value)
