#!/bin/bash
# Starts one training as a process a machine, each told of all (TF_CONFIG), and waits for them.
#
#   bash experiments/cloud/launch_multi_worker.sh 'HOST0 HOST1' 'COMMAND' [ZONE]
#
# COMMAND is run by ssh on each host, or by `gcloud compute ssh` where a ZONE is given, and ends in
# `--strategy multi_worker`. The hosts must reach one another by these names, on port 12345 (PORT).
# When a worker fails the others are ended too: they would wait for it. The same command goes on
# from the last checkpoint.
set -u
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
  sed -n 's/^# \{0,1\}//; 2,9p' "$0" >&2
  exit 2
fi
read -ra hosts <<<"$1"
port=${PORT:-12345}
addresses=$(printf '"%s:'"$port"'",' "${hosts[@]}")

pids=()
for index in "${!hosts[@]}"; do
  config="{\"cluster\": {\"worker\": [${addresses%,}]}, \"task\": {\"type\": \"worker\", \"index\": $index}}"
  command="export TF_CONFIG='$config'; $2"
  # -tt: the remote process gets a hang-up when this one ends.
  if [ $# -eq 3 ]; then
    gcloud compute ssh "${hosts[$index]}" --zone "$3" --command "$command" -- -tt &
  else
    ssh -tt "${hosts[$index]}" "$command" &
  fi
  pids+=($!)
done
trap 'kill "${pids[@]}" 2>/dev/null' EXIT

for _ in "${pids[@]}"; do
  wait -n
  status=$?
  if [ $status -ne 0 ]; then
    echo "error: a worker ended with status $status; ending the others" >&2
    exit $status
  fi
done
