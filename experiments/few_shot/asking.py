"""A model's answers to a task's prompts, behind K examples."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.few_shot.tasks import PromptTask
from experiments.generate.opening import OpenedModel
from macaron_tf.data.tasks.prompts import Prompt
from macaron_tf.decoding import FilledContext, GenerationConfig, fill_context
from macaron_tf.evaluation.language import calibrated, choice_scores
from macaron_tf.evaluation.reading import score_answers
from macaron_tf.text.normalization import as_prompt

_ANSWER_TOKENS = 16  # of a free answer


@dataclasses.dataclass(frozen=True)
class Asking:
    """Settings of the judging of answers.

    Attributes:
        normalization: of a choice, see `choice_scores`.
        calibrate: of a choice, see `calibrated`.
    """

    normalization: str = "token"
    calibrate: bool = False


class Asker:
    """Asks one model."""

    def __init__(self, opened: OpenedModel, asking: Asking):
        self.opened = opened
        self.asking = asking
        self.scorer = opened.scorer(opened.window)

    def ask(self, task: PromptTask, shots: Sequence[Prompt]) -> dict[str, Any]:
        """Scores a task.

        Args:
            shots: the examples to show, in order; as many of them as fit before each query.

        Returns:
            "score", a fraction; "shown", the mean number of examples before a query; "cut", the
            part of queries that lost their beginning; of last words "perplexity" too.
        """
        examples = self._ids([f"{shot.query} {shot.answers[0]}" for shot in shots])
        queries = self._ids(
            [_query(prompt, zero_shot=not shots) for prompt in task.asked], first=not shots
        )
        if task.form == "free":
            contexts = [
                fill_context(examples, query, self._room(_ANSWER_TOKENS)) for query in queries
            ]
            found = self._free(task, contexts)
        else:
            choices = [self._ids(prompt.choices or prompt.answers) for prompt in task.asked]
            contexts = [
                fill_context(examples, query, self._room(max(map(len, options))))
                for query, options in zip(queries, choices, strict=True)
            ]
            if task.form == "last_word":
                found = self._last_words(contexts, choices)
            else:
                found = self._choices(task, contexts, choices, examples)
        return {
            **found,
            "shown": float(np.mean([context.shown for context in contexts])),
            "cut": float(np.mean([context.cut for context in contexts])),
        }

    def _room(self, answer: int) -> int:
        """Greatest number of ids between [CLS] and an answer of `answer` ids."""
        return max(self.opened.window - 1 - answer, 1)

    def _ids(self, texts: Sequence[str], first: bool = False) -> list[list[int]]:
        """Texts to ids; a text that does not begin a row begins with a space, as any word does."""
        spaced = [as_prompt(text) if first else f" {as_prompt(text).lstrip()}" for text in texts]
        return self.opened.vocabulary.encode_lines(spaced)

    def _choices(
        self,
        task: PromptTask,
        contexts: list[FilledContext],
        choices: list[list[list[int]]],
        examples: list[list[int]],
    ) -> dict[str, Any]:
        scores = self._choice_scores([context.ids for context in contexts], choices)  # (N, C)
        if self.asking.calibrate:
            queries = self._ids(task.content_free, first=not examples)
            scores = self._calibrated(scores, queries, choices, examples)
        labels = np.array([prompt.label for prompt in task.asked])
        predictions = scores.argmax(axis=1)
        return {"score": float(task.measure(predictions, labels))}

    def _calibrated(
        self,
        scores: np.ndarray,
        queries: list[list[int]],
        choices: list[list[list[int]]],
        examples: list[list[int]],
    ) -> np.ndarray:
        """The scores, calibrated by those of the same choices behind queries about nothing."""
        of_sets: dict[str, np.ndarray] = {}
        for row, options in enumerate(choices):
            name = repr(options)
            if name not in of_sets:
                room = self._room(max(map(len, options)))
                contexts = [fill_context(examples, query, room).ids for query in queries]
                of_sets[name] = self._choice_scores(contexts, [options] * len(contexts))
            scores[row] = calibrated(scores[row : row + 1], of_sets[name])[0]
        return scores

    def _choice_scores(
        self, contexts: list[list[int]], choices: list[list[list[int]]]
    ) -> np.ndarray:
        """(N, C) scores of N contexts with C choices each."""
        pairs = [
            (context, option)
            for context, options in zip(contexts, choices, strict=True)
            for option in options
        ]
        found = self.scorer.score(pairs)
        shape = (len(contexts), len(choices[0]))
        return choice_scores(
            found.log_probs.reshape(shape), found.lengths.reshape(shape), self.asking.normalization
        )

    def _last_words(
        self, contexts: list[FilledContext], words: list[list[list[int]]]
    ) -> dict[str, Any]:
        pairs = [(context.ids, word) for context, [word] in zip(contexts, words, strict=True)]
        found = self.scorer.score(pairs)
        return {
            "score": float(found.greedy.mean()),
            "perplexity": math.exp(min(-float(found.log_probs.mean()), 700.0)),
        }

    def _free(self, task: PromptTask, contexts: list[FilledContext]) -> dict[str, Any]:
        generator = self.opened.generator()
        config = GenerationConfig(temperature=0.0, max_tokens=_ANSWER_TOKENS)
        rows = [[*generator.prefix, *context.ids] for context in contexts]
        found = generator.continue_rows(rows, config)
        answers = [_first_answer(completions[0].text) for completions in found]
        truths = [prompt.answers for prompt in task.asked]
        scores = score_answers(answers, truths)
        return {"score": scores["f1"], "exact": scores["exact"]}


def _query(prompt: Prompt, zero_shot: bool) -> str:
    bare = zero_shot and prompt.bare_query is not None
    return prompt.bare_query if bare else prompt.query


def _first_answer(text: str) -> str:
    """A free answer ends with its line, or where the next question would begin."""
    return text.split("\n")[0].split("Question:")[0].strip()
