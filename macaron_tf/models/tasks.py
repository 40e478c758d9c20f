"""Task models: classifiers, taggers, span readers, choosers and sentence encoders."""

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

# `Pooling` modes by the `summary` of configurations.
_POOLINGS = {"first": "cls", "last": "last", "end": "last", "max": "max"}
ReaderConfig = EncoderConfig | EncoderDecoderConfig | WordEncoderConfig


class TaskModel(Model):
    """Base class of task models: an encoder or language model, and layers on its outputs."""

    @property
    def head_range(self) -> float:
        """Standard deviation of the matrices in heads."""
        return self.config.initializer_range or 0.02

    def classification_head(self, outputs: int, dropout: float = 0.0) -> ClassificationHead:
        """Dropout and a linear layer with that number of outputs."""
        return ClassificationHead(outputs, dropout, initializer_range=self.head_range, name="head")


class ReadingModel(TaskModel):
    """Base class of models that read the hidden state of each position in an encoder or a decoder.

    An encoder-decoder reads the row in its encoder, and again in its decoder, shifted right behind
    a [SEP]: the state at a position sees the whole row in the encoder, and the ids up to it in the
    decoder. A `WordEncoder`, with or without ELMo, reads words by their characters,
    `token_ids (B, L, C)`.

    Args:
        config: configuration of the encoder, encoder-decoder or `WordEncoder`.

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
        if "attention_mask" in inputs:  # it also applies in the decoder
            pair["memory_mask"] = attention_mask(inputs)
            pair["target_mask"] = _behind(True, pair["memory_mask"])
        return self.encoder_decoder.hidden_states(pair, training=training)


def _behind(start, x):
    """Shifts `x (..., L)` right by one place and puts `start` in front."""
    return ops.concatenate([ops.full_like(x[..., :1], start), x[..., :-1]], axis=-1)


class EncoderClassifier(ReadingModel):
    """Classifies texts or pairs of texts: an encoder, a pooler over [CLS], and a linear layer.

    Args:
        config: configuration of the encoder, whose `summary` says where [CLS] is. An
            encoder-decoder is read at the last id, [SEP], in the decoder, and a `WordEncoder` by
            its maxima over all words.
        num_classes: C; 1 for regression.
        head_dropout: dropout rate of the pooled vector.
        pooler_activation: see `Pooler`; None: "tanh", or for ModernBERT (an encoder with
            `norm_type="unbiased"`) "gelu" and a norm.

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
                "causal=True: a classifier reads the first position, which sees no other: take a "
                "CausalClassifier or CausalChooser, or set summary='last'"
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
    """Scores the choices for a context (multiple choice) with an encoder.

    Args:
        config, head_dropout, pooler_activation: see `EncoderClassifier`; the linear layer has one
            output.

    Call arguments: a dict of `token_ids (B, R, L)`, the context with each of R choices, from
    `encode_choices`, and optionally `segment_ids (B, R, L)`. Returns float32 logits `(B, R)`, for a
    softmax over the choices. An example with fewer choices has rows of padding, which score -1e9.

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
    """Flattens outer axes of inputs: ids `(..., L)` to `(N, L)`, attention masks to `(N, L, L)`."""
    outer = len(inputs["token_ids"].shape) - 1
    return {name: ops.reshape(x, (-1, *ops.shape(x)[outer:])) for name, x in inputs.items()}


def choice_logits(scores, real):
    """Reshapes scores to `(B, R)` float32; rows without a True in `real (B, R, L)` get -1e9."""
    there = ops.any(real, axis=-1)  # (B, R)
    scores = ops.cast(ops.reshape(scores, ops.shape(there)), "float32")
    return ops.where(there, scores, -1e9)


class EncoderSpanReader(ReadingModel):
    """Answers questions by a span of the context: scores each position as the start and the end.

    An answer lies in the context; [CLS], position 0, means that there is none. All other positions
    score -1e9: question, separators and padding. In rows that end with [CLS],
    `context [SEP] question [SEP] [CLS]`, the scores of [CLS] are moved to the front, before those
    of the other positions.

    Call arguments: a dict of `token_ids (B, L)` and `segment_ids (B, L)`, 1 in `context [SEP]`; if
    rows end with [CLS], 0 in `context [SEP]` and 2 at [CLS]. Returns float32 logits `(B, 2, L)`:
    starts at index 0, ends at 1.

    References: Devlin et al. 2018 (BERT), section 4.2 and figure 4 (c); Yang et al. 2019 (XLNet),
    its released code.
    """

    required = 2  # the segments say where the context is

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
        # The last position of a row is its [CLS] or padding.
        others = ops.where(is_cls, -1e9, scores)[..., :-1]
        return ops.concatenate([null, others], axis=-1)


def answer_mask(real, segment_ids, cls_last: bool = False):
    """Mask `(B, L)` of the positions where an answer may start or end: [CLS] and the context.

    Args:
        real: `(B, L)`, False at padding.
        segment_ids: `(B, L)`, see `EncoderSpanReader`.
        cls_last: whether rows end with [CLS].
    """
    inside = ops.equal(segment_ids, 0 if cls_last else 1)
    inside = ops.logical_and(ops.cast(real, "bool"), inside)  # in `context [SEP]`
    context = ops.logical_and(inside, ops.pad(inside[:, 1:], ((0, 0), (0, 1))))
    if cls_last:
        return ops.logical_or(context, ops.equal(segment_ids, CLS_SEGMENT))
    first = ops.equal(ops.arange(ops.shape(real)[1]), 0)  # (L,)
    return ops.logical_or(context, first)


class EncoderTagger(ReadingModel):
    """Tags tokens: an encoder, with dropout and a linear layer that scores C = `num_tags` tags.

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
    """Base class of task models over a language model: a linear layer over each row's last token.

    The task models are `CausalClassifier` and `CausalChooser`. An example has R rows, see `rows`.
    An auxiliary objective may also train the language model on these rows.

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
        """The rows of each example, ids `(B, R, L)`."""

    @abc.abstractmethod
    def answers(self, vectors, token_ids, training=None):
        """The model's outputs, from vectors `(B, R, D)` of rows with ids `(B, R, L)`."""


class CausalClassifier(CausalReader):
    """Classifies texts or pairs of texts with a language model.

    Args:
        num_classes: C; 1 for regression.
        head_dropout: dropout rate of the vector that is classified.
        symmetric: whether two texts are read in both orders and the vectors added, because the task
            has no order (such as similarity).

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
    """Scores the choices for a context (multiple choice) with a language model.

    Call arguments: a dict of `token_ids (B, R, L)`, the context with each of R choices, from
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
    """Swaps the two texts of rows: `start a delimiter b end` to `start b delimiter a end`.

    Rows of padding are unchanged.

    Args:
        token_ids: `(B, L)` int.
        segment_ids: `(B, L)` int, 1 in `b end`.
    """
    columns = ops.arange(ops.shape(token_ids)[1], dtype="int32")[None]  # (1, L)
    real = ops.cast(ops.not_equal(token_ids, PAD), "int32")
    end = ops.sum(real, axis=1, keepdims=True) - 1  # (B, 1)
    second = end + 1 - ops.sum(segment_ids * real, axis=1, keepdims=True)  # the start of b
    delimiter = end - second + 1  # its column in the result, after start and b
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
    """Sentence encoder with pooling; all sentences of an example use the same weights.

    Args:
        pooling: `"mean"`, `"max"` or `"cls"`, see `Pooling`.
        normalize: whether vectors are scaled to length 1.
        num_classes: C, the classes of a classifier over pairs, used in training only; 0: none.
        concatenation: features of two vectors that the classifier reads: some of `u`, `v`, `|u-v|`
            and `u*v`, separated by commas.

    Call arguments: a dict of `token_ids (..., L)` int, 0 at padding: `(B, L)`, or `(B, S, L)` for S
    sentences per example, which are encoded together. Returns float32 `(..., D)`.

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
        """Scores of the classes of pairs, from their vectors, `(B, D)` each: `(B, C)`."""
        if not self.head:
            raise ValueError(
                "num_classes=0: make the model with num_classes above 0 to score pairs"
            )
        parts = [FEATURES[name](first, second) for name in self.features]  # F of (B, D)
        return self.head(ops.concatenate(parts, axis=-1), training=training)  # (B, F D) -> (B, C)


def parse_concatenation(text: str) -> tuple[str, ...]:
    """Parses a text such as `"u,v,|u-v|"` into the names of features, in order."""
    names = tuple(part.strip() for part in text.split(","))
    if len(set(names)) < len(names) or not set(names) <= set(FEATURES):
        raise ValueError(
            f"concatenation={text!r}: name each of {', '.join(FEATURES)} at most once, separated "
            "by commas"
        )
    return names


def unit_length(vectors):
    """Scales vectors `(..., D)` to length 1; vectors of zeros stay zeros instead of NaN."""
    square = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(square, 1e-12))
