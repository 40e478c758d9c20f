"""`slides decoders`: language models and sequence-to-sequence systems, block by block."""

import argparse
import functools
import pathlib

from experiments import studies
from experiments.lab.slides.frame import Corpus, Study, StudyRun, System
from experiments.pretrain.run import PretrainingRun
from experiments.studies import flags, mean_curves

# Examples and a question have to fit into a row: rows 4 times as long, a quarter as many.
_LONG = ("corpus.sequence_length=256", "model.max_length=256")
_BLOCKS = ("transformer", "macaron", "swish_rnn")
ELMO = System("ELMo", "elmo_tiny", "")

STUDY = Study(
    # 5,000 updates on 2.6 million tokens as the encoders', pre-norm: a post-norm model of this size
    # with learned positions may rest at guessing by frequency.
    ("batch_size=8", "training.max_steps=5_000", "model.norm=pre"),
    {
        "text": Corpus("bert_tiny"),
        "pieces": Corpus("gpt_tiny"),
        "bytes": Corpus("gpt2_tiny", _LONG[:1]),
        "segments": Corpus("transformer_xl_tiny", (), "text"),
        "streams": Corpus("xlnet_tiny", (), "text"),
    },
    (
        System("GPT", "gpt_tiny", "pieces", blocks=_BLOCKS, compared=True),
        System("GPT-2", "gpt2_tiny", "bytes", (*_LONG, "batch_size=2"), blocks=_BLOCKS),
        System("Transformer-XL", "transformer_xl_tiny", "segments", blocks=_BLOCKS),
        # A recurrence would tell each token to itself.
        System("XLNet", "xlnet_tiny", "streams", blocks=_BLOCKS[:2]),
        System("T5", "t5_tiny", "text", blocks=_BLOCKS, compared=True),
        System("BART", "bart_tiny", "text", blocks=_BLOCKS),
        ELMO,
    ),
)
# The same number of words: 2,500 updates of 32 rows of 32.
_ELMO_SETTINGS = ("training.max_steps=2_500",)
# Positions that a Transformer-XL looks back on; 64 in training.
MEMORIES = (1, 64, 128, 256, 512)
# The tasks that GPT-2 is asked without training, and the numbers of examples before a question.
FEW_SHOT = ("--task", "sst2", "rte", "--shots", "0", "1", "2", "4", "--max-examples", "400")

# The metric of a system, its name in the table, and its digits.
_SHOWN = {
    "GPT": ("perplexity", "perplexity of the next piece", 1),
    "GPT-2": ("perplexity", "perplexity of the next byte-level piece, rows of 256", 1),
    "Transformer-XL": ("perplexity", "perplexity of the next word piece, memory of 64", 1),
    "XLNet": ("nll", "loss of guessed tokens", 2),
    "T5": ("nll", "loss of spans", 2),
    "BART": ("nll", "loss of the text from its noise", 2),
}


def run(options: argparse.Namespace) -> None:
    """Trains missing runs, unless only a report is wanted; writes the tables and the figures."""
    out = pathlib.Path(options.out)
    chosen = STUDY.runs(options.systems, options.seeds)
    runs = [one for one in chosen if one.system != ELMO]
    has_elmo = len(runs) < len(chosen)
    if options.report:
        runs = [one for one in runs if studies.is_complete(out / "runs" / one.name)]
    else:
        _train(options, runs, has_elmo, out)
    rows = []
    for one in runs:
        folder, memory = out / "runs" / one.name, _memory(one, out)
        rows.append(
            {
                "system": one.system.name,
                "block": one.block,
                "seed": one.seed,
                "parameters": PretrainingRun.open(folder).build_network().count_params(),
                "curve": studies.validations(folder),
                "memory": studies.read_json(memory, list) if memory.exists() else [],
            }
        )
    elmo, tagging = None, out / "tagged" / "tagging.json"
    if has_elmo and tagging.exists():
        curve = studies.validations(out / "runs" / "ELMo")
        elmo = {"curve": curve, "tagged": studies.read_json(tagging, rows=list)["rows"]}
    title, lines = "The slides' decoders", []
    if rows:
        title += f" after {max(row['curve'][-1]['step'] for row in rows):,} updates"
        systems = studies.grouped(rows, "system")
        lines += _blocks(systems)
        panels = {
            system: studies.curves(mine, "block", "step", "loss", "curve")
            for system, mine in systems.items()
        }
        mean_curves(panels, out / "decoders.png", "updates", "validation loss, nats a token")
    lines += _memories([row for row in rows if row["memory"]], out)
    lines += _taggers(elmo) if elmo else []
    if (asked := out / "few_shot" / "few_shot.md").exists():
        # Its heading one level lower.
        lines += ["", "#" + asked.read_text(encoding="utf-8").rstrip()]
        lines += ["", "![Score against K](few_shot/few_shot.png)"]
    record = {"rows": rows, "elmo": elmo}
    studies.write(out, "decoders", "lab.slides", options, title, lines, bool(rows), **record)


def _memory(one: StudyRun, out: pathlib.Path) -> pathlib.Path:
    """The file of a Transformer-XL's scores with several memories."""
    return out / "memory" / f"{one.name}.json"


def _train(options: argparse.Namespace, runs: list[StudyRun], elmo: bool, out: pathlib.Path):
    """Pre-trains missing runs; then scores memories, asks GPT-2, and trains ELMo, at once."""
    corpora = STUDY.train(runs, options, out)
    data = flags("--data-dir", options.data_dir)
    tasks = {}

    def task(words: str, path: pathlib.Path, *line: str, log: str) -> None:
        log = out / "logs" / f"{log}.log"
        tasks[words] = functools.partial(studies.written, path, *line, log=log)

    for one in runs:
        if one.system.name == "Transformer-XL":
            task(
                f"{one.name}: scored with {len(MEMORIES)} memories",
                *(_memory(one, out), "pretrain", "evaluate", str(out / "runs" / one.name)),
                *("--corpus", corpora[one.system.corpus], "--output", str(_memory(one, out))),
                *("--memory", *map(str, MEMORIES)),
                log=f"memory-{one.name}",
            )
    models = [one for one in runs if one.system.name == "GPT-2" and one.seed == options.seeds[0]]
    if models:
        task(
            f"{', '.join(one.name for one in models)}: asked",
            *(out / "few_shot" / "few_shot.json", "few_shot"),
            *(str(out / "runs" / one.name) for one in models),
            *(*FEW_SHOT, "--out", str(out / "few_shot"), *data),
            log="few_shot",
        )
    if elmo:
        words = "ELMo: trained, and taggers with and without it"
        tasks[words] = functools.partial(_elmo, options, data, out)
    studies.at_once(options.jobs, tasks)


def _elmo(options: argparse.Namespace, data: list[str], out: pathlib.Path) -> None:
    """ELMo's language model, and taggers with it and without it."""
    folder, log = str(out / "runs" / "ELMo"), out / "logs" / "ELMo.log"
    settings = flags("--set", *_ELMO_SETTINGS, *options.elmo_set)
    studies.command("elmo", "train", ELMO.recipe, folder, *settings, *data, log=log)
    tags = ["tag", folder, str(out / "tagged"), "--seeds", *map(str, options.seeds)]
    tags += [*flags("--source", options.source), *data]
    studies.command("elmo", *tags, log=out / "logs" / "ELMo-tags.log")


def _memories(rows: list[dict], out: pathlib.Path) -> list[str]:
    """A line a block, a column a memory; draws OUT/memory.png."""
    if not rows:
        return []
    curves = studies.curves(rows, "block", "memory", "perplexity", "memory")
    lengths = studies.values(rows[0]["memory"], "memory")
    cells = (
        (block, *(studies.cell(found[length], 1) for length in lengths))
        for block, found in curves.items()
    )
    panels = {"Transformer-XL": curves}
    mean_curves(panels, out / "memory.png", "positions remembered", "validation perplexity")
    text = "Transformer-XL's perplexity by the positions that it remembers (64 in training):"
    table = studies.table(("block", *map(str, lengths)), cells)
    return ["", text, "", *table, "", "![Perplexity against memory](memory.png)"]


def _taggers(elmo: dict) -> list[str]:
    """F1 of the taggers by `elmo tag`, and the perplexity at the end of the "curve"."""
    last, taggers = elmo["curve"][-1], studies.grouped(elmo["tagged"], "name")
    cells = (
        (name, str(len(mine)), studies.mean_of(mine, "f1", 1, 100))
        for name, mine in taggers.items()
    )
    text = (
        f"ELMo after {last['step']:,} updates: perplexity {last['perplexity']:.1f} (forward "
        "and backward); a tagger of CoNLL-2003's entities with and without its vectors:"
    )
    return ["", text, "", *studies.table(("tagger", "seeds", "F1"), cells)]


def _blocks(systems: dict[str, list[dict]]) -> list[str]:
    """A line a system, a column a block: the metric, and millions of weights."""
    blocks = list(dict.fromkeys(row["block"] for mine in systems.values() for row in mine))
    lines = []
    for system, mine in systems.items():
        metric, label, digits = _SHOWN[system]
        cells, by_block = [], studies.grouped(mine, "block")
        for block in blocks:
            found = by_block.get(block, [])
            score = studies.cell([row["curve"][-1][metric] for row in found], digits)
            cells.append(score + (f" ({found[0]['parameters'] / 1e6:.2f}M)" if found else ""))
        counts = sorted({len(found) for found in by_block.values()})
        seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        lines.append((system, label, seeds, *cells))
    return studies.table(("system", "on validation text", "seeds", *blocks), lines)
