"""TCNs and recurrent models on the sequence tasks of Bai et al. 2018: data, recipe and run."""

import collections
import dataclasses
import hashlib
import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import keras
import numpy as np
import scipy.io
import tensorflow as tf
from annotated_types import Ge
from etils import epath
from scipy.io.matlab import MatReadError

from macaron_tf.data.batches import ArrayBatches, Batches
from macaron_tf.data.sources.tfds import Tfds, read_columns
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of
from macaron_tf.models import TemporalConfig, catalog
from macaron_tf.objectives import SequenceObjective
from macaron_tf.runs.elmo import WordData, build_vocabulary, read_word_splits
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe, as_user_errors
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.trainer import evaluate_model
from macaron_tf.settings import INT32, OneOf, ReadIf, Settings
from macaron_tf.text.token_rows import fingerprint
from macaron_tf.text.words import WordVocabulary, count_words, read_words
from macaron_tf.training import TrainedModel

ADDING_LENGTH = 600
COPY_DISTANCE = 1000
NUM_SYMBOLS = 10  # number of symbols to remember
COPY_LENGTH = COPY_DISTANCE + 2 * NUM_SYMBOLS
_NUM_GENERATED = 1000  # number of generated sequences for validation, and also for test
_TRAIN, _VALIDATION, _TEST = range(3)  # index of the split, part of the seed of a generated batch

KEYS = 88
PIXELS = 28 * 28
_HELD_OUT_INTERVAL = 10  # every tenth training image is held out for validation

# Batch sizes of evaluation
SEQUENCE_BATCH_SIZE = 16  # for pieces of music and passages
_IMAGE_BATCH_SIZE = 250


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Data of a task, in batches for `SequenceObjective`.

    Attributes:
        train: function that returns an endless dataset of training batches. The argument is the
            index of the first micro-batch.
        validation: batches on which the best checkpoint is selected.
        test: batches on which the best checkpoint is evaluated; `None` means no test split.
        vocab_size: vocabulary size; `None` if the data are not token ids.
        fingerprint: SHA-256 digest (hex) of the training and validation data; "" for generated
            data.
    """

    train: Callable[[int], tf.data.Dataset]
    validation: tf.data.Dataset
    test: tf.data.Dataset | None
    summary: str
    vocab_size: int | None = None
    fingerprint: str = ""


def task_data(seed: int, split_batches: Sequence[Batches | None], *arguments) -> TaskData:
    """Makes a `TaskData` object from the batches of all splits.

    Args:
        split_batches: batches of the training, validation and test split; the last element may be
            `None`.
        arguments: arguments of `TaskData` after `test`.
    """
    train, *held_out = split_batches
    evaluation_sets = (batches and batches.evaluation_dataset() for batches in held_out)
    return TaskData(partial(train.dataset, seed), *evaluation_sets, *arguments)


def adding_batch(size: int, seed: tf.Tensor, length: int = ADDING_LENGTH) -> dict[str, tf.Tensor]:
    """Generates a batch of the adding problem.

    A sequence has T random numbers from 0 to 1, and two of these numbers are marked. The target is
    the sum of the two marked numbers. `inputs (B, T, 2)` contains the numbers and the marks (0 or
    1), `targets (B, 1)` contains the sums, and `weight (B,)` is 1. `seed` is `(2,)` int64.
    """
    seeds = tf.random.split(seed, 2)
    numbers = tf.random.stateless_uniform((size, length), seeds[0])
    # Marks the positions of the two greatest random keys, so all pairs of positions are equally
    # likely.
    keys = tf.random.stateless_uniform((size, length), seeds[1])
    positions = tf.math.top_k(keys, 2).indices  # (B, 2)
    marks = tf.reduce_sum(tf.one_hot(positions, length), axis=1)  # (B, 2, T) -> (B, T)
    return {
        "inputs": tf.stack([numbers, marks], axis=-1),
        "targets": tf.reduce_sum(numbers * marks, axis=1, keepdims=True),
        "weight": tf.ones(size),
    }


def copy_batch(size: int, seed: tf.Tensor, distance: int = COPY_DISTANCE) -> dict[str, tf.Tensor]:
    """Generates a batch of the copy memory task, in which a model repeats ten symbols.

    The input is ten random symbols from 1 to 8, T - 1 zeros and eleven 9s. The target is T + 10
    zeros and the ten symbols. T, the `distance`, counts the positions between the last symbol and
    the first repeated symbol. The loss is averaged over all positions. A model without memory
    reaches a loss of 10 ln 8 / (T + 20), which is 0.0204 for T = 1000.

    `inputs (B, T + 20, 10)` contains one-hot vectors, `targets (B, T + 20)` contains symbols, and
    `weight (B, T + 20)` is 1. `seed` is `(2,)` int64.
    """
    symbols = tf.random.stateless_uniform((size, NUM_SYMBOLS), seed, 1, 9, tf.int32)
    blank = tf.zeros((size, distance - 1), tf.int32)
    ask = tf.fill((size, NUM_SYMBOLS + 1), 9)
    ids = tf.concat([symbols, blank, ask], axis=1)  # (B, T + 20)
    silent = tf.zeros((size, distance + NUM_SYMBOLS), tf.int32)
    return {
        "inputs": tf.one_hot(ids, 10),
        "targets": tf.concat([silent, symbols], axis=1),
        "weight": tf.ones((size, distance + 2 * NUM_SYMBOLS)),
    }


def generated_data(draw: Callable, summary: str, recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of a task with generated sequences.

    Each training batch is generated with a different seed, so no sequence is repeated. `draw`
    generates a batch from the batch size and a seed `(2,)`.
    """
    size, seed = recipe.data.batch_size, recipe.training.seed

    def batches(split: int, batch_indices: tf.data.Dataset) -> tf.data.Dataset:
        # The validation and test sequences are the same for all training seeds.
        first = tf.constant(3 * (seed if split == _TRAIN else 0) + split, tf.int64)
        return batch_indices.map(lambda index: draw(size, tf.stack([first, index])))

    held_out = tf.data.Dataset.range(-(-_NUM_GENERATED // size))
    return TaskData(
        lambda start: batches(_TRAIN, tf.data.Dataset.range(start, 2**62)).prefetch(2),
        batches(_VALIDATION, held_out),
        batches(_TEST, held_out),
        f"{summary}, all different",
    )


def music_data(recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of polyphonic music, in which a model predicts the keys of the next frame."""
    train, validation, test = _pieces(recipe.data.path)
    frames = ("float32", (None, None, KEYS))
    shapes = {"inputs": frames, "targets": frames, "weight": ("float32", (None, None))}

    def batches(pieces: Sequence[np.ndarray], size: int) -> ArrayBatches | None:
        gather, lengths = partial(padded, pieces), list(map(len, pieces))
        return ArrayBatches(len(pieces), size, gather, shapes, lengths) if pieces else None

    held_out = (
        batches(sorted(pieces, key=len), SEQUENCE_BATCH_SIZE) for pieces in (validation, test)
    )
    summary = (
        f"{len(train)} pieces of {sum(map(len, train)):,} frames, {len(validation)} to validate, "
        f"{len(test)} to test"
    )
    splits = batches(train, recipe.data.batch_size), *held_out
    digest = fingerprint([*train, *validation])
    return task_data(recipe.training.seed, splits, summary, None, digest)


def _pieces(path: str | None) -> tuple[list[np.ndarray], ...]:
    """Reads the training, validation and test pieces from a MATLAB file.

    A piece of T frames is a float32 array `(T, 88)`. Pieces with fewer than two frames are dropped.
    The list of test pieces is empty if the file has no test pieces.
    """
    if not path:
        raise UserError("data.path is missing: set data.path=FILE, the .mat file of the music")
    try:
        arrays = scipy.io.loadmat(path, appendmat=False)
    except (OSError, ValueError, NotImplementedError, MatReadError, zlib.error) as error:
        raise UserError(f"data.path={path} cannot be read as a MATLAB file ({error})") from error
    splits = []
    for name in ("traindata", "validdata", "testdata"):
        pieces = list(np.ravel(arrays.get(name, [])))
        is_matrix = all(np.ndim(piece) == 2 and piece.shape[1] == KEYS for piece in pieces)
        if not is_matrix or not all(np.isin(piece, (0, 1)).all() for piece in pieces):
            needed = f"must hold matrices with {KEYS} columns of zeros and ones"
            raise UserError(f"data.path={path}: {name!r} {needed}")
        splits.append([np.asarray(piece, "float32") for piece in pieces if len(piece) > 1])
        if not splits[-1] and name != "testdata":
            raise UserError(f"data.path={path}: {name!r} contains no piece of two frames or more")
    return tuple(splits)


def padded(pieces: Sequence[np.ndarray], indices: np.ndarray) -> dict[str, np.ndarray]:
    """Makes a batch of B pieces in which the target of each frame is the next frame.

    A piece of T frames is an array `(T, 88)`. L + 1 is the length of the longest piece. The batch
    has `inputs (B, L, 88)`, `targets (B, L, 88)` and `weight (B, L)`. `weight` is 1 at frames and 0
    at padding.
    """
    chosen = [pieces[index] for index in indices]

    def pad(sequences: list[np.ndarray]) -> np.ndarray:
        return keras.utils.pad_sequences(sequences, dtype="float32", padding="post")

    return {
        "inputs": pad([piece[:-1] for piece in chosen]),
        "targets": pad([piece[1:] for piece in chosen]),
        "weight": pad([np.ones(len(piece) - 1) for piece in chosen]),
    }


def image_data(permutation: np.ndarray, recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of MNIST, in which a model classifies a digit from a sequence of 784 pixels.

    `permutation (784,)` is the order in which the sequence contains the pixels.
    """
    shapes = {"inputs": ("float32", (None, PIXELS, 1))}
    shapes |= {"targets": ("int32", (None,)), "weight": ("float32", (None,))}

    def read(split: str) -> tuple[np.ndarray, np.ndarray]:
        values = read_columns("mnist", split, ("image", "label"), tfds)
        # (N, 28, 28, 1) uint8 -> (N, 784), and the digits (N,)
        return values["image"].reshape(-1, PIXELS), values["label"].astype("int32")

    def batches(
        pixels: np.ndarray, digits: np.ndarray, size: int = _IMAGE_BATCH_SIZE
    ) -> ArrayBatches:
        def gather(indices: np.ndarray) -> dict[str, np.ndarray]:
            # All pixels have mean 0.1307 and standard deviation 0.3081. The paper's code uses these
            # values.
            inputs = (pixels[indices][:, permutation, None] / 255 - 0.1307) / 0.3081
            answers = {"targets": digits[indices], "weight": np.ones(len(indices), "float32")}
            return {"inputs": inputs.astype("float32"), **answers}

        return ArrayBatches(len(digits), size, gather, shapes)

    (pixels, digits), test = read("train"), read("test")
    is_held_out = np.arange(len(digits)) % _HELD_OUT_INTERVAL == 0
    train = batches(pixels[~is_held_out], digits[~is_held_out], recipe.data.batch_size)
    splits = train, batches(pixels[is_held_out], digits[is_held_out]), batches(*test)
    summary = (
        f"{(~is_held_out).sum():,} images, {is_held_out.sum():,} to validate, {len(test[1]):,} to "
        "test"
    )
    digest = fingerprint([pixels, digits])
    return task_data(recipe.training.seed, splits, summary, None, digest)


# Window length, and number of scored positions at the end of a window (from the code of the paper).
WORDS, CHARACTERS = (80, 40), (400, 320)
_END = "<eos>"
_NUM_STREAMS = 16  # number of parallel streams in evaluation
_WINDOWS = {"weight": ("float32", (None, None))} | dict.fromkeys(
    ("inputs", "targets"), ("int32", (None, None))
)


def text_data(
    tokenize: Callable, window: tuple[int, int], unit: str, recipe, tfds: Tfds | None
) -> TaskData:
    """Makes the data of next-word or next-character prediction on the Penn Treebank.

    Each line ends with the symbol <eos>. `tokenize` splits a line into words or characters.
    `window` is explained in `windows`, and `unit` names the symbols, for printing.
    """
    folder = recipe.data.path
    symbols = {
        split: [symbol for line in _lines(folder, split) for symbol in [*tokenize(line), _END]]
        for split in ("train", "valid", "test")
    }
    counts = collections.Counter(symbols["train"])
    # Symbols of equal frequency are sorted by code point, so the ids are deterministic.
    vocabulary = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    symbol_ids = {symbol: i for i, symbol in enumerate(vocabulary)}
    for split, split_symbols in symbols.items():
        if unknown := sorted(set(split_symbols) - set(symbol_ids)):
            raise UserError(f"{split}.txt contains {unknown[0]!r}, which train.txt lacks")

    def batches(split: str, streams: int) -> ArrayBatches | None:
        ids = np.array([symbol_ids[symbol] for symbol in symbols[split]], "int32")
        return windows(ids, streams, window) if len(ids) else None

    splits = (
        batches("train", recipe.data.batch_size),
        *(batches(split, _NUM_STREAMS) for split in ("valid", "test")),
    )
    summary = f"{len(symbols['train']):,} {unit}, {len(symbols['valid']):,} to validate"
    digest = _digest([*symbols["train"], *symbols["valid"]])
    return task_data(0, splits, summary, len(vocabulary), digest)


def _digest(symbols: Iterable[str]) -> str:
    """Computes the SHA-256 digest (hex) of a sequence of words or characters."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()


def _lines(folder: str | None, split: str) -> list[str]:
    """Reads the lines of FOLDER/SPLIT.txt.gz or, if this file is missing, FOLDER/SPLIT.txt.

    The result is empty if the split is "test" and the file is missing or has no text.
    """
    if not folder:
        raise UserError(f"data.path is missing: set data.path=DIR, the folder of {split}.txt[.gz]")
    paths = [epath.Path(folder) / f"{split}.txt{suffix}" for suffix in (".gz", "")]
    lines = next((list(lines_of(path)) for path in paths if path.is_file()), [])
    if any(map(str.strip, lines)):
        return lines
    if split != "test":
        raise UserError(f"data.path={folder} has no {split}.txt.gz or {split}.txt with text")
    return []


def windows(ids: np.ndarray, streams: int, window: tuple[int, int]) -> ArrayBatches:
    """Makes batches of overlapping windows over parallel streams of a text.

    The text is split into B streams of equal length. A batch has one window of each stream, and
    the batches are in text order.

    Args:
        streams: maximum number of streams. A short text has fewer streams, so that a window fits.
        window: pair of the window length L and the number of scored positions at the end of a
            window. The other positions were scored in earlier windows and serve as context. All
            positions of the first window are scored. The last window may have fewer scored
            positions.

    Returns:
        Batches of `inputs`, `targets` (the next ids) and `weight`, all `(B, L)`. The weight is 1 at
        scored positions and 0 elsewhere.
    """
    length, num_scored = window
    streams = max(1, min(streams, (len(ids) - 1) // length))
    stream_length = (len(ids) - 1) // streams
    inputs = ids[: streams * stream_length].reshape(streams, stream_length)  # (B S,) -> (B, S)
    targets = ids[1 : streams * stream_length + 1].reshape(streams, stream_length)
    ends = [*range(min(length, stream_length), stream_length, num_scored), stream_length]

    def gather(indices: np.ndarray) -> dict[str, np.ndarray]:
        (index,) = indices
        end, previous_end = ends[index], ends[index - 1] if index else 0
        part = slice(max(end - length, 0), end)
        weight = np.zeros(inputs[:, part].shape, "float32")
        weight[:, previous_end - end :] = 1.0
        return {"inputs": inputs[:, part], "targets": targets[:, part], "weight": weight}

    return ArrayBatches(len(ends), 1, gather, _WINDOWS, shuffle=False)


def word_ids(words: Iterable[str], vocabulary: WordVocabulary) -> np.ndarray:
    """Converts words to ids `(N,)` int32. A word that is not in the vocabulary gets the id 0."""
    indices = {word: index for index, word in enumerate(vocabulary.words)}
    return np.fromiter((indices.get(word, 0) for word in words), "int32")


def article_data(recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of next-word prediction on documents, such as Wikipedia articles.

    Words that are not in the vocabulary become <UNK>. `data.sources` names the documents.
    """
    word_splits = read_word_splits(recipe, tfds)
    vocabulary = build_vocabulary(word_splits, recipe.data.vocabulary_size)
    train, validation = (word_ids(words, vocabulary) for words in word_splits)
    if min(len(train), len(validation)) <= WORDS[0]:
        found = f"the splits have {len(train)} and {len(validation)} words, but each needs"
        raise UserError(f"{found} more than {WORDS[0]} words, the length of a window")
    sizes = (train, recipe.data.batch_size), (validation, _NUM_STREAMS)
    splits = [*(windows(ids, streams, WORDS) for ids, streams in sizes), None]
    summary = f"{len(train):,} words, {len(validation):,} to validate"
    return task_data(0, splits, summary, vocabulary.size, _digest(itertools.chain(*word_splits)))


def _normalize_book_text(text: str) -> str:
    """Converts text to a common format of books and LAMBADA.

    The function replaces Penn Treebank quotes with straight quotes, joins " n't" to the preceding
    word, and lower-cases the text.
    """
    for mark, replacement in (("``", '"'), ("''", '"'), (" n't", "n't")):
        text = text.replace(mark, replacement)
    return text.lower()


def last_word_data(recipe, tfds: Tfds | None) -> TaskData:
    """Makes the data of LAMBADA, a last-word prediction task.

    A model is trained on next-word prediction in books, which the setting `data.sources` names, and
    evaluated on the last word of each passage. Passages whose last word is not in the vocabulary
    are left out.
    """
    lines = {split: _lines(recipe.data.path, split) for split in ("dev", "test")}
    word_splits = read_word_splits(recipe, tfds, _normalize_book_text)
    # These are the words of all documents, because the passages are held out.
    words = [*itertools.chain.from_iterable(word_splits)]
    vocabulary = count_words([words], recipe.data.vocabulary_size)

    def passages(split: str) -> ArrayBatches | None:
        passage_words = read_words(map(_normalize_book_text, lines[split]))
        # Drops the end token of the last sentence, and passages with an unknown last word.
        rows = [word_ids(words[:-1], vocabulary) for words in passage_words]
        rows = [row for row in rows if any(row[-1:])]
        lengths = np.array([len(row) for row in rows])
        ids = keras.utils.pad_sequences(rows, padding="post") if rows else None  # (N, L)

        def gather(indices: np.ndarray) -> dict[str, np.ndarray]:
            last = lengths[indices][:, None] - 1  # (B, 1)
            positions = np.arange(1, last.max() + 1)
            weight = (positions == last).astype("float32")
            chosen = ids[indices, : last.max() + 1]
            return {"inputs": chosen[:, :-1], "targets": chosen[:, 1:], "weight": weight}

        return ArrayBatches(len(rows), SEQUENCE_BATCH_SIZE, gather, _WINDOWS) if rows else None

    dev, test = passages("dev"), passages("test")
    if dev is None:
        found = f"{recipe.data.path}: no passage of dev.txt ends with a word of the training text"
        raise UserError(f"{found}: give more text in data.sources")
    train = windows(word_ids(words, vocabulary), recipe.data.batch_size, WORDS)
    summary = f"{len(words):,} words, {dev.count:,} passages to validate"
    digest = _digest([*words, *lines["dev"]])
    return task_data(0, (train, dev, test), summary, vocabulary.size, digest)


@dataclasses.dataclass(frozen=True)
class Task:
    """A sequence modelling task, with its data and metric.

    Attributes:
        length: number of positions in the longest training sequence.
        read_data: function that reads or generates the data. Its arguments are the `SequenceRecipe`
            and the access to TensorFlow Datasets.
        unit: name and unit of the metric, for the report.
        loss: loss of `SequenceObjective`.
        metric: metric by which the best checkpoint is selected, and which the report shows.
        takes_data: whether the task reads the file or folder `data.path`.
        digits: number of decimals of the metric in a report.
    """

    length: int
    read_data: Callable[[Any, Tfds | None], TaskData]
    unit: str
    loss: str = "classes"
    metric: str = "loss"
    takes_data: bool = False
    digits: int = 2


_MUSIC = dict(
    read_data=music_data,
    unit="negative log-likelihood, nats per frame",
    loss="bernoulli",
    takes_data=True,
)
_DIGITS = dict(length=PIXELS, unit="accuracy, percent", metric="accuracy")
_WORDS = dict(unit="perplexity", metric="perplexity")
_ROWS = np.arange(PIXELS)
_PERMUTED = np.random.default_rng(0).permutation(PIXELS)  # all runs use the same order

TASKS = {
    "adding": Task(
        ADDING_LENGTH,
        partial(generated_data, adding_batch, f"sequences of {ADDING_LENGTH}"),
        "mean squared error",
        loss="squared_error",
        digits=6,
    ),
    "copy_memory": Task(
        COPY_LENGTH,
        partial(
            generated_data,
            copy_batch,
            f"sequences of {COPY_LENGTH}, {NUM_SYMBOLS} symbols to remember",
        ),
        "nats per position",
        digits=8,
    ),
    "jsb": Task(128, **_MUSIC),
    "nottingham": Task(1_787, **_MUSIC),
    "ptb_words": Task(
        WORDS[0], partial(text_data, str.split, WORDS, "words"), takes_data=True, **_WORDS
    ),
    "ptb_characters": Task(
        CHARACTERS[0],
        # Replaces runs of spaces by a single space.
        partial(text_data, lambda line: list(" ".join(line.split())), CHARACTERS, "chars"),
        "bits per character",
        metric="bits",
        takes_data=True,
    ),
    "wikitext": Task(WORDS[0], article_data, **_WORDS),
    "lambada": Task(WORDS[0], last_word_data, takes_data=True, **_WORDS),
    "mnist": Task(read_data=partial(image_data, _ROWS), **_DIGITS),
    "permuted_mnist": Task(read_data=partial(image_data, _PERMUTED), **_DIGITS),
}


@dataclasses.dataclass(frozen=True)
class SequenceTask(Settings):
    """Settings of a sequence task.

    Attributes:
        name: name of the task; a key of `TASKS`.
        recurrent: settings in which the recurrent models differ from the TCN, in the form of
            `--set`. `macaron compare` gives them to the arms that set `model.mixer`.
    """

    section: ClassVar[str] = "task"

    name: Annotated[str, OneOf(tuple(TASKS))]
    recurrent: tuple[str, ...] = ()


_IF_DOCUMENTS = ReadIf(lambda recipe: recipe.task.name in ("wikitext", "lambada"))


@dataclasses.dataclass(frozen=True)
class SequenceData(WordData):
    """Settings of the sequences of a task.

    Only `wikitext` and `lambada` read documents, and `lambada` holds none out.

    Attributes:
        path: a .mat file with music for `jsb` and `nottingham`; a folder with train.txt, valid.txt
            and test.txt for `ptb_words` and `ptb_characters`, or with dev.txt and test.txt for
            `lambada`, which may be compressed (.txt.gz). The other tasks read no file.
    """

    sources: Annotated[tuple[str, ...], _IF_DOCUMENTS] = ()
    vocabulary_size: Annotated[int, Ge(4), INT32, _IF_DOCUMENTS] = 10_000
    held_out: Annotated[int, Ge(2), INT32, _IF_DOCUMENTS] = 50
    path: Annotated[str | None, ReadIf(lambda recipe: TASKS[recipe.task.name].takes_data)] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceRecipe(Recipe):
    """Settings of a run on a sequence task, which starts from random weights."""

    kind = "sequence"
    vocabulary_class = None
    may_change = (*MAY_CHANGE, "data.path")

    task: SequenceTask
    data: SequenceData = SequenceData()
    init: None = None

    def model_config(self, vocab_size: int | None = None) -> TemporalConfig:
        """Returns the configuration of the network.

        A recurrent model, `model.mixer=lstm`, `gru` or `rnn`, gets the widths with which it has
        nearly as many parameters as the TCN, whose widths are `model.widths`.
        """
        with as_user_errors("model"):
            config: Any = catalog.config(self.model, **dict(self.model_options))
        self.expect_model(config, TemporalConfig)
        if vocab_size and config.vocab_size:
            config = dataclasses.replace(config, vocab_size=vocab_size, output_dim=vocab_size)
        if config.mixer == "tcn":
            return config
        with as_user_errors(f"{config.mixer} with as many parameters as the TCN"):
            return dataclasses.replace(config, mixer="tcn").equal_sized(config.mixer)

    def make_objective(self, static_shapes: bool = False) -> SequenceObjective:
        return SequenceObjective(TASKS[self.task.name].loss, skip_padding=not static_shapes)

    def plan(self, run: Run, start: None, inputs: Inputs) -> Plan:
        self.check_metric([TASKS[self.task.name].metric])
        data = TASKS[self.task.name].read_data(self, inputs.tfds)
        return Plan(
            run=run,
            config=self.model_config(data.vocab_size),
            batches=data.train,
            validation=lambda network: lambda model, step: task_metrics(model, data.validation),
            fingerprint=data.fingerprint,
            note=f"; {data.summary}",
            next=("evaluate {run}{data}",),
        )


def task_metrics(model: TrainedModel, dataset: tf.data.Dataset) -> dict[str, float]:
    """Evaluates a model on a dataset, and returns the metrics.

    For a classification task, the metrics also include "bits", the loss in bits.
    """
    metrics = evaluate_model(model, dataset)
    if "perplexity" in metrics:
        metrics["bits"] = metrics["loss"] / math.log(2)
    return metrics
