"""A line as a task's source reads: what stands before it, and between two texts."""

import tensorflow as tf

from experiments.text_to_text.recipe import PREFIXES
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.text_tasks import in_one_line, source_text, source_texts
from macaron_tf.text.normalization import as_prompt, as_prompts


def framed(task: str, line: str) -> str:
    """The source of a line.

    Args:
        task: its name.
        line: a text, or two with a tab between; any white space in them is a space.
    """
    line = as_prompt(line)
    if task in PREFIXES:
        return PREFIXES[task] + " ".join(line.split())
    first, tab, second = line.partition("\t")
    return source_text(get_task(task), first, second if tab else None)


def framed_in_graph(task: str, lines: tf.Tensor) -> tf.Tensor:
    """`framed` in a graph, `(B,)` strings to `(B,)` strings."""
    lines = as_prompts(lines)
    if task in PREFIXES:
        return tf.strings.join([PREFIXES[task], in_one_line(lines)])
    return source_texts(get_task(task), lines)
