"""`slides encoders`: every encoder of the slides, pre-trained and fine-tuned alike."""

import argparse
import functools
import itertools
import pathlib

from experiments import studies
from experiments.lab.slides.frame import Corpus, Study, StudyRun, System

# A 40th of the tokens that are read, so that ten masks a row are seen four times each, as in
# BERT's released data (Liu et al. 2019, section 4.1).
_FEW = 'corpus.sources=(("tfds:wikipedia/20230601.en", "train[:3%]"),)'
_BERT = ("masking.mask=0.8", "masking.random=0.1")
_NONE = ("corpus.pairs=none",)
_NEXT = ("corpus.pairs=next_sentence",)
_STATIC = (_FEW, "masking.duplicates=10")

STUDY = Study(
    # 5,000 updates on 2.6 million tokens. Post-norm without T5's bias a model of this size still
    # guesses by frequency after so many (BERT: a loss of 6.1; with both 5.4).
    (
        "batch_size=8",
        "training.max_steps=5_000",
        "model.norm=pre",
        "model.relative_bias=shared",
    ),
    {
        "text": Corpus("bert_tiny"),
        "next_sentence": Corpus("bert_tiny", ("corpus.pairs=next_sentence",), "text"),
        "sentence_order": Corpus("albert_tiny", (), "text"),
        "bytes": Corpus("roberta_tiny"),
        "few_bytes": Corpus("roberta_tiny", (_FEW,), "bytes", judged_on="bytes"),
        "languages": Corpus("xlm_tiny"),
    },
    (
        System("BERT", "bert_tiny", "text", _BERT, compared=True, sentences=True),
        System("ELECTRA", "electra_tiny", "text", compared=True),
        System("ALBERT", "albert_tiny", "sentence_order", compared=True),
        System("ALBERT, next sentences", "albert_tiny", "next_sentence", _NEXT, compared=True),
        System("ALBERT, neither", "albert_tiny", "text", _NONE, compared=True),
        System("RoBERTa", "roberta_tiny", "bytes"),
        System("RoBERTa, few, dynamic", "roberta_tiny", "few_bytes", (_FEW,), compared=True),
        System("RoBERTa, few, static", "roberta_tiny", "few_bytes", _STATIC, compared=True),
        System("SpanBERT", "span_bert_tiny", "text"),
        System("XLM", "xlm_tiny", "languages"),
        System("gMLP", "gmlp_tiny", "text"),
        System("aMLP", "amlp_tiny", "text"),
    ),
)
# Models of this size need a higher learning rate than their papers' for fine-tuning.
FINETUNING = (
    *("--learning-rates", "1e-3", "--seeds", "1", "--set", "max_length=64"),
    *("--set", "training.max_steps=400", "--set", "training.validate_every=200"),
)
# Of Sentence-BERT; the paper's 2e-5 is for encoders of 12 layers and more.
_RATE = "training.learning_rate=1e-4"

# Metrics besides the tokens', by their names in the table.
_BESIDES = {
    "pair_accuracy": "pairs right",
    "span_boundary_loss": "boundary loss",
    "replaced_recall": "replaced found",
    "replaced_precision": "of those said",
}
# Accuracies on each kind of pairs.
_CROSSED = {"next_sentence": "next sentences", "sentence_order": "order of sentences"}
_UNTRAINED, _TRAINED = "mean pooling", "Sentence-BERT"


def run(options: argparse.Namespace) -> None:
    """Prepares, trains and fine-tunes missing runs, then writes the table and the figure."""
    out = pathlib.Path(options.out)
    runs = STUDY.runs(options.systems, options.seeds)
    corpora = STUDY.train(runs, options, out)
    scores = _finetuned(options, [one.name for one in runs], out)

    def score(one: StudyRun) -> dict:
        folder, system = out / "runs" / one.name, one.system
        row = {"system": system.name, "seed": one.seed, **studies.validations(folder)[-1]}
        row |= {task: scores.get((one.name, task)) for task in options.tasks}
        if system.corpus in _CROSSED:
            for kind in _CROSSED.keys() & corpora.keys():
                row[kind] = _evaluated(one.name, corpora[kind], out)["pair_accuracy"]
        if (judged_on := STUDY.corpora[system.corpus].judged_on) in corpora:
            found = _evaluated(one.name, corpora[judged_on], out)
            row |= {metric: found[metric] for metric in ("nll", "accuracy")}
        if options.sentences:
            place = out / "sentences" / one.name
            row |= sentence_scores(folder, place, system.sentences, options.data_dir)
        return row

    tasks = {f"{one.name}: scored": functools.partial(score, one) for one in runs}
    rows = studies.at_once(options.jobs, tasks)
    systems = studies.grouped(rows, "system")
    bars = {
        task: {name: studies.values(mine, task) for name, mine in systems.items()}
        for task in options.tasks
    }
    studies.mean_bars(bars, out / "encoders.png", "score on the development set")
    title = f"The slides' encoders after {max(row['step'] for row in rows):,} updates"
    tables = [*_table(systems, options.tasks), "", *_crossed(systems)]
    studies.write(out, "encoders", "lab.slides", options, title, tables, rows=rows)


def _finetuned(options: argparse.Namespace, names: list[str], out: pathlib.Path) -> dict:
    """Fine-tunes runs that are not yet; their scores by name and task."""
    cells = {}
    for task, part in itertools.product(options.tasks, range(min(options.jobs, len(names)))):
        inits = [f"{name}={out / 'runs' / name}" for name in names[part :: options.jobs]]
        folder = out / "finetuned" / f"{task}-{part}"
        log = out / "logs" / f"finetune-{task}-{part}.log"
        words = ("--init", *inits, *FINETUNING, *studies.tuning(options))
        cells[f"{task}, part {part + 1}: {len(inits)} fine-tuned"] = functools.partial(
            studies.grid, [task], folder, *words, log=log
        )
    found = itertools.chain.from_iterable(studies.at_once(options.jobs, cells))
    return {(cell["model"], cell["task"]): cell["mean"] for cell in found}


def _evaluated(name: str, corpus: str, out: pathlib.Path) -> dict:
    """A run's metrics on the validation rows of the corpus in a folder."""
    scores = out / "crossed" / f"{name}-{pathlib.Path(corpus).name}.json"
    where = ["--corpus", corpus, "--output", str(scores)]
    return studies.written(scores, "pretrain", "evaluate", str(out / "runs" / name), *where)


def sentence_scores(
    run: pathlib.Path, out: pathlib.Path, train: bool, data_dir: str | None
) -> dict[str, float]:
    """Spearman's correlations on STS-B's development set, of vectors' cosines with the scores.

    Args:
        run: a pre-training run, whose mean pooling gives the vectors.
        out: folder of its training and its scores.
        train: also train it on STS-B, and score it again.
    """
    data = studies.flags("--data-dir", data_dir)

    def correlation(encoder: pathlib.Path, place: pathlib.Path) -> float:
        if not list(place.glob("*.json")):
            words = [str(encoder), "--task", "stsb", "--output", str(place), *data]
            studies.command("embed", "evaluate", *words)
        [file] = place.glob("*.json")
        return studies.read_json(file, metrics=dict)["metrics"]["spearman"]

    found = {_UNTRAINED: correlation(run, out / "untrained")}
    if train:
        words = ["stsb", str(out / "run"), "--init", str(run), "--set", _RATE, *data]
        studies.command("embed", "train", *words)
        found[_TRAINED] = correlation(out / "run", out / "trained")
    return found


def _table(systems: dict[str, list[dict]], tasks: list[str]) -> list[str]:
    kinds = (_UNTRAINED, _TRAINED)
    rows = list(itertools.chain.from_iterable(systems.values()))
    scores = [*tasks, *(kind for kind in kinds if studies.values(rows, kind))]
    lines = []
    for name, mine in systems.items():
        besides = [
            f"{label} {studies.cell(found, 2)}"
            for metric, label in _BESIDES.items()
            if (found := studies.values(mine, metric))
        ]
        cells = [name, str(len(mine)), studies.mean_of(mine, "nll", 2)]
        cells += [studies.mean_of(mine, "accuracy", 1, 100), ", ".join(besides) or "-"]
        lines.append(cells + [studies.mean_of(mine, one, 1, 100) for one in scores])
    return studies.table(
        ("system", "seeds", "loss of tokens", "right %", "besides", *scores), lines
    )


def _crossed(systems: dict[str, list[dict]]) -> list[str]:
    """Accuracies of each model of pairs on both kinds of pairs, as in ALBERT's table."""
    lines = [
        (name, *(studies.mean_of(mine, kind, 1, 100) for kind in _CROSSED))
        for name, mine in systems.items()
        if any(studies.values(mine, kind) for kind in _CROSSED)
    ]
    text = "Pairs told right, %, by models that learnt the one kind or the other:"
    return [text, "", *studies.table(("system", *_CROSSED.values()), lines)] if lines else []
