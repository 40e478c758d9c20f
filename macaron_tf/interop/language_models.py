"""GPT, GPT-2 and XLNet of Hugging Face.

Its releases have no Transformer-XL any more (5.23 has XLNet alone), so none is read.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import (
    ACTIVATIONS,
    UNUSED_TOKEN_BIAS,
    ForeignConfig,
    Raw,
    Table,
    TorchArrays,
    assign_weights,
    built,
    check_output,
    check_rows,
    check_unread,
    read_state,
    rows,
    transformer_layer,
)
from macaron_tf.interop.vocabularies import (
    read_gpt2_vocabulary,
    read_gpt_vocabulary,
    read_vocabulary,
)
from macaron_tf.layers.heads import Pooler
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.models.two_stream import TwoStreamModel
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.byte_pairs import CLS, SPECIAL


@dataclasses.dataclass(frozen=True)
class LanguageFamily:
    """The language models of one `model_type`.

    Attributes:
        name: of such models.
        tokens: the array of token embeddings.
        table: of the parts before and behind the blocks.
        activation: the setting that names it, and its default; activations: ours, by their names.
        settings: ours, the same in all such models.
        read_vocabulary: reads the tokenizer of a directory, see `read_gpt2_vocabulary`.
        starts: whether a text begins behind a token of its own.
    """

    name: str
    tokens: str
    table: Table
    activation: tuple[str, str]
    activations: Mapping[str, str]
    settings: Mapping[str, Any]
    read_vocabulary: Callable[[pathlib.Path], tuple[PieceVocabulary, np.ndarray]]
    starts: bool


# By model_type.
LANGUAGE_FAMILIES: Mapping[str, LanguageFamily] = {
    "openai-gpt": LanguageFamily(
        name="GPT",
        tokens="tokens_embed.weight",
        table={"embeddings/positions": "positions_embed"},
        activation=("afn", "gelu"),
        # GPT's "gelu" is the tanh form.
        activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
        settings={"norm": "post"},
        read_vocabulary=read_gpt_vocabulary,
        starts=False,
    ),
    "gpt2": LanguageFamily(
        name="GPT-2",
        tokens="wte.weight",
        table={"embeddings/positions": "wpe", "stack/final_norm": "ln_f"},
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
    "max_length": ("n_positions", 1024),
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
_LAYERS = transformer_layer(
    "h.{}.", ["attn.c_attn", "attn.c_proj"], "ln_1", ["mlp.c_fc", "mlp.c_proj"], "ln_2"
)
# Kept beside the weights by some versions: the causal mask, and the score of hidden positions.
_BUFFERS = (".attn.bias", ".attn.masked_bias")


def read_language_model(directory: str | pathlib.Path) -> Pretrained:
    """Reads a GPT or GPT-2 as `save_pretrained` writes it.

    The first five of our ids are the special ones. GPT-2's end of a text is our [SEP], and our
    [CLS], before a text, is embedded as it is too; GPT has neither. Ids that are not theirs are
    never predicted.

    Args:
        directory: holds `config.json`, `model.safetensors` or `pytorch_model.bin` (see
            `read_encoder`), and `vocab.json` and `merges.txt` or `tokenizer.json`; a GPT may lack
            these.

    Raises:
        UserError: a file is missing or damaged, or the model has a part that ours does not have.
    """
    directory = pathlib.Path(directory)
    config = ForeignConfig.of_directory(directory, LANGUAGE_FAMILIES)
    family = LANGUAGE_FAMILIES[config.get("model_type")]
    config.require(_REQUIRED)
    settings = config.numbers(_SETTINGS)
    inner = 4 * settings["hidden_dim"]
    if config.get("n_inner") is not None:
        inner = config.number("n_inner")
    field, default = family.activation
    # Conv1D keeps its kernel as (inputs, outputs), and queries, keys and values side by side.
    arrays = TorchArrays(read_state(directory), "transformer.", linear=False)
    tokens = arrays.array(family.tokens)  # (V', D)
    vocabulary = None
    if family.starts or any((directory / n).is_file() for n in ("vocab.json", "tokenizer.json")):
        vocabulary, ids = family.read_vocabulary(directory)
    else:
        ids = np.concatenate([np.full(SPECIAL, -1), np.arange(len(tokens))])
    check_rows(ids, len(tokens))
    size = -(-len(ids) // 8) * 8
    # An empty row's score, 0, would be far above GPT-2's of any word.
    bias = np.full(size, UNUSED_TOKEN_BIAS, "float32")
    bias[np.flatnonzero(ids >= 0)] = 0.0
    bias[CLS] = UNUSED_TOKEN_BIAS  # the end of a text is [SEP]
    network = built(
        LanguageModel,
        {
            **settings,
            "vocab_size": size,
            "feed_forward_dim": inner,
            "activation": config.choice(field, family.activations, default),
            "causal": True,
            "num_segments": 0,
            "embedding_norm": False,
            "output_bias": True,
            **family.settings,
        },
    )
    table = {
        "tokens/table": Raw(family.tokens, transform=rows(ids, size)),
        "language_head/bias": bias,
        **family.table,
        **_LAYERS,
    }
    assign_weights(network, arrays, table)
    check_output(arrays, "lm_head.weight", tokens, family.name)
    unread = check_unread(arrays, ("h.",), family.name, _BUFFERS)
    return Pretrained(
        network, "gpt2_base", "causal_language", vocabulary, ids, unread, starts=family.starts
    )


# XLNet's ids of padding, unknown, [CLS], [SEP] and [MASK], in our order.
_XLNET_SPECIAL = (5, 0, 3, 4, 6)
_XLNET_SUMMARY = "sequence_summary.summary"  # the counterpart of BERT's pooler
_XLNET_SETTINGS = {
    "hidden_dim": ("d_model", 1024),
    "feed_forward_dim": ("d_inner", 4096),
    "num_heads": ("n_head", 16),
    "num_layers": ("n_layer", 24),
    "dropout": ("dropout", 0.1),
    "epsilon": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
_XLNET_REQUIRED = {
    "attn_type": "bi",
    "bi_data": False,
    "same_length": False,
    "untie_r": True,
    "tie_word_embeddings": True,
    "pad_token_id": _XLNET_SPECIAL[0],
}


def _xlnet_layer(part: str) -> str:
    return f"layer.{{}}.rel_attn.{part}"


def _flat(kernel: np.ndarray) -> np.ndarray:
    return kernel.reshape(len(kernel), -1)  # (D, H, d) -> (D, H d)


def _per_head(bias: np.ndarray) -> np.ndarray:
    return bias[:, None]  # (H, d) -> (H, 1, d)


_XLNET_TABLE = {
    "query_vector": Raw("mask_emb", transform=np.ravel),
    "attention/query/kernel": Raw(_xlnet_layer("q"), transform=_flat),
    "attention/key_value/kernel": Raw(_xlnet_layer("k"), _xlnet_layer("v"), transform=_flat),
    "attention/distance/kernel": Raw(_xlnet_layer("r"), transform=_flat),
    "attention/output/kernel": Raw(_xlnet_layer("o"), transform=lambda kernel: _flat(kernel).T),
    "attention/content_bias": Raw(_xlnet_layer("r_w_bias"), transform=_per_head),
    "attention/distance_bias": Raw(_xlnet_layer("r_r_bias"), transform=_per_head),
    "attention/segment_bias": Raw(_xlnet_layer("r_s_bias"), transform=_per_head),
    # (2, H, d) -> (H, 2, d)
    "attention/segment_vectors": Raw(
        _xlnet_layer("seg_embed"), transform=lambda vectors: vectors.transpose(1, 0, 2)
    ),
    "attention_0/norm": "layer.{}.rel_attn.layer_norm",
    "feed_forward/inner": "layer.{}.ff.layer_1",
    "feed_forward/outer": "layer.{}.ff.layer_2",
    "feed_forward_1/norm": "layer.{}.ff.layer_norm",
}


def read_xlnet(directory: str | pathlib.Path, memory_length: int | None = None) -> Pretrained:
    """Reads an XLNet as `save_pretrained` writes it, with its head over tokens if there is one.

    Its vocabulary's rows end with [CLS], and its pooler, a classifier's, reads that [CLS].

    Args:
        directory: holds `config.json`, `model.safetensors` or `pytorch_model.bin` and, for text,
            `spiece.model` or `tokenizer.json`.
        memory_length: M of the model; None = their `mem_len`, or 384 where there is none.

    Raises:
        UserError: a file is missing or damaged, or the model has a part that ours does not have.
    """
    directory = pathlib.Path(directory)
    config = ForeignConfig.of_directory(directory, ("xlnet",))
    config.require(_XLNET_REQUIRED)
    settings = config.numbers(_XLNET_SETTINGS)
    clamp = config.number("clamp_len", -1)
    activation = config.choice("ff_activation", ACTIVATIONS, "gelu")
    arrays = TorchArrays(read_state(directory), "transformer.")
    tokens = arrays.array("word_embedding.weight")  # (V', D)
    if len(tokens) <= max(_XLNET_SPECIAL):
        raise UserError(
            f"{config.where} is of {len(tokens)} tokens, fewer than XLNet's special ones."
        )
    ids = np.array([*_XLNET_SPECIAL, *np.setdiff1d(np.arange(len(tokens)), _XLNET_SPECIAL)])
    vocabulary = _xlnet_vocabulary(directory, ids)
    size = -(-len(tokens) // 8) * 8
    network = built(
        TwoStreamModel,
        {
            **settings,
            "vocab_size": size,
            "positions": "transformer_xl",
            "embedding_norm": False,
            "clamp_length": clamp if clamp > 0 else None,
            "activation": activation,
            "attention_dropout": settings["dropout"],
            "activation_dropout": settings["dropout"],
            "summary": "last",
        },
        memory_length or config.get("mem_len") or 384,
    )
    table = {
        "tokens/table": Raw("word_embedding.weight", transform=rows(ids, size)),
        "language_head/bias": Raw("lm_loss.bias", transform=rows(ids, size, UNUSED_TOKEN_BIAS)),
        **_XLNET_TABLE,
    }
    has_head = arrays.has("lm_loss.bias")
    assign_weights(network, arrays, table, drawn=() if has_head else ("language_head",))
    check_output(arrays, "lm_loss.weight", tokens, "XLNet")
    pooler = None
    if config.get("summary_type", "last") == "last" and arrays.has_layer(_XLNET_SUMMARY):
        pooler = Pooler(network.config.initializer_range, name="pooler")
        pooler.build((None, None, network.config.hidden_dim))
        assign_weights(pooler, arrays, {"pooler/dense": _XLNET_SUMMARY})
    unread = check_unread(arrays, ("layer.",), "XLNet")
    return Pretrained(
        network,
        "xlnet_base",
        "permutation_language",
        vocabulary,
        ids,
        unread,
        pooler,
        has_masked_language=has_head,
    )


def _xlnet_vocabulary(directory: pathlib.Path, ids: np.ndarray) -> PieceVocabulary | None:
    if not any((directory / name).is_file() for name in ("spiece.model", "tokenizer.json")):
        return None
    vocabulary, found = read_vocabulary(directory)
    if found is None or not np.array_equal(found, ids):
        raise UserError(
            f"the tokenizer of {directory} has other pieces than the model's {len(ids)}, or its "
            "special ones at other ids: it is another model's vocabulary."
        )
    return vocabulary
