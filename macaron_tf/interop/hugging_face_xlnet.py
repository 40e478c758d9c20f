"""XLNet of Hugging Face: both streams and the head over what is guessed.

Transformer-XL is no longer in transformers (5.23 has XLNet alone), so nothing is read of it.
"""

import dataclasses
import pathlib

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.assign import assign, assign_dense, assign_norm
from macaron_tf.interop.encoder_weights import UNUSED_TOKEN_BIAS, Dense, padded
from macaron_tf.interop.hugging_face import (
    ACTIVATIONS,
    TorchArrays,
    read_choice,
    read_config,
    read_json,
    read_number,
    read_state,
)
from macaron_tf.interop.hugging_face_vocabularies import read_vocabulary
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.two_stream import TwoStreamModel
from macaron_tf.text.base import PieceVocabulary

# Theirs of padding, unknown, [CLS], [SEP] and [MASK], in our order.
_SPECIAL = (5, 0, 3, 4, 6)
_TOKENIZERS = ("spiece.model", "tokenizer.json")
_SUMMARY = "sequence_summary/summary"  # what theirs calls BERT's pooler
_SETTINGS = {
    "hidden_dim": ("d_model", 1024),
    "feed_forward_dim": ("d_inner", 4096),
    "num_heads": ("n_head", 16),
    "num_layers": ("n_layer", 24),
    "dropout": ("dropout", 0.1),
    "epsilon": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
# What our model has no place for when it is otherwise.
_REQUIRED = {
    "attn_type": "bi",
    "bi_data": False,
    "same_length": False,
    "untie_r": True,
    "tie_word_embeddings": True,
}


@dataclasses.dataclass(frozen=True)
class XLNetImport:
    """What was read, and what was not.

    Attributes:
        model: gives the same outputs of both streams.
        ids: `(V',)` int, at each of our ids the one of theirs: padding is 0 here.
        unread: names of weights of other heads that were left behind.
        vocabulary: cuts text into the model's ids, its rows ending with [CLS] as theirs; None
            where the directory has no tokenizer.
        pooler: `(kernel (D, D), bias (D,))` over that [CLS], of a classifier; None where there is
            none.
    """

    model: TwoStreamModel
    ids: np.ndarray
    unread: tuple[str, ...] = ()
    vocabulary: PieceVocabulary | None = None
    pooler: Dense | None = None


def is_xlnet(directory: pathlib.Path) -> bool:
    """Whether a Hugging Face directory is of one."""
    file = directory / "config.json"
    return file.is_file() and read_json(file).get("model_type") == "xlnet"


def read_xlnet(directory: str | pathlib.Path, memory_length: int | None = None) -> XLNetImport:
    """Reads an XLNet as `save_pretrained` writes it, with its head over tokens if there is one.

    Args:
        directory: holds `config.json`, `model.safetensors` or `pytorch_model.bin` and, where text
            is to be read, `spiece.model` or `tokenizer.json`.
        memory_length: M of the model; their `mem_len`, or 384 where that is none.

    Raises:
        UserError: a file is missing or damaged, or the model has what ours has no place for.
    """
    directory = pathlib.Path(directory)
    config, where = read_config(directory, ("xlnet",)), str(directory / "config.json")
    required = {**_REQUIRED, "pad_token_id": _SPECIAL[0]}
    for field, needed in required.items():
        if config.get(field, needed) != needed:
            raise UserError(f"{where} has {field}={config[field]!r}: only {needed!r} can be read.")
    settings = {
        ours: read_number(config, theirs, type(default), where, default)
        for ours, (theirs, default) in _SETTINGS.items()
    }
    clamp = read_number(config, "clamp_len", int, where, -1)
    activation = read_choice(config, "ff_activation", ACTIVATIONS, where, "gelu")
    state = read_state(directory)
    arrays = TorchArrays({name.removeprefix("transformer."): a for name, a in state.items()})
    tokens = arrays.array("word_embedding/weight")
    if len(tokens) <= max(_SPECIAL):
        raise UserError(f"{where} is of {len(tokens)} tokens, fewer than XLNet's special ones.")
    ids = np.array([*_SPECIAL, *np.setdiff1d(np.arange(len(tokens)), _SPECIAL)])
    vocabulary = _read_vocabulary(directory, ids)
    try:
        ours = EncoderConfig(
            vocab_size=-(-len(tokens) // 8) * 8,
            positions="transformer_xl",
            embedding_norm=False,
            clamp_length=clamp if clamp > 0 else None,
            activation=activation,
            attention_dropout=settings["dropout"],
            activation_dropout=settings["dropout"],
            **settings,
        )
    except ValueError as error:
        raise UserError(f"the model's settings do not fit ours: {error}.") from None
    memory_length = memory_length or config.get("mem_len") or 384
    model = TwoStreamModel(ours, memory_length)
    model.build()
    assign(model.encoder.embeddings.tokens.table, padded(tokens[ids], ours.vocab_size))
    assign(model.query_vector, arrays.array("mask_emb").reshape(-1))
    for number, block in enumerate(model.encoder.stack.blocks):
        _assign_layer(block, arrays, f"layer/{number}")
    if arrays.has("lm_loss/bias"):
        bias = arrays.array("lm_loss/bias")[ids]
        assign(model.language_head.bias, padded(bias, ours.vocab_size, UNUSED_TOKEN_BIAS))
        if arrays.has("lm_loss/weight") and not np.array_equal(
            arrays.array("lm_loss/weight"), tokens
        ):
            raise UserError(
                "the XLNet's lm_loss.weight is not its word_embedding: ours has one table for both."
            )
    pooler = None
    if config.get("summary_type", "last") == "last" and arrays.has(f"{_SUMMARY}/weight"):
        pooler = arrays.dense(_SUMMARY)
    unread = sorted(set(arrays.state) - arrays.read)
    inner = [name for name in unread if name.startswith("layer.")]
    if inner:
        raise UserError(f"the XLNet has {inner[0]}, for which ours has no place.")
    return XLNetImport(model, ids, tuple(unread), vocabulary, pooler)


def _read_vocabulary(directory: pathlib.Path, ids: np.ndarray) -> PieceVocabulary | None:
    if not any((directory / name).is_file() for name in _TOKENIZERS):
        return None
    vocabulary, found = read_vocabulary(directory)
    if found is None or not np.array_equal(found, ids):
        raise UserError(
            f"the tokenizer of {directory} has other pieces than the model's {len(ids)}, or its "
            "special ones at other ids: it is another model's vocabulary."
        )
    return vocabulary


def _assign_layer(block, arrays: TorchArrays, path: str) -> None:
    attention, feed_forward = block.attention_0, block.feed_forward_1
    mixer, theirs = attention.sublayer, f"{path}/rel_attn"

    def kernel(part: str) -> np.ndarray:
        array = arrays.array(f"{theirs}/{part}")  # (D, H, d)
        return array.reshape(len(array), -1)

    assign(mixer.query.kernel, kernel("q"))
    assign(mixer.key_value.kernel, np.concatenate([kernel("k"), kernel("v")], axis=1))
    assign(mixer.distance.kernel, kernel("r"))
    assign(mixer.output_projection.kernel, kernel("o").T)
    for ours, name in (
        (mixer.content_bias, "r_w_bias"),
        (mixer.distance_bias, "r_r_bias"),
        (mixer.segment_bias, "r_s_bias"),
    ):
        assign(ours, arrays.array(f"{theirs}/{name}")[:, None])  # (H, d) -> (H, 1, d)
    # (2, H, d) -> (H, 2, d)
    assign(mixer.segment_vectors, arrays.array(f"{theirs}/seg_embed").transpose(1, 0, 2))
    assign_norm(attention.layer_norm, arrays.norm(f"{theirs}/layer_norm"))
    assign_dense(feed_forward.sublayer.inner, [arrays.dense(f"{path}/ff/layer_1")])
    assign_dense(feed_forward.sublayer.outer, [arrays.dense(f"{path}/ff/layer_2")])
    assign_norm(feed_forward.layer_norm, arrays.norm(f"{path}/ff/layer_norm"))
