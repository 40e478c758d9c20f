"""Native CPU kernels in a C++ library that is compiled on first use, and their gradients.

The machine's own compiler builds the library, which is then cached. All native ops take float32 and
bfloat16 and compute in float32. Native ops do not work under XLA. A server cannot load a graph that
contains native ops (`tf.saved_model.SaveOptions(namespace_whitelist=[])` refuses to save such a
graph). Dropout, layer normalization, GELU and cross-entropy each take one or two passes over
memory, while TensorFlow's own ops take three to ten passes. For the gradient, these four kernels
keep only their inputs and at most two numbers per row. Only dropout has a second derivative.
"""

import functools
import hashlib
import logging
import os
import pathlib
import platform
import shlex
import shutil
import subprocess

import filelock
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory
from macaron_tf.io.progress import Progress

DTYPES = ("float32", "bfloat16")
SOURCES = pathlib.Path(__file__).parent / "native"
_COMPILERS = ("g++", "clang++", "c++")
# There is no -ffast-math, so that NaN propagates. The flags only give up the C library's errno,
# floating-point traps, and the rounding between a product and a sum.
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# The first flag of each row that the compiler accepts is used. The first row selects this machine's
# instruction set, with the spellings of x86 compilers and of some ARM compilers. The second row
# leaves out float16 arithmetic, which no kernel uses: with it, GCC 12 does not compile the Eigen of
# TensorFlow 2.21. The third row selects 64-byte vectors, which are 1.2 times as fast as 32-byte
# vectors. With the last two rows, GCC compiles in 0.66 GB of memory and 15 seconds, instead of
# 0.84 GB and 11 seconds.
_TUNING = (
    ("-march=native", "-mcpu=native"),
    ("-mno-avx512fp16",),
    ("-mprefer-vector-width=512",),
    ("--param=ggc-min-expand=20",),
    ("--param=ggc-min-heapsize=65536",),
)

_log = logging.getLogger(__name__)


def library_path() -> pathlib.Path | None:
    """Returns the path of the compiled library, and builds the library if it is not cached.

    Its name in the cache folder depends on the sources, the flags, TensorFlow, the compiler and the
    processor. A lock lets one process build. A failed build leaves the compiler's output beside it,
    and is not tried again while that file exists. `None` means that there is no library, and the
    log names the cause.
    """
    try:
        compiler = find_compiler()
        version = subprocess.run([*compiler, "--version"], capture_output=True, check=True).stdout
        sources = [path for path in sorted(SOURCES.iterdir()) if path.suffix in (".h", ".cc")]
        parts = [*(path.read_bytes() for path in sources)]
        parts.append(repr((compiler, FLAGS, _TUNING, tf.sysconfig.get_compile_flags())).encode())
        # Machines with different processors may share a home directory.
        names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
        info = pathlib.Path("/proc/cpuinfo")
        lines = info.read_text().splitlines() if info.exists() else []
        found_lines = sorted({line for line in lines if line.split(":")[0].strip() in names})
        processor = "\n".join([platform.machine(), platform.processor(), *found_lines])
        parts += [tf.version.VERSION.encode(), version, processor.encode()]
        digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        folder = cache_directory() / "native"
        library = folder / f"kernels-{hashlib.sha256(digests).hexdigest()[:16]}.so"
        if not library.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(library.with_suffix(".lock")):
                if not library.exists():  # another process may have built it in the meantime
                    _compile(compiler, library)
        return library
    except (OSError, subprocess.SubprocessError, UserError) as error:
        _log.warning("native kernels are not available, so slower kernels run instead: %s", error)
        return None


def find_compiler() -> list[str]:
    """Returns the command of the C++ compiler: CXX, or the first of g++, clang++ and c++."""
    try:
        cxx = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise UserError(f"CXX={os.environ['CXX']} is no command ({error}): mend CXX") from None
    for command in [cxx] if cxx else [[name] for name in _COMPILERS]:
        path = shutil.which(command[0])
        if path:
            return [path, *command[1:]]
    missing = f"CXX={cxx[0]} is not" if cxx else f"none of {', '.join(_COMPILERS)} is"
    raise UserError(f"{missing} on the path: install a C++ compiler, or set CXX to its command")


def tuning_flags(compiler: list[str]) -> list[str]:
    """Returns the first flag, if any, in each row of `_TUNING` that the compiler accepts."""
    flags = []
    for alternatives in _TUNING:
        for flag in alternatives:
            trial = [*compiler, "-Werror", flag, "-x", "c++", "-fsyntax-only", "-"]
            if subprocess.run(trial, input=b"", capture_output=True).returncode == 0:
                flags.append(flag)
                break
    return flags


def _compile(compiler: list[str], library: pathlib.Path) -> None:
    output = library.with_suffix(".log")
    if not output.exists():
        _log.warning("building the native kernels (only once, about half a minute): %s", library)
        temporary_path = library.with_suffix(f".{os.getpid()}")
        command = [*compiler, *tf.sysconfig.get_compile_flags(), *FLAGS, *tuning_flags(compiler)]
        # The flag -w suppresses hundreds of warnings about TensorFlow's headers.
        command += ["-DNDEBUG", "-w", "-shared", "-fPIC", str(SOURCES / "ops.cc")]
        command += ["-o", str(temporary_path), *tf.sysconfig.get_link_flags()]
        with Progress("building the native kernels"):
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode == 0:
            os.replace(temporary_path, library)
            return
        temporary_path.unlink(missing_ok=True)
        output.write_bytes(f"{shlex.join(command)}\n".encode() + result.stdout)
    raise UserError(f"{compiler[0]} failed: see {output}, and remove that file to try again")


@functools.cache
def operations():
    """Returns the module with the native ops, or `None` if they do not work on this machine."""
    path = library_path()
    if path is None:
        return None
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.OpError, RuntimeError, OSError) as error:
        _log.warning("the native kernels do not load, so slower kernels run instead: %s", error)
        return None


def dropout(x: tf.Tensor, rate: float, key) -> tf.Tensor:
    """Applies dropout: zeroes elements with probability `rate`, and divides the rest by 1 - `rate`.

    x may have any shape and is float32 or bfloat16. `rate` is at least 0 and below 1, and is
    rounded to a multiple of 1 / 65,536. The same `key`, `(2,)` integers, drops the same elements.

    References: Srivastava et al. 2014 (dropout); Salmon et al. 2011 (the generator Philox 4x32-10).
    """
    return operations().macaron_tf_dropout(x=x, key=tf.cast(key, tf.uint32), rate=rate)


def layer_norm(x: tf.Tensor, scale, offset, epsilon: float) -> tf.Tensor:
    """Applies layer normalization over the last axis of `x (..., D)`, float32 or bfloat16.

    The output is `(x - mean) / sqrt(variance + epsilon) * scale + offset`. `scale` and `offset` are
    `(D,)`, or `None` for ones and zeros.

    References: Ba et al. 2016.
    """
    width = (x.shape[-1],)
    scale = tf.ones(width) if scale is None else tf.cast(scale, tf.float32)
    offset = tf.zeros(width) if offset is None else tf.cast(offset, tf.float32)
    return operations().macaron_tf_layer_norm(x=x, scale=scale, offset=offset, epsilon=epsilon)[0]


def bias_gelu(x: tf.Tensor, bias, approximate: bool = False) -> tf.Tensor:
    """Computes `GELU(x + bias)` for `x (..., D)`, float32 or bfloat16, and `bias (D,)`.

    References: Hendrycks and Gimpel 2016.
    """
    bias = tf.cast(bias, tf.float32)
    return operations().macaron_tf_bias_gelu(x=x, bias=bias, approximate=approximate)


def cross_entropy(logits: tf.Tensor, labels, smoothing: float = 0.0) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes softmax cross-entropy with label smoothing (see `label_smoothed_cross_entropy`).

    For logits `(N, V)`, float32 or bfloat16, and labels `(N,)`, the result is the loss and the
    negative log-likelihood, which has no gradient, both `(N,)` float32. A label outside 0 to V - 1
    raises tf.errors.InvalidArgumentError. The gradient overwrites the logits if no other op reads
    them.
    """
    loss, nll, _ = operations().macaron_tf_cross_entropy(
        logits=logits, labels=tf.cast(labels, tf.int32), smoothing=smoothing
    )
    return loss, tf.stop_gradient(nll)


@tf.RegisterGradient("MacaronTf>Dropout")
def _dropout_gradient(operation, dy):
    key = operation.inputs[1]
    return dropout(dy, operation.get_attr("rate"), key), None


@tf.RegisterGradient("MacaronTf>LayerNorm")
def _layer_norm_gradient(operation, dy, _):
    x, scale, _ = operation.inputs
    return operations().macaron_tf_layer_norm_grad(x, scale, operation.outputs[1], dy)


@tf.RegisterGradient("MacaronTf>BiasGelu")
def _bias_gelu_gradient(operation, dy):
    approximate = operation.get_attr("approximate")
    return operations().macaron_tf_bias_gelu_grad(*operation.inputs, dy, approximate=approximate)


@tf.RegisterGradient("MacaronTf>CrossEntropy")
def _cross_entropy_gradient(operation, dloss, *_):
    smoothing, statistics = operation.get_attr("smoothing"), operation.outputs[2]
    dlogits = operations().macaron_tf_cross_entropy_grad(
        *operation.inputs, statistics, dloss, smoothing=smoothing
    )
    return dlogits, None


def recurrence(x, alpha, beta, step_size: int, mask=None, start=None) -> tf.Tensor:
    """Computes SwishRNN's recurrence, `c[i] = Swish(c[i-k] - x[i]) + x[i]`.

    See `swish_recurrence` for the arguments. The function is differentiable with respect to `x`,
    `alpha`, `beta` and the initial state `start`, `(B, k, R)`.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 3.
    """
    masks = [] if mask is None else [tf.cast(mask, tf.uint8)]
    starts = [] if start is None else [tf.cast(start, tf.float32)]
    arguments = (x, *(tf.cast(vector, tf.float32) for vector in (alpha, beta)), masks, starts)
    return operations().macaron_tf_swish_recurrence(*arguments, step_size=step_size)


def gated(x, alpha, beta, state_bias, gate_bias, step_size: int, gate: str, mask=None) -> tf.Tensor:
    """Computes SwishRNN's recurrence C and its gate, `(C + state_bias) * gate(X2 + gate_bias)`.

    See `swish_gate` for the arguments. One pass over memory computes the gate from C in float32,
    but stores C in x's dtype: with bfloat16, the gradient uses a rounded C. The gate also applies
    at padded positions.

    References: Lei et al. 2022, eq. 2-4.
    """
    vectors = [tf.cast(vector, tf.float32) for vector in (alpha, beta, state_bias, gate_bias)]
    masks = [] if mask is None else [tf.cast(mask, tf.uint8)]
    options = {"step_size": step_size, "gate": gate}
    return operations().macaron_tf_swish_gate(x, *vectors, masks, **options)[0]


@tf.RegisterGradient("MacaronTf>SwishRecurrence")
def _recurrence_gradient(operation, dc):
    x, alpha, beta, *optional = operation.inputs
    masks, step_size = operation.get_attr("masks"), operation.get_attr("step_size")
    inputs = (x, alpha, beta, operation.outputs[0], dc, optional[:masks], optional[masks:])
    *gradients, dstart = operations().macaron_tf_swish_recurrence_grad(*inputs, step_size=step_size)
    return *gradients, *[None] * masks, *dstart


@tf.RegisterGradient("MacaronTf>SwishGate")
def _gate_gradient(operation, dy, _):
    vectors, masks = operation.inputs[:5], operation.inputs[5:]  # x is the first vector
    options = {name: operation.get_attr(name) for name in ("step_size", "gate")}
    gradients = operations().macaron_tf_swish_gate_grad(
        *vectors, operation.outputs[1], dy, masks, **options
    )
    return *gradients, *[None] * len(masks)


def _no_second_derivative(operation, *upstream):
    raise UserError(
        "the native kernels have no second derivatives: run the step in "
        'macaron_tf.kernels.implementation_scope("loop")'
    )


for _name in ("LayerNorm", "BiasGelu", "CrossEntropy", "SwishRecurrence", "SwishGate"):
    tf.RegisterGradient(f"MacaronTf>{_name}Grad")(_no_second_derivative)
