"""Readers for Hugging Face's T5, BART, MarianMT and Pegasus."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import (
    Raw,
    Table,
    assign_weights,
    check_pieces,
    padded_rows,
    read_state,
    transformer_layer,
)
from macaron_tf.hub.family import LANGUAGE_CLASSES, Family, build_model, missing_head
from macaron_tf.hub.foreign_config import ACTIVATIONS, ForeignConfig, ends_of, id_tuple
from macaron_tf.hub.tokenizers.reading import read_vocabulary
from macaron_tf.hub.tokenizers.sentencepiece import read_t5_vocabulary
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.base import Special

_TOKENIZERS = ("spiece.model", "vocab.json", "tokenizer.json")
BART_OFFSET = 2  # number of unused rows at the beginning of BART's position embedding tables
# Dict mapping `model_type` to (name of the catalog model, pre-training objective).
_CATALOG_MODELS = {
    "t5": ("t5_small", "span_corruption"),
    "bart": ("bart_base", "denoising"),
    "marian": ("transformer_base", None),
    "pegasus": ("transformer_base", None),
}
_FEED_FORWARDS = {"relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}
_STACKS = {"encoder": "source_embeddings", "decoder": "target_embeddings"}


def _t5_settings(config: ForeignConfig) -> dict[str, Any]:
    layers_field = "num_layers"
    if config.get("num_decoder_layers") is not None:
        layers_field = "num_decoder_layers"
    # T5 with tied embeddings divides the decoder's output by sqrt(D), but T5 1.1 does not. Newer
    # files have the field `scale_decoder_outputs`.
    is_scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    return {
        "num_decoder_layers": config.number(layers_field),
        "gated": config.get("feed_forward_proj", "relu").startswith("gated-"),
        "scaled_logits": bool(is_scaled),
    }


def _t5_fields(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Computes T5's fields that `Family.settings` does not set, or sets only for some values.

    The field `tie_word_embeddings` is for transformers. When macaron_tf reads a T5, `_convert`
    compares the output matrix with the token embeddings instead.
    """
    projections = [
        name
        for name, activation in _FEED_FORWARDS.items()
        if activation == config.activation and name.startswith("gated-") == config.gated
    ]
    return {
        "num_decoder_layers": config.num_decoder_layers,
        "d_kv": config.head_dim or config.hidden_dim // config.num_heads,
        **({"feed_forward_proj": projections[0]} if projections else {}),
        "is_gated_act": config.gated,
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.scaled_logits,
    }


def t5_table(gated: bool) -> Table:
    table = {}
    for stack in _STACKS:
        feed_forward_index = 2 if stack == "decoder" else 1  # in a block
        layers = ("wi_0", "wi_1", "wo") if gated else ("wi", "wo")
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        table |= {
            **transformer_layer(
                f"{stack}.block.{{}}.layer.",
                [f"0.SelfAttention.{part}" for part in "qkvo"],
                "0.layer_norm",
                [f"{feed_forward_index}.DenseReluDense.{part}" for part in layers],
                f"{feed_forward_index}.layer_norm",
                [f"1.EncDecAttention.{part}" for part in "qkvo"],
                "1.layer_norm",
                path_prefix=f"{stack}/block_{{}}",
            ),
            f"{stack}/relative_bias_0": bias,
            f"{stack}/final_norm": f"{stack}.final_layer_norm",
        }
    return table


def _equal_sizes(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Returns BART's fields for the vocabulary size and for the sizes of the decoder.

    The decoder has the same number of heads and the same feed-forward size as the encoder.
    """
    return {
        "vocab_size": config.vocab_size,
        "decoder_attention_heads": config.num_heads,
        "decoder_ffn_dim": config.feed_forward_dim,
    }


def _check_equal_sizes(config: ForeignConfig) -> None:
    for encoder_field, decoder_field in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("vocab_size", "decoder_vocab_size"),
    ):
        expected = config.number(encoder_field)
        actual = config.get(decoder_field, expected)
        if actual != expected:
            raise UserError(
                f"{config.where} has {encoder_field}={expected} and {decoder_field}={actual!r}, "
                "but only equal values can be read: give another model"
            )


def _bart_settings(config: ForeignConfig) -> dict[str, Any]:
    _check_equal_sizes(config)
    return {
        "max_length": config.number("max_position_embeddings"),
        "embedding_scale": bool(config.get("scale_embedding", False)),
    }


def _bart_fields(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Computes the BART settings that `Family.settings` does not cover.

    The function is the inverse of `_bart_settings`.
    """
    return {
        **_equal_sizes(config),
        "max_position_embeddings": config.max_length,
        "scale_embedding": config.embedding_scale,
    }


def _marian_fields(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Computes the MarianMT settings that `Family.settings` does not cover.

    `max_position_embeddings` limits the length, although MarianMT's positions are sinusoidal.
    """
    length = {"max_position_embeddings": config.max_length, "static_position_embeddings": True}
    return {**_equal_sizes(config), **length, "scale_embedding": True}


def _marian_settings(config: ForeignConfig) -> dict[str, Any]:
    # MarianConfig's default is False, but all MarianMT models scale their embeddings.
    scale = {"scale_embedding": config.get("scale_embedding", False)}
    ForeignConfig(scale, config.where).require({"scale_embedding": True})
    _check_equal_sizes(config)
    return {}


def _bart_table() -> Table:
    """Builds the mapping of weight names for BART, MarianMT and Pegasus.

    Only BART uses the entries for learned positions and for the embedding norm.
    """
    table, parts = {}, ("q_proj", "k_proj", "v_proj", "out_proj")
    for stack, embeddings in _STACKS.items():
        positions = f"{stack}.embed_positions.weight"
        table |= {
            f"{embeddings}/positions/table": Raw(positions),
            f"{embeddings}/norm": f"{stack}.layernorm_embedding",
            **transformer_layer(
                f"{stack}.layers.{{}}.",
                [f"self_attn.{part}" for part in parts],
                "self_attn_layer_norm",
                ["fc1", "fc2"],
                "final_layer_norm",
                [f"encoder_attn.{part}" for part in parts],
                "encoder_attn_layer_norm",
                path_prefix=f"{stack}/block_{{}}",
            ),
            f"{stack}/final_norm": f"{stack}.layer_norm",
        }
    return table


_POST = {"block": "transformer", "norm": "post", "epsilon": 1e-5}
_BART = Family(
    name="BART",
    # `save_pretrained` saves a tied array under only one of these names.
    tokens=("shared.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
    table=_bart_table(),
    settings={
        "hidden_dim": ("d_model", None),
        "feed_forward_dim": ("encoder_ffn_dim", None),
        "num_heads": ("encoder_attention_heads", None),
        "num_encoder_layers": ("encoder_layers", None),
        "num_decoder_layers": ("decoder_layers", None),
        "activation": ("activation_function", None, ACTIVATIONS),
    },
    fixed_settings={
        **_POST,
        "positions": "learned",
        "embedding_norm": True,
        "position_offset": BART_OFFSET,
    },
    derive_settings=_bart_settings,
    derive_fields=_bart_fields,
    required_fields={
        "normalize_before": False,
        "add_final_layer_norm": False,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    },
    prefix="model.",
    body_prefixes=("encoder.", "decoder."),
    # Copies of the token embeddings, MarianMT's sinusoidal positions, and a bias that may be zero.
    ignored_suffixes=("tokens.weight", "lm_head.weight", "positions.weight", "final_logits_bias"),
)
_MARIAN = dataclasses.replace(
    _BART,
    name="MarianMT",
    fixed_settings={**_POST, "position_layout": "concatenated"},
    derive_settings=_marian_settings,
    derive_fields=_marian_fields,
    required_fields={
        **_BART.required_fields,
        "normalize_embedding": False,
        "static_position_embeddings": True,
    },
)
FAMILIES: Mapping[str, Family] = {
    "t5": Family(
        name="T5",
        tokens=("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        table=t5_table(gated=False),
        settings={
            "hidden_dim": ("d_model", None),
            "feed_forward_dim": ("d_ff", None),
            "num_heads": ("num_heads", None),
            "num_encoder_layers": ("num_layers", None),
            "epsilon": ("layer_norm_epsilon", 1e-6),
            "head_dim": ("d_kv", None),
            "activation": ("feed_forward_proj", "relu", _FEED_FORWARDS),
        },
        fixed_settings={
            "block": "transformer",
            "norm": "pre",
            "norm_type": "rms",
            "positions": "none",
            "relative_bias": "shared",
            "use_bias": False,
            "scaled": False,
            "embedding_scale": False,
            "initializer": "lecun_normal",
        },
        derive_settings=_t5_settings,
        derive_fields=_t5_fields,
        required_fields={
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
        },
        output_kernel="lm_head.weight",
        body_prefixes=("encoder.", "decoder."),
        # Copies of the token embeddings, and weights that transformers ignores, too.
        ignored_suffixes=("embed_tokens.weight", "EncDecAttention.relative_attention_bias.weight"),
    ),
    "bart": _BART,
    "marian": _MARIAN,
    # Pegasus is MarianMT with pre-norm.
    "pegasus": dataclasses.replace(
        _MARIAN,
        name="Pegasus",
        fixed_settings={**_MARIAN.fixed_settings, "norm": "pre"},
        required_fields={
            **_MARIAN.required_fields,
            "normalize_before": True,
            "add_final_layer_norm": True,
        },
    ),
}


def read_encoder_decoder(directory: str | pathlib.Path) -> Pretrained:
    """Reads a Hugging Face T5, BART, MarianMT or Pegasus.

    Args:
        directory: folder with `config.json`, and with `model.safetensors` or `pytorch_model.bin`.
            The tokenizer is optional. T5's tokenizer is `spiece.model` or `tokenizer.json`. BART's
            tokenizer is `tokenizer.json`, or `vocab.json` and `merges.txt`. The tokenizers of
            MarianMT and Pegasus are not read.

    Raises:
        UserError: a file is missing or damaged, the package that reads the weights (safetensors or
            PyTorch) is not installed, or macaron_tf has no counterpart for a layer or setting of
            the model.
    """
    directory = pathlib.Path(directory)
    config = ForeignConfig.of_directory(directory, FAMILIES)
    model_type, vocabulary = config.get("model_type"), None
    if model_type in ("t5", "bart") and any((directory / name).is_file() for name in _TOKENIZERS):
        read = read_t5_vocabulary if model_type == "t5" else read_vocabulary
        vocabulary = read(directory)
    model = _convert(read_state(directory), config, vocabulary)
    generation, special = config.generation(directory), model.special
    ends: dict[str, tuple[int, ...]] = ends_of(generation, special)
    start = config.get("decoder_start_token_id", special.end)
    start = generation.get("decoder_start_token_id", start)
    if model_type == "bart" and vocabulary and start != special.begin:
        # The encoder reads <s> text </s>, and the decoder starts with </s>, which most models
        # force <s> to follow.
        forced = id_tuple(generation.get("forced_bos_token_id"))
        ends |= {"source_start": (special.begin,), "answer_start": (start, *forced)}
    return dataclasses.replace(model, generation=generation, ends=ends)


def import_encoder_decoder(
    state: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> Pretrained:
    """Converts a Hugging Face encoder-decoder in memory to a macaron_tf model.

    Args:
        state: dict mapping PyTorch name to weight.
        config: settings of the model, as returned by `to_dict` of its transformers configuration.

    Raises:
        UserError: a weight is missing, or macaron_tf has no counterpart for the `model_type` or for
            a layer or setting of the model.
    """
    return _convert(state, ForeignConfig(config, "the model's configuration"), None)


def _special(config: ForeignConfig, rows: int) -> Special:
    """Returns the special tokens of a model whose tokenizer is not read."""
    pad, start = map(config.number, ("pad_token_id", "decoder_start_token_id"))
    end, *_ = id_tuple(config.get("eos_token_id")) or (config.number("eos_token_id"),)
    return Special(pad, config.get("unk_token_id"), start, end, rows=rows)


def _convert(
    state: Mapping[str, np.ndarray], config: ForeignConfig, vocabulary: PieceVocabulary | None
) -> Pretrained:
    """Builds a macaron_tf model from Hugging Face weights and settings.

    Args:
        state: dict mapping PyTorch name to weight.
        config: settings to convert.
        vocabulary: vocabulary of the model, or `None` if the model was read without one.
    """
    model_type = config.choice("model_type", {name: name for name in FAMILIES})
    family = FAMILIES[model_type]
    arrays, missing = family.arrays(state), ""
    settings, tokens = family.read_settings(config), arrays.array(*family.tokens)
    special, size = _special(config, len(tokens)), len(tokens)
    if vocabulary:
        check_pieces(vocabulary, tokens)
        special, size = vocabulary.special, vocabulary.size
    # Rows without a token are copies of the padding, whose probability is almost 0.
    pad = padded_rows(size, fill_row=special.pad)
    tokens = pad(tokens)
    for part in family.body_prefixes:
        if not any(name.startswith(part) for name in arrays.arrays):
            raise UserError(
                f"the weights of the {config.architecture or family.name} have no {part[:-1]}, but "
                "only an encoder and its decoder can be read: give another model"
            )
    table = {**family.table, "embedding/table": tokens}
    if settings.get("gated"):
        table |= t5_table(gated=True)
    if family.output_kernel:
        has_output = arrays.has(family.output_kernel)
        output = pad(arrays.array(family.output_kernel)) if has_output else tokens
        # A T5 1.1 without its output matrix may be saved with tie_word_embeddings=True.
        tied = settings["scaled_logits"] or config.architecture.endswith(LANGUAGE_CLASSES)
        if not has_output and not (tied and config.get("tie_word_embeddings", True)):
            missing = family.output_kernel
        settings["tied"] = np.array_equal(output, tokens)
        table["output_projection/kernel"] = output.T
    else:
        bias = np.ravel(arrays.arrays.get("final_logits_bias", 0.0))
        settings["logits_bias"] = bool(np.any(bias))
        if settings["logits_bias"]:
            table["logits_bias"] = pad(bias)
    ids = {"pad_id": special.pad, "begin_id": special.begin, "end_id": special.end}
    network = build_model(EncoderDecoder, {"vocab_size": size, **ids, **settings})
    assign_weights(network, arrays, table)
    # The output matrix may differ from the token embeddings.
    unread = dataclasses.replace(family, output_kernel="").check_unread(arrays)
    fields = {"missing_head": missing_head(config, unread) or missing, "unread": unread}
    fields["sentinels"] = len(special.sentinels)
    return Pretrained(network, *_CATALOG_MODELS[model_type], vocabulary, special, **fields)
