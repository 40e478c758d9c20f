"""Measures the numerical error of each export format for many models and heads.

    .venv-peers/bin/python -m experiments.lab.benchmarks.exports OUT [--only classes:gmlp_tiny]

All models are tiny and have random weights. The benchmark exports each model in each format, and
writes a table with a row for each model and a column for each format. A cell has the maximum
difference between the outputs of the export and of the float32 network, divided by the maximum
output. If a format is not supported, the cell says why. The column "Hugging Face" says whether the
model can be saved for Hugging Face, and whether loading then needs `trust_remote_code`.

The command writes `README.md` and `results.json` to OUT after each row. Without `--only`, it skips
rows that `results.json` already has.
"""

import argparse
import contextlib
import io
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from experiments.studies import commit, table
from macaron_tf import models
from macaron_tf.engines.certificate import LINE, TEXTS
from macaron_tf.errors import UserError
from macaron_tf.interop.hugging_face import hugging_face_folder
from macaron_tf.io.paths import write_aside
from macaron_tf.models import catalog
from macaron_tf.pretrained import Pretrained
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary
from macaron_tf.text.words import WordVocabulary

INT8 = "LiteRT int8"  # exported separately, because an export has at most one LiteRT file
# Dict mapping a format to arguments of `Pretrained.export`. In the certificate, the field `target`
# begins with the name of the format.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "SavedModel": {},
    "LiteRT fp32": {"lite": "fp32"},
    INT8: {"lite": "int8"},
    "ONNX": {"formats": ("onnx",)},
    "OpenVINO": {"formats": ("openvino",)},
}
HUGGING_FACE = "Hugging Face"
CLASSES = ("bert", "macaron_bert", "bert_rab", "gmlp", "amlp", "swish_rnn", "albert", "electra")
CLASSES += ("roberta", "span_bert", "xlnet", "xlm")
PAIR = {"name": "pair", "first": ["first"], "second": ["second"], "labels": ["no", "yes"]}
TAGS = {"name": "tags", "first": ["words"], "labels": ["O", "B-X", "I-X"], "kind": "tags"}
SPANS = {"name": "spans", "first": ["question"], "second": ["context"], "kind": "spans"}
CHOICE = {
    "name": "choice",
    "first": ["context"],
    "second": ["a", "b", "c"],
    "labels": ["a", "b", "c"],
    "kind": "choice",
}


def _labelled(task: Mapping[str, Any], longest: int = 128) -> dict[str, Any]:
    spans = {"doc_stride": 16, "max_question": 32, "max_answer": 8}
    return {"labelled": {"task": task, "limits": {"max_length": longest, "spans": spans}}}


def systems() -> dict[str, Callable[[], Pretrained]]:
    """Returns a dict mapping each model name in the table to a function that makes the model."""
    words = WordPieceVocabulary.train([*TEXTS, LINE], size=300)
    pieces = BytePairVocabulary.train([*TEXTS, LINE], 300)

    def made(kind, name: str, vocabulary, *more, **usage) -> Callable[[], Pretrained]:
        def make() -> Pretrained:
            keras.utils.set_random_seed(1)
            network = kind(catalog.config(name, vocab_size=vocabulary.size), *more)
            network.build()
            return Pretrained(network, vocabulary=vocabulary, name=name, **usage)

        return make

    def elmo() -> Pretrained:
        keras.utils.set_random_seed(1)
        known = WordVocabulary(("<UNK>", "<S>", "</S>", "a", "man"))
        network = models.Elmo(catalog.config("elmo_tiny", vocab_size=known.size))
        network.build()
        return Pretrained(network, vocabulary=known, name="elmo_tiny")

    classes = (models.EncoderClassifier, _labelled(PAIR))
    found = {
        f"classes:{name}_tiny": made(classes[0], f"{name}_tiny", words, 2, **classes[1])
        for name in CLASSES
    }
    heads = {
        "choices": (models.EncoderChooser, (), _labelled(CHOICE)),
        "tags": (models.EncoderTagger, (3,), _labelled(TAGS)),
        "spans": (models.EncoderSpanReader, (), _labelled(SPANS)),
        "vectors": (models.SiameseEncoder, (), {}),
        "fills": (models.PretrainingEncoder, (), {"has_masked_language": True}),
    }
    for head, (kind, more, usage) in heads.items():
        found[f"{head}:bert_tiny"] = made(kind, "bert_tiny", words, *more, **usage)
    causal = models.CausalClassifier, "gpt2_tiny", pieces, 2
    found["classes:gpt2_tiny"] = made(*causal, **_labelled(PAIR))
    found["words:elmo_tiny"] = elmo
    found["writes:gpt2_tiny"] = made(models.LanguageModel, "gpt2_tiny", pieces)
    return found


def exported(model: Pretrained, forms: Sequence[str]) -> dict[str, str]:
    """Exports a model in several formats, and returns a dict mapping a format to its table cell.

    A cell has the error of the exported model's outputs, or says why the format is not supported.

    Args:
        model: the model.
        forms: formats, which are keys of `FORMS`.
    """
    given = [FORMS[form] for form in forms]
    options = {name: value for one in given for name, value in one.items()}
    options["formats"] = [name for one in given for name in one.get("formats", ())]
    with tempfile.TemporaryDirectory() as out:
        try:
            path = model.export(out, **options)
        except UserError as error:
            if len(forms) == 1:
                return {forms[0]: str(error)}
            return {form: exported(model, [form])[form] for form in forms}
        record = json.loads((path / "assets.extra" / "export.json").read_text())
    cells = {}
    for form in forms:
        row = next(row for row in record["certificate"] if row["target"].startswith(form))
        cells[form] = f"{row['difference']:.0e}" if "difference" in row else row["not_checked"]
    return cells


def for_the_hub(model: Pretrained) -> str:
    """Returns the table cell that says whether a model can be saved for Hugging Face."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            folder = hugging_face_folder(model)
    except UserError as error:
        return str(error)
    return "with trust_remote_code" if "auto_map" in folder.config else "yes"


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark: measures the missing rows or the rows of `--only`."""
    makers = systems()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path, help="folder for README.md and results.json")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*makers],
        default=[],
        help="names of table rows to measure again (default: the rows that results.json lacks)",
    )
    options = parser.parse_args(arguments)
    file = options.out / "results.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else {}
    for name in options.only or makers:
        if name in rows and not options.only:
            continue
        model = makers[name]()
        found = exported(model, [form for form in FORMS if form != INT8]) | exported(model, [INT8])
        rows[name] = {form: found[form] for form in FORMS} | {HUGGING_FACE: for_the_hub(model)}
        line = f"python -m experiments.lab.benchmarks.exports {options.out}"
        record = {"command": line, "commit": commit(), "rows": rows}
        options.out.mkdir(parents=True, exist_ok=True)
        write_aside(file, (json.dumps(record, indent=2) + "\n").encode())
        write_aside(options.out / "README.md", "\n".join(report(record)).encode())
        print(name, rows[name], flush=True)
    return 0


def report(record: Mapping[str, Any]) -> list[str]:
    """Returns the lines of README.md: the table, and the reasons why formats are not supported.

    Args:
        record: content of results.json.
    """
    reasons: list[str] = []

    def shown(cell: str) -> str:
        if " " not in cell or cell.startswith("with"):
            return cell
        if cell not in reasons:
            reasons.append(cell)
        return f"[{reasons.index(cell) + 1}]"

    head = ("head and model", *FORMS, HUGGING_FACE)
    lines = [(name, *map(shown, cells.values())) for name, cells in record["rows"].items()]
    about = (
        "A cell has the maximum difference between the outputs of an export and of the float32 "
        "network, relative to the maximum output, on difficult texts. The models are tiny and have "
        "random weights."
    )
    title = ["# Numerical errors of the export formats", "", f"`{record['command']}`"]
    title[-1] += f" at commit {record['commit']}. {about}"
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return [*title, "", *table(head, lines), "", *notes, ""]


if __name__ == "__main__":
    sys.exit(main())
