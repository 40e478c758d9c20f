"""The pairs of a text-to-text task, and what its answers are worth."""

import dataclasses
from collections.abc import Sequence

from experiments.text_to_text.recipe import PREFIXES, TextRecipe
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.reading import Examples, read_examples
from macaron_tf.data.tasks.text_tasks import answer_text, as_texts, read_answer, read_answers
from macaron_tf.errors import UserError
from macaron_tf.evaluation import glue
from macaron_tf.evaluation.language import rouge
from macaron_tf.evaluation.translation import evaluate_translations


@dataclasses.dataclass(frozen=True)
class TextPairs:
    """A split of a task.

    Attributes:
        task: its name.
        pairs: (source, target) lines.
        examples: of a task with classes or scores.
    """

    task: str
    pairs: list[tuple[str, str]]
    examples: Examples | None = None

    @classmethod
    def read(
        cls, recipe: TextRecipe, split: str, data_dir: str | None = None, download: bool = False
    ) -> "TextPairs":
        """Reads a split.

        Args:
            recipe: names the task and the source.
            split: its split.
            data_dir, download: as for `macaron_tf.data.read_pairs`.

        Raises:
            UserError: the source cannot be read.
        """
        if recipe.task in PREFIXES:
            pairs = read_pairs(recipe.source, split, *recipe.fields, data_dir, download)
            # Each side in one line; e-mails have many.
            pairs = [tuple(" ".join(text.split()) for text in pair) for pair in pairs]
            prefix = PREFIXES[recipe.task]
            return cls(recipe.task, [(prefix + text, answer) for text, answer in pairs])
        task = get_task(recipe.task)
        examples = read_examples(task, split, data_dir, download, recipe.source)
        return cls(recipe.task, as_texts(task, examples), examples)

    def first(self, count: int | None) -> "TextPairs":
        """The first examples alone."""
        if count is None or count >= len(self.pairs):
            return self
        examples = self.examples
        if examples is not None:
            columns = (getattr(examples, field.name) for field in dataclasses.fields(examples))
            examples = Examples(*(None if one is None else one[:count] for one in columns))
        return TextPairs(self.task, self.pairs[:count], examples)

    def score(self, answers: Sequence[str]) -> dict[str, float]:
        """The task's metrics of an answer for each pair, `"score"` being the main one."""
        targets = [target for _, target in self.pairs]
        if self.task == "summarization":
            found = rouge(answers, targets)
            return {**found, "score": found["rougeL"]}
        if self.task == "translation":
            scores = evaluate_translations(answers, targets)
            return {"bleu": scores.bleu, "chrf": scores.chrf, "score": scores.bleu}
        task, labels = get_task(self.task), self.examples.labels
        predictions = read_answers(task, answers, labels)
        return glue.score(task, predictions, labels, self.examples.groups)


def check_answers(task: str, vocabulary) -> None:
    """Refuses a vocabulary that cannot say a task's answers.

    Args:
        task: its name.
        vocabulary: has `encode_lines` and `decode_lines`.

    Raises:
        UserError: an answer does not come back; the sentence names it.
    """
    if task in PREFIXES:
        return
    named = get_task(task)
    labels = range(named.num_classes) if named.labels else (3.8,)
    answers = [answer_text(named, label) for label in labels]
    back = vocabulary.decode_lines(vocabulary.encode_lines(answers))
    for label, answer, found in zip(labels, answers, back, strict=True):
        if read_answer(named, found) != label:
            raise UserError(
                f"the vocabulary makes {found!r} of the answer {answer!r} of {task}: pre-train "
                "with a larger one, or on text that has such words"
            )


def metric_names(task: str) -> tuple[str, ...]:
    """What a validation measures."""
    losses = ("loss", "nll", "perplexity", "accuracy")
    if task in PREFIXES:
        own = {"summarization": ("rouge1", "rouge2", "rougeL"), "translation": ("bleu", "chrf")}
        return (*losses, *own[task], "score")
    named = get_task(task)
    own = [f"task_{name}" for name in (*named.metrics, *named.more_metrics)]
    return (*losses, *own, "score")
