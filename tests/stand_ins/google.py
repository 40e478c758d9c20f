"""A fake version of Google Cloud's command line, `gcloud`."""

import os
import pathlib
import subprocess
import sys

from tests.stand_ins import environment
from tests.stand_ins.call import Call, Problem
from tests.stand_ins.known import IMAGES, RUNTIMES, SERVICES, ZONES


class Google(Call):
    """A fake `gcloud`, with a method for each command."""

    def gcloud(self) -> int | None:
        _, group, *subcommands = self.command.split()
        if group != "storage" and self.machine != "here":
            raise Problem("is for your own machine")
        state = self.state()
        if group != "auth" and self.machine == "here" and "gcloud" not in state.get("login", {}):
            raise Problem("comes before `gcloud auth login`")
        if group not in ("auth", "projects", "billing", "config") and self.machine == "here":
            self.have("config", "project", "configured")
        for command, service in SERVICES.items():
            if self.command.startswith(command):
                self.have("services", service, "enabled service")
                break
        account = self.flags.get("--service-account")
        if account:
            self.have("accounts", account, "service account")
        return getattr(self, "gcloud_" + "_".join([group, *subcommands]).replace("-", "_"))()

    def gcloud_auth_login(self):
        self.keep("login", "gcloud")

    def gcloud_auth_application_default_login(self):
        self.keep("login", "application-default")

    def gcloud_auth_configure_docker(self):
        self.keep("registries", self.arguments[0])

    def gcloud_projects_create(self):
        self.new("projects", self.arguments[0], "project")

    def gcloud_projects_delete(self):
        self.drop("projects", self.arguments[0], "project")

    def gcloud_projects_describe(self):
        self.have("projects", self.arguments[0], "project")
        print(123456789012)

    def gcloud_projects_add_iam_policy_binding(self):
        self.have("projects", self.arguments[0], "project")
        self.member()

    def member(self) -> None:
        member_type, _, name = self.flags["--member"].partition(":")
        if member_type == "serviceAccount":
            self.have("accounts", name, "service account")
        elif member_type != "principal" or "/subject/ns/default/sa/" not in name:
            raise Problem(f"--member {self.flags['--member']} is nobody")
        if not self.flags["--role"].startswith("roles/"):
            raise Problem(f"--role {self.flags['--role']} is no role")

    def gcloud_billing_projects_link(self):
        self.have("projects", self.arguments[0], "project")
        self.keep("billing", self.arguments[0])

    def gcloud_config_set(self):
        self.have("projects", self.arguments[1], "project")
        self.keep("config", *self.arguments)

    def gcloud_services_enable(self):
        self.have("billing", self.state()["config"]["project"], "billed project")
        for service in self.arguments:
            if not service.endswith(".googleapis.com"):
                raise Problem(f"{service} is no service")
            self.keep("services", service)

    def gcloud_iam_service_accounts_create(self):
        project = self.state()["config"]["project"]
        self.new(
            "accounts", f"{self.arguments[0]}@{project}.iam.gserviceaccount.com", "service account"
        )

    def gcloud_beta_quotas_info_list(self):
        pass

    def gcloud_compute_regions_describe(self):
        pass

    def gcloud_storage_buckets_create(self):
        for bucket in self.arguments:
            self.new("buckets", bucket, "bucket", [])
            self.bucket_path(bucket).mkdir(parents=True)

    def gcloud_storage_buckets_add_iam_policy_binding(self):
        self.have("buckets", self.arguments[0], "bucket")
        self.member()
        who = self.flags["--member"]
        self.state(lambda state: state["buckets"][self.arguments[0]].append(who))

    def bucket_path(self, name: str) -> pathlib.Path:
        """Returns the local path of an object.

        Raises a `Problem` if this machine may not read the bucket.
        """
        bucket, _, path = name.removeprefix("gs://").partition("/")
        members = self.have("buckets", f"gs://{bucket}", "bucket")
        if self.machine != "here":
            machine = self.state()["machines"][self.machine.partition("/")[0]]
            if f"serviceAccount:{machine['account']}" not in members:
                raise Problem(f"gs://{bucket} may not be read by this machine")
            if machine["scopes"] != "cloud-platform":
                raise Problem("this machine has no scope for buckets")
        return self.folder / "buckets" / bucket / path

    def gcloud_storage_cp(self):
        import shutil

        *sources, target = (
            self.bucket_path(argument) if argument.startswith("gs://") else pathlib.Path(argument)
            for argument in self.arguments
        )
        if self.arguments[-1].endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if not source.exists():
                raise Problem(f"{source} does not exist")
            if source.is_dir() and not self.flags.keys() & {"--recursive", "-r"}:
                raise Problem(f"{source} is a folder: --recursive")
            path = target / source.name if target.is_dir() else target
            if source.is_dir():  # two hosts of a cluster may upload at once
                shutil.copytree(source, path, dirs_exist_ok=True)
            else:
                shutil.copy(source, path)

    def gcloud_storage_cat(self):
        for argument in self.arguments:
            path = self.bucket_path(argument)
            if not path.exists():
                raise Problem(f"{argument} does not exist")
            sys.stdout.buffer.write(path.read_bytes())

    def rent(self, name: str, machine_type: str, hosts: int = 1, driver: bool = False) -> None:
        zone = self.flags["--zone"]
        if zone not in ZONES.get(machine_type, ()):
            raise Problem(f"{zone} has no {machine_type}")
        machine = {
            "zone": zone,
            "kind": machine_type,
            "hosts": hosts,
            "driver": driver,
            "account": self.flags.get("--service-account"),
            "scopes": self.flags.get("--scopes"),
        }
        import shutil

        self.new("machines", name, "machine", machine)
        for host in range(hosts):  # a new machine is empty
            home = self.folder / "machines" / name / str(host)
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
        self.state(lambda state: state.get("packages", {}).pop(name, None))

    def gcloud_compute_instances_create(self):
        image = f"{self.flags['--image-project']}/{self.flags['--image-family']}"
        if image not in IMAGES:
            raise Problem(f"there is no image {image}")
        machine_type = self.flags["--machine-type"]
        if machine_type.startswith("a2") and self.flags.get("--maintenance-policy") != "TERMINATE":
            raise Problem("a machine with GPUs needs --maintenance-policy TERMINATE")
        for name in self.arguments:
            self.rent(name, machine_type, driver=IMAGES[image] and machine_type.startswith("a2"))

    def gcloud_compute_tpus_tpu_vm_create(self, runtime: str = "--version"):
        accelerator_type = self.flags["--accelerator-type"]
        generation, _, count = accelerator_type.rpartition("-")
        if self.flags[runtime] != RUNTIMES.get(generation):
            raise Problem(f"{accelerator_type} has no runtime {self.flags[runtime]}")
        self.rent(
            self.flags.get("--node-id", self.arguments[0]),
            accelerator_type,
            hosts=1 + (int(count) > 8),
        )

    def gcloud_compute_tpus_queued_resources_create(self):
        self.gcloud_compute_tpus_tpu_vm_create("--runtime-version")

    def gcloud_compute_tpus_queued_resources_describe(self):
        if self.arguments[0] not in self.state().get("machines", {}):
            return 1
        print("ACTIVE")

    def gcloud_compute_tpus_queued_resources_delete(self):
        if self.arguments[0] not in self.state().get("machines", {}):
            return 1
        self.gcloud_compute_instances_delete()

    def gcloud_compute_instances_delete(self):
        for name in self.arguments:
            self.reached(name)
            self.drop("machines", name, "machine")

    gcloud_compute_tpus_tpu_vm_delete = gcloud_compute_instances_delete

    def reached(self, name: str) -> dict:
        machine = self.have("machines", name, "machine")
        if machine["zone"] != self.flags["--zone"]:
            raise Problem(f"{name} is in {machine['zone']}, not in {self.flags['--zone']}")
        return machine

    def gcloud_compute_ssh(self):
        key = pathlib.Path(os.environ["HOME"], ".ssh", "google_compute_engine")
        if not key.exists():
            raise Problem("asks for a passphrase: make a key first")
        machine = self.reached(self.arguments[0])
        if machine["hosts"] > 1 and self.flags.get("--worker") != "all":
            raise Problem(f"{self.arguments[0]} has several hosts: --worker all")
        if "--command" not in self.flags:
            raise Problem("without --command is a shell to type into")
        for host in range(machine["hosts"]):
            if status := self.send(self.arguments[0], host, self.flags["--command"]):
                return status

    gcloud_compute_tpus_tpu_vm_ssh = gcloud_compute_ssh

    def send(self, name: str, host: int, command: str) -> int:
        """Runs a shell command on a rented machine, with only the machine's own environment."""
        home = self.folder / "machines" / name / str(host)
        machine = environment(self.folder, f"{name}/{host}", home)
        machine["CHECKOUT"] = os.environ["CHECKOUT"]
        shell = ["bash", "-u", "-o", "pipefail", "-c", command]
        done = subprocess.run(shell, cwd=home, env=machine, capture_output=True, text=True)
        if "unbound variable" in done.stderr or "not found" in done.stderr:
            raise Problem(f"on {name}: {done.stderr}")
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode

    def gcloud_artifacts_repositories_create(self):
        self.new("repositories", self.arguments[0], "repository")

    def gcloud_artifacts_repositories_describe(self):
        return int(self.arguments[0] not in self.state().get("repositories", {}))

    def gcloud_artifacts_repositories_add_iam_policy_binding(self):
        self.have("repositories", self.arguments[0], "repository")
        self.member()

    def gcloud_container_clusters_create_auto(self):
        self.new("clusters", self.arguments[0], "cluster")

    def gcloud_container_clusters_get_credentials(self):
        self.have("clusters", self.arguments[0], "cluster")
        self.keep("contexts", self.arguments[0])

    def gcloud_container_clusters_delete(self):
        self.drop("clusters", self.arguments[0], "cluster")
        self.drop("contexts", self.arguments[0], "context")
