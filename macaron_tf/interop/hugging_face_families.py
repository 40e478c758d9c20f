"""Hugging Face's encoder families: where each keeps its settings and its weights."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from macaron_tf.interop.encoder_weights import EncoderPaths
from macaron_tf.interop.hugging_face import ACTIVATIONS, read_choice, read_number


@dataclasses.dataclass(frozen=True)
class HeadPaths:
    """The head over masked tokens.

    Attributes:
        bias: names of its bias, one of which there is.
        output: of its output layer, which is the tokens' table.
        dense, norm: of its transformation; None where it has none.
        options: of our head, where they are not the encoder's.
    """

    bias: tuple[str, ...]
    output: str
    dense: str | None = None
    norm: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Family:
    """One `model_type`.

    Attributes:
        name: of such models.
        prefix: before the encoder's weights where there is a head.
        body: what the names of the encoder's own weights begin with.
        paths: of the encoder; of a projection and of languages where the settings ask for them.
        settings: ours, by their names, with their configuration's default: `save_pretrained` once
            left those out.
        derived: further settings of ours, from theirs and the name of their file.
        required: settings that our encoder has no place for when they are otherwise.
        masked_language: the head over masked tokens.
        pooler, sentence_pair: linear layers; None where the family has none.
        replaced_token: the two linear layers of a discriminator.
        tokenizer: whether a vocabulary of ours cuts text as theirs does.
        padding: their padding's id where the configuration does not say.
        positions_from_padding: whether the first position is the one after the padding's id.
    """

    name: str
    prefix: str
    body: tuple[str, ...]
    paths: EncoderPaths
    settings: Mapping[str, tuple[str, int | float]]
    derived: Callable[[Mapping[str, Any], str], dict]
    required: Mapping[str, Any]
    masked_language: HeadPaths
    pooler: str | None = None
    sentence_pair: str | None = None
    replaced_token: tuple[str, str] | None = None
    tokenizer: bool = True
    padding: int = 0
    positions_from_padding: bool = False


def _activation(default: str, **fixed) -> Callable[[Mapping[str, Any], str], dict]:
    def derived(config: Mapping[str, Any], where: str) -> dict:
        name = read_choice(config, "hidden_act", ACTIVATIONS, where, default)
        return {"activation": name, **fixed}

    return derived


def _xlm(config: Mapping[str, Any], where: str) -> dict:
    languages = read_number(config, "n_langs", int, where, 1)
    return {
        "activation": "gelu" if config.get("gelu_activation", True) else "relu",
        "feed_forward_dim": 4 * read_number(config, "emb_dim", int, where, 2048),
        # Of one language there is no table.
        "num_languages": languages if languages > 1 and config.get("use_lang_emb", True) else 0,
        "num_segments": 0,
    }


_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_PATHS = EncoderPaths(
    tokens="embeddings/word_embeddings/weight",
    positions="embeddings/position_embeddings/weight",
    segments="embeddings/token_type_embeddings/weight",
    norm="embeddings/LayerNorm",
    layer="encoder/layer/{}",
    query="attention/self/query",
    key="attention/self/key",
    value="attention/self/value",
    output="attention/output/dense",
    inner="intermediate/dense",
    outer="output/dense",
    attention_norm="attention/output/LayerNorm",
    feed_forward_norm="output/LayerNorm",
)
_SETTINGS = {
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
}
_BERT = Family(
    name="BERT",
    prefix="bert.",
    body=("embeddings.", "encoder."),
    paths=_PATHS,
    settings=_SETTINGS,
    derived=_activation("gelu"),
    required=_REQUIRED,
    masked_language=HeadPaths(
        bias=("cls/predictions/bias", "cls/predictions/decoder/bias"),
        output="cls/predictions/decoder/weight",
        dense="cls/predictions/transform/dense",
        norm="cls/predictions/transform/LayerNorm",
    ),
    pooler="pooler/dense",
    sentence_pair="cls/seq_relationship",
)
_ROBERTA = dataclasses.replace(
    _BERT,
    name="RoBERTa",
    prefix="roberta.",
    masked_language=HeadPaths(
        bias=("lm_head/bias", "lm_head/decoder/bias"),
        output="lm_head/decoder/weight",
        dense="lm_head/dense",
        norm="lm_head/layer_norm",
        options={"activation": "gelu"},
    ),
    sentence_pair=None,
    padding=1,
    positions_from_padding=True,
)
_ALBERT = dataclasses.replace(
    _BERT,
    name="ALBERT",
    prefix="albert.",
    paths=dataclasses.replace(
        _PATHS,
        projection="encoder/embedding_hidden_mapping_in",
        layer="encoder/albert_layer_groups/0/albert_layers/0",
        query="attention/query",
        key="attention/key",
        value="attention/value",
        output="attention/dense",
        inner="ffn",
        outer="ffn_output",
        attention_norm="attention/LayerNorm",
        feed_forward_norm="full_layer_layer_norm",
    ),
    settings={
        **_SETTINGS,
        "hidden_dim": ("hidden_size", 4096),
        "embedding_dim": ("embedding_size", 128),
        "feed_forward_dim": ("intermediate_size", 16384),
        "num_heads": ("num_attention_heads", 64),
        "dropout": ("hidden_dropout_prob", 0.0),
        "attention_dropout": ("attention_probs_dropout_prob", 0.0),
    },
    derived=_activation("gelu_new", sharing="all"),
    required={**_REQUIRED, "num_hidden_groups": 1, "inner_group_num": 1},
    masked_language=HeadPaths(
        bias=("predictions/bias", "predictions/decoder/bias"),
        output="predictions/decoder/weight",
        dense="predictions/dense",
        norm="predictions/LayerNorm",
    ),
    pooler="pooler",
    sentence_pair="sop_classifier/classifier",
)
_ELECTRA = dataclasses.replace(
    _BERT,
    name="ELECTRA",
    prefix="electra.",
    body=("embeddings", "encoder."),
    paths=dataclasses.replace(_PATHS, projection="embeddings_project"),
    settings={
        **_SETTINGS,
        "hidden_dim": ("hidden_size", 256),
        "embedding_dim": ("embedding_size", 128),
        "feed_forward_dim": ("intermediate_size", 1024),
        "num_heads": ("num_attention_heads", 4),
    },
    masked_language=HeadPaths(
        bias=("generator_lm_head/bias",),
        output="generator_lm_head/weight",
        dense="generator_predictions/dense",
        norm="generator_predictions/LayerNorm",
        options={"activation": "gelu"},
    ),
    pooler=None,
    sentence_pair=None,
    replaced_token=(
        "discriminator_predictions/dense",
        "discriminator_predictions/dense_prediction",
    ),
)
_XLM = Family(
    name="XLM",
    prefix="transformer.",
    body=("embeddings", "position_emb", "lang_emb", "layer_norm", "attentions.", "ffns."),
    paths=EncoderPaths(
        tokens="embeddings/weight",
        positions="position_embeddings/weight",
        segments=None,
        languages="lang_embeddings/weight",
        norm="layer_norm_emb",
        layer="",
        query="attentions/{}/q_lin",
        key="attentions/{}/k_lin",
        value="attentions/{}/v_lin",
        output="attentions/{}/out_lin",
        inner="ffns/{}/lin1",
        outer="ffns/{}/lin2",
        attention_norm="layer_norm1/{}",
        feed_forward_norm="layer_norm2/{}",
    ),
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
    derived=_xlm,
    required={"causal": False, "asm": False, "is_encoder": True, "tie_word_embeddings": True},
    masked_language=HeadPaths(
        bias=("pred_layer/proj/bias",),
        output="pred_layer/proj/weight",
        options={"transform": False},
    ),
    # Moses' rules for each language and a segmenter for some go before its merges.
    tokenizer=False,
    padding=2,
)
# By model_type.
FAMILIES: Mapping[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": dataclasses.replace(_ROBERTA, name="XLM-R"),
    "albert": _ALBERT,
    "electra": _ELECTRA,
    "xlm": _XLM,
}
