"""T5, BART and MarianMT of Hugging Face."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import (
    ACTIVATIONS,
    ForeignConfig,
    Raw,
    Table,
    TorchArrays,
    assign_weights,
    built,
    read_state,
    transformer_layer,
)
from macaron_tf.interop.vocabularies import read_t5_vocabulary, read_vocabulary
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.text import PieceVocabulary

# Name in our catalog and what it has learnt, by model_type.
_KINDS = {
    "t5": ("t5_small", "span_corruption"),
    "bart": ("bart_base", "denoising"),
    "marian": ("transformer_base", None),
}
MODEL_TYPES = tuple(_KINDS)
_TOKENIZERS = ("spiece.model", "vocab.json", "tokenizer.json")
# BART's tables of positions begin with two rows that are never used.
_BART_OFFSET = 2
# Its unknown token, which its configuration does not name.
_BART_UNKNOWN = 3
# The one table's names, since `save_pretrained` keeps one of the tied.
_TABLES = {
    "t5": ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    "bart": ("model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
}
_T5_OUTPUT = "lm_head.weight"


def read_encoder_decoder(directory: str | pathlib.Path) -> Pretrained:
    """Reads a T5, a BART or a MarianMT as `save_pretrained` writes it.

    Our ids of a T5 or BART with a tokenizer are its vocabulary's, T5's sentinels behind them. Of
    others they are PAD=0, UNK=1, BOS=2 (which is their decoder's start), EOS=3, then the rest in
    their order.

    Args:
        directory: holds `config.json`, `model.safetensors` or `pytorch_model.bin` (which need the
            package safetensors, or PyTorch); and, for text, `spiece.model`, or `vocab.json` and
            `merges.txt`, or `tokenizer.json`. A Marian's tokenizer has no counterpart here.

    Raises:
        UserError: a file is missing or damaged, or the model has a part that ours does not have.
    """
    directory = pathlib.Path(directory)
    config = ForeignConfig.of_directory(directory, MODEL_TYPES)
    kind, vocabulary, ids, more = config.get("model_type"), None, None, {}
    if kind != "marian" and any((directory / name).is_file() for name in _TOKENIZERS):
        if kind == "t5":
            vocabulary, pieces, sentinels = read_t5_vocabulary(directory)
            ids, more["sentinels"] = _table_ids(vocabulary, pieces, sentinels), len(sentinels)
        else:
            vocabulary, pieces = read_vocabulary(directory)
            ids = _table_ids(vocabulary, pieces)
            # A source is <s> text </s>, an answer follows </s> <s>.
            start, end = vocabulary.cls_id, vocabulary.sep_id
            more["ends"] = {"source_start": (start,), "answer_start": (end, start)}
    network, ids = _read(read_state(directory), config, ids)
    return Pretrained(network, *_KINDS[kind], vocabulary, ids, **more)


def import_encoder_decoder(
    state: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> Pretrained:
    """Makes our model of one in memory; see `read_encoder_decoder` for the ids.

    Args:
        state: arrays by PyTorch's names.
        config: the fields of its configuration, as `to_dict` gives them.

    Raises:
        UserError: the model has a part that ours does not have; the sentence names the field.
    """
    described = ForeignConfig(config, "the model's configuration")
    network, ids = _read(state, described, None)
    return Pretrained(network, *_KINDS[described.get("model_type")], None, ids)


def _table_ids(
    vocabulary: PieceVocabulary, pieces: np.ndarray, sentinels: np.ndarray | tuple = ()
) -> np.ndarray:
    """Their ids of the table's rows: pieces and sentinels, both up to a multiple of 8.

    Ids that are neither piece nor sentinel get their padding's row.
    """
    ids = np.full(vocabulary.size + -(-len(sentinels) // 8) * 8, pieces[vocabulary.pad_id])
    ids[: len(pieces)] = np.where(pieces < 0, pieces[vocabulary.pad_id], pieces)
    ids[vocabulary.size : vocabulary.size + len(sentinels)] = sentinels
    return ids


def _special_first(config: ForeignConfig, unknown: int | None) -> np.ndarray:
    """Their padding, unknown, decoder's start and end, then their other ids in order.

    Args:
        unknown: where the configuration does not name it; None = the first id that is free, as in
            converted Marian vocabularies, </s> and <unk>, and in T5's.
    """
    pad, start, eos = map(config.number, ("pad_token_id", "decoder_start_token_id", "eos_token_id"))
    if config.get("unk_token_id") is not None:
        unknown = config.number("unk_token_id")
    if unknown is None:
        taken = {pad, start, eos}
        unknown = 1 if 1 not in taken else min(set(range(5)) - taken)
    special = [pad, unknown, start, eos]
    rest = np.setdiff1d(np.arange(config.number("vocab_size")), special)
    return np.concatenate([special, rest])


def _read(
    state: Mapping[str, np.ndarray], config: ForeignConfig, ids: np.ndarray | None
) -> tuple[EncoderDecoder, np.ndarray]:
    """Our model, and their id for each of ours: the given ones, or see `_special_first`."""
    kind, arrays = config.get("model_type"), TorchArrays(state)
    if ids is None:
        ids = _special_first(config, _BART_UNKNOWN if kind == "bart" else None)
    settings = _t5_settings(config) if kind == "t5" else _bart_settings(config)

    def table_rows(*names: str) -> np.ndarray:
        table = np.asarray(arrays.array(*names))
        if len(table) <= ids.max():
            raise UserError(
                f"{config.where} has ids up to {ids.max()} and {names[0]} only {len(table)} rows."
            )
        return table[ids]

    tokens = table_rows(*_TABLES.get(kind, _TABLES["bart"]))
    names = {"embedding/table": tokens}
    if kind == "t5":
        names |= _t5_table(settings["gated"])
        output = table_rows(_T5_OUTPUT) if arrays.has(_T5_OUTPUT) else tokens
        settings["tied"] = np.array_equal(output, tokens)
        names["output_projection/kernel"] = output.T
    else:
        names |= _BART_TABLE
        bias = np.asarray(state.get("final_logits_bias", 0.0))
        settings["logits_bias"] = bool(np.any(bias))
        if settings["logits_bias"]:
            names["logits_bias"] = bias.reshape(-1)[ids]
    network = built(EncoderDecoder, {"vocab_size": len(ids), **settings})
    assign_weights(network, arrays, names)
    return network, ids


_FEED_FORWARDS = {"relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}


def _t5_settings(config: ForeignConfig) -> dict[str, Any]:
    config.require({"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128})
    layers = config.number("num_layers")
    decoder_layers = layers
    if config.get("num_decoder_layers") is not None:
        decoder_layers = config.number("num_decoder_layers")
    # A tied model divides its output by sqrt(D), 1.1 does not: newer files say so themselves.
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    return {
        "hidden_dim": config.number("d_model"),
        "feed_forward_dim": config.number("d_ff"),
        "num_heads": config.number("num_heads"),
        "num_encoder_layers": layers,
        "num_decoder_layers": decoder_layers,
        "block": "transformer",
        "activation": config.choice("feed_forward_proj", _FEED_FORWARDS, "relu"),
        "gated": config.get("feed_forward_proj", "relu").startswith("gated-"),
        "norm": "pre",
        "norm_type": "rms",
        "epsilon": config.number("layer_norm_epsilon", 1e-6),
        "positions": "none",
        "relative_bias": "shared",
        "use_bias": False,
        "head_dim": config.number("d_kv"),
        "scaled": False,
        "embedding_scale": False,
        "scaled_logits": bool(scaled),
        "initializer": "lecun_normal",
    }


def _t5_table(gated: bool) -> Table:
    table = {}
    for stack in ("encoder", "decoder"):
        last = 2 if stack == "decoder" else 1  # the feed-forward is the last of its layer's parts
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


def _bart_settings(config: ForeignConfig) -> dict[str, Any]:
    """Those of BART or MarianMT."""
    config.require(
        {
            "normalize_before": False,
            "add_final_layer_norm": False,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
        }
    )
    for one, other in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("vocab_size", "decoder_vocab_size"),
    ):
        if config.get(other, config.number(one)) != config.number(one):
            raise UserError(
                f"{config.where} has {one}={config.number(one)} and {other}={config.get(other)!r}: "
                "only equal ones can be read."
            )
    if config.get("model_type") == "bart":
        own = {
            "positions": "learned",
            "max_length": config.number("max_position_embeddings"),
            "embedding_norm": True,
            "embedding_scale": bool(config.get("scale_embedding", False)),
        }
    else:
        # MarianConfig's default is not to scale; all MarianMT models do.
        config.require({"normalize_embedding": False, "static_position_embeddings": True})
        ForeignConfig({"scale_embedding": False, **config.fields}, config.where).require(
            {"scale_embedding": True}
        )
        own = {"position_layout": "concatenated"}
    return {
        "hidden_dim": config.number("d_model"),
        "feed_forward_dim": config.number("encoder_ffn_dim"),
        "num_heads": config.number("encoder_attention_heads"),
        "num_encoder_layers": config.number("encoder_layers"),
        "num_decoder_layers": config.number("decoder_layers"),
        "block": "transformer",
        "activation": config.choice("activation_function", ACTIVATIONS),
        "norm": "post",
        "epsilon": 1e-5,
        **own,
    }


def _bart_table() -> Table:
    """MarianMT's too, which has neither tables of positions nor norms of the embeddings."""
    table, parts = {}, ("q_proj", "k_proj", "v_proj", "out_proj")
    for stack, embeddings in (("encoder", "source_embeddings"), ("decoder", "target_embeddings")):
        positions = f"model.{stack}.embed_positions.weight"
        table |= {
            f"{embeddings}/positions/table": Raw(positions, transform=lambda t: t[_BART_OFFSET:]),
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
        }
    return table


_BART_TABLE = _bart_table()
