"""Prompts: examples of tasks as questions in words, for a language model that is not fine-tuned."""

import dataclasses
from collections.abc import Sequence

from macaron_tf.data.sources.names import Source
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.tasks.questions import Questions
from macaron_tf.data.tasks.tables import Table
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of

# How questions are asked: as here at first, or as the papers of GPT-2 and GPT-3 print them.
QUESTIONS = {"plain": "Question: {}\nAnswer:", **dict.fromkeys(("gpt2", "gpt3"), "Q: {}\nA:")}
_LANGUAGES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French"}
_LANGUAGES |= {"it": "Italian", "nl": "Dutch", "pt": "Portuguese", "ro": "Romanian"}

# Texts that say nothing (Zhao et al. 2021, section 4).
CONTENT_FREE = ("N/A", "[MASK]", "")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One example, asked in words.

    Attributes:
        query: the text up to the answer, without a space at its end.
        answers: the right answers, one or more.
        choices: all answers to choose from, the same number for every example of a task; none
            where the answer is free.
        label: number of the right choice, from 0; None where the answer is free.
        bare_query: the query without examples before it, where that differs.
    """

    query: str
    answers: tuple[str, ...]
    choices: tuple[str, ...] = ()
    label: int | None = None
    bare_query: str | None = None


@dataclasses.dataclass(frozen=True)
class Template:
    """A classification task as a question in words.

    Attributes:
        text: with {first}, and {second} for a task on two texts.
        words: the word of each class, class 0 first.

    Example:
        Template("Review: {first}\\nSentiment:", ("negative", "positive"))
    """

    text: str
    words: tuple[str, ...]

    def __post_init__(self):
        try:
            filled = self.text.format(first="\0", second="\0")
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise UserError(
                f"the template {self.text!r} has other fields than {{first}} and {{second}}"
            ) from error
        if "\0" not in filled:
            raise UserError(f"the template {self.text!r} does not say {{first}}")
        if not all(map(str.strip, self.words)) or len(set(self.words)) < len(self.words):
            raise UserError(f"the classes' words {self.words!r} must differ, and none be empty")

    def query(self, first: str, second: str | None = None) -> str:
        return self.text.format(first=first, second="" if second is None else second).rstrip()


_YES = ("yes", "no")
_THREE = Template(
    "{first}\nQuestion: {second} True, false or neither?\nAnswer:", ("true", "neither", "false")
)
TEMPLATES = {
    "cola": Template("Sentence: {first}\nIs the sentence good English?", _YES[::-1]),
    "sst2": Template("Review: {first}\nSentiment:", ("negative", "positive")),
    "mrpc": Template("First: {first}\nSecond: {second}\nDo both say the same?", _YES[::-1]),
    "qqp": Template("First: {first}\nSecond: {second}\nDo both ask the same?", _YES[::-1]),
    **dict.fromkeys(("mnli", "snli", "xnli"), _THREE),
    "qnli": Template("{second}\nDoes this answer the question: {first}\nAnswer:", _YES),
    "rte": Template("{first}\nQuestion: {second} True or false?\nAnswer:", ("true", "false")),
    "wnli": Template("{first}\nQuestion: {second} True or false?\nAnswer:", ("false", "true")),
    "boolq": Template("{first}\nQuestion: {second}?\nAnswer:", _YES[::-1]),
    "multirc": Template("{first}\nQuestion and answer: {second}\nIs it right?", _YES[::-1]),
}


def classification_prompts(task: Task, examples: Examples, template: Template) -> list[Prompt]:
    if task.kind != "classification" or task.regression:
        raise UserError(f"the task {task.name!r} has no classes to name: take another")
    if len(template.words) != task.num_classes:
        raise UserError(
            f"{len(template.words)} words for the {task.num_classes} classes of {task.name!r}: "
            f"give one for each of {', '.join(task.labels)}"
        )
    if examples.labels is None:
        raise UserError(f"these examples of {task.name!r} have no labels: take another split")
    second = examples.second or [None] * len(examples)
    return [
        Prompt(template.query(a, b), (template.words[label],), template.words, int(label))
        for a, b, label in zip(examples.first, second, examples.labels, strict=True)
    ]


def question_prompts(questions: Questions, style: str = "plain") -> list[Prompt]:
    """Questions about a text, to be answered in free form; the style is one of `QUESTIONS`."""
    before = "Background: " if style == "gpt3" else ""  # Brown et al. 2020, appendix G
    if questions.labels is None:
        raise UserError("these questions have no answers to judge by: take another split")
    rows = zip(questions.contexts, questions.questions, questions.labels, strict=True)
    return [
        Prompt(
            f"{before}{context}\n{QUESTIONS[style].format(question)}",
            tuple(a.text for a in answers) or ("",),
        )
        for context, question, answers in rows
    ]


def summary_prompts(pairs: Sequence[tuple[str, str]]) -> list[Prompt]:
    """Texts and their summaries (Radford et al. 2019, GPT-2, section 3.6)."""
    return [Prompt(f"{text}\nTL;DR:", (summary,)) for text, summary in _whole(pairs)]


def translation_prompts(
    pairs: Sequence[tuple[str, str]], language: str, style: str = "gpt2"
) -> list[Prompt]:
    """Sentences and their translations: "SENTENCE =" (Radford et al. 2019, section 3.7).

    In GPT-3's style a sentence without examples is a question in words (Brown et al. 2020,
    appendix G).

    Args:
        language: its code, such as "fr".
    """
    asked = f"Q: What is the {_LANGUAGES.get(language, language)} translation of {{}} A:"
    return [
        Prompt(f"{text} =", (answer,), bare_query=asked.format(text) if style == "gpt3" else None)
        for text, answer in _whole(pairs)
    ]


def _whole(pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """The pairs of which neither side is empty, each side in one line."""
    lines = ([" ".join(text.split()) for text in pair] for pair in pairs)
    return [pair for pair in lines if all(pair)]


def read_last_words(source: Source, split: str) -> list[Prompt]:
    """Passages, a line each, whose last words are to be found: LAMBADA (Paperno et al. 2016).

    Of `lambada:FILE`, see `Source.path`.

    With examples before it the passage is a gap to be filled: the examples show that one word is
    wanted (Brown et al. 2020, section 3.1.2).
    """
    path = source.path(split)
    prompts = []
    for number, line in enumerate(lines_of(path), start=1):
        context, _, word = line.strip().rpartition(" ")
        if context:
            prompts.append(Prompt(f"{context} ____ . ->", (word,), bare_query=context.rstrip()))
        elif word:
            raise UserError(f"{path}, line {number}: fewer than two words; take the line out")
    if not prompts:
        raise UserError(f"{path} is empty: give a file with a passage a line")
    return prompts


def read_table(source: Source, split: str, style: str = "plain") -> list[Prompt]:
    """Questions in a `Table` with the columns `question` and `answer`.

    A question with a choice among n has columns `choice1` to `choicen` besides, and `answer` is the
    number of the right one.
    """
    table = Table(source, split)
    choices = table.choices
    if len(choices) == 1:
        raise UserError(
            f"{table.path}, line 1: one choice alone, {choices[0]!r}; give choice1, choice2 and so "
            "on, or none"
        )
    prompts = []
    for where, row in table.rows(("question", "answer", *choices), may_be_empty=("question",)):
        question, answer, *options = map(str.strip, row)
        query = QUESTIONS[style].format(question)
        if not choices:
            prompts.append(Prompt(query, (answer,)))
            continue
        if not answer.isdecimal() or not 1 <= int(answer) <= len(options):
            raise UserError(
                f"{where}: the answer {answer[:40]!r} is no number of a choice, 1 to {len(options)}"
            )
        label = int(answer) - 1
        prompts.append(Prompt(query, (options[label],), tuple(options), label))
    return prompts
