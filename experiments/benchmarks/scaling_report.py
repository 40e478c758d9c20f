"""The scaling benchmark's report: exponents, tables, and curves."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.benchmarks.harness import heading
from experiments.benchmarks.mixers import BERT_RAB, MIXERS, Point

TITLE = "The cost of a training step against its size"
# What the axes are called, and the fields of a point that they vary.
AXES = {"L": "length", "B": "batch", "D": "width", "layers": "layers"}
COSTS = {"milliseconds": "time, ms", "mebibytes": "peak memory, MiB"}


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """`cost = factor * size ** exponent`, the straight line of least squares between logarithms.

    Attributes:
        exponent, factor: of the law.
        r_squared: share of the logarithms' variance that it explains; None of two points, which
            any law explains.
        sizes: how many points there were.
    """

    exponent: float
    factor: float
    r_squared: float | None
    sizes: int

    def __str__(self) -> str:
        if self.r_squared is None:
            return f"{self.exponent:.2f} (two points)"
        return f"{self.exponent:.2f} (R² {self.r_squared:.3f})"


def power_law(sizes: Sequence[float], costs: Sequence[float]) -> PowerLaw:
    """Fits a law.

    Args:
        sizes: two or more, different, above 0.
        costs: one of each size, above 0.
    """
    x, y = np.log(sizes), np.log(costs)
    exponent, offset = np.polyfit(x, y, 1)
    spread = np.sum((y - y.mean()) ** 2)
    left = np.sum((y - exponent * x - offset) ** 2)
    r_squared = None
    if len(sizes) > 2:
        r_squared = float(1 - left / spread) if spread > 0 else 1.0
    return PowerLaw(float(exponent), float(np.exp(offset)), r_squared, len(sizes))


def power_laws(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, PowerLaw]:
    """The law of all points, and that of the upper half, which constant costs bend less.

    Args:
        sizes: two or more, rising.
        costs: one of each size.

    Returns:
        By "all" and "upper half"; of two or three points the latter is that of the last two.
    """
    first = min(len(sizes) // 2, len(sizes) - 2)
    return {
        "all": power_law(sizes, costs),
        "upper half": power_law(sizes[first:], costs[first:]),
    }


def laws(of_axis: list[dict], mixer: str, cost: str) -> dict[str, PowerLaw] | None:
    """The laws of one mixer's cost over an axis; None without two sizes that cost anything."""
    sizes, costs = [], []
    for one in of_axis:
        (row,) = (row for row in one["rows"] if row["name"] == mixer)
        value = _middle(row.get(cost))
        if value:
            sizes.append(one["at"])
            costs.append(value)
    return power_laws(sizes, costs) if len(sizes) > 1 else None


def exponents(results: Mapping) -> dict:
    """All laws as JSON takes them: by axis, mixer, cost, and "all" or "upper half"."""
    return {
        axis: {
            mixer: {
                cost: {name: dataclasses.asdict(law) for name, law in found.items()}
                for cost in COSTS
                if (found := laws(of_axis, mixer, cost))
            }
            for mixer in MIXERS
        }
        for axis, of_axis in results.items()
    }


def _middle(value: list[float] | float | None) -> float | None:
    return value[1] if isinstance(value, list) else value


def report(results: Mapping, facts: Mapping, about: str) -> str:
    """The report as text: the exponents of all axes, then a table of points for each.

    Args:
        results: of each axis its points, rising: the size "at", the "point", the mixers' "rows".
        facts: from `machine`.
        about: of all steps.
    """
    lines = [
        *heading(TITLE, facts),
        f"Forward and backward, {about}. Times are medians of interleaved rounds, quartiles in "
        "brackets; memory is what a step's peak adds to weights and inputs. Exponents are of "
        "cost = a size^p, least squares of the logarithms.",
        "",
        "## Exponents",
        "",
        "| against | mixer | time, all | time, upper half | memory, all | memory, upper half |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for axis, of_axis in results.items():
        span = f"{axis} {of_axis[0]['at']} to {of_axis[-1]['at']}"
        for mixer in MIXERS:
            cells = [span, mixer]
            for cost in COSTS:
                found = laws(of_axis, mixer, cost)
                cells += [str(law) for law in found.values()] if found else ["-", "-"]
            lines.append(f"| {' | '.join(cells)} |")
    for axis, of_axis in results.items():
        lines += [
            "",
            f"## {axis}: {_others(of_axis)}",
            "",
            f"| {axis} | mixer | ms a step | time ratio to {BERT_RAB} | peak MiB |",
            "| --- | --- | --- | --- | --- |",
        ]
        for one in of_axis:
            for row in one["rows"]:
                low, middle, high = row["milliseconds"]
                memory = f"{row['mebibytes']:.1f}" if "mebibytes" in row else "-"
                lines.append(
                    f"| {one['at']} | {row['name']} | {middle:.1f} ({low:.1f} to {high:.1f}) | "
                    f"{row['ratio'][1]:.2f} | {memory} |"
                )
    return "\n".join(lines) + "\n"


def _others(of_axis: list[dict]) -> str:
    """What the other sizes are: those that all points share, and B L where it is the same."""
    points = [Point(**one["point"]) for one in of_axis]
    shared = [
        f"{name} {getattr(points[0], field)}"
        for name, field in AXES.items()
        if len({getattr(point, field) for point in points}) == 1
    ]
    if len({point.batch for point in points}) > 1 and len({p.tokens for p in points}) == 1:
        shared.append(f"B L {points[0].tokens}")
    return ", ".join(shared)


def figure(results: Mapping):
    """Time and memory against each axis, log-log, exponents of the upper half in the legends."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(10, 3.6 * len(results)), layout="constrained")
    grid = drawing.subplots(len(results), len(COSTS), squeeze=False)
    for (axis, of_axis), places in zip(results.items(), grid, strict=True):
        for (cost, label), axes in zip(COSTS.items(), places, strict=True):
            for mixer in MIXERS:
                values = [
                    _middle(row.get(cost))
                    for one in of_axis
                    for row in one["rows"]
                    if row["name"] == mixer
                ]
                found = laws(of_axis, mixer, cost)
                if found:
                    name = f"{mixer}: {axis}^{found['upper half'].exponent:.2f}"
                    axes.plot([one["at"] for one in of_axis], values, marker="o", label=name)
            axes.set(xscale="log", yscale="log", xlabel=axis, ylabel=label)
            axes.set_xticks([one["at"] for one in of_axis], [str(one["at"]) for one in of_axis])
            axes.minorticks_off()
            axes.set_title(_others(of_axis), fontsize="medium")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize="small")
    return drawing
