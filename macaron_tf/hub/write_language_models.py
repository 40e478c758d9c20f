"""Export of language models as Hugging Face's, or with macaron_tf's own PyTorch file."""

import dataclasses
from typing import Any

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Raw
from macaron_tf.hub.config import json_bytes
from macaron_tf.hub.families import families_of
from macaron_tf.hub.families.macaron import MACARON_LANGUAGE
from macaron_tf.hub.heads import head_fields, unstandardized_weights
from macaron_tf.hub.language_models import LanguageFamily
from macaron_tf.hub.tokenizers.decoders import language_tokenizer
from macaron_tf.hub.writing import (
    HuggingFaceFolder,
    config_fields,
    find_family,
    kept_rows,
    layer_state,
)
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.models.tasks import CausalClassifier
from macaron_tf.pretrained import Pretrained

LANGUAGE_MODELS = (LanguageModel, CausalClassifier)


def language_folder(model: Pretrained) -> HuggingFaceFolder:
    """Converts a language model or its classifier to the files of a Hugging Face model.

    The last layer of a macaron_tf classifier has a bias, but the last layer of Hugging Face's
    classifier has no bias. Instead, the bias of the last norm increases by the shortest vector that
    the kernel maps to the classifier's bias.

    Args:
        model: model whose network is a `LanguageModel` or a `CausalClassifier`.

    Raises:
        UserError: no family supports all parts and settings of the model, or the
            vocabulary cannot be converted (see `language_tokenizer`).
    """
    model.require_head()
    network, config = model.network, model.config
    rows, special = kept_rows(model), model.special
    bias = _output_bias(model, rows)  # left out if all of it is 0

    def describe_missing(family: LanguageFamily) -> str:
        if isinstance(network, CausalClassifier):
            return "" if CausalClassifier in family.tasks else "a classifier's head"
        # [CLS] is never predicted.
        needs_bias = np.any(bias[rows != special.begin]) and not family.bias
        return "an output bias" if needs_bias else ""

    config_with_bias = dataclasses.replace(config, output_bias=True)
    family = find_family(
        [*families_of(LanguageFamily), MACARON_LANGUAGE], config_with_bias, describe_missing
    )
    if _is_framed(model):  # the classifier reads special tokens, even if the checkpoint lacked them
        rows = np.arange(max(len(rows), *(token_id + 1 for token_id in special.ids)))
    token_ids = {"pad": special.pad, "bos": special.begin, "eos": special.end}
    if not model.starts and special.rows is None:
        del token_ids["bos"]
    if isinstance(network, CausalClassifier) and special.pad >= len(rows):
        token_ids["pad"] = special.end  # the classifier reads the last other token
    token_ids = {f"{role}_token_id": n for role, n in token_ids.items() if n < len(rows)}
    fields = {
        **config_fields(family, config),
        **({"output_bias": bool(bias.any())} if family.bias else {}),
        **token_ids,
        "model_type": family.model_type,
        "vocab_size": len(rows),
        "dtype": "float32",
    }
    tokens = Raw(family.tokens[0], inverse=lambda table: table[rows])
    table = {**family.table, "tokens/table": tokens}
    state = layer_state(network.encoder, table, family.prefix, family.transpose_kernels)
    files, notes = family.code(), []
    if isinstance(network, CausalClassifier):
        _fold_head(model, state, family)
        head = family.tasks[CausalClassifier]
        fields["architectures"] = [family.class_prefix + head.class_suffix]
        fields |= head_fields(model, family, CausalClassifier)
        pipeline = head.pipeline
        if _is_framed(model):
            notes.append("the tokenizer adds [CLS] before a text and [MASK] after the text")
    else:
        head = network.language_head
        if head.projection:
            state |= layer_state(head.projection, family.table)
        if head.output_table:
            output_table = head.output_table.matrix("float32")
            state[family.output_kernel] = keras.ops.convert_to_numpy(output_table)[rows]
        if family.bias and bias.any():
            notes.append("the output bias needs our PyTorch file: GPT-2 and Llama have none")
            state[family.bias] = bias
        fields["architectures"] = [family.class_prefix + family.language_class]
        pipeline = "text-generation"
        default = {**token_ids, **_suppressed_tokens(model, rows)}
        files["generation_config.json"] = json_bytes(model.generation or default)
    tokenizer = {}
    if model.vocabulary:
        tokenizer = language_tokenizer(
            model.vocabulary,
            config.longest,
            model.starts,
            _is_framed(model),
        )
    else:
        notes.append("the tokenizer is missing, because the model has no vocabulary")
    return HuggingFaceFolder(
        config=fields,
        state=state,
        tokenizer=tokenizer,
        pipeline=pipeline,
        files=files,
        notes=tuple(notes),
    )


def _is_framed(model: Pretrained) -> bool:
    """Returns whether a model is a classifier that reads special tokens around each text."""
    special = model.labelled.get("limits", {}).get("special", True)
    return isinstance(model.network, CausalClassifier) and special


def _suppressed_tokens(model: Pretrained, rows: np.ndarray) -> dict[str, Any]:
    """Returns a dict with the generation setting `suppress_tokens`.

    The setting suppresses all special tokens except [SEP]. The dict is empty if the Hugging Face
    vocabulary has no such tokens. Without a vocabulary, PAD and [CLS] count as special tokens.
    """
    special = model.special
    ids = {*special.ids} if model.vocabulary else {special.pad, special.begin}
    ids = sorted(token_id for token_id in ids - {special.end} if token_id < len(rows))
    return {"suppress_tokens": ids} if ids else {}


def _output_bias(model: Pretrained, rows: np.ndarray) -> np.ndarray:
    """Returns the output bias of the tokens in `rows`: zeros if there is no such bias."""
    network = model.network
    if isinstance(network, CausalClassifier) or network.language_head.bias is None:
        return np.zeros(len(rows), "float32")
    return keras.ops.convert_to_numpy(network.language_head.bias)[rows]


def _fold_head(model: Pretrained, state: dict[str, np.ndarray], family: LanguageFamily) -> None:
    """Adds a classifier's kernel to `state`, and its bias to the bias of the last norm.

    Raises:
        UserError: the classifier has a bias but the norm has none, the norm cannot express the bias
            because the scores of the classes are linearly dependent, or the classifier reads two
            texts in both orders.
    """
    network = model.network
    if network.symmetric:
        raise UserError(
            f"symmetric=True has no counterpart in Hugging Face's {family.name}, whose classifier "
            "reads two texts in one order: save the model in macaron_tf's own format"
        )
    kernel, bias = (value.astype("float64") for value in unstandardized_weights(model))
    norm = family.last_norm.format(model.config.num_layers - 1)
    name = f"{family.prefix}{norm}.bias"
    if name not in state and np.any(bias):
        raise UserError(
            f"the head has a bias, but the head of Hugging Face's {family.name} has none: save the "
            "model in macaron_tf's own format"
        )
    state["score.weight"] = kernel.T.astype("float32")
    if name not in state:
        return
    offset = state[name] + np.linalg.pinv(kernel.T) @ bias
    if not np.allclose(offset @ kernel, state[name] @ kernel + bias, atol=1e-6):
        raise UserError(
            f"the head has a bias, but the head of Hugging Face's {family.name} has none, and this "
            f"bias cannot move into the final norm, because the scores of the {len(bias)} classes "
            "are linearly dependent: save the model in macaron_tf's own format"
        )
    state[name] = offset.astype("float32")
