"""Export of encoders and their task heads as Hugging Face's BERT and related models.

An encoder is exported as the first model type in `_ORDERS` that can express the whole encoder.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from macaron_tf.interop.arrays import UNUSED_TOKEN_BIAS, Raw, Table, TaskHead, json_bytes
from macaron_tf.interop.encoder_families import FAMILIES, EncoderFamily
from macaron_tf.interop.task_heads import (
    HEAD_ACTIVATIONS,
    head_fields,
    head_state,
    pooler_activation,
)
from macaron_tf.interop.tokenizer_files import tokenizer_files
from macaron_tf.interop.writing import (
    HuggingFaceFolder,
    fitting,
    layer_state,
    their_rows,
    written_settings,
)
from macaron_tf.layers.heads import Pooler
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.pretraining import GeneratorDiscriminator, PretrainingEncoder
from macaron_tf.models.tasks import (
    EncoderChooser,
    EncoderClassifier,
    EncoderSpanReader,
    EncoderTagger,
    SiameseEncoder,
)
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import WordPieceVocabulary
from macaron_tf.text.byte_pairs import BytePairVocabulary, MosesPairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary

TASKS = (EncoderClassifier, EncoderChooser, EncoderTagger, EncoderSpanReader)
ENCODERS = (Encoder, PretrainingEncoder, GeneratorDiscriminator, SiameseEncoder, *TASKS)
# Dict mapping the vocabulary's class to the model types to try, in order. Model types whose
# released tokenizers have the same class come first.
_ORDERS = {
    WordPieceVocabulary: (
        *("distilbert", "bert", "electra", "albert", "roberta", "xlm", "modernbert", "macaron"),
    ),
    BytePairVocabulary: ("roberta", "bert", "electra", "albert", "xlm", "modernbert", "macaron"),
    SentencePieceVocabulary: (
        "xlm-roberta",
        "albert",
        "bert",
        "electra",
        "xlm",
        "modernbert",
        "macaron",
    ),
    MosesPairVocabulary: ("xlm", "bert", "electra", "albert", "modernbert", "macaron"),
    type(None): ("bert", "electra", "albert", "roberta", "xlm", "modernbert", "macaron"),
}
# Dict mapping macaron_tf's name of a pooling to NAME in sentence-transformers' `pooling_mode_NAME`.
_POOLINGS = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}


def encoder_folder(model: Pretrained) -> HuggingFaceFolder:
    """Converts an encoder, with or without a task head, to the files of a Hugging Face model.

    Args:
        model: model whose network is an instance of a class in `ENCODERS`.

    Raises:
        UserError: no Hugging Face model has counterparts for all parts and settings of the model.
    """
    return _Encoder(model).folder()


class _Encoder:
    """Encoder to export, with the Hugging Face model type that can express the encoder.

    Attributes:
        masked: whether the masked language head is exported.
        replaced: head for replaced token detection, as in ELECTRA. `None` means that the model has
            no such head.
        family: conversion rules for the Hugging Face model type.
        model_type: name of the Hugging Face model type.
        head: Hugging Face model class for the task of the network.
        ids: int array with the Hugging Face id for each id of the encoder.
    """

    def __init__(self, model: Pretrained):
        self.model, self.network, self.config = model, model.network, model.config
        network, vocabulary = model.network, model.vocabulary
        self.masked = isinstance(network, PretrainingEncoder) and (
            model.has_masked_language or bool(model.recipe)
        )
        self.replaced = model.replaced_token
        if isinstance(network, GeneratorDiscriminator):
            self.replaced = network.replaced_token
        kind = next(kind for kind in _ORDERS if isinstance(vocabulary, kind))
        names = [*_ORDERS[kind]]
        if self._pooler and type(network) not in TASKS and "distilbert" in names:
            names.remove("distilbert")  # DistilBERT has no pooler
        families = {FAMILIES[name].name: name for name in names}
        found = fitting([FAMILIES[name] for name in families.values()], self.config, self._lacks)
        self.family, self.model_type = found, families[found.name]
        self.head = self._head_of(found)
        self.ids = model.ids
        if model.ids is None:
            pieces = vocabulary.pieces if vocabulary else self.config.vocab_size
            self.ids = np.arange(pieces)

    def _lacks(self, family: EncoderFamily) -> str:
        """Describes the head parts and head options that a family does not support.

        The description is empty if the family has counterparts for all parts and options.
        """
        kind = type(self.network)
        if kind in TASKS and kind not in family.tasks:  # Hugging Face's head is one linear layer
            return f"the head of {kind.__name__}, which has two layers with an activation between,"
        if kind in (EncoderClassifier, EncoderChooser):
            head, activation = family.tasks[kind], pooler_activation(self.network)
            known = HEAD_ACTIVATIONS if head.activation_field else (head.activation,)
            if activation not in known:
                return f"pooler_activation={activation!r}"
        if self.replaced and "replaced_token/dense" not in family.heads:
            return "a replaced token detection head"
        if not self.masked:
            return ""
        ours, theirs = (_options(self.config, n.head_options) for n in (self.network, family))
        return ", ".join(
            f"the masked language head's {n}={v!r}" for n, v in ours.items() if v != theirs[n]
        )

    def _head_of(self, family: EncoderFamily) -> TaskHead:
        if isinstance(self.network, TASKS):
            return family.tasks[type(self.network)]
        if self.replaced:
            return TaskHead("ForPreTraining", "", {})
        pairs = self.masked and self.network.sentence_pair
        if pairs and "sentence_pair/dense" in family.heads:
            return TaskHead("ForPreTraining", "fill-mask", {}, pooled=True)
        if self.masked:
            return TaskHead(family.masked_class, "fill-mask", {})
        return TaskHead("Model", "feature-extraction", {}, pooled="pooler/dense" in family.table)

    @property
    def alone(self) -> bool:
        """Whether the folder contains only the encoder, without a head."""
        return self.head.ending == "Model"

    def folder(self) -> HuggingFaceFolder:
        notes = [*self._notes()]
        config = self._config()
        tokenizer = {}
        if self.model.vocabulary:
            tokenizer = tokenizer_files(
                self.model.vocabulary,
                self.model.ids,
                max_length=self.config.longest,
                segments=self.config.num_segments > 1,
            )
        pooling = self.model.pooling
        if isinstance(self.network, SiameseEncoder):
            pooling = self.network.pooling
        files = self._sentence_files(pooling) if pooling and self.alone else {}
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
        if self.masked and self.network.sentence_pair and not self.head.pooled:
            yield f"the sentence-pair head is left out, because {name} has no such head"
        if self.masked and self.network.span_boundary:
            yield f"the span-boundary head is left out, because {name} has no such head"
        if self.head.pooled and self._pooler is None:
            yield f"the pooler is untrained, because {name} has a pooler and this encoder has none"
        if self.model.vocabulary is None:
            yield "the tokenizer is missing, because the model has no vocabulary"

    @property
    def _pooler(self) -> Pooler | None:
        return self.network.pooler or self.model.pooler

    def _config(self) -> dict[str, Any]:
        family, fields = self.family, written_settings(self.family, self.config)
        pad = int(self.ids[0])
        if family.segments:
            # Hugging Face's models have at least one segment. An encoder without segments gets a
            # single segment embedding of zeros.
            fields["type_vocab_size"] = max(self.config.num_segments, 1)
        if family.positions_from_padding:
            fields["max_position_embeddings"] += pad + 1
        fields |= {
            "model_type": self.model_type,
            "architectures": [family.classes + self.head.ending],
            "vocab_size": int(self.ids.max()) + 1,
            "pad_token_id": pad,
            "dtype": "float32",
        }
        if self.model.vocabulary:
            special = self.model.vocabulary
            start, end = int(self.ids[special.cls_id]), int(self.ids[special.sep_id])
            fields |= {"bos_token_id": start, "eos_token_id": end}
        if family.moses:
            fields |= {"pad_index": pad}
            if numbers := {name: n for n, name in enumerate(self.model.languages)}:
                fields |= {"lang2id": numbers, "id2lang": {n: name for name, n in numbers.items()}}
        if isinstance(self.network, TASKS):
            fields |= head_fields(self.model, family, type(self.network))
        return fields

    def _state(self) -> dict[str, np.ndarray]:
        family, network, head = self.family, self.network, self.head
        prefix = "" if self.alone else family.prefix
        state = layer_state(self.model.encoder, self._table(), prefix)
        if family.segments and not self.config.num_segments:
            state[prefix + family.segments] = np.zeros((1, self.config.embedding_width), "float32")
        outside: list[keras.layers.Layer] = []
        if isinstance(network, TASKS):
            state |= head_state(self.model, head.table)
        if head.pooled:
            pooler = self._pooler or _new_pooler(self.config)
            state |= layer_state(pooler, family.table, prefix)
        if self.replaced:
            outside.append(self.replaced)
        elif self.masked:
            outside.append(network.masked_language)
            if head.pooled:
                outside.append(network.sentence_pair)
        for layer in outside:
            state |= layer_state(layer, {**self._table(), **family.heads})
        return state

    def _table(self) -> Table:
        """Returns the mapping of weight names for the encoder and the bias of its output layer.

        The result extends `Family.table` by the embeddings and the bias, which `read_encoder`
        converts without a mapping.
        """
        family = self.family

        def behind_padding(array: np.ndarray) -> np.ndarray:
            return np.pad(array, ((int(self.ids[0]) + 1, 0), (0, 0)))

        turned = behind_padding if family.positions_from_padding else np.asarray
        table = {
            "tokens/table": Raw(family.tokens[0], inverse=their_rows(self.ids)),
            "embeddings/positions/table": Raw(family.positions, inverse=turned),
            "masked_language/bias": Raw(
                family.bias[0], inverse=their_rows(self.ids, UNUSED_TOKEN_BIAS)
            ),
            **family.table,
        }
        if family.segments:
            table["embeddings/segments"] = Raw(family.segments)
        return table

    def _sentence_files(self, pooling: str) -> dict[str, bytes]:
        """Builds the files that sentence-transformers needs in addition to the encoder's files."""
        normalize = self.model.normalize
        if isinstance(self.network, SiameseEncoder):
            normalize = self.network.normalize
        kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
        folders = ["", "1_Pooling", "2_Normalize"]
        modules = [
            {
                "idx": number,
                "name": str(number),
                "path": folders[number],
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(kinds)
        ]
        flags = {f"pooling_mode_{name}": ours == pooling for ours, name in _POOLINGS.items()}
        length = self.model.max_length or self.config.longest
        return {
            "modules.json": json_bytes(modules),
            "1_Pooling/config.json": json_bytes(
                {"word_embedding_dimension": self.config.hidden_dim, **flags}
            ),
            "sentence_bert_config.json": json_bytes(
                {"max_seq_length": length, "do_lower_case": False}
            ),
        }


def _options(config: EncoderConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a masked language head that affect its logits.

    An option that is missing in `given` has its default value in the result.
    """
    own = {"activation": config.activation, "epsilon": config.epsilon, "transform": True}
    return {name: given.get(name, value) for name, value in own.items()}


def _new_pooler(config: EncoderConfig) -> Pooler:
    pooler = Pooler(config.initializer_range, name="pooler")
    pooler.build((None, None, config.hidden_dim))
    kernel = pooler.dense.kernel
    # The seed is fixed, so that two exports of a model are equal.
    drawn = np.random.default_rng(0).normal(0.0, config.initializer_range or 0.02, kernel.shape)
    kernel.assign(drawn.astype("float32"))
    return pooler
