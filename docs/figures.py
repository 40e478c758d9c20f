"""Draws figures of the documentation from the committed results, without a new measurement.

    python docs/figures.py

It writes docs/findings.png and the figures of some studies in experiments/results. The backgrounds
are white, so that the figures are readable on light and on dark pages.
"""

import functools
import json
import pathlib
import statistics
from collections import defaultdict

import scipy.stats
from matplotlib.figure import Figure

from experiments import studies

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
ARMS = {
    "transformer": "Transformer",
    "macaron": "Macaron",
    "full": "Macaron, full steps",
    "full-steps": "Macaron, full steps",
    "behind": "both feed-forwards after attention",
    "outside": "half attentions outside",
    "parallel": "parallel branches",
    "strang": "Macaron, one shared feed-forward",
    "strang-heun": "the same by Heun",
    "transformer-heun": "Transformer by Heun",
    "twice": "half a layer, twice",
    "swish": "SwishRNN",
    "swish_rnn": "SwishRNN",
    "llama": "Llama",
    "macaron-llama": "Macaron with Llama's parts",
    "bert": "BERT",
    "rab": "BERT-rab",
    "modern": "ModernBERT",
    "macaron-modern": "Macaron with ModernBERT's parts",
    "shared": "shared layers",
    "narrow": "narrow embeddings",
    "k1-2-4": "step sizes 1, 2, 4",
    "k1": "step size 1",
    "k2": "step size 2",
    "sigmoid": "gate by a sigmoid",
    "gmlp": "gMLP",
    "amlp": "aMLP",
}
SOLVERS = {"exact": "exact", "euler": "Euler's", "heun": "Heun's"}
OPERATORS = {
    "random": "random",
    "runs/compare/transformer-1": "Transformer",
    "runs/compare/macaron-1": "Macaron",
}
# Comparisons of docs/findings.md: text, results, study, arm, baseline, whether it is decided.
GPT = ("splitting", "equal updates")
MODERN_GPT = ("compare", "today's parts")
BERT = ("encoders", "four encoders")
MODERN_BERT = ("encoders", "today's parts")
MODERN_TRANSLATOR = ("multi30k", "today's parts")
FINDINGS = {
    "GPT against the Transformer's block, loss in nats": [
        ("parallel branches", *GPT, "parallel", "transformer", True),
        ("Macaron with full steps", *GPT, "full", "transformer", True),
        ("Macaron", *GPT, "macaron", "transformer", True),
        ("Macaron's half steps, against full steps", *GPT, "macaron", "full", True),
        ("order three, against order two", *GPT, "strang-heun", "strang", True),
        ("SwishRNN", *MODERN_GPT, "swish", "transformer", True),
        ("Llama's parts", *MODERN_GPT, "llama", "transformer", True),
        ("Macaron in Llama, against Llama", *MODERN_GPT, "macaron-llama", "llama", True),
    ],
    "BERT, loss of masked tokens in nats": [
        ("SwishRNN, against BERT", *BERT, "swish", "bert", True),
        ("SwishRNN, against BERT-rab", *BERT, "swish", "rab", True),
        ("SwishRNN, against ModernBERT", *MODERN_BERT, "swish", "modern", True),
        ("Macaron, against BERT", *BERT, "macaron", "bert", False),
        ("Macaron in ModernBERT, against it", *MODERN_BERT, "macaron-modern", "modern", False),
        ("narrow embeddings (ALBERT)", "encoders", "ALBERT", "narrow", "full", True),
        ("shared layers (ALBERT)", "encoders", "ALBERT, all layers", "shared", "full", False),
    ],
    "Translation, BLEU": [
        ("Macaron, against the Transformer", "multi30k", "blocks", "macaron", "transformer", False),
        ("Llama's parts", *MODERN_TRANSLATOR, "modern", "transformer", True),
        ("Macaron in Llama's parts", *MODERN_TRANSLATOR, "macaron-modern", "modern", False),
    ],
}


@functools.cache
def results(folder: str) -> dict:
    return json.loads((RESULTS / folder / "results.json").read_text(encoding="utf-8"))


def difference(folder: str, study: str, arm: str, baseline: str) -> tuple[float, float, float]:
    """Returns the mean of the paired differences between two arms and its 95% interval."""
    metric = "tokenized_bleu" if folder == "multi30k" else "loss"
    scores: dict[str, dict[int, float]] = defaultdict(dict)
    for row in results(folder)[study]["rows"]:
        scores[row["arm"]][row["seed"]] = row[metric]
    pairs = [score - scores[baseline][seed] for seed, score in scores[arm].items()]
    interval = scipy.stats.ttest_1samp(pairs, 0.0).confidence_interval(0.95)
    return statistics.mean(pairs), float(interval.low), float(interval.high)


def draw_findings() -> None:
    """Draws a forest plot: the effect of each finding with its interval, by model."""
    figure = Figure(figsize=(9, 6.6), layout="constrained")
    heights = [len(rows) for rows in FINDINGS.values()]
    axes = figure.subplots(len(heights), 1, height_ratios=heights)
    for axis, (title, rows) in zip(axes, FINDINGS.items(), strict=True):
        for place, (text, *where, decided) in enumerate(rows):
            mean, low, high = difference(*where)
            print(f"{title}: {text}: {mean:+.3f} ({low:+.3f} to {high:+.3f})")
            better = (mean > 0) if "BLEU" in title else (mean < 0)
            color = ("tab:green" if better else "tab:red") if decided else "tab:gray"
            axis.errorbar(mean, place, xerr=[[mean - low], [high - mean]], fmt="o", color=color)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_yticks(range(len(rows)), [row[0] for row in rows])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        higher = " (right is better)" if "BLEU" in title else " (left is better)"
        axis.set_title(title + higher, loc="left", fontsize=10)
        axis.grid(alpha=0.3, axis="x")
    figure.supxlabel("difference from the baseline, 95% interval; gray: not decided", fontsize=10)
    studies.write_figure(figure, ROOT / "docs" / "findings.png")


def curves(rows: list[dict], key: str = "arm", names: dict[str, str] = ARMS) -> dict:
    """Returns the curves of rows whose points are lists, as `studies.mean_curves` takes them."""
    lines: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for step, loss in zip(row["curve"]["step"], row["curve"]["loss"], strict=True):
            lines[names.get(row[key], row[key])][step].append(loss)
    return lines


def draw_curves(folder: str, panels: dict[str, str]) -> None:
    """Draws the validation losses of a folder's studies; `panels` are their names and titles."""
    lines, levels = {}, {}
    for study, title in panels.items():
        lines[title] = curves(results(folder)[study]["rows"])
        if level := results(folder)[study].get("guessing"):
            levels[title] = level, "chance level"
    path = RESULTS / folder / "results.png"
    studies.mean_curves(lines, path, "updates", "loss, nats per token", levels=levels)


def draw_rab_and_swish() -> None:
    """Draws the encoders' figure, one of whose studies has runs of tuning and post-norm arms."""
    study = results("encoders")["BERT-rab and SwishRNN"]
    study["rows"] = [row for row in study["rows"] if row["seed"] > 1]
    study["guessing"] = results("encoders")["four encoders"]["guessing"]
    for row in (*study["rows"], *results("encoders")["ALBERT"]["rows"]):
        row["arm"] = {"full": "ModernBERT"}.get(row["arm"], row["arm"].removesuffix(", pre-norm"))
    draw_curves(
        "encoders",
        {
            "four encoders": "four encoders, seeds 5 to 7",
            "BERT-rab and SwishRNN": "both norms, seeds 2 to 4",
            "BERT-rab and SwishRNN, other seeds": "pre-norm, seeds 5 to 7",
            "today's parts": "today's parts",
            "ALBERT": "ALBERT's savings",
        },
    )


def draw_decoders() -> None:
    """Draws the slides' decoders; a title says how many seeds its panel has."""
    panels = {}
    all_rows = results("slides_decoders")["decoders"]["rows"]
    for system, rows in studies.grouped(all_rows, "system").items():
        count = len({row["seed"] for row in rows})
        title = f"{system}, {count} seed{'s' * (count > 1)}"
        panels[title] = curves(rows, "block")
    path = RESULTS / "slides_decoders" / "results.png"
    studies.mean_curves(panels, path, "updates", "validation loss, nats per token")


def draw_local_errors() -> None:
    """Draws the local errors of splitting schemes on random and on trained operators."""
    panels: dict[str, dict] = {}
    for study in results("ode").values():
        for row in study["order and error at each step size"]:
            scheme, solver = row["scheme"].split("; ")
            if solver not in SOLVERS or row["operators"] not in OPERATORS:
                continue
            errors = zip(*(pair[1:] for pair in row["pairs"]), strict=True)
            points = zip(map(float, study["step sizes"]), map(list, errors), strict=True)
            title = f"{OPERATORS[row['operators']]}, {SOLVERS[solver]} sub-steps"
            panels.setdefault(title, {})[scheme.removesuffix(", order 4")] = dict(points)
    path = RESULTS / "ode" / "results.png"
    studies.mean_curves(panels, path, "step size", "local error", log_x=True, log_y=10)


def draw_scaling() -> None:
    """Draws time and memory of a training step, of SwishRNN's parts and of each block."""
    sizes = {"L": "row length", "B": "rows", "D": "width", "layers": "layers"}
    panels: dict[str, dict] = {}
    for axis, points in results("scaling")["sizes"]["points"].items():
        for point in points:
            for row in point["rows"]:
                add_costs(panels, sizes[axis], row["name"], point["at"], row)
    draw_costs(panels, "results")
    blocks: dict[str, dict] = {}
    (rows,) = results("scaling")["blocks"]["settings"].values()
    for row in rows:
        add_costs(blocks, "row length, 4,096 tokens a step", ARMS[row["mixer"]], row["at"], row)
    draw_costs(blocks, "blocks")


def add_costs(panels: dict[str, dict], size: str, name: str, at: int, row: dict) -> None:
    """Adds the median time and the memory at a size to the lines of the panels of this size."""
    time, memory = statistics.median(row["milliseconds"]), row["mebibytes"]
    for quantity, value in (("time, ms", time), ("memory, MiB", memory)):
        panels.setdefault(f"{quantity}, by {size}", {}).setdefault(name, {})[at] = [value]


def draw_costs(panels: dict[str, dict], name: str) -> None:
    path = RESULTS / "scaling" / f"{name}.png"
    studies.mean_curves(panels, path, "", "", log_x=True, log_y=2)


def main() -> None:
    draw_findings()
    draw_curves("splitting", {"equal updates": "equal updates", "equal time": "equal time"})
    draw_curves(
        "compare",
        {
            "quick start": "one learning rate",
            "today's parts": "best of four rates",
            "today's parts, equal time": "equal time",
        },
    )
    draw_curves("step_sizes", {name: name for name in results("step_sizes")})
    draw_rab_and_swish()
    draw_decoders()
    draw_local_errors()
    draw_scaling()


if __name__ == "__main__":
    main()
