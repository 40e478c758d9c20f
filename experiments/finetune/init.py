"""Where a fine-tuning starts: a run, another library's BERT, or nothing."""

import dataclasses
import os
import re
import sys

import keras
import numpy as np

from experiments.finetune.recipe import FinetuningRecipe
from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import assign
from macaron_tf.io import paths as storage
from macaron_tf.models import EncoderConfig, EncoderDecoderConfig, catalog
from macaron_tf.models.config import DROPOUTS, differing_fields
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.pretrained import load
from macaron_tf.text import PieceVocabulary, load_encoder_vocabulary
from macaron_tf.text.base import check_vocabulary

NOTHING = "none"
# What may stand on an encoder and be taken over with it.
_PARTS = ("pooler", "language_head")


@dataclasses.dataclass(frozen=True)
class Weights:
    """An encoder's weights in Keras's order, and those of what may stand on it.

    Attributes:
        encoder: those.
        pooler, language_head: BERT's and a language model's; None where there is none.
    """

    encoder: list[np.ndarray]
    pooler: list[np.ndarray] | None = None
    language_head: list[np.ndarray] | None = None

    @classmethod
    def of(cls, network: keras.Model) -> "Weights":
        """Those of a network with an `encoder` and perhaps a `pooler` or a `language_head`."""
        parts = {name: getattr(network, name, None) for name in _PARTS}
        found = {name: layer.get_weights() for name, layer in parts.items() if layer}
        return cls(network.encoder.get_weights(), **found)


@dataclasses.dataclass(frozen=True, eq=False)
class Init:
    """Model, vocabulary and weights that a fine-tuning starts from.

    Attributes:
        given: what the command line named it.
        model, model_options: of the recipe.
        vocabulary: cuts text for the model.
        trained_length: longest rows the model has seen; None = all of its positions count.
        weights: None where they are drawn.
        languages: whose the encoder's language embeddings are, in order, where that is known.
        source: the weights' network; None where they are drawn.
    """

    given: str
    model: str
    model_options: tuple
    vocabulary: PieceVocabulary
    trained_length: int | None = None
    weights: Weights | None = None
    languages: tuple[str, ...] = ()
    source: Pretrained | None = None

    @property
    def config(self) -> EncoderConfig:
        """The encoder's, at the vocabulary's size."""
        options = {**dict(self.model_options), "vocab_size": self.vocabulary.size}
        return catalog.config(self.model, **options)

    @property
    def label(self) -> str:
        """A short name for tables: the folder's, or the model's."""
        if self.given == NOTHING:
            return self.model
        place = re.sub("^[a-z-]+:(?!//)", "", self.given).partition("@")[0]
        return storage.as_path(place).resolve().name

    def apply(self, recipe: FinetuningRecipe) -> FinetuningRecipe:
        """The recipe with this model and this source of weights."""
        return dataclasses.replace(
            recipe, init=self.given, model=self.model, model_options=self.model_options
        )

    def check(self, recipe: FinetuningRecipe) -> None:
        """Refuses a recipe whose model is not the one that the weights are of.

        Raises:
            UserError: a setting of the model differs; see also `FinetuningRecipe.model_config`.
        """
        wanted = recipe.model_config(self.vocabulary.size)
        if self.weights is None:
            return
        own = self.config
        for name, theirs in differing_fields(own, wanted).items():
            if name not in DROPOUTS:
                raise UserError(
                    f"the weights of {self.given} were trained with model.{name}={theirs!r}, not "
                    f"{getattr(wanted, name)!r}: leave that setting, or give --init none"
                )

    def warn(self, recipe: FinetuningRecipe) -> None:
        """Says on stderr where a recipe asks more of the weights than they have learnt."""
        if self.trained_length is not None and recipe.max_length > self.trained_length:
            print(
                f"warning: {self.given} never saw rows of more than {self.trained_length} tokens: "
                f"set max_length={self.trained_length} or expect little of the rest",
                file=sys.stderr,
            )

    def copy_to(self, network: keras.Model) -> None:
        """Gives a network these weights; its head, and parts that are not here, stay drawn.

        Args:
            network: with an `encoder`; a `pooler` or `language_head` that it has not is left.

        Raises:
            UserError: a shape differs.
        """
        if self.weights is None:
            return
        for weight, value in zip(network.encoder.weights, self.weights.encoder, strict=True):
            assign(weight, value)
        for name in _PARTS:
            layer, values = getattr(network, name, None), getattr(self.weights, name)
            if layer and values is not None:
                for weight, value in zip(layer.weights, values, strict=True):
                    assign(weight, value)


def read_init(
    given: str,
    model: str | None = None,
    vocabulary: str | os.PathLike | None = None,
    lower_case: bool | None = None,
    pooling: bool = False,
) -> Init:
    """Reads what `--init` names.

    Args:
        given: the folder of a pre-training run, or of a fine-tuning run of another task, with
            `@CHECKPOINT` where the checkpoint is not to be the default one; `hugging-face:DIR`;
            `keras-hub:DIR`; or `none`.
        model: name of the catalog, for `none` alone.
        vocabulary: folder of the vocabulary, needed for `none`; elsewhere it is only compared.
        lower_case: for a Hugging Face directory that does not say.
        pooling: see `macaron_tf.load`.

    Raises:
        UserError: there is no such thing, or it is no encoder; a model or a vocabulary that is
            missing, superfluous or another one.
    """
    if given == NOTHING:
        if not model or not vocabulary:
            raise UserError("--init none needs --model NAME and --vocabulary DIR")
        return Init(given, model, (), load_encoder_vocabulary(vocabulary))
    if model:
        raise UserError(f"--model {model} goes with --init none: {given} brings its own model")
    init = init_of(given, load(given, lower_case, pooling))
    if vocabulary:
        check_vocabulary(init.vocabulary.hash, load_encoder_vocabulary(vocabulary), given)
    return init


def init_of(given: str, source: Pretrained) -> Init:
    """The `Init` of a network that was loaded; see `read_init`."""
    if isinstance(source.config, EncoderDecoderConfig):
        raise UserError(
            f"--init {given} is an encoder-decoder: give a run of an encoder, or fine-tune this "
            "one with experiments.text_to_text"
        )
    if not isinstance(source.config, EncoderConfig):
        raise UserError(f"--init {given} is a {type(source.network).__name__}: give an encoder")
    if source.vocabulary is None:
        raise UserError(
            f"--init {given} has no tokenizer beside it that has a counterpart here, so no text "
            "can be read for it: give a BERT, RoBERTa, XLM-R, ALBERT, ELECTRA, XLNet, GPT or GPT-2 "
            "with its tokenizer's files"
        )
    weights = Weights.of(source.network)
    if source.pooler:
        weights = dataclasses.replace(weights, pooler=source.pooler.get_weights())
    if not source.starts:
        # GPT never ends a text; fine-tuned on two, it meets [SEP] between them.
        [bias] = weights.language_head
        bias[source.vocabulary.sep_id] = 0.0
    return Init(
        given,
        source.model,
        source.model_options,
        source.vocabulary,
        # Sinusoids and T5's far distances reach further than they were seen.
        source.trained_length if source.config.longest is not None else None,
        weights,
        source.languages if source.config.num_languages else (),
        source,
    )
