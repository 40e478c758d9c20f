"""The model card of a saved network: Markdown with the header that model hubs read."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from macaron_tf.models.base import Model

# The hub's names of our metrics.
_HUB_METRICS = {
    "accuracy": "accuracy",
    "f1": "f1",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "exact_match": "exact_match",
    "bleu": "bleu",
    "perplexity": "perplexity",
}
_USE = """## Use

```python
import macaron_tf

model = macaron_tf.load("DIR")  # this folder
model.network, model.vocabulary
model.task  # such as <Spans: question, context -> answers>: model.predict(question, context)
```

`python -m macaron_tf export DIR OUT` exports it where it answers text; the training commands start
from its weights by `--init DIR`.
"""


def model_card(
    name: str,
    network: keras.Model,
    pieces: int | None,
    languages: Iterable[str],
    recipe: Mapping[str, Any],
    results: Mapping[str, Any],
) -> str:
    """The text of a README.md.

    Args:
        pieces: of the vocabulary; None = there is none.
        languages, recipe, results: see `Pretrained`.
    """
    kind, weights = type(network).__name__, network.count_params()
    header = {"library_name": "keras", "tags": ["macaron_tf", kind], "language": [*languages]}
    reads = "without a vocabulary" if pieces is None else f"with a vocabulary of {pieces:,} pieces"
    parts = [
        "\n".join(["---", *(f"{k}: {_text(v)}" for k, v in header.items() if v), "---"]),
        f"# {name}\n\nNetwork: `{kind}`, {weights:,} weights, {reads}.\n",
        _USE,
    ]
    if isinstance(network, Model):
        parts.append(_table("Model", ("setting", "value"), _chosen(network.config)))
    return "\n".join(filter(None, [*parts, *_trained(recipe, results)]))


_HUB_USE = """## Use

```python
import transformers

model = transformers.{call}  # this folder
tokenizer = transformers.AutoTokenizer.from_pretrained("DIR")
```

macaron_tf starts from these weights by `--init hugging-face:DIR`.
"""


def hub_card(
    name: str,
    library: str,
    pipeline: str,
    kind: str,
    languages: Iterable[str],
    recipe: Mapping[str, Any],
    results: Mapping[str, Any],
    notes: Iterable[str] = (),
    code: bool = False,
) -> str:
    """The README.md of a model in Hugging Face's form, with the header that its hub reads.

    Args:
        library: that opens the folder.
        pipeline: the task as the hub calls it; "" = none.
        kind: the class of transformers.
        code: whether that class lies in the folder, as Python code.
        languages, recipe, results: see `Pretrained`.
        notes: sentences about parts that are left out or added.
    """
    scores = {**results.get("scores", {}), "validation": results.get("metrics", {})}
    metrics = dict.fromkeys(path.rpartition(".")[2] for path, _ in _leaves(scores))
    header = {
        "library_name": library,
        "pipeline_tag": pipeline,
        "tags": ["macaron_tf"],
        "language": [*languages],
        "metrics": [_HUB_METRICS[metric] for metric in metrics if metric in _HUB_METRICS],
    }
    call = f'{kind}.from_pretrained("DIR"{", trust_remote_code=True" if code else ""})'
    remarks = "\n".join(f"- {note}" for note in notes)
    parts = [
        "\n".join(["---", *(f"{k}: {_text(v)}" for k, v in header.items() if v), "---"]),
        f"# {name}\n\nTrained with macaron_tf; opens as `{kind}`.\n",
        _HUB_USE.format(call=call),
        f"## Notes\n\n{remarks}\n" if remarks else "",
        *_trained(recipe, results),
    ]
    return "\n".join(filter(None, parts))


def _trained(recipe: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    """The sections of a run's settings and of its metrics."""
    settings = [row for row in _leaves(recipe) if row[0] not in ("kind", "model_options")]
    yield _table("Training", ("setting", "value"), settings)
    measured = {f"validation, step {results.get('step')}": results.get("metrics", {})}
    measured |= results.get("scores", {})
    rows = ((where, *item) for where, metrics in measured.items() for item in _leaves(metrics))
    yield _table("Results", ("text", "metric", "value"), rows)


def _chosen(config) -> Iterator[tuple[str, Any]]:
    """The fields of a configuration that are not their defaults."""
    for field in dataclasses.fields(config):
        if (value := getattr(config, field.name)) != field.default:
            yield field.name, value


def _leaves(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths and values of nested settings, without those that are None or empty."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        elif value not in (None, "", [], ()):
            yield f"{path}{name}", value


def _table(title: str, columns: Iterable[str], rows: Iterable[tuple]) -> str:
    """A section with a Markdown table; "" without rows."""
    lines = [[_text(cell).replace("|", "\\|") for cell in row] for row in rows]
    if not lines:
        return ""
    lines = [[*columns], ["---"] * len([*columns]), *lines]
    return "\n".join([f"## {title}\n", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _text(value) -> str:
    """A value in a line: numbers to five digits, lists as YAML and JSON write them."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return " ".join(str(value).split())
