"""Entry point of the fake programs: `main([PROGRAM, *ARGUMENTS])` in a separate process."""

import json
import os
import pathlib
import subprocess
import sys
import time

from tests.stand_ins import write_program
from tests.stand_ins.call import Problem
from tests.stand_ins.google import Google
from tests.stand_ins.known import FILES, PUBLIC


class Programs(Google):
    """Fake versions of `gcloud` and all other programs, with a method for each program."""

    def here(self) -> None:
        if self.machine != "here":
            raise Problem("is for your own machine")

    def ssh(self):
        raise Problem("reaches no machine of Google's by that name: `gcloud compute ssh`")

    def ssh_keygen(self):
        self.here()
        path = pathlib.Path(self.flags["-f"])
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def git(self):
        self.here()
        import tarfile

        checkout = pathlib.Path(os.environ["CHECKOUT"])
        with tarfile.open(self.flags["--output"], "w:gz") as archive:
            for name in FILES:
                archive.add(checkout / name, self.flags["--prefix"] + name)

    def docker(self):
        self.here()
        action = self.command.split()[1]
        return getattr(self, f"docker_{action}")()

    def docker_build(self):
        for name in ("--file", "--build-context"):
            path = self.flags.get(name, self.arguments[0]).rpartition("=")[2]
            if not pathlib.Path(path).exists():
                raise Problem(f"{name} {path} does not exist")
        self.keep("images", self.flags.get("--tag") or self.flags["-t"])

    def docker_push(self):
        self.have("images", self.arguments[0], "image")
        host, _, path = self.arguments[0].partition("/")
        self.have("registries", host, "registry that docker may write to,")
        self.have("repositories", path.split("/")[1], "repository")
        self.keep("pushed", self.arguments[0])

    def docker_run(self):
        image = self.arguments[0]
        if image not in PUBLIC:
            self.have("images", image, "image")
        self.serve(self.flags["--name"], ["8500", "8501"])

    def serve(self, name: str, ports: list[str]) -> None:
        """Records that a service listens on ports; raises a `Problem` if a port is taken."""
        if taken := self.taken() & set(ports):
            raise Problem(f"port {min(taken)} is taken already")
        self.keep("ports", name, ports)

    def taken(self) -> set[str]:
        return {port for ports in self.state().get("ports", {}).values() for port in ports}

    def docker_stop(self):
        for name in self.arguments:
            self.drop("ports", name, "container")

    def docker_compose(self):
        """Records that the service in COMPOSE_FILE starts or stops.

        Raises a `Problem` if the path in COMPOSE_FILE or MODEL_DIR does not exist.
        """
        for name in ("COMPOSE_FILE", "MODEL_DIR"):
            if not pathlib.Path(os.environ.get(name, "")).exists() or name not in os.environ:
                raise Problem(f"needs {name}")
        if "up" in self.command:
            self.serve("compose", ["8500", "8501"])
        else:
            self.drop("ports", "compose", "container")

    def kubectl(self):
        self.here()
        if not self.state().get("contexts"):
            raise Problem("has no cluster: `gcloud container clusters get-credentials`")
        if self.command == "kubectl apply":
            filename = self.flags["--filename"]
            text = sys.stdin.read() if filename == "-" else pathlib.Path(filename).read_text()
            selector = self.flags.get("--selector", "all")
            (self.folder / f"applied-{selector}.yaml").write_text(text)

    def curl(self):
        port = self.arguments[0].partition("localhost:")[2].partition("/")[0]
        tries = int(self.flags.get("--retry", 0))
        while port not in self.taken():
            if not tries:
                raise Problem(f"nothing listens at {self.arguments[0]}")
            tries -= 1
            time.sleep(0.1)
        if "--data" in self.flags:
            json.loads(self.flags["--data"])

    def tensorboard(self):
        self.bucket_path(self.flags["--logdir"])

    def sleep(self):
        self.state(lambda state: state.update(slept=state.get("slept", 0) + 1))
        if self.state()["slept"] > 20:
            raise Problem("what is waited for does not come")

    # Programs of a rented machine.

    def rented(self) -> str:
        if self.machine == "here":
            raise Problem("is for a rented machine")
        return self.machine.partition("/")[0]

    def apt_get(self):
        if os.environ.get("ROOT") != "1":
            raise Problem("needs sudo")
        if self.command == "apt-get update":
            self.keep("updated", self.machine)
            return
        self.have("updated", self.machine, "list of packages (apt-get update) of")
        name = self.rented()
        self.state(
            lambda state: (
                state.setdefault("packages", {}).setdefault(name, []).extend(self.arguments)
            )
        )

    def installed(self, package: str) -> None:
        if package not in self.state().get("packages", {}).get(self.rented(), ()):
            raise Problem(f"needs the package {package}")

    def tmux(self):
        self.installed("tmux")
        if self.command == "tmux has-session":
            return 1  # the session's command has ended
        self.new("sessions", f"{self.machine}:{self.flags['-s']}:{self.arguments[0]}", "session")
        shell = ["bash", "-u", "-o", "pipefail", "-c", self.arguments[0]]
        return subprocess.run(shell).returncode

    def nvidia_smi(self):
        if not self.state()["machines"][self.rented()]["driver"]:
            raise Problem("needs a GPU and an image with its driver")

    # Python, with the modules that the guides call.

    def venv(self):
        if self.machine != "here":
            self.installed("python3-venv")
        write_program(pathlib.Path(self.arguments[0], "bin", "python"), "python-of-environment")

    def pip(self):
        for name in ("-r", "--requirement"):
            if name in self.flags and not pathlib.Path(self.flags[name]).exists():
                raise Problem(f"{self.flags[name]} does not exist")

    def uv(self):
        if self.command == "uv venv":
            write_program(pathlib.Path(self.arguments[0], "bin", "python"), "python-of-environment")
            return
        if not pathlib.Path(self.flags["--python"]).exists():
            raise Problem(f"{self.flags['--python']} does not exist")
        self.pip()


def python(arguments: list[str]) -> int:
    """Simulates the `python` of an environment, called with `-m MODULE`, `-c CODE` or a file."""
    first, *after_flag = arguments
    if first == "-c":
        compile(after_flag[0], "-c", "exec")
    elif first == "-m" and after_flag[0] in ("venv", "pip", "uv"):
        return Programs(after_flag).run()
    elif first == "-m":
        account = Programs(["sleep", "0"])
        module = pathlib.Path(*after_flag[0].split("."))
        checkout = pathlib.Path(os.environ["CHECKOUT"])
        if not pathlib.Path(module.parts[0]).is_dir():
            raise Problem(f"-m {after_flag[0]}: not in the checkout")
        if not ((checkout / module).is_dir() or (checkout / module).with_suffix(".py").exists()):
            raise Problem(f"there is no module {after_flag[0]}")
        if after_flag[0] == "export.serve":
            account.serve(after_flag[0], ["8501", "8500"])
        if after_flag[0] == "export.saved_model":
            version = pathlib.Path(
                after_flag[2], str(1 + len(list(pathlib.Path(after_flag[2]).glob("*"))))
            )
            version.mkdir(parents=True)
        for argument in after_flag:  # buckets must be readable; a run leaves a log
            for part in argument.split("="):
                if part.startswith("gs://"):
                    account.bucket_path(part).mkdir(parents=True, exist_ok=True)
        if after_flag[1:2] == ["train"]:
            (account.bucket_path(after_flag[3]) / "metrics.jsonl").touch()
    elif not pathlib.Path(first).exists():
        raise Problem(f"there is no file {first}")
    return 0


def make(arguments: list[str]) -> int:
    """Simulates `make`: writes the virtual environment that a target creates."""
    folders = {"setup": ".venv", "test-beam": ".venv-beam", "test-tpu": ".venv-tpu"}
    [target] = arguments
    if target not in folders:
        raise Problem(f"make {target} is not expected here")
    folder = pathlib.Path(folders[target])
    write_program(folder / "bin" / "python", "python-of-environment")
    text = f'PATH="{folder.resolve() / "bin"}:$PATH"\n'
    (folder / "bin" / "activate").write_text(text)
    return 0


def main(command_line: list[str]) -> int:
    """Records a call and runs the fake program; returns the exit status."""
    folder, (program, *arguments) = pathlib.Path(os.environ["STAND_IN"]), command_line
    call = {"machine": os.environ["MACHINE"], "arguments": command_line}
    if "TF_CONFIG" in os.environ:
        call["cluster"] = json.loads(os.environ["TF_CONFIG"])
    with open(folder / "calls", "a") as file:
        file.write(json.dumps(call) + "\n")
    try:
        if program == "sudo":
            if os.environ["MACHINE"] == "here":
                raise Problem("is for a rented machine")
            return subprocess.run(arguments, env=os.environ | {"ROOT": "1"}).returncode
        if program == "python3" and arguments[:2] == ["-m", "venv"]:
            return Programs(arguments[1:]).run()
        if program in ("python", "python3"):
            raise Problem("outside of an environment")
        if program == "python-of-environment":
            return python(arguments)
        if program == "make":
            return make(arguments)
        return Programs(command_line).run()
    except Problem as problem:
        line = f"{os.environ['MACHINE']}: {' '.join(command_line)}: {problem}\n"
        with open(folder / "problems", "a") as file:
            file.write(line)
        print(line, file=sys.stderr, end="")
        return 1
