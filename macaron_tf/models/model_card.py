"""Model cards in Markdown, with the YAML header that model hubs read."""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from macaron_tf.models.base import Model

# Metric names of this library and of the Hugging Face Hub.
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
# Names of datasets in TensorFlow Datasets or of tasks, and the names on the Hugging Face Hub.
_HUB_DATASETS = {
    **dict.fromkeys(
        ("glue", "cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"),
        "nyu-mll/glue",
    ),
    **dict.fromkeys(("super_glue", "boolq", "multirc"), "aps/super_glue"),
    "conll2003": "eriktks/conll2003",
    "multi30k": "bentrevett/multi30k",
    "snli": "stanfordnlp/snli",
    "xnli": "facebook/xnli",
    "squad": "rajpurkar/squad",
    "squad2": "rajpurkar/squad_v2",
    "imdb_reviews": "stanfordnlp/imdb",
    "wikipedia": "wikimedia/wikipedia",
    "pg19": "deepmind/pg19",
}
USE_OF_EXPORT = """## Use

This folder is a version of a SavedModel. `macaron serve MODEL` serves the model over REST and gRPC,
where MODEL is the parent folder (in a checkout: `macaron serve MODEL`). TensorFlow Serving
can also serve the model. A program that loads this folder needs tensorflow and tensorflow_text.
"""
_COMMANDS = """\
`macaron export DIR OUT` writes the model as a SavedModel. In a checkout, the command is
`macaron export DIR OUT`. With `--init DIR`, the training commands start from these
weights.
"""


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """Facts that appear in every type of model card.

    Attributes:
        name: title of the card.
        languages: language codes (see `Pretrained`).
        recipe: recipe of the training run (see `Pretrained`).
        results: results of the training run (see `Pretrained`).
        license: license of the weights (see `Pretrained`).
        unlisted: names of recipe settings that the card omits. A name that ends with "." means a
            whole section.
        pipeline: name of the task on the Hugging Face Hub. "" means no task.
    """

    name: str
    languages: Iterable[str] = ()
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    results: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    license: str = ""
    unlisted: tuple[str, ...] = ()
    pipeline: str = ""

    def header(self, **fields: Any) -> str:
        """Returns the YAML header that model hubs read.

        Args:
            fields: additional fields, which come first. Empty fields are omitted.
        """
        scores = {**self.results.get("scores", {}), "validation": self.results.get("metrics", {})}
        metrics = dict.fromkeys(path.rpartition(".")[2] for path, _ in _leaves(scores))
        fields |= {
            "license": self.license,
            "language": [*self.languages],
            "datasets": self._datasets(),
            "metrics": [_HUB_METRICS[metric] for metric in metrics if metric in _HUB_METRICS],
        }
        return "\n".join(["---", *(f"{k}: {_text(v)}" for k, v in fields.items() if v), "---"])

    def _datasets(self) -> list[str]:
        """Returns the names of the recipe's datasets on the Hugging Face Hub.

        Datasets without an entry in `_HUB_DATASETS` are omitted.
        """
        text = " ".join(str(value) for _, value in _leaves(self.recipe))
        names = [*re.findall(r"tfds:(\w+)", text), str(self.recipe.get("task"))]
        return [*dict.fromkeys(_HUB_DATASETS[name] for name in names if name in _HUB_DATASETS)]

    def training_sections(self) -> Iterator[str]:
        """Yields the card's sections with the training settings and the results.

        A section without rows is "".
        """
        omitted = ("kind", "model_options", *self.unlisted)
        sections = tuple(name for name in omitted if name.endswith("."))
        yield _table(
            "Training",
            ("setting", "value"),
            (
                row
                for row in _leaves(self.recipe)
                if row[0] not in omitted and not row[0].startswith(sections)
            ),
        )
        measured = {f"validation, step {self.results.get('step')}": self.results.get("metrics", {})}
        measured |= self.results.get("scores", {})
        rows = (
            (title, *metric) for title, metrics in measured.items() for metric in _leaves(metrics)
        )
        yield _table("Results", ("text", "metric", "value"), rows)


def model_card(
    facts: CardFacts, network: keras.Model, vocabulary_size: int | None, use: str
) -> str:
    """Returns the text of a README.md for a network.

    Args:
        facts: facts of the model card.
        network: the network.
        vocabulary_size: vocabulary size. `None` means that the model has no vocabulary.
        use: section about usage, from `use_of_folder` or `USE_OF_EXPORT`.
    """
    class_name, weights = type(network).__name__, network.count_params()
    vocabulary = (
        "without a vocabulary"
        if vocabulary_size is None
        else f"with a vocabulary of {vocabulary_size:,} pieces"
    )
    sections = [
        facts.header(
            library_name="keras", pipeline_tag=facts.pipeline, tags=["macaron_tf", class_name]
        ),
        f"# {facts.name}\n\nNetwork: `{class_name}`, {weights:,} weights, {vocabulary}.\n",
        use,
    ]
    if isinstance(network, Model):
        rows = [row for row in _changed_fields(network.config) if row[0] not in network.unread()]
        sections.append(_table("Model", ("setting", "value"), rows))
    return "\n".join(filter(None, [*sections, *facts.training_sections()]))


def use_of_folder(location: str, texts: Iterable[str], code: Iterable[str] = ()) -> str:
    """Returns the card's section on how to use a folder that `save_pretrained` wrote.

    Args:
        location: argument for `macaron_tf.load`: the folder or a name on the Hugging Face Hub.
        texts: one example text for each input of the model's task. Models without a task have no
            example texts.
        code: names of Python files in the folder that the network needs.
    """
    trust_argument = ", trust_code=True" if code else ""
    arguments = ", ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    lines = [
        "```python",
        "import macaron_tf\n",
        f'model = macaron_tf.load("{location}"{trust_argument})',
        f"model.predict({arguments})" if arguments else "model.network, model.vocabulary",
        "```\n",
    ]
    files = ", ".join(f"`{file}`" for file in code)
    note = f"The network needs {files}. `trust_code=True` runs this code, so read the code first.\n"
    return "\n".join(["## Use\n", *lines, *([note] if files else []), _COMMANDS])


# Python code that runs a transformers model, by the name of the task on the Hugging Face Hub.
_FORWARD_CODE = 'inputs = tokenizer("A text.", return_tensors="pt")\noutputs = model(**inputs)'
_GENERATE_CODE = (
    'inputs = tokenizer("A text", return_tensors="pt")\n'
    "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))"
)
_CODE_OF_PIPELINES = {
    **dict.fromkeys(("text-generation", "translation", "text2text-generation"), _GENERATE_CODE),
    "question-answering": (
        'inputs = tokenizer("A question?", "A context.", return_tensors="pt")\n'
        "outputs = model(**inputs)"
    ),
    "multiple-choice": (
        'texts, ends = ["A text."] * 2, ["One end.", "Another."]\n'
        'inputs = tokenizer(texts, ends, return_tensors="pt", padding=True)\n'
        "outputs = model(**{name: rows[None] for name, rows in inputs.items()})"
    ),
}


def hub_card(
    facts: CardFacts,
    library: str,
    pipeline: str,
    class_name: str,
    notes: Iterable[str] = (),
    code: bool = False,
    tokenizer: bool = True,
    location: str = "DIR",
) -> str:
    """Returns the README.md of a model in Hugging Face's format.

    Args:
        facts: facts of the model card.
        library: name of the library that opens the folder.
        pipeline: name of the task on the Hugging Face Hub. "" means no task.
        class_name: name of the model class in transformers, such as `BertForMaskedLM`.
        notes: sentences about parts of the model that were left out or added.
        code: whether the folder contains the model class as Python code.
        tokenizer: whether the folder contains a tokenizer.
        location: the folder, or `OWNER/NAME` on the Hugging Face Hub.
    """
    trust_argument = ", trust_remote_code=True" if code else ""
    lines = [
        "import transformers\n",
        f'model = transformers.{class_name}.from_pretrained("{location}"{trust_argument})',
    ]
    if tokenizer:
        lines.append(f'tokenizer = transformers.AutoTokenizer.from_pretrained("{location}")')
        lines.append(_CODE_OF_PIPELINES.get(pipeline, _FORWARD_CODE))
    if library == "sentence-transformers":
        lines = [
            "import sentence_transformers\n",
            f'model = sentence_transformers.SentenceTransformer("{location}"{trust_argument})',
            'vectors = model.encode(["A text."])',
        ]
    remarks = "\n".join(f"- {note}" for note in notes)
    sections = [
        facts.header(library_name=library, pipeline_tag=pipeline, tags=["macaron_tf"]),
        f"# {facts.name}\n\nA `{class_name}` trained with macaron_tf.\n",
        "\n".join(["## Use\n", "```python", *lines, "```\n"]),
        '`macaron_tf.load("hugging-face:DIR")` loads the folder in macaron_tf. With\n'
        "`--init hugging-face:DIR`, macaron_tf's training commands start from these weights.\n",
        f"## Notes\n\n{remarks}\n" if remarks else "",
        *facts.training_sections(),
    ]
    return "\n".join(filter(None, sections))


def _changed_fields(config) -> Iterator[tuple[str, Any]]:
    """Yields names and values of the configuration fields that differ from their defaults.

    Fields without a default are included.
    """
    for field in dataclasses.fields(config):
        if (value := getattr(config, field.name)) != field.default:
            yield field.name, value


def _leaves(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted paths and values of nested settings.

    Values that are `None` or empty are skipped.
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        elif value not in (None, "", [], ()):
            yield f"{path}{name}", value


def _table(title: str, columns: Iterable[str], rows: Iterable[tuple]) -> str:
    """Returns a card section that contains a Markdown table, or "" if there are no rows."""
    lines = [[_text(cell).replace("|", "\\|") for cell in row] for row in rows]
    if not lines:
        return ""
    lines = [[*columns], ["---"] * len([*columns]), *lines]
    return "\n".join([f"## {title}\n", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _text(value) -> str:
    """Formats a value in one line. Floats are rounded to five significant digits."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, Mapping):
        return " ".join(_text(item) for item in value.values() if item is not None)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return " ".join(str(value).split())
