"""ELMo: recipe, data and evaluation."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Annotated, ClassVar

import numpy as np
import tensorflow as tf
from annotated_types import Ge

from macaron_tf.data.batches import ArrayBatches
from macaron_tf.data.sources.readers import documents
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.models import ElmoConfig
from macaron_tf.objectives import BidirectionalLanguageObjective
from macaron_tf.runs.recipe import Recipe
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.trainer import evaluate_model
from macaron_tf.settings import INT32, Count, Natural, Settings
from macaron_tf.text.token_rows import fingerprint
from macaron_tf.text.words import WordVocabulary, character_ids, count_words, read_words


@dataclasses.dataclass(frozen=True)
class WordData(Settings):
    """Settings of documents that are split into words.

    Attributes:
        sources: sources of the documents, which must fit in memory; see
            `macaron_tf.data.sources.readers.documents`.
        vocabulary_size: maximum number of words that the model predicts, including <UNK>, <S> and
            </S>. The vocabulary has the most frequent words of the training documents.
        batch_size: number of rows in a micro-batch.
        held_out: interval between held-out documents. With 50, the first document and every 50th
            document after it are used for validation.
    """

    section: ClassVar[str] = "data"

    sources: tuple[str, ...] = ()
    vocabulary_size: Annotated[int, Ge(4), INT32] = 8_000
    batch_size: Count = 32
    held_out: Annotated[int, Ge(2), INT32] = 50


@dataclasses.dataclass(frozen=True)
class ElmoData(WordData):
    """Settings of the training rows of ELMo.

    Attributes:
        row_length: number of words in a row, including the start and end tokens of sentences.
    """

    row_length: Annotated[int, Ge(2), INT32] = 32

    def check(self) -> None:
        if not self.sources:
            raise self.error("sources is empty: give the text, as in data.sources=text-lines:FILE")


@dataclasses.dataclass(frozen=True)
class ElmoTask(Settings):
    """Settings of the prediction of the next and of the previous word.

    Attributes:
        samples: number of negative samples of the sampled softmax in training; 0 means the full
            softmax.
    """

    section: ClassVar[str] = "task"

    samples: Natural = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElmoRecipe(Recipe):
    """Settings of an ELMo training run, which starts from random weights."""

    kind = "elmo"
    vocabulary_class = WordVocabulary
    configs = (ElmoConfig,)

    task: ElmoTask = ElmoTask()
    data: ElmoData
    init: None = None

    def make_objective(self, static_shapes: bool = False) -> BidirectionalLanguageObjective:
        return BidirectionalLanguageObjective(self.task.samples)

    def plan(self, run: Run, start: None, inputs: Inputs) -> Plan:
        self.model_config()  # raises for wrong settings before minutes are spent on the data
        self.check_metric(self.make_objective().metric_names)
        rows, held_out, vocabulary = read_rows(self, run.vocabulary, inputs.tfds)
        validation = held_out.evaluation_dataset()
        return Plan(
            run=dataclasses.replace(run, vocabulary=vocabulary),
            batches=functools.partial(rows.dataset, self.training.seed),
            validation=lambda network: lambda model, step: evaluate_model(model, validation),
            fingerprint=rows.fingerprint(),
            counts={"rows": len(rows.ids)},
            note=f"; {rows.ids.size:,} training words, {held_out.ids.size:,} held-out words, "
            f"{vocabulary.size:,} words in the vocabulary",
            next=(
                "predict {run} --input FILE --json",
                "train finetune_elmo:sst2 {run}-sst2 --init {run} --data-dir DIR",
            ),
        )


class Rows(ArrayBatches):
    """Batches of a text that is split into rows of L words. An incomplete last row is dropped.

    A batch is a dict. `characters (B, L, C)` contains the C character ids of each word, and `words
    (B, L)` contains the word ids. `ids (N, L)` are the indices of all N rows' words (see
    `WordVocabulary.index`).
    """

    def __init__(self, words: list[str], vocabulary: WordVocabulary, recipe: ElmoRecipe):
        length, size = recipe.data.row_length, vocabulary.size
        width = recipe.model_config(size).max_characters
        types, ids = vocabulary.index(words)
        count = len(ids) // length
        self.ids = ids[: count * length].reshape(count, length)  # (N,) -> (rows, L)
        characters = character_ids(tf.constant(types), width).numpy()  # (types, C)

        def gather(indices: np.ndarray) -> dict[str, np.ndarray]:
            ids = self.ids[indices]
            return {"characters": characters[ids], "words": np.where(ids < size, ids, 0)}

        characters_shape, words_shape = (None, length, width), (None, length)
        shapes = {"characters": ("int32", characters_shape), "words": ("int32", words_shape)}
        super().__init__(count, recipe.data.batch_size, gather, shapes)

    def fingerprint(self) -> str:
        """Computes the SHA-256 digest (hex) of all rows."""
        return fingerprint([self.ids])


def read_word_splits(
    recipe: Recipe, tfds: Tfds | None, edit: Callable[[str], str] = str
) -> list[list[str]]:
    """Reads documents, and returns the words of the training and of the held-out documents.

    The first document and every `held_out`-th document after it are held out. `edit` edits the text
    of a document before the text is split.
    """
    document_words = [
        words
        for source in recipe.data.sources
        for words in read_words(map(edit, documents(source, "train", tfds)))
    ]
    held_out_words = document_words[:: recipe.data.held_out]
    del document_words[:: recipe.data.held_out]
    return [list(itertools.chain.from_iterable(part)) for part in (document_words, held_out_words)]


def build_vocabulary(word_splits: list[list[str]], size: int) -> WordVocabulary:
    """Builds the vocabulary of the `size` most frequent training words, including special words."""
    train_words, held_out_words = word_splits
    if held_out_words and not train_words:
        raise UserError("the only document is held out: give more, or text-paragraphs:FILE")
    return count_words([train_words], size)


def read_rows(
    recipe: ElmoRecipe, vocabulary: WordVocabulary | None, tfds: Tfds | None
) -> tuple[Rows, Rows, WordVocabulary]:
    """Reads the training rows, the held-out rows and the vocabulary of a recipe."""
    word_splits = read_word_splits(recipe, tfds)
    vocabulary = vocabulary or build_vocabulary(word_splits, recipe.data.vocabulary_size)
    num_train, num_validation = (len(words) // recipe.data.row_length for words in word_splits)
    if num_train < (batch_size := recipe.data.batch_size) or not num_validation:
        found = f"{num_train} rows for training and {num_validation} for validation"
        needed = f"{batch_size} and 1 are needed: add documents, or lower data.batch_size"
        raise UserError(f"the sources have {found}, but {needed}")
    train, validation = (Rows(words, vocabulary, recipe) for words in word_splits)
    return train, validation, vocabulary
