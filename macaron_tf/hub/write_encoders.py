"""Export of encoders and their task heads as Hugging Face's BERT and related models.

An encoder is exported as the first family that can express the whole encoder. Families whose
released models have the same kind of vocabulary come first.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from macaron_tf.hub.arrays import Raw, Table
from macaron_tf.hub.encoders import EncoderFamily
from macaron_tf.hub.families import families_of
from macaron_tf.hub.family import TaskHead
from macaron_tf.hub.heads import (
    HEAD_ACTIVATIONS,
    head_fields,
    head_state,
    pooler_activation,
)
from macaron_tf.hub.sentence_transformers import sentence_files
from macaron_tf.hub.tokenizers.writing import tokenizer_files
from macaron_tf.hub.writing import (
    HuggingFaceFolder,
    config_fields,
    find_family,
    kept_rows,
    layer_state,
)
from macaron_tf.layers.heads import Pooler
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.pretraining import GeneratorDiscriminator, PretrainingEncoder
from macaron_tf.models.tasks import (
    EncoderClassifier,
    EncoderMultipleChoice,
    EncoderQuestionAnswering,
    EncoderTokenClassifier,
    SiameseEncoder,
)
from macaron_tf.pretrained import Pretrained

TASKS = (EncoderClassifier, EncoderMultipleChoice, EncoderTokenClassifier, EncoderQuestionAnswering)
ENCODERS = (Encoder, PretrainingEncoder, GeneratorDiscriminator, SiameseEncoder, *TASKS)


def encoder_folder(model: Pretrained) -> HuggingFaceFolder:
    """Converts an encoder, with or without a task head, to the files of a Hugging Face model.

    ELECTRA's generator is left out, and so are a sentence-pair head and a span-boundary head if the
    Hugging Face model lacks such a head.

    Args:
        model: model whose network is an instance of a class in `ENCODERS`.

    Raises:
        UserError: no Hugging Face model has counterparts for all other parts and for the settings,
            or Hugging Face's tokenizers have no counterpart for the vocabulary.
    """
    return _Encoder(model).folder()


class _Encoder:
    """Encoder to export, with the Hugging Face model type that can express the encoder.

    Attributes:
        has_masked_head: whether the network has a trained masked language head.
        replaced_token_head: head for replaced token detection, as in ELECTRA. `None` means that the
            model has no such head.
        family: conversion rules for the Hugging Face model type.
        head: Hugging Face model class for the network, with or without a head.
        rows: indices of the embedding rows to write.
    """

    def __init__(self, model: Pretrained):
        self.model, self.network, self.config = model, model.network, model.config
        network, vocabulary = model.network, model.vocabulary
        self.has_masked_head = isinstance(network, PretrainingEncoder) and (
            model.has_masked_language or bool(model.recipe)
        )
        self.replaced_token_head = model.replaced_token
        if isinstance(network, GeneratorDiscriminator):
            self.replaced_token_head = network.replaced_token
        families = [family for family in families_of(EncoderFamily) if family.is_tried(model)]
        kind = type(vocabulary)
        families.sort(key=lambda family: kind != family.vocabulary_class)  # the sort is stable
        self.family = find_family(families, self.config, self._describe_missing)
        self.head = self._head_of(self.family)
        self.rows = kept_rows(model)

    def _describe_missing(self, family: EncoderFamily) -> str:
        """Describes the head parts and head options that a family does not support.

        The description is empty if the family has counterparts for all parts and options.
        """
        network_class = type(self.network)
        if network_class in TASKS and network_class not in family.tasks:
            # Hugging Face's head is one linear layer.
            return (
                f"the head of {network_class.__name__}, which has two layers with an activation "
                "between,"
            )
        if network_class in (EncoderClassifier, EncoderMultipleChoice):
            head, activation = family.tasks[network_class], pooler_activation(self.network)
            supported = HEAD_ACTIVATIONS if head.activation_field else (head.activation,)
            if activation not in supported:
                return f"pooler_activation={activation!r}"
        if self.replaced_token_head and "replaced_token/dense" not in family.heads:
            return "a replaced token detection head"
        if not self.has_masked_head:
            return ""
        options = _options(self.config, self.network.head_options)
        family_options = _options(self.config, family.head_options)
        return ", ".join(
            f"the masked language head's {name}={value!r}"
            for name, value in options.items()
            if value != family_options[name]
        )

    def _head_of(self, family: EncoderFamily) -> TaskHead:
        if isinstance(self.network, TASKS):
            return family.tasks[type(self.network)]
        if self.replaced_token_head:
            return TaskHead("ForPreTraining", "", {})
        has_sentence_pair = self.has_masked_head and self.network.sentence_pair
        if has_sentence_pair and "sentence_pair/dense" in family.heads:
            return TaskHead("ForPreTraining", "fill-mask", {}, has_pooler=True)
        if self.has_masked_head:
            return TaskHead(family.masked_class_suffix, "fill-mask", {})
        return TaskHead(
            "Model", "feature-extraction", {}, has_pooler="pooler/dense" in family.table
        )

    @property
    def has_no_head(self) -> bool:
        """Whether the folder contains only the encoder, without a head."""
        return self.head.class_suffix == "Model"

    def folder(self) -> HuggingFaceFolder:
        notes = [*self._notes()]
        config = self._config()
        tokenizer = {}
        if self.model.vocabulary:
            tokenizer = tokenizer_files(
                self.model.vocabulary,
                max_length=self.config.longest,
                has_segments=self.config.num_segments > 1,
            )
        pooled = self.network if isinstance(self.network, SiameseEncoder) else self.model
        files = {}
        if pooled.pooling and self.has_no_head:
            length = self.model.max_length or self.config.longest
            files = sentence_files(pooled.pooling, pooled.normalize, self.config.hidden_dim, length)
        return HuggingFaceFolder(
            config=config,
            state=self._state(),
            tokenizer=tokenizer,
            pipeline="sentence-similarity" if files else self.head.pipeline,
            library="sentence-transformers" if files else "transformers",
            files={**files, **self.family.code()},
            notes=tuple(notes),
        )

    def _notes(self) -> Iterator[str]:
        name = self.family.name
        if isinstance(self.network, GeneratorDiscriminator):
            yield "the generator is left out, because ELECTRA's encoder is the discriminator"
        if self.has_masked_head and self.network.sentence_pair and not self.head.has_pooler:
            yield f"the sentence-pair head is left out, because {name} has no such head"
        if self.has_masked_head and self.network.span_boundary:
            yield f"the span-boundary head is left out, because {name} has no such head"
        if self.head.has_pooler and self._pooler is None:
            yield f"the pooler is untrained, because {name} has a pooler and this encoder has none"
        if self.model.vocabulary is None:
            yield "the tokenizer is missing, because the model has no vocabulary"

    @property
    def _pooler(self) -> Pooler | None:
        return self.network.pooler or self.model.pooler

    def _config(self) -> dict[str, Any]:
        family, fields = self.family, config_fields(self.family, self.config)
        special = self.model.special
        if family.segments:
            # Hugging Face's models have at least one segment. An encoder without segments gets a
            # single segment embedding of zeros.
            fields["type_vocab_size"] = max(self.config.num_segments, 1)
        if family.positions_from_padding:
            fields["max_position_embeddings"] += special.pad + 1
        fields |= {
            "model_type": family.model_type,
            "architectures": [family.class_prefix + self.head.class_suffix],
            "vocab_size": len(self.rows),
            "pad_token_id": special.pad,
            "dtype": "float32",
        }
        if self.model.vocabulary and special.rows is None:
            fields |= {"bos_token_id": special.begin, "eos_token_id": special.end}
        fields |= family.model_fields(self.model)
        if isinstance(self.network, TASKS):
            fields |= head_fields(self.model, family, type(self.network))
        return fields

    def _state(self) -> dict[str, np.ndarray]:
        family, network, head = self.family, self.network, self.head
        prefix = "" if self.has_no_head else family.prefix
        state = layer_state(self.model.encoder, self._table(), prefix)
        if family.segments and not self.config.num_segments:
            state[prefix + family.segments] = np.zeros((1, self.config.embedding_width), "float32")
        head_layers: list[keras.layers.Layer] = []
        if isinstance(network, TASKS):
            state |= head_state(self.model, head.table)
        if head.has_pooler:
            pooler = self._pooler or _new_pooler(self.config)
            state |= layer_state(pooler, family.table, prefix)
        if self.replaced_token_head:
            head_layers.append(self.replaced_token_head)
        elif self.has_masked_head:
            head_layers.append(network.masked_language)
            if head.has_pooler:
                head_layers.append(network.sentence_pair)
        for layer in head_layers:
            state |= layer_state(layer, {**self._table(), **family.heads})
        return state

    def _table(self) -> Table:
        """Returns the mapping of weight names for the encoder and the bias of its output layer.

        The result extends `Family.table` by entries for the embeddings and the bias.
        """
        family = self.family

        def positions(array: np.ndarray) -> np.ndarray:
            offset = self.model.special.pad + 1 if family.positions_from_padding else 0
            if offset == self.config.position_offset:
                return array
            return np.pad(array[self.config.position_offset :], ((offset, 0), (0, 0)))

        table = {
            "tokens/table": Raw(family.tokens[0], inverse=lambda table: table[self.rows]),
            "embeddings/positions/table": Raw(family.positions, inverse=positions),
            "masked_language/bias": Raw(family.bias[0], inverse=lambda bias: bias[self.rows]),
            **family.table,
        }
        if family.segments:
            table["embeddings/segments"] = Raw(family.segments)
        return table


def _options(config: EncoderConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a masked language head that affect its logits.

    An option that is missing in `options` has its default value in the result.
    """
    defaults = {"activation": config.activation, "epsilon": config.epsilon, "transform": True}
    return {name: options.get(name, value) for name, value in defaults.items()}


def _new_pooler(config: EncoderConfig) -> Pooler:
    pooler = Pooler(config.initializer_range, name="pooler")
    pooler.build((None, None, config.hidden_dim))
    kernel = pooler.dense.kernel
    # The seed is fixed, so that two exports of a model are equal.
    values = np.random.default_rng(0).normal(0.0, config.initializer_range or 0.02, kernel.shape)
    kernel.assign(values.astype("float32"))
    return pooler
