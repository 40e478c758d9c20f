"""Trains, evaluates and serves a small translation model in three to six minutes (`make demo`).

The demo downloads a corpus, trains a small Macaron transformer and prints its BLEU and ten
translations with references. It then exports the model, starts a server, and sends the server a
request over REST. To resume an interrupted demo, give the same command again.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import threading
import time
import urllib.request

from experiments import command_line as cli
from macaron_tf.cli.launcher import main as macaron
from macaron_tf.errors import UserError, check_packages, needed

SHOWN = 10
# Sentences of the training text.
SENTENCE = "Device could not be found."
OTHER_SENTENCE = "The light was not found."


def run(options: argparse.Namespace) -> None:
    check_packages("train")
    with needed("the model server of the demo"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    from experiments import registry
    from macaron_tf.runs.run import Run

    began, path, settings = time.monotonic(), options.run, options.set

    _stage(1, "train: a Macaron on the user interface text of a home automation program")
    _macaron("train", "demo", path, *(word for text in settings for word in ("--set", text)))
    # A slow machine writes fewer checkpoints in training.max_minutes.
    if Run.open(path).regular_steps():
        _macaron("average", path)

    _stage(2, "evaluate: BLEU on held-out text, and some translations")
    data, scores = registry.load("demo", settings=settings).data, pathlib.Path(path, "test")
    _macaron("evaluate", path, "--split", data.test_split, "--output", str(scores))
    _show(data, max(scores.glob("*.json"), key=lambda file: file.stat().st_mtime))

    _stage(3, "export: a SavedModel whose inputs and outputs are text")
    _macaron("export", path, f"{path}/served")

    _stage(4, "serve: the REST API of TensorFlow Serving")
    _serve(f"{path}/served")

    print(
        f"\nDone in {(time.monotonic() - began) / 60:.1f} minutes. What to try next:\n"
        f"  . .venv/bin/activate                   activates the project's environment\n"
        f'  echo "{OTHER_SENTENCE}" | macaron predict {path}\n'
        f"  macaron serve {path}/served        starts the server\n"
        f"  tensorboard --logdir {path}            shows curves and sample translations\n"
        f"  macaron demo --run runs/longer --set training.max_minutes=15\n"
        f"  macaron demo --run runs/french --set data.target_language=fr\n"
        f"  macaron train --help   explains other recipes and your own data"
    )


def _stage(number: int, text: str) -> None:
    print(f"\n[{number}/4] {text}", flush=True)


def _macaron(*arguments: str) -> None:
    print(f"$ macaron {shlex.join(arguments)}", flush=True)
    if macaron([*arguments]):
        raise UserError(f"`macaron {arguments[0]}` failed: read the error message above")


def _show(data, file: pathlib.Path) -> None:
    """Prints translations of lines of medium length that are evenly spread over the text."""
    from macaron_tf.data.sources.readers import read_pairs

    pairs = read_pairs(data.source, data.test_split, *data.languages)
    hypotheses = json.loads(file.read_text(encoding="utf-8"))["hypotheses"]
    lines = [
        line for line in zip(pairs, hypotheses, strict=True) if 4 <= len(line[0][0].split()) <= 14
    ]
    for (source, reference), translation in lines[:: max(len(lines) // SHOWN, 1)][:SHOWN]:
        print(
            f"\n  source       {source}\n  reference    {reference}\n  translation  {translation}"
        )


def _serve(served: str) -> None:
    """Starts the server in a subprocess, sends a sentence to the server, and stops the server."""
    command = [sys.executable, "-m", "macaron_tf", "serve", served, "--name", "demo", "--port", "0"]
    log = pathlib.Path(served).parent / "server.log"
    with log.open("w") as stderr:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        # The timer kills the server after two minutes, so the demo cannot hang.
        alarm = threading.Timer(120, server.kill)
        alarm.start()
        try:
            ready = server.stdout.readline().strip()
            if not ready:
                raise UserError(f"the server did not start: read the error message in {log}")
            print(ready)
            url = ready.split()[-1]
            print(f"\n  request over REST: {SENTENCE}\n  response of the server:", flush=True)
            body = json.dumps({"instances": [SENTENCE]}).encode()
            with urllib.request.urlopen(f"{url}/v1/models/demo:predict", body, 60) as response:
                print(json.load(response)["predictions"][0]["translations"][0])
        finally:
            alarm.cancel()
            server.terminate()
            server.wait()


main = cli.single_program(
    "macaron demo",
    __doc__,
    "experiments.demo:run",
    cli.local_path_argument(
        "--run DIR", "folder for the run (default: %(default)s)", default="runs/demo"
    ),
    cli.settings("training.max_minutes=5 or data.target_language=fr"),
)
