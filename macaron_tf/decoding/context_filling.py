"""Examples before a question, as many as the model's rows hold."""

from collections.abc import Sequence
from typing import NamedTuple


class FilledContext(NamedTuple):
    """What stands before an answer.

    Attributes:
        ids: the examples that fit, in order, and the query; without [CLS].
        shown: how many examples.
        cut: whether the query itself is too long, and has lost its beginning.
    """

    ids: list[int]
    shown: int
    cut: bool


def fill_context(
    examples: Sequence[Sequence[int]], query: Sequence[int], room: int
) -> FilledContext:
    """Puts examples before a query while they fit.

    An example that does not fit is left out, and a later, shorter one may still go in.

    Args:
        examples: ids of each, its answer included, in the order in which they are wanted.
        query: ids of what is asked.
        room: ids that the model takes before the answer.

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
