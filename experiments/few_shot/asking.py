"""A model's answers to a task's prompts, behind K examples."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.few_shot.tasks import PromptTask
from experiments.generate.opening import OpenedModel
from macaron_tf.data.tasks.prompts import Prompt
from macaron_tf.decoding import GenerationConfig, fill_context
from macaron_tf.evaluation.language import calibrated, choice_scores
from macaron_tf.evaluation.reading import score_answers
from macaron_tf.text.normalization import as_prompt

_ANSWER_TOKENS = 16  # of a free answer
Ids = list[int]


@dataclasses.dataclass(eq=False)
class Asker:
    """Asks one model.

    Attributes:
        normalization: of a choice, see `choice_scores`.
        calibrate: whether scores of a choice are `calibrated`.
    """

    opened: OpenedModel
    normalization: str = "token"
    calibrate: bool = False

    def __post_init__(self):
        self.scorer = self.opened.scorer(self.opened.window)

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
        choices, longest = [], [_ANSWER_TOKENS] * len(queries)
        if task.form != "free":
            choices = [self._ids(prompt.choices or prompt.answers) for prompt in task.asked]
            longest = [max(map(len, options)) for options in choices]
        filled = [
            fill_context(examples, query, self._room(most))
            for query, most in zip(queries, longest, strict=True)
        ]
        contexts = [context.ids for context in filled]
        if task.form == "free":
            found = self._free(task, contexts)
        elif task.form == "last_word":
            found = self._last_words(contexts, choices)
        else:
            found = self._choices(task, contexts, choices, examples)
        return {
            **found,
            "shown": float(np.mean([context.shown for context in filled])),
            "cut": float(np.mean([context.cut for context in filled])),
        }

    def _room(self, answer: int) -> int:
        """Greatest number of ids between [CLS] and an answer of `answer` ids."""
        return max(self.opened.window - 1 - answer, 1)

    def _ids(self, texts: Sequence[str], first: bool = False) -> list[Ids]:
        """Texts to ids; a text that does not begin a row begins with a space, as any word does."""
        spaced = [as_prompt(text) if first else f" {as_prompt(text).lstrip()}" for text in texts]
        return self.opened.vocabulary.encode_lines(spaced)

    def _choices(
        self, task: PromptTask, contexts: list[Ids], choices: list[list[Ids]], examples: list[Ids]
    ) -> dict[str, Any]:
        scores = self._choice_scores(contexts, choices)  # (N, C)
        if self.calibrate:
            # By the scores of the same choices behind queries about nothing.
            queries = self._ids(task.content_free, first=not examples)
            of_sets: dict[str, np.ndarray] = {}
            for row, options in enumerate(choices):
                if (name := repr(options)) not in of_sets:
                    room = self._room(max(map(len, options)))
                    empty = [fill_context(examples, query, room).ids for query in queries]
                    of_sets[name] = self._choice_scores(empty, [options] * len(empty))
                scores[row] = calibrated(scores[row : row + 1], of_sets[name])[0]
        labels = np.array([prompt.label for prompt in task.asked])
        return {"score": float(task.measure(scores.argmax(axis=1), labels))}

    def _choice_scores(self, contexts: list[Ids], choices: list[list[Ids]]) -> np.ndarray:
        """(N, C) scores of N contexts with C choices each."""
        pairs = zip(contexts, choices, strict=True)
        found = self.scorer.score([(ids, option) for ids, options in pairs for option in options])
        shape = (len(contexts), len(choices[0]))
        return choice_scores(
            found.log_probs.reshape(shape), found.lengths.reshape(shape), self.normalization
        )

    def _last_words(self, contexts: list[Ids], words: list[list[Ids]]) -> dict[str, Any]:
        found = self.scorer.score(
            [(ids, word) for ids, [word] in zip(contexts, words, strict=True)]
        )
        perplexity = math.exp(min(-float(found.log_probs.mean()), 700.0))
        return {"score": float(found.greedy.mean()), "perplexity": perplexity}

    def _free(self, task: PromptTask, contexts: list[Ids]) -> dict[str, Any]:
        generator = self.opened.generator()
        config = GenerationConfig(temperature=0.0, max_tokens=_ANSWER_TOKENS)
        found = generator.continue_rows([[*generator.prefix, *ids] for ids in contexts], config)
        # An answer ends with its line, or where the next question would begin.
        answers = [one.text.split("\n")[0].split("Question:")[0].strip() for [one] in found]
        scores = score_answers(answers, [prompt.answers for prompt in task.asked])
        return {"score": scores["f1"], "exact": scores["exact"]}


def _query(prompt: Prompt, zero_shot: bool) -> str:
    bare = zero_shot and prompt.bare_query is not None
    return prompt.bare_query if bare else prompt.query
