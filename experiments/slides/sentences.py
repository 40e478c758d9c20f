"""What a pre-trained encoder's mean pooling makes of STS-B, before and after Sentence-BERT."""

import json
import pathlib

from experiments.studies import command

UNTRAINED, TRAINED = "mean pooling", "Sentence-BERT"
# The paper's 2e-5 is for encoders of 12 layers and more.
_RATE = "training.learning_rate=1e-4"


def scores(
    run: pathlib.Path, out: pathlib.Path, train: bool, data_dir: str | None
) -> dict[str, float]:
    """Spearman's correlations on the development set, of the vectors' cosines with the scores.

    Args:
        run: a pre-training run.
        out: folder of what is made for it.
        train: also train it on STS-B first.
        data_dir: TensorFlow Datasets' folder.
    """
    data = ["--data-dir", data_dir] if data_dir else []
    found = {UNTRAINED: _evaluated(run, out / "untrained", data)}
    if train:
        words = ["stsb", str(out / "run"), "--init", str(run), "--set", _RATE, *data]
        command("embed", "train", *words)
        found[TRAINED] = _evaluated(out / "run", out / "trained", data)
    return found


def _evaluated(encoder: pathlib.Path, out: pathlib.Path, data: list[str]) -> float:
    """`embed evaluate`, unless its metrics are there."""
    if not list(out.glob("*.json")):
        words = [str(encoder), "--task", "stsb", "--output", str(out), *data]
        command("embed", "evaluate", *words)
    [file] = out.glob("*.json")
    return json.loads(file.read_text(encoding="utf-8"))["metrics"]["spearman"]
