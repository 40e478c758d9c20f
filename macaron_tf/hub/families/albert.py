"""ALBERT, whose layers share their weights."""

import dataclasses

from macaron_tf.hub.arrays import transformer_layer
from macaron_tf.hub.config import ACTIVATIONS, usual_sizes
from macaron_tf.hub.encoders import head_table
from macaron_tf.hub.families.bert import BERT
from macaron_tf.text.sentencepiece import SentencePieceVocabulary

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
