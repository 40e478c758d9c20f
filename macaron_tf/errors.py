"""Errors of a user's input."""

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
    """A text, by its number from 1 on, that a model refuses, and why."""

    def __init__(self, number: int, reason: str):
        super().__init__(f"text {number}: {reason}")
        self.number, self.reason = number, reason


_HALVES = re.compile("[\ud800-\udfff]")


def check_whole(texts: Iterable[str], first: int = 1) -> None:
    """Raises a UserError where a text holds half of a character, which UTF-8 cannot say.

    Args:
        first: the number of the first text.
    """
    for number, text in enumerate(texts, first):
        if half := _HALVES.search(text):
            raise UserError(
                f"text {number} holds {half[0]!a}, an unpaired surrogate (half of a character, or "
                "a byte that was not UTF-8): take it out, or read the text as what it is"
            )


def parse_json(text: str | bytes, kind: type = dict, /, **fields: type) -> Any:
    """The object (or list, by `kind`) of a JSON text, with fields of some types, or ValueError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None
    if not isinstance(value, kind):
        raise ValueError(f"no {kind.__name__}")
    for name, wanted in fields.items():
        if not isinstance(value.get(name), wanted):
            raise ValueError(f"{name!r} is no {wanted.__name__}")
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


STORES = {"gs"}  # the schemes of places that are not on a local disk
# With one slash too, as in s3:/bucket, these name no local folder.
_NOT_LOCAL = {"gs", "s3", "hdfs", "file", "memory", "http", "https", "ftp", "az", "abfs", "hf"}
_SCHEME = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*):(/*)(?=([^/,]*))")


def check_path(text: str, local: bool = False, name: str = "a path") -> str:
    """Refuses other places than a local disk and `gs://`, or `local` ones; replaces `~`.

    The text may be a form with paths in it, such as `tsv:FILE` or `NAME=DIR`.
    """
    if not text:
        raise UserError(f"{name} is empty: give a file or a folder (is a shell's variable unset?)")
    for scheme, slashes, bucket in _SCHEME.findall(text):
        if not slashes[1:] and scheme.lower() not in (_NOT_LOCAL if slashes else STORES):
            continue  # the kind of a source, or a local name
        if local or scheme not in STORES or slashes != "//" or not bucket:
            places = "a local path" if local else "a local path or gs://BUCKET/NAME"
            raise UserError(f"{text}: {scheme}:{slashes} is not supported; give {places}")
    return os.path.expanduser(text)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is most like it, or ""."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; perhaps you meant {close[0]!r}" if close else ""


# Files of the user's code that settings name, see `macaron_tf.plug_ins`.
USER_FILES: set[str] = set()


def sentence_of(error: BaseException, place: str = "") -> str | None:
    """An error in a sentence, where code of the user's is in use; None = it is not.

    Args:
        place: name of the code, where it is known to be the user's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in USER_FILES]
    if not (own or place or USER_FILES):
        return None
    frames = own or frames
    words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    where = f"{frames[-1].filename}, line {frames[-1].lineno}"
    if not place:
        # Code that does not raise may still be at fault: by a wrong signature, or an odd result.
        blamed = "" if own else f"; code of yours is in use, {', '.join(sorted(USER_FILES))}"
        return f"{where} raised {words}{blamed}"
    # The words of a SyntaxError end with the place.
    return f"{place} raised {words}{'' if isinstance(error, SyntaxError) else f' ({where})'}"


# Modules that every command needs: pyproject.toml's dependencies, and Keras's files.
CORE = (
    *("annotated_types", "docstring_parser", "etils", "filelock", "h5py", "keras", "numpy"),
    *("regex", "rich", "sacremoses", "sentencepiece", "tensorflow", "tensorflow_text"),
)
# Optional modules, and the extra of pyproject.toml that brings each.
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
    """The sentence about a module that is not installed; None of other errors."""
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
    """Refuses a training whose first validation would find a package missing, at its start."""
    asked = [module for module, extra in EXTRAS.items() if extra in ("evaluate", "train")]
    if lacking := [module for module in asked if importlib.util.find_spec(module) is None]:
        raise UserError(
            f"training and its scores need {', '.join(lacking)}: pip install 'macaron_tf[train]'"
        )


def diverged(model: str | os.PathLike) -> UserError:
    """The error for a model whose answers are NaN, which argmax would take for the first class."""
    return UserError(
        f"{model} answers NaN, since its training diverged: give an earlier checkpoint, or train "
        "again with a lower training.learning_rate"
    )


def needs_vocabulary(path: str | os.PathLike) -> UserError:
    """The error for a `.keras` file where text is to be read."""
    return UserError(
        f"{path} is a network without a vocabulary: put both into a folder, by macaron_tf.load("
        f"'{path}', vocabulary='DIR').save_pretrained('FOLDER'), and give FOLDER; "
        f"`python -m export.keras_model {path} DIR OUT` exports it"
    )


def out_of_memory(error: Exception) -> str | None:
    """The sentence about an allocation that failed; None of other errors."""
    tensorflow, jax, words = sys.modules.get("tensorflow"), sys.modules.get("jax"), str(error)
    exhausted = (tensorflow.errors.ResourceExhaustedError,) if tensorflow else ()
    on_jax = jax and isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXH" in words
    # TensorFlow counts a shape in 32 bits, and says no more than that it is negative then.
    overflow = isinstance(error, ValueError) and "used for shape: -" in words
    overflow |= "Operation received an exception:Status: 1," in words  # oneDNN's out_of_memory
    if not (isinstance(error, (MemoryError, *exhausted)) or overflow or on_jax):
        return None
    asked = re.search(r"shape\s?[\[(][\d, ]*[\])]|allocate [\d.]+ \w+", words)
    return (
        f"memory ran out{f' ({asked[0]})' if asked else ''}: lower the rows or tokens of a batch "
        "(with training.accumulation_steps as many times higher an update sees as many), the "
        "greatest lengths, or the model"
    )


_REQUEST = re.compile(
    r"Error executing an HTTP request: "
    r"(?:HTTP response code (\d+)|libcurl code \d+ meaning '([^']*)')"
)
_REQUESTED = re.compile(r"gs://[^\s,;]+")


def store_problem(error: Exception) -> tuple[str, str] | None:
    """Why a bucket (`gs://`) refused a request, and the mend; None of other errors.

    TensorFlow repeats a request ten times by itself where a later one may succeed.
    """
    if not (found := _REQUEST.search(str(error))):
        return None
    code, unreachable = found.groups()
    again = "run the same command again"
    if unreachable:
        reason = f"{unreachable[:1].lower()}{unreachable[1:]}"
        return f"no request reaches it ({reason})", f"check the network and {again}"
    if code in ("401", "403"):
        return f"it answers HTTP {code}", "see that your credentials may read and write there"
    return f"it answers HTTP {code}, however often it is asked", f"{again} when it is well"


def store_sentence(error: Exception) -> str | None:
    """The sentence about a bucket that refused a request; None of other errors."""
    if (problem := store_problem(error)) is None:
        return None
    place = _REQUESTED.search(str(error))
    return f"{place[0] if place else 'the bucket'}: {problem[0]}; {problem[1]}"


@contextlib.contextmanager
def needed(purpose: str, package: str = "") -> Iterator[None]:
    """Turns an `ImportError` within the `with` into a `UserError` that says what to install.

    Args:
        package: to install where no extra of ours brings it.
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
