"""XLM: an encoder with language embeddings, whose tokenizer splits words by Moses' rules."""

from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Raw, transformer_layer
from macaron_tf.hub.config import ForeignConfig, required, sizes
from macaron_tf.hub.encoders import EncoderFamily
from macaron_tf.hub.family import ModelFolder
from macaron_tf.hub.heads import TaskHead, token_heads
from macaron_tf.hub.tokenizers.reading import read_xlm_vocabulary
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.text.byte_pairs import MosesPairVocabulary


def _xlm_settings(config: ForeignConfig) -> dict:
    languages, is_embedded = config.number("n_langs", 1), config.get("use_lang_emb", True)
    return {
        "feed_forward_dim": 4 * config.number("emb_dim", 2048),
        # A model of one language has no language embeddings.
        "num_languages": languages if languages > 1 and is_embedded else 0,
    }


def _xlm_fields(config: EncoderConfig) -> dict:
    """Computes XLM's fields that `Family.settings` lacks (the inverse of `_xlm_settings`)."""
    languages = config.num_languages
    return {"n_langs": max(languages, 1), "use_lang_emb": languages > 0}


def _languages(config: ForeignConfig) -> tuple[str, ...]:
    """Returns the languages in the order of their ids. There may be none."""
    language_ids, count = config.get("lang2id") or {}, config.number("n_langs", 1)
    # Compared as text, because values of a damaged file may have any type.
    ids = map(repr, language_ids.values()) if isinstance(language_ids, dict) else ()
    if language_ids and sorted(ids) != sorted(map(repr, range(count))):
        found = f"{config.where} has n_langs={count} and lang2id={language_ids!r:.60}"
        raise UserError(f"{found}, but lang2id must number all languages from 0: correct it")
    return tuple(sorted(language_ids, key=language_ids.get))


class XlmFamily(EncoderFamily):
    """Rules for XLM, which has embeddings of languages."""

    def read(self, folder: ModelFolder) -> ModelParts:
        languages, model = _languages(folder.config), super().read(folder)
        return model.with_card(languages=languages if model.config.num_languages else ())

    def _written_config(self, model: ModelParts, head: TaskHead, rows: int) -> dict[str, Any]:
        fields = {**super()._written_config(model, head, rows), "pad_index": model.special.pad}
        if language_ids := {name: n for n, name in enumerate(model.card.languages)}:
            fields["lang2id"] = language_ids
            fields["id2lang"] = {n: name for name, n in language_ids.items()}
        return fields


XLM = XlmFamily(
    model_type="xlm",
    name="XLM",
    class_prefix="XLM",
    tokenizer=lambda folder: read_xlm_vocabulary(folder.path, _languages(folder.config)),
    tokenizer_files=("vocab.json",),
    vocabulary_class=MosesPairVocabulary,
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
    settings={
        **sizes(2048, 16, 12, fields="emb_dim n_heads n_layers"),
        "max_length": ("max_position_embeddings", 512),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "epsilon": ("layer_norm_eps", 1e-12),
        "initializer_range": ("init_std", 0.02),
        "activation": ("gelu_activation", True, {True: "gelu", False: "relu"}),
    },
    fixed_settings={"num_segments": 0},
    derive_settings=_xlm_settings,
    derive_fields=_xlm_fields,
    tasks=token_heads(reader_class="ForQuestionAnsweringSimple"),
    required_fields=required("is_encoder tie_word_embeddings", "causal asm"),
    padding_id=2,
)
