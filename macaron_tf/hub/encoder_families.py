"""Conversion rules for Hugging Face's BERT and related encoders (see `FAMILIES`)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Raw, Table, transformer_layer
from macaron_tf.hub.family import Family, TaskHead
from macaron_tf.hub.foreign_config import (
    ACTIVATIONS,
    ForeignConfig,
    rotary_fields,
    rotary_settings,
    shortest_period,
)
from macaron_tf.hub.own_layers import OWN_TABLE, own_code, own_fields, own_settings
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.tasks import (
    EncoderChooser,
    EncoderClassifier,
    EncoderSpanReader,
    EncoderTagger,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily(Family):
    """Conversion rules for one type of encoder, such as Hugging Face's "bert".

    Some encoders lack a part, such as segment embeddings. An attribute that names this part is then
    `None` or empty.

    Attributes:
        heads: mapping of weight names for the pre-training heads. A model may lack any of these
            heads, and also the pooler in `table`.
        code: function that returns a dict mapping file name to contents. An exported folder
            includes these Python files, so that transformers can load the folder with
            `trust_remote_code=True`.
        masked_class_suffix: suffix of the class name for masked language modelling, such as
            "ForMaskedLM".
        positions, segments: names of the position and the segment embeddings, whose values
            `read_encoder` may change. `table` has no entries for embeddings that are named here.
        bias: possible names of the masked language head's bias.
        head_options: constructor arguments of the masked language head that differ from the
            encoder's settings, such as `activation`.
        uses_moses: whether the tokenizer splits words by Moses' rules, as in XLM. The folder of
            such a model may lack the tokenizer files.
        padding_id: id of the padding token if `config.json` lacks the field `pad_token_id`.
        positions_from_padding: whether position embeddings start at row `pad_token_id + 1` of their
            table, as in RoBERTa.
    """

    heads: Table = dataclasses.field(default_factory=dict)
    code: Callable[[], dict[str, bytes]] = dict
    masked_class_suffix: str = "ForMaskedLM"
    positions: str = ""
    segments: str | None = None
    bias: tuple[str, ...] = ()
    head_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    uses_moses: bool = False
    padding_id: int = 0
    positions_from_padding: bool = False


def _xlm_settings(config: ForeignConfig) -> dict:
    languages = config.number("n_langs", 1)
    return {
        "activation": "gelu" if config.get("gelu_activation", True) else "relu",
        "feed_forward_dim": 4 * config.number("emb_dim", 2048),
        # A model of one language has no language embeddings.
        "num_languages": languages if languages > 1 and config.get("use_lang_emb", True) else 0,
    }


def _xlm_fields(config: EncoderConfig) -> dict:
    """Computes the XLM settings that `Family.settings` does not cover.

    The function is the inverse of `_xlm_settings`.
    """
    return {
        "gelu_activation": config.activation == "gelu",
        "n_langs": max(config.num_languages, 1),
        "use_lang_emb": config.num_languages > 0,
    }


def head_table(prefix: str, norm: str = "LayerNorm") -> Table:
    """Builds the mapping of weight names for a masked language head.

    The mapping covers the head's dense layer and norm, but not its output layer.

    Args:
        prefix: prefix that the names of the dense layer and the norm share in the other library.
        norm: name of the norm in the other library, without the prefix.
    """
    return {"masked_language/dense": f"{prefix}dense", "masked_language/norm": prefix + norm}


_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
SETTINGS = {
    "hidden_dim": ("hidden_size", 768),
    "feed_forward_dim": ("intermediate_size", 3072),
    "num_heads": ("num_attention_heads", 12),
    "num_layers": ("num_hidden_layers", 12),
    "max_length": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "epsilon": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
    "activation": ("hidden_act", "gelu", ACTIVATIONS),
}
_LAYERS = transformer_layer(
    "encoder.layer.{}.",
    [*(f"attention.self.{part}" for part in ("query", "key", "value")), "attention.output.dense"],
    "attention.output.LayerNorm",
    ["intermediate.dense", "output.dense"],
    "output.LayerNorm",
)
_LINEAR = {"head/dense": "classifier"}
_TAGGER = TaskHead("ForTokenClassification", "token-classification", _LINEAR)
_READER = TaskHead("ForQuestionAnswering", "question-answering", {"head/dense": "qa_outputs"})
_BERT = EncoderFamily(
    name="BERT",
    class_prefix="Bert",
    prefix="bert.",
    body_prefixes=("embeddings.", "encoder."),
    tokens=("embeddings.word_embeddings.weight",),
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        **_LAYERS,
        "pooler/dense": "pooler.dense",
    },
    heads={
        **head_table("cls.predictions.transform."),
        "sentence_pair/dense": "cls.seq_relationship",
    },
    tasks={
        EncoderClassifier: TaskHead(
            "ForSequenceClassification", "text-classification", _LINEAR, has_pooler=True
        ),
        EncoderChooser: TaskHead("ForMultipleChoice", "multiple-choice", _LINEAR, has_pooler=True),
        EncoderTagger: _TAGGER,
        EncoderSpanReader: _READER,
    },
    bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
    positions="embeddings.position_embeddings.weight",
    segments="embeddings.token_type_embeddings.weight",
    output_kernel="cls.predictions.decoder.weight",
    settings=SETTINGS,
    required_fields=_REQUIRED,
)
_ROBERTA = dataclasses.replace(
    _BERT,
    name="RoBERTa",
    class_prefix="Roberta",
    prefix="roberta.",
    heads=head_table("lm_head.", "layer_norm"),
    tasks={
        **_BERT.tasks,
        EncoderClassifier: TaskHead(
            "ForSequenceClassification",
            "text-classification",
            {"pooler/dense": "classifier.dense", "head/dense": "classifier.out_proj"},
        ),
    },
    bias=("lm_head.bias", "lm_head.decoder.bias"),
    head_options={"activation": "gelu"},
    output_kernel="lm_head.decoder.weight",
    padding_id=1,
    positions_from_padding=True,
)
_DISTILBERT = EncoderFamily(
    name="DistilBERT",
    class_prefix="DistilBert",
    prefix="distilbert.",
    body_prefixes=("embeddings.", "transformer."),
    tokens=("embeddings.word_embeddings.weight",),
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        **transformer_layer(
            "transformer.layer.{}.",
            [f"attention.{part}_lin" for part in ("q", "k", "v", "out")],
            "sa_layer_norm",
            ["ffn.lin1", "ffn.lin2"],
            "output_layer_norm",
        ),
    },
    heads={
        "masked_language/dense": "vocab_transform",
        "masked_language/norm": "vocab_layer_norm",
    },
    tasks={
        **{
            network_class: dataclasses.replace(
                _BERT.tasks[network_class],
                table={"pooler/dense": "pre_classifier", **_LINEAR},
                has_pooler=False,
                activation="relu",
            )
            for network_class in (EncoderClassifier, EncoderChooser)
        },
        EncoderTagger: _TAGGER,
        EncoderSpanReader: _READER,
    },
    bias=("vocab_projector.bias",),
    positions="embeddings.position_embeddings.weight",
    head_dropout="seq_classif_dropout",
    output_kernel="vocab_projector.weight",
    settings={
        "hidden_dim": ("dim", 768),
        "feed_forward_dim": ("hidden_dim", 3072),
        "num_heads": ("n_heads", 12),
        "num_layers": ("n_layers", 6),
        "max_length": ("max_position_embeddings", 512),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "initializer_range": ("initializer_range", 0.02),
        "activation": ("activation", "gelu", ACTIVATIONS),
    },
    fixed_settings={"num_segments": 0},
    required_fields={"tie_word_embeddings": True},
)
_ALBERT = dataclasses.replace(
    _BERT,
    name="ALBERT",
    class_prefix="Albert",
    prefix="albert.",
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        "encoder/projection": "encoder.embedding_hidden_mapping_in",
        **transformer_layer(
            "encoder.albert_layer_groups.0.albert_layers.0.",
            [f"attention.{part}" for part in ("query", "key", "value", "dense")],
            "attention.LayerNorm",
            ["ffn", "ffn_output"],
            "full_layer_layer_norm",
        ),
        "pooler/dense": "pooler",
    },
    heads={**head_table("predictions."), "sentence_pair/dense": "sop_classifier.classifier"},
    bias=("predictions.bias", "predictions.decoder.bias"),
    head_dropout="classifier_dropout_prob",
    output_kernel="predictions.decoder.weight",
    settings={
        **SETTINGS,
        "hidden_dim": ("hidden_size", 4096),
        "embedding_dim": ("embedding_size", 128),
        "feed_forward_dim": ("intermediate_size", 16384),
        "num_heads": ("num_attention_heads", 64),
        "dropout": ("hidden_dropout_prob", 0.0),
        "attention_dropout": ("attention_probs_dropout_prob", 0.0),
        "activation": ("hidden_act", "gelu_new", ACTIVATIONS),
    },
    fixed_settings={"sharing": "all"},
    required_fields={**_REQUIRED, "num_hidden_groups": 1, "inner_group_num": 1},
)
_ELECTRA = dataclasses.replace(
    _BERT,
    name="ELECTRA",
    class_prefix="Electra",
    prefix="electra.",
    body_prefixes=("embeddings", "encoder."),
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        "encoder/projection": "embeddings_project",
        **_LAYERS,
    },
    heads={
        **head_table("generator_predictions."),
        "replaced_token/dense": "discriminator_predictions.dense",
        "replaced_token/answer": "discriminator_predictions.dense_prediction",
    },
    tasks={
        EncoderClassifier: dataclasses.replace(
            _ROBERTA.tasks[EncoderClassifier], activation="gelu"
        ),
        EncoderChooser: TaskHead(
            "ForMultipleChoice",
            "multiple-choice",
            {"pooler/dense": "sequence_summary.summary", "head/dense": "classifier"},
            activation="gelu",
            activation_field="summary_activation",
        ),
        EncoderTagger: _TAGGER,
        EncoderSpanReader: _READER,
    },
    bias=("generator_lm_head.bias",),
    head_options={"activation": "gelu"},
    output_kernel="generator_lm_head.weight",
    settings={
        **SETTINGS,
        "hidden_dim": ("hidden_size", 256),
        "embedding_dim": ("embedding_size", 128),
        "feed_forward_dim": ("intermediate_size", 1024),
        "num_heads": ("num_attention_heads", 4),
    },
)
_XLM = EncoderFamily(
    name="XLM",
    class_prefix="XLM",
    masked_class_suffix="WithLMHeadModel",
    prefix="transformer.",
    body_prefixes=("embeddings", "position_emb", "lang_emb", "layer_norm", "attentions.", "ffns."),
    tokens=("embeddings.weight",),
    table={
        "embeddings/languages": Raw("lang_embeddings.weight"),
        "embeddings/norm": "layer_norm_emb",
        **transformer_layer(
            "",
            [f"attentions.{{}}.{part}_lin" for part in ("q", "k", "v", "out")],
            "layer_norm1.{}",
            ["ffns.{}.lin1", "ffns.{}.lin2"],
            "layer_norm2.{}",
        ),
    },
    bias=("pred_layer.proj.bias",),
    head_options={"transform": False},
    positions="position_embeddings.weight",
    output_kernel="pred_layer.proj.weight",
    settings={
        "hidden_dim": ("emb_dim", 2048),
        "num_heads": ("n_heads", 16),
        "num_layers": ("n_layers", 12),
        "max_length": ("max_position_embeddings", 512),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "epsilon": ("layer_norm_eps", 1e-12),
        "initializer_range": ("init_std", 0.02),
    },
    fixed_settings={"num_segments": 0},
    derive_settings=_xlm_settings,
    derive_fields=_xlm_fields,
    tasks={
        EncoderTagger: _TAGGER,
        EncoderSpanReader: dataclasses.replace(_READER, class_suffix="ForQuestionAnsweringSimple"),
    },
    required_fields={
        "causal": False,
        "asm": False,
        "is_encoder": True,
        "tie_word_embeddings": True,
    },
    uses_moses=True,
    padding_id=2,
)
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def _modern_settings(config: ForeignConfig) -> dict[str, Any]:
    """Converts ModernBERT's settings for local attention and RoPE to a dict of macaron_tf settings.

    The fields may have the names of older or of newer transformers versions.
    """
    num_layers, global_every = (
        config.number(*names)
        for names in (("num_hidden_layers", 22), ("global_attn_every_n_layers", 3))
    )
    window = config.number("local_attention", 128)
    defaults = [_LOCAL if index % max(global_every, 1) else _GLOBAL for index in range(num_layers)]
    layer_types = config.get("layer_types") or defaults
    if len(layer_types) != num_layers or not {*layer_types} <= {_LOCAL, _GLOBAL}:
        raise UserError(
            f"{config.where} has layer_types={layer_types!r:.60}, but must list {_LOCAL} or "
            f"{_GLOBAL} for each of {num_layers} layers: correct this field"
        )
    windows = shortest_period([window if name == _LOCAL else 0 for name in layer_types])
    rope = config.get("rope_parameters") or {}
    bases = {
        layer_type: rotary_settings(config, rope.get(layer_type) or {}, field, default)
        for layer_type, field, default in (
            (_GLOBAL, "global_rope_theta", 160_000.0),
            (_LOCAL, "local_rope_theta", 10_000.0),
        )
    }
    if bases[_LOCAL]["rotary_scaling"] != bases[_GLOBAL]["rotary_scaling"]:
        raise UserError(
            f"{config.where} has different RoPE scaling for {_LOCAL} and {_GLOBAL}, but must have "
            "the same scaling in all layers: give another model"
        )
    return {
        "attention_windows": windows,
        **bases[_GLOBAL],
        "local_rotary_base": bases[_LOCAL]["rotary_base"] if any(windows) else None,
    }


def _modern_fields(config: EncoderConfig) -> dict[str, Any]:
    """Computes the ModernBERT settings that `Family.settings` does not cover.

    The function is the inverse of `_modern_settings`. The result contains older and newer field
    names.
    """
    windows = [config.layer(index)[2] for index in range(config.num_layers)]
    first, *others = shortest_period(windows)
    bases = {_GLOBAL: config.rotary_base, _LOCAL: config.local_rotary_base or config.rotary_base}
    return {
        "local_attention": next(filter(None, windows), 128),
        "layer_types": [_LOCAL if window else _GLOBAL for window in windows],
        "rope_parameters": {
            layer_type: rotary_fields(base, config.rotary_scaling)
            for layer_type, base in bases.items()
        },
        # `None` replaces transformers' defaults, which are ids of the released vocabulary.
        **dict.fromkeys(("cls_token_id", "sep_token_id")),
        # Field names of transformers before version 5.
        "global_rope_theta": bases[_GLOBAL],
        "local_rope_theta": bases[_LOCAL],
        **({} if first or not all(others) else {"global_attn_every_n_layers": 1 + len(others)}),
    }


_MODERN_BERT = EncoderFamily(
    name="ModernBERT",
    class_prefix="ModernBert",
    prefix="model.",
    body_prefixes=("embeddings.", "layers", "final_norm."),
    tokens=("embeddings.tok_embeddings.weight",),
    table={
        "embeddings/norm": "embeddings.norm",
        "stack/final_norm": "final_norm",
        **transformer_layer(
            "layers.{}.", ["attn.Wqkv", "attn.Wo"], "attn_norm", ["mlp.Wi", "mlp.Wo"], "mlp_norm"
        ),
    },
    heads=head_table("head.", "norm"),
    tasks={
        network_class: dataclasses.replace(
            _BERT.tasks[network_class],
            table={"pooler/dense": "head.dense", "pooler/norm": "head.norm", **_LINEAR},
            has_pooler=False,
            activation="gelu",
        )
        for network_class in (EncoderClassifier, EncoderChooser)
    },
    bias=("decoder.bias",),
    head_options={"activation": "gelu"},
    output_kernel="decoder.weight",
    settings={
        "hidden_dim": ("hidden_size", 768),
        "feed_forward_dim": ("intermediate_size", 1152),
        "num_heads": ("num_attention_heads", 12),
        "num_layers": ("num_hidden_layers", 22),
        "max_length": ("max_position_embeddings", 8192),
        "attention_dropout": ("attention_dropout", 0.0),
        "activation_dropout": ("mlp_dropout", 0.0),
        "epsilon": ("norm_eps", 1e-5),
        "initializer_range": ("initializer_range", 0.02),
        "activation": ("hidden_activation", "gelu", ACTIVATIONS),
    },
    fixed_settings={
        **{"num_segments": 0, "dropout": 0.0, "positions": "rotary", "use_bias": False},
        **{"norm": "pre", "norm_type": "unbiased", "first_norm": False, "gated": True},
        "scaled_outputs": True,
    },
    derive_settings=_modern_settings,
    derive_fields=_modern_fields,
    required_fields={
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
        **{"decoder_bias": True, "classifier_activation": "gelu", "tie_word_embeddings": True},
    },
    padding_id=50_283,
)
# Encoders with any block of macaron_tf, for `remote/modeling_macaron.py`.
_POOLED = {
    "table": {
        **{"pooler/dense": "pooler.dense", "pooler/norm": "pooler.norm"},
        "head/dense": "head.dense",
    },
    "activation_field": "pooler_activation",
}
_OWN = EncoderFamily(
    name="Macaron",
    class_prefix="Macaron",
    prefix="macaron.",
    body_prefixes=("embeddings.", "projection.", "stack."),
    tokens=("embeddings.tokens.weight",),
    table=OWN_TABLE,
    heads={
        "masked_language/dense": "masked_language.dense",
        "masked_language/norm": "masked_language.norm",
    },
    tasks={
        EncoderClassifier: TaskHead("ForSequenceClassification", "text-classification", **_POOLED),
        EncoderChooser: TaskHead("ForMultipleChoice", "multiple-choice", **_POOLED),
        EncoderTagger: TaskHead(
            "ForTokenClassification", "token-classification", {"head/dense": "head.dense"}
        ),
        EncoderSpanReader: TaskHead(
            "ForQuestionAnswering", "question-answering", {"head/dense": "head.dense"}
        ),
    },
    code=own_code,
    bias=("masked_language.bias",),
    positions="embeddings.positions.weight",
    derive_settings=own_settings,
    derive_fields=own_fields,
)
# Dict mapping Hugging Face's `model_type` to the family.
FAMILIES: Mapping[str, EncoderFamily] = {
    "bert": _BERT,
    "distilbert": _DISTILBERT,
    "roberta": _ROBERTA,
    "xlm-roberta": dataclasses.replace(_ROBERTA, name="XLM-R", class_prefix="XLMRoberta"),
    "albert": _ALBERT,
    "electra": _ELECTRA,
    "xlm": _XLM,
    "modernbert": _MODERN_BERT,
    "macaron": _OWN,
}
