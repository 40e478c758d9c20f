"""Model cards in Markdown, with the YAML header that model hubs read."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from macaron_tf.models.base import Network
from macaron_tf.models.model_parts import Card, ModelParts

USE_OF_EXPORT = """This folder is a version of a SavedModel. `macaron serve MODEL` serves the model
over REST, where MODEL is the parent folder. TensorFlow Serving can also serve the model. A program
that loads this folder needs tensorflow and tensorflow_text.
"""
_COMMANDS = """`macaron export DIR OUT` writes the model as a SavedModel. `macaron train
RECIPE RUN --init DIR` starts from these weights.
"""


def readme(
    card: Card, library: str, pipeline: str, *sections: str, tags: tuple[str, ...] = ()
) -> str:
    """Returns the text of a README.md: YAML header, title, `sections`, training and results.

    Args:
        pipeline: name of the task on the Hugging Face Hub. "" means no task.
    """
    title = f"validation, step {card.results.get('step')}"
    rows = [(title, *leaf) for leaf in _leaves(card.results.get("metrics", {}))]
    fields = {
        "library_name": library,
        "pipeline_tag": pipeline,
        "tags": ["macaron_tf", *tags],
        "license": card.license,
        "language": [*card.languages],
    }
    omitted = ("kind", "model_options", *card.unlisted)
    settings = [leaf for leaf in _leaves(card.recipe) if not leaf[0].startswith(omitted)]
    parts = ["\n".join(["---", *(f"{k}: {_text(v)}" for k, v in fields.items() if v), "---"])]
    parts += [f"# {card.name or 'model'}\n", *sections]
    parts += [_table("Training", "setting value", settings)]
    return "\n".join(filter(None, [*parts, _table("Results", "text metric value", rows)]))


def model_card(model: ModelParts, pipeline: str, use: str) -> str:
    """Returns the text of a README.md for a model, with the section `use` about its usage."""
    network, class_name = model.network, type(model.network).__name__
    size = model.vocabulary.pieces if model.vocabulary else None
    vocabulary = "no vocabulary" if size is None else f"a vocabulary of {size:,} pieces"
    rows = []
    if isinstance(network, Network):
        config = network.config
        rows = [
            (field.name, getattr(config, field.name))
            for field in dataclasses.fields(config)
            if getattr(config, field.name) != field.default and field.name not in network.unread()
        ]
    about = f"Network: `{class_name}`, {network.count_params():,} weights, with {vocabulary}.\n"
    sections = (about, f"## Use\n\n{use}", _table("Network", "setting value", rows))
    return readme(model.card, "keras", pipeline, *sections, tags=(class_name,))


def use_of_folder(location: str, texts: Iterable[str], code: Iterable[str] = ()) -> str:
    """Returns a card's text on how to use a folder that `save_pretrained` wrote.

    `location` is the folder or a name on the Hugging Face Hub, `texts` are one example for each
    input of the task, if any, and `code` names Python files in the folder that the network needs.
    """
    trust_argument = ", trust_code=True" if code else ""
    arguments = ", ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    call = f"model.predict({arguments})" if arguments else "model.network, model.vocabulary"
    load = f'model = macaron_tf.load("{location}"{trust_argument})'
    files = ", ".join(f"`{file}`" for file in code)
    note = f"The network needs {files}. `trust_code=True` runs this code, so read the code first.\n"
    block = python_block("import macaron_tf", load, call)
    return block + (f"\n{note}" if files else "") + _COMMANDS


def python_block(imports: str, *lines: str) -> str:
    return "\n".join(["```python", f"{imports}\n", *lines, "```\n"])


def _leaves(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted paths and values of nested settings, without `None` and empty values."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        elif value not in (None, "", [], ()):
            yield f"{path}{name}", value


def _table(title: str, columns: str, rows: Iterable[tuple]) -> str:
    """Returns a section that contains a Markdown table, or "" if there are no rows."""
    lines = [[_text(cell).replace("|", "\\|") for cell in row] for row in rows]
    if not lines:
        return ""
    lines = [columns.split(), ["---"] * len(columns.split()), *lines]
    return "\n".join([f"## {title}\n", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _text(value: Any) -> str:
    """Formats a value in one line. Floats are rounded to five significant digits."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, Mapping):
        return " ".join(_text(item) for item in value.values() if item is not None)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return " ".join(str(value).split())
