"""The Kubernetes manifests match Kubernetes' schemas and one another."""

import pathlib
import re

import pytest
import yaml
from google.protobuf import text_format

from experiments import cloud
from export import serve

pytestmark = pytest.mark.quick

FILE = pathlib.Path(serve.__file__).parent / "deploy" / "kubernetes" / "serving.yaml"
TRAIN = pathlib.Path(cloud.__file__).parent / "train.yaml"
VERSIONS = ["1.25", "1.31", "1.37"]


def objects_of(file: pathlib.Path) -> dict[tuple[str, str], dict]:
    """Returns a dict mapping the (kind, name) of each object in a manifest file to the object."""
    documents = list(yaml.safe_load_all(file.read_text()))
    found = [item for document in documents for item in document.get("items", [document])]
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], dict]:
    return objects_of(FILE)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_know_every_field(objects, version):
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes-validate: make test-engines"
    )
    # In Kubernetes 1.25, the pod failure policy of a Job had another alpha format.
    jobs = objects_of(TRAIN) if version != "1.25" else {}
    for item in (objects | jobs).values():
        schemas.validate(item, version, strict=True)
    wrong = {**objects["Service", "translation"], "spec": {"port": 1}}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, version, strict=True)


@pytest.mark.parametrize("track", ["stable", "canary"])
def test_the_objects_agree(objects, track):
    from tensorflow_serving.config import model_server_config_pb2

    deployment = objects["Deployment", f"translation-{track}"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels == {"app": "translation", "track": track}
    pod = deployment["template"]["spec"]
    [server] = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert f"--port={ports['grpc']}" in server["args"]
    assert f"--rest_api_port={ports['rest']}" in server["args"]
    [loader] = pod["initContainers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in server["volumeMounts"]} == volumes.keys()
    assert {mount["name"] for mount in loader["volumeMounts"]} <= volumes.keys()
    assert "emptyDir" in volumes["model"]
    assert ("ServiceAccount", pod["serviceAccountName"]) in objects

    files = objects["ConfigMap", "translation"]["data"]
    named = [word.rpartition("/config/")[2] for word in server["args"] if "/config/" in word]
    assert {name.replace("$(TRACK)", track) for name in named} <= files.keys()
    config = text_format.Parse(
        files[f"{track}.config"], model_server_config_pb2.ModelServerConfig()
    )
    [model] = config.model_config_list.config
    for container in (server, loader):
        places = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert places[model.base_path]["name"] == "model"
    assert loader["command"][-1] == model.base_path
    assert list(model.model_version_policy.specific.versions) == [1 + (track == "canary")]
    for probe in ("startupProbe", "readinessProbe"):
        assert server[probe]["httpGet"] == {"path": f"/v1/models/{model.name}", "port": "rest"}

    shared = objects["Service", "translation"]["spec"]["selector"]
    assert shared.items() <= labels.items()
    batching = (FILE.parents[1] / "batching_parameters.txt").read_text()
    settings = [line for line in batching.splitlines() if not line.startswith("#")]
    assert files["batching_parameters.txt"].splitlines() == settings


def test_the_canary_has_a_small_share(objects):
    scaler = objects["HorizontalPodAutoscaler", "translation"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "translation-stable"
    assert "replicas" not in objects["Deployment", "translation-stable"]["spec"]
    assert objects["Deployment", "translation-canary"]["spec"]["replicas"] == 0
    guide = (FILE.parents[1] / "README.md").read_text()
    [tried] = re.findall(r"scale deployment/translation-canary --replicas (\d)", guide)
    assert int(tried) / (int(tried) + scaler["minReplicas"]) <= 0.25
    left = objects["PodDisruptionBudget", "translation"]["spec"]["minAvailable"]
    assert left < scaler["minReplicas"]
