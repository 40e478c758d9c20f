"""Times predictions of exported models, including tokenization, against Hugging Face.

    python -m experiments.lab.benchmarks.serving                       # short: 1 minute
    python -m experiments.lab.benchmarks.serving --size base --bfloat16 --translator small --out DIR
    python -m experiments.lab.benchmarks.serving --served served/sst2 --clients 8 --out DIR

All implementations under comparison have the same BERT classifier with the same random weights.
They classify lines of varied length. The implementations are:

- Hugging Face in PyTorch, with its fast tokenizer (SDPA, inference mode)
- the Hugging Face model in ONNX Runtime and in OpenVINO, with the same tokenizer
- this library as a SavedModel in TensorFlow, as a Keras model in memory, and as `predict` with
  LiteRT for small requests

Before the timing, the benchmark checks that the answers agree. The SavedModel signature is
called in this process, by one client and by several clients.

For translation, the benchmark compares a SavedModel with the same graph in memory, and with a
SavedModel compiled by XLA (`macaron keras_model --compile`).

With `--served`, the benchmark times only a folder of exported versions: in this process, and over
HTTP in `macaron serve` with default settings, by one client and then by `--clients` clients.
"""

import argparse
import contextlib
import dataclasses
import functools
import http.client
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.special
import tensorflow as tf

from experiments.lab.benchmarks import peers
from experiments.lab.benchmarks.harness import Benchmark, Tables, made_up_texts, timed
from macaron_tf.cli.arguments import argument, count, path_argument, switch
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.decoding import translate_ids
from macaron_tf.engines.exported import ExportedModel, find_version
from macaron_tf.errors import UserError, plural
from macaron_tf.model import Pretrained, load
from macaron_tf.models import EncoderConfig, catalog
from macaron_tf.models.tasks import EncoderClassifier
from macaron_tf.text import SentencePieceVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary

REFERENCE, SAVED_MODEL, IN_MEMORY = "Hugging Face", "SavedModel", "graph in memory"
LITE, LITE_INT8 = "LiteRT", "LiteRT, int8"
MAX_WORDS, MAX_LENGTH = 60, 128  # maximum numbers of words in a line and of ids in a row
LABELS = ("negative", "positive")
# In the order of the arguments of the model.
ONNX_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Function from lines of text to an array with an answer in each row.
Answer = Callable[[Sequence[str]], np.ndarray]

command = Benchmark(
    "serving",
    __doc__,
    "rows",
    (
        *("tensorflow", "tensorflow-text", "keras", "torch", "transformers", "tokenizers"),
        *("onnxruntime", "openvino", "ai-edge-litert"),
    ),
    argument(
        "--size",
        "size of the classifier",
        default="mini",
        choices=("tiny", "mini", "base", "large"),
    ),
    count("--layers", "number of layers of the classifier (default: the number for --size)"),
    count("--batch-sizes", "request sizes to time, in lines", [1, 32], nargs="+"),
    count(
        "--rows",
        "number of lines that each contender processes in a round, rounded up to whole requests; a "
        "translator processes at most 8 lines or one request",
        32,
    ),
    count(
        "--clients",
        "number of clients that send requests with one line at the same time; 0 skips the test "
        "with several clients",
        4,
        minimum=0,
    ),
    switch(
        "--bfloat16",
        "also time Hugging Face and SavedModel in bfloat16, and ONNX Runtime, OpenVINO and LiteRT "
        "in int8",
    ),
    argument(
        "--translator",
        "size of the translation model; 'none' skips translation",
        default="tiny",
        choices=("none", "tiny", "small", "base", "big"),
    ),
    count("--new-tokens", "number of tokens in each translation", 24, minimum=2),
    path_argument(
        "--served OUT",
        "folder of an exported model; the benchmark then times only this model, in this process "
        "and in `macaron serve` (default: time models with random weights)",
    ),
)


def made_up_lines(count: int, max_words: int, seed: int) -> list[str]:
    """Generates lines of artificial words.

    The number of words in a line is log-uniformly distributed from 2 to `max_words`.
    """
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(2), np.log(max_words + 1), count)).astype(int)
    words = itertools.chain.from_iterable(text.split() for text in made_up_texts(seed))
    return [" ".join(itertools.islice(words, length)) for length in lengths]


class HuggingFaceClassifier(peers.HuggingFacePeer):
    """A `BertForSequenceClassification` with random weights and a fast tokenizer.

    The weights have a standard deviation of 0.1, which is five times BERT's standard deviation.
    With smaller weights, the answers would hardly depend on the text.
    """

    def __init__(
        self,
        config: EncoderConfig,
        vocabulary: WordPieceVocabulary,
        seed: int,
        bfloat16: bool = False,
    ):
        import transformers

        self._vocabulary = vocabulary
        self._tokenizer = transformers.BertTokenizerFast(
            vocab={piece: token_id for token_id, piece in enumerate(vocabulary.words)},
            do_lower_case=vocabulary.lower_case,
        )
        super().__init__(
            transformers.BertForSequenceClassification,
            seed,
            vocab_size=vocabulary.size,
            hidden_size=config.hidden_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.feed_forward_dim,
            max_position_embeddings=config.max_length,
            initializer_range=0.1,
            num_labels=len(LABELS),
            attn_implementation="sdpa",
        )
        if bfloat16:
            self.model.bfloat16()

    def __call__(self, lines: Sequence[str]) -> np.ndarray:
        """Classifies lines `(B,)`, and returns probabilities `(B, C)` of C classes."""
        with self._torch.inference_mode():
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

        ids = self._torch.ones((2, 7), dtype=self._torch.long)
        self._torch.onnx.export(
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
        open_session = functools.partial(
            onnxruntime.InferenceSession, sess_options=options, providers=["CPUExecutionProvider"]
        )
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        settings["PERFORMANCE_HINT"] = "LATENCY"

        class Local(threading.local):  # threads cannot share a request object of OpenVINO
            def __init__(self, compiled: openvino.CompiledModel):
                self.infer = compiled.create_infer_request().infer

        def answer(infer: Callable[[dict], np.ndarray], lines: Sequence[str]) -> np.ndarray:
            rows = self.inputs(lines, "np")
            logits = infer({name: rows[name] for name in ONNX_INPUTS})
            return scipy.special.softmax(logits, axis=-1)

        def runtime(path: pathlib.Path) -> Answer:
            session = open_session(path)
            return functools.partial(answer, lambda rows: session.run(None, rows)[0])

        def open_vino(path: pathlib.Path) -> Answer:
            local = Local(openvino.compile_model(path, "CPU", settings))
            return functools.partial(answer, lambda rows: local.infer(rows)[0])

        answers = {"ONNX Runtime": runtime(path), "OpenVINO": open_vino(path)}
        if int8:
            # Weights have a scale for each column. Activations get a scale in each request.
            onnxruntime.quantization.quantize_dynamic(
                path, path.with_stem("int8"), per_channel=True
            )
            answers["ONNX Runtime, int8"] = runtime(path.with_stem("int8"))
            answers["OpenVINO, int8"] = open_vino(path.with_stem("int8"))
        return answers

    def as_macaron_tf(self, directory: pathlib.Path, dtype: str = "float32") -> EncoderClassifier:
        """Builds a classifier of this library with the weights of this Hugging Face model."""
        self.model.save_pretrained(directory)
        self._vocabulary.save(directory)
        # Hugging Face reads the vocabulary from a file with this name.
        (directory / "vocab.txt").write_bytes(self._vocabulary.contents())
        read = load(f"hugging-face:{directory}", self._vocabulary.lower_case)
        copied = read.classifier(len(LABELS))
        network = EncoderClassifier(copied.config, len(LABELS), dtype=dtype)
        network.build()
        network.set_weights(copied.get_weights())
        head = self.model.classifier
        kernel, bias = (value.detach().numpy() for value in (head.weight, head.bias))
        network.head.dense.set_weights([kernel.T, bias])
        return network


def _saved(network, vocabulary, folder: pathlib.Path, output: str, *arguments: str) -> Answer:
    """Exports a network by `macaron keras_model`, and returns a function that calls the SavedModel.

    The command runs in a process of its own, because `experiments` must not import `export`. It
    reads the network from a .keras file, which the function writes first. `output` is the name of
    the model output with the answers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    network.save(folder / "model.keras")
    vocabulary.save(folder)
    command = [sys.executable, "-m", "macaron_tf", "keras_model", str(folder / "model.keras")]
    command += [str(folder), str(folder / "served"), *arguments]
    if subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).returncode:
        raise UserError("`macaron keras_model` failed: read its error message above")
    model = tf.saved_model.load(str(folder / "served" / "1"))

    def answer(lines: Sequence[str]) -> np.ndarray:
        # Keeps a reference to the model, because a signature alone does not keep the model alive.
        return model.signatures["serving_default"](text=tf.constant(lines))[output].numpy()

    return answer


def our_answers(
    network: EncoderClassifier, vocabulary: WordPieceVocabulary, folder: pathlib.Path
) -> dict[str, Answer]:
    """Makes functions that classify lines by a SavedModel, by `predict_on_batch` and by a call."""

    def answer(call: Callable, lines: Sequence[str]) -> np.ndarray:
        logits = call(encode_pairs(vocabulary, tf.constant(lines), None, MAX_LENGTH))
        return tf.nn.softmax(tf.cast(logits, tf.float32)).numpy()

    flags = ("--labels", *LABELS, "--max-length", str(MAX_LENGTH))
    calls = {
        "Keras, predict_on_batch": network.predict_on_batch,
        "Keras, called": functools.partial(network, training=False),
    }
    return {
        SAVED_MODEL: _saved(network, vocabulary, folder, "probabilities", *flags),
        **{name: functools.partial(answer, call) for name, call in calls.items()},
    }


def in_lite(model: Pretrained, precision: str) -> Answer:
    """Returns a function that classifies lines by `predict`, with LiteRT for small requests.

    `precision` is `"fp32"` or `"int8"`.
    """
    lite_model = model.with_lite(precision)
    return lambda lines: np.array([answer["probabilities"] for answer in lite_model.predict(lines)])


def classifiers(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Answer]:
    """Makes all compared implementations of classification. The reference is first."""
    vocabulary = WordPieceVocabulary.train(made_up_lines(2000, MAX_WORDS, options.seed), 4000)
    changes = {"num_layers": options.layers} if options.layers else {}
    config = catalog.config(f"bert_{options.size}", vocab_size=vocabulary.size, **changes)
    hugging_face = HuggingFaceClassifier(config, vocabulary, options.seed)
    network = hugging_face.as_macaron_tf(folder / "peer")
    engines = hugging_face.in_engines(
        folder / "peer" / "model.onnx", options.threads, options.bfloat16
    )
    macaron_tf_answers = our_answers(network, vocabulary, folder / "float32")
    usage = {"labels": LABELS, "max_length": MAX_LENGTH}
    model = Pretrained(network, vocabulary=vocabulary, name="classifier", **usage)
    answers = {
        REFERENCE: hugging_face,
        **engines,
        **macaron_tf_answers,
        LITE: in_lite(model, "fp32"),
    }
    if options.bfloat16:
        answers[LITE_INT8] = in_lite(model, "int8")
        network = hugging_face.as_macaron_tf(folder / "peer", dtype="mixed_bfloat16")
        macaron_tf_answers = our_answers(network, vocabulary, folder / "bfloat16")
        hugging_face_bfloat16 = HuggingFaceClassifier(
            config, vocabulary, options.seed, bfloat16=True
        )
        answers[f"{REFERENCE}, bfloat16"] = hugging_face_bfloat16
        answers[f"{SAVED_MODEL}, bfloat16"] = macaron_tf_answers[SAVED_MODEL]
    return answers


def translators(
    size: str, lines: Sequence[str], new_tokens: int, folder: pathlib.Path
) -> dict[str, Answer]:
    """Makes the compared implementations of translation: a graph in memory and two SavedModels.

    The weights are random. All translations have `new_tokens` tokens, so that beam search takes the
    same number of steps in all implementations.
    """
    vocabulary = SentencePieceVocabulary.train(
        lines, 1000, masks=False, languages=("en", "de"), character_coverage=1.0
    )
    network = catalog.build(f"transformer_{size}", vocab_size=vocabulary.size)
    config = peers.exact_search(new_tokens)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None,), tf.string)])
    def graph(lines):
        rows = vocabulary.encode(lines, "en")
        end = tf.fill([tf.shape(lines)[0], 1], vocabulary.special.end)
        source = tf.concat([rows, end], axis=1).to_tensor(vocabulary.special.pad)
        ids = translate_ids(network, source, config, vocabulary.pieces)["ids"][:, 0]
        return vocabulary.decode(ids)

    arguments = ("translations", "--decoding", json.dumps(dataclasses.asdict(config)))
    compiled = (folder / "compiled", *arguments, "--compile")
    return {
        IN_MEMORY: lambda lines: graph(tf.constant(lines)).numpy()[:, None],
        SAVED_MODEL: _saved(network, vocabulary, folder / "plain", *arguments),
        f"{SAVED_MODEL}, compiled": _saved(network, vocabulary, *compiled),
    }


def check_agreement(answers: Mapping[str, Answer], requests: Sequence[Sequence[str]]) -> None:
    """Checks that all implementations give about the same answers as the first implementation.

    Numbers may differ by less than 1e-4, or 5e-2 in implementations whose name ends with "bfloat16"
    or "int8".
    """
    reference = next(iter(answers))
    for lines in requests:
        expected = answers[reference](lines)
        for name, answer in answers.items():
            actual = answer(lines)
            if actual.dtype == object:
                if not np.array_equal(actual, expected):
                    raise UserError(
                        f"{name} and {reference} return different results: report this as a bug"
                    )
                continue
            error = np.abs(actual - expected).max()
            if not error < (5e-2 if name.endswith(("bfloat16", "int8")) else 1e-4):
                raise UserError(
                    f"the outputs of {name} and {reference} differ by {error:.1e}: report this"
                )


def send_requests(
    answer: Answer, requests: Sequence[Sequence[str]], clients: int, latencies: list[float]
) -> int:
    """Sends all requests, measures their latencies, and returns the total number of lines.

    Args:
        clients: number of threads. A thread waits for each answer before it sends the next request.
        latencies: list to which the function appends the latency of each request in seconds.
    """

    def latency(lines: Sequence[str]) -> float:
        start = time.perf_counter()
        answer(lines)
        return time.perf_counter() - start

    if clients == 1:
        latencies += map(latency, requests)
    else:
        with ThreadPoolExecutor(clients) as pool:
            latencies += pool.map(latency, requests)
    return sum(map(len, requests))


def with_latencies(
    answers: Mapping[str, Answer],
    requests: Sequence[Sequence[str]],
    options: argparse.Namespace,
    clients: int = 1,
) -> list[dict]:
    """Times all implementations, and adds latency percentiles to the output of `harness.timed`.

    The added field "latency_ms" is a dict with the keys "p50", "p95" and "p99". Warm-up runs do not
    count.
    """
    seconds = {name: [] for name in answers}
    contenders = {
        name: functools.partial(send_requests, answer, requests, clients, seconds[name])
        for name, answer in answers.items()
    }
    rows = timed(contenders, options)
    for row in rows:
        times = 1e3 * np.array(seconds[row["name"]][options.warm_up * len(requests) :])
        row["latency_ms"] = {f"p{n}": float(np.percentile(times, n)) for n in (50, 95, 99)}
        percentiles = (f"{value:.1f}" for value in row["latency_ms"].values())
        row["more"] = {f"{' / '.join(row['latency_ms'])}, ms": " / ".join(percentiles)}
    return rows


def requests_of(batch: int, options: argparse.Namespace) -> list[list[str]]:
    """Generates requests of `batch` lines each, with at least `--rows` lines in total."""
    count = -(-options.rows // batch)
    lines = made_up_lines(count * batch, MAX_WORDS, options.seed + 1)
    return [lines[i * batch : (i + 1) * batch] for i in range(count)]


@contextlib.contextmanager
def over_http(folder: str) -> Iterator[Callable[[Sequence[str]], dict]]:
    """Starts `macaron serve`, and yields a function from lines to the outputs of the model."""
    arguments = ["-m", "macaron_tf", "serve", folder, "--name", "model", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )

    class Local(threading.local):  # a connection for each thread
        def __init__(self):
            self.connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=60)

    def answer(lines: Sequence[str]) -> dict:
        body = json.dumps({"inputs": {"text": list(lines)}})
        local.connection.request("POST", "/v1/models/model:predict", body)
        return json.load(local.connection.getresponse())["outputs"]

    try:
        match = re.search(r"http://127.0.0.1:(\d+)", process.stdout.readline())
        if not match:
            raise UserError(
                f"the server did not start: run `python {' '.join(arguments)}` to see the error"
            )
        local = Local()
        yield answer
    finally:
        process.terminate()
        process.wait()


def server_tables(options: argparse.Namespace) -> Tables:
    """Times an exported model in this process and over HTTP.

    Yields:
        Pairs of a table title and the rows of the table.
    """
    model = ExportedModel(find_version(options.served))

    def in_process(lines: Sequence[str]) -> dict:
        texts = np.array([line.encode() for line in lines], object)
        return model.run("serving_default", {"text": texts})

    with over_http(options.served) as asked:
        [output] = {"probabilities", "vector", "score"} & in_process(["a"]).keys()
        answers = {
            "in this process": lambda lines: in_process(lines)[output],
            "over HTTP": lambda lines: np.array(asked(lines)[output]),
        }
        for batch in options.batch_sizes:
            requests = requests_of(batch, options)
            check_agreement(answers, requests)
            for clients in (1, *filter(None, [options.clients])):
                rows = with_latencies(answers, requests, options, clients)
                yield f"batch {batch}, {clients} {plural('client', clients)}", rows


@command.measures("Serving: text to answers")
def main(options: argparse.Namespace) -> Tables:
    """Runs the command: times servers, a run or models with random weights."""
    # By default, idle threads of PyTorch spin, which made PyTorch ten times slower under other
    # load. To restore the default, set OMP_WAIT_POLICY=active in the environment.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if options.served:
        yield from server_tables(options)
        return
    peers.set_up(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        yield from model_tables(options, pathlib.Path(folder))


def model_tables(options: argparse.Namespace, folder: pathlib.Path) -> Tables:
    """Times classification and translation by models with random weights.

    Yields:
        Pairs of a table title and the rows of the table.
    """
    answers = classifiers(options, folder)
    model_name = f"classifier {options.size}" + (
        f", {options.layers} layers" * bool(options.layers)
    )
    for batch in options.batch_sizes:
        requests = requests_of(batch, options)
        check_agreement(answers, requests)
        yield f"{model_name}, batch {batch}", with_latencies(answers, requests, options)
    if options.clients:
        concurrent = {name: answer for name, answer in answers.items() if "Keras" not in name}
        rows = with_latencies(concurrent, requests_of(1, options), options, options.clients)
        yield f"{model_name}, batch 1, {options.clients} clients", rows
    if options.translator != "none":
        lines = made_up_lines(2000, MAX_WORDS, options.seed)
        answers = translators(options.translator, lines, options.new_tokens, folder / "text")
        model_name = f"translator {options.translator}, {options.new_tokens} tokens"
        for batch in options.batch_sizes:
            requests = requests_of(batch, options)[: max(1, 8 // batch)]
            check_agreement(answers, requests)
            yield f"{model_name}, batch {batch}", with_latencies(answers, requests, options)


if __name__ == "__main__":
    raise SystemExit(main())
