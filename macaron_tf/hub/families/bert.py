"""BERT, and the families that differ from it in some parts and settings.

RoBERTa and XLM-R have positions after the padding's id. ELECTRA has narrow embeddings, and is a
generator or a discriminator. ALBERT's layers share their weights. DistilBERT has neither segments
nor a pooler.
"""

import dataclasses

from macaron_tf.hub.arrays import transformer_layer
from macaron_tf.hub.config import ACTIVATIONS, usual_sizes
from macaron_tf.hub.encoders import EncoderFamily, head_table
from macaron_tf.hub.heads import text_heads, token_heads
from macaron_tf.models.tasks import EncoderClassifier, EncoderMultipleChoice
from macaron_tf.tasks.model_parts import ModelParts
from macaron_tf.text import WordPieceVocabulary
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary

LINEAR = {"head/dense": "classifier"}
_ATTENTION = [f"attention.self.{part}" for part in ("query", "key", "value")]
_WITHOUT_POOLER = {
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
    class_prefix="Bert",
    vocabulary_class=WordPieceVocabulary,
    prefix="bert.",
    body_prefixes=("embeddings.", "encoder."),
    tokens=("embeddings.word_embeddings.weight",),
    table={**_WITHOUT_POOLER, "pooler/dense": "pooler.dense"},
    heads={
        **head_table("cls.predictions.transform."),
        "sentence_pair/dense": "cls.seq_relationship",
    },
    tasks={**text_heads(LINEAR, has_pooler=True), **token_heads()},
    bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
    positions="embeddings.position_embeddings.weight",
    segments="embeddings.token_type_embeddings.weight",
    settings={
        **usual_sizes(768, 3072, 12, 12, 512),
        "num_segments": ("type_vocab_size", 2),
        "dropout": ("hidden_dropout_prob", 0.1),
        "attention_dropout": ("attention_probs_dropout_prob", 0.1),
        "epsilon": ("layer_norm_eps", 1e-12),
        "activation": ("hidden_act", "gelu", ACTIVATIONS),
    },
    required_fields={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    # Of multilingual and Chinese models.
    without_effect=(
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_type"),
        *("pooler_num_fc_layers", "pooler_size_per_head"),
    ),
)
ROBERTA = dataclasses.replace(
    BERT,
    model_type="roberta",
    name="RoBERTa",
    class_prefix="Roberta",
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
ELECTRA = dataclasses.replace(
    BERT,
    model_type="electra",
    name="ELECTRA",
    class_prefix="Electra",
    prefix="electra.",
    body_prefixes=("embeddings", "encoder."),
    table=_WITHOUT_POOLER,
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
        **usual_sizes(256, 1024, 4, 12, 512),
        "embedding_dim": ("embedding_size", 128),
    },
    required_fields={
        **BERT.required_fields,
        **{"summary_type": "first", "summary_use_proj": True},  # of `ElectraForMultipleChoice`
    },
)
ALBERT = dataclasses.replace(
    BERT,
    model_type="albert",
    name="ALBERT",
    class_prefix="Albert",
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
        **usual_sizes(4096, 16384, 64, 12, 512),
        "embedding_dim": ("embedding_size", 128),
        "dropout": ("hidden_dropout_prob", 0.0),
        "attention_dropout": ("attention_probs_dropout_prob", 0.0),
        "activation": ("hidden_act", "gelu_new", ACTIVATIONS),
    },
    fixed_settings={"sharing": "all"},
    required_fields={**BERT.required_fields, "num_hidden_groups": 1, "inner_group_num": 1},
    without_effect=(
        *("classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type"),
        "num_memory_blocks",
    ),
)


class DistilBertFamily(EncoderFamily):
    def is_tried(self, model: ModelParts) -> bool:
        if not super().is_tried(model) or not isinstance(model.vocabulary, WordPieceVocabulary):
            return False
        return type(model.network) in self.tasks or not (model.network.pooler or model.pooler)


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
    without_effect=("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"),
)
