"""Readers for Hugging Face's GPT, GPT-2, Llama and XLNet.

Transformer-XL is not supported, because transformers no longer contains Transformer-XL.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

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
    transformer_layer,
)
from macaron_tf.hub.family import Family, TaskHead, build_model, missing_head
from macaron_tf.hub.foreign_config import (
    ACTIVATIONS,
    ForeignConfig,
    ends_of,
    id_tuple,
    rotary_fields,
    rotary_settings,
)
from macaron_tf.hub.heads import ReadHead, find_head
from macaron_tf.hub.tokenizers.reading import read_language_vocabulary, read_vocabulary
from macaron_tf.layers.heads import Pooler
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.models.segment_memory import TwoStreamModel
from macaron_tf.models.tasks import (
    CausalClassifier,
    EncoderChooser,
    EncoderClassifier,
    EncoderSpanReader,
    EncoderTagger,
)
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.base import Special


def _gpt2_settings(config: ForeignConfig) -> dict:
    if config.get("n_inner") is not None:
        return {"feed_forward_dim": config.number("n_inner")}
    return {"feed_forward_dim": 4 * config.number("n_embd", 768)}


_LAYERS = transformer_layer(
    "h.{}.", ["attn.c_attn", "attn.c_proj"], "ln_1", ["mlp.c_fc", "mlp.c_proj"], "ln_2"
)
# In GPT, "gelu" means the tanh approximation.
_GPT_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
_CAUSAL = {"causal": True, "num_segments": 0, "embedding_norm": False, "output_bias": True}
_SCORE = Raw("score.weight", transform=np.transpose, inverse=np.transpose)
_GPT2 = Family(
    name="GPT-2",
    class_prefix="GPT2",
    tokens=("wte.weight",),
    table={"embeddings/positions": "wpe", "stack/final_norm": "ln_f", **_LAYERS},
    settings={
        "hidden_dim": ("n_embd", 768),
        "num_heads": ("n_head", 12),
        "num_layers": ("n_layer", 12),
        "max_length": ("n_positions", 1024),
        "dropout": ("resid_pdrop", 0.1),
        "attention_dropout": ("attn_pdrop", 0.1),
        "epsilon": ("layer_norm_epsilon", 1e-5),
        "initializer_range": ("initializer_range", 0.02),
        "activation": ("activation_function", "gelu_new", ACTIVATIONS),
    },
    fixed_settings={**_CAUSAL, "norm": "pre", "scaled_outputs": True},
    derive_settings=_gpt2_settings,
    derive_fields=lambda config: {"n_inner": config.feed_forward_dim},
    required_fields={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    prefix="transformer.",
    # The kernel of Conv1D is (inputs, outputs), with queries, keys and values concatenated.
    transpose_kernels=False,
    output_kernel="lm_head.weight",
    body_prefixes=("h.",),
    # Some versions also save two buffers: the causal mask and the score of masked positions.
    ignored_suffixes=(".attn.bias", ".attn.masked_bias"),
    # The head has no bias.
    tasks={
        CausalClassifier: TaskHead(
            "ForSequenceClassification", "text-classification", {"head/dense/kernel": _SCORE}
        )
    },
)


def _llama_settings(config: ForeignConfig) -> dict[str, Any]:
    """Converts Llama's settings for RoPE, attention heads and tied embeddings.

    The fields for RoPE may have the names of older or of newer transformers versions. The result is
    a dict of macaron_tf settings.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {
        **rotary_settings(config, rope, "rope_theta", 10_000.0),
        "num_kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "tied": bool(config.get("tie_word_embeddings", False)),
    }


def _llama_fields(config: EncoderConfig) -> dict[str, Any]:
    """Computes the Llama settings that `Family.settings` does not cover.

    The function is the inverse of `_llama_settings`.
    """
    return {
        "rope_theta": config.rotary_base,
        "rope_parameters": rotary_fields(config.rotary_base, config.rotary_scaling),
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "head_dim": config.head_dim or config.hidden_dim // config.num_heads,
        "tie_word_embeddings": config.tied,
    }


_LLAMA = Family(
    name="Llama",
    class_prefix="Llama",
    tokens=("embed_tokens.weight",),
    table={
        "stack/final_norm": "norm",
        **transformer_layer(
            "layers.{}.",
            [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")],
            "input_layernorm",
            [f"mlp.{name}_proj" for name in ("gate", "up", "down")],
            "post_attention_layernorm",
        ),
    },
    settings={
        "hidden_dim": ("hidden_size", 4096),
        "feed_forward_dim": ("intermediate_size", 11_008),
        "num_heads": ("num_attention_heads", 32),
        "num_layers": ("num_hidden_layers", 32),
        "max_length": ("max_position_embeddings", 2048),
        "attention_dropout": ("attention_dropout", 0.0),
        "epsilon": ("rms_norm_eps", 1e-6),
        "initializer_range": ("initializer_range", 0.02),
        "activation": ("hidden_act", "silu", {"silu": "silu", **ACTIVATIONS}),
    },
    fixed_settings={
        **_CAUSAL,
        **{"norm": "pre", "norm_type": "rms", "positions": "rotary", "gated": True},
        **{"use_bias": False, "dropout": 0.0},
    },
    derive_settings=_llama_settings,
    derive_fields=_llama_fields,
    required_fields={"attention_bias": False, "mlp_bias": False},
    prefix="model.",
    output_kernel="lm_head.weight",
    body_prefixes=("layers.",),
    ignored_suffixes=(".rotary_emb.inv_freq",),  # a buffer that early versions saved
    tasks=_GPT2.tasks,
)
# Dict mapping Hugging Face's `model_type` to the family.
LANGUAGE_FAMILIES: Mapping[str, Family] = {
    "openai-gpt": dataclasses.replace(
        _GPT2,
        name="GPT",
        class_prefix="OpenAIGPT",
        tokens=("tokens_embed.weight",),
        table={"embeddings/positions": "positions_embed", **_LAYERS},
        settings={**_GPT2.settings, "activation": ("afn", "gelu", _GPT_ACTIVATIONS)},
        fixed_settings={**_CAUSAL, "norm": "post"},
        derive_fields=lambda config: {},  # the feed-forward layer is always four times as wide
        starts=False,
    ),
    "gpt2": _GPT2,
    "llama": _LLAMA,
}


def read_language_model(directory: str | pathlib.Path) -> Pretrained:
    """Reads a Hugging Face GPT, GPT-2 or Llama, or a classifier based on such a model.

    [CLS] begins a text, and [SEP] ends a text. In GPT-2, both are the end-of-text token. A special
    token that the Hugging Face model lacks has an id after all tokens, and the result never
    predicts it. For example, OpenAI's GPT has only UNK. If the tokenizer of a Llama cannot be read,
    the function reads the model without a vocabulary and prints a note on stderr.

    Args:
        directory: folder with `config.json`, with `model.safetensors` or `pytorch_model.bin`, and
            with a tokenizer: `tokenizer.json`, or `vocab.json` and `merges.txt`, or
            `tokenizer.model` for Llama 2. A GPT or Llama may lack the tokenizer.

    Raises:
        UserError: a file is missing or damaged, the package that reads the weights (safetensors or
            PyTorch) is not installed, or macaron_tf has no counterpart for a layer or setting of
            the model.
    """
    directory = pathlib.Path(directory)
    config = ForeignConfig.of_directory(directory, LANGUAGE_FAMILIES)
    family = LANGUAGE_FAMILIES[config.get("model_type")]
    settings, arrays = family.read_settings(config), family.arrays(read_state(directory))
    tokens = arrays.array(*family.tokens)  # (V', D)
    ends = [*id_tuple(config.get("eos_token_id")), len(tokens) + 1]
    start = config.get("bos_token_id") or ends[0]
    special = Special(len(tokens), None, start, ends[0], rows=len(tokens))
    vocabulary = None
    names = ("vocab.json", "tokenizer.json", "tokenizer.model")
    has_tokenizer = any((directory / name).is_file() for name in names)
    starts = family.starts and family is not _LLAMA
    if has_tokenizer or family is _GPT2:
        try:
            vocabulary, starts = read_language_vocabulary(directory, family.starts)
        except UserError as error:
            if family is not _LLAMA:
                raise
            print(
                f"note: the model is read without its tokenizer, because {error}", file=sys.stderr
            )
    family = dataclasses.replace(family, starts=starts)
    # A model that macaron_tf exported has special tokens around a text, the last of them [MASK].
    has_special = vocabulary is not None and vocabulary.special.mask < vocabulary.pieces
    head = find_head(family, config, arrays, settings, has_special)
    model = import_language_model(arrays, family, settings, vocabulary, special, head)
    missing = "" if head else missing_head(config, model.unread) or model.missing_head
    generation = {} if head else config.generation(directory)
    fields = {"generation": generation, "ends": ends_of(generation, model.special)}
    return dataclasses.replace(model, missing_head=missing, **fields)


def import_language_model(
    arrays: Arrays,
    family: Family,
    settings: Mapping[str, Any],
    vocabulary: PieceVocabulary | None,
    special: Special | None = None,
    task_head: ReadHead | None = None,
) -> Pretrained:
    """Converts another library's language model to a macaron_tf model.

    Args:
        arrays: weights of the model.
        family: conversion rules for the model.
        settings: fields of an `EncoderConfig` except `vocab_size`.
        vocabulary: vocabulary of the model, or `None` if the model was read without a vocabulary.
        special: ids of the special tokens if there is no vocabulary.
        task_head: task head of a fine-tuned model. `None` means that the model is converted with
            its output layer instead.

    Raises:
        UserError: an array is missing or has a wrong shape, the vocabulary is larger than the
            embedding table, or macaron_tf has no counterpart for a weight or setting.
    """
    tokens = arrays.array(*family.tokens)  # (V', D)
    if vocabulary is not None:
        check_pieces(vocabulary, tokens)
        special = vocabulary.special
    size = special.size
    # GPT-2's logits of tokens are far below 0, which would be the logit of an unused row.
    bias = padded_rows(size, UNUSED_TOKEN_BIAS)(np.zeros(len(tokens), "float32"))
    table = {
        **family.table,
        "tokens/table": padded_rows(size)(tokens),
        "language_head/bias": bias,
    }
    head = task_head or ReadHead(LanguageModel, {}, TaskHead("", "", {}), {})
    fields, random_layers = head.fields, ()
    if not settings.get("tied", True):
        table["output_table/table"] = Raw(family.output_kernel, transform=padded_rows(size))
        if not arrays.has(family.output_kernel):
            random_layers = ("output_table",)
            fields = {"missing_head": "" if task_head else family.output_kernel, **fields}
        family = dataclasses.replace(family, output_kernel="")
    if task_head:
        bias = np.zeros(head.options["num_classes"], "float32")
        table |= {**head.head.table, "head/dense/bias": bias}
    settings = {**settings, "vocab_size": size, "pad_id": special.pad}
    network = build_model(head.network_class, settings, **head.options)
    assign_weights(network, arrays, table, random_layers)
    unread = family.check_unread(arrays)
    model = "llama_base" if family.name == _LLAMA.name else "gpt2_base"
    fields = {"starts": family.starts, "unread": unread, **fields}
    return Pretrained(network, model, None, vocabulary, special, **fields)


_XLNET_PADDING = 5  # if config.json does not say
_XLNET_SUMMARY = "sequence_summary.summary"  # the counterpart of BERT's pooler


def _per_head(name: str) -> Raw:
    return Raw(
        f"layer.{{}}.rel_attn.{name}",
        transform=lambda bias: bias[:, None],  # (H, d) -> (H, 1, d)
        inverse=lambda bias: bias[:, 0],
    )


def _flattened_heads(*names: str, heads: int, transposed: bool = False) -> Raw:
    """Builds a `Raw` that reshapes XLNet's attention kernels from `(D, H, d)` to `(D, H d)`.

    Args:
        names: names of the kernels in XLNet's attention layer, such as "q".
        heads: H, the number of heads. Only an export uses `heads`.
        transposed: whether to also transpose the result to `(H d, D)`.
    """

    def flat(kernel: np.ndarray) -> np.ndarray:
        kernel = kernel.reshape(len(kernel), -1)  # (D, H, d) -> (D, H d)
        return kernel.T if transposed else kernel

    def split(kernel: np.ndarray) -> np.ndarray:
        kernel = kernel.T if transposed else kernel
        return kernel.reshape(len(kernel), heads, -1)  # (D, H d) -> (D, H, d)

    arrays = (f"layer.{{}}.rel_attn.{name}" for name in names)
    return Raw(*arrays, transform=flat, inverse=split)


def _swap_axes(vectors: np.ndarray) -> np.ndarray:
    return vectors.transpose(1, 0, 2)  # (2, H, d) -> (H, 2, d), and back


def xlnet_attention(heads: int) -> Table:
    """Builds the mapping of weight names for XLNet's attention.

    `heads` is the number of heads. Only an export uses `heads`.
    """
    return {
        "attention/query/kernel": _flattened_heads("q", heads=heads),
        "attention/key_value/kernel": _flattened_heads("k", "v", heads=heads),
        "attention/distance/kernel": _flattened_heads("r", heads=heads),
        "attention/output/kernel": _flattened_heads("o", heads=heads, transposed=True),
        "attention/content_bias": _per_head("r_w_bias"),
        "attention/distance_bias": _per_head("r_r_bias"),
        "attention/segment_bias": _per_head("r_s_bias"),
        "attention/segment_vectors": Raw(
            "layer.{}.rel_attn.seg_embed", transform=_swap_axes, inverse=_swap_axes
        ),
    }


_XLNET_POOLED = {"pooler/dense": _XLNET_SUMMARY, "head/dense": "logits_proj"}
_XLNET_SUMMARIZED = {"table": _XLNET_POOLED, "activation_field": "summary_activation"}
XLNET = Family(
    name="XLNet",
    class_prefix="XLNet",
    tokens=("word_embedding.weight",),
    table={
        "query_vector": Raw("mask_emb", transform=np.ravel),
        **xlnet_attention(1),  # reading does not depend on the number of heads
        "attention_0/norm": "layer.{}.rel_attn.layer_norm",
        "feed_forward/inner": "layer.{}.ff.layer_1",
        "feed_forward/outer": "layer.{}.ff.layer_2",
        "feed_forward_1/norm": "layer.{}.ff.layer_norm",
        "pooler/dense": _XLNET_SUMMARY,
    },
    settings={
        "hidden_dim": ("d_model", 1024),
        "feed_forward_dim": ("d_inner", 4096),
        "num_heads": ("n_head", 16),
        "num_layers": ("n_layer", 24),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("dropout", 0.1),
        "activation_dropout": ("dropout", 0.1),
        "epsilon": ("layer_norm_eps", 1e-12),
        "initializer_range": ("initializer_range", 0.02),
        "activation": ("ff_activation", "gelu", ACTIVATIONS),
    },
    fixed_settings={"positions": "transformer_xl", "embedding_norm": False},
    derive_settings=lambda config: {
        "clamp_length": max(config.number("clamp_len", -1), 0) or None,
        "summary": "first" if config.get("summary_type") == "first" else "last",
    },
    derive_fields=lambda config: {
        "clamp_len": config.clamp_length or -1,
        "summary_type": config.summary,
    },
    required_fields={
        "attn_type": "bi",
        "bi_data": False,
        "same_length": False,
        "untie_r": True,
        "tie_word_embeddings": True,
    },
    prefix="transformer.",
    output_kernel="lm_loss.weight",
    body_prefixes=("layer.",),
    tasks={
        EncoderClassifier: TaskHead(
            "ForSequenceClassification", "text-classification", **_XLNET_SUMMARIZED
        ),
        EncoderChooser: TaskHead("ForMultipleChoice", "multiple-choice", **_XLNET_SUMMARIZED),
        EncoderTagger: TaskHead(
            "ForTokenClassification", "token-classification", {"head/dense": "classifier"}
        ),
        EncoderSpanReader: TaskHead(
            "ForQuestionAnsweringSimple", "question-answering", {"head/dense": "qa_outputs"}
        ),
    },
    head_dropout="summary_last_dropout",
)


def read_xlnet(directory: str | pathlib.Path) -> Pretrained:
    """Reads a Hugging Face XLNet, with its language-model head or its task head if there is one.

    If there is neither head, the result has a language-model head with random weights. [CLS] is the
    last token of a sequence. The pooler of a classifier reads the output at [CLS], or at the first
    position if `config.json` has `summary_type="first"`.

    Args:
        directory: folder with `config.json`, with `model.safetensors` or `pytorch_model.bin`, and
            optionally with a tokenizer: `spiece.model` or `tokenizer.json`.

    Raises:
        UserError: a file is missing or damaged, the package that reads the weights (safetensors or
            PyTorch) is not installed, the tokenizer does not belong to the model, or macaron_tf has
            no counterpart for a layer or setting of the model.
    """
    directory = pathlib.Path(directory)
    config = ForeignConfig.of_directory(directory, ("xlnet",))
    settings, arrays = XLNET.read_settings(config), XLNET.arrays(read_state(directory))
    tokens = arrays.array(*XLNET.tokens)  # (V', D)
    special = Special(config.number("pad_token_id", _XLNET_PADDING), rows=len(tokens))
    vocabulary = None
    if any((directory / name).is_file() for name in ("spiece.model", "tokenizer.json")):
        vocabulary = read_vocabulary(directory)
        check_pieces(vocabulary, tokens)
        if vocabulary.special.pad != special.pad:
            raise UserError(
                f"the tokenizer in {directory} does not fit the model, because the padding token "
                f"has id {vocabulary.special.pad} instead of {special.pad}: use the tokenizer "
                "files that belong to the model"
            )
        special = vocabulary.special
    size = special.size
    table = {
        **XLNET.table,
        "tokens/table": padded_rows(size)(tokens),
        "language_head/bias": Raw("lm_loss.bias", transform=padded_rows(size, UNUSED_TOKEN_BIAS)),
    }
    settings |= {"vocab_size": size, "pad_id": special.pad}
    if task_head := find_head(XLNET, config, arrays, settings):
        if config.get("summary_type") != "first":
            config.require({"summary_type": "last"})
        network = build_model(task_head.network_class, settings, **task_head.options)
        assign_weights(network, arrays, {**table, **task_head.head.table})
        unread = XLNET.check_unread(arrays)
        fields = {"unread": unread, **task_head.fields}
        return Pretrained(network, "xlnet_base", None, vocabulary, special, **fields)
    memory_length = config.get("mem_len") or 384  # number of positions; some files lack the field
    network = build_model(TwoStreamModel, settings, memory_length)
    has_head = arrays.has("lm_loss.bias")
    assign_weights(network, arrays, table, random_layers=() if has_head else ("language_head",))
    pooler = None
    if config.get("summary_type", "last") == "last" and arrays.has_layer(_XLNET_SUMMARY):
        pooler = Pooler(name="pooler")
        pooler.build((None, None, network.config.hidden_dim))
        assign_weights(pooler, arrays, table)
    unread = XLNET.check_unread(arrays)
    objective = "permutation_language" if has_head else None
    fields = {"has_masked_language": has_head, "missing_head": missing_head(config, unread)}
    fields |= {"unread": unread, "pooler": pooler}
    return Pretrained(network, "xlnet_base", objective, vocabulary, special, **fields)
