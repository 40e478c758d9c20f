"""Task models: networks with a head for classes, spans, tags or choices, or sentence vectors."""

import abc
from typing import ClassVar

from keras import ops

from macaron_tf.errors import check_count
from macaron_tf.layers.heads import ClassificationHead, Pooler, Pooling, SpanHead
from macaron_tf.models.base import ENCODER_INPUTS, Model, attention_mask, padding_mask
from macaron_tf.models.config import EncoderConfig, EncoderDecoderConfig
from macaron_tf.models.elmo import WordEncoder, WordEncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.special_ids import CLS_SEGMENT, EOS, PAD

# Of the summaries of configurations.
_POOLINGS = {"first": "cls", "last": "last", "end": "last", "max": "max"}
ReaderConfig = EncoderConfig | EncoderDecoderConfig | WordEncoderConfig


class TaskModel(Model):
    """Base of the task models: an encoder or language model, and layers over its hidden states."""

    @property
    def head_range(self) -> float:
        """Standard deviation of the first matrices over the hidden states."""
        return self.config.initializer_range or 0.02

    def classification_head(self, outputs: int, dropout: float = 0.0) -> ClassificationHead:
        """A linear layer behind dropout."""
        return ClassificationHead(outputs, dropout, initializer_range=self.head_range, name="head")


class ReadingModel(TaskModel):
    """Base of the models over a hidden state of each position, an encoder's or a decoder's.

    An encoder-decoder reads a row in its encoder, and in its decoder behind a [SEP]: the state at a
    position has seen all of the row, and in the decoder the ids before it. A `WordEncoder`, with
    ELMo's vectors or without, reads words by their characters, `token_ids (B, L, C)`.

    Args:
        config: of the encoder or the encoder-decoder.

    References: Lewis et al. 2020 (BART), sections 3.1 and 3.2, its released code; Peters et al.
    2018 (ELMo), section 3.3.
    """

    def __init__(self, config: ReaderConfig, **kwargs):
        super().__init__(config, **kwargs)
        if isinstance(config, WordEncoderConfig):
            self.encoder = WordEncoder(config, name="encoder")
        elif isinstance(config, EncoderDecoderConfig):
            self.encoder_decoder = EncoderDecoder(config)
        else:
            self.encoder = Encoder(config)

    def hidden_states(self, inputs, training=None):
        if isinstance(self.config, WordEncoderConfig):
            real = padding_mask(inputs)[..., None]  # a word of zeros is padding
            return self.encoder(ops.where(real, inputs["token_ids"], PAD), training=training)
        if self.encoder_decoder is None:
            return super().hidden_states(inputs, training=training)
        source = ops.where(padding_mask(inputs), inputs["token_ids"], PAD)
        pair = {**inputs, "source": source, "target": _behind(EOS, source)}
        if "attention_mask" in inputs:  # a position attends the same ids in the decoder
            pair["memory_mask"] = attention_mask(inputs)
            pair["target_mask"] = _behind(True, pair["memory_mask"])
        return self.encoder_decoder.hidden_states(pair, training=training)


def _behind(start, x):
    """`x (..., L)` moved on by one place, behind a start."""
    return ops.concatenate([ops.full_like(x[..., :1], start), x[..., :-1]], axis=-1)


class EncoderClassifier(ReadingModel):
    """An encoder, its pooled [CLS] position, and a linear layer over it.

    Args:
        config: of the encoder; its `summary` says where [CLS] stands. Of an encoder-decoder the
            decoder's state at the last id, [SEP], takes its place, of a `WordEncoder` the greatest
            values over all words.
        num_classes: C; 1 for regression.
        head_dropout: on the pooled vector.
        pooler_activation: see `Pooler`; None = "tanh", or "gelu" and a norm of an encoder with
            `norm_type="unbiased"`, which is ModernBERT's.

    Call arguments: a dict of `token_ids (B, L)` and optionally `segment_ids (B, L)`. Returns
    logits `(B, C)`.

    References: Devlin et al. 2018 (BERT), figure 4 (a) and (b); Lewis et al. 2020 (BART), figure 3.
    """

    def __init__(
        self,
        config: ReaderConfig,
        num_classes: int,
        head_dropout: float = 0.1,
        pooler_activation: str | None = None,
        **kwargs,
    ):
        if config.causal and config.summary == "first":
            raise config.error(
                "causal=True: a classifier reads the first position, which has seen no other: take "
                "a CausalClassifier or CausalChooser, or summary='last'"
            )
        super().__init__(config, **kwargs)
        self.pool = Pooling(_POOLINGS[config.summary], name="pool")
        modern = isinstance(config, EncoderConfig) and config.norm_type == "unbiased"
        self.pooler_activation = pooler_activation or ("gelu" if modern else "tanh")
        norm = {"norm_type": "unbiased", "epsilon": config.epsilon} if modern else {}
        self.pooler = Pooler(self.head_range, self.pooler_activation, **norm, name="pooler")
        self.head = self.classification_head(num_classes, head_dropout)

    def call(self, inputs, training=None):
        hidden = self.hidden_states(inputs, training=training)  # (B, L, D)
        vectors = self.pool(hidden, mask=padding_mask(inputs))  # (B, D)
        return self.head(self.pooler(vectors[:, None]), training=training)  # (B, C)


class EncoderChooser(TaskModel):
    """A score of each choice that may go with a context, from an encoder.

    Args:
        config, head_dropout, pooler_activation: see `EncoderClassifier`; the linear layer has one
            output.

    Call arguments: a dict of `token_ids (B, R, L)`, the context with each of R choices, rows of
    `encode_choices`, and optionally `segment_ids (B, R, L)`. Returns logits `(B, R)`, whose softmax
    is over the choices; -1e9 where a row is padding, for an example with fewer: float32.

    References: Devlin et al. 2018 (BERT), section 4.4.
    """

    def __init__(
        self,
        config: EncoderConfig | EncoderDecoderConfig,
        head_dropout: float = 0.1,
        pooler_activation: str | None = None,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.classifier = EncoderClassifier(config, 1, head_dropout, pooler_activation)

    @property
    def encoder(self):
        return self.classifier.encoder

    @property
    def encoder_decoder(self):
        return self.classifier.encoder_decoder

    @property
    def pooler(self):
        return self.classifier.pooler

    def call(self, inputs, training=None):
        rows = _flat(inputs)
        scores = self.classifier(rows, training=training)  # (B R, 1)
        real = ops.reshape(padding_mask(rows), ops.shape(inputs["token_ids"]))  # (B, R, L)
        return choice_logits(scores, real)


def _flat(inputs):
    """Inputs of rows of ids `(..., L)` as `(N, L)` each; `attention_mask` as `(N, L, L)`."""
    outer = len(inputs["token_ids"].shape) - 1
    return {name: ops.reshape(x, (-1, *ops.shape(x)[outer:])) for name, x in inputs.items()}


def choice_logits(scores, real):
    """Scores of rows in any shape, as `(B, R)` float32; -1e9 where no `real (B, R, L)` is True."""
    there = ops.any(real, axis=-1)  # (B, R)
    scores = ops.cast(ops.reshape(scores, ops.shape(there)), "float32")
    return ops.where(there, scores, -1e9)


class EncoderSpanReader(ReadingModel):
    """An encoder, and the scores of each position as the start and the end of the answer.

    An answer begins and ends in the context; [CLS], position 0, stands for "there is none". All
    other positions score -1e9: the question's, separators and padding. Of rows that end with [CLS],
    `context [SEP] question [SEP] [CLS]`, its scores are put first and those of the row follow.

    Call arguments: a dict of `token_ids (B, L)` and `segment_ids (B, L)`, 1 in `context [SEP]`; of
    rows that end with [CLS] 0 in `context [SEP]` and 2 at [CLS]. Returns float32 logits
    `(B, 2, L)`: start at index 0, end at 1.

    References: Devlin et al. 2018 (BERT), section 4.2 and figure 4 (c); Yang et al. 2019 (XLNet),
    its released code.
    """

    required = 2  # an answer stands in the second segment

    def __init__(self, config: ReaderConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.head = SpanHead(self.head_range, name="head")

    def call(self, inputs, training=None):
        hidden = self.hidden_states(inputs, training=training)  # (B, L, D)
        real, segment_ids = padding_mask(inputs), inputs["segment_ids"]
        last = self.config.summary == "last"
        allowed = answer_mask(real, segment_ids, last)  # (B, L)
        scores = self.head(hidden, attention_mask=allowed)  # (B, 2, L)
        if not last:
            return scores
        is_cls = ops.equal(segment_ids, CLS_SEGMENT)[:, None]  # (B, 1, L)
        null = ops.max(ops.where(is_cls, scores, -1e9), axis=-1, keepdims=True)  # (B, 2, 1)
        # A row's last position is its [CLS], or padding.
        others = ops.where(is_cls, -1e9, scores)[..., :-1]
        return ops.concatenate([null, others], axis=-1)


def answer_mask(real, segment_ids, cls_last: bool = False):
    """The mask of an answer's ends: [CLS] and the context before its [SEP]; all (B, L)."""
    inside = ops.equal(segment_ids, 0 if cls_last else 1)
    inside = ops.logical_and(ops.cast(real, "bool"), inside)  # in `context [SEP]`
    context = ops.logical_and(inside, ops.pad(inside[:, 1:], ((0, 0), (0, 1))))
    if cls_last:
        return ops.logical_or(context, ops.equal(segment_ids, CLS_SEGMENT))
    first = ops.equal(ops.arange(ops.shape(real)[1]), 0)  # (L,)
    return ops.logical_or(context, first)


class EncoderTagger(ReadingModel):
    """An encoder, and dropout and a linear layer over each position: scores of `num_tags` = C tags.

    Call arguments: a dict of `token_ids (B, L)` and optionally `segment_ids (B, L)`. Returns
    logits `(B, L, C)`.

    References: Devlin et al. 2018 (BERT), section 5.3 and figure 4 (d).
    """

    def __init__(
        self,
        config: ReaderConfig,
        num_tags: int,
        head_dropout: float = 0.1,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.head = self.classification_head(num_tags, head_dropout)

    compute_mask = Encoder.compute_mask

    def call(self, inputs, training=None):
        hidden = self.hidden_states(inputs, training=training)  # (B, L, D)
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
        return self.answers(vectors, token_ids, training=training), token_ids, hidden

    @abc.abstractmethod
    def rows(self, inputs):
        """The rows of each example: ids `(B, R, L)`."""

    @abc.abstractmethod
    def answers(self, vectors, token_ids, training=None):
        """The outputs of a call, from vectors `(B, R, D)` of rows of ids `(B, R, L)`."""


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

    def answers(self, vectors, token_ids, training=None):
        return self.head(ops.sum(vectors, axis=1), training=training)


class CausalChooser(CausalReader):
    """A score of each choice that may go with a context, from a language model.

    Call arguments: a dict of `token_ids (B, R, L)`, the context with each of R choices, rows of
    `encode_choices`. Returns logits `(B, R)`, see `EncoderChooser`.

    References: Radford et al. 2018 (GPT), figure 1.
    """

    def __init__(self, config: EncoderConfig, head_dropout: float = 0.1, **kwargs):
        super().__init__(config, 1, head_dropout, **kwargs)

    def rows(self, inputs):
        return inputs["token_ids"]

    def answers(self, vectors, token_ids, training=None):
        scores = self.head(vectors, training=training)  # (B, R, D) -> (B, R, 1)
        return choice_logits(scores, ops.not_equal(token_ids, PAD))


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
        *outer, _ = ops.shape(inputs["token_ids"])
        rows = _flat(inputs)
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
