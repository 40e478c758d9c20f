"""The REST client; the standard library is all it needs."""

import http.client
import itertools
import json
import time
import urllib.parse

from export.clients.base import Client, TranslationError
from macaron_tf.errors import UserError

_RETRY_STATUSES = (429, 503)


class TranslationClient(Client):
    """Translates over REST. Not for several threads at once: make one a thread.

    Args:
        url: the server, such as http://127.0.0.1:8501.
        name: the model's name.
        version: a version number; None takes the newest.
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
            TranslationError: it is not, after `seconds`.
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
