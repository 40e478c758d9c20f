"""The commands `slides encoders` and `slides decoders`, which compare small models."""

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

# Dict mapping the folder of a comparison to the arguments of `compare`. If a setting is repeated,
# the last value applies.
Comparisons = dict[str, tuple[str, ...]]

# 5,000 updates on 2.6 million tokens. Pre-norm and T5's relative bias keep the tiny encoders from
# staying at the unigram loss: BERT reaches a loss of 5.4 with both, and 6.1 without the bias.
_ALL = flags("--set", "batch_size=8", "training.max_steps=5_000", "model.norm=pre")
_ENCODERS = (*_ALL, "--set", "model.relative_bias=shared")
# This corpus is so small that training reads each row 40 times, and so each of its 10 static masks
# 4 times, as in BERT's released data (Liu et al. 2019, section 4.1).
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
_PAIRS = {
    "order": "corpus",
    "next": "corpus-next",
}  # arms of "pairs" with a pair objective, and the folders of their corpora


def _blocks(recipe: str, *names: str) -> tuple[str, ...]:
    return (*(f"{name}={recipe}:model.block={name}" for name in names), *_ALL)


_THREE = ("transformer", "macaron", "swish_rnn")
# A few-shot prompt needs longer rows. Each batch has 1/4 of the rows, with 4 times the length.
_LONG = flags("--set", "corpus.sequence_length=256", "model.max_length=256", "batch_size=2")
DECODERS: Comparisons = {
    "GPT": _blocks("gpt_tiny", *_THREE),
    "GPT-2": (*_blocks("gpt2_tiny", *_THREE), *_LONG),
    "Transformer-XL": _blocks("transformer_xl_tiny", *_THREE),
    # XLNet has no SwishRNN arm, because the recurrence would leak each token into its prediction.
    "XLNet": _blocks("xlnet_tiny", *_THREE[:2]),
    "T5": _blocks("t5_tiny", *_THREE),
    "BART": _blocks("bart_tiny", *_THREE),
}
# Comparisons that use all seeds. All other comparisons use only the first seed.
EVERY_SEED = ("tokens", "pairs", "masks", "GPT", "T5")
ELMO = "ELMo"
# 2,500 updates of 32 rows with 32 words: the same number of words as in the other comparisons.
_ELMO_SETTINGS = ("training.max_steps=2_500",)
# Memory lengths of Transformer-XL in evaluation, in positions. The length in training is 64.
MEMORIES = (1, 64, 128, 256, 512)
# Tasks for few-shot prompting of GPT-2, and numbers of examples in a prompt.
FEW_SHOT = ("--task", "sst2", "rte", "--shots", "0", "1", "2", "4", "--max-examples", "400")
# Settings of fine-tuning. The learning rate is 1e-3, see `encoders`: models of this size need a
# higher rate than in their papers.
TUNING = ("max_length=64", "training.max_steps=400", "training.validate_every=200")
# Learning rate of Sentence-BERT. The paper uses 2e-5 for encoders with at least 12 layers.
_RATE = "training.learning_rate=1e-4"


class Study:
    """Report of several comparisons, with methods that run the comparisons and add their results.

    Args:
        options: parsed options of the command; `options.systems` selects comparisons.
        comparisons: all comparisons of the command.
        further_parts: names of further parts that `--systems` may select.

    Raises:
        UserError: `--systems` has an unknown name.
    """

    def __init__(self, options: argparse.Namespace, comparisons: Comparisons, *further_parts: str):
        self.options, self.out = options, pathlib.Path(options.out)
        self.chosen = options.systems or [*comparisons, *further_parts]
        for name in self.chosen:
            if name not in (*comparisons, *further_parts):
                raise UserError(
                    f"--systems {name!r} is not a comparison of this command: choose from "
                    f"{'; '.join((*comparisons, *further_parts))}"
                )
        self.comparisons = {
            name: arguments for name, arguments in comparisons.items() if name in self.chosen
        }
        self.data = studies.shared_flags(options)
        self.rows: dict[str, list[dict]] = {}
        self.lines: list[str] = []

    def compare(self, *arguments: str) -> None:
        """Runs the selected comparisons, each in its own folder, and adds their reports.

        Comparisons that are not in `EVERY_SEED` use only the first seed.

        Args:
            arguments: further arguments of `compare`.
        """
        seeds = self.options.seeds
        for name, own_arguments in self.comparisons.items():
            all_arguments = [
                *own_arguments,
                *flags("--set", *self.options.set),
                *self.data,
                *arguments,
            ]
            all_arguments += ["--seeds", *map(str, seeds if name in EVERY_SEED else seeds[:1])]
            all_arguments += ["--jobs", str(self.options.jobs)]
            studies.command("compare", str(self.out / name), *all_arguments)
            self.rows[name] = read_json(self.out / name / "compare.json", rows=list)["rows"]
            self.add(self.out / name / "compare.md")

    def add(self, report: pathlib.Path) -> None:
        """Adds the text of the Markdown file `report`, which is in a subfolder of `out`.

        The title of the file becomes a section heading. Links to PNG files get the subfolder as a
        prefix.
        """
        text = report.read_text(encoding="utf-8").rstrip()
        self.lines += ["", "#" + re.sub(r"\]\((\w+\.png)\)", rf"]({report.parent.name}/\1)", text)]

    def measure(
        self, title: str, rows: list[dict], scores_of: Callable[[dict], dict], scale: float = 100
    ) -> None:
        """Computes further scores of trained models, and adds a table of the scores to the report.

        The table has a row for each arm, with the mean and standard deviation over seeds.

        Args:
            title: heading of the table.
            rows: results of runs from `compare`. The method adds the scores to these dicts.
            scores_of: function that computes the scores of a run from its element of `rows`. It
                returns a dict mapping a column heading to a score.
            scale: factor for the scores in the table.
        """
        tasks = {f"{row['run']}: scored": functools.partial(scores_of, row) for row in rows}
        scores_of_rows = studies.run_tasks(self.options.jobs, tasks)
        for row, scores in zip(rows, scores_of_rows, strict=True):
            row |= scores
        columns = list(dict.fromkeys(column for scores in scores_of_rows for column in scores))
        cells = (
            (
                arm,
                str(len(arm_rows)),
                *(studies.mean_of(arm_rows, column, 1, scale) for column in columns),
            )
            for arm, arm_rows in studies.grouped(rows, "arm").items()
        )
        table = studies.table(("arm", "seeds", *columns), cells)
        self.lines += ["", f"## {title}", "", *table]

    def write(self, name: str, title: str) -> None:
        """Writes the report to OUT/NAME.md and the results to OUT/NAME.json."""
        rows = {"comparisons": self.rows}
        studies.write(
            self.out,
            name,
            self.options,
            title,
            self.lines[1:],
            figure=False,
            **rows,
        )


def _read_or_write(path: pathlib.Path, script: str, *arguments: str) -> Any:
    """Reads a JSON file. If the file does not exist, first runs the command that writes it."""
    if not path.exists():
        studies.command(script, *arguments)
    return studies.read_json(path, object)


def encoders(options: argparse.Namespace) -> None:
    """Runs the command `slides encoders`: compares encoders and their sentence vectors."""
    options.finetune_set = [*TUNING, *options.finetune_set]
    study = Study(options, ENCODERS)
    source = [*flags("--source", options.source), *flags("--finetune-set", *options.finetune_set)]
    tasks = ["--tasks", *options.tasks, "--learning-rates", "1e-3"] if options.tasks else []
    study.compare(*tasks, *source)

    def pair_accuracies(row: dict) -> dict[str, float]:
        """Returns the accuracies of a run in sentence-pair classification, one per pair objective.

        The result maps a key of `_PAIRS`, which is a pair objective, to the accuracy on the corpus
        of this objective.
        """
        accuracies = {}
        for objective, folder in _PAIRS.items():
            file = pathlib.Path(row["run"]) / f"{folder}.json"
            arguments = ["--corpus", str(study.out / "pairs" / folder), "--output", str(file)]
            record = _read_or_write(file, "pretrain", "evaluate", row["run"], *arguments)
            accuracies[objective] = record["pair_accuracy"]
        return accuracies

    if pairs := [row for row in study.rows.get("pairs", ()) if row["arm"] in _PAIRS]:
        study.measure(
            "Pair accuracy (%) of each pair objective on both types of pairs",
            pairs,
            pair_accuracies,
        )
    if options.sentences:
        rows = [row for arm_rows in study.rows.values() for row in arm_rows]
        title = "Sentence vectors: Spearman correlation with the STS-B scores, times 100"
        study.measure(title, rows, functools.partial(sentence_scores, study.data))
    study.write("encoders", "Comparison of encoders")


def sentence_scores(data: list[str], row: dict) -> dict[str, float]:
    """Returns Spearman correlations on STS-B for mean-pooled sentence vectors of an encoder.

    Args:
        data: `["--data-dir", DIR]` for the commands, or an empty list.
        row: result of a run from `compare`.

    Returns:
        A dict of correlations on the validation split: "mean pooling" without training on STS-B
        and, only for BERT, "Sentence-BERT" after training on STS-B.
    """
    run = pathlib.Path(row["run"])

    def correlation(encoder: pathlib.Path, scores: pathlib.Path) -> float:
        if not list(scores.glob("*.json")):
            arguments = [str(encoder), "--task", "stsb", "--output", str(scores), *data]
            studies.command("embed", "evaluate", *arguments)
        [file] = scores.glob("*.json")
        return studies.read_json(file, metrics=dict)["metrics"]["spearman"]

    scores_by_name = {"mean pooling": correlation(run, run / "untrained")}
    if row["arm"] == "BERT":
        arguments = ["stsb", str(run / "sentences"), "--init", str(run), "--set", _RATE, *data]
        studies.command("embed", "train", *arguments)
        scores_by_name["Sentence-BERT"] = correlation(run / "sentences", run / "trained")
    return scores_by_name


def decoders(options: argparse.Namespace) -> None:
    """Runs the command `slides decoders`: compares blocks in several systems.

    The command also evaluates Transformer-XL with several memory lengths and GPT-2 by few-shot
    prompting, and trains an ELMo and taggers that use it.
    """
    study = Study(options, DECODERS, ELMO)
    study.compare()

    def perplexities(row: dict) -> dict[str, float]:
        file = pathlib.Path(row["run"]) / "memories.json"
        arguments = [
            "--corpus",
            str(study.out / "Transformer-XL" / "corpus"),
            "--output",
            str(file),
        ]
        arguments += ["--memory", *map(str, MEMORIES)]
        lines = _read_or_write(file, "pretrain", "evaluate", row["run"], *arguments)
        return {str(line["memory"]): line["perplexity"] for line in lines}

    if rows := study.rows.get("Transformer-XL", []):
        title = "Perplexity of Transformer-XL for each memory length (64 positions in training)"
        study.measure(title, rows, perplexities, scale=1)
        curves = {row["arm"]: {length: [row[str(length)]] for length in MEMORIES} for row in rows}
        figure, axes = (
            study.out / "memory.png",
            ("memory length in positions", "validation perplexity"),
        )
        studies.mean_curves({"Transformer-XL": curves}, figure, *axes)
        study.lines += ["", "![Perplexity against memory](memory.png)"]
    if models := [row["run"] for row in study.rows.get("GPT-2", ())]:
        few_shot_folder = study.out / "few_shot"
        arguments = [*models, *FEW_SHOT, "--out", str(few_shot_folder), *study.data]
        _read_or_write(few_shot_folder / "few_shot.json", "few_shot", *arguments)
        study.add(few_shot_folder / "few_shot.md")
        study.lines += ["", "![Score against K](few_shot/few_shot.png)"]
    if ELMO in study.chosen:
        run, tagged = str(study.out / ELMO), study.out / "tagged"
        settings = flags("--set", *_ELMO_SETTINGS, *options.elmo_set)
        studies.command("elmo", "train", "elmo_tiny", run, *settings, *study.data)
        tags = [run, str(tagged), "--seeds", *map(str, options.seeds)]
        studies.command("elmo", "tag", *tags, *flags("--source", options.source), *study.data)
        study.add(tagged / "tagging.md")
    study.write("decoders", "Comparison of decoders")
