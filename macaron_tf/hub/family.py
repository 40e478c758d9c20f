"""Conversion rules for a model type of another library and for the heads of its task models."""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Arrays, Table, TorchArrays
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.io.paths import refuse_damage
from macaron_tf.models import EncoderConfig, EncoderDecoder, EncoderDecoderConfig
from macaron_tf.models.config import StackConfig
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import TokenizerJsonVocabulary

# Suffixes of the model classes with a head that predicts tokens.
LANGUAGE_CLASSES = ("LM", "HeadModel", "HeadsModel", "MTModel", "Generation", "PreTraining")


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """Another library's model class for a task. The head of the class has one or two layers.

    Attributes:
        class_suffix: suffix of the class name, such as "ForTokenClassification".
        pipeline: name of the task on the Hugging Face Hub; "" if the model card names no task.
        table: mapping of weight names for the layers of the head.
        has_pooler: whether the model class also contains the pooler in `Family.table`.
        activation: activation of the pooler, or after the first layer of a two-layer head.
        activation_field: field of the configuration file that names the activation. If the file
            lacks this field, the activation is `activation`. An empty string means that the
            activation is fixed.
    """

    class_suffix: str
    pipeline: str
    table: Table
    has_pooler: bool = False
    activation: str = "tanh"
    activation_field: str = ""


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """Folder of a Hugging Face model, and what to read from it.

    Attributes:
        path: path of the folder.
        config: settings in its `config.json`.
        lower_case: see `read_hugging_face`.
        has_task: whether to read a task head.
        vocabulary: vocabulary of the model. `None` means that the tokenizer's files are read.
    """

    path: pathlib.Path
    config: ForeignConfig
    lower_case: bool | None = None
    has_task: bool = True
    vocabulary: TokenizerJsonVocabulary | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family(abc.ABC):
    """Conversion rules for one model type of another library, such as Hugging Face's "gpt2".

    A field is a setting in the other library's configuration file.

    Attributes:
        model_type: the field `model_type` of the other library's configuration file.
        name: name of the model type in error messages.
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
        without_effect: fields that do not change the model's answers.
        prefix: prefix of weight names in a model with a head, such as "bert.". The names of the
            head's weights, and all names in a model without a head, lack the prefix.
        transpose_kernels: whether kernels have the shape (outputs, inputs) (see `TorchArrays`).
        output_kernel: name of the output layer's kernel. If the weights contain this kernel,
            `check_unread` raises unless the kernel equals the token embeddings.
        body_prefixes: prefixes of weight names. If a weight with such a prefix remains unread, the
            model is rejected.
        ignored_suffixes: suffixes of array names. Arrays with such a suffix may remain unread.
        class_prefix: prefix of the model class names, such as "Bert".
        tasks: dict mapping a macaron_tf model class to the other library's model class for the same
            task.
        head_dropout: name of the field that sets the dropout rate of a task head.
        code: function that returns a dict mapping file name to contents. An exported folder
            includes these Python files, so that transformers can load the folder with
            `trust_remote_code=True`.
    """

    model_type: str = ""
    name: str
    catalog: str
    tokens: tuple[str, ...]
    table: Table
    settings: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    fixed_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    derive_settings: Callable[[ForeignConfig], dict[str, Any]] = lambda config: {}
    derive_fields: Callable[[StackConfig], dict[str, Any]] = lambda config: {}
    required_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    without_effect: tuple[str, ...] = ()
    prefix: str = ""
    transpose_kernels: bool = True
    output_kernel: str = ""
    body_prefixes: tuple[str, ...] = ()
    ignored_suffixes: tuple[str, ...] = ()
    class_prefix: str = ""
    tasks: Mapping[type, TaskHead] = dataclasses.field(default_factory=dict)
    head_dropout: str = "classifier_dropout"
    code: Callable[[], dict[str, bytes]] = dict

    @abc.abstractmethod
    def read(self, folder: ModelFolder) -> Pretrained:
        """Reads a model with its heads from a Hugging Face folder."""

    def read_settings(self, config: ForeignConfig) -> dict[str, Any]:
        """Converts the other library's settings to a dict of macaron_tf settings.

        Raises:
            UserError: a field without a default is missing, or a value has a wrong type or no
                counterpart in macaron_tf.
        """
        config.require(self.required_fields)
        with refuse_damage(config.where, "use the configuration that belongs to the weights"):
            derived = self.derive_settings(config)
        return {**self.fixed_settings, **config.settings(self.settings), **derived}

    def arrays(self, state: Mapping[str, np.ndarray]) -> TorchArrays:
        """Returns the weights in `state`, which maps PyTorch name to array, without their prefix.

        If no name begins with `prefix`, the prefix is the part before the token embeddings' name.
        This part is empty in a model without a head, and any name in a user's own model class.
        """
        # `torch.compile` and `DataParallel` put these before all names.
        for wrapper in ("_orig_mod.", "module."):
            if all(name.startswith(wrapper) for name in state):
                state = {name.removeprefix(wrapper): array for name, array in state.items()}
        prefix = self.prefix
        if not prefix or not any(name.startswith(prefix) for name in state):
            ends = ((name, tokens) for tokens in self.tokens for name in state)
            found = (n.removesuffix(end) for n, end in ends if f".{n}".endswith(f".{end}"))
            prefix = next(found, prefix)
        return TorchArrays(state, prefix, self.transpose_kernels)

    def check_unread(self, arrays: Arrays) -> tuple[str, ...]:
        """Checks that all required arrays were read, and returns the names of unread arrays.

        The result leaves out arrays with a suffix in `ignored_suffixes`.

        Raises:
            UserError: the output layer differs from the token embeddings, or a weight with a prefix
                in `body_prefixes` was not read.
        """
        tokens = arrays.array(*self.tokens)
        if arrays.has(self.output_kernel) and not np.array_equal(
            arrays.array(self.output_kernel), tokens
        ):
            raise UserError(
                f"the {self.name} model has an output matrix {self.output_kernel} that differs "
                "from its token embeddings, but only tied embeddings can be read: give a model "
                "with tied embeddings"
            )
        unread = sorted(set(arrays.arrays) - arrays.names_read)
        unread = [name for name in unread if not name.endswith(self.ignored_suffixes)]
        for name in unread:
            if name.startswith(self.body_prefixes):
                raise UserError(
                    f"the weight {name} has no counterpart in the {self.name} model that "
                    "config.json describes: use the config.json that belongs to the weights, or "
                    "give another model"
                )
        return tuple(unread)


def missing_head(config: ForeignConfig, unread: Sequence[str]) -> str:
    """Describes the task head that the weights contain and macaron_tf cannot read.

    Args:
        config: settings of the other library's model, which name its class.
        unread: names of the weights that were not read.

    Returns:
        A noun phrase for `Pretrained.missing_head`, which is "" if there is no such head. A model
        class with a head for tokens may have further weights, such as a value head.
    """
    name = config.architecture
    is_missing = unread and not name.endswith(LANGUAGE_CLASSES)
    return f"the head of {name or 'the model'} ({unread[0]})" if is_missing else ""


def build_model(
    model_class: type[keras.Model], settings: Mapping, *arguments, **options
) -> keras.Model:
    """Builds a macaron_tf model, and creates its weights.

    Args:
        model_class: class of the model.
        settings: fields of the model's configuration.
        arguments, options: further constructor arguments of `model_class`.

    Raises:
        UserError: the class of the configuration rejects a setting.
    """
    try:
        config = (EncoderDecoderConfig if model_class is EncoderDecoder else EncoderConfig).read(
            settings
        )
    except ValueError as error:
        raise UserError(
            f"the model's configuration has settings that {model_class.__name__} of macaron_tf "
            f"does not support ({error}): give another model"
        ) from None
    network = model_class(config, *arguments, **options)
    network.build()
    return network
