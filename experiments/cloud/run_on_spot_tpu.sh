#!/bin/bash
# Runs a command on a spot TPU VM until the command ends. Creates a new VM after each preemption.
#
#   bash experiments/cloud/run_on_spot_tpu.sh NAME ZONE ACCELERATOR VERSION 'COMMAND'
#
# COMMAND must resume where it was interrupted, as `train` does, so keep its run and corpus in a
# bucket. The environment variable SETUP is a command that runs first on each new VM. The
# environment variable ACCOUNT is the email address of a service account for the VM.
set -u
if [ $# -ne 5 ]; then
  sed -n 's/^# \{0,1\}//; 2,8p' "$0" >&2
  exit 2
fi
name=$1 zone=$2 accelerator=$3 version=$4 command=$5
poll=${POLL_SECONDS:-30}

tpus() { gcloud compute tpus "$@" --zone "$zone"; }
state() { tpus queued-resources describe "$name" --format 'value(state.state)' 2>/dev/null; }
remote() { tpus tpu-vm ssh "$name" --worker all --command "$1"; }

while true; do
  if [ "$(state)" != ACTIVE ]; then
    tpus queued-resources delete "$name" --force --quiet >/dev/null 2>&1
    tpus queued-resources create "$name" --node-id "$name" --accelerator-type "$accelerator" \
      --runtime-version "$version" --spot \
      ${ACCOUNT:+--service-account "$ACCOUNT" --scopes cloud-platform} || exit
    until [ "$(state)" = ACTIVE ]; do
      case "$(state)" in FAILED | SUSPENDED) break ;; esac
      sleep "$poll"
    done
    [ "$(state)" = ACTIVE ] || continue
    remote "${SETUP:-true}" || { echo "error: SETUP failed on $name" >&2; exit 1; }
  fi
  remote "$command" && break
  status=$?
  # After a preemption, the state changes within two minutes. If the VM is still active, the command
  # itself failed, and repeating the command would not help.
  sleep $((4 * poll))
  if [ "$(state)" = ACTIVE ]; then
    echo "error: the command failed on $name with status $status: the VM is kept for inspection" >&2
    exit "$status"
  fi
done
tpus queued-resources delete "$name" --force --quiet
