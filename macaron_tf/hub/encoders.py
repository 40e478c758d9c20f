"""Readers for Hugging Face's BERT and related encoders, and sentence-transformers models.

`keras_models` also uses `import_encoder`, for encoders from KerasHub and Model Garden.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import (
    UNUSED_TOKEN_BIAS,
    Arrays,
    Raw,
    assign_weights,
    check_pieces,
    padded_rows,
    read_state,
)
from macaron_tf.hub.encoder_families import FAMILIES, EncoderFamily
from macaron_tf.hub.family import build_model, missing_head
from macaron_tf.hub.foreign_config import ForeignConfig, check_files
from macaron_tf.hub.heads import ReadHead, find_head
from macaron_tf.hub.tokenizers.reading import (
    read_vocabulary,
    read_xlm_vocabulary,
    refuse_lower_case,
)
from macaron_tf.io.paths import read_json
from macaron_tf.layers.heads import Pooler
from macaron_tf.layers.language_heads import ReplacedTokenHead
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.base import Special


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
        return Pretrained(network, "bert_base", None, vocabulary, **fields)
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
    return Pretrained(network, "bert_base", objective, vocabulary, special, **fields)


def read_encoder(directory: str | pathlib.Path, lower_case: bool | None = None) -> Pretrained:
    """Reads a Hugging Face encoder with its heads.

    The supported models are BERT, DistilBERT, RoBERTa, XLM-R, ALBERT, ELECTRA (generator or
    discriminator), ModernBERT, XLM, and encoders that macaron_tf exported. A model for sequence or
    token classification, multiple choice or question answering is converted to the macaron_tf model
    for the same task. If macaron_tf has no counterpart for a task head, the encoder is read without
    this head. The folder of an XLM may lack the tokenizer files. The result then has no vocabulary.

    Args:
        directory: folder with `config.json`, with `model.safetensors` or `pytorch_model.bin`, and
            with the tokenizer files. A sentence-transformers folder that contains such a model is
            also accepted, but task heads are then not read.
        lower_case: whether to lower-case text. The argument is required for a WordPiece tokenizer
            whose files lack this setting, and must be `None` otherwise.

    Raises:
        UserError: a file is missing or damaged, the package that reads the weights (safetensors or
            PyTorch) is not installed, `lower_case` is required or must be `None`, or macaron_tf has
            no counterpart for a layer or setting of the model.
    """
    directory = pathlib.Path(directory)
    is_sentence_transformer = (directory / "modules.json").is_file()
    if is_sentence_transformer:  # early versions saved the encoder in the subfolder 0_Transformer
        directory /= _modules(directory)[0]["path"]
    config = ForeignConfig.of_directory(directory, FAMILIES)
    family = FAMILIES[config.get("model_type")]
    settings = family.read_settings(config)
    padding = config.number("pad_token_id", family.padding_id)
    vocabulary = None
    languages = _languages(config)
    if not family.uses_moses or (directory / "vocab.json").is_file():
        if family.uses_moses:
            refuse_lower_case(lower_case, directory)
            vocabulary = read_xlm_vocabulary(directory, languages)
        else:
            vocabulary = read_vocabulary(directory, lower_case)
        pad_id = vocabulary.special.pad
        if family.positions_from_padding and pad_id != padding:
            raise UserError(
                f"{config.where} has pad_token_id={padding}, but the padding token has id {pad_id} "
                "in the vocabulary: use the tokenizer files that belong to the model"
            )
    arrays = family.arrays(read_state(directory))
    if family.positions_from_padding:
        settings["position_offset"] = padding + 1
        settings["max_length"] -= padding + 1
    table = dict(family.table)
    if family.segments:
        table["embeddings/segments"] = Raw(family.segments)
    if settings.get("positions", "learned") == "learned":
        table["embeddings/positions/table"] = Raw(family.positions)
    # Some versions also save two buffers: the positions 0, 1, 2, ..., and a row of zeros.
    ignored = (*family.bias, "position_ids", "token_type_ids")
    family = dataclasses.replace(family, table=table, ignored_suffixes=ignored)
    head = None if is_sentence_transformer else find_head(family, config, arrays, settings)
    encoder = import_encoder(arrays, family, settings, vocabulary, padding, head)
    model_languages = languages if settings.get("num_languages") else ()
    missing = "" if head or is_sentence_transformer else missing_head(config, encoder.unread)
    return dataclasses.replace(encoder, languages=model_languages, missing_head=missing)


def _languages(config: ForeignConfig) -> tuple[str, ...]:
    """Returns the languages of an XLM in the order of their ids.

    The tuple is empty if the configuration names no languages.

    Raises:
        UserError: `lang2id` does not number the languages from 0, or `n_langs` is another number of
            languages.
    """
    language_ids = config.get("lang2id") or {}
    count = config.number("n_langs", 1)
    # Compared as text, because values of a damaged file may have any type.
    ids = {*map(repr, language_ids.values())} if isinstance(language_ids, dict) else None
    if ids is None or ids != {*map(repr, range(len(language_ids)))}:
        raise UserError(
            f"{config.where} has lang2id={language_ids!r:.60}, but lang2id must number the "
            "languages from 0 without gaps: correct this field"
        )
    if language_ids and len(language_ids) != count:
        raise UserError(
            f"{config.where} has n_langs={count}, but lang2id lists {len(language_ids)} languages: "
            "use the configuration that belongs to the weights"
        )
    return tuple(sorted(language_ids, key=language_ids.get))


def _modules(directory: pathlib.Path) -> list[dict]:
    """Reads `modules.json` in a sentence-transformers folder.

    The result describes each module, such as the pooling, by a dict with the key `path`.
    """
    file = directory / "modules.json"
    check_files(directory, "sentence-transformers directory", file.name)
    modules = read_json(file, list)
    paths = [module.get("path") if isinstance(module, dict) else None for module in modules]
    if not paths or not all(isinstance(path, str) for path in paths):
        raise UserError(
            f"{file} must list one or more modules, each with a path: download or copy the file "
            "again"
        )
    return modules


# Dict mapping a flag in early versions of sentence-transformers' `Pooling` to the name of the
# pooling in later versions and in macaron_tf.
_POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
_FLAG = "pooling_mode_"


def read_sentence_transformer(
    directory: str | pathlib.Path, lower_case: bool | None = None
) -> Pretrained:
    """Reads a sentence-transformers model: an encoder whose outputs are pooled to one vector.

    Args:
        directory: folder with `modules.json`, which names the folders of the encoder, the pooling
            and an optional normalization.
        lower_case: see `read_encoder`.

    Raises:
        UserError: a file is missing or damaged, the encoder cannot be read (see `read_encoder`),
            the model contains another module or an unsupported pooling, or
            `sentence_bert_config.json` has `do_lower_case=true`.

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
    """
    directory = pathlib.Path(directory)
    modules = _modules(directory)
    module_types = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if module_types not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            f"{directory / 'modules.json'} lists the modules {', '.join(module_types)}, but only "
            "Transformer, Pooling and optionally Normalize can be read: give another model"
        )
    encoder = read_encoder(directory, lower_case)
    transformer_folder, pooling_folder = (directory / module["path"] for module in modules[:2])
    file = transformer_folder / "sentence_bert_config.json"
    config = ForeignConfig(read_json(file) if file.is_file() else {}, str(file))
    if config.get("do_lower_case"):
        config.require({"do_lower_case": False})  # only the tokenizer may lower-case text
    max_length = encoder.config.max_length
    if config.get("max_seq_length") is not None:
        max_length = min(max_length, config.number("max_seq_length"))
    return dataclasses.replace(
        encoder,
        pooling=_pooling(pooling_folder / "config.json"),
        normalize="Normalize" in module_types,
        max_length=max_length,
    )


def _pooling(file: pathlib.Path) -> str:
    if not file.is_file():
        raise UserError(
            f"{file}, which sets the pooling, is missing: download or copy the file again"
        )
    config = read_json(file)
    flags = [name.removeprefix(_FLAG) for name in config if name.startswith(_FLAG) and config[name]]
    # If there are several poolings, the model concatenates their vectors.
    poolings = config.get("pooling_mode") or flags
    poolings = [*map(str, poolings if isinstance(poolings, list) else [poolings])]
    names = {**_POOLINGS, **{name: name for name in _POOLINGS.values()}}
    if len(poolings) != 1 or poolings[0] not in names:
        raise UserError(
            f"{file} sets the pooling to {' and '.join(poolings) or 'nothing'}, but must set it to "
            f"exactly one of {', '.join(_POOLINGS)}: give another model"
        )
    return names[poolings[0]]
