"""The examples that sentence encoders are trained on and judged by."""

import os

from experiments.embed.recipe import TRIPLETS
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.reading import TextSets, read_examples, read_triplets
from macaron_tf.errors import UserError

TRAIN = "train"


def read_sets(
    task: str,
    split: str,
    source: str | None = None,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
) -> TextSets:
    """Reads a split of a task of two texts, or of triplets.

    Args:
        task: a task's name, or "triplets".
        split, source, data_dir, download: as for `read_examples` and `read_triplets`.

    Raises:
        UserError: as those two; triplets without a source; labels that are secret.
    """
    if task == TRIPLETS:
        if not source:
            raise UserError(f"{TRIPLETS} have no data of their own: give --source tsv:FILE")
        return read_triplets(source, split)
    described = get_task(task)
    examples = read_examples(described, split, data_dir, download, source)
    if examples.labels is None:
        raise UserError(
            f"the labels of split {split!r} of {source or described.source} are secret: take a "
            "split that has them"
        )
    return TextSets((examples.first, examples.second), examples.labels)


def validation_split(task: str) -> str:
    """The development set that decides.

    Args:
        task: a task's name, or "triplets".
    """
    return "validation" if task == TRIPLETS else get_task(task).validation_splits[0]
