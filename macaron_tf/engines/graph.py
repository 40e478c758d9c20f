"""Execution of a task's TensorFlow graphs in this process, from input texts to answers."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.engines.session import STEPS
from macaron_tf.errors import TextError, UserError, diverged, plural
from macaron_tf.io.progress import track
from macaron_tf.io.serving import failed_check, failed_rows
from macaron_tf.kernels import implementation_scope
from macaron_tf.layers.packing import packing_scope
from macaron_tf.tasks.base import TaskKind, require
from macaron_tf.text.normalization import byte_limit, cut_texts

if TYPE_CHECKING:
    from macaron_tf.engines.lite import LiteModel

_BATCH_SIZE = 32  # maximum number of texts in a batch
Functions = dict[str, tf.types.experimental.ConcreteFunction]


class TaskGraph:
    """TensorFlow graphs of a task with its network. A SavedModel export writes the same graphs.

    The graphs are traced at first use and cached. Each run of a graph reads the network's current
    weights. In a graph, a text that is not UTF-8 raises an InvalidArgumentError, which a server
    turns into HTTP status 400.
    """

    def __init__(self, task: TaskKind, small_engine: "LiteModel | None" = None):
        self.task, self._small_engine = task, small_engine
        self._scope = keras.StatelessScope()  # holds values used in place of the network's weights

    @contextlib.contextmanager
    def in_bfloat16(self, network_name: str) -> Iterator[None]:
        """Runs the network under Keras's policy `mixed_bfloat16` within a `with` block.

        The kernels of dense layers are stored in bfloat16, because for a request of one line, the
        cast of a kernel would take longer than the matrix product. All other weights stay in
        float32, as do the computations of norms, softmax and recurrences.
        """
        with under_policy(self.task.network, "mixed_bfloat16", f"--bfloat16: {network_name}"):
            for layer in self.task.network._flatten_layers():
                if isinstance(layer, keras.layers.Dense):
                    matrix = tf.Variable(tf.cast(layer.kernel.value, tf.bfloat16), trainable=False)
                    self._scope.add_update((layer.kernel, matrix))
            yield

    @functools.cached_property
    def signatures(self) -> Functions:
        """Dict mapping signature name to concrete function."""
        # The scope selects TensorFlow's own ops, because a server lacks this library's kernels.
        with self._scope, implementation_scope("loop"), packing_scope():
            return {
                name: traced(checked(self.task, serve), *column_specs(inputs))
                for name, (serve, inputs) in self.task.functions().items()
            }

    def steps(self, output: Sequence[int | None]) -> Functions:
        """Traces `OnePass.prepare` and `OnePass.conclude` as graphs without the network.

        Another engine computes the network in between. `prepare` returns the network's inputs, and
        tensors `kept_0`, `kept_1`, ... that `conclude` takes besides the network's output
        `computed`, whose shape is `output`, with `None` for an unknown dimension.
        """
        task, kept = self.task, None

        def prepare(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            nonlocal kept
            rows, kept = task.prepare(*inputs)
            return {**rows, **_kept_tensors(kept)}

        def conclude(computed: tf.Tensor, **parts: tf.Tensor) -> dict[str, tf.Tensor]:
            count = len(tf.nest.flatten(kept, expand_composites=True))
            flat = [parts.get(f"kept_{index}") for index in range(count)]
            return task.conclude(
                computed, tf.nest.pack_sequence_as(kept, flat, expand_composites=True)
            )

        first = traced(checked(task, prepare), *column_specs(task.inputs))
        parts = {
            name: tf.TensorSpec(part.shape, part.dtype, name)
            for name, part in _kept_tensors(kept).items()
        }
        second = traced(conclude, tf.TensorSpec(output, tf.float32, "computed"), **parts)
        return dict(zip(STEPS, (first, second), strict=True))

    def saved_module(self) -> tf.Module:
        """Returns a module with the network's variables and tokenizer's resources, to save."""
        module = tf.Module()
        with self._scope:
            module.weights = [weight.value for weight in self.task.network.weights]
        module.resources = self.task.vocabulary.trackables()
        return module

    def answer(
        self,
        columns: Sequence[Sequence[str]],
        signature: str = "serving_default",
        /,
        **controls: Any,
    ) -> list[Any]:
        """Computes the answers to N examples in order, in batches of similar length.

        `columns` has N texts for each string input of the signature. `controls` are values of the
        other inputs, by default those of the task. A text that the model does not accept raises a
        TextError.
        """
        inputs = self.task.functions()[signature][1]
        texts = [name for name, dtype in inputs.items() if dtype == tf.string]
        if unknown := [name for name in controls if name not in inputs]:
            name, value = unknown[0], controls[unknown[0]]
            self.task.with_options(**{name: value})
            raise UserError(f"{name}={value!r} cannot be set for a single call: use with_options")
        settings = {**self.task.controls, **controls}
        sizes = [sum(map(len, row)) for row in zip(*columns, strict=True)]
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        batches = [order[i : i + _BATCH_SIZE] for i in range(0, len(order), _BATCH_SIZE)]
        answers: list[Any] = [None] * len(sizes)
        sized = ((len(batch), batch) for batch in batches)
        # A single batch has no progress bar, because starting the bar's thread takes 0.2 ms.
        tracked = track(sized, len(sizes), "answering", "texts") if len(batches) > 1 else batches
        for batch in tracked:
            given = dict(zip(texts, ([c[i] for i in batch] for c in columns), strict=True))
            values = {
                name: given.get(name) or _repeat(name, settings[name], dtype, len(batch))
                for name, dtype in inputs.items()
            }
            outputs = self._run(signature, values, batch)
            if any(v.dtype.kind == "f" and np.isnan(v).any() for v in outputs.values()):
                raise diverged("the model")
            for index, row in zip(batch, self.task.rows(outputs), strict=True):
                answers[index] = row
        return answers

    def _run(
        self, signature: str, inputs: dict[str, Any], batch: list[int]
    ) -> dict[str, np.ndarray]:
        try:
            if self._small_engine is not None and signature == "serving_default":
                texts = {
                    name: np.array([*map(str.encode, x)], object) for name, x in inputs.items()
                }
                if (answers := self._small_engine.answer(texts)) is not None:
                    return answers
            outputs = self.signatures[signature](*map(tf.constant, inputs.values()))
        except tf.errors.InvalidArgumentError as error:
            sentence = failed_check(error.message)
            if sentence is None:
                raise
            rejected = sorted(
                batch[row] + 1 for row in failed_rows(error.message) if row < len(batch)
            )
            raise (TextError(rejected[0], sentence) if rejected else UserError(sentence)) from error
        return {name: value.numpy() for name, value in outputs.items()}


@contextlib.contextmanager
def under_policy(network: keras.Model, policy: str, where: str) -> Iterator[None]:
    """Sets the dtype policy of all layers of a network within a `with` block."""
    layers = [*network._flatten_layers()]
    if any(layer.quantization_mode for layer in layers):
        raise UserError(f"{where} is quantized to int8: use the unquantized model")
    policies = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers:
            layer.dtype_policy = policy
        yield
    finally:
        for layer, layer_policy in zip(layers, policies, strict=True):
            layer.dtype_policy = layer_policy


def column_specs(inputs: Mapping[str, tf.DType]) -> list[tf.TensorSpec]:
    """Returns a spec `(N,)` for each input of a task."""
    return [tf.TensorSpec((None,), dtype, name) for name, dtype in inputs.items()]


def traced(function: Callable, *specs: Any, **named_specs: Any):
    """Traces a function, without autograph, because each calls tf.while_loop itself."""
    return tf.function(function, autograph=False).get_concrete_function(*specs, **named_specs)


def _kept_tensors(kept: Any) -> dict[str, tf.Tensor]:
    """Returns a dict mapping `kept_0`, `kept_1`, ... to the tensors in a nested structure.

    A ragged tensor counts as several tensors, its values and its row splits. A `None` is left out.
    """
    flat = tf.nest.flatten(kept, expand_composites=True)
    return {f"kept_{index}": part for index, part in enumerate(flat) if part is not None}


def _repeat(name: str, value: Any, dtype: tf.DType, count: int) -> np.ndarray:
    """Returns an array `(count,)` that repeats the value of input `name`."""
    try:
        return np.full(count, value, dtype.as_numpy_dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{name}={value!r} must be a number of type {dtype.name}") from error


def columns_of(names: Sequence[str], arguments: Sequence[Any]) -> tuple[list[list[str]], bool]:
    """Converts the arguments of `predict` to one list of texts for each input.

    There is one argument for each input, a text or an iterable of N texts, or a single argument, an
    example or an iterable of N examples. An example is a text, a tuple of texts, or a dict mapping
    input name to text. An iterable is, for example, a list, a NumPy array, a tensor or a pandas
    column.

    Also returns whether `arguments` is a single example that is not in an iterable.
    """
    has_dict = any(isinstance(column, dict) for column in arguments)
    if len(arguments) == len(names) > 1 and not has_dict:
        is_single = all(isinstance(column, str | bytes) for column in arguments)
        lists = [[c] if isinstance(c, str | bytes) else [*_examples_of(c)] for c in arguments]
        if len({len(column) for column in lists}) > 1:
            sizes = ", ".join(f"{len(c)} of {n}" for n, c in zip(names, lists, strict=True))
            raise UserError(f"the numbers of texts differ ({sizes}): pass lists of equal length")
        found: Iterable[Any] = zip(*lists, strict=True)
    elif len(arguments) == 1:
        [examples] = arguments
        is_single = isinstance(examples, str | bytes | dict)
        is_single |= isinstance(examples, tuple) and len(names) > 1
        found = [examples] if is_single else _examples_of(examples)
    else:
        mend = f"pass {' and '.join(names)}, or one list of examples"
        raise UserError(f"the call has {len(arguments)} texts, lists or dicts: {mend}")
    rows = [_row(names, example, number) for number, example in enumerate(found, 1)]
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names], is_single


def _examples_of(examples: Any) -> Iterable[Any]:
    try:
        return iter(examples.numpy().ravel() if isinstance(examples, tf.Tensor) else examples)
    except TypeError:
        mend = "pass a string or a list of strings"
        raise UserError(f"{repr(examples)[:60]} is not a string: {mend}") from None


def _row(names: Sequence[str], example: Any, number: int) -> list[str]:
    """Returns the texts of an example in the order of `names`."""
    if isinstance(example, dict):
        if missing := [name for name in names if name not in example]:
            mend = f"pass dicts with {', '.join(map(repr, names))}"
            raise UserError(f"example {number} lacks the text {missing[0]!r}: {mend}")
        values = [example[name] for name in names]
    elif len(names) == 1:
        values = [example[0] if isinstance(example, tuple) and len(example) == 1 else example]
    else:
        values = [*example] if isinstance(example, tuple | list | np.ndarray) else [example]
    if len(values) != len(names):
        count = f"{len(values)} {plural('text', len(values))}"
        raise UserError(f"example {number} has {count}: pass a tuple of {', '.join(names)}")
    texts = [_as_text(value) for value in values]
    for name, text in zip(names, texts, strict=True):
        if not isinstance(text, str):
            mend = f"pass a string, or leave {name} {number} out"
            raise UserError(f"{name} {number} is {text!r:.60}: {mend}")
    return texts


def _as_text(value: Any) -> Any:
    """Converts bytes and NumPy strings to `str`, and returns other values unchanged."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{value[:40]!r} is not UTF-8: decode the bytes to str") from error
    return str(value) if isinstance(value, np.str_) else value


def checked(task: TaskKind, function: Callable) -> Callable:
    """Wraps a method of `task`, and adds checks of all string inputs.

    A text that is not UTF-8, or too long for a task that does not truncate texts, raises an
    InvalidArgumentError in milliseconds. Tokenization would take seconds per megabyte before that.
    """

    def check(texts: tf.Tensor) -> tf.Tensor:
        if texts.dtype != tf.string:
            return texts
        if task.truncates:
            texts = cut_texts(texts, task.longest)
        else:
            max_bytes = byte_limit(task.longest)
            problem = f"a text has more than {max_bytes} bytes: shorten the text"
            texts = require(tf.strings.length(texts) <= max_bytes, problem, texts)
        is_utf_8 = texts == tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        return require(is_utf_8, "a text is not UTF-8: encode the text in UTF-8", texts)

    return lambda *inputs: function(*map(check, inputs))
