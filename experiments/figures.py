"""Figures of means over seeds with bars of one standard deviation, drawn without a screen."""

import io
import pathlib
import statistics
from collections.abc import Collection

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from macaron_tf.io.paths import write_aside

_COLUMNS = 3  # panels beside each other


def mean_curves(
    panels: dict[str, dict[str, dict[float, list[float]]]],
    path: pathlib.Path,
    x_label: str,
    y_label: str,
    log_x: bool = False,
) -> None:
    """Draws a panel a title, a line a name.

    Args:
        panels: title -> name -> x -> the values of several seeds.
    """
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.5 * columns + 1.5, 3.6 * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(len(panels))]
    # A name has the same colour in every panel.
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for name, points in lines.items():
            xs = sorted(points)
            means, bars = _means([points[x] for x in xs])
            axis.errorbar(xs, means, bars, capsize=2, label=name, color=f"C{names.index(name)}")
        axis.set(title=title, xlabel=x_label, xscale="log" if log_x else "linear")
        axis.grid(alpha=0.3)
    for axis in axes[::columns]:
        axis.set_ylabel(y_label)
    max(axes, key=lambda axis: len(axis.containers)).legend()
    _write(figure, path)


def mean_bars(panels: dict[str, dict[str, list[float]]], path: pathlib.Path, label: str) -> None:
    """Draws a panel a title, a bar a name.

    Args:
        panels: title -> name -> the values of several seeds.
    """
    names = max(map(len, panels.values()))
    size = (3.0 * len(panels) + 1.5, 0.3 * names + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (title, bars) in zip(axes, panels.items(), strict=True):
        means, deviations = _means(bars.values())
        axis.barh(list(bars), means, xerr=deviations, capsize=3)
        axis.set(title=title, xlabel=label)
    axes[0].invert_yaxis()  # the first name on top
    _write(figure, path)


def _means(points: Collection[list[float]]) -> tuple[list[float], list[float]]:
    """The mean of each point's values, and their deviation."""
    deviations = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in points]
    return list(map(statistics.mean, points)), deviations


def _write(figure: Figure, path: pathlib.Path) -> None:
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(image, format="png", dpi=110)
    write_aside(path, image.getvalue())
