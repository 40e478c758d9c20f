"""Tasks in words from files of one's own: a table of choices or answers, or LAMBADA's passages."""

import re

from macaron_tf.data.prompts import Prompt, last_word_prompts
from macaron_tf.data.text_files import lines_of, split_path
from macaron_tf.errors import UserError

_CHOICE = re.compile(r"choice\d+")


def read_last_words(name: str, split: str) -> list[Prompt]:
    """LAMBADA's file: a passage a line, whose last word is to be found.

    Args:
        name: plain or `.gz`; `{split}` in it stands for the split.
        split: the split.

    Raises:
        UserError: the file cannot be read, or a line is no passage.
    """
    path = split_path("lambada", name, split)
    prompts = last_word_prompts([line for line in lines_of(path) if line.strip()])
    if not prompts:
        raise UserError(f"{path} is empty: give a file with a passage a line")
    return prompts


def read_table(name: str, split: str) -> list[Prompt]:
    """Questions in a tab-separated table.

    Args:
        name: plain or `.gz`, with a header. Columns: `question`, `answer`, and of a choice among n
            `choice1` to `choicen`, where `answer` is the number of the right one; without those it
            is the answer itself. `{split}` in the name stands for the split.
        split: the split.

    Raises:
        UserError: the file cannot be read, lacks a column, or holds a line that does not fit;
            names the file, the line and the column.
    """
    path = split_path("tsv", name, split)
    lines = enumerate(lines_of(path), start=1)
    header = next(lines, (1, ""))[1].split("\t")
    choices = [place for place, column in enumerate(header) if _CHOICE.fullmatch(column)]
    if not {"question", "answer"} <= set(header) or len(choices) == 1:
        raise UserError(
            f"{path}, line 1: the columns are {', '.join(map(repr, header))}; give question, "
            "answer and, for a choice, choice1, choice2 and so on"
        )
    prompts = []
    for number, line in lines:
        row = line.split("\t")
        where = f"{path}, line {number}"
        if len(row) != len(header):
            raise UserError(f"{where}: {len(row)} columns, not the header's {len(header)}")
        query = f"Question: {row[header.index('question')].strip()}\nAnswer:"
        answer = row[header.index("answer")].strip()
        options = tuple(row[place].strip() for place in choices)
        if not answer or not all(options):
            raise UserError(f"{where}: an answer or a choice is empty; fill it in")
        if not choices:
            prompts.append(Prompt(query, (answer,)))
            continue
        if not answer.isdecimal() or not 1 <= int(answer) <= len(options):
            raise UserError(
                f"{where}: the answer {answer[:40]!r} is no number of a choice, 1 to {len(options)}"
            )
        label = int(answer) - 1
        prompts.append(Prompt(query, (options[label],), options, label))
    if not prompts:
        raise UserError(f"{path} holds no question below its header: give some")
    return prompts
