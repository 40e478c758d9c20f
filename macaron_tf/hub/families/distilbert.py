"""DistilBERT, which has neither segments nor a pooler."""

from macaron_tf.hub.arrays import transformer_layer
from macaron_tf.hub.config import ACTIVATIONS
from macaron_tf.hub.encoders import EncoderFamily
from macaron_tf.hub.families.bert import LINEAR
from macaron_tf.hub.heads import text_heads, token_heads
from macaron_tf.tasks.model_parts import ModelParts
from macaron_tf.text import WordPieceVocabulary


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
