#!/bin/bash
# Starts a training run with one worker process per machine, and waits until all workers end.
#
#   bash experiments/cloud/launch_multi_worker.sh 'HOST0 HOST1' 'COMMAND' [ZONE]
#
# The script runs COMMAND on each host by ssh, or by `gcloud compute ssh` if ZONE is given. COMMAND
# must end in `--strategy multi_worker`. The hosts must reach each other by these names, on port
# 12345 or $PORT. If a worker fails, the script stops all workers, because the others would wait
# forever. Running the script again continues from the last checkpoint.
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
  # With -tt, the remote process receives SIGHUP when the local ssh process ends.
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
    echo "error: a worker ended with status $status: the other workers are stopped" >&2
    exit $status
  fi
done
