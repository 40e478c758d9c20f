"""Clients of a translation model: their common base, and the one over REST."""

import abc
import dataclasses
import http.client
import itertools
import json
import time
import urllib.parse
from collections.abc import Iterator, Sequence

from macaron_tf.errors import UserError


class TranslationError(Exception):
    """The server refused a request or gave no answer; `status` is its HTTP status or gRPC code."""

    def __init__(self, message: str, status: int | str | None = None):
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One translation and the model's score for it (higher is better)."""

    text: str
    score: float


class Client(abc.ABC):
    """Base of the REST and gRPC clients: sends lines in batches; a subclass runs one request."""

    def __init__(self, batch_size: int):
        self._batch_size = batch_size

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The best translation of each line, in order; raises as `n_best`."""
        return [candidates[0].text for candidates in self.n_best(lines)]

    def n_best(self, lines: Sequence[str]) -> list[list[Candidate]]:
        """All translations of each line, best first.

        Raises:
            TranslationError: the server refused, or could not be reached.
        """
        result = []
        for rows in self._slices(len(lines)):
            outputs = self._run("serving_default", {"text": list(lines[rows])})
            for texts, scores in zip(outputs["translations"], outputs["scores"], strict=True):
                pairs = zip(texts, scores, strict=True)
                result.append([Candidate(text, score) for text, score in pairs])
        return result

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Log-probabilities (natural logarithm, summed over tokens) of given translations.

        Raises:
            ValueError: unequal numbers of lines.
            TranslationError: the server refused, or could not be reached.
        """
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources but {len(targets)} targets")
        result = []
        for rows in self._slices(len(sources)):
            inputs = {"source": list(sources[rows]), "target": list(targets[rows])}
            result += self._run("score", inputs)["log_probs"]
        return result

    def _slices(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self._batch_size):
            yield slice(start, start + self._batch_size)

    @abc.abstractmethod
    def _run(self, signature: str, inputs: dict[str, list[str]]) -> dict[str, list]:
        """Runs one request of a signature; outputs by name."""


_RETRY_STATUSES = (429, 503)


class TranslationClient(Client):
    """Translates over REST. Not thread-safe: make one per thread.

    Args:
        url: the server, such as http://127.0.0.1:8501.
        name: the model's name.
        version: None = the newest.
        timeout: seconds to wait for an answer.
        retries: times a request is repeated when the server cannot be reached or is busy (503,
            429). A prediction changes nothing on the server, so repeating it is safe.
        backoff: seconds before the first repetition; doubled each time.
        batch_size: lines sent in one request.
    """

    def __init__(
        self,
        url: str,
        name: str,
        version: int | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        backoff: float = 0.2,
        batch_size: int = 32,
    ):
        super().__init__(batch_size)
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        connections = {
            "http": http.client.HTTPConnection,
            "https": http.client.HTTPSConnection,
        }
        if parts.scheme not in connections or not parts.hostname:
            raise UserError(f"{url!r} is no server's address; write http://HOST:PORT")
        self._connection = connections[parts.scheme](parts.hostname, parts.port, timeout=timeout)
        self._address = f"{parts.scheme}://{parts.netloc}"
        self._path = f"/v1/models/{urllib.parse.quote(name, safe='')}"
        if version is not None:
            self._path += f"/versions/{version}"
        self._retries = retries
        self._backoff = backoff

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        """Waits until the model is available.

        Raises:
            TranslationError: it is not available after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                states = self._request("GET", self._path, None, retries=0)["model_version_status"]
                if any(state["state"] == "AVAILABLE" for state in states):
                    return
                message = "the model is still loading"
            except TranslationError as error:
                message = str(error)
            if time.monotonic() > deadline:
                raise TranslationError(f"not ready after {seconds:g} s: {message}")
            time.sleep(0.1)

    def close(self) -> None:
        """Closes the connection; the next request opens it again."""
        self._connection.close()

    def _run(self, signature: str, inputs: dict[str, list[str]]) -> dict[str, list]:
        body = {"signature_name": signature, "inputs": inputs}
        answer = self._request("POST", f"{self._path}:predict", body, self._retries)["outputs"]
        # A signature with one output answers with its bare value.
        return answer if isinstance(answer, dict) else {"log_probs": answer}

    def _request(self, method: str, path: str, body: dict | None, retries: int) -> dict:
        data = None if body is None else json.dumps(body).encode("utf-8")
        for attempt in itertools.count():
            try:
                status, raw = self._send(method, path, data)
            except TimeoutError:
                self.close()
                raise TranslationError(f"no answer from {self._address} in time") from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                reason = str(error) or type(error).__name__
                failure = TranslationError(f"no answer from {self._address}: {reason}")
            else:
                answer = _parse(raw, status)
                if status == 200:
                    return answer
                failure = TranslationError(str(answer.get("error", f"HTTP {status}")), status)
                if status not in _RETRY_STATUSES:
                    raise failure
            if attempt >= retries:
                raise failure
            time.sleep(self._backoff * 2.0**attempt)

    def _send(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if data is not None else {}
        self._connection.request(method, path, body=data, headers=headers)
        response = self._connection.getresponse()
        return response.status, response.read()


def _parse(raw: bytes, status: int) -> dict:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise TranslationError(
            f"the answer is no JSON object (HTTP {status}): {raw[:80]!r}", status
        )
    return answer
