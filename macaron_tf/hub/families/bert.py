"""BERT."""

from macaron_tf.hub.arrays import transformer_layer
from macaron_tf.hub.config import ACTIVATIONS, usual_sizes
from macaron_tf.hub.encoders import EncoderFamily, head_table
from macaron_tf.hub.heads import text_heads, token_heads
from macaron_tf.text import WordPieceVocabulary

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
    class_prefix="Bert",
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
