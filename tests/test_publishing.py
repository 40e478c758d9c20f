"""Tests of publishing a model: its card, the user code it needs, and the Hugging Face Hub."""

import base64
import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import sys
import threading
from typing import ClassVar

import numpy as np
import pytest

import macaron_tf
from macaron_tf.io import plug_ins
from macaron_tf.model import Model
from macaron_tf.models.model_parts import Card
from tests.harness import numpy_of, refuses, run_card
from tests.toys.hugging_face import write_bert

ROWS = {"token_ids": np.array([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]])}
MINE = """
import pathlib
from macaron_tf.layers import TransformerBlock
from mine_parts.gate import Gate

pathlib.Path("ran").touch()


class Block(TransformerBlock):
    def channel_mixer(self, feed_forward_dim):
        return Gate(name="gate")
"""
GATE = """
import keras
from macaron_tf.layers.mixer import Mixer
from . import unused


class Gate(Mixer):
    keeps_state = False

    def build(self, input_shape):
        self.inner = keras.layers.Dense(input_shape[-1], activation="sigmoid")
        self.inner.build(input_shape)

    def mix(self, x, context, state=None):
        return self.inner(x) * x, state
"""


@contextlib.contextmanager
def forgotten(folder: pathlib.Path):
    """Simulates a new process: a new working folder and no user modules."""
    plug_ins._files.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "mine_parts")]:
        del sys.modules[name]
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [p for p in sys.path if not p or "/tmp" not in p])
        patch.chdir(folder)
        yield


@pytest.fixture
def written(tmp_path):
    """Writes a user-defined block to tmp_path/author; yields a path for the saved model.

    The working folder is tmp_path/author until the test ends.
    """
    with forgotten(tmp_path / "author"):
        pathlib.Path("mine_parts").mkdir()
        files = {"mine.py": MINE, "mine_parts/__init__.py": "", "mine_parts/gate.py": GATE}
        files |= {"mine_parts/unused.py": "", "other.py": "secret = 1"}
        for name, text in files.items():
            pathlib.Path(name).write_text(text)
        yield tmp_path / "saved"
    with forgotten(tmp_path / "author"):
        pass


def save(block: str, folder: pathlib.Path) -> Model:
    network = macaron_tf.build("bert_tiny", vocab_size=16, num_layers=1, block=block)
    network.build()
    model = Model(network, card=Card(name="mine"))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("block", ["mine:Block", "./mine.py:Block"])
def test_a_block_of_the_user_s_goes_along_and_runs_only_when_trusted(
    block, written, tmp_path, capsys
):
    model = save(block, written)
    code_files = {"mine.py", "mine_parts/__init__.py", "mine_parts/gate.py", "mine_parts/unused.py"}
    code = written / "code"
    assert {p.relative_to(code).as_posix() for p in code.rglob("*.py")} == code_files
    assert "note: the model is saved with code/mine.py, a copy of " in capsys.readouterr().err
    card = (written / "README.md").read_text()
    assert "`code/mine.py`" in card and 'load("saved", trust_code=True)' in card
    pathlib.Path("ran").unlink()
    with forgotten(tmp_path / "stranger"):
        refuses(r"'mine:Block' was read from a file.*trust_code=True", macaron_tf.load, written)
        assert not pathlib.Path("ran").exists() and "mine" not in sys.modules
        loaded = macaron_tf.load(written, trust_code=True)
        assert pathlib.Path("ran").exists()
        np.testing.assert_array_equal(numpy_of(loaded.network(ROWS)), numpy_of(model.network(ROWS)))
        loaded.save_pretrained("again")  # saving the loaded model keeps the code
        assert pathlib.Path("again/code/mine_parts/gate.py").read_text() == GATE
    with forgotten(tmp_path / "other"):
        pathlib.Path("mine.py").write_text("")
        refuses("its own module mine, but .*other/mine.py", load_trusted, written)
    with forgotten(tmp_path / "third"):
        (code / "itertools.py").write_text("")  # a module without a file
        refuses("own module itertools, but Python imports built-in", load_trusted, written)


def load_trusted(location):
    return macaron_tf.load(location, trust_code=True)


def test_a_changed_file_of_a_folder_is_found(written):
    save("mine:Block", written)
    (written / "code/mine.py").write_text(MINE + "\n")
    with forgotten(written.parent / "stranger"):
        refuses("mine.py has changed since it was written", load_trusted, written)


# A local stand-in for the Hugging Face Hub.


class StandIn(http.server.BaseHTTPRequestHandler):
    """A fake Hub server with endpoints for pushing and downloading small files."""

    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    commits: ClassVar[list[list[str]]] = []
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value, status: int = 200, **headers) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(text))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        address = f"http://{self.headers['Host']}"
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self.answer({"error": "Invalid user token."}, 401)
        if self.path == "/api/repos/create":
            created = json.loads(body)
            name = f"{created['organization']}/{created['name']}"
            if created["organization"] != "me":
                return self.answer({"error": "You don't have the rights"}, 403)
            exists = name in self.repositories
            self.repositories.setdefault(name, {".gitattributes": b""})
            return self.answer({"url": f"{address}/{name}"}, 409 if exists else 200)
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        _, _, _, owner, name, action, _ = self.path.split("/")
        if action == "preupload":
            requested = json.loads(body)["files"]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            return self.answer({"files": [{"path": file["path"], **modes} for file in requested]})
        files = self.repositories[f"{owner}/{name}"]
        lines = [json.loads(line) for line in body.splitlines()]
        self.commits.append([line["key"] for line in lines])
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        commit = {"commitUrl": f"{address}/{owner}/{name}/commit/{SHA}", "commitOid": SHA}
        return self.answer({"success": True, **commit})

    def do_GET(self):
        path, _, _ = self.path.partition("?")
        if match := re.fullmatch(rf"/(.+/.+)/resolve/{SHA}/(.+)", path):
            body = self.repositories[match[1]][match[2]]
            etag = f'"{hashlib.sha1(body).hexdigest()}"'
            return self.answer(body, ETag=etag, X_Repo_Commit=SHA)
        match = re.fullmatch(r"/api/models/(\w+/\w+)(/\w+/\w+)?", path)
        if not match or match[1] not in self.repositories:
            return self.answer({"error": "Repository not found"}, 404)
        files = self.repositories[match[1]]
        if (match[2] or "").startswith("/tree"):
            common = {"type": "file", "oid": "0" * 40}
            return self.answer([{"path": n, "size": len(b), **common} for n, b in files.items()])
        siblings = [{"rfilename": name} for name in files]
        return self.answer({"id": match[1], "sha": SHA, "siblings": siblings, "private": False})

    do_HEAD = do_GET


SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Yields the address of a fake Hub server, with a logged-in user."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        StandIn.repositories.clear()
        StandIn.commits.clear()
        yield address
        server.shutdown()


@pytest.fixture
def bert(tmp_path) -> str:
    """Returns the `hugging-face:` location of a small BERT."""
    return f"hugging-face:{write_bert(tmp_path / 'bert')}"


def check_same_outputs(one, other) -> None:
    outputs = (numpy_of(model.network.encoder(ROWS)) for model in (one, other))
    np.testing.assert_array_equal(*outputs)


def test_a_model_is_pushed_and_opened_from_the_hub(hub, bert, tmp_path, monkeypatch):
    model = macaron_tf.load(bert)
    assert model.push_to_hub("me/small", license="mit") == f"{hub}/me/small"
    files = StandIn.repositories["me/small"]
    written = {"model.json", "model.safetensors", "manifest.json", "vocabulary/vocabulary.txt"}
    assert written < {*files}
    card = files["README.md"].decode()
    assert "license: mit" in card and 'macaron_tf.load("hub:me/small")' in card
    loaded = macaron_tf.load("hub:me/small")
    check_same_outputs(loaded, model)
    (tmp_path / "README.md").write_text(card)
    assert run_card(tmp_path, monkeypatch)["model"].card.name == "small"


@pytest.mark.thorough
def test_a_push_replaces_what_an_earlier_push_left(hub, bert):
    model = macaron_tf.load(bert)
    model.push_to_hub("me/small", "weights.h5")
    model.push_to_hub("hub:me/small", "hugging-face")
    files = StandIn.repositories["me/small"]
    names = {*files}
    assert b'.from_pretrained("me/small")' in files["README.md"]
    assert {"config.json", "tokenizer.json", "model.safetensors", ".gitattributes"} <= names
    assert not [name for name in names if name.endswith(".h5") or name.startswith("vocabulary/")]
    assert "model.json" not in names
    check_same_outputs(macaron_tf.load("hub:me/small"), model)
    model.push_to_hub("me/small")
    assert not {"config.json", "tokenizer.json"} & StandIn.repositories["me/small"].keys()
    assert len(StandIn.commits) == 3  # each commit is complete


@pytest.mark.parametrize(
    ("name", "token", "sentence"),
    [
        ("me/small", "hf_wrong", "me/small cannot be pushed to (Client error '401"),
        ("them/small", "hf_right", "them/small cannot be pushed to ("),
        ("small", "hf_right", "small is not a repository: write hub:OWNER/NAME[@REVISION]"),
        ("me/small@v1", "hf_right", "names a revision, but a push creates one: omit @v1"),
    ],
)
def test_a_push_that_cannot_be_is_one_sentence(name, token, sentence, hub, bert, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", token)
    refuses(re.escape(sentence), macaron_tf.load(bert).push_to_hub, name)
    assert not StandIn.commits
