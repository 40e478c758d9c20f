#!/bin/bash
# Installs pinned Python packages for one type of device into a new virtual environment, .venv.
#
#   bash experiments/cloud/set_up.sh cpu | gpu | tpu | jax-gpu | jax-tpu
#
# The script installs Python 3.11 by uv, and replaces an existing .venv. After the installation, run
# commands as `.venv/bin/python -m experiments...` in the root of the checkout.
set -eu
cd "$(dirname "$0")/../.."
alone=()
case ${1:-} in
  cpu) packages=() ;;
  gpu) packages=('tensorflow[and-cuda]==2.20.0') ;;
  jax-gpu) packages=('jax[cuda12]==0.10.2') ;;
  # tensorflow-tpu replaces tensorflow, which other packages require by name. tensorflow-tpu needs
  # libtpu~=0.0.14, while JAX 0.10.2 needs libtpu 0.0.42.
  tpu) packages=('libtpu==0.0.14') alone=('tensorflow-tpu==2.20.0') ;;
  jax-tpu) packages=('jax[tpu]==0.10.2' 'libtpu==0.0.42.1') ;;
  *)
    sed -n 's/^# \{0,1\}//; 2,7p' "$0" >&2
    exit 2
    ;;
esac

python3 -m venv .venv-uv
.venv-uv/bin/python -m pip install --quiet uv
uv() { .venv-uv/bin/python -m uv "$@"; }
uv venv --clear --seed --python 3.11 .venv
python=.venv/bin/python
uv pip install --python $python -r requirements.txt "${packages[@]}"
if [ ${#alone[@]} -gt 0 ]; then
  uv pip uninstall --python $python tensorflow
  uv pip install --python $python --no-deps "${alone[@]}"
fi
