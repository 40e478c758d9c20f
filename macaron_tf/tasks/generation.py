"""Text generation: continuations of a text, and answers to a text."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import tensorflow as tf

from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.text_tasks import PREFIXES, in_one_line, source_texts
from macaron_tf.decoding import (
    BeamSearchConfig,
    Controls,
    GenerationConfig,
    LineTranslator,
    Prompts,
    SequenceGenerator,
    TextGenerator,
    TextScorer,
)
from macaron_tf.decoding.sampling import Rules
from macaron_tf.decoding.text_generator import GAP
from macaron_tf.io.serving import CONTROLS, EXAMPLE, MAX_TOKENS
from macaron_tf.models import EncoderDecoder
from macaron_tf.models.model_parts import ModelParts, TaskSettings
from macaron_tf.settings import Count, Natural
from macaron_tf.tasks.base import Decoding, DecodingSettings, require
from macaron_tf.text import TextVocabulary
from macaron_tf.text.normalization import as_prompts

_WINDOW = 512  # training length of T5 in tokens, although T5 accepts rows of any length


@dataclasses.dataclass(frozen=True)
class ContinuationSettings(DecodingSettings):
    """Settings of a language model, or of a pre-trained encoder-decoder, that writes texts."""

    kind = "continuation"


@dataclasses.dataclass(frozen=True)
class TextToTextSettings(TaskSettings):
    """Settings of a fine-tuned encoder-decoder, which are arguments of its `TaskGenerator`.

    Attributes:
        task: task name, as in `frame_lines`.
        max_target, longest: maximum number of tokens in an answer and in a source, including EOS
            and an initial [CLS].
        starts: whether texts and answers begin with [CLS], as in Hugging Face's BART.
        prefix: beginning of each source in summarization and translation; `None` means that of
            `PREFIXES`.
        min_length, no_repeat_ngram_size: see `BeamSearchConfig`.
    """

    kind = "text_to_text"
    task: str
    max_target: Count
    longest: Count
    starts: bool = False
    prefix: str | None = None
    min_length: Natural = 0
    no_repeat_ngram_size: Natural = 0

    def lines(self, network: Any, vocabulary: Any, decoding: BeamSearchConfig) -> LineTranslator:
        """Creates a translator, which generates the answer to each line of text."""
        # The maximum length of an answer is the maximum target length in training. It does not
        # depend on the source. The search starts at BOS, and `prefix` has the ids before BOS.
        max_length = self.max_target - self.starts  # including EOS
        limits: dict[str, Any] = dict.fromkeys(("max_length", "max_length_offset"), max_length)
        # No limit for sources, because the translator truncates sources with a warning.
        return LineTranslator(
            network,
            TextVocabulary(vocabulary, sys.maxsize, self.max_target, self.starts),
            dataclasses.replace(decoding, max_length_ratio=0.0, **limits),
            max_source_length=self.longest - 1,  # without EOS
            prefix=(vocabulary.special.end,) if self.starts else (),
        )


class Continuation(Decoding):
    """Continuation of texts by sampling.

    All inputs of the signature `serving_default` have the shape `(B,)`:

    - `text`, strings.
    - `temperature`, float32. 0 means greedy decoding.
    - `top_k`, int32. 0 means no limit.
    - `top_p`, float32. 1 means no limit.
    - `seed`, int32.
    - `max_tokens`, int32, the maximum number of new tokens. A value above 1,024, or beyond the
      model's last position, is reduced to this limit. A negative value means 0.

    The outputs are `completion (B,)` strings without the input text, `log_prob (B,)` float32, and
    `tokens (B,)` int32, the number of new tokens including the end token. An output does not depend
    on the other texts in the batch. `macaron predict` gives the same outputs for the same
    settings and seed.

    The graph raises InvalidArgumentError for a text that is too long, for an empty text if the
    model cannot begin a text, and for values of temperature, top_k and top_p that
    `GenerationConfig` does not allow.

    Args:
        generator: text generator of a language model or an encoder-decoder.
        window: window length in tokens for scoring long texts, usually the training length.

    Attributes:
        longest: maximum number of tokens in a row, or in the source of an encoder-decoder. The
            model has no trained positions beyond this limit. `None` means no limit.
    """

    name = "text generator"
    pipeline = "text-generation"
    inputs: ClassVar = {
        "text": tf.string,
        "temperature": tf.float32,
        "top_k": tf.int32,
        "top_p": tf.float32,
        "seed": tf.int32,
        "max_tokens": tf.int32,
    }
    controls: ClassVar = CONTROLS

    def __init__(self, generator: TextGenerator, window: int = _WINDOW):
        super().__init__(generator.model, generator.vocabulary)
        self.generator, self.window = generator, window
        self.longest = generator.longest
        if isinstance(generator, SequenceGenerator):
            self.pipeline = "text2text-generation"

    def typical_texts(self) -> tuple[str]:
        return (f"A dog is {GAP}." if isinstance(self.generator, SequenceGenerator) else "A dog",)

    @classmethod
    def of(cls, model: ModelParts) -> Self:
        card, longest = model.card, model.config.longest
        reads_sources = isinstance(model.network, EncoderDecoder)
        window = card.trained_length or longest or _WINDOW
        if card.trained_length and longest is not None:
            # Position embeddings beyond the training length are untrained. Encoder-decoders were
            # trained without [CLS], so an encoder-decoder has one trained position less.
            longest = card.trained_length - reads_sources
        arguments = model.network, model.vocabulary, longest
        # The corpora of models that are trained here have no line ends.
        settings = model.settings
        ends = settings.ends if isinstance(settings, ContinuationSettings) else {}
        ends = {**ends, "line_ends": card.trained_length is None}
        if reads_sources:
            return cls(SequenceGenerator(*arguments, sentinels=card.sentinels, **ends), window)
        return cls(TextGenerator(*arguments, card.starts, **ends), window)

    @classmethod
    def from_exported(cls, decoder: Any, vocabulary: Any, facts: Mapping[str, Any]) -> Self:
        generator_class = SequenceGenerator if decoder.reads_sources else TextGenerator
        return cls(generator_class(decoder, vocabulary, **facts["generator"]))

    @property
    def decoder(self) -> Any:
        return self.generator.model

    def with_decoder(self, decoder: Any) -> Self:
        return self.changed(generator=self.generator.with_model(decoder))

    def _rows(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Converts texts `(B,)` to padded rows of ids `(B, L)` and the row lengths `(B,)`."""
        generator = self.generator
        rows = generator.rows(text)  # (B, None)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        message = f"a text has more than {generator.longest} tokens: shorten the text"
        if not isinstance(generator, SequenceGenerator):
            limit = generator.longest or "all"
            message = (
                f"a text has no tokens, or leaves no room to continue it within {limit} tokens: "
                "give another text"
            )
        # Check here, because the network's own message about long rows is less clear.
        # `generator.fits` may return a single bool.
        fits = tf.fill(tf.shape(lengths), True) & generator.fits(lengths)
        pad = generator.vocabulary.special.pad
        return require(fits, message, rows).to_tensor(pad), lengths

    def serve(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        text, temperature, top_k, top_p, seed, max_tokens = inputs
        generator, (rows, lengths) = self.generator, self._rows(text)
        limits = tf.clip_by_value(max_tokens, 0, MAX_TOKENS)
        max_new_tokens = generator.max_new_tokens(lengths)
        limits = limits if max_new_tokens is None else tf.minimum(limits, max_new_tokens)
        is_valid = (temperature >= 0) & (top_k >= 0) & (top_p > 0) & (top_p <= 1)
        message = (
            "temperature and top_k must be at least 0, and top_p must be above 0 and at most 1"
        )
        seed = require(is_valid, message, seed)
        rules = generator.rules(Controls(temperature, top_k, top_p))
        result = generator.generate(Prompts(rows, lengths, limits, seed[:, None]), rules)
        ids = result["ids"][:, 0]
        is_end = tf.reduce_any(ids[..., None] == tf.constant(generator.end_ids), axis=-1)
        texts = generator.detokenizer.in_graph(tf.where(is_end, self.vocabulary.special.pad, ids))
        stripped = tf.strings.regex_replace(texts, "^ ", "")
        return {
            "completion": tf.where(generator.starts_text(lengths), stripped, texts),
            "log_prob": result["log_probs"][:, 0],
            "tokens": result["lengths"][:, 0],
        }

    def stream(self, text: str, **settings: Any) -> Iterator[str]:
        """Yields parts of the continuation as soon as they are decoded.

        The `settings` are `seed`, and fields of `GenerationConfig` other than `num_samples`.
        """
        names = {field.name for field in dataclasses.fields(GenerationConfig)} | {"seed"}
        if unknown := settings.keys() - (names - {"num_samples"}):
            self.with_options(**{name: settings[name] for name in sorted(unknown)})  # raises
        options = {**self.controls, **settings}
        seed = options.pop("seed")
        return self.generator.stream(text, GenerationConfig(**options), seed)

    def likelihoods(self, texts: Sequence[str]) -> list[dict[str, float]]:
        if isinstance(self.generator, SequenceGenerator):
            return super().likelihoods(texts)
        scorer = self.scorer(min(self.window, self.longest or self.window))
        scores = [scorer.score_text(scorer.text_ids(text)) for text in texts]
        return [
            {"log_probs": float(each.log_probs.sum()), "tokens": int(each.lengths.sum())}
            for each in scores
        ]

    def scorer(self, window: int) -> TextScorer:
        options = {"starts": bool(self.generator.prefix), "line_ends": self.generator.line_ends}
        return TextScorer(self.network, self.vocabulary, window, **options)

    def facts(self) -> dict[str, Any]:
        return {"longest": self.longest, "generator": self.generator.options()}


class TextToText(Continuation):
    """Generation of answers by a text-to-text model that was trained on a task.

    Inputs and outputs are those of `Continuation`, and texts have the format of `lines` in
    `frame_lines`. The default temperature is 0, which means greedy decoding.
    """

    name = "text-to-text model"
    pipeline = "text2text-generation"
    generator: "TaskGenerator"
    controls: ClassVar = {**Continuation.controls, "temperature": 0.0}

    def typical_texts(self) -> tuple[str]:
        task = self.generator.task
        second = task not in PREFIXES and "+" not in task and get_task(task).second
        return ("A dog is running.\tA pet moves." if second else EXAMPLE,)

    @classmethod
    def of(cls, model: ModelParts) -> Self:
        options, special = model.settings.get_config(), model.vocabulary.special
        if options.pop("starts", False):
            starts = {
                "source_start": (special.begin,),
                "answer_start": (special.end, special.begin),
            }
            options |= starts
        generator = TaskGenerator(model.network, model.vocabulary, **options)
        return cls(generator, model.card.trained_length or _WINDOW)

    @classmethod
    def from_exported(cls, decoder: Any, vocabulary: Any, facts: Mapping[str, Any]) -> Self:
        return cls(TaskGenerator(decoder, vocabulary, **facts["generator"]))


@dataclasses.dataclass(eq=False, repr=False)
class TaskGenerator(SequenceGenerator):
    """Text generator that reads input lines of a text-to-text task and generates the answers.

    Attributes:
        task: task name, as in `frame_lines`.
        max_target: maximum number of tokens in an answer, including EOS and an initial [CLS].
        prefix, min_length, no_repeat_ngram_size: see `TextToTextSettings`.
    """

    task: str = ""
    max_target: int = 0
    prefix: str | None = None
    min_length: int = 0
    no_repeat_ngram_size: int = 0

    def rules(self, controls: Controls | GenerationConfig, min_tokens: int = 0) -> Rules:
        rules = super().rules(controls, max(min_tokens, self.min_length))
        return rules._replace(no_repeat_ngram_size=self.no_repeat_ngram_size)

    def rows(self, texts: tf.Tensor) -> tf.RaggedTensor:
        sources = frame_lines(self.task, texts, self.prefix)
        ids = tf.cast(self.vocabulary.encode(sources), tf.int32)  # (B, None)
        start = tf.repeat(tf.constant([self.source_start], tf.int32), ids.nrows(), axis=0)
        end = tf.fill([tf.shape(texts)[0], 1], self.vocabulary.special.end)
        return tf.concat([start, ids, end], axis=1)

    def max_new_tokens(self, length: int | tf.Tensor) -> int:
        # `max_target` counts EOS too, and [CLS] if answers begin with [CLS].
        return self.max_target - len(self.answer_start)


def frame_lines(task: str, lines: tf.Tensor, prefix: str | None = None) -> tf.Tensor:
    """Adds the task prefix and the field names that were used in training to input lines.

    Args:
        task: task name, such as "sst2", "summarization" or "translation". For a model of several
            tasks, their names are joined by "+". Lines for such a model must already name their
            task, as in "sst2 sentence: ...".
        lines: strings `(B,)` with one text each, or two texts separated by a tab.
        prefix: see `TextToTextSettings`.
    """
    lines = as_prompts(lines)
    if task in PREFIXES or "+" in task:
        prefix = PREFIXES.get(task, "") if prefix is None else prefix
        return tf.strings.join([prefix, in_one_line(lines)])
    return source_texts(get_task(task), lines)
