"""Times input pipelines from text to masked batches on one core, against Hugging Face and NumPy.

    python -m experiments.lab.benchmarks.input_pipeline --out DIR
    python -m experiments.lab.benchmarks.input_pipeline --text 'novels/*.txt.gz' \\
        --vocabulary vocab.txt

Three contenders make the same rows `[CLS] ids [SEP]` with BERT masking: 15% of the tokens are
predicted, 80% of these become [MASK], and 10% a random token. The first contender is the BERT
tokenizer of Hugging Face (Rust) with packing and masking in NumPy. The second is this library,
starting from the same text. The third is this library, starting from prepared shards as in a
training run. The process stays on one core. Tokens per second include [CLS] and [SEP], but no
padding.

The benchmark first checks that all contenders make equal rows. Without --text, it generates text of
an artificial language, in which word frequencies follow Zipf's law, and trains a vocabulary on that
text.
"""

import argparse
import dataclasses
import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from experiments.lab.benchmarks import harness
from experiments.lab.benchmarks.harness import Benchmark, Tables, counted
from macaron_tf.cli.arguments import count, place
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import tokenized_documents
from macaron_tf.data.corpus.packing import Rows, pack_rows
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.data.sources.readers import documents
from macaron_tf.errors import UserError
from macaron_tf.objectives import MaskedLanguageObjective, MaskingConfig
from macaron_tf.text import WordPieceVocabulary

RATE, MASK, RANDOM = 0.15, 0.8, 0.1  # as in BERT
NOT_ASKED = -100  # label that the cross entropy of PyTorch ignores
REFERENCE = "Hugging Face tokenizers, NumPy"
FROM_TEXT = "ours, from text"
FROM_SHARDS = "ours, from prepared shards"
_PIECES = 8000

command = Benchmark(
    "input_pipeline",
    __doc__,
    "tokens",
    ("tensorflow", "tensorflow-text", "tokenizers", "numpy"),
    place(
        "--text GLOB",
        "files, plain or .gz, with one document in each file (default: generated text)",
    ),
    place(
        "--vocabulary FILE",
        "vocab.txt of an uncased BERT (default: a vocabulary trained on the text)",
    ),
    count("--megabytes", "amount of text to read, in megabytes", 4.0, least=1.0),
    count(
        "--lengths", "numbers of tokens in a row, each of which is timed", [128], least=8, nargs="+"
    ),
    count("--batch-size", "number of rows in a batch", 256),
    count("--passes", "number of passes over the shards in each round", 10),
    rounds=7,
    warm_up=1,
    threads=None,
)


def batched(blocks: Iterable[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Yields the rows of blocks `(N, L)` as batches `(B, L)`; the last batch may be smaller."""
    rows = itertools.chain.from_iterable(blocks)
    while batch := list(itertools.islice(rows, batch_size)):
        yield np.stack(batch)


def mask_rows(
    token_ids: np.ndarray, vocabulary: WordPieceVocabulary, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Masks each token of a batch independently with NumPy, as the Hugging Face collator does.

    Special tokens are never masked.

    Args:
        token_ids: `(B, L)` ids of the rows.
        vocabulary: vocabulary of the ids.
        rng: random number generator.

    Returns:
        Dict with the masked `token_ids (B, L)` and `labels (B, L)`. A label is -100 for a token
        that is not predicted.
    """
    ordinary = np.ones(vocabulary.size, bool)
    ordinary[[*vocabulary.special_ids, *range(vocabulary.pieces, vocabulary.size)]] = False
    draws = rng.random(token_ids.shape, np.float32) / RATE
    asked = (draws < 1) & ordinary[token_ids]
    masked = np.where(asked & (draws < MASK), vocabulary.mask_id, token_ids)
    exchanged = asked & (draws >= MASK) & (draws < MASK + RANDOM)
    choice = np.flatnonzero(ordinary)
    masked[exchanged] = choice[rng.integers(0, len(choice), np.count_nonzero(exchanged))]
    return {"token_ids": masked, "labels": np.where(asked, token_ids, NOT_ASKED)}


@dataclasses.dataclass
class Work:
    """Text that all contenders read, with the functions that make batches of the text.

    Attributes:
        texts: the documents.
        vocabulary: vocabulary of this library, which the tokenizer of Hugging Face also gets.
        length: number of tokens L in a row.
        batch_size: number of rows in a batch.
        folder: folder for the files that the contenders read.
        tokens: number of tokens in all rows, including [CLS] and [SEP]. `check` sets this value.
    """

    texts: Sequence[str]
    vocabulary: WordPieceVocabulary
    length: int
    batch_size: int
    folder: pathlib.Path
    tokens: int = 0

    def __post_init__(self):
        import tokenizers

        path = self.folder / "vocabulary.txt"
        path.write_bytes(self.vocabulary.contents())
        lower_case = self.vocabulary.lower_case
        self._tokenizer = tokenizers.BertWordPieceTokenizer(str(path), lowercase=lower_case)
        place = self.folder / "documents"
        place.mkdir()
        for number, text in enumerate(self.texts):
            (place / f"{number:07d}.txt").write_text(text, encoding="utf-8", newline="\n")
        # With this value, only the first row is held out for validation.
        options = {"sequence_length": self.length, "validation_every": 1 << 30}
        config = CorpusConfig(f"text:{place}/*.txt", **options)
        self._corpus = prepare(config, self.vocabulary, self.folder / "corpus")

    def their_rows(self) -> Iterator[np.ndarray]:
        """Yields the rows `(N, L)` of each document, tokenized by Hugging Face."""
        room = self.length - 2
        for text in self.texts:
            lines = [line for line in text.split("\n") if line]
            encoded = self._tokenizer.encode_batch(lines, add_special_tokens=False)
            ids = np.concatenate([np.array(one.ids, np.int32) for one in encoded])
            count = -(-len(ids) // room)
            rows = np.zeros((count, self.length), np.int32)
            rows[:, 0] = self.vocabulary.cls_id
            rows[:, -1] = self.vocabulary.sep_id
            rows[:, 1:-1] = np.pad(ids, (0, count * room - len(ids))).reshape(count, room)
            if len(ids) % room:
                rows[-1, -1] = 0
                rows[-1, len(ids) % room + 1] = self.vocabulary.sep_id
            yield rows

    def their_batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields batches of `their_rows`, masked with NumPy."""
        rng = np.random.default_rng(0)
        for rows in batched(self.their_rows(), self.batch_size):
            yield mask_rows(rows, self.vocabulary, rng)

    def our_rows(self) -> Iterator[np.ndarray]:
        """Yields the rows `(N, L)` of each document, as `pretrain prepare` makes them."""
        special = (self.vocabulary.cls_id, self.vocabulary.sep_id)
        for document in tokenized_documents(self.texts, self.vocabulary, None):
            rows = pack_rows([document], self.length, cross_documents=False)
            yield Rows.of(rows, self.length, *special).token_ids

    def check(self) -> None:
        """Sets `tokens`, after checking that all contenders make equal rows.

        Raises:
            UserError: the rows of two contenders differ.
        """
        theirs, ours = (np.concatenate([*rows]) for rows in (self.their_rows(), self.our_rows()))
        if not np.array_equal(theirs, ours):
            raise UserError(
                "the tokenizer of Hugging Face makes other rows than this library, perhaps because "
                'the text contains a special piece such as "[MASK]": give other text'
            )
        dataset = self._corpus.dataset(
            "train", self.batch_size, None, repeat=False, drop_remainder=False
        )
        shards = np.concatenate([batch["token_ids"] for batch in dataset.as_numpy_iterator()])
        if not np.array_equal(shards, ours[1:]):
            raise UserError(
                "the prepared shards have other rows than the text: report this as a bug"
            )
        self.tokens = int(np.count_nonzero(ours))

    def text_dataset(self) -> tf.data.Dataset:
        """Makes the masked batches of this library from the text."""

        def batches() -> Iterator[dict[str, np.ndarray]]:
            return ({"token_ids": rows} for rows in batched(self.our_rows(), self.batch_size))

        spec = {"token_ids": tf.TensorSpec((None, self.length), tf.int32)}
        return self.masked(tf.data.Dataset.from_generator(batches, output_signature=spec))

    def shard_rows(self, passes: int) -> tf.data.Dataset:
        """Makes shuffled batches of the rows in the shards, for the given number of passes."""
        steps = max(1, passes * self._corpus.rows("train") // self.batch_size)
        return self._corpus.dataset("train", self.batch_size, seed=0).take(steps)

    def masked(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Masks batches of rows as in a training run."""
        return MaskedLanguageObjective().dataset(dataset, MaskingConfig(), self.vocabulary, seed=0)

    def contenders(self, passes: int) -> dict[str, Callable[[], int]]:
        """Returns a dict from contender name to a function that makes all batches.

        Args:
            passes: number of passes over the shards. Other contenders read the text once.
        """
        in_shards = sum(
            int(np.count_nonzero(batch["token_ids"]))
            for batch in self.shard_rows(passes).as_numpy_iterator()
        )
        from_shards = self.masked(self.shard_rows(passes))
        return {
            REFERENCE: counted(self.tokens, lambda: sum(1 for _ in self.their_batches())),
            FROM_TEXT: counted(self.tokens, exhausted(self.text_dataset())),
            FROM_SHARDS: counted(in_shards, exhausted(from_shards)),
        }


def exhausted(dataset: tf.data.Dataset) -> Callable[[], int]:
    """Returns a function that reads the whole dataset in one graph and counts the batches."""

    @tf.function(autograph=False)
    def run():
        return dataset.reduce(tf.constant(0), lambda count, _: count + 1)

    return lambda: int(run())


def open_vocabulary(path: str | None, texts: Sequence[str]) -> WordPieceVocabulary:
    """Reads a BERT vocabulary, or trains a vocabulary on the first million characters of `texts`.

    Args:
        path: file in the format of vocab.txt; `None` means to train a vocabulary.
        texts: the documents.
    """
    if path:
        return WordPieceVocabulary.from_file(path)
    sample = "\n".join(texts)[: 1 << 20]
    return WordPieceVocabulary.train(sample.split("\n"), _PIECES)


def read_texts(pattern: str | None, megabytes: float) -> list[str]:
    """Reads or generates documents, and truncates the last document.

    Args:
        pattern: glob pattern of text files; `None` means to generate documents.
        megabytes: total size in units of 10^6 characters.
    """
    left = round(megabytes * 1e6)
    texts = []
    for text in documents(f"text:{pattern}") if pattern else harness.made_up_texts():
        texts.append(text[:left])
        left -= len(text)
        if left <= 0:
            break
    return [text for text in texts if text.strip()]


def _stay_on_one_core() -> None:
    """Binds the process to one core.

    Call this function before a library starts its thread pool.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("this system cannot bind a process to one core: use Linux")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    harness.set_threads(1)


@command.measures("Input of masked language modeling on one core: {megabytes:g} MB of text")
def main(options: argparse.Namespace) -> Tables:
    """Checks that all contenders make equal rows at each length, and times the contenders."""
    _stay_on_one_core()
    texts = read_texts(options.text, options.megabytes)
    vocabulary = open_vocabulary(options.vocabulary, texts)
    about = f"{vocabulary.pieces:,} pieces, {options.text or 'made-up text'}"
    for length in options.lengths:
        with tempfile.TemporaryDirectory() as folder:
            work = Work(texts, vocabulary, length, options.batch_size, pathlib.Path(folder))
            work.check()
            rows = harness.timed(work.contenders(options.passes), options)
        yield f"rows of {length}, batches of {options.batch_size}, {about}", rows


if __name__ == "__main__":
    raise SystemExit(main())
