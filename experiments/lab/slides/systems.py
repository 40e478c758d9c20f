"""`slides encoders` and `slides decoders`: comparisons, and further scores of their runs."""

import argparse
import functools
import pathlib
import re
from collections.abc import Callable
from typing import Any

from experiments import studies
from experiments.studies import flags
from macaron_tf.errors import UserError
from macaron_tf.io.paths import read_json

# Arguments of `compare` by the folder of a comparison. A setting's last value counts.
Comparisons = dict[str, tuple[str, ...]]

# 5,000 updates on 2.6 million tokens, pre-norm: a post-norm model of this size may stay at the
# unigram loss. So does an encoder without T5's bias (BERT: a loss of 6.1; with both 5.4).
_ALL = flags("--set", "batch_size=8", "training.max_steps=5_000", "model.norm=pre")
_ENCODERS = (*_ALL, "--set", "model.relative_bias=shared")
# A 40th of the tokens that are read, so that each of a row's ten masks is seen four times, as in
# BERT's released data (Liu et al. 2019, section 4.1).
_FEW = 'corpus.sources=(("tfds:wikipedia/20230601.en", "train[:3%]"),)'

ENCODERS: Comparisons = {
    "tokens": (
        "BERT=bert_tiny:masking.mask=0.8,masking.random=0.1",
        "ELECTRA=electra_tiny",
        *("--differ", "objective", "masking.", *_ENCODERS),
    ),
    "pairs": (
        "order=albert_tiny",
        "next=albert_tiny:corpus.pairs=next_sentence",
        "neither=albert_tiny:corpus.pairs=none",
        *("--differ", "corpus.pairs", *_ENCODERS),
    ),
    "masks": (
        "dynamic=roberta_tiny",
        "static=roberta_tiny:masking.duplicates=10",
        *("--differ", "masking.duplicates", *_ENCODERS, "--set", _FEW),
    ),
    "others": (
        *("RoBERTa=roberta_tiny", "SpanBERT=span_bert_tiny", "XLM=xlm_tiny"),
        *("gMLP=gmlp_tiny", "aMLP=amlp_tiny"),
        *("--differ", "objective", "masking.", "corpus.", "vocabulary.", *_ENCODERS),
    ),
}
_PAIRS = {"order": "corpus", "next": "corpus-next"}  # the arms of "pairs" that read them, and where


def _blocks(recipe: str, *names: str) -> tuple[str, ...]:
    return (*(f"{name}={recipe}:model.block={name}" for name in names), *_ALL)


_THREE = ("transformer", "macaron", "swish_rnn")
# Rows of GPT-2 must hold examples and a question: they are 4 times as long, and a quarter as many.
_LONG = flags("--set", "corpus.sequence_length=256", "model.max_length=256", "batch_size=2")
DECODERS: Comparisons = {
    "GPT": _blocks("gpt_tiny", *_THREE),
    "GPT-2": (*_blocks("gpt2_tiny", *_THREE), *_LONG),
    "Transformer-XL": _blocks("transformer_xl_tiny", *_THREE),
    # Without SwishRNN, whose recurrence would show each token to its own prediction.
    "XLNet": _blocks("xlnet_tiny", *_THREE[:2]),
    "T5": _blocks("t5_tiny", *_THREE),
    "BART": _blocks("bart_tiny", *_THREE),
}
# Comparisons with every seed, because the slides make them; the others have one seed.
EVERY_SEED = ("tokens", "pairs", "masks", "GPT", "T5")
ELMO = "ELMo"
# The same number of words as the others: 2,500 updates of 32 rows of 32.
_ELMO_SETTINGS = ("training.max_steps=2_500",)
# Lengths of a Transformer-XL's memory in evaluation; 64 in training.
MEMORIES = (1, 64, 128, 256, 512)
# Tasks of GPT-2 by prompts, without training, and the numbers of examples in a prompt.
FEW_SHOT = ("--task", "sst2", "rte", "--shots", "0", "1", "2", "4", "--max-examples", "400")
# Models of this size need a higher learning rate than their papers' for fine-tuning.
TUNING = ("max_length=64", "training.max_steps=400", "training.validate_every=200")
# Learning rate of Sentence-BERT; the paper's 2e-5 is for encoders of 12 layers and more.
_RATE = "training.learning_rate=1e-4"


class Study:
    """The comparisons that a command's options choose, and the report of all measurements."""

    def __init__(self, options: argparse.Namespace, known: Comparisons, *more: str):
        self.options, self.out = options, pathlib.Path(options.out)
        self.chosen = options.systems or [*known, *more]
        for name in self.chosen:
            if name not in (*known, *more):
                raise UserError(f"--systems {name!r}: there are {'; '.join((*known, *more))}")
        self.comparisons = {name: one for name, one in known.items() if name in self.chosen}
        self.data = flags("--data-dir", options.data_dir)
        self.rows: dict[str, list[dict]] = {}
        self.lines: list[str] = []

    def compare(self, *words: str) -> None:
        """Makes missing comparisons, each in its folder, and adds their reports."""
        seeds = self.options.seeds
        for name, own in self.comparisons.items():
            given = [*own, *flags("--set", *self.options.set), *self.data, *words]
            given += ["--seeds", *map(str, seeds if name in EVERY_SEED else seeds[:1])]
            given += ["--jobs", str(self.options.jobs)]
            studies.command("compare", str(self.out / name), *given)
            self.rows[name] = read_json(self.out / name / "compare.json", rows=list)["rows"]
            self.add(self.out / name / "compare.md")

    def add(self, report: pathlib.Path) -> None:
        """Adds the report of a part, with its headings one level lower."""
        text = report.read_text(encoding="utf-8").rstrip()
        self.lines += ["", "#" + re.sub(r"\]\((\w+\.png)\)", rf"]({report.parent.name}/\1)", text)]

    def measure(
        self, title: str, rows: list[dict], figures: Callable[[dict], dict], scale: float = 100
    ) -> None:
        """Adds a table of further numbers of runs, with one line for each arm.

        Args:
            rows: rows of `compare`; the numbers are added to them.
            figures: maps a row to numbers by the heads of their columns.
        """
        tasks = {f"{row['run']}: scored": functools.partial(figures, row) for row in rows}
        found = studies.at_once(self.options.jobs, tasks)
        for row, more in zip(rows, found, strict=True):
            row |= more
        heads = list(dict.fromkeys(head for more in found for head in more))
        cells = (
            (arm, str(len(mine)), *(studies.mean_of(mine, head, 1, scale) for head in heads))
            for arm, mine in studies.grouped(rows, "arm").items()
        )
        table = studies.table(("arm", "seeds", *heads), cells)
        self.lines += ["", f"## {title}", "", *table]

    def write(self, name: str, title: str) -> None:
        """Writes OUT/NAME.md and .json."""
        rows = {"comparisons": self.rows}
        studies.write(
            self.out, name, "lab.slides", self.options, title, self.lines[1:], figure=False, **rows
        )


def _written(path: pathlib.Path, script: str, *words: str) -> Any:
    """Reads a JSON file; if it does not exist, first runs the command that writes it."""
    if not path.exists():
        studies.command(script, *words)
    return studies.read_json(path, object)


def encoders(options: argparse.Namespace) -> None:
    """Compares the encoders, pre-trained and fine-tuned, and then their sentence vectors."""
    options.finetune_set = [*TUNING, *options.finetune_set]
    study = Study(options, ENCODERS)
    source = [*flags("--source", options.source), *flags("--finetune-set", *options.finetune_set)]
    tasks = ["--tasks", *options.tasks, "--learning-rates", "1e-3"] if options.tasks else []
    study.compare(*tasks, *source)

    def told(row: dict) -> dict[str, float]:
        """Accuracy on pairs of segments from the corpora of both kinds (see `_PAIRS`)."""
        found = {}
        for kind, folder in _PAIRS.items():
            file = pathlib.Path(row["run"]) / f"{folder}.json"
            where = ["--corpus", str(study.out / "pairs" / folder), "--output", str(file)]
            record = _written(file, "pretrain", "evaluate", row["run"], *where)
            found[kind] = record["pair_accuracy"]
        return found

    if pairs := [row for row in study.rows.get("pairs", ()) if row["arm"] in _PAIRS]:
        study.measure(
            "Pairs told right, %, by models that learnt the one kind or the other", pairs, told
        )
    if options.sentences:
        rows = [row for mine in study.rows.values() for row in mine]
        title = "Vectors of sentences: Spearman's correlation with STS-B's scores, times 100"
        study.measure(title, rows, functools.partial(sentence_scores, study.data))
    study.write("encoders", "The slides' encoders")


def sentence_scores(data: list[str], row: dict) -> dict[str, float]:
    """Spearman correlations on STS-B's development set of the cosines of mean-pooled vectors.

    BERT is scored before and after training on STS-B.
    """
    run = pathlib.Path(row["run"])

    def correlation(encoder: pathlib.Path, scores: pathlib.Path) -> float:
        if not list(scores.glob("*.json")):
            words = [str(encoder), "--task", "stsb", "--output", str(scores), *data]
            studies.command("embed", "evaluate", *words)
        [file] = scores.glob("*.json")
        return studies.read_json(file, metrics=dict)["metrics"]["spearman"]

    found = {"mean pooling": correlation(run, run / "untrained")}
    if row["arm"] == "BERT":
        words = ["stsb", str(run / "sentences"), "--init", str(run), "--set", _RATE, *data]
        studies.command("embed", "train", *words)
        found["Sentence-BERT"] = correlation(run / "sentences", run / "trained")
    return found


def decoders(options: argparse.Namespace) -> None:
    """Compares blocks in decoders, scores memories, prompts GPT-2, trains ELMo and taggers."""
    study = Study(options, DECODERS, ELMO)
    study.compare()

    def perplexities(row: dict) -> dict[str, float]:
        file = pathlib.Path(row["run"]) / "memories.json"
        words = ["--corpus", str(study.out / "Transformer-XL" / "corpus"), "--output", str(file)]
        words += ["--memory", *map(str, MEMORIES)]
        found = _written(file, "pretrain", "evaluate", row["run"], *words)
        return {str(line["memory"]): line["perplexity"] for line in found}

    if rows := study.rows.get("Transformer-XL", []):
        title = "Transformer-XL's perplexity by the positions that it remembers (64 in training)"
        study.measure(title, rows, perplexities, scale=1)
        curves = {row["arm"]: {length: [row[str(length)]] for length in MEMORIES} for row in rows}
        figure, axes = study.out / "memory.png", ("positions remembered", "validation perplexity")
        studies.mean_curves({"Transformer-XL": curves}, figure, *axes)
        study.lines += ["", "![Perplexity against memory](memory.png)"]
    if models := [row["run"] for row in study.rows.get("GPT-2", ())]:
        asked = study.out / "few_shot"
        words = [*models, *FEW_SHOT, "--out", str(asked), *study.data]
        _written(asked / "few_shot.json", "few_shot", *words)
        study.add(asked / "few_shot.md")
        study.lines += ["", "![Score against K](few_shot/few_shot.png)"]
    if ELMO in study.chosen:
        run, tagged = str(study.out / ELMO), study.out / "tagged"
        settings = flags("--set", *_ELMO_SETTINGS, *options.elmo_set)
        studies.command("elmo", "train", "elmo_tiny", run, *settings, *study.data)
        tags = [run, str(tagged), "--seeds", *map(str, options.seeds)]
        studies.command("elmo", "tag", *tags, *flags("--source", options.source), *study.data)
        study.add(tagged / "tagging.md")
    study.write("decoders", "The slides' decoders")
