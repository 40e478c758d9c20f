"""BERT, and the encoders with its layers: RoBERTa, XLM-R, ALBERT, ELECTRA and DistilBERT."""

import dataclasses

from macaron_tf.hub.arrays import transformer_layer
from macaron_tf.hub.config import ACTIVATIONS, required, sizes
from macaron_tf.hub.encoders import EncoderFamily, head_table
from macaron_tf.hub.heads import text_heads, token_heads
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.models.tasks import EncoderClassifier, EncoderMultipleChoice
from macaron_tf.text import WordPieceVocabulary
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary

LINEAR = {"head/dense": "classifier"}
_ATTENTION = [f"attention.self.{part}" for part in ("query", "key", "value")]
WITHOUT_POOLER = {
    "embeddings/norm": "embeddings.LayerNorm",
    "encoder/projection": "embeddings_project",  # of ELECTRA
    **transformer_layer(
        "encoder.layer.{}.",
        [*_ATTENTION, "attention.output.dense"],
        "attention.output.LayerNorm",
        ["intermediate.dense", "output.dense"],
        "output.LayerNorm",
    ),
}
BERT = EncoderFamily(
    model_type="bert",
    name="BERT",
    vocabulary_class=WordPieceVocabulary,
    prefix="bert.",
    body_prefixes=("embeddings.", "encoder."),
    tokens=("embeddings.word_embeddings.weight",),
    table={**WITHOUT_POOLER, "pooler/dense": "pooler.dense"},
    heads={
        **head_table("cls.predictions.transform."),
        "sentence_pair/dense": "cls.seq_relationship",
    },
    tasks={**text_heads(LINEAR, has_pooler=True), **token_heads()},
    bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
    positions="embeddings.position_embeddings.weight",
    segments="embeddings.token_type_embeddings.weight",
    settings={
        **sizes(768, 12, 12, 3072, 512),
        "num_segments": ("type_vocab_size", 2),
        "dropout": ("hidden_dropout_prob", 0.1),
        "attention_dropout": ("attention_probs_dropout_prob", 0.1),
        "epsilon": ("layer_norm_eps", 1e-12),
        "activation": ("hidden_act", "gelu", ACTIVATIONS),
    },
    required_fields=required(
        "tie_word_embeddings", "is_decoder add_cross_attention", position_embedding_type="absolute"
    ),
)
# Positions begin after the id of the padding.
ROBERTA = dataclasses.replace(
    BERT,
    model_type="roberta",
    name="RoBERTa",
    vocabulary_class=BytePairVocabulary,
    prefix="roberta.",
    heads=head_table("lm_head.", "layer_norm"),
    tasks={
        **BERT.tasks,
        **text_heads(
            {"pooler/dense": "classifier.dense", "head/dense": "classifier.out_proj"},
            (EncoderClassifier,),
        ),
    },
    bias=("lm_head.bias", "lm_head.decoder.bias"),
    head_options={"activation": "gelu"},
    padding_id=1,
    checks_padding=True,
    positions_from_padding=True,
)
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    model_type="xlm-roberta",
    name="XLM-R",
    class_prefix="XLMRoberta",
    vocabulary_class=SentencePieceVocabulary,
)
# The layers share their weights.
ALBERT = dataclasses.replace(
    BERT,
    model_type="albert",
    name="ALBERT",
    vocabulary_class=SentencePieceVocabulary,
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
    settings={
        **BERT.settings,
        **sizes(4096, 64, 12, 16_384, 512),
        "embedding_dim": ("embedding_size", 128),
        "dropout": ("hidden_dropout_prob", 0.0),
        "attention_dropout": ("attention_probs_dropout_prob", 0.0),
        "activation": ("hidden_act", "gelu_new", ACTIVATIONS),
    },
    fixed_settings={"sharing": "all"},
    required_fields={**BERT.required_fields, "num_hidden_groups": 1, "inner_group_num": 1},
)
# A generator or a discriminator with narrow embeddings.
ELECTRA = dataclasses.replace(
    BERT,
    model_type="electra",
    name="ELECTRA",
    prefix="electra.",
    body_prefixes=("embeddings", "encoder."),
    table=WITHOUT_POOLER,
    heads={
        **head_table("generator_predictions."),
        "replaced_token/dense": "discriminator_predictions.dense",
        "replaced_token/answer": "discriminator_predictions.dense_prediction",
    },
    tasks={
        **BERT.tasks,
        EncoderClassifier: dataclasses.replace(ROBERTA.tasks[EncoderClassifier], activation="gelu"),
        **text_heads(
            {"pooler/dense": "sequence_summary.summary", **LINEAR},
            (EncoderMultipleChoice,),
            activation="gelu",
            activation_field="summary_activation",
        ),
    },
    bias=("generator_lm_head.bias",),
    head_options={"activation": "gelu"},
    settings={
        **BERT.settings,
        **sizes(256, 4, 12, 1024, 512),
        "embedding_dim": ("embedding_size", 128),
    },
    required_fields={
        **BERT.required_fields,
        **{"summary_type": "first", "summary_use_proj": True},  # of `ElectraForMultipleChoice`
    },
)


class DistilBertFamily(EncoderFamily):
    """Rules for DistilBERT, which has neither segments nor a pooler."""

    def is_tried(self, model: ModelParts) -> bool:
        if not super().is_tried(model) or not isinstance(model.vocabulary, WordPieceVocabulary):
            return False
        return type(model.network) in self.tasks or not model.network.pooler


DISTILBERT = DistilBertFamily(
    model_type="distilbert",
    name="DistilBERT",
    class_prefix="DistilBert",
    vocabulary_class=WordPieceVocabulary,
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
        **text_heads({"pooler/dense": "pre_classifier", **LINEAR}, activation="relu"),
        **token_heads(),
    },
    bias=("vocab_projector.bias",),
    positions="embeddings.position_embeddings.weight",
    head_dropout="seq_classif_dropout",
    settings={
        **sizes(
            768, 12, 6, 3072, 512, fields="dim n_heads n_layers hidden_dim max_position_embeddings"
        ),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "activation": ("activation", "gelu", ACTIVATIONS),
    },
    fixed_settings={"num_segments": 0},
    required_fields={"tie_word_embeddings": True},
)
