"""Runs the fuzz tests with successive seeds: `python -m tests.fuzz --seed N --minutes M`."""

import argparse
import itertools
import os
import subprocess
import sys
import time


def main() -> int:
    """Runs seeds from `--seed` on until the time is over or a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    words = [sys.executable, "-m", "pytest", "-x", "tests/fuzz"]
    for seed in itertools.count(options.seed):
        left = ends - time.monotonic()
        if left <= 0:
            print(
                f"nothing was found by the seeds {options.seed} to {seed - 1}, the last one cut off"
            )
            return 0
        print(f"seed {seed}", flush=True)
        environment = {**os.environ, "MACARON_TF_FUZZ": "long"}
        try:
            status = subprocess.run(
                [*words, f"--hypothesis-seed={seed}"], env=environment, timeout=left
            ).returncode
        except subprocess.TimeoutExpired:
            continue
        if status:
            return status


if __name__ == "__main__":
    raise SystemExit(main())
