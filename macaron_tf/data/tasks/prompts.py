"""Prompts for zero-shot and few-shot evaluation of a language model without fine-tuning."""

import dataclasses
from collections.abc import Sequence

from macaron_tf.data.sources.names import Source
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.tasks.questions import Questions
from macaron_tf.data.tasks.tables import Table
from macaron_tf.errors import UserError, plural
from macaron_tf.io.files import lines_of

# Format string of a question for each style. "plain" is from this library. The other styles are
# from the GPT-2 and GPT-3 papers.
QUESTIONS = {"plain": "Question: {}\nAnswer:", **dict.fromkeys(("gpt2", "gpt3"), "Q: {}\nA:")}
_LANGUAGES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French"}
_LANGUAGES |= {"it": "Italian", "nl": "Dutch", "pt": "Portuguese", "ro": "Romanian"}

# Content-free inputs, which show a model's bias towards an answer (Zhao et al. 2021, section 4).
CONTENT_FREE = ("N/A", "[MASK]", "")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt for one example, which a language model continues with the answer.

    Attributes:
        query: prompt text before the answer, without a space at the end.
        answers: one or more correct answers.
        choices: answers to choose from, or an empty tuple if the answer is free text. All examples
            of a task have the same number of choices.
        label: index of the correct choice; `None` if the answer is free text.
        bare_query: query of a zero-shot prompt, which has no solved examples. `None` means that
            zero-shot prompts use `query`.
    """

    query: str
    answers: tuple[str, ...]
    choices: tuple[str, ...] = ()
    label: int | None = None
    bare_query: str | None = None


@dataclasses.dataclass(frozen=True)
class Template:
    """A prompt template for a classification task.

    Attributes:
        text: format string with the fields {first} and {second} for the texts of an example.
            {second} is optional.
        words: answer word of each class, beginning with class 0.

    Raises:
        UserError: `text` has another field or a single brace, or lacks {first}; or a word is empty
            or occurs twice.

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
                f"the template {self.text!r} has a single brace, or a field other than {{first}} "
                "and {second}: remove the field, or double each brace that belongs to the text"
            ) from error
        if "\0" not in filled:
            raise UserError(
                f"the template {self.text!r} does not contain {{first}}: write {{first}} where "
                "the text of an example belongs"
            )
        if not all(map(str.strip, self.words)) or len(set(self.words)) < len(self.words):
            raise UserError(
                f"the list of answer words {[*self.words]} (--words) has an empty or repeated "
                "word: give a different word for each class"
            )

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
        raise UserError(
            f"the task {task.name!r} is not a classification task, but the prompt needs classes: "
            "give a classification task"
        )
    if len(template.words) != task.num_classes:
        raise UserError(
            f"the task {task.name!r} has {task.num_classes} classes, but the template has "
            f"{len(template.words)} {plural('word', len(template.words))}: give one word (--words) "
            f"for each of {', '.join(task.labels)}"
        )
    if examples.labels is None:
        raise UserError(f"the examples of {task.name!r} have no labels: give a split with labels")
    second = examples.second or [None] * len(examples)
    return [
        Prompt(template.query(a, b), (template.words[label],), template.words, int(label))
        for a, b, label in zip(examples.first, second, examples.labels, strict=True)
    ]


def question_prompts(questions: Questions, style: str = "plain") -> list[Prompt]:
    """Builds prompts for questions about a context with free-text answers.

    An unanswerable question has the answer "".

    Args:
        questions: questions with contexts and known answers.
        style: key of `QUESTIONS`.

    Raises:
        UserError: the correct answers are withheld.
    """
    prefix = "Background: " if style == "gpt3" else ""  # Brown et al. 2020, appendix G
    if questions.labels is None:
        raise UserError("the questions have no correct answers: give a split with answers")
    rows = zip(questions.contexts, questions.questions, questions.labels, strict=True)
    return [
        Prompt(
            f"{prefix}{context}\n{QUESTIONS[style].format(question)}",
            tuple(a.text for a in answers) or ("",),
        )
        for context, question, answers in rows
    ]


def summary_prompts(pairs: Sequence[tuple[str, str]]) -> list[Prompt]:
    """Builds summarization prompts as in GPT-2 (Radford et al. 2019, section 3.6).

    A prompt is the text, and then "TL;DR:" in a line of its own.

    Args:
        pairs: (text, summary) pairs. Pairs with an empty side are left out.
    """
    return [Prompt(f"{text}\nTL;DR:", (summary,)) for text, summary in _non_empty(pairs)]


def translation_prompts(
    pairs: Sequence[tuple[str, str]], language: str, style: str = "gpt2"
) -> list[Prompt]:
    """Builds translation prompts "SENTENCE =", as in GPT-2 (Radford et al. 2019, section 3.7).

    With the style "gpt3", a zero-shot prompt is instead "Q: What is the LANGUAGE translation of
    SENTENCE A:" (Brown et al. 2020, appendix G). LANGUAGE is the English name of the target
    language, such as "German", or its code if the name is not in `_LANGUAGES`.

    Args:
        pairs: (sentence, translation) pairs. Pairs with an empty side are left out.
        language: code of the target language, such as "fr".
        style: key of `QUESTIONS`.
    """
    question = f"Q: What is the {_LANGUAGES.get(language, language)} translation of {{}} A:"
    return [
        Prompt(
            f"{text} =", (answer,), bare_query=question.format(text) if style == "gpt3" else None
        )
        for text, answer in _non_empty(pairs)
    ]


def _non_empty(pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Joins the words of each side by single spaces, and leaves out pairs with an empty side."""
    lines = ([" ".join(text.split()) for text in pair] for pair in pairs)
    return [pair for pair in lines if all(pair)]


def read_last_words(source: Source, split: str) -> list[Prompt]:
    """Reads prompts for last-word prediction (LAMBADA, Paperno et al. 2016).

    Each line of the file is a passage, except that blank lines are skipped. The last word of the
    line is the answer, and PASSAGE below is the rest of the line. A few-shot prompt is "PASSAGE
    ____ . ->", so that the solved examples show that the answer is a single word (Brown et al.
    2020, section 3.1.2). A zero-shot prompt is "PASSAGE".

    Args:
        source: source in the form `lambada:FILE`.
        split: name of the split, which replaces `{split}` in FILE.

    Raises:
        UserError: a line has a single word, or the file cannot be read or has no passages.
    """
    path = source.path(split)
    prompts = []
    for number, line in enumerate(lines_of(path), start=1):
        context, _, word = line.strip().rpartition(" ")
        if context:
            prompts.append(Prompt(f"{context} ____ . ->", (word,), bare_query=context.rstrip()))
        elif word:
            raise UserError(f"{path}, line {number} has a single word: remove the line")
    if not prompts:
        raise UserError(f"{path} has no passages: give a file with one passage per line")
    return prompts


def read_table(source: Source, split: str, style: str = "plain") -> list[Prompt]:
    """Reads prompts from a table with the columns `question` and `answer`.

    For multiple choice, the table also has columns `choice1` to `choiceN`, and `answer` is the
    number of the correct choice, from 1 to N.

    Args:
        source, split: arguments of `Table`.
        style: key of `QUESTIONS`.

    Raises:
        UserError: the table has a single choice column, the choice columns are not numbered from 1
            without gaps, an answer is not the number of a choice, or the table is invalid (see
            `Table.rows`).
    """
    table = Table(source, split)
    choices = table.choices
    if len(choices) == 1:
        raise UserError(
            f"{table.path}: {choices[0]!r} is the only choice column: add choice2, or remove the "
            "column"
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
                f"{where}: the answer {answer[:40]!r} is not the number of a choice: give a number "
                f"from 1 to {len(options)}"
            )
        label = int(answer) - 1
        prompts.append(Prompt(query, (options[label],), tuple(options), label))
    return prompts
