"""Sentence-BERT: an encoder of sentences, whose vectors' cosine is similarity of meaning."""

from keras import ops

from macaron_tf.checks import check_count
from macaron_tf.layers.heads import Pooling
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.tasks import TaskModel
from macaron_tf.special_ids import PAD

FEATURES = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: ops.abs(u - v),
    "u*v": lambda u, v: u * v,
}


class SiameseEncoder(TaskModel):
    """An encoder and a pooling, the same for each sentence of a pair or triplet.

    Args:
        pooling: `"mean"`, `"max"` or `"cls"`, see `Pooling`.
        normalize: give vectors of length 1.
        num_classes: C of a classifier over pairs, used in training only; 0 = none.
        concatenation: the classifier's features of two vectors: some of `u`, `v`, `|u-v|` and
            `u*v`, with commas between.

    Call arguments: a dict of `token_ids (..., L)` int, 0 being padding: `(B, L)`, or `(B, S, L)`
    for S sentences an example, which go through the encoder in one call. Returns float32
    `(..., D)`.

    Example:
        model = SiameseEncoder(catalog.config("bert_tiny"), num_classes=3)
        vectors = model({"token_ids": token_ids})  # (B, 2, L) -> (B, 2, D)
        logits = model.pair_logits(vectors[:, 0], vectors[:, 1])  # (B, 3)

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3 and table 6.
    """

    def __init__(
        self,
        config: EncoderConfig,
        pooling: str = "mean",
        normalize: bool = False,
        num_classes: int = 0,
        concatenation: str = "u,v,|u-v|",
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.num_classes = check_count("num_classes", num_classes, least=0)
        self.features = parse_concatenation(concatenation)
        self.encoder = Encoder(config)
        self.pool = Pooling(pooling, name="pooling")
        self.head = self.classification_head(num_classes) if num_classes else None

    def build(self, input_shape=None):
        self.encoder.build()
        if self.head:
            self.head.build((None, len(self.features) * self.config.hidden_dim))

    def call(self, inputs, training=None):
        token_ids = inputs["token_ids"]
        *outer, length = ops.shape(token_ids)
        rows = ops.reshape(token_ids, (-1, length))  # (..., L) -> (N, L)
        hidden = self.encoder({"token_ids": rows}, training=training)  # (N, L, D)
        vectors = self.pool(hidden, mask=ops.not_equal(rows, PAD))  # (N, D)
        if self.normalize:
            vectors = unit_length(vectors)
        return ops.reshape(vectors, (*outer, self.config.hidden_dim))  # (N, D) -> (..., D)

    def pair_logits(self, first, second, training=None):
        """Scores of the classes of pairs: vectors `(B, D)` and `(B, D)` to `(B, C)`."""
        if not self.head:
            raise ValueError("the model was made with num_classes=0: it has no classifier")
        parts = [FEATURES[name](first, second) for name in self.features]  # F of (B, D)
        return self.head(ops.concatenate(parts, axis=-1), training=training)  # (B, F D) -> (B, C)


def parse_concatenation(text: str) -> tuple[str, ...]:
    """Names of the features in a text such as `"u,v,|u-v|"`, in order."""
    names = tuple(part.strip() for part in text.split(","))
    if len(set(names)) < len(names) or not set(names) <= set(FEATURES):
        raise ValueError(
            f"concatenation={text!r}: name each of {', '.join(FEATURES)} at most once, "
            "with commas between"
        )
    return names


def unit_length(vectors):
    """Vectors `(..., D)` scaled to length 1; one of zeros stays as it is, without a NaN."""
    square = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(square, 1e-12))
