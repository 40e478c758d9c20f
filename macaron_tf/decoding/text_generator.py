"""Text generation with a language model or an encoder-decoder."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from macaron_tf.decoding import sampling
from macaron_tf.decoding.sampling import Controls, GenerationConfig, Prompts, Rules
from macaron_tf.decoding.scoring import padded
from macaron_tf.errors import UserError
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.detokenizer import Detokenizer
from macaron_tf.text.normalization import as_prompts, byte_limit


class FilledContext(NamedTuple):
    """Few-shot prompt.

    Attributes:
        ids: token ids of the examples and the query, without [CLS].
        shown: number of examples in the prompt.
        cut: whether the beginning of the query was cut off, because the query alone was too long.
    """

    ids: list[int]
    shown: int
    cut: bool


def fill_context(
    examples: Sequence[Sequence[int]], query: Sequence[int], max_length: int
) -> FilledContext:
    """Builds a few-shot prompt from as many examples as fit, in order of preference, and the query.

    An example that does not fit is skipped; a later, shorter one may still fit. A query that is too
    long alone loses its beginning. An example includes its answer.

    References: Brown et al. 2020 (GPT-3), section 2.4.
    """
    if len(query) > max_length:
        return FilledContext(list(query[len(query) - max_length :]), 0, True)
    remaining, chosen = max_length - len(query), []
    for example in examples:
        if len(example) <= remaining:
            chosen.append(example)
            remaining -= len(example)
    return FilledContext([i for ids in (*chosen, query) for i in ids], len(chosen), False)


_BATCH_SIZE = 32  # number of texts in a batch
# `stream` rounds the capacity of the cache up to a multiple of this number of tokens, so that few
# shapes are traced.
_CAPACITY_MULTIPLE = 64


@dataclasses.dataclass(frozen=True)
class Completion:
    """Continuation of a prompt.

    Attributes:
        text: the new text, without the prompt. The text begins with a space if its first token
            begins a word.
        log_prob: log-probability (natural logarithm) of the new tokens, before temperature, top-k
            and top-p.
        length: number of new tokens, including the token that ends the text.
        ended: whether the model ended the text. False means that the text reached the limit.
    """

    text: str
    log_prob: float
    length: int
    ended: bool
    ids: tuple[int, ...] = ()


@dataclasses.dataclass(eq=False, repr=False)
class TextGenerator:
    """Text generator that continues prompts with a language model.

    The model reads and writes rows `[CLS] text [SEP]`, as in training.

    Attributes:
        model: a `LanguageModel`, or another model with `init_decode`, `decode_step`, `can_prefill`
            and `prefill`.
        longest: maximum row length in tokens, including [CLS] and [SEP]; `None` means no limit.
        starts: whether rows begin with [CLS]. Otherwise only the row of an empty prompt does, if
            the vocabulary has [CLS].
        end_ids: ids of the tokens that end a text, which add no text; none means [SEP].
        line_ends: whether the model was trained with line ends. Otherwise, line ends in a prompt
            become spaces.
    """

    model: Any
    vocabulary: PieceVocabulary
    longest: int | None = None
    starts: bool = True
    end_ids: Sequence[int] = ()
    line_ends: bool = False

    def __post_init__(self):
        vocabulary, special = self.vocabulary, self.vocabulary.special
        self.prefix = [special.begin] if self.starts else []
        self.empty_row = [special.begin] if special.begin < vocabulary.pieces else []
        self.end_ids = tuple(self.end_ids) or (special.end,)
        self.detokenizer = vocabulary.detokenizer
        ids = np.arange(vocabulary.size)
        self.is_suppressed = np.isin(ids, special.ids) | (ids >= vocabulary.pieces)
        self.is_suppressed[special.end] = False
        self._functions = functools.cache(self._make_functions)
        self._first_state_function = tf.function(
            lambda *arguments: sampling.first_state(*arguments, self.prefill_fn), autograph=False
        )

    def options(self) -> dict[str, Any]:
        """Returns the constructor's arguments as JSON values, except `model` and `vocabulary`."""
        _, _, *names = (field.name for field in dataclasses.fields(self) if field.init)
        return {name: getattr(self, name) for name in names}

    def with_model(self, model: Any) -> Self:
        """Returns a copy of this generator that runs another model, such as a `LiteDecoder`."""
        return dataclasses.replace(self, model=model)

    def row(self, text: str) -> list[int]:
        """Encodes a prompt (see `as_prompts`) as [CLS] (if `starts`) and the ids of the text."""
        if len(text.encode()) > (max_bytes := byte_limit(self.longest)):
            raise UserError(f"the prompt has more than {max_bytes} bytes: shorten the prompt")
        row = self.rows(tf.constant([text]))[0].numpy().tolist()
        if not row:
            raise UserError("the prompt has no tokens: give a prompt of one or more tokens")
        if self.fits(len(row)):
            return row
        raise UserError(f"prompt {text[:40]!r}... has {len(row)} tokens: shorten to {self.longest}")

    def rows(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Encodes prompts `(B,)` as ragged `(B, None)` in a graph, without the checks of `row`."""
        ids = tf.cast(self.vocabulary.encode(as_prompts(texts, self.line_ends)), tf.int32)
        first = self.prefix or self.empty_row
        begins = tf.fill(tf.shape(texts), True) if self.prefix else ids.row_lengths() == 0
        lengths = len(first) * tf.cast(begins, ids.row_splits.dtype)  # (B,)
        values = tf.fill([tf.reduce_sum(lengths)], self.vocabulary.special.begin)
        first = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
        return tf.concat([first, ids], axis=1)  # (B, None)

    def fits(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        """Returns whether a row of `length` ids is not empty and leaves room for one new token."""
        return length > 0 if self.longest is None else (length > 0) & (length < self.longest)

    def max_new_tokens(self, length: int | tf.Tensor) -> int | tf.Tensor | None:
        """Returns the maximum number of new tokens after `length` ids. `None` means no limit."""
        return None if self.longest is None else self.longest - length

    def starts_text(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        """Returns whether the text after a row of `length` ids starts without a space."""
        return length == len(self.prefix)

    def begin(self, prompts: Prompts, capacity: int | None = None) -> tuple[Prompts, Any, Any]:
        """Returns prompts, context and cache for rows; `capacity` is `None` for a growing cache."""
        batch_size, samples = tf.shape(prompts.ids)[0], prompts.seeds.shape[1]
        return prompts, *self.model.init_decode(batch_size, samples, capacity)

    @property
    def prefill_fn(self) -> sampling.PrefillFunction | None:
        """Prefill function for `first_state`. `None` means that the model reads token by token."""
        return self.model.prefill if self.model.can_prefill else None

    def generate(self, prompts: Prompts, rules: Rules) -> dict[str, tf.Tensor]:
        """Continues encoded prompts in a graph (see `sampling.generate`)."""
        prompts, context, cache = self.begin(prompts)
        max_tokens = tf.maximum(tf.reduce_max(prompts.limits), 1)
        state = sampling.first_state(prompts, context, cache, self.prefill_fn)
        step_fn = self.model.decode_step
        return sampling.generate(step_fn, state, context, prompts, rules, max_tokens)

    def rules(self, controls: Controls | GenerationConfig, min_tokens: int = 0) -> Rules:
        """Returns rules that allow the vocabulary's ordinary tokens, and `end_ids` as the end."""
        pad = self.vocabulary.special.pad
        return Rules(controls, self.end_ids, self.is_suppressed, min_tokens, pad)

    def complete(
        self, texts: Sequence[str], config: GenerationConfig | None = None, seed: int = 1
    ) -> list[list[Completion]]:
        """Continues texts by sampling, with `config.num_samples` completions for each text.

        The samples for a text depend only on the text, the settings and the seed, `seed + k` for
        sample k. The empty string begins a new text.
        """
        return self.continue_rows([self.row(text) for text in texts], config, seed)

    def continue_rows(
        self, rows: Sequence[list[int]], config: GenerationConfig | None = None, seed: int = 1
    ) -> list[list[Completion]]:
        """Continues rows of ids that `row` returned (see `complete`)."""
        config = config or GenerationConfig()
        completions: list[list[Completion]] = [[]] * len(rows)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        generate_function, _ = self._functions(config)
        for first in range(0, len(order), _BATCH_SIZE):
            batch = order[first : first + _BATCH_SIZE]
            prompts = self._prompts([rows[index] for index in batch], config, seed)
            result = {name: value.numpy() for name, value in generate_function(prompts).items()}
            for row, index in enumerate(batch):
                starts_text = self.starts_text(len(rows[index]))
                completions[index] = [
                    self._completion(result, row, k, starts_text) for k in range(config.num_samples)
                ]
        return completions

    def stream(
        self, text: str, config: GenerationConfig | None = None, seed: int = 1
    ) -> Iterator[str]:
        """Yields the first sample of `complete` in non-empty parts, during generation."""
        config = dataclasses.replace(config or GenerationConfig(), num_samples=1)
        row = self.row(text)
        multiple = _CAPACITY_MULTIPLE
        capacity = -(-(len(row) + config.max_tokens - 1) // multiple) * multiple
        capacity = capacity if self.longest is None else min(capacity, self.longest)
        prompts, context, cache = self.begin(self._prompts([row], config, seed, capacity), capacity)
        _, step = self._functions(config)
        state = self._first_state_function(prompts, context, cache)
        drawn = None
        if self.rules(config).no_repeat_ngram_size:
            shape = (1, 1, int(prompts.limits[0]))
            drawn = np.full(shape, self.vocabulary.special.pad, np.int32)
        detokenizer, starts_text = self.detokenizer.stream(), self.starts_text(len(row))
        while not bool(state.ended[0, 0]):
            state, new_tokens = step(state, context, prompts, drawn)
            new_index = int(state.index) - int(prompts.lengths[0])
            if new_index < 0:
                continue  # still in the prompt
            token_id = int(new_tokens[0, 0])
            if drawn is not None:
                drawn[0, 0, new_index] = token_id
            part = "" if token_id in self.end_ids else detokenizer.add(token_id)
            text_part = part.removeprefix(" ") if starts_text else part
            starts_text = starts_text and not part
            if text_part:
                yield text_part
        if last_part := detokenizer.end():
            yield last_part

    def _prompts(
        self, rows: list[list[int]], config: GenerationConfig, seed: int, width: int = 0
    ) -> Prompts:
        lengths = np.array([len(row) for row in rows], np.int32)
        limits = [config.max_tokens] * len(rows)
        if self.longest is not None:
            limits = [min(config.max_tokens, self.max_new_tokens(len(row))) for row in rows]
        seeds = (seed % 2**32 + np.arange(config.num_samples)).astype(np.int32)
        seeds = np.tile(seeds, (len(rows), 1))  # (B, K)
        pad = self.vocabulary.special.pad
        arrays = (padded(rows, pad, width), lengths, np.array(limits, np.int32), seeds)
        return Prompts(*map(tf.constant, arrays))

    def _make_functions(self, config: GenerationConfig) -> tuple[Callable, Callable]:
        """Makes the compiled functions `generate`, of prompts, and `sampling.advance`."""
        rules = self.rules(config, config.min_tokens)
        # The signature gives one trace for all shapes. AutoGraph is off, because all control flow
        # is tf.while_loop.
        shapes = ((None, None), (None,), (None,), (None, config.num_samples))
        signature = [Prompts(*(tf.TensorSpec(shape, tf.int32) for shape in shapes))]
        step_fn = self.model.decode_step
        return (
            tf.function(lambda prompts: self.generate(prompts, rules), signature, autograph=False),
            tf.function(
                lambda state, context, prompts, drawn: sampling.advance(
                    step_fn, state, context, prompts, rules, drawn
                ),
                autograph=False,
            ),
        )

    def _completion(self, result: dict, row: int, k: int, starts_text: bool) -> Completion:
        length = int(result["lengths"][row, k])
        ids = result["ids"][row, k, :length]
        ended = length > 0 and int(ids[-1]) in self.end_ids
        text = self.detokenizer(ids[: length - ended])
        text = text.removeprefix(" ") if starts_text else text
        log_prob = float(result["log_probs"][row, k])
        return Completion(text, log_prob, length, ended, tuple(map(int, ids)))


GAP = "[MASK]"


@dataclasses.dataclass(eq=False, repr=False)
class SequenceGenerator(TextGenerator):
    """Text generator that answers texts with an encoder-decoder, such as T5 or BART.

    Each `[MASK]` in a text is a gap to fill. If gaps are encoded as sentinels, as in T5, the answer
    contains `[MASK]` before the text of each gap.

    Attributes:
        model: an `EncoderDecoder`, or another model with `init_decode` and `decode_step`.
        longest: maximum number of tokens in an input text, including EOS, and maximum number of
            tokens in an answer. `None` means no limit.
        sentinels: number of sentinels. Gap i of a text, counted from 0, is encoded as sentinel i,
            whose id is the vocabulary size plus i, unless the vocabulary contains sentinels. Gaps
            beyond the number of sentinels are encoded as the last sentinel. Without sentinels,
            every gap is encoded as [MASK].
        source_start: ids at the beginning of every input text.
        answer_start: ids that the decoder reads before an answer; none means BOS. If [CLS] is not
            among them, the model may generate [CLS] itself, as in a BART whose first token is not
            forced.
        end_ids, line_ends: see `TextGenerator`.
    """

    starts: bool = dataclasses.field(default=True, init=False)
    sentinels: int = 0
    source_start: Sequence[int] = ()
    answer_start: Sequence[int] = ()

    def __post_init__(self):
        super().__post_init__()
        vocabulary, special, size = self.vocabulary, self.vocabulary.special, self.vocabulary.size
        self.sentinel_ids = special.sentinels or tuple(range(size, size + self.sentinels))
        self.source_start = tuple(self.source_start)
        self.answer_start = tuple(self.answer_start) or (special.begin,)
        num_extra_ids = self.model.config.vocab_size - size
        token_bytes = [*self.detokenizer.token_bytes, *[b""] * num_extra_ids]
        for token_id in self.sentinel_ids:
            token_bytes[token_id] = f" {GAP}".encode()
        options = (vocabulary.spaces_after, vocabulary.byte_fallback)
        self.detokenizer = Detokenizer(token_bytes, *options)
        self.is_suppressed = np.concatenate([self.is_suppressed, np.ones(num_extra_ids, bool)])
        self.is_suppressed[[*self.sentinel_ids]] = False
        self.is_suppressed[special.begin] = special.begin in {*self.answer_start} - {special.end}

    @property
    def prefill_fn(self) -> None:
        return None

    def rows(self, texts: tf.Tensor) -> tf.RaggedTensor:
        parts = tf.strings.split(as_prompts(texts, self.line_ends), GAP)  # (B, None)
        gap_indices = tf.cast(tf.ragged.range(parts.row_lengths()).values, tf.int32)
        last_gap = tf.cast(tf.gather(parts.row_lengths(), parts.value_rowids()), tf.int32) - 1
        # Keep the space after a gap, because some vocabularies encode it with the next word.
        stripped = tf.strings.regex_replace(parts.values, r"[ \t\r\n]+\z", "")
        texts = tf.where(gap_indices == last_gap, parts.values, stripped)
        ids = tf.cast(self.vocabulary.encode(texts), tf.int32)
        # If a text has more gaps than sentinels, the remaining gaps are the last sentinel.
        gap = self.vocabulary.special.mask
        if ids_of_gaps := self.sentinel_ids:
            gap = tf.gather(ids_of_gaps, tf.minimum(gap_indices, len(ids_of_gaps) - 1))
        ends = tf.where(gap_indices == last_gap, self.vocabulary.special.end, gap)
        ids = tf.concat([ids, ends[:, None]], axis=1)  # (parts, None)
        rows = parts.with_values(ids).merge_dims(1, 2)  # (B, None, None) -> (B, None)
        start = tf.constant([self.source_start], tf.int32)  # (1, N)
        return tf.concat([tf.repeat(start, rows.nrows(), axis=0), rows], axis=1)

    def fits(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        return self.longest is None or length <= self.longest

    def max_new_tokens(self, length: int | tf.Tensor) -> int | tf.Tensor | None:
        return None if self.longest is None else self.longest + 1 - len(self.answer_start)

    def starts_text(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        return length > 0

    def begin(self, prompts: Prompts, capacity: int | None = None) -> tuple[Prompts, Any, Any]:
        start_ids = tf.constant([self.answer_start], tf.int32)
        start_ids = tf.repeat(start_ids, tf.shape(prompts.ids)[0], axis=0)
        lengths = tf.fill(tf.shape(prompts.lengths), len(self.answer_start))
        context_and_cache = self.model.init_decode(prompts.ids, prompts.seeds.shape[1], capacity)
        return prompts._replace(ids=start_ids, lengths=lengths), *context_and_cache
