"""The text of an ELMo: rows of words, each with its characters and its number."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from experiments.elmo.run import ElmoRecipe
from macaron_tf.data.batches import ArrayBatches
from macaron_tf.data.sources.readers import documents
from macaron_tf.errors import UserError
from macaron_tf.text.words import (
    WordText,
    WordVocabulary,
    as_word_text,
    count_words,
    read_words,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one text.

    Attributes:
        text: the words.
        ids: `(rows, L)`, words by their place in `text.types`.
        characters: `(types, C)`.
    """

    text: WordText
    ids: np.ndarray
    characters: np.ndarray

    @classmethod
    def of(cls, text: WordText, length: int, places: int) -> "Rows":
        """A text cut into rows; what is left over at its end is left out."""
        count = len(text.ids) // length
        rows = text.ids[: count * length].reshape(count, length)  # (N,) -> (rows, L)
        return cls(text, rows, text.characters(places))

    def batches(self, size: int, seed: int | None = None, start: int = 0) -> tf.data.Dataset:
        """Batches of `characters (B, L, C)` and `words (B, L)`.

        Args:
            size: rows B.
            seed: of an endless order; None = once, in the text's order.
            start: the first batch.
        """

        def batch(numbers: np.ndarray) -> dict[str, np.ndarray]:
            ids = self.ids[numbers]
            return {"characters": self.characters[ids], "words": self.text.targets(ids)}

        length, places = self.ids.shape[1], self.characters.shape[1]
        shapes = {
            "characters": ("int32", (None, length, places)),
            "words": ("int32", (None, length)),
        }
        batches = ArrayBatches(len(self.ids), size, batch, shapes)
        return batches.evaluation_dataset() if seed is None else batches.dataset(seed, start)


def read_rows(
    recipe: ElmoRecipe,
    vocabulary: WordVocabulary | None = None,
    data_dir: str | None = None,
    download: bool = False,
) -> tuple[Rows, Rows, WordVocabulary]:
    """Reads a recipe's texts.

    Args:
        recipe: names the sources and the sizes.
        vocabulary: of a run; None = counted here.
        data_dir, download: TensorFlow Datasets'.

    Returns:
        The rows to learn from, those held out, and the vocabulary.

    Raises:
        UserError: no such source, or too little text.
    """
    found = [
        words
        for source in recipe.sources
        for words in read_words(documents(source, "train", data_dir, download))
    ]
    held = [number % recipe.held_out == 0 for number in range(len(found))]
    parts = [
        list(itertools.chain.from_iterable(itertools.compress(found, chosen)))
        for chosen in ([not out for out in held], held)
    ]
    vocabulary = vocabulary or count_words([parts[0]], recipe.vocabulary_size)
    places = recipe.model_config(vocabulary.size).max_characters
    train, validation = (
        Rows.of(as_word_text(part, vocabulary), recipe.row_length, places) for part in parts
    )
    if len(train.ids) < recipe.batch_size or not len(validation.ids):
        raise UserError(
            f"the sources have {len(train.ids)} rows to learn from and {len(validation.ids)} held "
            f"out, less than a batch of {recipe.batch_size} or none: give more documents, or lower "
            "batch_size, row_length or held_out"
        )
    return train, validation, vocabulary
