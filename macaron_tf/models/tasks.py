"""Task models: networks with a head for classes, spans, tags or choices, or sentence vectors."""

import abc
from typing import ClassVar

from keras import ops

from macaron_tf.checks import check_count
from macaron_tf.layers.heads import ClassificationHead, Pooler, Pooling, SpanHead
from macaron_tf.models.base import ENCODER_INPUTS, Model, padding_mask
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.special_ids import PAD


class TaskModel(Model):
    """Base of the task models: an encoder or language model, and layers over its hidden states."""

    def classification_head(self, outputs: int, dropout: float = 0.0) -> ClassificationHead:
        """A linear layer behind dropout."""
        options = self.config.options("initializer_range")
        return ClassificationHead(outputs, dropout, **options, name="head")


class EncoderClassifier(TaskModel):
    """An encoder, its pooled [CLS] position, and a linear layer over it.

    Args:
        config: of the encoder; its `summary` says where [CLS] stands.
        num_classes: C; 1 for regression.
        head_dropout: on the pooled vector.

    Call arguments: a dict of `token_ids (B, L)` and optionally `segment_ids (B, L)`. Returns
    logits `(B, C)`.

    References: Devlin et al. 2018 (BERT), figure 4 (a) and (b).
    """

    def __init__(
        self, config: EncoderConfig, num_classes: int, head_dropout: float = 0.1, **kwargs
    ):
        super().__init__(config, **kwargs)
        self.encoder = Encoder(config)
        mode = "last" if config.summary == "last" else "cls"
        self.pool = Pooling(mode, name="pool")
        self.pooler = Pooler(config.initializer_range, name="pooler")
        self.head = self.classification_head(num_classes, head_dropout)

    def call(self, inputs, training=None):
        hidden = self.encoder(inputs, training=training)  # (B, L, D)
        vectors = self.pool(hidden, mask=padding_mask(inputs))  # (B, D)
        return self.head(self.pooler(vectors[:, None]), training=training)  # (B, C)


class EncoderSpanReader(TaskModel):
    """An encoder, and the scores of each position as the start and the end of the answer.

    An answer begins and ends in the context; [CLS], position 0, stands for "there is none". All
    other positions score -1e9: the question's, separators and padding.

    Call arguments: a dict of `token_ids (B, L)` and `segment_ids (B, L)`, 1 in `context [SEP]`.
    Returns float32 logits `(B, 2, L)`: start at index 0, end at 1.

    References: Devlin et al. 2018 (BERT), section 4.2 and figure 4 (c).
    """

    required = 2  # an answer stands in the second segment

    def __init__(self, config: EncoderConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.encoder = Encoder(config)
        self.head = SpanHead(config.initializer_range, name="head")

    def call(self, inputs, training=None):
        hidden = self.encoder(inputs, training=training)  # (B, L, D)
        allowed = answer_mask(padding_mask(inputs), inputs["segment_ids"])  # (B, L)
        return self.head(hidden, attention_mask=allowed)  # (B, 2, L)


def answer_mask(real, segment_ids):
    """The mask of an answer's ends: [CLS] and the context before its [SEP]; all (B, L)."""
    followed = ops.pad(real[:, 1:], ((0, 0), (0, 1)))  # (B, L): false at a row's last id
    context = ops.logical_and(ops.equal(segment_ids, 1), followed)
    first = ops.equal(ops.arange(ops.shape(real)[1]), 0)  # (L,)
    return ops.logical_or(context, first)


class EncoderTagger(TaskModel):
    """An encoder, and dropout and a linear layer over each position: scores of `num_tags` = C tags.

    Call arguments: a dict of `token_ids (B, L)` and optionally `segment_ids (B, L)`. Returns
    logits `(B, L, C)`.

    References: Devlin et al. 2018 (BERT), section 5.3 and figure 4 (d).
    """

    def __init__(self, config: EncoderConfig, num_tags: int, head_dropout: float = 0.1, **kwargs):
        super().__init__(config, **kwargs)
        self.encoder = Encoder(config)
        self.head = self.classification_head(num_tags, head_dropout)

    def call(self, inputs, training=None):
        hidden = self.encoder(inputs, training=training)  # (B, L, D)
        return self.head(hidden, training=training)  # (B, L, C)


class CausalReader(TaskModel, abc.ABC):
    """A language model, its vector at each row's last token, and a linear layer.

    Base of `CausalClassifier` and `CausalChooser`. An example is R rows, see `rows`; an auxiliary
    objective may train the language model's own scores of them.

    References: Radford et al. 2018 (GPT), sections 3.2 and 3.3.
    """

    input_names: ClassVar = {name: ENCODER_INPUTS[name] for name in ("token_ids", "segment_ids")}

    def __init__(self, config: EncoderConfig, num_outputs: int, head_dropout: float, **kwargs):
        super().__init__(config, **kwargs)
        self.language_model = LanguageModel(config)
        self.pool = Pooling("last", name="last")
        self.head = self.classification_head(num_outputs, head_dropout)

    @property
    def encoder(self):
        return self.language_model.encoder

    @property
    def language_head(self):
        return self.language_model.language_head

    def call(self, inputs, training=None):
        return self.answers_and_hidden(inputs, training=training)[0]

    def answers_and_hidden(self, inputs, training=None):
        """The outputs, the rows' ids `(B, R, L)` and their hidden states `(B, R, L, D)`."""
        token_ids = self.rows(inputs)  # (B, R, L)
        _, count, length = ops.shape(token_ids)
        flat = ops.reshape(token_ids, (-1, length))  # (B, R, L) -> (B R, L)
        hidden = self.language_model.hidden_states({"token_ids": flat}, training=training)
        vectors = self.pool(hidden, mask=ops.not_equal(flat, PAD))  # (B R, D)
        # (B R, D) -> (B, R, D) and (B R, L, D) -> (B, R, L, D)
        vectors = ops.reshape(vectors, (-1, count, self.config.hidden_dim))
        hidden = ops.reshape(hidden, (-1, count, length, self.config.hidden_dim))
        return self.answers(vectors, training=training), token_ids, hidden

    @abc.abstractmethod
    def rows(self, inputs):
        """The rows of each example: ids `(B, R, L)`."""

    @abc.abstractmethod
    def answers(self, vectors, training=None):
        """The outputs of a call, from vectors `(B, R, D)`."""


class CausalClassifier(CausalReader):
    """Classes of a text or two from a language model.

    Args:
        num_classes: C; 1 for regression.
        symmetric: read two texts in both orders and add the vectors, for neither comes first.

    Call arguments: a dict of `token_ids (B, L)`, rows of `encode_causal`, and, if `symmetric`,
    `segment_ids (B, L)`. Returns logits `(B, C)`.

    References: Radford et al. 2018 (GPT), figure 1.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_classes: int,
        head_dropout: float = 0.1,
        symmetric: bool = False,
        **kwargs,
    ):
        super().__init__(config, num_classes, head_dropout, **kwargs)

    def rows(self, inputs):
        token_ids = inputs["token_ids"]
        if not self.symmetric:
            return token_ids[:, None]  # (B, 1, L)
        return ops.stack([token_ids, swapped(token_ids, inputs["segment_ids"])], axis=1)

    def answers(self, vectors, training=None):
        return self.head(ops.sum(vectors, axis=1), training=training)


class CausalChooser(CausalReader):
    """A score of each choice that may go with a context, from a language model.

    Call arguments: a dict of `token_ids (B, R, L)`, the context with each of R choices, rows of
    `encode_causal`. Returns logits `(B, R)`, whose softmax is over the choices.

    References: Radford et al. 2018 (GPT), figure 1.
    """

    def __init__(self, config: EncoderConfig, head_dropout: float = 0.1, **kwargs):
        super().__init__(config, 1, head_dropout, **kwargs)

    def rows(self, inputs):
        return inputs["token_ids"]

    def answers(self, vectors, training=None):
        return self.head(vectors, training=training)[..., 0]  # (B, R, D) -> (B, R, 1) -> (B, R)


def swapped(token_ids, segment_ids):
    """Swaps the texts of rows: `start a delimiter b end` to `start b delimiter a end`.

    All are `(B, L)` int; segment ids are 1 in `b end`. A row of padding is not changed.
    """
    columns = ops.arange(ops.shape(token_ids)[1], dtype="int32")[None]  # (1, L)
    real = ops.cast(ops.not_equal(token_ids, PAD), "int32")
    end = ops.sum(real, axis=1, keepdims=True) - 1  # (B, 1)
    second = end + 1 - ops.sum(segment_ids * real, axis=1, keepdims=True)  # the start of b
    delimiter = end - second + 1  # its column afterwards: behind the start and b
    taken = ops.where(
        columns < delimiter,
        columns + second - 1,
        ops.where(columns == delimiter, second - 1, columns - delimiter),
    )
    inside = ops.logical_and(columns > 0, columns < end)
    return ops.take_along_axis(token_ids, ops.where(inside, taken, columns), axis=1)


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
        *outer, length = ops.shape(inputs["token_ids"])
        # (..., L) -> (N, L) each
        rows = {name: ops.reshape(x, (-1, length)) for name, x in inputs.items()}
        hidden = self.encoder(rows, training=training)  # (N, L, D)
        vectors = self.pool(hidden, mask=padding_mask(rows))  # (N, D)
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
