"""The base of every exported model, and how its versions are written."""

import contextlib
import fcntl
import functools
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf
from etils import epath

from export.server.config import MAX_VERSION, MODEL_FILE, version_of
from export.warm_up import TEXT, write_warm_up
from macaron_tf.distribution import emulates_bfloat16
from macaron_tf.errors import UserError
from macaron_tf.io import paths
from macaron_tf.io.progress import Progress
from macaron_tf.kernels import implementation_scope
from macaron_tf.layers.packing import packing_scope


class ExportedModule:
    """A network and its vocabulary as signatures of a SavedModel: strings in, answers out.

    A text that is not UTF-8 is an InvalidArgumentError, which a server's client gets as a 400.

    Args:
        network: built, with its weights.
        vocabulary: the network's own.

    Attributes:
        inputs: dtypes of the inputs of the signature `serving_default` by name, each `(B,)`.
    """

    inputs: ClassVar[dict[str, tf.DType]] = {"text": tf.string}

    def __init__(self, network: keras.Model, vocabulary: Any):
        self.network = network
        self.vocabulary = vocabulary
        self._resources = vocabulary.trackables()
        self._scope = keras.StatelessScope()  # values that stand for the network's own

    def compute_in_bfloat16(self, place: str) -> None:
        """Puts the network under Keras's policy `mixed_bfloat16`, whatever it was trained under.

        The matrices of dense layers are stored in bfloat16: a request of one line would take
        longer to cast them than to multiply with them. All other weights stay float32, and so
        does what the layers compute in float32 themselves: norms, softmax, recurrences.

        Raises:
            UserError: the network, named by `place`, is quantized.
        """
        layers = [*self.network._flatten_layers()]
        if any(layer.quantization_mode for layer in layers):
            raise UserError(f"--bfloat16: {place} is quantized to int8: leave the flag out")
        if emulates_bfloat16(tf.distribute.get_strategy()):
            print(
                "warning: this CPU has no bfloat16 instructions: on one like it the export is "
                "several times slower than without --bfloat16",
                file=sys.stderr,
            )
        for layer in layers:
            layer.dtype_policy = "mixed_bfloat16"
            if isinstance(layer, keras.layers.Dense):
                matrix = tf.Variable(tf.cast(layer.kernel.value, tf.bfloat16), trainable=False)
                self._scope.add_update((layer.kernel, matrix))

    def serve(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """The `serving_default` signature, in the order of `inputs`."""
        raise NotImplementedError

    def functions(self) -> dict[str, tuple[Callable, dict[str, tf.DType]]]:
        """Functions and the dtypes of their inputs by the names of the signatures."""
        return {"serving_default": (self.serve, self.inputs)}

    def typical_texts(self) -> Sequence[str]:
        """Texts whose requests make a server ready, one for each function that is compiled."""
        return (TEXT,)

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The concrete functions by signature name."""
        with self._scope:
            return {
                # Without autograph: all control flow is tf.while_loop's.
                name: tf.function(_checked(function), autograph=False).get_concrete_function(
                    *(tf.TensorSpec((None,), dtype, each) for each, dtype in inputs.items())
                )
                for name, (function, inputs) in self.functions().items()
            }

    def restored(self) -> tf.Module:
        """The variables and the tokenizer's resources that a SavedModel restores."""
        module = tf.Module()
        with self._scope:
            module.weights = [weight.value for weight in self.network.weights]
        module.resources = self._resources
        return module


# Greatest numbers of ids in a row that have functions of their own, compiled by XLA.
COMPILED_LENGTHS = (16, 32, 64, 128)


def compiled_for_one(function: Callable, ids: tf.Tensor) -> Any:
    """`function(ids)`, compiled by XLA where ids `(B, L)` are one row of at most 128.

    One row makes operations so small that calling them costs as much as their work, and XLA fuses
    them. The row is padded with zeros to the next of `COMPILED_LENGTHS`, and each of them is
    compiled when a request first needs it.
    """

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def compiled(row):
        with implementation_scope("xla"):
            return function(row)

    def padded(length: int) -> Any:
        row = tf.pad(ids, [[0, 0], [0, length - tf.shape(ids)[1]]])
        return compiled(tf.reshape(row, (1, length)))  # (1, length), static as XLA needs it

    branches = [functools.partial(padded, length) for length in COMPILED_LENGTHS]
    shorter = tf.reduce_sum(tf.cast(tf.shape(ids)[1] > COMPILED_LENGTHS, tf.int32))
    number = tf.where(tf.shape(ids)[0] == 1, shorter, len(branches))
    return tf.switch_case(number, [*branches, lambda: function(ids)])


def _checked(function: Callable) -> Callable:
    """A function that is called only with texts which are UTF-8."""
    return lambda *inputs: function(
        *(_checked_text(given) if given.dtype == tf.string else given for given in inputs)
    )


def _checked_text(texts: tf.Tensor) -> tf.Tensor:
    """The texts `(B,)`, or an InvalidArgumentError where one is not UTF-8."""
    mended = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    return require(tf.equal(mended, texts), "a text is not UTF-8: send it as UTF-8", texts)


def require(good: tf.Tensor, message: str, value: Any) -> Any:
    """The value, or an InvalidArgumentError of the message and the numbers of rows not `good (B,)`.

    A server that merged requests runs the others again without them (`export.server.errors`).
    """
    bad = tf.reshape(tf.where(tf.logical_not(good)), [-1])
    whole = tf.debugging.Assert(tf.reduce_all(good), [message, "rows:", bad], summarize=-1)
    with tf.control_dependencies([whole]):
        return tf.identity(value)


@contextlib.contextmanager
def _aside(out: os.PathLike) -> Iterator[str]:
    """A folder within `out` to write a version in, removed at the end, or by a later export.

    A lock, which ends with its process, tells a folder in use from one that a killed export left.
    """
    with contextlib.ExitStack() as stack:
        with _lock(out):  # nobody sees the new folder before it has its lock
            for entry in pathlib.Path(out).iterdir():
                if _left_over(entry):
                    shutil.rmtree(entry, ignore_errors=True)
            made = tempfile.TemporaryDirectory(prefix=".tmp-", dir=out)
            stack.enter_context(_lock(made.name))
        yield stack.enter_context(made)


@contextlib.contextmanager
def _lock(folder: str | os.PathLike, wait: bool = True) -> Iterator[None]:
    """Locks a folder; a BlockingIOError where another process holds it, unless it is waited for."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _left_over(entry: pathlib.Path) -> bool:
    """Whether an entry is a folder of `_aside` that no process holds; no user's copy."""
    if not re.fullmatch(r"\.tmp-[a-z0-9_]{8}", entry.name) or not entry.is_dir():
        return False
    try:
        with _lock(entry, wait=False):
            return all(version_of(inner.name) is not None for inner in entry.iterdir())
    except OSError:
        return False


def write_version(
    module: ExportedModule,
    record: dict[str, Any],
    out: str | os.PathLike,
    version: int | None = None,
) -> epath.Path:
    """Writes a SavedModel as a new version, beside it its vocabulary, a record, warm-up requests.

    Args:
        record: facts about the model, for `assets.extra/export.json`.
        out: the model's folder, `gs://` included; made when absent.
        version: by default one more than the greatest there is.

    Returns:
        The version's folder. It appears under its name only when it is whole; in a bucket, where
        no folder can be renamed, its `saved_model.pb` comes last.

    Raises:
        UserError: the version exists, or `out` cannot be written.
    """
    out = paths.as_path(out)
    # TensorFlow reports a full disk as one of its own errors.
    with paths.clear_errors(f"{out} cannot be written", "choose another place"):
        paths.make_folders(out)
        given, version = version, _free(out, version)
        remote = paths.is_remote(out)
        # Written beside its place where it can be renamed into it.
        place = tempfile.TemporaryDirectory() if remote else _aside(out)
        with Progress("exporting"), place as folder:
            aside = pathlib.Path(folder) / str(version)
            # Stock ops: a server has no others.
            with implementation_scope("loop"), packing_scope():
                signatures = module.signatures()
            tf.saved_model.save(module.restored(), str(aside), signatures=signatures)
            extra = aside / "assets.extra"
            module.vocabulary.save(extra)
            computed = {"compute_dtype": module.network.compute_dtype}
            record = {**record, **computed, "vocabulary": module.vocabulary.hash}
            (extra / "export.json").write_text(json.dumps(record, indent=2) + "\n")
            write_warm_up(aside, signatures, module.typical_texts())
            if remote:
                paths.upload(aside, out / str(version), last=MODEL_FILE)
            else:
                with _lock(out):  # meanwhile another export may have taken the number
                    version = _free(out, given)
                    aside.rename(out / str(version))
    return out / str(version)


def _free(out: epath.Path, given: int | None) -> int:
    """The number of a new version: the given one, or one more than the greatest there is."""
    found = [version_of(entry.name) for entry in out.iterdir()]
    versions = {number for number in found if number is not None}
    version = given if given is not None else max(versions, default=0) + 1
    if not 1 <= version <= MAX_VERSION:
        raise UserError(f"--version {version}: give a free number of 1 to {MAX_VERSION}")
    if version in versions:
        raise UserError(f"--version {version} exists in {out}: give another or leave it out")
    return version
