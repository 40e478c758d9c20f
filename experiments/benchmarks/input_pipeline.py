"""From text to masked batches on one core, against Hugging Face's tokenizer and NumPy.

    python -m experiments.benchmarks.input_pipeline --out DIR
    python -m experiments.benchmarks.input_pipeline --text 'novels/*.txt.gz' --vocabulary vocab.txt

Three ways to the same rows `[CLS] ids [SEP]`, of which 15% of the tokens are asked for, 80% of
those hidden and 10% exchanged: Hugging Face's BERT tokenizer (Rust), packed and masked with NumPy;
ours from the same text; and ours from prepared shards, as a training reads them. The process stays
on one core, so that tokens a second are tokens a second of a core. [CLS] and [SEP] count, padding
does not.

The rows are compared before anything is timed. Without --text a language is made up: words of
syllables as frequent as Zipf's law has them, and a vocabulary trained on them.
"""

import argparse
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from experiments.benchmarks.harness import (
    add_number,
    benchmark_parser,
    interleave,
    machine,
    publish,
    set_threads,
    summary,
)
from experiments.benchmarks.made_up_text import made_up_texts
from macaron_tf.errors import UserError, exit_on_user_error

RATE, MASK, RANDOM = 0.15, 0.8, 0.1  # BERT's
NOT_ASKED = -100  # the label that PyTorch's cross entropy leaves out


class InputPeer:
    """Masked batches of a text, as one would write them around `tokenizers`.

    Args:
        vocabulary: a WordPieceVocabulary, whose pieces Hugging Face's BERT tokenizer takes.
        length: L of the rows.
        folder: takes the vocabulary's file.
    """

    def __init__(self, vocabulary, length: int, folder: pathlib.Path):
        import tokenizers

        self._vocabulary, self._length = vocabulary, length
        path = folder / "vocabulary.txt"
        path.write_bytes(vocabulary.contents())
        self._tokenizer = tokenizers.BertWordPieceTokenizer(
            str(path), lowercase=vocabulary.lower_case
        )

    def rows(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """`[CLS] ids [SEP]` of each document, `(N, L)`, all but its last row full."""
        room = self._length - 2
        for text in texts:
            lines = [line for line in text.split("\n") if line]
            encoded = self._tokenizer.encode_batch(lines, add_special_tokens=False)
            ids = np.concatenate([np.array(one.ids, np.int32) for one in encoded])
            count = -(-len(ids) // room)
            rows = np.zeros((count, self._length), np.int32)
            rows[:, 0] = self._vocabulary.cls_id
            rows[:, -1] = self._vocabulary.sep_id
            rows[:, 1:-1] = np.pad(ids, (0, count * room - len(ids))).reshape(count, room)
            if len(ids) % room:
                rows[-1, -1] = 0
                rows[-1, len(ids) % room + 1] = self._vocabulary.sep_id
            yield rows

    def batches(
        self, texts: Iterable[str], batch_size: int, seed: int = 0
    ) -> Iterator[dict[str, np.ndarray]]:
        """What `mask_rows` gives, of B rows each; the last batch may be smaller."""
        rng = np.random.default_rng(seed)
        for rows in batched(self.rows(texts), batch_size):
            yield mask_rows(rows, self._vocabulary, rng)


def batched(blocks: Iterable[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Rows of any blocks `(N, L)` as batches `(B, L)`; the last one may be smaller."""
    held: list[np.ndarray] = []
    count = 0
    for block in blocks:
        held.append(block)
        count += len(block)
        if count >= batch_size:
            rows = np.concatenate(held)
            whole = count - count % batch_size
            for start in range(0, whole, batch_size):
                yield rows[start : start + batch_size]
            held, count = [rows[whole:]], count - whole
    if count:
        yield np.concatenate(held)


def mask_rows(token_ids: np.ndarray, vocabulary, rng: np.random.Generator) -> dict:
    """Masks a batch with NumPy as Hugging Face's collator does: each token for itself.

    Args:
        token_ids: (B, L) int32.
        vocabulary: its special ids are left alone.
        rng: one draw a token says whether it is asked for and what becomes of it.

    Returns:
        {"token_ids": (B, L), "labels": (B, L), -100 where nothing is asked}.
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


REFERENCE = "Hugging Face tokenizers, NumPy"
FROM_TEXT = "ours, from text"
FROM_SHARDS = "ours, from prepared shards"
PACKAGES = ("tensorflow", "tensorflow-text", "tokenizers", "numpy")
_PIECES = 8000
_FIRST_ONLY = 1 << 30  # one row in so many is held out of the shards: the first


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Compares the rows, times all contenders and prints the tables."""
    options = _options(arguments)
    _stay_on_one_core()
    set_threads(1)
    facts = machine(1, PACKAGES)
    tables = {}
    with tempfile.TemporaryDirectory() as folder:
        texts = read_texts(options.text, options.megabytes)
        vocabulary = open_vocabulary(options.vocabulary, texts)
        for length in options.lengths:
            work = Work(texts, vocabulary, length, options.batch_size, pathlib.Path(folder))
            work.check()
            samples = interleave(work.contenders(options.passes), options.rounds, options.warm_up)
            rows = summary(samples, REFERENCE)
            tables[f"rows of {length}, batches of {options.batch_size}"] = rows
            for row in rows[1:]:
                print(
                    f"rows of {length}: {row['name']}: {1 / row['ratio'][1]:.1f} times "
                    f"Hugging Face's tokens a second (by CPU time {1 / row['cpu_ratio'][1]:.1f})"
                )
    source = "files of text" if options.text else "made-up text"
    title = (
        f"Input of masked language modeling on one core: {options.megabytes:g} MB of {source}, "
        f"{vocabulary.pieces:,} pieces"
    )
    publish(options.out, title, facts, tables, "tokens")


class Work:
    """The same text for all contenders.

    Args:
        texts: documents.
        vocabulary: cuts them.
        length: L.
        batch_size: B.
        folder: for what a contender reads from disk.

    Attributes:
        tokens: of all rows, [CLS] and [SEP] included.
    """

    def __init__(self, texts, vocabulary, length: int, batch_size: int, folder: pathlib.Path):
        from macaron_tf.data.corpus.config import CorpusConfig
        from macaron_tf.data.corpus.writing import prepare

        self._texts, self._vocabulary = texts, vocabulary
        self._length, self._batch_size = length, batch_size
        self.peer = InputPeer(vocabulary, length, folder)
        documents = folder / f"documents-{length}"
        documents.mkdir()
        for number, text in enumerate(texts):
            (documents / f"{number:07d}.txt").write_text(text, encoding="utf-8", newline="\n")
        config = CorpusConfig(
            f"text:{documents}/*.txt", sequence_length=length, validation_every=_FIRST_ONLY
        )
        self.corpus = prepare(config, vocabulary, folder / f"corpus-{length}")
        self.tokens = 0

    def our_rows(self) -> Iterator[np.ndarray]:
        """The same rows, as a corpus is prepared."""
        from macaron_tf.data.corpus.documents import tokenized_documents
        from macaron_tf.data.corpus.packing import pack_rows

        special = (self._vocabulary.cls_id, self._vocabulary.sep_id)
        for document in tokenized_documents(self._texts, self._vocabulary, None):
            rows = pack_rows([document], self._length, *special, cross_documents=False)
            yield rows.token_ids

    def check(self) -> None:
        """Compares the contenders' rows and counts their tokens.

        Raises:
            UserError: their rows differ.
        """
        theirs, ours = (
            np.concatenate(list(rows)) for rows in (self.peer.rows(self._texts), self.our_rows())
        )
        if theirs.shape != ours.shape or (theirs != ours).any():
            raise UserError(
                "Hugging Face's tokens are not ours: not timed. A text that spells a special "
                'piece, such as "[MASK]", is one to its tokenizer: give other text.'
            )
        dataset = self.corpus.dataset(
            "train", self._batch_size, None, repeat=False, drop_remainder=False
        )
        shards = np.concatenate([batch["token_ids"] for batch in dataset.as_numpy_iterator()])
        if not np.array_equal(shards, ours[1:]):
            raise UserError("the shards hold other rows than the text gives: not timed.")
        self.tokens = int(np.count_nonzero(ours))

    def text_dataset(self):
        """Our masked batches from the text."""
        import tensorflow as tf

        spec = {"token_ids": tf.TensorSpec((None, self._length), tf.int32)}
        return self._masked(
            tf.data.Dataset.from_generator(
                lambda: (
                    {"token_ids": rows} for rows in batched(self.our_rows(), self._batch_size)
                ),
                output_signature=spec,
            )
        )

    def shard_rows(self, passes: int):
        """Shuffled rows of the shards, without end in a training: here for some epochs."""
        steps = max(1, passes * self.corpus.rows("train") // self._batch_size)
        return self.corpus.dataset("train", self._batch_size, seed=0).take(steps)

    def shard_dataset(self, passes: int):
        """Our masked batches from the shards."""
        return self._masked(self.shard_rows(passes))

    def _masked(self, dataset):
        from macaron_tf.objectives import MaskedLanguageObjective, MaskingConfig

        return MaskedLanguageObjective().dataset(dataset, MaskingConfig(), self._vocabulary, seed=0)

    def contenders(self, passes: int) -> dict:
        """For `interleave`: each makes all batches and returns the number of tokens.

        Args:
            passes: over the shards; of the text there is one.
        """
        from_text = counted(self.text_dataset())
        from_shards = counted(self.shard_dataset(passes))
        shard_tokens = sum(
            np.count_nonzero(batch["token_ids"])
            for batch in self.shard_rows(passes).as_numpy_iterator()
        )

        def run_peer() -> int:
            for _ in self.peer.batches(self._texts, self._batch_size):
                pass
            return self.tokens

        def run_text() -> int:
            from_text()
            return self.tokens

        def run_shards() -> int:
            from_shards()
            return int(shard_tokens)

        return {REFERENCE: run_peer, FROM_TEXT: run_text, FROM_SHARDS: run_shards}


def counted(dataset):
    """A function that makes all batches of a dataset, without Python between them."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def run():
        return dataset.reduce(tf.constant(0), lambda count, _: count + 1)

    return lambda: int(run())


def open_vocabulary(path: str | None, texts: Sequence[str]):
    """BERT's uncased vocabulary of a file, or one trained on the first million characters."""
    from macaron_tf.text import WordPieceVocabulary

    if path:
        return WordPieceVocabulary.from_file(path)
    sample = "\n".join(texts)[: 1 << 20]
    return WordPieceVocabulary.train(sample.split("\n"), _PIECES)


def read_texts(pattern: str | None, megabytes: float) -> list[str]:
    """Documents of a million characters a megabyte in all; the last one is cut.

    Args:
        pattern: files, plain or .gz; a made-up language when None.
        megabytes: how much.

    Raises:
        UserError: no file, or one that cannot be read.
    """
    from macaron_tf.data.sources.readers import documents

    left = round(megabytes * 1e6)
    texts = []
    for text in documents(f"text:{pattern}") if pattern else made_up_texts():
        texts.append(text[:left])
        left -= len(text)
        if left <= 0:
            break
    return [text for text in texts if text.strip()]


def _stay_on_one_core() -> None:
    """Before the libraries start their pools."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("this system cannot keep a process on one core: use Linux.")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = benchmark_parser("input_pipeline", __doc__, rounds=7, warm_up=1)
    add = parser.add_argument
    add("--text", metavar="GLOB", help="documents, a file each, plain or .gz (default: made up)")
    add("--vocabulary", metavar="FILE", help="BERT's uncased vocab.txt (default: trained)")
    add_number(parser, "--megabytes", 4.0, "text to take", kind=float)
    add_number(parser, "--lengths", [128], "L of the rows", least=8, nargs="+")
    add_number(parser, "--batch-size", 256, "rows of a batch")
    add_number(parser, "--passes", 10, "over the shards a round")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
