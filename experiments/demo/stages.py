"""The four stages of the demo: training, evaluation, export and serving."""

import argparse
import json
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request

from experiments import registry
from experiments.evaluation.translation import average_run
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.errors import UserError, check_packages, needed
from macaron_tf.evaluation.translation import evaluate_translations
from macaron_tf.runs.run import Inputs
from macaron_tf.runs.trainer import fit
from macaron_tf.runs.translation import TranslationRun
from macaron_tf.runs.translation_start import TranslationStart

SHOWN = 10
# Sentences of the training text.
SENTENCE = "Device could not be found."
OTHER_SENTENCE = "The light was not found."


def run(options: argparse.Namespace) -> None:
    check_packages("train")
    with needed("the model server of the demo"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    began = time.monotonic()
    path, recipe = pathlib.Path(options.run), registry.load("demo", settings=options.set)

    _stage(1, "train: a Macaron on the user interface text of a home automation program")
    result = fit(TranslationRun(path, recipe, None).plan(TranslationStart(), Inputs()))
    print(f"stopped after step {result.step:,}: {result.reason}")
    if result.reason == "max_minutes":
        print(
            f"warning: {recipe.training.max_minutes:g} minutes were enough for {result.step:,} of "
            f"{recipe.training.max_steps:,} updates on this machine, so the translations are worse "
            "than they could be: to train longer, give another --run and --set "
            "training.max_minutes=15",
            file=sys.stderr,
        )
    trained = TranslationRun.open(path)
    # A slow machine writes fewer checkpoints in training.max_minutes.
    if regular := trained.regular_steps():
        average_run(trained, min(recipe.average_last, len(regular)))

    _stage(2, "evaluate: BLEU on held-out text, and some translations")
    _score(trained)

    _stage(3, "export: a SavedModel whose inputs and outputs are text")
    served = path / "served"
    _command("export", str(path), str(served))

    _stage(4, "serve: the REST API of TensorFlow Serving")
    _serve(served)

    print(
        f"\nDone in {(time.monotonic() - began) / 60:.1f} minutes. What to try next:\n"
        f"  . .venv/bin/activate                   activates the project's environment\n"
        f'  echo "{OTHER_SENTENCE}" | macaron predict {path}\n'
        f"  macaron serve {served}        starts the server\n"
        f"  tensorboard --logdir {path}            shows curves and sample translations\n"
        f"  macaron demo --run runs/french --set data.target_language=fr\n"
        f"  macaron train --help   explains other recipes and your own data"
    )


def _stage(number: int, text: str) -> None:
    print(f"\n[{number}/4] {text}", flush=True)


def _command(name: str, *arguments: str) -> None:
    """Runs a command of `export` in a subprocess, since `experiments` must not import `export`."""
    if subprocess.run([sys.executable, "-m", "macaron_tf", name, *arguments]).returncode:
        raise UserError(f"`macaron {name}` failed: read the error message above")


def _score(run: TranslationRun) -> None:
    data = run.recipe.data
    pairs = read_pairs(data.source, data.test_split, data.source_language, data.target_language)
    sources, references = [list(side) for side in zip(*pairs, strict=True)]
    hypotheses = run.translator().translate(sources).best
    print(evaluate_translations(hypotheses, references, run.recipe.metric))
    # Selects lines of medium length that are evenly spread over the text.
    shown_indices = [index for index, line in enumerate(sources) if 4 <= len(line.split()) <= 14]
    for index in shown_indices[:: max(len(shown_indices) // SHOWN, 1)][:SHOWN]:
        print(f"\n  source       {sources[index]}\n  reference    {references[index]}")
        print(f"  translation  {hypotheses[index]}")


def _serve(served: pathlib.Path) -> None:
    """Starts the server in a subprocess, sends a sentence to the server, and stops the server."""
    command = [sys.executable, "-m", "macaron_tf", "serve", str(served), "--name", "demo"]
    command += ["--port", "0"]
    log = served.parent / "server.log"
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
