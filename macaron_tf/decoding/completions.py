"""Text to text with a language model: prompts in, what follows them out."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.spelling import SpelledStream, as_prompt, spelled
from macaron_tf.decoding.config import GenerationConfig
from macaron_tf.decoding.drawing import Controls
from macaron_tf.decoding.generation import Prompts, Rules, State, advance, generate, stream
from macaron_tf.errors import UserError
from macaron_tf.special_ids import PAD

_BATCH = 32  # texts continued together
_ROOM = 64  # a stream's cache holds a multiple of this many tokens: few shapes to trace


@dataclasses.dataclass(frozen=True)
class Completion:
    """What follows a prompt.

    Args:
        text: without the prompt; it begins with a space where a word begins.
        log_prob: log P of its tokens, natural logarithm.
        length: its tokens, that of the end included.
        ended: whether the text ended by itself, not at a limit.
    """

    text: str
    log_prob: float
    length: int
    ended: bool


class TextGenerator:
    """Continues texts as the rows go on that a model was trained on: [CLS], the text, [SEP].

    Args:
        model: has `start(batch_size, beam_size, max_length) -> (context, cache)` and `step(tokens,
            index, context, cache) -> (logits, cache)`, see `LanguageModel`.
        vocabulary: the one it was trained with.
        longest: tokens of a row, [CLS] and [SEP] included, beyond which the model knows no
            position; None = any number.
    """

    def __init__(self, model: Any, vocabulary: PieceVocabulary, longest: int | None = None):
        self.model = model
        self.vocabulary = vocabulary
        self.longest = longest
        self.spellings = vocabulary.spellings()
        special = np.isin(np.arange(vocabulary.size), vocabulary.special_ids)
        self.barred = special | (np.arange(vocabulary.size) >= vocabulary.pieces)
        self.barred[vocabulary.sep_id] = False
        self._whole = functools.cache(self._make_whole)
        self._step = functools.cache(self._make_step)

    def prompt(self, text: str) -> list[int]:
        """The ids of a text, [CLS] before it; see `as_prompt`.

        Raises:
            UserError: it leaves the model no room to go on.
        """
        ids = [self.vocabulary.cls_id, *self.vocabulary.encode_lines([as_prompt(text)])[0]]
        if self.longest is not None and len(ids) >= self.longest:
            raise UserError(
                f"the text {text[:40]!r}... has {len(ids)} tokens and the model's rows "
                f"{self.longest}: shorten it, so that there is room to go on"
            )
        return ids

    def limit(self, length: int, max_tokens: int) -> int:
        """New tokens at most behind a prompt of `length` ids."""
        return max_tokens if self.longest is None else min(max_tokens, self.longest - length)

    def rules(self, controls: Controls, min_tokens: int = 0) -> Rules:
        """What a draw follows with this vocabulary."""
        return Rules(controls, self.vocabulary.sep_id, self.barred, min_tokens)

    def complete(
        self, texts: Sequence[str], config: GenerationConfig | None = None, seed: int = 1
    ) -> list[list[Completion]]:
        """Continues texts, in batches.

        Args:
            texts: any number of prompts; "" begins a text.
            config: the settings.
            seed: sample k of every text draws with seed + k: a text's samples depend on it, the
                settings and the seed alone.

        Returns:
            For each text its `config.num_samples` completions.

        Raises:
            UserError: as `prompt`.
        """
        return self.continue_rows([self.prompt(text) for text in texts], config, seed)

    def continue_rows(
        self, rows: Sequence[list[int]], config: GenerationConfig | None = None, seed: int = 1
    ) -> list[list[Completion]]:
        """`complete` of ids, [CLS] first, that leave the model room to go on."""
        config = config or GenerationConfig()
        found: list[list[Completion]] = [[]] * len(rows)
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        whole = self._whole(config)
        for first in range(0, len(order), _BATCH):
            places = order[first : first + _BATCH]
            prompts = self._prompts([rows[place] for place in places], config, seed)
            result = {name: value.numpy() for name, value in whole(prompts).items()}
            for number, place in enumerate(places):
                fresh = len(rows[place]) == 1
                found[place] = [
                    self._completion(result, number, k, fresh) for k in range(config.num_samples)
                ]
        return found

    def stream(
        self, text: str, config: GenerationConfig | None = None, seed: int = 1
    ) -> Iterator[str]:
        """One completion, in pieces as they come: those of `complete`'s first sample.

        The work of a token does not grow with the text where the model's mixers are recurrent.

        Args:
            text: the prompt. config, seed: as for `complete`; `num_samples` does not count.

        Yields:
            Parts of the text, none empty.

        Raises:
            UserError: as `prompt`.
        """
        config = dataclasses.replace(config or GenerationConfig(), num_samples=1)
        row = self.prompt(text)
        room = len(row) + self.limit(len(row), config.max_tokens) - 1
        room = -(-room // _ROOM) * _ROOM
        room = room if self.longest is None else min(room, self.longest)
        prompts = self._prompts([row], config, seed, room)
        tokens = stream(lambda prompts: self.model.start(1, 1, room), self._step(config), prompts)
        spelling, fresh = SpelledStream(self.spellings), len(row) == 1
        for new in tokens:
            part = spelling.add(new[0, 0])
            shown = part.removeprefix(" ") if fresh else part
            fresh = fresh and not part
            if shown:
                yield shown
        if rest := spelling.end():
            yield rest

    def _prompts(
        self, rows: list[list[int]], config: GenerationConfig, seed: int, width: int = 0
    ) -> Prompts:
        lengths = np.array([len(row) for row in rows], np.int32)
        ids = np.full((len(rows), max(width, lengths.max())), PAD, np.int32)
        for padded, row in zip(ids, rows, strict=True):
            padded[: len(row)] = row
        limits = [self.limit(len(row), config.max_tokens) for row in rows]
        seeds = (seed % 2**32 + np.arange(config.num_samples)).astype(np.int32)
        seeds = np.tile(seeds, (len(rows), 1))  # (B, K)
        return Prompts(*map(tf.constant, (ids, lengths, np.array(limits, np.int32), seeds)))

    def _make_whole(self, config: GenerationConfig) -> Callable[[Prompts], dict]:
        rules, samples = self.rules(_controls(config), config.min_tokens), config.num_samples

        def whole(ids, lengths, limits, seeds):
            prompts = Prompts(ids, lengths, limits, seeds)
            context, cache = self.model.start(tf.shape(ids)[0], samples)
            most = tf.reduce_max(limits)
            return generate(self.model.step, context, cache, prompts, rules, most)

        # One trace for all shapes; autograph off: all control flow is tf.while_loop's.
        signature = [
            tf.TensorSpec((None, None), tf.int32),
            tf.TensorSpec((None,), tf.int32),
            tf.TensorSpec((None,), tf.int32),
            tf.TensorSpec((None, samples), tf.int32),
        ]
        function = tf.function(whole, input_signature=signature, autograph=False)
        return lambda prompts: function(*prompts)

    def _make_step(self, config: GenerationConfig) -> Callable:
        rules = self.rules(_controls(config), config.min_tokens)

        def step(state: State, context: Any, prompts: Prompts) -> tuple[State, tf.Tensor]:
            return advance(self.model.step, state, context, prompts, rules)

        return tf.function(step, autograph=False)

    def _completion(self, result: dict, row: int, k: int, fresh: bool) -> Completion:
        length = int(result["lengths"][row, k])
        ids = result["ids"][row, k, :length]
        text = spelled(self.spellings, ids)
        return Completion(
            text=text.removeprefix(" ") if fresh else text,
            log_prob=float(result["log_probs"][row, k]),
            length=length,
            ended=bool(length) and int(ids[-1]) == self.vocabulary.sep_id,
        )


def _controls(config: GenerationConfig) -> Controls:
    return Controls(config.temperature, config.top_k, config.top_p)
