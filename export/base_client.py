"""Base class of clients that send lines of text to an exported model, in batches."""

import abc
import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from macaron_tf.errors import UserError, check_encodable

_SIGNATURE = "serving_default"
# Order of the texts in a line. A multiple-choice model has context, question, choice1, choice2, ...
_COLUMNS = ("text", "first", "second", "question", "context")
_CHOICE_COLUMNS = ("context", "question")
_BITS = {"DT_INT32": 32, "DT_INT64": 64}
_MAX_FLOAT = {"DT_FLOAT": 3.4028234e38, "DT_DOUBLE": 1.7976931348623157e308}
# Default inputs of a text generator, equal to the defaults of `experiments.generate`.
_GENERATION = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1, "max_tokens": 128}


class ClientError(Exception):
    """Error that a client raises if a request fails or the response cannot be used.

    Attributes:
        status: HTTP status, or name of the gRPC code. `None` means that there is no such code, for
            example after a timeout over REST.
    """

    def __init__(self, message: str, status: int | str | None = None):
        super().__init__(message)
        self.status = status


def missing_signature(name: str, signatures: Iterable[str]) -> ClientError:
    """Returns the error for a model that has the signatures `signatures`, but not `name`."""
    others = ", ".join(sorted(key for key in signatures if not key.startswith("__"))) or "none"
    model = "a translator" if name == "score" else "the model"
    return ClientError(
        f"the model has no signature {name!r} (its signatures: {others}): export {model} with "
        "python -m export.saved_model"
    )


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Translation of a line, and its score in the beam search (higher is better)."""

    text: str
    score: float


@dataclasses.dataclass(frozen=True)
class Signature:
    """Signature of a served model.

    Attributes:
        inputs: dict mapping input name to TensorFlow dtype name, such as "DT_STRING".
        outputs: dict mapping output name to TensorFlow dtype name.
    """

    inputs: dict[str, str]
    outputs: dict[str, str]

    @property
    def texts(self) -> list[str]:
        """Names of the string inputs, in the order of the tab-separated texts in a line."""
        texts = sorted(name for name, dtype in self.inputs.items() if dtype == "DT_STRING")
        choices = [name for name in texts if re.fullmatch("choice[0-9]+", name)]
        choices.sort(key=lambda name: int(name.removeprefix("choice")))
        ordered = (*(_CHOICE_COLUMNS if choices else _COLUMNS), *choices)
        first = [name for name in ordered if name in texts]
        return first + [name for name in texts if name not in ordered]

    def columns(
        self, lines: Sequence[str], numeric_inputs: Mapping[str, float], first: int
    ) -> dict[str, list]:
        """Converts lines to the model's inputs.

        Args:
            lines: lines of text. If the model has several string inputs, tabs separate the texts
                in a line.
            numeric_inputs: dict mapping the name of a numeric input to its value, which applies to
                all lines. The inputs of a text generator have default values.
            first: number of the first line, for error messages.

        Returns:
            Dict mapping input name to a list of values, one for each line.

        Raises:
            UserError: the model has no string input, a line has the wrong number of texts, or a
                number is missing, unknown or invalid.
        """
        texts = self.texts
        names = [name for name in self.inputs if name not in texts]
        values = {name: numeric_inputs.get(name, _GENERATION.get(name)) for name in names}
        if missing := [name for name, value in values.items() if value is None]:
            raise UserError(
                f"the model's numeric input {missing[0]!r} is missing: give "
                f"--input {missing[0]}=NUMBER"
            )
        if unknown := numeric_inputs.keys() - values:
            mend = f"choose one of {', '.join(values)}" if values else "leave --input out"
            raise UserError(f"the model has no numeric input {min(unknown)!r}: {mend}")
        values = {
            name: _to_number(name, value, self.inputs[name]) for name, value in values.items()
        }
        if not texts:
            raise UserError(
                "the model has no string input, but this client sends lines of text: use a model "
                "exported with python -m export.saved_model"
            )
        rows = [line.split("\t") if len(texts) != 1 else [line] for line in lines]
        for line_number, row in enumerate(rows, first):
            if len(row) != len(texts):
                raise UserError(
                    f"line {line_number} must have {len(texts)} texts ({', '.join(texts)}), but "
                    f"has {len(row)}: separate the texts by single tabs"
                )
        columns = {name: [row[i] for row in rows] for i, name in enumerate(texts)}
        return columns | {name: [value] * len(lines) for name, value in values.items()}


def _to_number(name: str, value: Any, dtype: str) -> Any:
    """Converts the value of an input of a dtype in `_BITS` or `_MAX_FLOAT` to an int or a float.

    A value for any other dtype is returned unchanged.

    Raises:
        UserError: `value` is not a number, or is out of the range of the dtype, or is a float for
            an integer input. Without this check, `LocalClient` would truncate 2.5 to 2.
    """
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    if bits := _BITS.get(dtype):
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        if is_real and isinstance(value, Integral) and low <= value <= high:
            return int(value)
        raise UserError(
            f"{name}={value!r} is not a {bits}-bit integer: give a whole number from {low} to "
            f"{high}"
        )
    if limit := _MAX_FLOAT.get(dtype):
        if is_real and abs(value) <= limit:
            return float(value)
        raise UserError(
            f"{name}={value!r} is not a number in the range of {dtype}: give a number from "
            f"{-limit:g} to {limit:g}"
        )
    return value


@dataclasses.dataclass(eq=False)
class Client(abc.ABC):
    """Client that sends lines of text to an exported model, in batches. Base class of all clients.

    All methods raise a ClientError if the server rejects a request, cannot be reached, or sends a
    response that the method cannot use. Subclasses implement `_run` and `_metadata`.

    Attributes:
        address: address of the server.
        name: name of the model.
        version: version of the model; `None` means the newest version.
        timeout: maximum number of seconds to wait for a response.
        batch_size: maximum number of lines in a request. More lines are sent in several requests.
    """

    address: str
    name: str
    version: int | None = None
    timeout: float = 60.0
    batch_size: int = 32

    @functools.cached_property
    def signature(self) -> Signature:
        """Signature `serving_default` of the model, from the server's metadata."""
        with self._as_documented():
            signatures = self._metadata()["signature_def"]
            if _SIGNATURE not in signatures:
                raise missing_signature(_SIGNATURE, signatures)
            inputs, outputs = (
                {name: info["dtype"] for name, info in signatures[_SIGNATURE].get(key, {}).items()}
                for key in ("inputs", "outputs")
            )
            return Signature(inputs, outputs)

    @contextlib.contextmanager
    def _as_documented(self) -> Iterator[None]:
        """Turns a KeyError, TypeError or AttributeError in the `with` block into a ClientError."""
        try:
            yield
        except (KeyError, TypeError, AttributeError):
            raise ClientError(
                f"{self.address} sent a response that is not in TensorFlow Serving's format: "
                "check the address"
            ) from None

    def answers(
        self, lines: Sequence[str], first: int = 1, **numeric_inputs: float
    ) -> list[dict[str, Any]]:
        """Runs the model, whatever its task is, on each line of text.

        Args:
            lines: lines of text. If the model has several string inputs, tabs separate the texts
                in a line.
            first: number of the first line, for error messages.
            numeric_inputs: values of the model's numeric inputs, such as `max_tokens=20`.

        Returns:
            A list with one dict for each line. The dict maps output names to values.

        Raises:
            UserError: a line or a number does not fit the model's inputs, or a line has an unpaired
                surrogate.
        """
        columns = self.signature.columns(lines, numeric_inputs, first)
        [first_output, *_] = self.signature.outputs
        answers = []
        for part in self._run_in_batches(_SIGNATURE, first, **columns):
            values = {name or first_output: value for name, value in part.items()}
            num_rows = min(len(lines) - len(answers), self.batch_size)
            for name, value in values.items():
                if not isinstance(value, list) or len(value) != num_rows:
                    raise ClientError(
                        f"the model's output {name!r} does not have one row per line: use a model "
                        "exported with python -m export.saved_model"
                    )
            answers += [{name: value[i] for name, value in values.items()} for i in range(num_rows)]
        return answers

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Returns the best translation of each line, in order."""
        return [candidates[0].text for candidates in self.n_best(lines)]

    def n_best(self, lines: Sequence[str]) -> list[list[Candidate]]:
        """Returns a list of translations for each line, best first.

        The number of translations per line was set at the export (`--n-best`).
        """
        candidates = []
        for part in self._run_in_batches(_SIGNATURE, text=lines):
            if not {"translations", "scores"} <= part.keys():
                raise ClientError(
                    f"the model {self.name!r} is not a translator: leave --n-best out, or call "
                    "`answers` in Python"
                )
            with self._as_documented():
                rows = zip(part["translations"], part["scores"], strict=True)
                candidates += [list(map(Candidate, *row)) for row in rows]
        return candidates

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Returns the log-probability of each target, given the source at the same index.

        The log-probability is the sum of the natural logarithms of the target's token
        probabilities, including the end-of-sequence token.

        Raises:
            ValueError: the numbers of sources and targets differ.
            ClientError: the model has no signature `score`, or the request fails.
        """
        if len(sources) != len(targets):
            raise ValueError(
                f"there are {len(sources)} sources but {len(targets)} targets: give one target for "
                "each source"
            )
        scores = []
        for part in self._run_in_batches("score", source=sources, target=targets):
            if not part.keys() & {"log_probs", ""}:
                raise ClientError(
                    f"the model's signature 'score' has no output 'log_probs' (its outputs: "
                    f"{', '.join(part)}): export a translator with python -m export.saved_model"
                )
            with self._as_documented():
                scores += part.get("log_probs") or part[""]
        return scores

    def _run_in_batches(
        self, signature: str, first: int = 1, /, **columns: Sequence
    ) -> Iterator[dict]:
        for column in columns.values():
            check_encodable((value for value in column if isinstance(value, str)), first)
        for start in range(0, len(next(iter(columns.values()))), self.batch_size):
            end = start + self.batch_size
            yield self._run(signature, {name: list(c[start:end]) for name, c in columns.items()})

    @abc.abstractmethod
    def _run(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        """Runs a signature once, for at most `batch_size` rows.

        Args:
            signature: name of the signature.
            inputs: dict mapping input name to a list of values, one for each row.

        Returns:
            Dict mapping output name to a list of values, one for each row. If there is only one
            output, its name may be "".
        """

    @abc.abstractmethod
    def _metadata(self) -> dict[str, Any]:
        """Returns the model's `SignatureDefMap` as a dict, in protocol buffers' JSON format."""
