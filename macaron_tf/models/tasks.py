"""Task models: classifiers, taggers, span readers, multiple-choice models and sentence encoders."""

from operator import attrgetter
from typing import ClassVar

from keras import ops

from macaron_tf.errors import check_count
from macaron_tf.layers.heads import ClassificationHead, Pooler, Pooling, SpanHead
from macaron_tf.models.base import ENCODER_INPUTS, Network, attention_mask, padding_mask
from macaron_tf.models.config import EncoderConfig, EncoderDecoderConfig
from macaron_tf.models.elmo import WordEncoder, WordEncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_decoder import EncoderDecoder, shift_right
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.special import CLS_SEGMENT

# `Pooling` modes for the values of `summary` in configurations.
_POOLINGS = {"first": "cls", "last": "last", "end": "last", "max": "max", "mean": "mean"}
TokenLevelConfig = EncoderConfig | EncoderDecoderConfig | WordEncoderConfig


class TaskModel(Network):
    """Base class of task models, which add a head to a network such as an encoder."""

    @property
    def head_range(self) -> float:
        """Standard deviation of the initializers in the model's head."""
        return self.config.initializer_range or 0.02

    def classification_head(self, num_outputs: int, dropout: float = 0.0) -> ClassificationHead:
        """Creates a head that consists of dropout and a linear layer with `num_outputs` outputs."""
        options = {"initializer_range": self.head_range, "name": "head"}
        return ClassificationHead(num_outputs, dropout, **options)


class TokenLevelModel(TaskModel):
    """Base class of task models that use the hidden state at each position.

    In an encoder-decoder, the encoder reads the sequence, and the decoder reads the sequence again,
    shifted right behind a [SEP]. The hidden state at a position then depends on the whole sequence
    through the encoder and on the tokens up to this position through the decoder. A `WordEncoder`,
    with or without ELMo, reads words as characters, `token_ids (B, L, C)`.

    References: Lewis et al. 2020 (BART), sections 3.1 and 3.2, and released code; Peters et al.
    2018 (ELMo), section 3.3.
    """

    def __init__(self, config: TokenLevelConfig, **kwargs):
        super().__init__(config, **kwargs)
        if isinstance(config, WordEncoderConfig):
            self.encoder = WordEncoder(config, name="encoder")
            self.ids_rank = 3
        elif isinstance(config, EncoderDecoderConfig):
            self.encoder_decoder = EncoderDecoder(config)
        else:
            self.encoder = Encoder(config)

    def hidden_states(self, inputs, training=None):
        if isinstance(self.config, WordEncoderConfig):
            real = padding_mask(inputs)[..., None]  # a word of zeros is padding
            return self.encoder(ops.where(real, inputs["token_ids"], 0), training=training)
        if self.encoder_decoder is None:
            return super().hidden_states(inputs, training=training)
        real = padding_mask(inputs, self.config.pad_id)
        source = ops.where(real, inputs["token_ids"], self.config.pad_id)
        target = shift_right(source, self.config.special.end)
        pair = {**inputs, "source": source, "target": target}
        if "attention_mask" in inputs:  # the mask also applies in the decoder
            pair["memory_mask"] = attention_mask(inputs)
            pair["target_mask"] = shift_right(pair["memory_mask"], True)
        return self.encoder_decoder.hidden_states(pair, training=training)


class EncoderClassifier(TokenLevelModel):
    """Classifier of texts or text pairs: an encoder, a pooler over [CLS], and a linear layer.

    Args:
        config: configuration of the encoder, whose setting `summary` gives the position of [CLS].
            For an encoder-decoder, the classifier reads the decoder at the last token, [SEP]. For a
            `WordEncoder`, the classifier reads the maximum over all words.
        num_classes: number of classes C. 1 means regression.
        pooler_activation: activation of the pooler (see `Pooler`). `None` means `"tanh"`, or
            `"gelu"` in ModernBERT (an encoder with `norm_type="unbiased"`). In ModernBERT, a norm
            follows any activation.

    A call takes a dict of `token_ids (B, L)` and optionally `segment_ids (B, L)`. The output
    contains logits `(B, C)`.

    References: Devlin et al. 2018 (BERT), figure 4 (a) and (b); Lewis et al. 2020 (BART), figure 3.
    """

    def __init__(
        self,
        config: TokenLevelConfig,
        num_classes: int,
        head_dropout: float = 0.1,
        pooler_activation: str | None = None,
        **kwargs,
    ):
        if config.causal and config.summary == "first":
            raise config.error("summary='first' sees one position under causal=True: set 'last'")
        super().__init__(config, **kwargs)
        self.pool = Pooling(_POOLINGS[config.summary], name="pool")
        is_modern_bert = isinstance(config, EncoderConfig) and config.norm_type == "unbiased"
        self.pooler_activation = pooler_activation or ("gelu" if is_modern_bert else "tanh")
        norm = ("unbiased", config.epsilon) if is_modern_bert else ()
        self.pooler = Pooler(self.head_range, self.pooler_activation, *norm, name="pooler")
        self.head = self.classification_head(num_classes, head_dropout)

    def call(self, inputs, training=None):
        inputs = self._named_inputs(inputs)
        hidden = self.hidden_states(inputs, training=training)  # (B, L, D)
        vectors = self.pool(hidden, mask=padding_mask(inputs, self.config.pad_id))  # (B, D)
        return self.head(self.pooler(vectors[:, None]), training=training)  # (B, C)


class EncoderMultipleChoice(TaskModel):
    """Multiple-choice model with an encoder, which scores the choices for a context.

    A call takes a dict of `token_ids (B, R, L)` and optionally `segment_ids (B, R, L)`. The R rows
    of an example contain the context with each of the R choices (see `encode_choices`). The output
    contains float32 logits `(B, R)` for a softmax over the choices. If an example has fewer than R
    choices, the other rows contain padding and get the logit -1e9. See `EncoderClassifier` for
    `pooler_activation`.

    References: Devlin et al. 2018 (BERT), section 4.4.
    """

    ids_rank = 3

    def __init__(
        self,
        config: EncoderConfig | EncoderDecoderConfig,
        head_dropout: float = 0.1,
        pooler_activation: str | None = None,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.classifier = EncoderClassifier(config, 1, head_dropout, pooler_activation)

    encoder = property(attrgetter("classifier.encoder"))
    encoder_decoder = property(attrgetter("classifier.encoder_decoder"))
    pooler = property(attrgetter("classifier.pooler"))

    def call(self, inputs, training=None):
        inputs = self._named_inputs(inputs)
        rows = _flattened(inputs)
        scores = self.classifier(rows, training=training)  # (B R, 1)
        real = padding_mask(rows, self.config.pad_id)
        return choice_logits(scores, ops.reshape(real, ops.shape(inputs["token_ids"])))


def _flattened(inputs):
    """Flattens ids from `(..., L)` to `(N, L)`, and attention masks to `(N, L, L)`."""
    outer = len(inputs["token_ids"].shape) - 1
    return {name: ops.reshape(x, (-1, *ops.shape(x)[outer:])) for name, x in inputs.items()}


def choice_logits(scores, real):
    """Reshapes B R scores to `(B, R)` float32, -1e9 at rows without `real (B, R, L)` positions."""
    is_choice = ops.any(real, axis=-1)  # (B, R)
    scores = ops.cast(ops.reshape(scores, ops.shape(is_choice)), "float32")
    return ops.where(is_choice, scores, -1e9)


class EncoderQuestionAnswering(TokenLevelModel):
    """Question answering model, which scores each position as the start and end of the answer.

    The model is extractive: an answer is a span of the context. Position 0, [CLS], means that there
    is no answer. All other positions (question, separators and padding) get the score -1e9. In
    XLNet's layout, `context [SEP] question [SEP] [CLS]`, which `config.summary="last"` selects, the
    model moves the scores of [CLS] to index 0. The scores of position t are then at index t + 1.

    A call takes a dict of `token_ids (B, L)` and `segment_ids (B, L)`. The segment id is 1 in
    `context [SEP]`. In XLNet's layout, the segment id is 0 in `context [SEP]` and 2 at [CLS]. The
    output contains float32 logits `(B, 2, L)`, with starts at index 0 and ends at index 1.

    References: Devlin et al. 2018 (BERT), section 4.2 and figure 4 (c); Yang et al. 2019 (XLNet),
    released code.
    """

    num_required = 2  # `segment_ids` are required, because they mark the context

    def __init__(self, config: TokenLevelConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.head = SpanHead(self.head_range, name="head")

    def call(self, inputs, training=None):
        inputs = self._named_inputs(inputs)
        hidden = self.hidden_states(inputs, training=training)  # (B, L, D)
        real, segment_ids = padding_mask(inputs, self.config.pad_id), inputs["segment_ids"]
        cls_last = self.config.summary == "last"
        allowed = answer_mask(real, segment_ids, cls_last)  # (B, L)
        scores = self.head(hidden, attention_mask=allowed)  # (B, 2, L)
        if not cls_last:
            return scores
        is_cls = ops.equal(segment_ids, CLS_SEGMENT)[:, None]  # (B, 1, L)
        no_answer = ops.max(ops.where(is_cls, scores, -1e9), axis=-1, keepdims=True)  # (B, 2, 1)
        # The last position of a row is [CLS] or padding.
        other_scores = ops.where(is_cls, -1e9, scores)[..., :-1]
        return ops.concatenate([no_answer, other_scores], axis=-1)


def answer_mask(real, segment_ids, cls_last: bool = False):
    """Returns a mask `(B, L)` of the positions where an answer may start or end: [CLS] and context.

    `real (B, L)` is False at padding, and `cls_last` says that rows end with [CLS]. See
    `EncoderQuestionAnswering` for `segment_ids`.
    """
    segment = 0 if cls_last else 1  # of `context [SEP]`
    inside = ops.logical_and(ops.cast(real, "bool"), ops.equal(segment_ids, segment))
    context = ops.logical_and(inside, ops.pad(inside[:, 1:], ((0, 0), (0, 1))))
    if cls_last:
        return ops.logical_or(context, ops.equal(segment_ids, CLS_SEGMENT))
    first = ops.equal(ops.arange(ops.shape(real)[1]), 0)  # (L,)
    return ops.logical_or(context, first)


class EncoderTokenClassifier(TokenLevelModel):
    """Token tagger: an encoder with dropout and a linear layer that scores C = `num_tags` tags.

    A call takes a dict of `token_ids (B, L)` and optionally `segment_ids (B, L)`. The output
    contains logits `(B, L, C)`.

    References: Devlin et al. 2018 (BERT), section 5.3 and figure 4 (d).
    """

    def __init__(
        self,
        config: TokenLevelConfig,
        num_tags: int,
        head_dropout: float = 0.1,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.head = self.classification_head(num_tags, head_dropout)

    compute_mask = Encoder.compute_mask

    def call(self, inputs, training=None):
        inputs = self._named_inputs(inputs)
        hidden = self.hidden_states(inputs, training=training)  # (B, L, D)
        return self.head(hidden, training=training)  # (B, L, C)


class CausalReader(TaskModel):
    """Base class of task models with a language model and a linear layer over the last token.

    The subclasses are `CausalClassifier` and `CausalMultipleChoice`. An example consists of R rows,
    which the method `rows` returns. An auxiliary objective may also train the language model on
    these rows. A subclass defines `answers(vectors, token_ids, training)`, which computes the
    outputs from the vectors `(B, R, D)` of rows with ids `(B, R, L)`.

    References: Radford et al. 2018 (GPT), sections 3.2 and 3.3.
    """

    input_names: ClassVar = {name: ENCODER_INPUTS[name] for name in ("token_ids", "segment_ids")}

    def __init__(self, config: EncoderConfig, num_outputs: int, head_dropout: float, **kwargs):
        super().__init__(config, **kwargs)
        self.language_model = LanguageModel(config)
        self.pool = Pooling("last", name="last")
        self.head = self.classification_head(num_outputs, head_dropout)

    encoder = property(attrgetter("language_model.encoder"))
    language_head = property(attrgetter("language_model.language_head"))

    def call(self, inputs, training=None):
        return self.answers_and_hidden(self._named_inputs(inputs), training=training)[0]

    def answers_and_hidden(self, inputs, training=None):
        """Computes the outputs, the token ids `(B, R, L)` and the hidden states `(B, R, L, D)`."""
        token_ids = self.rows(inputs)  # (B, R, L)
        _, count, length = ops.shape(token_ids)
        flat = ops.reshape(token_ids, (-1, length))  # (B, R, L) -> (B R, L)
        hidden = self.language_model.hidden_states({"token_ids": flat}, training=training)
        vectors = self.pool(hidden, mask=ops.not_equal(flat, self.config.pad_id))  # (B R, D)
        # (B R, D) -> (B, R, D) and (B R, L, D) -> (B, R, L, D)
        vectors = ops.reshape(vectors, (-1, count, self.config.hidden_dim))
        hidden = ops.reshape(hidden, (-1, count, length, self.config.hidden_dim))
        return self.answers(vectors, token_ids, training=training), token_ids, hidden

    def rows(self, inputs):
        """Returns the token ids of each example's rows, `(B, R, L)`."""
        return inputs["token_ids"]


class CausalClassifier(CausalReader):
    """Classifier of texts or text pairs with a language model.

    Args:
        num_classes: number of classes C. 1 means regression.
        symmetric: whether the model reads two texts in both orders and adds the vectors. This
            option is for tasks in which the order does not matter, such as similarity.

    A call takes a dict of `token_ids (B, L)` and, if `symmetric`, `segment_ids (B, L)`. The
    function `encode_pairs` with `causal=True` returns this dict.

    The output contains logits `(B, C)`.

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
        self.num_required = 2 if symmetric else 1

    def rows(self, inputs):
        token_ids = inputs["token_ids"]
        if not self.symmetric:
            return token_ids[:, None]  # (B, 1, L)
        swapped_ids = swapped(token_ids, inputs["segment_ids"], self.config.pad_id)
        return ops.stack([token_ids, swapped_ids], axis=1)

    def answers(self, vectors, token_ids, training=None):
        return self.head(ops.sum(vectors, axis=1), training=training)


class CausalMultipleChoice(CausalReader):
    """Multiple-choice model with a language model, which scores the choices for a context.

    A call takes a dict of `token_ids (B, R, L)`. The R rows of an example contain the context with
    each of the R choices (see `encode_choices`). The output contains logits `(B, R)` (see
    `EncoderMultipleChoice`).

    References: Radford et al. 2018 (GPT), figure 1.
    """

    ids_rank = 3

    def __init__(self, config: EncoderConfig, head_dropout: float = 0.1, **kwargs):
        super().__init__(config, 1, head_dropout, **kwargs)

    def answers(self, vectors, token_ids, training=None):
        scores = self.head(vectors, training=training)  # (B, R, D) -> (B, R, 1)
        return choice_logits(scores, ops.not_equal(token_ids, self.config.pad_id))


def swapped(token_ids, segment_ids, pad_id: int = 0):
    """Swaps the two texts in each row: `start a delimiter b end` to `start b delimiter a end`.

    Both arrays are int `(B, L)`, and the segment is 1 in `b end`. Rows of padding are unchanged.
    """
    columns = ops.arange(ops.shape(token_ids)[1], dtype="int32")[None]  # (1, L)
    real = ops.cast(ops.not_equal(token_ids, pad_id), "int32")
    end = ops.sum(real, axis=1, keepdims=True) - 1  # (B, 1)
    second = end + 1 - ops.sum(segment_ids * real, axis=1, keepdims=True)  # the start of b
    delimiter = end - second + 1  # column of the delimiter in the result, after start and b
    source_columns = ops.where(columns == delimiter, second - 1, columns - delimiter)
    source_columns = ops.where(columns < delimiter, columns + second - 1, source_columns)
    inside = ops.logical_and(columns > 0, columns < end)
    return ops.take_along_axis(token_ids, ops.where(inside, source_columns, columns), axis=1)


FEATURES = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: ops.abs(u - v),
    "u*v": lambda u, v: u * v,
}


class SiameseEncoder(TaskModel):
    """Sentence encoder: an encoder and a pooling layer, which compute one vector per sentence.

    Args:
        pooling: `"mean"`, `"max"`, `"cls"` or `"last"` (see `Pooling`).
        normalize: whether vectors are scaled to length 1.
        num_classes: number of classes C in a sentence-pair classifier, which only training uses. 0
            means no classifier.
        concatenation: features of the vectors u and v that the classifier reads: a selection of
            `u`, `v`, `|u-v|` and `u*v`, separated by commas.

    A call takes a dict of `token_ids (..., L)` int. The shape is `(B, L)`, or `(B, S, L)` for S
    sentences per example, which are encoded separately. The output is float32 `(..., D)`.

    Example:
        model = SiameseEncoder(catalog.config("bert_tiny"), num_classes=3)
        vectors = model({"token_ids": token_ids})  # (B, 2, L) -> (B, 2, D)
        logits = model.pair_logits(vectors[:, 0], vectors[:, 1])  # (B, 3)

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3 and table 6.
    """

    takes_groups = True

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
        self.num_classes = check_count("num_classes", num_classes, minimum=0)
        self.features = parse_concatenation(concatenation)
        self.encoder = Encoder(config)
        self.pool = Pooling(pooling, name="pooling")
        self.head = self.classification_head(num_classes) if num_classes else None

    def build(self, input_shape=None):
        self.encoder.build()
        if self.head:
            self.head.build((None, len(self.features) * self.config.hidden_dim))

    def call(self, inputs, training=None):
        inputs = self._named_inputs(inputs)
        *outer, _ = ops.shape(inputs["token_ids"])
        rows = _flattened(inputs)
        hidden = self.encoder(rows, training=training)  # (N, L, D)
        vectors = self.pool(hidden, mask=padding_mask(rows, self.config.pad_id))  # (N, D)
        if self.normalize:
            vectors = unit_length(vectors)
        return ops.reshape(vectors, (*outer, self.config.hidden_dim))  # (N, D) -> (..., D)

    def pair_logits(self, first, second, training=None):
        """Computes class logits `(B, C)` of sentence pairs with vectors u and v, `(B, D)` each."""
        parts = [FEATURES[name](first, second) for name in self.features]  # F of (B, D)
        return self.head(ops.concatenate(parts, axis=-1), training=training)  # (B, F D) -> (B, C)


def parse_concatenation(text: str) -> tuple[str, ...]:
    """Parses a text such as `"u,v,|u-v|"` into the names of features, in order."""
    names = tuple(part.strip() for part in text.split(","))
    if len(set(names)) < len(names) or not set(names) <= set(FEATURES):
        raise ValueError(f"concatenation={text!r} must be some of {', '.join(FEATURES)}, each once")
    return names


def unit_length(vectors):
    """Scales vectors `(..., D)` to length 1. Zero vectors stay zero instead of becoming NaN."""
    square = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(square, 1e-12))
