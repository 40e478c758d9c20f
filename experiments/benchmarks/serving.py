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
    from experiments.benchmarks.harness import interleave, percentiles, summary

    turns = {name: Turn(answer, requests, clients) for name, answer in answers.items()}
    samples = interleave(turns, options.rounds, options.warm_up, _say)
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
    from experiments.benchmarks.harness import machine, markdown, set_threads, write_report
    from experiments.benchmarks.peers import require_peers

    require_peers()
    import torch

    torch.set_num_threads(options.threads)
    set_threads(options.threads)
    facts = machine(options.threads, PACKAGES)
    tables = measured(options)
    print(markdown(TITLE, facts, tables, "rows"))
    if options.out:
        write_report(options.out, TITLE, facts, tables, "rows")
        print(f"written to {options.out}")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    sizes = ("tiny", "mini", "base", "large")
    add("--size", default="mini", choices=sizes, help="of the classifier (default %(default)s)")
    add("--layers", type=int, help="of the classifier, instead of its size's")
    add("--batch-sizes", type=int, nargs="+", default=[1, 32], help="(default 1 32)")
    add("--rows", type=int, default=32, help="lines of a turn, or more (default %(default)s)")
    add(
        "--clients",
        type=int,
        default=4,
        help="threads that ask at once, one line each; 0 to leave it out (default %(default)s)",
    )
    add("--bfloat16", action="store_true", help="also both classifiers in bfloat16")
    add(
        "--translator",
        default="tiny",
        choices=("none", "tiny", "small", "base", "big"),
        help="size of the translator that is exported (default %(default)s)",
    )
    add("--new-tokens", type=int, default=24, help="of a translation (default %(default)s)")
    add("--threads", type=int, default=2, help="of every contender (default %(default)s)")
    add("--rounds", type=int, default=5, help="timed rounds (default %(default)s)")
    add("--warm-up", type=int, default=2, help="turns before them (default %(default)s)")
    add("--seed", type=int, default=1)
    add("--out", metavar="DIR", help="write README.md, results.json and results.png there")
    options = parser.parse_args(arguments)
    least = dict.fromkeys(("batch_sizes", "rows", "threads", "rounds", "warm_up"), 1)
    least |= {"clients": 0, "new_tokens": 2}
    if options.layers is not None:
        least["layers"] = 1
    for name, number in least.items():
        value = np.min(getattr(options, name))
        if value < number:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} {value}: give whole numbers of {number} or more.")
    return options


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(exit_on_user_error(main)())
