"""Times a cross-encoder against a bi-encoder on all pairs of N sentences.

    python -m experiments.lab.benchmarks.pairs --out DIR

For the 49,995,000 pairs of 10,000 sentences, Reimers and Gurevych 2019 report 65 hours with a
cross-encoder and 5 seconds with a bi-encoder. In this benchmark, a bi-encoder computes a vector of
each sentence, and then finds the nearest other sentence by cosine similarity, as `embed search`
does. A cross-encoder of the same size reads both sentences of a pair in one row. It scores only a
sample of the pairs. The weights are random, because the time does not depend on the weights.
Tokenization is not timed. Ratios compare the time per pair.
"""

import argparse
import statistics

import keras
import numpy as np

from experiments.lab.benchmarks.harness import Benchmark, Tables, counted, set_threads, timed
from experiments.lab.benchmarks.serving import made_up_lines
from macaron_tf.cli.arguments import argument, count
from macaron_tf.data.example_batches import ExampleBatches
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.encoding import encode_sentences
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.evaluation.similarity import nearest, unit_vectors
from macaron_tf.models import catalog
from macaron_tf.models.tasks import EncoderClassifier, SiameseEncoder
from macaron_tf.tasks.classification import Classification
from macaron_tf.tasks.labelled import Limits
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.tasks.vectors import Vectors
from macaron_tf.text.wordpiece import WordPieceVocabulary

MAX_WORDS = 20  # maximum number of words in a sentence
MAX_LENGTH = 128  # maximum number of ids in a row
# Number of rows in a batch of pairs, and number of different padded lengths, as in `Vectors`.
BATCH, SHAPES = 128, 16
QUERIES = 1_000  # number of sentences that are compared with all N sentences at once

command = Benchmark(
    "pairs",
    __doc__,
    "pairs",
    ("tensorflow", "keras"),
    argument(
        "--size",
        "size of both models",
        default="mini",
        choices=("tiny", "mini", "base", "large"),
    ),
    count(
        "--sentences", "number of sentences N; all pairs of them are compared", 10_000, minimum=2
    ),
    count("--scored", "number of pairs that the cross-encoder scores in each round", 2_000),
    rounds=3,
    warm_up=1,
)


@command.measures("All pairs of {sentences:,} sentences by a BERT {size}")
def main(options: argparse.Namespace) -> Tables:
    """Runs the benchmark: times the cross-encoder on a sample, and the bi-encoder on all pairs."""
    set_threads(options.threads)
    keras.utils.set_random_seed(options.seed)
    lines = made_up_lines(options.sentences, MAX_WORDS, options.seed)
    vocabulary = WordPieceVocabulary.train(made_up_lines(2_000, 60, options.seed), 4_000)
    config = catalog.config(f"bert_{options.size}", vocab_size=vocabulary.size)
    classifier, siamese = EncoderClassifier(config, 1), SiameseEncoder(config)
    for network in (classifier, siamese):
        network.build()

    task = Classification(get_task("stsb"), Limits(MAX_LENGTH), classifier, vocabulary)
    indices = np.random.default_rng(options.seed).integers(len(lines), size=(2, options.scored))
    texts = tuple([lines[index] for index in side] for side in indices)
    encoded = task.encoded(vocabulary, Examples(texts, None), task.limits)
    batches, outputs = ExampleBatches(encoded, BATCH, SHAPES), SetOutputs(task, BATCH)

    encoder = Vectors(siamese, vocabulary, MAX_LENGTH)
    rows, _ = encode_sentences(vocabulary, lines, MAX_LENGTH)

    def search() -> None:
        vectors = unit_vectors(encoder.encode_rows(rows))  # (N, D)
        for start in range(0, len(vectors), QUERIES):
            # Finds the sentence itself and its nearest neighbour.
            nearest(vectors[start : start + QUERIES], vectors, 2)

    pairs = len(lines) * (len(lines) - 1) // 2
    table = timed(
        {
            "vectors and cosines": counted(pairs, search),
            "both sentences in a row": counted(options.scored, outputs.logits, batches),
        },
        options,
    )
    for row, rows_read in zip(table, (len(lines), pairs), strict=True):
        row["all_pairs_cpu_seconds"] = pairs / row["units"] * statistics.median(row["cpu_seconds"])
        row["more"] = {
            "rows read for all pairs": f"{rows_read:,}",
            "CPU seconds for all pairs": f"{row['all_pairs_cpu_seconds']:,.1f}",
        }
    yield f"{len(lines):,} sentences, {pairs:,} pairs", table


if __name__ == "__main__":
    raise SystemExit(main())
