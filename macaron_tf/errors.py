"""`UserError`, an exception for mistakes that the user can correct, with checks and messages."""

import contextlib
import difflib
import importlib.util
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class UserError(Exception):
    """Error that names a mistake of the user, and the correction, in one sentence."""


class LineError(UserError):
    """Error for a line of the input. The message begins with "line" and the line number."""


class TextError(UserError):
    """Error for an input text that a model does not accept.

    `number` is the position of the text among the inputs, counted from 1, and `reason` a clause
    that says why the model does not accept it.
    """

    def __init__(self, number: int, reason: str):
        super().__init__(f"text {number}: {reason}")
        self.number, self.reason = number, reason


def parse_json(text: str | bytes, value_type: type = dict, /, **fields: type) -> Any:
    """Parses a JSON text, checks the type of the value and of its fields, and returns the value.

    Bytes must be UTF-8, UTF-16 or UTF-32. `fields` are the types of required fields. Anything else,
    such as a text that is nested too deeply, raises a ValueError.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None
    if not isinstance(value, value_type):
        raise ValueError(f"not a {value_type.__name__}")
    for name, field_type in fields.items():
        if not isinstance(value.get(name), field_type):
            raise ValueError(f"{name!r} is missing or not of type {field_type.__name__}")
    return value


def check_choice(argument: str, value: str, choices: Sequence[str]) -> str:
    """Returns `value` if it is in `choices`, or raises a ValueError that lists the choices."""
    if value not in choices:
        raise ValueError(f"{argument}={value!r} must be one of {', '.join(map(repr, choices))}")
    return value


def check_divisible(name: str, value: int, divisor_name: str, divisor: int) -> int:
    """Returns `value // divisor`, or raises a ValueError if there is a remainder."""
    if value % divisor:
        raise ValueError(f"{name}={value} is not a multiple of {divisor_name}={divisor}")
    return value // divisor


def check_count(argument: str, value: int, minimum: int = 1) -> int:
    """Returns `value` if it is an integer of at least `minimum`, or raises a ValueError."""
    if type(value) is not int or value < minimum:
        raise ValueError(f"{argument}={value!r} must be a whole number of at least {minimum}")
    return value


REMOTE_SCHEMES = {"gs"}  # URL schemes of supported remote storage
# URL schemes that cannot begin a local path, even if only one slash follows, as in s3:/bucket.
_NOT_LOCAL = {"gs", "s3", "hdfs", "file", "memory", "http", "https", "ftp", "az", "abfs", "hf"}
_SCHEME = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*):(/*)(?=([^/,]*))")


def check_path(text: str, local: bool = False, name: str = "a path") -> str:
    """Checks that paths are local or on Google Cloud Storage, and expands `~` at the beginning.

    `text` may contain paths, such as `tsv:FILE` or `NAME=DIR`. `local` accepts no
    `gs://BUCKET/NAME`.
    """
    if not text:
        raise UserError(f"{name} is empty: give a file or a folder (is a shell variable unset?)")
    for scheme, slashes, bucket in _SCHEME.findall(text):
        if not slashes[1:] and scheme.lower() not in (_NOT_LOCAL if slashes else REMOTE_SCHEMES):
            continue  # a prefix such as tsv:, or a local path that contains a colon
        if local or scheme not in REMOTE_SCHEMES or slashes != "//" or not bucket:
            accepted = "a local path" if local else "a local path or gs://BUCKET/NAME"
            accepted += ", or for a model hub:OWNER/NAME" if scheme == "hf" else ""
            raise UserError(f"{text} is not a supported path: give {accepted}")
    return os.path.expanduser(text)


# Names in Keras, KerasHub, transformers and OpenNMT-tf, behind the name here.
_ALIASES = """
activation: hidden_act activation_function
folder: output_dir
validation: validation_data validation_split eval_dataset
accumulation_steps: gradient_accumulation_steps
attention_dropout: attention_probs_dropout_prob attn_pdrop
batch_size: per_device_train_batch_size train_batch_size
beam_size: num_beams beam_width
clip_norm: max_grad_norm clipnorm global_clipnorm
dropout: hidden_dropout_prob resid_pdrop
dtype_policy: mixed_precision bf16 fp16
epochs: num_train_epochs
epsilon: layer_norm_epsilon layer_norm_eps rms_norm_eps
feed_forward_dim: intermediate_dim intermediate_size ffn_dim d_ff n_inner
head_dim: key_dim d_kv
hidden_dim: hidden_size d_model n_embd
learning_rate: lr initial_learning_rate
load: from_pretrained from_preset AutoModel AutoModelForCausalLM AutoModelForMaskedLM
load: AutoModelForSequenceClassification TFAutoModel AutoTokenizer pipeline
max_length: max_sequence_length max_position_embeddings n_positions max_seq_length
max_steps: num_train_steps num_training_steps train_steps max_step
max_tokens: max_new_tokens
norm: normalize_first norm_first
num_heads: num_attention_heads n_head n_heads
num_kv_heads: num_key_value_heads num_kv_head
num_layers: num_hidden_layers n_layer n_layers
num_segments: type_vocab_size
rotary_base: rope_theta rope_max_wavelength
schedule: lr_scheduler_type decay_type
source: train_features_file train_labels_file train_file
tied: tie_word_embeddings tie_weights
vocab_size: vocabulary_size
warmup_fraction: warmup_ratio
"""
ALIASES = {
    theirs: ours
    for ours, names in (line.split(": ") for line in _ALIASES.strip().splitlines())
    for theirs in names.split()
}


def nearest(name: str, choices: Iterable[str]) -> str:
    """Suggests a known name that is similar to `name`, such as `; perhaps you meant 'adam'`, or "".

    A name of another library (see `ALIASES`) is similar to the name here.
    """
    choices = list(choices)
    prefix, dot, last = name.rpartition(".")
    alias = f"{prefix}{dot}{ALIASES.get(last, last)}"
    matches = [alias] if alias in choices else difflib.get_close_matches(name, choices, 1)
    return f"; perhaps you meant {matches[0]!r}" if matches else ""


def warn(sentence: str) -> None:
    """Prints a warning to stderr."""
    print(f"warning: {sentence}", file=sys.stderr, flush=True)


def plural(noun: str, count: int) -> str:
    """Returns `noun` for a count of 1, and otherwise its plural with the ending "s"."""
    return noun if count == 1 else f"{noun}s"


def first_line(error: BaseException, message: str | None = None) -> str:
    """Returns the first line of `message`, or of the error's, or the class name if it is empty."""
    message = str(error) if message is None else message
    return (message.strip().splitlines() or [type(error).__name__])[0]


# Maps each optional module to the extra in pyproject.toml that installs the module.
EXTRAS = {
    "ai_edge_litert": "lite",
    "apache_beam": "beam",
    **dict.fromkeys(("huggingface_hub", "safetensors"), "interop"),
    **dict.fromkeys(("importlib_resources", "tensorflow_datasets"), "tfds"),
    **dict.fromkeys(("jax", "jaxlib"), "jax"),
    "keras_hub": "keras-hub",
    "matplotlib": "studies",
    **dict.fromkeys(("onnx", "onnxruntime", "tf2onnx"), "onnx"),
    "openvino": "openvino",
    **dict.fromkeys(("prometheus_client", "starlette", "uvicorn", "uvloop"), "serving"),
    "pyarrow": "tables",
    **dict.fromkeys(("nltk", "rouge_score", "sacrebleu", "scipy", "sklearn"), "evaluate"),
    "tensorboard": "train",
    "tokenizers": "vocabularies",
}

_INSTALLED = pathlib.Path(__file__).with_name("commands")
# Parent folder of the packages `experiments` and `export`: `macaron_tf/commands` in an installed
# wheel, or the root of a checkout.
COMMANDS_FOLDER = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1]


def install_command(extra: str) -> str:
    """Returns the command that installs an extra of this wheel or of this checkout."""
    if COMMANDS_FOLDER == _INSTALLED:
        return f"pip install 'macaron_tf[{extra}]'"
    return f"pip install -e '{COMMANDS_FOLDER}[{extra}]'"


def missing_package(error: Exception, purpose: str = "this command") -> str | None:
    """Returns the message for a missing package in `EXTRAS`, or `None` for any other error.

    `purpose` is the feature that needs the package.
    """
    module = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    extra = EXTRAS.get(module)
    return f"{purpose} needs {module}: {install_command(extra)}" if extra else None


# Extras of commands. Each includes the extras before it.
_COMMAND_EXTRAS = ("evaluate", "train", "studies")


def check_packages(extra: str) -> None:
    """Raises a UserError if a package of an extra in `_COMMAND_EXTRAS` is not installed.

    Otherwise, a package that only a validation needs would be missed after minutes of work.
    """
    included = _COMMAND_EXTRAS[: _COMMAND_EXTRAS.index(extra) + 1]
    modules = [module for module, owner in EXTRAS.items() if owner in included]
    if missing := [module for module in modules if importlib.util.find_spec(module) is None]:
        raise UserError(f"this command needs {', '.join(missing)}: {install_command(extra)}")


def diverged(model: str | os.PathLike) -> UserError:
    """Returns the error for a model whose outputs are NaN.

    Without this error, a classifier would answer class 0, because argmax of NaN is 0.
    """
    return UserError(
        f"{model} outputs NaN because its training diverged: use an earlier checkpoint, or train "
        "again with a lower training.learning_rate"
    )


def out_of_memory(error: Exception) -> str | None:
    """Returns the error message for a failed memory allocation, or `None` for other errors."""
    tensorflow, jax, message = sys.modules.get("tensorflow"), sys.modules.get("jax"), str(error)
    exhausted = (tensorflow.errors.ResourceExhaustedError,) if tensorflow else ()
    on_jax = jax and isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXH" in message
    if not (isinstance(error, (MemoryError, *exhausted)) or on_jax):
        return None
    request = re.search(r"shape\s?[\[(][\d, ]*[\])]|allocate [\d.]+ \w+", message)
    return (
        f"memory ran out{f' ({request[0]})' if request else ''}: use smaller batches (in training, "
        "with more training.accumulation_steps), shorter rows, or a smaller model"
    )


def failed_request(error: Exception) -> str | None:
    """Returns the error message for a failed request to a bucket, or `None` for other errors."""
    if "Error executing an HTTP request" not in str(error):
        return None
    mend = "check the path, the network and your rights, and run the same command again"
    return f"a request to a bucket failed ({first_line(error)}): {mend}"


@contextlib.contextmanager
def needed(purpose: str, package: str = "") -> Iterator[None]:
    """Turns an `ImportError` in the `with` block into a `UserError` that says what to install.

    `purpose` is the feature that needs the package. `package` is suggested unless an extra of this
    project installs the missing module. Without it, only errors about missing packages are turned.
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
