"""Tests that run the guides' shell blocks in order by bash, with fake versions of programs."""

import json
import pathlib
import re
import shlex
import subprocess

import pytest
import yaml

from tests import stand_ins
from tests.test_docs import accepted  # noqa: F401

pytestmark = pytest.mark.thorough  # each guide starts hundreds of processes

ROOT = pathlib.Path(__file__).parents[1]
CLOUD = ROOT / "experiments" / "cloud"
GUIDES = {"cloud": CLOUD / "README.md"}
BUCKET = "gs://my-project-macaron"


def blocks(text: str) -> str:
    """Returns the shell code of a page: lines indented by four spaces, outside of fences."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    code_blocks = re.findall(r"(?:\A|\n\n)((?:(?: {4}.*)?\n)+)", text)
    return "\n".join(re.sub("^ {4}", "", block, flags=re.M) for block in code_blocks)


class Played:
    """A guide that was run: its exit status, problems, calls and the account's final state."""

    def __init__(self, folder: pathlib.Path, script: str, before: dict):
        environment = stand_ins.install(folder, ROOT, before)
        self.folder = folder
        shell = ["bash", "-e", "-u", "-o", "pipefail", "-c", script]
        self.done = subprocess.run(
            shell, cwd=folder / "work", env=environment, capture_output=True, text=True, timeout=300
        )
        self.problems = (folder / "problems").read_text()
        self.calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
        self.state = json.loads((folder / "state.json").read_text())

    def project_calls(self) -> list[tuple[str, list[str]]]:
        """Returns (machine, arguments) of every `python -m` call to this project."""
        calls = [(call["machine"], call["arguments"]) for call in self.calls]
        return [
            (machine, command_line[2:])
            for machine, command_line in calls
            if command_line[1:2] == ["-m"]
            and command_line[2].split(".")[0] in ("experiments", "export")
        ]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Returns `play(name)`, which runs a guide once and returns the result."""
    played_guides = {}

    def play(name: str) -> Played:
        if name not in played_guides:
            script = blocks(GUIDES[name].read_text(encoding="utf-8"))
            played_guides[name] = Played(tmp_path_factory.mktemp(name) / "stand_ins", script, {})
        return played_guides[name]

    return play


@pytest.mark.parametrize("name", GUIDES)
def test_no_step_of_a_guide_fails(name, played):
    guide = played(name)
    assert not guide.problems and guide.done.returncode == 0, guide.problems + guide.done.stderr
    left = {resource: guide.state.get(resource) for resource in ("machines", "clusters")}
    assert not any(left.values()), f"not deleted: {left}"


@pytest.mark.parametrize("name", GUIDES)
def test_the_parsers_accept_the_commands(name, played, accepted):  # noqa: F811
    commands = [shlex.join(arguments) for _, arguments in played(name).project_calls()]
    assert len(commands) > 4
    assert not [command for command in commands if not accepted(command)]


def test_machines_are_told_of_one_another(played):
    """In each launch on two hosts, each host gets the two addresses and the host's index."""
    clusters = [call["cluster"] for call in played("cloud").calls if "cluster" in call]
    workers = {"worker": ["gpus-0:12345", "gpus-1:12345"]}
    assert all(cluster["cluster"] == workers for cluster in clusters)
    assert sorted(cluster["task"]["index"] for cluster in clusters) == [0, 0, 1, 1]


def test_the_packages_of_devices_are_the_pinned_versions():
    script = (CLOUD / "set_up.sh").read_text()
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.M))
    installed = re.findall(r"'(tensorflow|jax|tensorflow-tpu)(?:\[.*?\])?==([\d.]+)'", script)
    assert len(installed) == 4
    assert all(version == pins[name.removesuffix("-tpu")] for name, version in installed)
    documented = re.findall(r"`([a-z-]+(?:\[.*?\])?==[\d.]+)`", GUIDES["cloud"].read_text())
    assert len(documented) == 6 and all(f"'{requirement}'" in script for requirement in documented)


@pytest.mark.parametrize(
    ("devices", "selector", "resource"),
    [
        ("gpu", {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}, "nvidia.com/gpu"),
        (
            "tpu",
            {
                "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
                "cloud.google.com/gke-tpu-topology": "2x4",
            },
            "google.com/tpu",
        ),
    ],
)
def test_a_job_trains_on_its_devices(devices, selector, resource, played, accepted):  # noqa: F811
    guide = played("cloud")
    applied = (guide.folder / f"applied-devices={devices}.yaml").read_text()
    documents = list(yaml.safe_load_all(applied))
    objects = [item for document in documents for item in document.get("items", [document])]
    [job] = [item for item in objects if item["metadata"]["labels"]["devices"] == devices]
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["nodeSelector"] == selector and [*container["resources"]["limits"]] == [resource]
    assert container["image"] in guide.state["pushed"]
    assert container["image"].endswith(f":{devices}")
    command = shlex.join(container["args"])
    assert "BUCKET" not in command and accepted(command)
    assert f"sa/{pod['serviceAccountName']}" in guide.state["buckets"][BUCKET][-1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("export REGION=us-central1 ZONE=", "export ZONE=", "REGION: unbound variable"),
        ("ZONE=us-central1-a", "ZONE=us-central2-b", "us-central2-b has no n2-standard-32"),
        ("--boot-disk-size 200GB", "--disk-size 200GB", "has no flag --disk-size"),
        (" iam.googleapis.com", "", "no enabled service iam.googleapis.com"),
        ('on_vm prepare "$SETUP cpu"', 'eval "$SETUP cpu"', "is for a rented machine"),
        ("$BUCKET/corpora/512 --data", "\\$BUCKET/corpora/512 --data", "BUCKET: unbound variable"),
        (" --scopes cloud-platform", "", "no scope for buckets"),
        ("python3-venv g++", "g++", "needs the package python3-venv"),
    ],
)
def test_what_is_wrong_is_found(old, new, error, tmp_path):
    script = blocks(GUIDES["cloud"].read_text(encoding="utf-8"))
    assert old in script
    wrong = Played(tmp_path / "stand_ins", script.replace(old, new, 1), {})
    assert wrong.done.returncode and error in wrong.problems + wrong.done.stderr
