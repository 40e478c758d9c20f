"""Reads Hugging Face's T5, BART, MarianMT and Pegasus."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import (
    ACTIVATIONS,
    Family,
    ForeignConfig,
    Raw,
    Table,
    TorchArrays,
    assign_weights,
    built,
    rows,
    say_spare_rows,
    transformer_layer,
)
from macaron_tf.interop.vocabularies import read_t5_vocabulary, read_vocabulary
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import PieceVocabulary

_TOKENIZERS = ("spiece.model", "vocab.json", "tokenizer.json")
# BART's tables of positions begin with two unused rows.
_BART_OFFSET = 2
# The model's name in our catalog and its pre-training objective, by model_type.
_KINDS = {
    "t5": ("t5_small", "span_corruption"),
    "bart": ("bart_base", "denoising"),
    "marian": ("transformer_base", None),
    "pegasus": ("transformer_base", None),
}
_FEED_FORWARDS = {"relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}
_STACKS = {"encoder": "source_embeddings", "decoder": "target_embeddings"}


def _t5_settings(config: ForeignConfig) -> dict[str, Any]:
    given = config.get("num_decoder_layers") is not None
    # A tied model divides its output by sqrt(D), T5 1.1 does not; newer files have a field for it.
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    return {
        "num_decoder_layers": config.number("num_decoder_layers" if given else "num_layers"),
        "gated": config.get("feed_forward_proj", "relu").startswith("gated-"),
        "scaled_logits": bool(scaled),
    }


def _t5_fields(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Converts our settings to T5's; the inverse of `_t5_settings`.

    It includes `tie_word_embeddings`, which `_read` determines from the weights.
    """
    proj = {name: ours for name, ours in _FEED_FORWARDS.items() if ours == config.activation}
    proj = [name for name in proj if name.startswith("gated-") == config.gated]
    return {
        "num_decoder_layers": config.num_decoder_layers,
        "d_kv": config.head_dim or config.hidden_dim // config.num_heads,
        **({"feed_forward_proj": proj[0]} if proj else {}),
        "is_gated_act": config.gated,
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.scaled_logits,
    }


def t5_table(gated: bool) -> Table:
    table = {}
    for stack in _STACKS:
        last = 2 if stack == "decoder" else 1  # number of the feed-forward part within a block
        inner = ("wi_0", "wi_1", "wo") if gated else ("wi", "wo")
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        table |= {
            **transformer_layer(
                f"{stack}.block.{{}}.layer.",
                [f"0.SelfAttention.{part}" for part in "qkvo"],
                "0.layer_norm",
                [f"{last}.DenseReluDense.{part}" for part in inner],
                f"{last}.layer_norm",
                [f"1.EncDecAttention.{part}" for part in "qkvo"],
                "1.layer_norm",
                ours=f"{stack}/block_{{}}",
            ),
            f"{stack}/relative_bias_0": bias,
            f"{stack}/final_norm": f"{stack}.final_layer_norm",
        }
    return table


def _equal_sizes(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Makes the fields of the vocabulary's and the decoder's sizes; see `_check_equal_sizes`."""
    return {
        "vocab_size": config.vocab_size,
        "decoder_attention_heads": config.num_heads,
        "decoder_ffn_dim": config.feed_forward_dim,
    }


def _check_equal_sizes(config: ForeignConfig) -> None:
    for one, other in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("vocab_size", "decoder_vocab_size"),
    ):
        if config.get(other, config.number(one)) != config.number(one):
            raise UserError(
                f"{config.where} has {one}={config.number(one)} and {other}={config.get(other)!r}: "
                "only equal ones can be read"
            )


def _bart_settings(config: ForeignConfig) -> dict[str, Any]:
    _check_equal_sizes(config)
    return {
        "max_length": config.number("max_position_embeddings"),
        "embedding_scale": bool(config.get("scale_embedding", False)),
    }


def _bart_fields(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Converts our settings to BART's; the inverse of `_bart_settings`."""
    return {
        **_equal_sizes(config),
        "max_position_embeddings": config.max_length,
        "scale_embedding": config.embedding_scale,
    }


def _marian_fields(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Converts our settings to MarianMT's; the inverse of `_marian_settings`.

    `max_position_embeddings` limits the length even though the positions are sinusoids.
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
    """Makes BART's table of names.

    MarianMT uses it too, although it has no position embeddings and no norms of embeddings.
    """
    table, parts = {}, ("q_proj", "k_proj", "v_proj", "out_proj")
    for stack, embeddings in _STACKS.items():
        positions = f"model.{stack}.embed_positions.weight"
        table |= {
            f"{embeddings}/positions/table": Raw(
                positions,
                transform=lambda table: table[_BART_OFFSET:],
                inverse=lambda table: np.pad(table, ((_BART_OFFSET, 0), (0, 0))),
            ),
            f"{embeddings}/norm": f"model.{stack}.layernorm_embedding",
            **transformer_layer(
                f"model.{stack}.layers.{{}}.",
                [f"self_attn.{part}" for part in parts],
                "self_attn_layer_norm",
                ["fc1", "fc2"],
                "final_layer_norm",
                [f"encoder_attn.{part}" for part in parts],
                "encoder_attn_layer_norm",
                ours=f"{stack}/block_{{}}",
            ),
            f"{stack}/final_norm": f"model.{stack}.layer_norm",
        }
    return table


_POST = {"block": "transformer", "norm": "post", "epsilon": 1e-5}
_BART = Family(
    name="BART",
    # `save_pretrained` saves a tied array under one of its names.
    tokens=("model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    table=_bart_table(),
    settings={
        "hidden_dim": ("d_model", None),
        "feed_forward_dim": ("encoder_ffn_dim", None),
        "num_heads": ("encoder_attention_heads", None),
        "num_encoder_layers": ("encoder_layers", None),
        "num_decoder_layers": ("decoder_layers", None),
        "activation": ("activation_function", None, ACTIVATIONS),
    },
    fixed={**_POST, "positions": "learned", "embedding_norm": True},
    derived=_bart_settings,
    underived=_bart_fields,
    required={
        "normalize_before": False,
        "add_final_layer_norm": False,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    },
)
_MARIAN = dataclasses.replace(
    _BART,
    name="MarianMT",
    fixed={**_POST, "position_layout": "concatenated"},
    derived=_marian_settings,
    underived=_marian_fields,
    required={**_BART.required, "normalize_embedding": False, "static_position_embeddings": True},
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
        fixed={
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
        derived=_t5_settings,
        underived=_t5_fields,
        required={"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
        output="lm_head.weight",
    ),
    "bart": _BART,
    "marian": _MARIAN,
    # MarianMT with pre-norm.
    "pegasus": dataclasses.replace(
        _MARIAN,
        name="Pegasus",
        fixed={**_MARIAN.fixed, "norm": "pre"},
        required={**_MARIAN.required, "normalize_before": True, "add_final_layer_norm": True},
    ),
}


def read_encoder_decoder(directory: str | pathlib.Path) -> Pretrained:
    """Reads a T5, BART, MarianMT or Pegasus as `save_pretrained` writes it.

    A T5 or BART with a tokenizer gets the ids of our vocabulary, followed by T5's sentinels. The
    ids of others are PAD=0, UNK=1, BOS=2 (the start token of their decoder), EOS=3, then the
    other ids in order.

    Args:
        directory: see `read_encoder`. To read and write text, a T5 needs `spiece.model` or
            `tokenizer.json`, a BART `vocab.json` and `merges.txt`, or `tokenizer.json`. The
            tokenizers of MarianMT and Pegasus are not read.
    """
    directory = pathlib.Path(directory)
    config = ForeignConfig.of_directory(directory, FAMILIES)
    kind, vocabulary, ids, more = config.get("model_type"), None, None, {}
    if kind in ("t5", "bart") and any((directory / name).is_file() for name in _TOKENIZERS):
        if kind == "t5":
            vocabulary, pieces, sentinels = read_t5_vocabulary(directory)
            ids, more["sentinels"] = _table_ids(vocabulary, pieces, sentinels), len(sentinels)
        else:
            vocabulary, pieces = read_vocabulary(directory)
            ids = _table_ids(vocabulary, pieces)
            start, end = vocabulary.cls_id, vocabulary.sep_id
            if config.get("decoder_start_token_id") != pieces[start]:
                # A source is <s> text </s>, and an answer begins after </s> <s>.
                more["ends"] = {"source_start": (start,), "answer_start": (end, start)}
    read = _read(FAMILIES[kind].arrays(directory), config, ids)
    return dataclasses.replace(read, vocabulary=vocabulary, **more)


def import_encoder_decoder(
    state: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> Pretrained:
    """Converts a model in memory to this library's; see `read_encoder_decoder` for the ids.

    Args:
        state: its arrays, by their PyTorch names.
        config: the fields of its configuration, as its `to_dict` returns them.
    """
    return _read(TorchArrays(state), ForeignConfig(config, "the model's configuration"), None)


def _table_ids(
    vocabulary: PieceVocabulary, pieces: np.ndarray, sentinels: np.ndarray | tuple = ()
) -> np.ndarray:
    """Returns the foreign id for each row of our table: pieces, then sentinels.

    Both are filled up to a multiple of 8; rows without a token get the id of the padding.
    """
    ids = np.full(vocabulary.size + -(-len(sentinels) // 8) * 8, pieces[vocabulary.pad_id])
    ids[: len(pieces)] = np.where(pieces < 0, pieces[vocabulary.pad_id], pieces)
    ids[vocabulary.size : vocabulary.size + len(sentinels)] = sentinels
    return ids


def _special_first(config: ForeignConfig) -> np.ndarray:
    """Returns the foreign ids: padding, unknown, decoder start, end, then the others in order."""
    pad, start, eos = map(config.number, ("pad_token_id", "decoder_start_token_id", "eos_token_id"))
    if config.get("unk_token_id") is not None:
        unknown = config.number("unk_token_id")
    elif config.get("model_type") == "bart":
        unknown = 3  # not in its configuration
    else:  # 1 if free, as in converted Marian vocabularies, else the first free one, as in T5's
        unknown = next(number for number in (1, 0, 2, 3, 4) if number not in (pad, start, eos))
    special = [pad, unknown, start, eos]
    return np.array([*special, *np.setdiff1d(np.arange(config.number("vocab_size")), special)])


def _read(arrays: TorchArrays, config: ForeignConfig, ids: np.ndarray | None) -> Pretrained:
    """Builds our model; `ids` are the foreign ones by our ids, None: those of `_special_first`."""
    kind = config.get("model_type")
    family = FAMILIES[kind]
    ids = _special_first(config) if ids is None else ids
    settings, chosen = family.read_settings(config), rows(ids, len(ids))
    tokens = chosen(arrays.array(*family.tokens))
    say_spare_rows(arrays.array(*family.tokens), len(np.unique(ids)))
    table = {**family.table, "embedding/table": tokens}
    if settings.get("gated"):
        table |= t5_table(gated=True)
    if family.output:
        output = chosen(arrays.array(family.output)) if arrays.has(family.output) else tokens
        settings["tied"] = np.array_equal(output, tokens)
        table["output_projection/kernel"] = output.T
    else:
        bias = np.ravel(arrays.arrays.get("final_logits_bias", 0.0))
        settings["logits_bias"] = bool(np.any(bias))
        if settings["logits_bias"]:
            table["logits_bias"] = bias[ids]
    network = built(EncoderDecoder, {"vocab_size": len(ids), **settings})
    assign_weights(network, arrays, table)
    return Pretrained(network, *_KINDS[kind], None, ids)
