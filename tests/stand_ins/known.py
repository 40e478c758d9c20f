"""Commands, flags and services of the real programs, from reference pages of 2025 and 2026."""

# Lines of command | number of arguments | flags. A flag that takes a value ends with `=`, and a
# required flag begins with `!`.
FLAGS = """
gcloud auth login | 0 |
gcloud auth application-default login | 0 |
gcloud auth configure-docker | 1 |
gcloud projects create | 1 | --name=
gcloud projects delete | 1 |
gcloud projects describe | 1 |
gcloud projects add-iam-policy-binding | 1 | !--member= !--role= --condition=
gcloud billing projects link | 1 | !--billing-account=
gcloud config set | 2 |
gcloud services enable | 1+ | --async
gcloud iam service-accounts create | 1 | --display-name= --description=
gcloud storage buckets create | 1+ | --location= --uniform-bucket-level-access
gcloud storage buckets add-iam-policy-binding | 1 | !--member= !--role= --condition=
gcloud storage cp | 2+ | --recursive -r --no-clobber
gcloud storage cat | 1+ | --range=
gcloud beta quotas info list | 0 | !--service= --limit= --filter=
gcloud compute regions describe | 1 |
gcloud compute instances create | 1+ | !--zone= !--machine-type= !--image-family=
  !--image-project= --boot-disk-size= --boot-disk-type= --maintenance-policy=
  --provisioning-model= --service-account= --scopes= --metadata= --accelerator=
gcloud compute instances delete | 1+ | !--zone=
gcloud compute ssh | 1 | !--zone= --command= --tunnel-through-iap --ssh-key-file=
gcloud compute tpus tpu-vm create | 1 | !--zone= !--accelerator-type= !--version=
  --service-account= --scopes= --spot --network= --metadata= --async
gcloud compute tpus tpu-vm delete | 1 | !--zone= --async
gcloud compute tpus tpu-vm ssh | 1 | !--zone= --worker= --command= --batch-size=
  --tunnel-through-iap
gcloud compute tpus queued-resources create | 1 | !--zone= !--accelerator-type=
  !--runtime-version= --node-id= --service-account= --scopes= --spot --network=
gcloud compute tpus queued-resources describe | 1 | !--zone=
gcloud compute tpus queued-resources delete | 1 | !--zone= --force --async
gcloud artifacts repositories create | 1 | !--repository-format= --location= --description=
gcloud artifacts repositories describe | 1 | --location=
gcloud artifacts repositories add-iam-policy-binding | 1 | !--member= !--role= --location=
gcloud container clusters create-auto | 1 | --location= --release-channel=
gcloud container clusters get-credentials | 1 | --location=
gcloud container clusters delete | 1 | --location= --async
ssh | 1+ | -tt -p= -i=
ssh-keygen | 0 | -q -t= -N= -f= -C=
docker build | 1 | --file= --build-arg= --tag= -t= --build-context=
docker push | 1 |
docker run | 1+ | --rm --detach --publish= --volume= --env= --name= --gpus=
docker stop | 1+ | --time=
docker compose up | 0 | --detach --wait
docker compose down | 0 | --volumes
kubectl create serviceaccount | 1 | --namespace=
kubectl apply | 0 | !--filename= --selector=
kubectl logs | 1 | --follow --pod-running-timeout= --container=
kubectl wait | 1+ | --for= --timeout=
kubectl scale | 1+ | --replicas=
kubectl rollout restart | 1+ |
kubectl rollout status | 1+ | --timeout=
curl | 1 | --silent --fail --data= --retry= --retry-delay= --retry-all-errors
apt-get update | 0 | -o= -y
apt-get install | 1+ | -o= -y --no-install-recommends
tmux new-session | 1 | -d -s=
tmux has-session | 0 | -t=
tensorboard | 0 | !--logdir= --port=
nvidia-smi | 0 |
git archive | 1 | --format= --prefix= --output=
sleep | 1 |
venv | 1 |
pip install | 0+ | --quiet -r= --requirement= --no-deps
pip uninstall | 1+ | --yes -y
uv venv | 1 | --clear --seed --python=
uv pip install | 0+ | --python= -r= --no-deps
uv pip uninstall | 1+ | --python=
"""
GCLOUD_WIDE = "--project= --quiet --format= --flatten= --account= --verbosity="
SERVICES = {  # the first prefix that matches counts; storage is always enabled
    "gcloud compute tpus": "tpu.googleapis.com",
    "gcloud compute": "compute.googleapis.com",
    "gcloud iam": "iam.googleapis.com",
    "gcloud artifacts": "artifactregistry.googleapis.com",
    "gcloud container": "container.googleapis.com",
    "gcloud beta quotas": "cloudquotas.googleapis.com",
}
V5E = ["us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a", "europe-west4-b"]
ZONES = {
    **{f"v5litepod-{chips}": V5E for chips in (1, 4, 8, 16, 32, 64, 128, 256)},
    **{f"v4-{8 * 2**power}": ["us-central2-b"] for power in range(11)},
    "a2-highgpu-4g": ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"],
    "n2-standard-32": ["us-central1-a", "us-west4-a", "europe-west4-b"],
}
RUNTIMES = {"v4": "tpu-ubuntu2204-base", "v5litepod": "v2-alpha-tpuv5-lite"}
IMAGES = {  # with Python 3.11 or newer; True means with NVIDIA's driver
    "ubuntu-os-cloud/ubuntu-2404-lts-amd64": False,
    "ubuntu-os-accelerator-images/ubuntu-accelerator-2404-amd64-with-nvidia-580": True,
}
PUBLIC = ("tensorflow/serving:2.20.0",)
PROGRAMS = "apt-get curl docker gcloud git kubectl make nvidia-smi python python3 sleep ssh"
PROGRAMS += " ssh-keygen sudo tensorboard tmux"
FILES = ("requirements.txt", "experiments/cloud")  # what `git archive` packs from the checkout
