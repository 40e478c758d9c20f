"""Times input pipelines from text to masked batches on one core, against Hugging Face and NumPy.

    python -m experiments.lab.benchmarks.input_pipeline --out DIR

Three implementations make the same rows `[CLS] ids [SEP]` with BERT masking, which predicts 15% of
the tokens. Of the predicted tokens, 80% are replaced by [MASK] and 10% by a random token. The
implementations are:

- the BERT tokenizer of Hugging Face (Rust), with packing and masking in NumPy
- this library, starting from the same text
- this library, starting from prepared shards, as a training run does

The process uses one core. Tokens per second include [CLS] and [SEP], but no padding.

Before the timing, the benchmark checks that all implementations make equal rows, before masking.
The text is in an artificial language whose word frequencies follow Zipf's law, and the vocabulary
is trained on it.
"""

import argparse
import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from experiments.lab.benchmarks import harness
from experiments.lab.benchmarks.harness import counted, made_up_texts
from macaron_tf.cli import arguments as cli
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import tokenized_documents
from macaron_tf.data.corpus.packing import pack_rows, token_ids_of
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.errors import UserError
from macaron_tf.objectives import MaskedLanguageObjective
from macaron_tf.text import WordPieceVocabulary

RATE, MASK, RANDOM = 0.15, 0.8, 0.1  # as in BERT
IGNORED_LABEL = -100  # label that the cross entropy of PyTorch ignores
REFERENCE = "Hugging Face tokenizers, NumPy"
FROM_TEXT = "ours, from text"
FROM_SHARDS = "ours, from prepared shards"


def batched(blocks: Iterable[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Yields the rows of blocks `(N, L)` as batches `(B, L)`; the last batch may be smaller."""
    rows = itertools.chain.from_iterable(blocks)
    while batch := list(itertools.islice(rows, batch_size)):
        yield np.stack(batch)


def mask_rows(
    token_ids: np.ndarray, vocabulary: WordPieceVocabulary, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Masks tokens `(B, L)` at random for masked language modeling.

    As in Hugging Face's data collator, each token is selected independently of the others. Special
    tokens are never selected. A random replacement is never a special token. In `labels (B, L)`,
    the label of a token that is not predicted is -100.
    """
    ordinary = np.ones(vocabulary.size, bool)
    ordinary[[*vocabulary.special.ids, *range(vocabulary.pieces, vocabulary.size)]] = False
    draws = rng.random(token_ids.shape, np.float32) / RATE
    selected = (draws < 1) & ordinary[token_ids]
    masked = np.where(selected & (draws < MASK), vocabulary.special.mask, token_ids)
    randomized = selected & (draws >= MASK) & (draws < MASK + RANDOM)
    ordinary_ids = np.flatnonzero(ordinary)
    drawn = rng.integers(0, len(ordinary_ids), np.count_nonzero(randomized))
    masked[randomized] = ordinary_ids[drawn]
    return {"token_ids": masked, "labels": np.where(selected, token_ids, IGNORED_LABEL)}


class Work:
    """Text that all compared implementations read, with methods that make batches from the text.

    Attributes:
        tokens: number of tokens in all rows, including [CLS] and [SEP]; set by `check`.

    Args:
        vocabulary: vocabulary of this library, which the Hugging Face tokenizer also uses.
        length: number of tokens L in a row.
    """

    def __init__(
        self,
        texts: Sequence[str],
        vocabulary: WordPieceVocabulary,
        length: int,
        batch_size: int,
        folder: pathlib.Path,
    ):
        import tokenizers

        self.texts, self.vocabulary, self.tokens = texts, vocabulary, 0
        self.length, self.batch_size = length, batch_size
        path, documents = folder / "vocabulary.txt", folder / "documents"
        path.write_bytes(vocabulary.contents())
        self._tokenizer = tokenizers.BertWordPieceTokenizer(
            str(path), lowercase=vocabulary.lower_case
        )
        documents.mkdir()
        for index, text in enumerate(texts):
            (documents / f"{index:07d}.txt").write_text(text, encoding="utf-8", newline="\n")
        # This value of `validation_every` holds out only the first row for validation.
        options = {"sequence_length": length, "validation_every": 1 << 30}
        config = CorpusConfig(f"text:{documents}/*.txt", **options)
        self._corpus = prepare(config, vocabulary, folder / "corpus")

    def hugging_face_rows(self) -> Iterator[np.ndarray]:
        """Yields the rows `(N, L)` of each document, made by the Hugging Face tokenizer."""
        capacity = self.length - 2
        for text in self.texts:
            lines = [line for line in text.split("\n") if line]
            encoded = self._tokenizer.encode_batch(lines, add_special_tokens=False)
            ids = np.concatenate([np.array(encoding.ids, np.int32) for encoding in encoded])
            count = -(-len(ids) // capacity)
            rows = np.zeros((count, self.length), np.int32)
            rows[:, 0] = self.vocabulary.special.begin
            rows[:, 1:-1] = np.pad(ids, (0, count * capacity - len(ids))).reshape(count, capacity)
            rows[:-1, -1] = self.vocabulary.special.end
            rows[-1, (len(ids) - 1) % capacity + 2] = self.vocabulary.special.end
            yield rows

    def mask_hugging_face_batches(self) -> None:
        """Makes batches of `hugging_face_rows`, and masks them with NumPy."""
        rng = np.random.default_rng(0)
        for rows in batched(self.hugging_face_rows(), self.batch_size):
            mask_rows(rows, self.vocabulary, rng)

    def macaron_tf_rows(self) -> Iterator[np.ndarray]:
        """Yields the rows `(N, L)` of each document, as `prepare` makes them."""
        for document in tokenized_documents(self.texts, self.vocabulary, None):
            rows = pack_rows([document], self.length, cross_documents=False)
            yield token_ids_of(rows, self.length, self.vocabulary.special)

    def check(self) -> None:
        """Checks that all compared implementations make equal unmasked rows, and sets `tokens`."""
        expected, actual = (
            np.concatenate([*rows]) for rows in (self.hugging_face_rows(), self.macaron_tf_rows())
        )
        options = {"repeat": False, "drop_remainder": False}
        dataset = self._corpus.dataset("train", self.batch_size, None, **options)
        shards = np.concatenate([batch["token_ids"] for batch in dataset.as_numpy_iterator()])
        if not (np.array_equal(expected, actual) and np.array_equal(shards, actual[1:])):
            raise UserError("Hugging Face and this library make different rows: report it")
        self.tokens = int(np.count_nonzero(actual))

    def text_dataset(self) -> tf.data.Dataset:
        """Makes masked batches with this library, starting from the text."""

        def batches() -> Iterator[dict[str, np.ndarray]]:
            rows = batched(self.macaron_tf_rows(), self.batch_size)
            return ({"token_ids": batch} for batch in rows)

        spec = {"token_ids": tf.TensorSpec((None, self.length), tf.int32)}
        return self.masked(tf.data.Dataset.from_generator(batches, output_signature=spec))

    def masked(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Masks the batches of a dataset as a training run does."""
        return MaskedLanguageObjective().dataset(dataset, self.vocabulary, seed=0)

    def contenders(self, passes: int) -> dict[str, Callable[[], int]]:
        """Returns the compared implementations, as a dict for `timed`.

        Each function makes all batches and returns the number of tokens. The implementation that
        reads shards makes `passes` passes. The others read the text once.
        """
        steps = max(1, passes * self._corpus.rows("train") // self.batch_size)
        rows = self._corpus.dataset("train", self.batch_size, seed=0).take(steps)
        shard_tokens = sum(int(np.count_nonzero(batch["token_ids"])) for batch in rows)
        return {
            REFERENCE: counted(self.tokens, self.mask_hugging_face_batches),
            FROM_TEXT: counted(self.tokens, full_pass(self.text_dataset())),
            FROM_SHARDS: counted(shard_tokens, full_pass(self.masked(rows))),
        }


def full_pass(dataset: tf.data.Dataset) -> Callable[[], int]:
    """Returns a function that reads a dataset to its end in a graph and returns the batch count."""

    @tf.function(autograph=False)
    def count_batches():
        return dataset.reduce(tf.constant(0), lambda count, _: count + 1)

    return lambda: int(count_batches())


def _stay_on_one_core() -> None:
    """Pins the process to one core, for libraries that have not yet started a thread pool."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    harness.set_threads(1)


def run(options: argparse.Namespace) -> None:
    """Runs the benchmark, and prints and writes the report."""
    title = "Input pipeline of masked language modeling on one core"
    title += f": {options.megabytes:g} MB of text"
    harness.publish(options, title, "tokens", measure(options))


def measure(options: argparse.Namespace) -> harness.Tables:
    """Checks and times the implementations at each row length."""
    _stay_on_one_core()
    # A document has about 4,000 characters.
    texts = list(itertools.islice(made_up_texts(), round(250 * options.megabytes)))
    vocabulary = WordPieceVocabulary.train("\n".join(texts)[: 1 << 20].split("\n"), size=8000)
    about = f"{vocabulary.pieces:,} pieces, generated text"
    for length in options.lengths:
        with tempfile.TemporaryDirectory() as folder:
            work = Work(texts, vocabulary, length, options.batch_size, pathlib.Path(folder))
            work.check()
            rows = harness.timed(work.contenders(options.passes), options)
        yield f"{options.batch_size} x {length} tokens, {about}", rows


main = cli.single_program(
    "python -m experiments.lab.benchmarks.input_pipeline",
    __doc__,
    "experiments.lab.benchmarks.input_pipeline:run",
    harness.options(rounds=7, warm_up=1),
    cli.count("--megabytes X", "millions of characters of text (default: 4)", 4.0, minimum=1.0),
    cli.count("--lengths N", "tokens in a row (default: 128)", [128], minimum=8, nargs="+"),
    cli.count("--batch-size N", "rows in a batch (default: 256)", 256),
    cli.count("--passes N", "passes over the shards in each round (default: 10)", 10),
)

if __name__ == "__main__":
    raise SystemExit(main())
