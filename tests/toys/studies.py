"""Toy corpora, and fake commands for studies, which only write output files."""

import json
import math
import pathlib
import pkgutil

import pytest

from experiments import registry, studies
from experiments.commands import main
from macaron_tf.cli import arguments
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import UserError
from macaron_tf.runs.run import DIVERGED
from macaron_tf.runs.versions import versions
from macaron_tf.text import SentencePieceVocabulary
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from macaron_tf.training.checkpoints import CheckpointDirectory
from tests.toys.pretraining import prepare, toy_settings

VOCABULARY = WordPieceVocabulary((*SPECIAL_PIECES, "a"))


def write(path, *lines: dict) -> None:
    """Writes `lines` to a file, one JSON object per line."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


def pretrain(options) -> None:
    recipe, run = registry.load(options.recipe, settings=options.set), pathlib.Path(options.run)
    training = recipe.training
    last, rate = training.max_steps, training.learning_rate
    if rate > 1:
        write(run / DIVERGED, {"reason": "19 updates in a row"})
        raise UserError("diverged")
    lines = []
    for step in dict.fromkeys((last // 2, last)):
        better = 1 + 0.1 * training.seed if "strang" in run.name else 0
        loss = 5 - step / last - training.seed - better
        loss += 0.1 * abs(math.log2(rate / 0.02))  # lowest at a learning rate of 0.02
        line = {"step": step, "loss": loss}
        metrics = ("nll", "perplexity", "accuracy", "pair_accuracy", "replaced_recall")
        lines.append(line | dict.fromkeys(metrics, 0.5))
    write_run(run, recipe, VOCABULARY, *lines)
    if (pathlib.Path(options.corpus) / "corpus.json").exists():
        text = PretrainingCorpus.open(options.corpus).fingerprint
        write(run / "data.json", {"sha256": text, "vocabulary": VOCABULARY.hash})


def write_run(run: pathlib.Path, recipe, vocabulary, *validations: dict) -> None:
    """Writes the files of a trained run, but no weights. Its name determines the seconds.

    An update takes 2 seconds and 2 GFLOP if the name begins with "slow", 1.5 seconds if the name is
    "unsteady-2", and otherwise 1 second and 1 GFLOP. Those of "uncounted" are unknown.
    """
    training = recipe.training
    last, second = training.max_steps or 10, 2.0 if run.name.startswith("slow") else 1.0
    second *= 1.5 if run.name == "unsteady-2" else 1
    steps = [*range(training.log_every, last, training.log_every), last]
    about = {"kind": "train", "tokens_per_second": 100.0, "memory_mib": 9.0}
    if not run.name.startswith("uncounted"):
        about["flops_per_update"] = int(1e9 * second)
    write(run / "timing.jsonl", *({"step": n, "seconds": n * second, **about} for n in steps))
    write(run / "model.json", {"versions": versions()})
    write(run / "metrics.jsonl", *({"kind": "validation", **one} for one in validations))
    vocabulary.save(run / "vocabulary")
    (run / "recipe.json").write_text(recipe.to_json())


def fine_tune(options) -> None:
    recipe = registry.load(options.recipe).changed(model="bert_tiny")
    run = pathlib.Path(options.run)
    write_run(run, recipe, VOCABULARY, {"step": 10, "score": 0.5})
    directory = CheckpointDirectory(run)
    directory.save(10, lambda folder: None, {"vocabulary": "", "metrics": {"score": 0.5}})
    directory.mark_best(10, "score", 0.5)


def train_translator(options) -> None:
    recipe, run = registry.load(options.recipe, settings=options.set), pathlib.Path(options.run)
    saved = run / "checkpoints" / f"step-{recipe.training.max_steps:08d}"
    saved.mkdir(parents=True, exist_ok=True)
    vocabulary = SentencePieceVocabulary.train(["ein hund rennt schnell"], 30)
    write_run(run, recipe, vocabulary, {"step": 1, "loss": 1.0, "bleu": 9.0})


def evaluate_translator(options) -> None:
    run = pathlib.Path(options.run.partition("@")[0])
    [saved] = (run / "checkpoints").iterdir()
    write_scores(pathlib.Path(options.output) / "a.json", "average", [int(saved.name[5:])])


def write_scores(path, checkpoint: str, steps: list[int], bleu: float = 30.0) -> None:
    lines = ["ein hund rennt schnell"]
    record = {"checkpoint": checkpoint, "steps": steps, "split": "validation"}
    record |= {"run": str(path.parents[1]), "tokenized_bleu": bleu, "bleu": bleu, "chrf": bleu}
    record |= {"tokenized_signature": "t", "bleu_signature": "b", "metric": {"language": "de"}}
    write(path, {**record, "hypotheses": lines, "references": lines})


TRAIN = {"pretraining": pretrain, "finetuning": fine_tune, "translation": train_translator}
STAND_INS = {
    "experiments.train:run": lambda options: TRAIN[registry.load(options.recipe).kind](options),
    "experiments.evaluation.translation:run_average": lambda options: None,
    "experiments.evaluate:run": evaluate_translator,
}


@pytest.fixture(params=["pretended"])
def calls(request, monkeypatch):
    """Makes studies run commands in this process; returns the list of commands that are called.

    Each command line is parsed by the command's own parser. With the parameter "pretended", fake
    commands run in place of training commands.
    """
    called, real_resolve_name = [], pkgutil.resolve_name
    stand_ins = STAND_INS if request.param == "pretended" else {}

    def command(*argv, log=None, trust_code=False):
        called.append(argv)
        if main(list(argv)):
            raise UserError("failed")

    class Names:
        resolve_name = staticmethod(lambda name: stand_ins.get(name) or real_resolve_name(name))

    monkeypatch.setattr(arguments, "pkgutil", Names)
    monkeypatch.setattr(studies, "command", command)
    return called


@pytest.fixture(scope="module")
def study(source):
    """Returns pre-training settings for a toy corpus."""
    more = ["training.warmup_steps=2", "training.validate_every=2"]
    return [*toy_settings(source, steps=4), *more]


def is_figure(*paths) -> bool:
    return all(path.stat().st_size > 1000 for path in paths)


@pytest.fixture(scope="module")
def study_corpus(study, tmp_path_factory) -> str:
    """Returns the folder of a prepared corpus of the toy documents."""
    return prepare("bert_tiny", str(tmp_path_factory.mktemp("corpus") / "letters"), study)
