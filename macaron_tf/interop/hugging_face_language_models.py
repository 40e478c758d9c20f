"""Causal language models of Hugging Face: GPT and GPT-2."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.assign import assign, assign_norm
from macaron_tf.interop.encoder_weights import UNUSED_TOKEN_BIAS
from macaron_tf.interop.hugging_face import (
    ACTIVATIONS,
    TorchArrays,
    read_choice,
    read_config,
    read_json,
    read_number,
    read_state,
)
from macaron_tf.interop.hugging_face_vocabularies import read_gpt2_vocabulary, read_gpt_vocabulary
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.byte_pairs import CLS, SPECIAL

NOWHERE = -1
_TOKENIZERS = ("vocab.json", "tokenizer.json")
# Kept beside the weights by some versions: the causal mask, and what stands where it hides.
_BUFFERS = (".attn.bias", ".attn.masked_bias")


@dataclasses.dataclass(frozen=True)
class LanguageModelImport:
    """What was read, and what was not.

    Attributes:
        model: gives the same scores. Ids that theirs has not are never predicted.
        vocabulary: cuts text into the model's ids; None where theirs has no counterpart of ours.
        ids: `(V',)` int, at each of our ids the one of theirs, or -1; the first five of ours are
            the special ones. GPT-2's end of a text is our [SEP], and our [CLS], before a text, is
            read as it is too; GPT has neither.
        starts: whether a text begins behind [CLS].
        unread: names of weights of other heads that were left behind.
    """

    model: LanguageModel
    vocabulary: PieceVocabulary | None
    ids: np.ndarray
    starts: bool
    unread: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class LanguageFamily:
    """One `model_type`.

    Attributes:
        name: of such models.
        tokens, positions: tables. final_norm: None where there is none.
        activation: the setting that names it, and its default; activations: ours, by their names.
        settings: of ours, the same in all such models.
        read_vocabulary: reads the tokenizer of a directory, see `read_gpt2_vocabulary`.
        starts: whether a text begins behind a token of its own.
    """

    name: str
    tokens: str
    positions: str
    final_norm: str | None
    activation: tuple[str, str]
    activations: Mapping[str, str]
    settings: Mapping[str, Any]
    read_vocabulary: Callable[[pathlib.Path], tuple[PieceVocabulary, np.ndarray]]
    starts: bool


# By model_type.
LANGUAGE_FAMILIES: Mapping[str, LanguageFamily] = {
    "openai-gpt": LanguageFamily(
        name="GPT",
        tokens="tokens_embed/weight",
        positions="positions_embed/weight",
        final_norm=None,
        activation=("afn", "gelu"),
        # What it calls GELU is the approximation.
        activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
        settings={"norm": "post"},
        read_vocabulary=read_gpt_vocabulary,
        starts=False,
    ),
    "gpt2": LanguageFamily(
        name="GPT-2",
        tokens="wte/weight",
        positions="wpe/weight",
        final_norm="ln_f",
        activation=("activation_function", "gelu_new"),
        activations=ACTIVATIONS,
        settings={"norm": "pre", "scaled_outputs": True},
        read_vocabulary=read_gpt2_vocabulary,
        starts=True,
    ),
}
_SETTINGS = {
    "hidden_dim": ("n_embd", 768),
    "num_heads": ("n_head", 12),
    "num_layers": ("n_layer", 12),
    "dropout": ("resid_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
    "epsilon": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
}
_REQUIRED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def is_language_model(directory: pathlib.Path) -> bool:
    """Whether a Hugging Face directory is of one of these families."""
    file = directory / "config.json"
    return file.is_file() and read_json(file).get("model_type") in LANGUAGE_FAMILIES


def read_hugging_face_language_model(directory: str | pathlib.Path) -> LanguageModelImport:
    """Reads a GPT or GPT-2 as `save_pretrained` writes it.

    Args:
        directory: holds `config.json`, `model.safetensors` or `pytorch_model.bin` (see
            `read_hugging_face`), and `vocab.json` and `merges.txt` or `tokenizer.json`; a GPT
            may lack them.

    Raises:
        UserError: a file is missing or damaged, or the model has what ours has no place for.
    """
    directory = pathlib.Path(directory)
    config, where = read_config(directory, LANGUAGE_FAMILIES), str(directory / "config.json")
    family = LANGUAGE_FAMILIES[config["model_type"]]
    settings = _our_settings(config, family, where)
    arrays = TorchArrays(
        {name.removeprefix("transformer."): a for name, a in read_state(directory).items()}
    )
    tokens = arrays.array(family.tokens)  # (V'', D)
    vocabulary = None
    if family.starts or any((directory / name).is_file() for name in _TOKENIZERS):
        vocabulary, ids = family.read_vocabulary(directory)
    else:
        ids = np.concatenate([np.full(SPECIAL, NOWHERE), np.arange(len(tokens))])
    if ids.max() >= len(tokens):
        raise UserError(
            f"the vocabulary has ids up to {ids.max()} and the model embeds only {len(tokens)} "
            "pieces: it is another model's vocabulary."
        )
    try:
        described = EncoderConfig(vocab_size=-(-len(ids) // 8) * 8, **settings)
    except ValueError as error:
        raise UserError(f"the model's settings do not fit ours: {error}.") from None
    model = LanguageModel(described)
    model.build()
    _assign_tokens(model, tokens, ids)
    _assign_layers(model, arrays, family)
    unread = _unread(arrays, family, tokens)
    return LanguageModelImport(model, vocabulary, ids, family.starts, unread)


def _our_settings(config: Mapping[str, Any], family: LanguageFamily, where: str) -> dict:
    for field, needed in _REQUIRED.items():
        if config.get(field, needed) != needed:
            raise UserError(f"{where} has {field}={config[field]!r}: only {needed!r} can be read.")
    settings = {
        ours: read_number(config, theirs, type(default), where, default)
        for ours, (theirs, default) in _SETTINGS.items()
    }
    inner = 4 * settings["hidden_dim"]
    if config.get("n_inner") is not None:
        inner = read_number(config, "n_inner", int, where)
    field, default = family.activation
    return {
        **settings,
        "max_length": read_number(config, "n_positions", int, where, 1024),
        "feed_forward_dim": inner,
        "activation": read_choice(config, field, family.activations, where, default),
        "causal": True,
        "num_segments": 0,
        "embedding_norm": False,
        "output_bias": True,
        **family.settings,
    }


def _assign_tokens(model: LanguageModel, tokens: np.ndarray, ids: np.ndarray) -> None:
    size, known = model.config.vocab_size, np.flatnonzero(ids != NOWHERE)
    table = np.zeros((size, tokens.shape[1]), "float32")
    table[known] = tokens[ids[known]]
    assign(model.encoder.embeddings.tokens.table, table)
    # The score of an empty row, 0, would be far above GPT-2's of any word.
    bias = np.full(size, UNUSED_TOKEN_BIAS, "float32")
    bias[known] = 0.0
    bias[CLS] = UNUSED_TOKEN_BIAS  # the end of a text is [SEP]
    assign(model.language_head.bias, bias)


def _assign_layers(model: LanguageModel, arrays: TorchArrays, family: LanguageFamily) -> None:
    encoder = model.encoder
    assign(encoder.embeddings.position_layer.table, arrays.array(family.positions))
    for number, block in enumerate(encoder.stack.blocks):
        attention, feed_forward = block.attention_0, block.feed_forward_1
        for layer, path in (
            (attention.sublayer.query_key_value, "attn/c_attn"),
            (attention.sublayer.output_projection, "attn/c_proj"),
            (feed_forward.sublayer.inner, "mlp/c_fc"),
            (feed_forward.sublayer.outer, "mlp/c_proj"),
        ):
            # Their Conv1D keeps its kernel as (inputs, outputs), and queries, keys and values side
            # by side, as ours.
            assign(layer.kernel, arrays.array(f"h/{number}/{path}/weight"))
            assign(layer.bias, arrays.array(f"h/{number}/{path}/bias"))
        assign_norm(attention.layer_norm, arrays.norm(f"h/{number}/ln_1"))
        assign_norm(feed_forward.layer_norm, arrays.norm(f"h/{number}/ln_2"))
    if family.final_norm:
        assign_norm(encoder.stack.final_norm, arrays.norm(family.final_norm))


def _unread(arrays: TorchArrays, family: LanguageFamily, tokens: np.ndarray) -> tuple[str, ...]:
    output = "lm_head/weight"
    if arrays.has(output) and not np.array_equal(arrays.array(output), tokens):
        raise UserError(
            f"the {family.name} model's lm_head.weight is not its token embeddings: ours has one "
            "table for both."
        )
    unread = [n for n in sorted(set(arrays.state) - arrays.read) if not n.endswith(_BUFFERS)]
    inner = [name for name in unread if name.startswith("h.")]
    if inner:
        raise UserError(f"the {family.name} model has {inner[0]}, for which ours has no place.")
    return tuple(unread)
