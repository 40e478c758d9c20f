"""Rules for the encoders of another library, and the reader of their folders.

`keras_models` also uses `import_encoder`, for encoders from KerasHub and Model Garden.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import (
    UNUSED_TOKEN_BIAS,
    Arrays,
    Raw,
    Table,
    assign_weights,
    check_pieces,
    padded_rows,
    read_state,
)
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.family import Family, ModelFolder, build_model, missing_head
from macaron_tf.hub.heads import ReadHead, find_head
from macaron_tf.hub.tokenizers.reading import read_vocabulary
from macaron_tf.layers.heads import Pooler
from macaron_tf.layers.language_heads import ReplacedTokenHead
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.pretrained import Pretrained
from macaron_tf.special import Special
from macaron_tf.text import PieceVocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily(Family):
    """Conversion rules for one type of encoder, such as Hugging Face's "bert".

    Some encoders lack a part, such as segment embeddings. An attribute that names this part is then
    `None` or empty.

    Attributes:
        heads: mapping of weight names for the pre-training heads. A model may lack any of these
            heads, and also the pooler in `table`.
        masked_class_suffix: suffix of the class name for masked language modelling, such as
            "ForMaskedLM".
        positions, segments: names of the position and the segment embeddings, whose values
            `read` may change. `table` has no entries for embeddings that are named here.
        bias: possible names of the masked language head's bias.
        head_options: constructor arguments of the masked language head that differ from the
            encoder's settings, such as `activation`.
        vocabulary_class: class of the vocabularies of released models. An encoder with such a
            vocabulary is written as this family rather than as another.
        padding_id: id of the padding token if `config.json` lacks the field `pad_token_id`.
        positions_from_padding: whether position embeddings start at row `pad_token_id + 1` of their
            table, as in RoBERTa.
    """

    catalog: str = "bert_base"
    heads: Table = dataclasses.field(default_factory=dict)
    masked_class_suffix: str = "ForMaskedLM"
    positions: str = ""
    segments: str | None = None
    bias: tuple[str, ...] = ()
    head_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vocabulary_class: type[PieceVocabulary] | None = None
    padding_id: int = 0
    positions_from_padding: bool = False

    def is_tried(self, model: Pretrained) -> bool:
        """Returns whether `model` may be written as this family."""
        return True

    def languages(self, config: ForeignConfig) -> tuple[str, ...]:
        """Returns the languages of the language embeddings, in the order of their ids."""
        return ()

    def read_vocabulary(self, folder: ModelFolder) -> PieceVocabulary | None:
        """Reads the tokenizer in a folder. `None` means that the folder has no tokenizer files."""
        return read_vocabulary(folder.path, folder.lower_case)

    def model_fields(self, model: Pretrained) -> dict[str, Any]:
        """Returns fields of `config.json` that do not depend on the network's configuration."""
        return {}

    def read(self, folder: ModelFolder) -> Pretrained:
        config, has_task = folder.config, folder.has_task
        settings = self.read_settings(config)
        padding = config.number("pad_token_id", self.padding_id)
        languages = self.languages(config)
        vocabulary = folder.vocabulary or self.read_vocabulary(folder)
        if vocabulary and self.positions_from_padding and vocabulary.special.pad != padding:
            raise UserError(
                f"{config.where} has pad_token_id={padding}, but the padding token has id "
                f"{vocabulary.special.pad} in the vocabulary: use the tokenizer files that belong "
                "to the model"
            )
        arrays = self.arrays(read_state(folder.path))
        if self.positions_from_padding:
            settings["position_offset"] = padding + 1
            settings["max_length"] -= padding + 1
        table = dict(self.table)
        if self.segments:
            table["embeddings/segments"] = Raw(self.segments)
        if settings.get("positions", "learned") == "learned":
            table["embeddings/positions/table"] = Raw(self.positions)
        # Some versions also save two buffers: the positions 0, 1, 2, ..., and a row of zeros.
        ignored = (*self.bias, "position_ids", "token_type_ids")
        family = dataclasses.replace(self, table=table, ignored_suffixes=ignored)
        head = find_head(self, config, arrays, settings) if has_task else None
        encoder = import_encoder(arrays, family, settings, vocabulary, padding, head)
        model_languages = languages if settings.get("num_languages") else ()
        missing = "" if head or not has_task else missing_head(config, encoder.unread)
        return dataclasses.replace(encoder, languages=model_languages, missing_head=missing)


def head_table(prefix: str, norm: str = "LayerNorm") -> Table:
    """Builds the mapping of weight names for a masked language head.

    The mapping covers the head's dense layer and norm, but not its output layer.

    Args:
        prefix: prefix that the names of the dense layer and the norm share in the other library.
        norm: name of the norm in the other library, without the prefix.
    """
    return {"masked_language/dense": f"{prefix}dense", "masked_language/norm": prefix + norm}


def import_encoder(
    arrays: Arrays,
    family: EncoderFamily,
    settings: Mapping[str, Any],
    vocabulary: PieceVocabulary | None,
    pad_id: int = Special.pad,
    task_head: ReadHead | None = None,
) -> Pretrained:
    """Converts another library's encoder to a macaron_tf model.

    Args:
        arrays: weights of the encoder.
        family: conversion rules for the encoder.
        settings: fields of an `EncoderConfig` except `vocab_size`.
        vocabulary: vocabulary of the encoder, or `None` if the encoder was read without one.
        pad_id: id of padding if there is no vocabulary.
        task_head: task head of a fine-tuned encoder. `None` means that the encoder is converted
            with its pre-training heads instead. Without weights for the masked language head, the
            result has no objective, so that it fills no masks.

    Raises:
        UserError: an array is missing or has a wrong shape, the vocabulary is larger than the
            embedding table, or a setting is invalid.
    """
    tokens = arrays.array(*family.tokens)  # (V', E)
    size, special = -(-len(tokens) // 8) * 8, Special(pad=pad_id, rows=len(tokens))
    if vocabulary is not None:
        check_pieces(vocabulary, tokens)
        size, special = vocabulary.size, vocabulary.special
    settings = {"vocab_size": size, "pad_id": special.pad, **settings}
    table = {**family.table, **family.heads, "tokens/table": padded_rows(size)(tokens)}
    if task_head:
        network = build_model(task_head.network_class, settings, **task_head.options)
        assign_weights(network, arrays, {**table, **task_head.head.table})
        unread = family.check_unread(arrays)
        fields = {"special": special, "unread": unread, **task_head.fields}
        return Pretrained(network, family.catalog, None, vocabulary, **fields)
    bias = next(filter(arrays.has, family.bias), None)
    if bias:
        table["masked_language/bias"] = Raw(bias, transform=padded_rows(size, UNUSED_TOKEN_BIAS))
    has_pooler = arrays.has_layer(table.get("pooler/dense"))
    network = build_model(
        PretrainingEncoder,
        settings,
        has_pooler and arrays.has_layer(table.get("sentence_pair/dense")),
        family.head_options if bias else None,
    )
    assign_weights(network, arrays, table, random_layers=() if bias else ("masked_language",))
    heads, config = {}, network.config
    if has_pooler:
        heads["pooler"] = Pooler(name="pooler")
    if arrays.has_layer(table.get("replaced_token/dense")):
        heads["replaced_token"] = ReplacedTokenHead(config.activation, name="replaced_token")
    for head in heads.values():
        head.build((None, None, config.hidden_dim))
        assign_weights(head, arrays, table)
    objective, unread = "masked_language" if bias else None, family.check_unread(arrays)
    fields = {"has_masked_language": bias is not None, "unread": unread, **heads}
    return Pretrained(network, family.catalog, objective, vocabulary, special, **fields)
