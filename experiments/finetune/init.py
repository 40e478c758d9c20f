"""The start of a training: weights of a run or of another library's model, or none."""

import dataclasses
import os
import re
import sys

import keras

from experiments.epochs import EpochRecipe
from experiments.run import Run
from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import assign
from macaron_tf.io import paths as storage
from macaron_tf.models import Elmo, ElmoConfig, EncoderConfig, EncoderDecoderConfig, catalog
from macaron_tf.models.config import FREE, differing_fields
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.models.tasks import ReadingModel
from macaron_tf.pretrained import load, needs_vocabulary
from macaron_tf.text import PieceVocabulary, load_encoder_vocabulary
from macaron_tf.text.base import check_vocabulary
from macaron_tf.text.words import CharacterWords

NOTHING = "none"


@dataclasses.dataclass(frozen=True, eq=False)
class Init:
    """Model, vocabulary and weights that a training starts from.

    Attributes:
        given: its name on the command line.
        vocabulary: cuts text for the model.
        model, model_options: of the recipe.
        source: the pre-trained network; None = weights are drawn.
    """

    given: str
    vocabulary: PieceVocabulary
    model: str
    model_options: tuple = ()
    source: Pretrained | None = None

    @property
    def config(self) -> EncoderConfig | EncoderDecoderConfig | ElmoConfig:
        """The encoder's, at the vocabulary's size."""
        options = {**dict(self.model_options), "vocab_size": self.vocabulary.size}
        return catalog.config(self.model, **options)

    @property
    def trained_length(self) -> int | None:
        """Longest rows that the weights have seen; None = all of the positions count."""
        # Sinusoids and T5's far distances reach further than they were seen.
        return self.source.trained_length if self.source and self.config.longest else None

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that the model knows by name, in the order of its embeddings."""
        named = self.source.languages if self.source else ()
        return named or self.vocabulary.languages

    @property
    def label(self) -> str:
        """A short name for tables: the folder's, or the model's."""
        if self.given == NOTHING:
            return self.model
        place = re.sub("^[a-z-]+:(?!//)", "", self.given).partition("@")[0]
        return storage.as_path(place).resolve().name

    def apply(self, recipe: EpochRecipe) -> EpochRecipe:
        """The recipe with this model and this source of weights."""
        return dataclasses.replace(
            recipe, init=self.given, model=self.model, model_options=self.model_options
        )

    def check(self, recipe: EpochRecipe) -> None:
        """Refuses a recipe whose model is not the one that the weights are of."""
        wanted = recipe.model_config(self.vocabulary.size)
        if (wanted.summary == "last") != self.vocabulary.cls_last:
            ends, summary = ("end", "last") if self.vocabulary.cls_last else ("begin", "first")
            raise UserError(
                f"--init {self.given}: rows of its vocabulary {ends} with [CLS], where a model of "
                f"model.summary={wanted.summary} does not look: --set model.summary={summary}"
            )
        if self.source is None:
            return
        for name, theirs in differing_fields(self.config, wanted).items():
            if name not in FREE:
                raise UserError(
                    f"the weights of {self.given} were trained with model.{name}={theirs!r}, not "
                    f"{getattr(wanted, name)!r}: leave that setting, or give --init none"
                )

    def warn(self, recipe: EpochRecipe, language: str | None = None, mend: str = "") -> None:
        """Says on stderr where a recipe asks more of the weights than they have learnt.

        Args:
            language: of the texts, where it is named.
            mend: the end of the warning of languages; `{}` stands for the others.
        """
        if len(self.languages) > 1 and not language:
            first, *others = self.languages
            print(
                f"warning: texts are read as {first}, the first language of {self.given}"
                + mend.format(", ".join(others)),
                file=sys.stderr,
            )
        if self.trained_length is not None and recipe.max_length > self.trained_length:
            print(
                f"warning: {self.given} never saw rows of more than {self.trained_length} tokens: "
                f"set max_length={self.trained_length} or expect little of the rest",
                file=sys.stderr,
            )

    def copy_to(self, network: keras.Model) -> None:
        """Gives a `TaskModel` these weights; its head, and parts that are not here, stay drawn."""
        if self.source is None:
            return
        theirs = self.source.network
        if isinstance(theirs, Elmo):
            return network.encoder.take_over(theirs)
        pair = isinstance(self.source.config, EncoderDecoderConfig)
        for own, layer in (
            (network.encoder, None if pair else self.source.encoder),
            (network.encoder_decoder, (theirs.encoder_decoder or theirs) if pair else None),
            (network.pooler, self.source.pooler or theirs.pooler),
            (network.language_head, theirs.language_head),
        ):
            if own and layer:
                for weight, value in zip(own.weights, layer.get_weights(), strict=True):
                    assign(weight, value)
        if network.language_head and theirs.language_head and not self.source.starts:
            # GPT never ends a text; fine-tuned on two, it meets [SEP] between them.
            bias = theirs.language_head.get_weights()[0]
            bias[self.vocabulary.sep_id] = 0.0
            assign(network.language_head.weights[0], bias)


def read_init(
    given: str,
    model: str | None = None,
    vocabulary: str | os.PathLike | None = None,
    lower_case: bool | None = None,
    pooling: bool = False,
    decoders: bool = False,
) -> Init:
    """Reads the start that `--init` names.

    Args:
        given: a place of `macaron_tf.load`, or `none`.
        model: name of the catalog, for `none` alone.
        vocabulary: folder of the vocabulary, needed for `none`; elsewhere it is only compared.
        lower_case, pooling: see `macaron_tf.load`.
        decoders: take a BART too, for a task that its decoder's hidden states answer, or an ELMo.
    """
    if given == NOTHING:
        if not model or not vocabulary:
            raise UserError("--init none needs --model NAME and --vocabulary DIR")
        if isinstance(catalog.CONFIGS.get(model), ElmoConfig):
            raise UserError(f"--model {model} is trained before it is asked: give --init RUN")
        return Init(given, load_encoder_vocabulary(vocabulary), model)
    if model:
        raise UserError(f"--model {model} goes with --init none: {given} brings its own model")
    init = init_of(given, load(given, lower_case, pooling), decoders)
    if vocabulary:
        check_vocabulary(init.vocabulary.hash, load_encoder_vocabulary(vocabulary).hash, given)
    return init


def init_of_run(
    run: Run,
    model: str | None = None,
    vocabulary: str | os.PathLike | None = None,
    lower_case: bool | None = None,
) -> Init:
    """The start of a run of an `EpochRecipe`, to go on with it; see `read_init`."""
    recipe = run.recipe
    if recipe.init != NOTHING:
        return read_init(recipe.init, model, vocabulary, lower_case, decoders=True)
    if model or vocabulary:
        raise UserError("--resume: leave out --model and --vocabulary, which the run has kept")
    return Init(NOTHING, run.vocabulary, recipe.model, recipe.model_options)


def init_of(given: str, source: Pretrained, decoders: bool = False) -> Init:
    """The `Init` of a network that was loaded; see `read_init`."""
    pair = isinstance(source.config, EncoderDecoderConfig)
    reads = source.objective == "denoising" or isinstance(source.network, ReadingModel)
    if pair and not (decoders and reads):
        raise UserError(
            f"{given} is an encoder-decoder: give a run of an encoder"
            f"{', or a BART' if decoders else ''}, or fine-tune this one with "
            "experiments.text_to_text"
        )
    if decoders and isinstance(source.config, ElmoConfig):
        vocabulary = CharacterWords(source.config.max_characters)
        return Init(given, vocabulary, source.model, source.model_options, source)
    if not pair and not isinstance(source.config, EncoderConfig):
        raise UserError(f"{given} is a {type(source.network).__name__}: give an encoder")
    if source.vocabulary is None and given.endswith(".keras"):
        raise needs_vocabulary(given)
    if source.vocabulary is None:
        raise UserError(
            f"{given} has no tokenizer beside it that has a counterpart here, so no text "
            "can be read for it: give a BERT, RoBERTa, XLM, XLM-R, ALBERT, ELECTRA, XLNet, GPT or "
            "GPT-2 with its tokenizer's files"
        )
    source.require_floats()
    return Init(given, source.vocabulary, source.model, source.model_options, source)
