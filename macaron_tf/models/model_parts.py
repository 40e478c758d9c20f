"""The parts of a trained model: its network, its vocabulary, and how they are used."""

import dataclasses
from typing import Any, ClassVar, Self

import keras

from macaron_tf.errors import UserError
from macaron_tf.models import catalog
from macaron_tf.models import config as configs
from macaron_tf.models.base import Network
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.settings import Settings
from macaron_tf.special import SPECIAL, Special

VOCABULARY = "vocabulary"  # subfolder of a model's folder


@dataclasses.dataclass(frozen=True)
class TaskSettings(Settings):
    """Base class of the settings of a model's task; `macaron_tf.tasks` has the subclasses.

    Attributes:
        kind: name of the class in `model.json`.
    """

    kind: ClassVar[str] = ""

    @property
    def starts(self) -> bool:
        """Whether [CLS] precedes a source text."""
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card(Settings):
    """Facts about a model's weights: their origin and their training.

    Attributes:
        name: short name of the model in tables.
        checkpoint: name of the checkpoint with the weights. For another library's model, the value
            is the argument of `load`.
        model: name of a model in the catalog, from which the network may differ in some settings
            (see `ModelParts.model_options`). "" means that the catalog has no such model.
        objective: name of the pre-training objective whose head the network has, or `None`.
        optimizer: name of the optimizer that trained the network, or `None` if unknown.
        trained_length: maximum row length in training, in tokens; `None` if unknown.
        languages: names of the languages, in the order of the language embeddings.
        starts: whether the texts in pre-training began with [CLS]. A language model can then
            generate text without a prompt, after [CLS] alone.
        sentinels: number of T5's sentinel tokens, whose ids follow the ids of the vocabulary.
        special: ids of the special tokens of a model without a vocabulary.
        unread: names of weights in the checkpoint that were not read, such as weights of other
            heads.
        missing_head: head that `predict` would need, but that was not read from the checkpoint,
            such as "lm_head.weight". "" means that no head is missing.
        license: license of the weights as an identifier of the Hugging Face hub; "" if unknown.
        recipe: content of the run's recipe.json.
        unlisted: names of recipe settings that the model card omits, because they do not affect the
            network. A name that ends in a dot matches every name with this prefix.
        results: results of a run. `step` and `metrics` are from the validation of the weights.
            `warning` says why the expected weights were not read.
    """

    name: str = ""
    checkpoint: str = ""
    model: str = ""
    objective: str | None = None
    optimizer: str | None = None
    trained_length: int | None = None
    languages: tuple[str, ...] = ()
    starts: bool = True
    sentinels: int = 0
    special: Special = SPECIAL
    unread: tuple[str, ...] = ()
    missing_head: str = ""
    license: str = ""
    recipe: Any = dataclasses.field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    results: Any = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name of the model in messages."""
        return self.name or self.checkpoint or "the model"


@dataclasses.dataclass(frozen=True, eq=False)
class ModelParts:
    """A trained network with its vocabulary, the settings of its task, and its card.

    Readers of the hub return these parts, and writers take them. `Model` adds the methods.

    Attributes:
        network: trained network of a run, or a network converted from another library. A network
            with a task head belongs to the class that fine-tuning on the task creates, such as
            `EncoderClassifier`. An encoder without a task head is a `PretrainingEncoder`.
        vocabulary: vocabulary that tokenizes text for the network. `None` means that the tokenizer
            is missing or not supported.
        settings: settings of the task. `None` means the defaults of the task that follows from the
            class of the network and the objective in the card.
        card: facts about the weights.
    """

    network: keras.Model
    vocabulary: Any = None
    settings: TaskSettings | None = None
    card: Card = Card()

    def __post_init__(self):
        if not isinstance(self.network, Network):
            return
        config, facts = self.network.config, {}
        if not self.card.model and isinstance(config, configs.EncoderDecoderConfig):
            facts["model"] = "transformer_base"
        elif not self.card.model and isinstance(config, configs.EncoderConfig):
            facts["model"] = "gpt2_base" if config.causal else "bert_base"
        if isinstance(self.network, LanguageModel) and self.card.objective is None:
            facts["objective"] = "causal_language"
        if facts:
            object.__setattr__(self, "card", dataclasses.replace(self.card, **facts))

    @property
    def special(self) -> Special:
        """Ids of the special tokens."""
        if self.vocabulary:
            return self.vocabulary.special
        if isinstance(self.network, Network) and isinstance(self.config, configs.StackConfig):
            return dataclasses.replace(self.card.special, pad=self.config.pad_id)
        return self.card.special

    def with_card(self, **facts: Any) -> Self:
        """Returns a copy with changed fields of the card."""
        return dataclasses.replace(self, card=dataclasses.replace(self.card, **facts))

    @property
    def config(self):
        """Configuration of the network."""
        return self.network.config

    @property
    def encoder(self) -> Encoder:
        """Encoder of the network, or the network itself if it is an encoder."""
        return self.network if isinstance(self.network, Encoder) else self.network.encoder

    @property
    def model_options(self) -> tuple[tuple[str, Any], ...]:
        """(field, value) pairs of `config` that differ from the catalog model `card.model`."""
        catalog_config = catalog.config(self.card.model, vocab_size=self.config.vocab_size)
        return tuple(sorted(configs.differing_fields(self.config, catalog_config).items()))

    def record(self) -> dict[str, Any]:
        """Returns the content of `model.json`, from which `read_model` builds these parts again."""
        card = {**dataclasses.asdict(self.card), "special": dataclasses.asdict(self.special)}
        del card["recipe"], card["name"], card["checkpoint"]
        settings = self.settings
        return {
            "kind": self.card.recipe.get("kind", ""),
            "network": keras.saving.serialize_keras_object(self.network),
            "vocabulary": VOCABULARY if self.vocabulary else None,
            "task": settings and {"kind": settings.kind, **dataclasses.asdict(settings)},
            "card": card,
        }

    def require_floats(self) -> None:
        """Raises a UserError if the weights are quantized instead of float."""
        if any(layer.quantization_mode for layer in self.network._flatten_layers()):
            raise UserError(f"{self.card.title} is quantized: give the original")

    def require_vocabulary(self) -> None:
        """Raises a UserError if the model has no vocabulary."""
        if self.vocabulary is None:
            advice = "give `vocabulary=`, or put the tokenizer's files beside it"
            raise UserError(f"{self.card.title} has no vocabulary: {advice}")

    def require_head(self) -> None:
        """Raises a UserError if the model's head was not read (see `Card.missing_head`)."""
        if self.card.missing_head:
            init = self.card.checkpoint or self.card.name
            lack = f"makes no predictions from texts, because {self.card.missing_head} was not read"
            advice = "fine-tune it by `macaron train finetune:TASK` or `text_to_text:TASK`"
            raise UserError(f"{self.card.title} {lack}: {advice} with --init {init}")
