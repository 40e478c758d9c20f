"""Tests of several models in one server: TensorFlow Serving's `ModelServerConfig`."""

import os
import shutil

import grpc
import pytest
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from export.server.models import ServedModel, read_model_config
from export.server.versions import VersionManager
from tests.export.serving_toys import call
from tests.export.test_serve_command import run
from tests.export.test_serve_grpc import make_request
from tests.export.test_versions import FakeServable, publish, settle, wait_for

PREDICT = {"instances": ["a"]}


def entry(name, folder, more="") -> str:
    return f'config {{ name: "{name}" base_path: "{folder}" model_platform: "tensorflow" {more} }}'


def write(path, *entries: str) -> str:
    path.with_suffix(".new").write_text(f"model_config_list {{\n{chr(10).join(entries)}\n}}\n")
    os.replace(path.with_suffix(".new"), path)
    return str(path)


@pytest.fixture
def base(tmp_path, toy_versions):
    """Returns a folder with `one` (versions 1 and 2) and `two` (version 1)."""
    shutil.copytree(toy_versions, tmp_path / "one")
    shutil.copytree(toy_versions / "1", tmp_path / "two" / "1")
    return tmp_path


def said(port, path) -> str:
    status, answer = call(port, "POST", f"/v1/models/{path}:predict", PREDICT)
    return answer["predictions"][0]["translations"][0] if status == 200 else (status, answer)


def test_models_versions_and_labels(base):
    labels = (
        'version_labels { key: "stable" value: 1 } version_labels { key: "canary" value: 2 } '
        "model_version_policy { all {} }"
    )
    file = write(base / "m.config", entry("one", base / "one", labels), entry("b", base / "two"))
    config = ServerConfig(
        model_config_file=file,
        model_config_file_poll_wait_seconds=0.05,
        rest_port=0,
        grpc_port=0,
        poll_seconds=0.05,
    )
    with ModelServer(config) as server:
        port = server.rest_port
        assert [said(port, p) for p in ("one", "b", "one/versions/1", "one/labels/stable")] == [
            "v2:A",
            "v1:A",
            "v1:A",
            "v1:A",
        ]
        not_served = "Servable not found for request: "
        assert said(port, "c") == (404, {"error": f"{not_served}Latest(c)"})
        assert said(port, "b/versions/2") == (404, {"error": f"{not_served}Specific(b, 2)"})
        unknown = {"error": "Unrecognized servable version label: x"}
        assert said(port, "b/labels/x") == (400, unknown)
        assert call(port, "GET", "/v1/models/one/labels/x") == (400, unknown)
        versions = call(port, "GET", "/v1/models/one")[1]["model_version_status"]
        assert [(v["version"], v["state"]) for v in versions] == [
            ("2", "AVAILABLE"),
            ("1", "AVAILABLE"),
        ]
        spec = call(port, "GET", "/v1/models/one/labels/stable/metadata")[1]["model_spec"]
        assert (spec["name"], spec["version"]) == ("one", "1")

        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
            request = make_request(name="one", text=["a"])
            request.model_spec.version_label = "canary"
            answer = predict(request, 20)
            assert answer.outputs["translations"].string_val[0] == b"v2:A"
            assert answer.model_spec.version.value == 2
            request.model_spec.version_label = "x"
            with pytest.raises(grpc.RpcError, match="Unrecognized servable version label: x"):
                predict(request, 20)
            asked = get_model_status_pb2.GetModelStatusRequest()
            asked.model_spec.name, asked.model_spec.version_label = "one", "stable"
            (status,) = (
                model_service_pb2_grpc.ModelServiceStub(channel)
                .GetModelStatus(asked, 20)
                .model_version_status
            )
            assert status.version == 1

        # The file changes: a label moves, one model goes and one comes. Then an invalid file is
        # ignored.
        moved = labels.replace("value: 1", "value: 2")
        write(base / "m.config", entry("one", base / "one", moved), entry("c", base / "two"))
        wait_for(lambda: said(port, "c") == "v1:A")
        assert said(port, "one/labels/stable") == "v2:A" and said(port, "b")[0] == 404
        write(base / "m.config", entry("one", base / "one", "nonsense: 1"))
        latest = "model_version_policy { specific { versions: 1 } }"
        write(base / "m.config", entry("one", base / "one", latest))
        wait_for(lambda: said(port, "one") == "v1:A")
        assert said(port, "c")[0] == 404


def test_policies(tmp_path):
    for version in (1, 2, 3, 4):
        publish(tmp_path, version, "broken" if version == 3 else "good")

    def served(**policy) -> list[int]:
        model = ServedModel("toy", str(tmp_path), **policy)
        manager = VersionManager(model, 0.01, loader=FakeServable)
        settle(manager)
        found = manager.served
        manager.stop()
        return found

    assert served() == [4]
    assert served(latest=2) == [2, 4]  # a broken version is skipped
    assert served(latest=None) == [1, 2, 4]
    assert served(latest=None, allowed_versions=frozenset({1, 3, 9})) == [1]


def test_the_file_as_it_is_read(tmp_path):
    text = entry("a", "/a", "model_version_policy { specific { versions: 3 versions: 5 } }")
    file = write(tmp_path / "m", text, entry("b", "/b", "model_version_policy { latest {} }"))
    assert read_model_config(file) == [
        ServedModel("a", "/a", None, frozenset({3, 5})),
        ServedModel("b", "/b"),
    ]


ONLY_3 = 'model_version_policy { specific { versions: 3 } } version_labels { key: "x" value: 1 }'


@pytest.mark.parametrize(
    "text, words",
    [
        ("model_config_list {\n config {\n nme: 3 } }", 'no field named "nme"'),
        ("model_config_list {", "m.config is not valid protobuf text format"),
        ("\xff", "line 1 of --model-config-file"),
        ("", "lists no model"),
        (entry("", "/a"), "config 1: the name is empty: give"),
        (entry("a/b", "/a"), "the model 'a/b': name: the name 'a/b' cannot be part of a URL"),
        (entry("a", "a"), "the model 'a': base_path 'a' is not an absolute"),
        (entry("a", "/a").replace("tensorflow", "torch"), "model_platform 'torch' is not sup"),
        (entry("a", "/a") + entry("a", "/b"), "the model 'a': another model has the same"),
        (entry("a", "/a", ONLY_3), "the label 'x' in version_labels points to version 1"),
        (
            entry("a", "/a", 'version_labels { key: "x" value: -1 }'),
            "points to version -1, but version numbers must be at least 0: give",
        ),
        (entry("a", "/a", "model_version_policy { specific {} }"), "lists no versions, but"),
        (entry("a", "/nowhere"), "/nowhere is not a folder"),
        (entry("a", "{one}", ONLY_3.replace("1", "3")), "asks for version 3, but"),
        (
            entry("a", "{one}", 'version_labels { key: "x" value: 1 }'),
            "points to version 1, which is not served: choose one",
        ),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_sentence(base, refused, text, words):
    if text.startswith("config"):
        text = f"model_config_list {{ {text} }}"
    file = base / "m.config"
    file.write_text(text.replace("{one}", str(base / "one")))
    ports = ["--rest-port", "0", "--grpc-port", "0"]
    refused(run, ["--model_config_file", str(file), *ports], words, base)


def test_the_file_takes_the_place_of_a_folder(base, refused):
    file = str(base / "m.config")
    refused(run, ["--model-config-file", file], "m.config cannot be read (No such file", base)
    refused(run, ["out", "--model-config-file", file], "or both OUT and --name", base)
