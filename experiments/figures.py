"""Figures for results, drawn without a screen."""

import io
import pathlib

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from macaron_tf.data.files import write_aside


def loss_curves(runs: dict[str, list[dict]], path: pathlib.Path) -> None:
    """Validation loss and BLEU against updates: a line a run, a colour for each first word.

    Args:
        runs: the lines of each run's `metrics.jsonl`, by a name such as "macaron 1".
        path: the PNG to write.

    Raises:
        UserError: it cannot be written.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2)
    groups = list(dict.fromkeys(name.split()[0] for name in runs))
    for axis, metric, label in zip(
        axes,
        ("loss", "bleu"),
        ("validation loss (smoothed, nats a token)", "greedy BLEU"),
        strict=True,
    ):
        for name, lines in runs.items():
            points = [
                (line["step"], line[metric]) for line in lines if line["kind"] == "validation"
            ]
            group = name.split()[0]
            first = name == next(other for other in runs if other.split()[0] == group)
            axis.plot(
                *zip(*points, strict=True),
                color=f"C{groups.index(group)}",
                alpha=0.8,
                label=group if first else None,
            )
        axis.set_xlabel("updates")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[1].legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    write_aside(path, image.getvalue())
