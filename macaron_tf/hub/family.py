"""Conversion rules for a model type of another library."""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Arrays, Table, read_state
from macaron_tf.hub.config import ForeignConfig, shortest_period
from macaron_tf.hub.heads import Heads
from macaron_tf.hub.tokenizers.reading import read_vocabulary
from macaron_tf.io.paths import refuse_damage
from macaron_tf.models import EncoderConfig, EncoderDecoder, EncoderDecoderConfig
from macaron_tf.models.base import Network
from macaron_tf.models.config import WEIGHTLESS_FIELDS, StackConfig, differing_fields
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.special import Special
from macaron_tf.tasks.base import DecodingSettings
from macaron_tf.text import PieceVocabulary

# Settings that do not change the outputs of a trained model, or that `write` itself converts.
_WITHOUT_EFFECT = (
    *WEIGHTLESS_FIELDS,
    *("vocab_size", "position_offset", "pad_id", "begin_id", "end_id", "initializer"),
    *("initializer_range", "scaled_outputs", "output_bias", "logits_bias"),
)
# Suffixes of the model classes with a head that predicts tokens.
LANGUAGE_CLASSES = ("LM", "HeadModel", "HeadsModel", "MTModel", "Generation", "PreTraining")


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """Folder of a Hugging Face model.

    Attributes:
        lower_case: see `read_hugging_face`.
    """

    path: pathlib.Path
    config: ForeignConfig
    lower_case: bool | None = None

    def has(self, *names: str) -> bool:
        """Returns whether the folder has one of these files."""
        return any((self.path / name).is_file() for name in names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFaceFolder:
    """Contents of a folder that Hugging Face's transformers can load.

    Attributes:
        config: fields of `config.json`.
        state: dict mapping the name of a weight in the PyTorch model to its array.
        pipeline: name of the task on the Hugging Face Hub, such as "fill-mask". An empty string
            means that the model card names no task.
        library: name of the library that can load the folder.
        files: dict mapping the path of a further file, such as a tokenizer's, to its contents.
        notes: sentences about parts that are left out or added, for stderr.
    """

    config: Mapping[str, Any]
    state: Mapping[str, np.ndarray]
    pipeline: str = ""
    library: str = "transformers"
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family(Heads, abc.ABC):
    """Conversion rules for one model type of another library, such as Hugging Face's "gpt2".

    A field is a setting in the other library's configuration file.

    Attributes:
        networks, config_class: classes of the networks that are written as this kind of family, and
            of their configuration.
        model_type: the field `model_type` of the other library's configuration file.
        catalog: name of a model of the same type in macaron_tf's catalog.
        tokens: possible names of the token embedding array.
        table: mapping of weight names for the model without its token embeddings and heads.
        settings: dict mapping a macaron_tf setting to a tuple (field, default) or (field, default,
            values), where `values` maps each value of the field to a macaron_tf value. A default of
            `None` means that the field is required. Other fields may be missing, because early
            versions of transformers did not save fields with default values.
        fixed_settings: macaron_tf settings that are the same for all models of this type.
        derive_settings: function that computes further macaron_tf settings from the other library's
            settings.
        derive_fields: function that computes fields from a macaron_tf configuration. The function
            is the inverse of `derive_settings`.
        required_fields: dict mapping a field to its only supported value. A missing field is
            accepted.
        prefix: prefix of weight names in a model with a head, such as "bert.". The names of the
            head's weights, and all names in a model without a head, lack the prefix.
        transpose_kernels: whether kernels have the shape (outputs, inputs) (see `Arrays`).
        body_prefixes: prefixes of weight names. If a weight with such a prefix remains unread, the
            model is rejected.
        ignored_suffixes: suffixes of array names. Arrays with such a suffix may remain unread.
        tokenizer: function that reads the tokenizer of a folder, or `None`.
        tokenizer_files: a folder with none of these files has no vocabulary. Without names, a
            folder needs a tokenizer.
        vocabulary_class: class of the vocabularies of released models. A model with such a
            vocabulary is written as this family rather than as another.
    """

    networks: ClassVar[tuple[type, ...]]
    config_class: ClassVar[type[StackConfig]] = EncoderConfig
    name: str
    catalog: str
    tokens: tuple[str, ...]
    table: Table
    settings: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    fixed_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    derive_settings: Callable[[ForeignConfig], dict[str, Any]] = lambda config: {}
    derive_fields: Callable[[StackConfig], dict[str, Any]] = lambda config: {}
    required_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prefix: str = ""
    transpose_kernels: bool = True
    body_prefixes: tuple[str, ...] = ()
    ignored_suffixes: tuple[str, ...] = ()
    tokenizer: Callable[[ModelFolder], PieceVocabulary] | None = lambda folder: read_vocabulary(
        folder.path, folder.lower_case
    )
    tokenizer_files: tuple[str, ...] = ()
    vocabulary_class: type[PieceVocabulary] | None = None

    @abc.abstractmethod
    def read(self, folder: ModelFolder) -> ModelParts:
        """Reads a model with its heads from a Hugging Face folder."""

    @abc.abstractmethod
    def write(self, model: ModelParts) -> HuggingFaceFolder:
        """Converts a model that the family can express to the files of a Hugging Face model."""

    def vocabulary(self, folder: ModelFolder) -> PieceVocabulary | None:
        """Returns the vocabulary of a folder, or `None` if it has none that can be read."""
        is_missing = self.tokenizer_files and not folder.has(*self.tokenizer_files)
        return self.tokenizer(folder) if self.tokenizer and not is_missing else None

    def is_tried(self, model: ModelParts) -> bool:
        """Returns whether `model` may be written as this family."""
        is_known = isinstance(model.network, self.networks)
        return is_known and isinstance(model.config, self.config_class)

    def missing_part(self, model: ModelParts) -> str:
        """Describes a part of `model`, such as a head, that the family lacks; "" if it has all."""
        return ""

    def read_settings(self, config: ForeignConfig) -> dict[str, Any]:
        """Converts the other library's settings to a dict of macaron_tf settings."""
        config.require(self.required_fields)
        with refuse_damage(config.where, "use the configuration that belongs to the weights"):
            derived = self.derive_settings(config)
        settings = {
            setting: config.choice(field, choices[0], default)
            if choices
            else config.number(field, default)
            for setting, (field, default, *choices) in self.settings.items()
        }
        return {**self.fixed_settings, **settings, **derived}

    def fields(self, config: StackConfig) -> dict[str, Any]:
        """Converts a configuration to the supported fields (inverse of `read_settings`)."""
        fields = dict(self.required_fields)
        for setting, (field, _, *choices) in self.settings.items():
            value = getattr(config, setting)
            if choices:
                names = (name for name, ours in choices[0].items() if ours == value)
                value = next(names, None)
            if value is not None:
                fields[field] = value
        return {**fields, **self.derive_fields(config)}

    def written_fields(self, config: StackConfig, class_name: str, rows: int) -> dict[str, Any]:
        """Returns `fields` with those that a folder has besides, for `rows` embedding rows."""
        return {
            **self.fields(config),
            "model_type": self.model_type,
            "architectures": [class_name],
            "vocab_size": rows,
            "dtype": "float32",
        }

    def unsupported_settings(self, network: Network) -> dict[str, Any]:
        """Returns a dict mapping each setting that the family cannot express to its value.

        The method converts the configuration to the family's settings and back, and compares the
        result with the original. If the family does not support the value of a required field, the
        dict contains only the setting of this field.
        """
        config, without_effect = _normalized(network.config), (*_WITHOUT_EFFECT, *network.unread())
        fields = self.fields(config)
        for setting, (field, default, *_) in self.settings.items():
            if default is None and field not in fields:  # not among the family's choices
                return {setting: getattr(config, setting)}
        settings = self.read_settings(ForeignConfig(fields, self.name))
        restored = type(config)(vocab_size=config.vocab_size, **settings)
        differing = differing_fields(config, _normalized(restored))
        return {name: value for name, value in differing.items() if name not in without_effect}

    def arrays(self, folder: ModelFolder) -> Arrays:
        """Returns the weights of a folder, without the prefix of their names.

        If no name begins with `prefix`, the prefix is the part before the token embeddings' name.
        This part is empty in a model without a head, and any name in a user's own model class.
        """
        state = read_state(folder.path)
        # Early conversions of BERT kept TensorFlow's names of LayerNorm weights.
        for old, new in (("Norm.gamma", "Norm.weight"), ("Norm.beta", "Norm.bias")):
            state = {name.replace(old, new): array for name, array in state.items()}
        prefix = self.prefix
        if not prefix or not any(name.startswith(prefix) for name in state):
            ends = ((name, tokens) for tokens in self.tokens for name in state)
            found = (n.removesuffix(end) for n, end in ends if f".{n}".endswith(f".{end}"))
            prefix = next(found, prefix)
        return Arrays(state, prefix, self.transpose_kernels)

    def check_unread(
        self, arrays: Arrays, kernel: str = "", ignored: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Checks that all required arrays were read, and returns the names of unread arrays.

        The result leaves out arrays with a suffix in `ignored_suffixes` or `ignored`. An array
        called `kernel`, of the output layer, must equal the token embeddings.
        """
        tokens = arrays.array(*self.tokens)
        if arrays.has(kernel) and not np.array_equal(arrays.array(kernel), tokens):
            found = f"the {self.name} model has an output matrix {kernel} of its own"
            raise UserError(f"{found}, but only tied embeddings can be read: give another model")
        unread, ignored = {*arrays.arrays} - arrays.names_read, (*self.ignored_suffixes, *ignored)
        unread = sorted(name for name in unread if not name.endswith(ignored))
        for name in unread:
            if name.startswith(self.body_prefixes):
                lack = f"the weight {name} has no counterpart in the {self.name} of config.json"
                raise UserError(f"{lack}: give config.json and weights of the same model")
        return tuple(unread)


def _normalized(config: StackConfig) -> StackConfig:
    """Normalizes a configuration, so that two configurations of equivalent models are equal.

    The maximum length gets its default value if it has no effect. An explicit size that equals the
    default becomes `None`, for example `head_dim=64` with `hidden_dim=768` and 12 heads. A list of
    equal blocks becomes a single block, and a periodic list of attention windows becomes its
    shortest period.
    """
    fields, initial = config.get_config(), type(config)
    head_dim = config.hidden_dim // config.num_heads
    defaults = {"head_dim": head_dim, "embedding_dim": config.hidden_dim}
    defaults["num_kv_heads"] = config.num_heads
    changes = {name: None for name, value in defaults.items() if fields.get(name) == value}
    if config.longest is None:
        changes["max_length"] = initial.max_length
    if isinstance(config, EncoderConfig):
        windows = shortest_period([config.layer(index)[2] for index in range(config.num_layers)])
        changes["attention_windows"] = windows
        if not any(windows) or config.local_rotary_base == config.rotary_base:
            changes["local_rotary_base"] = None
    if len({*config.blocks}) == 1:
        changes["block"] = config.blocks[0]
    return dataclasses.replace(config, **changes)


def fitted(vocabulary: PieceVocabulary | None, special: Special, tokens: np.ndarray) -> Special:
    """Returns the special tokens of `vocabulary` with the table `tokens`, or `special`."""
    if vocabulary is None:
        return special
    special_ids = {*vocabulary.special.ids, *vocabulary.special.sentinels}
    # Some released models lack the row of a special token, such as the mask of BART for summaries.
    if not {*range(len(tokens), vocabulary.pieces)} <= special_ids:
        sizes = f"the vocabulary has {vocabulary.pieces} tokens, but the model has {len(tokens)}"
        raise UserError(f"{sizes}: use the tokenizer files and config.json of the weights")
    vocabulary.special = dataclasses.replace(vocabulary.special, rows=len(tokens))
    return vocabulary.special


def kept_rows(model: ModelParts) -> np.ndarray:
    """Returns the indices of the embedding rows that the folder contains, in order.

    A model from another library keeps the rows of its checkpoint. For a model that was trained
    here, the rows that fill the table up to a multiple of 8 are left out.
    """
    vocabulary, special = model.vocabulary, model.special
    if special.rows is not None:
        return np.arange(special.rows)
    if vocabulary is None:
        return np.arange(model.config.vocab_size)
    return np.r_[: vocabulary.pieces, vocabulary.size : vocabulary.size + model.card.sentinels]


def generation_of(model: ModelParts) -> Mapping[str, Any]:
    """Returns the generation settings that a model from transformers came with, or no settings."""
    return model.settings.generation if isinstance(model.settings, DecodingSettings) else {}


def build_model(
    model_class: type[keras.Model], settings: Mapping, *arguments, **options
) -> keras.Model:
    """Builds a macaron_tf model from the fields of its configuration, and creates its weights."""
    config_class = EncoderDecoderConfig if model_class is EncoderDecoder else EncoderConfig
    try:
        config = config_class(**settings, trust_code=False)
    except ValueError as error:
        raise UserError(f"{model_class.__name__} does not support a setting ({error})") from None
    network = model_class(config, *arguments, **options)
    network.build()
    return network
