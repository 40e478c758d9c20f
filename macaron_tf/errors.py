"""Errors in what a user gives, and checks that raise them."""

import contextlib
import difflib
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from macaron_tf.command_names import as_typed


class UserError(Exception):
    """A mistake that the user can correct: one sentence names it and the correction.

    Commands within the sentence are in the form that the user types; see `as_typed`.
    """

    def __init__(self, sentence: object = ""):
        super().__init__(as_typed(str(sentence)))


class TextError(UserError):
    """A text that a model does not accept; texts are counted from 1."""

    def __init__(self, number: int, reason: str):
        super().__init__(f"text {number}: {reason}")
        self.number, self.reason = number, reason


_HALVES = re.compile("[\ud800-\udfff]")


def check_whole(texts: Iterable[str], first: int = 1) -> None:
    """Raises a UserError if a text has an unpaired surrogate, which UTF-8 cannot encode.

    Args:
        first: the number of the first text, for the message.
    """
    for number, text in enumerate(texts, first):
        if half := _HALVES.search(text):
            raise UserError(
                f"text {number} has {half[0]!a}, an unpaired surrogate (half of a character, or "
                "a byte that was not UTF-8): remove it, or read the text in its own encoding"
            )


def parse_json(text: str | bytes, kind: type = dict, /, **fields: type) -> Any:
    """Parses a JSON text and checks its type and its fields.

    Args:
        kind: type of the whole value.
        fields: types of fields that must be present.

    Raises:
        ValueError: the text is not JSON, or the value or a field has another type.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None
    if not isinstance(value, kind):
        raise ValueError(f"no {kind.__name__}")
    for name, wanted in fields.items():
        if not isinstance(value.get(name), wanted):
            raise ValueError(f"{name!r} is missing or no {wanted.__name__}")
    return value


def check_choice(argument: str, value: str, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`, else raises a ValueError that lists them."""
    if value not in choices:
        raise ValueError(f"{argument}={value!r} must be one of {', '.join(map(repr, choices))}")
    return value


def check_divisible(dividend_name: str, dividend: int, divisor_name: str, divisor: int) -> int:
    """Returns `dividend // divisor`, or raises a ValueError if there is a remainder."""
    if dividend % divisor:
        raise ValueError(
            f"{dividend_name}={dividend} is not a multiple of {divisor_name}={divisor}"
        )
    return dividend // divisor


def check_count(argument: str, value: int, least: int = 1) -> int:
    """Returns `value` if it is a whole number of at least `least`, else raises a ValueError."""
    if type(value) is not int or value < least:
        raise ValueError(f"{argument}={value!r} must be a whole number of at least {least}")
    return value


STORES = {"gs"}  # supported schemes of remote storage
# These schemes never name a local folder, not even with a single slash, as in s3:/bucket.
_NOT_LOCAL = {"gs", "s3", "hdfs", "file", "memory", "http", "https", "ftp", "az", "abfs", "hf"}
_SCHEME = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*):(/*)(?=([^/,]*))")


def check_path(text: str, local: bool = False, name: str = "a path") -> str:
    """Checks that paths are local or `gs://`, and expands `~`.

    Args:
        text: a path, or a form that contains paths, such as `tsv:FILE` or `NAME=DIR`.
        local: allow local paths only.
        name: what the path is, for the message about an empty one.

    Raises:
        UserError: the text is empty or names storage that is not supported.
    """
    if not text:
        raise UserError(f"{name} is empty: give a file or a folder (is a shell variable unset?)")
    for scheme, slashes, bucket in _SCHEME.findall(text):
        if not slashes[1:] and scheme.lower() not in (_NOT_LOCAL if slashes else STORES):
            continue  # a prefix such as tsv:, or a local name with a colon
        if local or scheme not in STORES or slashes != "//" or not bucket:
            places = "a local path" if local else "a local path or gs://BUCKET/NAME"
            raise UserError(f"{text}: {scheme}:{slashes} is not supported; give {places}")
    return os.path.expanduser(text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Ends an error message about an unknown name with the most similar known one, if any."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; perhaps you meant {close[0]!r}" if close else ""


# Files of user code that this process has imported; see `macaron_tf.plug_ins`.
USER_FILES: set[str] = set()


def sentence_of(error: BaseException, place: str = "") -> str | None:
    """Describes an exception in one sentence if user code may have caused it, else returns None.

    Args:
        place: name of the user's module or function that raised it; "": unknown.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in USER_FILES]
    if not (own or place or USER_FILES):
        return None
    frames = own or frames
    words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    where = f"{frames[-1].filename}, line {frames[-1].lineno}"
    if not place:
        # The user's code may be the cause even if it did not raise: a wrong signature or result.
        blamed = "" if own else f"; code of yours is in use: {', '.join(sorted(USER_FILES))}"
        return f"{where} raised {words}{blamed}"
    # The message of a SyntaxError ends with the file and line.
    return f"{place} raised {words}{'' if isinstance(error, SyntaxError) else f' ({where})'}"


# Modules that every command needs: the dependencies in pyproject.toml, and what Keras needs to
# write files.
CORE = (
    *("annotated_types", "docstring_parser", "etils", "filelock", "h5py", "keras", "numpy"),
    *("regex", "rich", "sacremoses", "sentencepiece", "tensorflow", "tensorflow_text"),
)
# Optional modules, and the extra in pyproject.toml that installs each.
EXTRAS = {
    "ai_edge_litert": "lite",
    "apache_beam": "beam",
    "grpc": "serving",
    "h11": "serving",
    "huggingface_hub": "interop",
    "importlib_resources": "tfds",
    "jax": "jax",
    "jaxlib": "jax",
    "keras_hub": "keras-hub",
    "matplotlib": "studies",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "openvino": "openvino",
    "pyarrow": "tables",
    "sacrebleu": "evaluate",
    "safetensors": "interop",
    "scipy": "evaluate",
    "sklearn": "evaluate",
    "tensorboard": "train",
    "tensorflow_datasets": "tfds",
    "tensorflow_serving": "serving",
    "tf2onnx": "onnx",
    "tokenizers": "vocabularies",
}


def missing_package(error: Exception, purpose: str = "this command") -> str | None:
    """The message about a package that is not installed; None for other errors."""
    module = error.name.partition(".")[0] if isinstance(error, ImportError) and error.name else ""
    if module in EXTRAS:
        return f"{purpose} needs {module}: pip install 'macaron_tf[{EXTRAS[module]}]'"
    if module in ("", "macaron_tf", "experiments", "export") or type(error) is ImportError:
        return None
    return (
        f"{sys.executable} has no {error.name}: activate the environment of macaron_tf "
        "(`. .venv/bin/activate`), or run `make setup` in a checkout, else `pip install macaron_tf`"
    )


def check_train_packages() -> None:
    """Raises a UserError if a package that training or validation needs is not installed.

    Called before training, because otherwise the first validation would fail.
    """
    asked = [module for module, extra in EXTRAS.items() if extra in ("evaluate", "train")]
    if lacking := [module for module in asked if importlib.util.find_spec(module) is None]:
        raise UserError(
            f"training and validation need {', '.join(lacking)}: pip install 'macaron_tf[train]'"
        )


def diverged(model: str | os.PathLike) -> UserError:
    """The error for a model whose outputs are NaN, which argmax would take for the first class."""
    return UserError(
        f"{model} answers NaN because its training diverged: give an earlier checkpoint, or train "
        "again with a lower training.learning_rate"
    )


def needs_vocabulary(path: str | os.PathLike) -> UserError:
    """The error for a `.keras` file given to a command that reads text."""
    return UserError(
        f"{path} is a network without a vocabulary: save both into a folder by macaron_tf.load("
        f"'{path}', vocabulary='DIR').save_pretrained('FOLDER'), and give FOLDER; to export it, "
        f"run `python -m export.keras_model {path} DIR OUT`"
    )


def out_of_memory(error: Exception) -> str | None:
    """The message about a failed allocation; None for other errors."""
    tensorflow, jax, words = sys.modules.get("tensorflow"), sys.modules.get("jax"), str(error)
    exhausted = (tensorflow.errors.ResourceExhaustedError,) if tensorflow else ()
    on_jax = jax and isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXH" in words
    # TensorFlow counts elements in 32 bits; its message only shows the negative number.
    overflow = isinstance(error, ValueError) and "used for shape: -" in words
    overflow |= "Operation received an exception:Status: 1," in words  # oneDNN's out_of_memory
    if not (isinstance(error, (MemoryError, *exhausted)) or overflow or on_jax):
        return None
    asked = re.search(r"shape\s?[\[(][\d, ]*[\])]|allocate [\d.]+ \w+", words)
    return (
        f"memory ran out{f' ({asked[0]})' if asked else ''}: use smaller batches (and raise "
        "training.accumulation_steps by the same factor, so that an update sees as much), shorter "
        "rows, or a smaller model"
    )


_REQUEST = re.compile(
    r"Error executing an HTTP request: "
    r"(?:HTTP response code (\d+)|libcurl code \d+ meaning '([^']*)')"
)
_REQUESTED = re.compile(r"gs://[^\s,;]+")


def store_problem(error: Exception) -> tuple[str, str] | None:
    """Why a request to a bucket (`gs://`) failed, and what to do; None for other errors.

    TensorFlow itself repeats a request ten times if a later one may succeed.
    """
    if not (found := _REQUEST.search(str(error))):
        return None
    code, unreachable = found.groups()
    again = "run the same command again"
    if unreachable:
        reason = f"{unreachable[:1].lower()}{unreachable[1:]}"
        return f"requests do not reach it ({reason})", f"check the network and {again}"
    if code in ("401", "403"):
        return f"it answers HTTP {code}", "check that your credentials may read and write there"
    return f"it answers HTTP {code} to repeated requests", f"{again} later"


def store_sentence(error: Exception) -> str | None:
    """The message about a failed request to a bucket; None for other errors."""
    if (problem := store_problem(error)) is None:
        return None
    place = _REQUESTED.search(str(error))
    return f"{place[0] if place else 'the bucket'}: {problem[0]}; {problem[1]}"


@contextlib.contextmanager
def needed(purpose: str, package: str = "") -> Iterator[None]:
    """Turns an `ImportError` within the `with` into a `UserError` that says what to install.

    Args:
        purpose: what needs the package, for the message.
        package: the package to install if it is in none of this project's extras.
    """
    try:
        yield
    except ImportError as error:
        sentence = missing_package(error, purpose)
        if package and error.name not in EXTRAS:
            sentence = f"{purpose} needs a package ({error}): pip install {package}"
        if sentence is None:
            raise
        raise UserError(sentence) from error
