"""Text generation: continuing texts with a language model, answering with an encoder-decoder."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from macaron_tf.decoding.sampling import (
    Controls,
    DrawSettings,
    GenerationConfig,
    PrefillFunction,
    Prompts,
    Rules,
    advance,
    first_state,
    generate,
)
from macaron_tf.decoding.scoring import padded
from macaron_tf.errors import UserError, check_whole
from macaron_tf.special_ids import BOS, EOS
from macaron_tf.text.base import Detokenizer, PieceVocabulary
from macaron_tf.text.normalization import as_prompt, as_prompts


class FilledContext(NamedTuple):
    """A few-shot prompt, the input before an answer.

    Attributes:
        ids: the examples that fit, in order, and the query; without [CLS].
        shown: number of examples.
        cut: whether the query alone was too long, so that its beginning was cut off.
    """

    ids: list[int]
    shown: int
    cut: bool


def fill_context(
    examples: Sequence[Sequence[int]], query: Sequence[int], room: int
) -> FilledContext:
    """Puts examples before a query. Examples that do not fit are skipped; later ones may fit.

    Args:
        examples: ids of each example with its answer, in order of preference.
        query: ids of the query.
        room: most ids before the answer.

    References: Brown et al. 2020 (GPT-3), section 2.4.
    """
    if len(query) > room:
        return FilledContext(list(query[len(query) - room :]), 0, True)
    left, kept = room - len(query), []
    for example in examples:
        if len(example) <= left:
            kept.append(example)
            left -= len(example)
    return FilledContext([i for ids in (*kept, query) for i in ids], len(kept), False)


_BATCH = 32  # texts per batch
_ROOM = 64  # a stream's cache holds a multiple of 64 tokens, so that few shapes are traced


@dataclasses.dataclass(frozen=True)
class Completion:
    """The continuation of a prompt.

    Attributes:
        text: text without the prompt; it begins with a space if it begins a word.
        log_prob: log-probability (natural logarithm) of its tokens.
        length: number of its tokens, with the token that ends it.
        ended: whether the text ended before its limit.
        ids: ids of its tokens.
    """

    text: str
    log_prob: float
    length: int
    ended: bool
    ids: tuple[int, ...] = ()


class TextGenerator:
    """Continues texts with a language model, in the form of training rows: [CLS], text, [SEP].

    Args:
        model: has `init_decode`, `decode_step`, `can_prefill` and `prefill`, see `LanguageModel`.
        vocabulary: of the model.
        longest: greatest length of a row with [CLS] and [SEP]; None: no limit.
        starts: whether a row begins with [CLS]. Without it a prompt must not be empty.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: PieceVocabulary,
        longest: int | None = None,
        starts: bool = True,
    ):
        self.model = model
        self.vocabulary = vocabulary
        self.longest = longest
        self.prefix = [vocabulary.cls_id] if starts else []
        self.detokenizer = vocabulary.detokenizer
        special = np.isin(np.arange(vocabulary.size), vocabulary.special_ids)
        self.barred = special | (np.arange(vocabulary.size) >= vocabulary.pieces)
        self.barred[vocabulary.sep_id] = False
        self._forget()

    def _forget(self) -> None:
        self._whole = functools.cache(self._make_whole)
        self._step = functools.cache(self._make_step)
        self._begin = tf.function(
            lambda *given: first_state(*given, self.prefill_fn), autograph=False
        )

    def options(self) -> dict[str, Any]:
        """The constructor's arguments besides model and vocabulary, as JSON values."""
        return {"longest": self.longest, "starts": bool(self.prefix)}

    def asking(self, model: Any) -> Self:
        """Returns a copy that uses another model of the same kind, such as a `LiteDecoder`."""
        made = copy.copy(self)
        made.model = model
        made._forget()
        return made

    def row(self, text: str) -> list[int]:
        """Encodes a text as the model's input: [CLS] and the ids of `as_prompt(text)`.

        Raises:
            UserError: the text leaves the model no room to continue it.
        """
        check_whole([text])
        row = self._encode(text)
        if not row:
            raise UserError("the model cannot begin a text, only continue one: give some text")
        if self.fits(len(row)):
            return row
        raise UserError(
            f"the text {text[:40]!r}... has {len(row)} tokens, too many for the model's "
            f"{self.longest} positions: shorten it, so that there is room to continue"
        )

    def _encode(self, text: str) -> list[int]:
        return [*self.prefix, *self.vocabulary.encode_lines([as_prompt(text)])[0]]

    def rows(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """`row` in a graph, without its checks: `(B,)` strings to `(B, None)` int32."""
        ids = tf.cast(self.vocabulary.encode(as_prompts(texts)), tf.int32)  # (B, None)
        prefix = tf.constant([self.prefix], tf.int32)  # (1, 1) or (1, 0)
        return tf.concat([tf.repeat(prefix, tf.shape(texts)[0], axis=0), ids], axis=1)

    def fits(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        """Whether the model can continue a row of `length` ids."""
        return length > 0 if self.longest is None else (length > 0) & (length < self.longest)

    def room(self, length: int | tf.Tensor) -> int | tf.Tensor | None:
        """Number of new tokens that fit after a row of `length` ids; None: no limit."""
        return None if self.longest is None else self.longest - length

    def begins(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        """Whether the continuation of a row of `length` ids begins a text, without a space."""
        return length == len(self.prefix)

    def begin(self, rows: Prompts, room: int | None = None) -> tuple[Prompts, Any, Any]:
        """Returns the decoder's prompts for rows, and the context and cache of their samples."""
        count, samples = tf.shape(rows.ids)[0], rows.seeds.shape[1]
        return rows, *self.model.init_decode(count, samples, room)

    @property
    def prefill_fn(self) -> PrefillFunction | None:
        """See `first_state`; None for models that read prompts token by token."""
        return self.model.prefill if self.model.can_prefill else None

    def generate(self, rows: Prompts, rules: Rules) -> dict[str, tf.Tensor]:
        """Continues rows in a graph, see `sampling.generate`."""
        prompts, context, cache = self.begin(rows)
        step, most = self.model.decode_step, tf.maximum(tf.reduce_max(rows.limits), 1)
        return generate(step, context, cache, prompts, rules, most, self.prefill_fn)

    def rules(self, controls: Controls | DrawSettings, min_tokens: int = 0) -> Rules:
        """Returns the rules for choosing tokens of this vocabulary."""
        end = self.vocabulary.sep_id
        return Rules(controls, end, lambda ids: tf.constant(self.barred), min_tokens)

    def complete(
        self, texts: Sequence[str], config: GenerationConfig | None = None, seed: int = 1
    ) -> list[list[Completion]]:
        """Continues texts, in batches.

        Args:
            texts: prompts; "" begins a text.
            config: settings of sampling; None: the defaults.
            seed: sample k of every text uses `seed + k`, so that a text's samples depend on the
                text, the settings and the seed only.

        Returns:
            `config.num_samples` completions of each text.
        """
        return self.continue_rows([self.row(text) for text in texts], config, seed)

    def continue_rows(
        self, rows: Sequence[list[int]], config: GenerationConfig | None = None, seed: int = 1
    ) -> list[list[Completion]]:
        """As `complete`, for rows of ids that `row` returned."""
        config = config or GenerationConfig()
        found: list[list[Completion]] = [[]] * len(rows)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        whole = self._whole(config)
        for first in range(0, len(order), _BATCH):
            batch = order[first : first + _BATCH]
            asked = self._asked([rows[index] for index in batch], config, seed)
            result = {name: value.numpy() for name, value in whole(asked).items()}
            for number, index in enumerate(batch):
                fresh = self.begins(len(rows[index]))
                found[index] = [
                    self._completion(result, number, k, fresh) for k in range(config.num_samples)
                ]
        return found

    def stream(
        self, text: str, config: GenerationConfig | None = None, seed: int = 1
    ) -> Iterator[str]:
        """Yields the first sample of `complete` in non-empty parts, as soon as they are drawn.

        If the model's token mixers are recurrent, a token's time does not grow with the text.
        """
        config = dataclasses.replace(config or GenerationConfig(), num_samples=1)
        row = self.row(text)
        # Room for the prompt and the new tokens, rounded up, because each width is traced.
        width = -(-(len(row) + config.max_tokens - 1) // _ROOM) * _ROOM
        width = width if self.longest is None else min(width, self.longest)
        prompts, context, cache = self.begin(self._asked([row], config, seed, width), width)
        step = self._step(config)
        state = self._begin(prompts, context, cache)
        detokenizer, fresh = self.detokenizer.stream(), self.begins(len(row))
        while not bool(state.ended[0, 0]):
            state, new = step(state, context, prompts)
            if int(state.index) < int(prompts.lengths[0]):
                continue  # still in the prompt
            part = detokenizer.add(int(new[0, 0]))
            shown = part.removeprefix(" ") if fresh else part
            fresh = fresh and not part
            if shown:
                yield shown
        if rest := detokenizer.end():
            yield rest

    def _asked(
        self, rows: list[list[int]], config: GenerationConfig, seed: int, width: int = 0
    ) -> Prompts:
        lengths = np.array([len(row) for row in rows], np.int32)
        rooms = [self.room(len(row)) for row in rows]
        most = config.max_tokens
        limits = np.array([most if room is None else min(most, room) for room in rooms], np.int32)
        seeds = (seed % 2**32 + np.arange(config.num_samples)).astype(np.int32)
        seeds = np.tile(seeds, (len(rows), 1))  # (B, K)
        return Prompts(*map(tf.constant, (padded(rows, width), lengths, limits, seeds)))

    def _make_whole(self, config: GenerationConfig) -> Callable[[Prompts], dict[str, tf.Tensor]]:
        rules = self.rules(config, config.min_tokens)
        # One trace for all shapes; autograph off: all control flow is tf.while_loop.
        shapes = ((None, None), (None,), (None,), (None, config.num_samples))
        signature = Prompts(*(tf.TensorSpec(shape, tf.int32) for shape in shapes))
        return tf.function(
            lambda rows: self.generate(rows, rules), input_signature=[signature], autograph=False
        )

    def _make_step(self, config: GenerationConfig) -> Callable:
        rules = self.rules(config, config.min_tokens)
        return tf.function(
            lambda *given: advance(self.model.decode_step, *given, rules), autograph=False
        )

    def _completion(self, result: dict, row: int, k: int, fresh: bool) -> Completion:
        length = int(result["lengths"][row, k])
        ids = result["ids"][row, k, :length]
        text = self.detokenizer(ids)
        return Completion(
            text=text.removeprefix(" ") if fresh else text,
            log_prob=float(result["log_probs"][row, k]),
            length=length,
            ended=bool(length) and int(ids[-1]) == self.vocabulary.sep_id,
            ids=tuple(map(int, ids)),
        )


HOLE = "[MASK]"


class SequenceGenerator(TextGenerator):
    """Answers texts with an encoder-decoder; a `[MASK]` in a text is a gap to fill.

    The source is the text and EOS, and the decoder begins with BOS. If gaps are sentinels, as in
    T5, the answer has `[MASK]` before the text of each gap.

    Args:
        model: has `init_decode` and `decode_step`, see `EncoderDecoder`.
        vocabulary: of the model.
        longest: most tokens of a source with EOS, and of an answer; None: no limit.
        sentinels: number of sentinels, ids above the vocabulary's, one for each gap in turn; 0:
            every gap is the vocabulary's [MASK].
        source_start: ids before a text.
        answer_start: ids that the decoder reads before an answer.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: PieceVocabulary,
        longest: int | None = None,
        sentinels: int = 0,
        source_start: Sequence[int] = (),
        answer_start: Sequence[int] = (BOS,),
    ):
        super().__init__(model, vocabulary, longest)
        self.sentinels = sentinels
        self.source_start, self.answer_start = tuple(source_start), tuple(answer_start)
        rows = model.config.vocab_size - vocabulary.size
        token_bytes = [*self.detokenizer.token_bytes, *[f" {HOLE}".encode()] * rows]
        self.detokenizer = Detokenizer(
            token_bytes, vocabulary.spaces_after, vocabulary.byte_fallback
        )
        self.barred = np.concatenate([self.barred, np.arange(rows) >= sentinels])

    def options(self) -> dict[str, Any]:
        starts = {"source_start": self.source_start, "answer_start": self.answer_start}
        return {"longest": self.longest, "sentinels": self.sentinels, **starts}

    @property
    def prefill_fn(self) -> None:
        return None

    def _encode(self, text: str) -> list[int]:
        return self.rows(tf.constant([as_prompt(text)]))[0].numpy().tolist()

    def rows(self, texts: tf.Tensor) -> tf.RaggedTensor:
        parts = tf.strings.split(as_prompts(texts), HOLE)  # (B, None)
        # Keep the space after a gap: in some vocabularies it is part of the next word.
        texts = tf.strings.regex_replace(parts.values, r"[ \t\r\n]+\z", "")
        ids = tf.cast(self.vocabulary.encode(texts), tf.int32)
        numbers = tf.cast(tf.ragged.range(parts.row_lengths()).values, tf.int32)
        last = tf.cast(tf.gather(parts.row_lengths(), parts.value_rowids()), tf.int32) - 1
        # Gaps beyond the last sentinel repeat it.
        gap = self.vocabulary.mask_id
        if self.sentinels:
            gap = self.vocabulary.size + tf.minimum(numbers, self.sentinels - 1)
        ends = tf.where(numbers == last, EOS, gap)
        ids = tf.concat([ids, ends[:, None]], axis=1)  # (parts, None)
        rows = parts.with_values(ids).merge_dims(1, 2)  # (B, None, None) -> (B, None)
        start = tf.constant([self.source_start], tf.int32)  # (1, N)
        return tf.concat([tf.repeat(start, rows.nrows(), axis=0), rows], axis=1)

    def fits(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        return self.longest is None or length <= self.longest

    def room(self, length: int | tf.Tensor) -> int | tf.Tensor | None:
        return None if self.longest is None else self.longest + 1 - len(self.answer_start)

    def begins(self, length: int | tf.Tensor) -> bool | tf.Tensor:
        return length > 0

    def begin(self, rows: Prompts, room: int | None = None) -> tuple[Prompts, Any, Any]:
        start = tf.repeat(tf.constant([self.answer_start], tf.int32), tf.shape(rows.ids)[0], axis=0)
        lengths = tf.fill(tf.shape(rows.lengths), len(self.answer_start))
        found = self.model.init_decode(rows.ids, rows.seeds.shape[1], room)
        return rows._replace(ids=start, lengths=lengths), *found
