"""The tables and figures of `slides decoders`."""

import argparse
import pathlib

from experiments import studies
from experiments.figures import mean_curves

# What a system's cells show, and what the table calls it.
_SHOWN = {
    "GPT": ("perplexity", "perplexity of the next piece", 1),
    "GPT-2": ("perplexity", "perplexity of the next byte-level piece, rows of 256", 1),
    "Transformer-XL": ("perplexity", "perplexity of the next word piece, memory of 64", 1),
    "XLNet": ("nll", "loss of guessed tokens", 2),
    "T5": ("nll", "loss of spans", 2),
    "BART": ("nll", "loss of the text from its noise", 2),
}


def write(
    options: argparse.Namespace, out: pathlib.Path, rows: list[dict], elmo: dict | None
) -> None:
    """Writes OUT/decoders.md, .json and .png, and memory.png of Transformer-XL.

    Args:
        options: of the command.
        out: the folder.
        rows: of each run "system", "block", "seed", "parameters", "curve" (its validations)
            and "memory" (what `pretrain evaluate --memory` found).
        elmo: "curve" and "tagged" (the rows of `elmo tag`); None = not trained.
    """
    table = _blocks(rows) if rows else []
    curves = {
        system: {
            block: _by(mine, lambda row: row["curve"], "step", "loss")
            for block, mine in _grouped(rows, system).items()
        }
        for system in dict.fromkeys(row["system"] for row in rows)
    }
    if curves:
        mean_curves(curves, out / "decoders.png", "updates", "validation loss, nats a token")
    remembering = [row for row in rows if row["memory"]]
    if remembering:
        table += ["", *_memory(remembering), "", "![Perplexity against memory](memory.png)"]
        lines = {
            block: _by(mine, lambda row: row["memory"], "memory", "perplexity")
            for block, mine in _grouped(remembering, "Transformer-XL").items()
        }
        panels = {"Transformer-XL": lines}
        mean_curves(panels, out / "memory.png", "positions remembered", "validation perplexity")
    if elmo:
        table += ["", *_elmo(elmo)]
    if (out / "few_shot" / "few_shot.md").exists():
        asked = (out / "few_shot" / "few_shot.md").read_text(encoding="utf-8")
        # Its heading one level lower.
        table += ["", "#" + asked.rstrip(), "", "![Score against K](few_shot/few_shot.png)"]
    steps = max((line["step"] for row in rows for line in row["curve"]), default=0)
    title = f"The slides' decoders after {steps:,} updates" if rows else "The slides' decoders"
    record = {"rows": rows, "elmo": elmo}
    studies.write(
        out, "decoders", options, title, table, script="slides", figure=bool(curves), **record
    )


def _grouped(rows: list[dict], system: str) -> dict[str, list[dict]]:
    """A system's rows by their block."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        if row["system"] == system:
            found.setdefault(row["block"], []).append(row)
    return found


def _by(rows: list[dict], lines, place: str, metric: str) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for row in rows:
        for line in lines(row):
            found.setdefault(line[place], []).append(line[metric])
    return found


def _blocks(rows: list[dict]) -> list[str]:
    """A line a system, a column a block: the metric, and millions of weights."""
    blocks = list(dict.fromkeys(row["block"] for row in rows))
    lines = [f"| system | on validation text | seeds | {' | '.join(blocks)} |"]
    lines.append("|---" * (3 + len(blocks)) + "|")
    for system in dict.fromkeys(row["system"] for row in rows):
        metric, label, digits = _SHOWN[system]
        mine = _grouped(rows, system)
        cells = []
        for block in blocks:
            runs = mine.get(block, [])
            score = studies.cell([row["curve"][-1][metric] for row in runs], digits)
            cells.append(score + (f" ({runs[0]['parameters'] / 1e6:.2f}M)" if runs else ""))
        counts = sorted({len(runs) for runs in mine.values()})
        seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        lines.append(f"| {system} | {label} | {seeds} | {' | '.join(cells)} |")
    return lines


def _memory(rows: list[dict]) -> list[str]:
    """Perplexity by the positions that are remembered."""
    lengths = [line["memory"] for line in rows[0]["memory"]]
    lines = ["Transformer-XL's perplexity by the positions that it remembers (64 in training):", ""]
    lines.append(f"| block | {' | '.join(map(str, lengths))} |")
    lines.append("|---" * (1 + len(lengths)) + "|")
    for block, mine in _grouped(rows, "Transformer-XL").items():
        found = _by(mine, lambda row: row["memory"], "memory", "perplexity")
        cells = [studies.cell(found[length], 1) for length in lengths]
        lines.append(f"| {block} | {' | '.join(cells)} |")
    return lines


def _elmo(elmo: dict) -> list[str]:
    last = elmo["curve"][-1]
    lines = [
        f"ELMo after {last['step']:,} updates: perplexity {last['perplexity']:.1f} (forward and "
        "backward); a tagger of CoNLL-2003's entities with and without its vectors:",
        "",
        "| tagger | seeds | F1 |",
        "|---|---|---|",
    ]
    for name in dict.fromkeys(row["name"] for row in elmo["tagged"]):
        scores = [row["f1"] for row in elmo["tagged"] if row["name"] == name]
        lines.append(f"| {name} | {len(scores)} | {studies.cell(scores, 1, 100)} |")
    return lines
