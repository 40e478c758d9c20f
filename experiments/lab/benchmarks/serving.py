"""Times predictions of exported models, including tokenization, against Hugging Face.

    python -m experiments.lab.benchmarks.serving                       # short: 1 minute
    python -m experiments.lab.benchmarks.serving --size base --bfloat16 --out DIR

All implementations under comparison have the same BERT classifier with the same random weights.
They classify lines of varied length. The implementations are:

- Hugging Face in PyTorch, with its fast tokenizer (SDPA, inference mode)
- the Hugging Face model in ONNX Runtime and in OpenVINO, with the same tokenizer
- this library as a SavedModel in TensorFlow, and as `predict` with LiteRT for small requests

Before the timing, the benchmark checks that the answers agree. The SavedModel signature is
called in this process, by one client and by several clients.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import scipy.special
import tensorflow as tf

from experiments.lab.benchmarks import harness, peers
from macaron_tf.cli import arguments as cli
from macaron_tf.engines.networks import EXACT
from macaron_tf.errors import UserError
from macaron_tf.model import Model
from macaron_tf.models import EncoderClassifier, catalog
from macaron_tf.tasks import of_classes
from macaron_tf.text.wordpiece import WordPieceVocabulary

REFERENCE, SAVED_MODEL = "Hugging Face", "SavedModel"
MAX_WORDS, MAX_LENGTH = 60, 128  # maximum numbers of words in a line and of ids in a row
# In the order of the arguments of the model.
ONNX_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Function from lines of text to an array with an answer in each row.
Answer = Callable[[Sequence[str]], np.ndarray]


def made_up_lines(count: int, max_words: int, seed: int) -> list[str]:
    """Generates lines of 2 to `max_words` (log-uniform) artificial words."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(2), np.log(max_words + 1), count)).astype(int)
    words = itertools.chain.from_iterable(text.split() for text in harness.made_up_texts(seed))
    return [" ".join(itertools.islice(words, length)) for length in lengths]


class HuggingFaceClassifier:
    """A `BertForSequenceClassification` of transformers and its fast tokenizer, from a folder."""

    def __init__(self, folder: pathlib.Path):
        import transformers

        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        kind = transformers.AutoModelForSequenceClassification
        self.model = kind.from_pretrained(folder, attn_implementation="sdpa")

    def __call__(self, lines: Sequence[str]) -> np.ndarray:
        """Classifies lines `(B,)`, and returns probabilities `(B, C)` of C classes."""
        import torch

        with torch.inference_mode():
            return self.model(**self.inputs(lines, "pt")).logits.float().softmax(-1).numpy()

    def inputs(self, lines: Sequence[str], array_type: str) -> Mapping:
        """Tokenizes lines `(B,)` for PyTorch (`array_type="pt"`) or NumPy (`"np"`)."""
        limits = {"padding": True, "truncation": True, "max_length": MAX_LENGTH}
        return self._tokenizer(list(lines), return_tensors=array_type, **limits)

    def in_engines(self, path: pathlib.Path, threads: int, int8: bool) -> dict[str, Answer]:
        """Exports the model to ONNX, and loads it into ONNX Runtime and OpenVINO.

        `int8` adds models with int8 weights, which the method writes to int8.onnx beside `path`.
        The keys of the result are names such as "OpenVINO, int8".
        """
        import onnxruntime
        import onnxruntime.quantization
        import openvino
        import torch

        ids = torch.ones((2, 7), dtype=torch.long)
        torch.onnx.export(
            self.model,
            (ids, ids, ids),
            path,
            input_names=[*ONNX_INPUTS],
            output_names=["logits"],
            dynamic_axes={name: {0: "rows", 1: "length"} for name in ONNX_INPUTS},
            dynamo=False,  # the newer exporter makes the attention mask a constant
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        settings = {**EXACT, "INFERENCE_NUM_THREADS": threads}

        class Local(threading.local):  # threads cannot share a request object of OpenVINO
            def __init__(self, compiled: openvino.CompiledModel):
                self.infer = compiled.create_infer_request().infer

        def answer(infer: Callable[[dict], np.ndarray], lines: Sequence[str]) -> np.ndarray:
            rows = self.inputs(lines, "np")
            logits = infer({name: rows[name] for name in ONNX_INPUTS})
            return scipy.special.softmax(logits, axis=-1)

        def answers(path: pathlib.Path, suffix: str) -> dict[str, Answer]:
            providers = ["CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(path, options, providers=providers)
            local = Local(openvino.compile_model(path, "CPU", settings))
            infers = {
                "ONNX Runtime": lambda rows: session.run(None, rows)[0],
                "OpenVINO": lambda rows: local.infer(rows)[0],
            }
            return {
                f"{name}{suffix}": functools.partial(answer, infer)
                for name, infer in infers.items()
            }

        found = answers(path, "")
        if int8:
            quantized = path.with_stem("int8")
            # Weights have a scale for each column. Activations get a scale in each request.
            onnxruntime.quantization.quantize_dynamic(path, quantized, per_channel=True)
            found |= answers(quantized, ", int8")
        return found


def exported(model: Model, folder: pathlib.Path, bfloat16: bool = False) -> Answer:
    """Exports a classifier, and returns a function that calls the SavedModel."""
    saved = tf.saved_model.load(str(model.export(folder, bfloat16=bfloat16)))

    def answer(lines: Sequence[str]) -> np.ndarray:
        # Keeps a reference to the model, because a signature alone does not keep the model alive.
        return saved.signatures["serving_default"](text=tf.constant(lines))["probabilities"].numpy()

    return answer


def in_lite(model: Model, precision: str) -> Answer:
    """Returns a function that classifies lines by `predict`, with LiteRT for small requests."""
    lite_model = model.with_lite(precision)
    return lambda lines: np.array([answer["probabilities"] for answer in lite_model.predict(lines)])


def classifiers(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Answer]:
    """Makes all compared implementations of classification. The reference is first."""
    vocabulary = WordPieceVocabulary.train(made_up_lines(2000, MAX_WORDS, options.seed), 4000)
    # The weights have five times BERT's standard deviation. With smaller weights, the answers would
    # hardly depend on the text.
    changes = {"vocab_size": vocabulary.size, "initializer_range": 0.1}
    changes |= {"num_layers": options.layers} if options.layers else {}
    keras.utils.set_random_seed(options.seed)
    network = EncoderClassifier(catalog.config(f"bert_{options.size}", **changes), 2)
    network.build()
    model = Model(network, vocabulary)
    model = dataclasses.replace(model, settings=of_classes(model, ("no", "yes"), MAX_LENGTH))
    model.save_pretrained(folder / "peer", format="hugging-face")
    peer = HuggingFaceClassifier(folder / "peer")
    answers = {
        REFERENCE: peer,
        **peer.in_engines(folder / "model.onnx", options.threads, options.bfloat16),
        SAVED_MODEL: exported(model, folder / "float32"),
        "LiteRT": in_lite(model, "fp32"),
    }
    if options.bfloat16:
        peer_in_bfloat16 = HuggingFaceClassifier(folder / "peer")
        peer_in_bfloat16.model.bfloat16()
        answers["LiteRT, int8"] = in_lite(model, "int8")
        answers[f"{REFERENCE}, bfloat16"] = peer_in_bfloat16
        answers[f"{SAVED_MODEL}, bfloat16"] = exported(model, folder / "bfloat16", bfloat16=True)
    return answers


def check_agreement(answers: Mapping[str, Answer], requests: Sequence[Sequence[str]]) -> None:
    """Checks that all answers agree: within 1e-4, or 5e-2 in bfloat16 and int8."""
    (reference, expect), *others = answers.items()
    for lines in requests:
        expected = expect(lines)
        for name, answer in others:
            difference = np.abs(answer(lines) - expected).max()
            if not difference < (5e-2 if name.endswith(("bfloat16", "int8")) else 1e-4):
                raise UserError(f"{name} and {reference} differ by {difference:.1e}: report this")


def send_requests(
    answer: Answer, requests: Sequence[Sequence[str]], clients: int, latencies: list[float]
) -> int:
    """Sends requests in `clients` threads, times each in seconds; returns the number of lines."""

    def latency(lines: Sequence[str]) -> float:
        start = time.perf_counter()
        answer(lines)
        return time.perf_counter() - start

    with ThreadPoolExecutor(clients) as pool:
        latencies += (pool.map if clients > 1 else map)(latency, requests)
    return sum(map(len, requests))


def with_latencies(
    answers: Mapping[str, Answer],
    requests: Sequence[Sequence[str]],
    options: argparse.Namespace,
    clients: int = 1,
) -> list[dict]:
    """Times all implementations, with "latency_ms" of the timed rounds: "p50", "p95" and "p99"."""
    seconds = {name: [] for name in answers}
    contenders = {
        name: functools.partial(send_requests, answer, requests, clients, seconds[name])
        for name, answer in answers.items()
    }
    rows = harness.timed(contenders, options)
    for row in rows:
        times = 1e3 * np.array(seconds[row["name"]][options.warm_up * len(requests) :])
        row["latency_ms"] = {f"p{n}": float(np.percentile(times, n)) for n in (50, 95, 99)}
        percentiles = (f"{value:.1f}" for value in row["latency_ms"].values())
        row["more"] = {f"{' / '.join(row['latency_ms'])}, ms": " / ".join(percentiles)}
    return rows


def run(options: argparse.Namespace) -> None:
    """Runs the benchmark, and prints and writes the report."""
    harness.publish(options, "Serving: text to answers", "rows", measure(options))


def measure(options: argparse.Namespace) -> harness.Tables:
    """Times all implementations at each batch size and with several clients."""
    # By default, idle threads of PyTorch spin, which made PyTorch ten times slower under other
    # load. To restore the default, set OMP_WAIT_POLICY=active in the environment.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    peers.set_up(options.threads)
    layers = f", {options.layers} layers" if options.layers else ""
    with tempfile.TemporaryDirectory() as folder:
        answers = classifiers(options, pathlib.Path(folder))
        settings = [(f"batch {batch}", batch, 1) for batch in options.batch_sizes]
        if options.clients:
            settings.append((f"batch 1, {options.clients} clients", 1, options.clients))
        for name, batch, clients in settings:
            starts = range(0, options.rows, batch)
            lines = made_up_lines(len(starts) * batch, MAX_WORDS, options.seed + 1)
            requests = [lines[start : start + batch] for start in starts]
            check_agreement(answers, requests)
            rows = with_latencies(answers, requests, options, clients)
            yield f"classifier {options.size}{layers}, {name}", rows


main = cli.single_program(
    "python -m experiments.lab.benchmarks.serving",
    __doc__,
    "experiments.lab.benchmarks.serving:run",
    harness.options(),
    harness.THREADS,
    cli.argument(
        "--size",
        "size of the model (default: mini)",
        default="mini",
        choices=("tiny", "mini", "base", "large"),
    ),
    cli.count("--layers N", "number of layers of the classifier (default: that of --size)"),
    cli.count("--batch-sizes N", "lines in a request (default: 1 32)", [1, 32], nargs="+"),
    cli.count("--rows N", "lines in a round, rounded up to whole requests (default: 32)", 32),
    cli.count("--clients N", "clients that ask at the same time (default: 4)", 4, minimum=0),
    cli.switch("--bfloat16", "also time Hugging Face and SavedModel in bfloat16, others in int8"),
)

if __name__ == "__main__":
    raise SystemExit(main())
