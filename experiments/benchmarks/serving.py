"""How fast an exported model answers, text in and answers out, beside Hugging Face's.

    python -m experiments.benchmarks.serving                       # short: a minute
    python -m experiments.benchmarks.serving --size base --bfloat16 --translator small --out DIR

One BERT classifier of random weights, equal in all hands, is given lines of varied length:
Hugging Face's with its fast tokenizer in PyTorch (SDPA, inference mode), our SavedModel loaded by
TensorFlow alone, and our Keras model in memory. Answers are compared before they are timed.
TensorFlow Serving's container needs Docker's engine and is not part of this: what is timed is the
signature that its server calls, in this process, also by several clients at once; its network and
its batching come on top. A translator's SavedModel is timed beside its own graph in memory.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from experiments.benchmarks.harness import (
    add_number,
    benchmark_parser,
    interleave,
    machine,
    percentiles,
    publish,
    set_threads,
    summary,
)
from macaron_tf.errors import UserError, exit_on_user_error

REFERENCE, SAVED_MODEL = "Hugging Face", "SavedModel"
PACKAGES = ("tensorflow", "tensorflow-text", "keras", "torch", "transformers", "tokenizers")
TITLE = "Serving: text to answers"
LONGEST, MAX_LENGTH = 60, 128  # words of a line, ids of a row


class Turn:
    """One pass over all requests, each of them timed.

    Args:
        answer: a request's lines to an array.
        requests: lists of lines.
        clients: threads that take the next request as soon as they have an answer.
    """

    def __init__(self, answer: Callable, requests: Sequence[Sequence[str]], clients: int = 1):
        self.seconds: list[float] = []
        self._answer = answer
        self._requests = requests
        self._clients = clients

    def __call__(self) -> int:
        """Runs it; returns the number of rows."""
        if self._clients == 1:
            self.seconds += [self._timed(lines) for lines in self._requests]
        else:
            with ThreadPoolExecutor(self._clients) as clients:
                self.seconds += clients.map(self._timed, self._requests)
        return sum(len(lines) for lines in self._requests)

    def _timed(self, lines: Sequence[str]) -> float:
        start = time.perf_counter()
        self._answer(lines)
        return time.perf_counter() - start


def timed(
    answers: Mapping[str, Callable],
    requests: Sequence[Sequence[str]],
    options: argparse.Namespace,
    clients: int = 1,
) -> list[dict]:
    """`summary`'s rows against the first contender, with "latency_ms" of the timed requests."""
    turns = {name: Turn(answer, requests, clients) for name, answer in answers.items()}
    samples = interleave(turns, options.rounds, options.warm_up)
    rows = summary(samples, next(iter(answers)))
    for row in rows:
        seconds = turns[row["name"]].seconds[options.warm_up * len(requests) :]
        row["latency_ms"] = percentiles(seconds)
    return rows


def check_agreement(answers: Mapping[str, Callable], requests: Sequence[Sequence[str]]) -> None:
    """Refuses contenders whose answers are not the first one's.

    Raises:
        UserError: probabilities differ by more than 1e-4 (5e-2 in bfloat16), or text at all.
    """
    reference = next(iter(answers))
    for lines in requests:
        expected = answers[reference](lines)
        for name, answer in answers.items():
            found = answer(lines)
            if found.dtype == object:
                if not np.array_equal(found, expected):
                    raise UserError(f"{name} says other things than {reference}: not timed.")
                continue
            error = np.abs(found - expected).max()
            if not error < (5e-2 if "bfloat16" in name else 1e-4):
                raise UserError(f"{name} differs from {reference} by {error:.1e}: not timed.")


def classifiers(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Callable]:
    """The classifier in all hands, by name, the reference first.

    Args:
        options: of the command.
        folder: for what is exported.
    """
    from experiments.benchmarks.served_models import (
        HuggingFaceClassifier,
        keras_classifier,
        made_up_lines,
        saved_classifier,
    )
    from macaron_tf.models import catalog
    from macaron_tf.text.wordpiece import WordPieceVocabulary

    lines = made_up_lines(2000, LONGEST, options.seed)
    vocabulary = WordPieceVocabulary.train(lines, 4000)
    changes = {"num_layers": options.layers} if options.layers else {}
    config = catalog.config(f"bert_{options.size}", vocab_size=vocabulary.size, **changes)

    def peer() -> HuggingFaceClassifier:
        return HuggingFaceClassifier(config, vocabulary, MAX_LENGTH, options.seed)

    theirs = peer()
    network = theirs.ours(folder / "peer")
    answers = {
        REFERENCE: theirs.answer,
        SAVED_MODEL: saved_classifier(network, vocabulary, MAX_LENGTH, folder / "float32"),
        "Keras, predict_on_batch": keras_classifier(network, vocabulary, MAX_LENGTH, True),
        "Keras, called": keras_classifier(network, vocabulary, MAX_LENGTH, False),
    }
    if options.bfloat16:
        network = theirs.ours(folder / "peer", dtype="mixed_bfloat16")
        answers |= {
            f"{REFERENCE}, bfloat16": peer().to_bfloat16().answer,
            f"{SAVED_MODEL}, bfloat16": saved_classifier(
                network, vocabulary, MAX_LENGTH, folder / "bfloat16"
            ),
        }
    return answers


def requests_of(batch: int, options: argparse.Namespace) -> list[list[str]]:
    """At least `--rows` lines in requests of `batch`."""
    from experiments.benchmarks.served_models import made_up_lines

    count = -(-options.rows // batch)
    lines = made_up_lines(count * batch, LONGEST, options.seed + 1)
    return [lines[i * batch : (i + 1) * batch] for i in range(count)]


def measured(options: argparse.Namespace) -> dict[str, list[dict]]:
    """All tables, by their settings."""
    from experiments.benchmarks.served_models import made_up_lines, translators

    tables = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        answers = classifiers(options, folder)
        what = f"classifier {options.size}" + (f", {options.layers} layers" * bool(options.layers))
        for batch in options.batch_sizes:
            requests = requests_of(batch, options)
            check_agreement(answers, requests)
            tables[f"{what}, batch {batch}"] = timed(answers, requests, options)
        if options.clients:
            called = {name: one for name, one in answers.items() if "Keras" not in name}
            title = f"{what}, batch 1, {options.clients} clients"
            tables[title] = timed(called, requests_of(1, options), options, options.clients)
        if options.translator != "none":
            lines = made_up_lines(2000, LONGEST, options.seed)
            answers = translators(options.translator, lines, options.new_tokens, folder / "text")
            for batch in options.batch_sizes:
                requests = requests_of(batch, options)[: max(1, 8 // batch)]
                check_agreement(answers, requests)
                title = f"translator {options.translator}, {options.new_tokens} tokens"
                tables[f"{title}, batch {batch}"] = timed(answers, requests, options)
    return tables


def main(arguments: list[str] | None = None) -> None:
    """Times all contenders and prints the tables."""
    options = _options(arguments)
    # Both before the libraries start their pools.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    # PyTorch's waiting threads spin by default, for which any other load on the machine punishes it
    # (ten times its time, seen); OMP_WAIT_POLICY=active in the environment has them spin.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # No reaching out for files: the models are made here.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from experiments.benchmarks.peers import require_peers

    require_peers()
    import torch

    torch.set_num_threads(options.threads)
    set_threads(options.threads)
    facts = machine(options.threads, PACKAGES)
    tables = measured(options)
    publish(options.out, TITLE, facts, tables, "rows")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = benchmark_parser("serving", __doc__, rounds=5, warm_up=2)
    sizes = ("tiny", "mini", "base", "large")
    parser.add_argument("--size", default="mini", choices=sizes, help="of the classifier")
    add_number(parser, "--layers", None, "of the classifier, instead of its size's")
    add_number(parser, "--batch-sizes", [1, 32], "lines of a request", nargs="+")
    add_number(parser, "--rows", 32, "lines of a turn, or more")
    add_number(
        parser, "--clients", 4, "threads that ask at once, a line each; 0 leaves it out", least=0
    )
    parser.add_argument("--bfloat16", action="store_true", help="also both classifiers in bfloat16")
    parser.add_argument(
        "--translator",
        default="tiny",
        choices=("none", "tiny", "small", "base", "big"),
        help="size of the translator that is exported (default %(default)s)",
    )
    add_number(parser, "--new-tokens", 24, "of a translation", least=2)
    add_number(parser, "--threads", 2, "of every contender")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(exit_on_user_error(main)())
