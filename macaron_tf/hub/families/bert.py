"""BERT, and the parts that the families derived from it share."""

from macaron_tf.hub.arrays import transformer_layer
from macaron_tf.hub.config import ACTIVATIONS
from macaron_tf.hub.encoders import EncoderFamily, head_table
from macaron_tf.hub.family import text_heads, token_heads
from macaron_tf.text import WordPieceVocabulary

LAYERS = transformer_layer(
    "encoder.layer.{}.",
    [*(f"attention.self.{part}" for part in ("query", "key", "value")), "attention.output.dense"],
    "attention.output.LayerNorm",
    ["intermediate.dense", "output.dense"],
    "output.LayerNorm",
)
LINEAR = {"head/dense": "classifier"}
BERT = EncoderFamily(
    model_type="bert",
    name="BERT",
    class_prefix="Bert",
    vocabulary_class=WordPieceVocabulary,
    prefix="bert.",
    body_prefixes=("embeddings.", "encoder."),
    tokens=("embeddings.word_embeddings.weight",),
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        **LAYERS,
        "pooler/dense": "pooler.dense",
    },
    heads={
        **head_table("cls.predictions.transform."),
        "sentence_pair/dense": "cls.seq_relationship",
    },
    tasks={**text_heads(LINEAR, has_pooler=True), **token_heads()},
    bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
    positions="embeddings.position_embeddings.weight",
    segments="embeddings.token_type_embeddings.weight",
    output_kernel="cls.predictions.decoder.weight",
    settings={
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
