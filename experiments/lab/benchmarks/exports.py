"""Measures the numerical error of each export format for many models and heads.

    .venv-peers/bin/python -m experiments.lab.benchmarks.exports OUT

All models are tiny and have random weights. The benchmark exports each model in each format, and
writes a table with a row for each model and a column for each format. A cell has the maximum
difference between the outputs of the export and of the float32 network, divided by the maximum
output. If a format is not supported, the cell says why. The column "Hugging Face" says whether the
model can be saved for Hugging Face, and whether loading then needs `trust_remote_code`.

The command writes `README.md` and `results.json` to OUT.
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

from experiments.studies import table, write_record
from experiments.versions import commit
from macaron_tf import models
from macaron_tf.engines.certificate import LINE, TEXTS
from macaron_tf.errors import UserError
from macaron_tf.interop.hugging_face import hugging_face_folder
from macaron_tf.io.paths import write_atomic
from macaron_tf.models import catalog
from macaron_tf.pretrained import Pretrained
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary
from macaron_tf.text.words import WordVocabulary

INT8 = "LiteRT int8"  # exported separately, because an export has at most one LiteRT file
# Dict mapping a format to arguments of `Pretrained.export`. In the certificate, the field `target`
# begins with the name of the format.
FORMATS: Mapping[str, Mapping[str, Any]] = {
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


def _labelled(task: Mapping[str, Any], max_length: int = 128) -> dict[str, Any]:
    spans = {"doc_stride": 16, "max_question": 32, "max_answer": 8}
    return {"labelled": {"task": task, "limits": {"max_length": max_length, "spans": spans}}}


def model_makers() -> dict[str, Callable[[], Pretrained]]:
    """Returns a dict mapping each model name in the table to a function that makes the model."""
    wordpiece = WordPieceVocabulary.train([*TEXTS, LINE], size=300)
    byte_pairs = BytePairVocabulary.train([*TEXTS, LINE], 300)

    def maker(
        network_class: type, name: str, vocabulary, *arguments, **usage
    ) -> Callable[[], Pretrained]:
        def make() -> Pretrained:
            keras.utils.set_random_seed(1)
            config = catalog.config(name, vocab_size=vocabulary.size)
            network = network_class(config, *arguments)
            network.build()
            return Pretrained(network, vocabulary=vocabulary, name=name, **usage)

        return make

    def elmo() -> Pretrained:
        keras.utils.set_random_seed(1)
        vocabulary = WordVocabulary(("<UNK>", "<S>", "</S>", "a", "man"))
        network = models.Elmo(catalog.config("elmo_tiny", vocab_size=vocabulary.size))
        network.build()
        return Pretrained(network, vocabulary=vocabulary, name="elmo_tiny")

    pair = _labelled(PAIR)
    makers = {
        f"classes:{name}_tiny": maker(
            models.EncoderClassifier, f"{name}_tiny", wordpiece, 2, **pair
        )
        for name in CLASSES
    }
    heads = {
        "choices": (models.EncoderChooser, (), _labelled(CHOICE)),
        "tags": (models.EncoderTagger, (3,), _labelled(TAGS)),
        "spans": (models.EncoderSpanReader, (), _labelled(SPANS)),
        "vectors": (models.SiameseEncoder, (), {}),
        "fills": (models.PretrainingEncoder, (), {"has_masked_language": True}),
    }
    for head, (network_class, arguments, usage) in heads.items():
        makers[f"{head}:bert_tiny"] = maker(
            network_class, "bert_tiny", wordpiece, *arguments, **usage
        )
    causal = models.CausalClassifier, "gpt2_tiny", byte_pairs, 2
    makers["classes:gpt2_tiny"] = maker(*causal, **pair)
    makers["words:elmo_tiny"] = elmo
    makers["writes:gpt2_tiny"] = maker(models.LanguageModel, "gpt2_tiny", byte_pairs)
    return makers


def exported(model: Pretrained, formats: Sequence[str]) -> dict[str, str]:
    """Exports a model in several formats, and returns a dict mapping a format to its table cell.

    A cell has the error of the exported model's outputs, or says why the format is not supported.

    Args:
        model: the model.
        formats: formats, which are keys of `FORMATS`.
    """
    options_of_formats = [FORMATS[format_name] for format_name in formats]
    options = {name: value for part in options_of_formats for name, value in part.items()}
    options["formats"] = [name for part in options_of_formats for name in part.get("formats", ())]
    with tempfile.TemporaryDirectory() as out:
        try:
            path = model.export(out, **options)
        except UserError as error:
            if len(formats) == 1:
                return {formats[0]: str(error)}
            return {
                format_name: exported(model, [format_name])[format_name] for format_name in formats
            }
        record = json.loads((path / "assets.extra" / "export.json").read_text())
    cells = {}
    for format_name in formats:
        row = next(row for row in record["certificate"] if row["target"].startswith(format_name))
        cells[format_name] = (
            f"{row['difference']:.0e}" if "difference" in row else row["not_checked"]
        )
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
    """Runs the benchmark: measures all rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path, help="folder for README.md and results.json")
    out, rows = parser.parse_args(arguments).out, {}
    for name, make in model_makers().items():
        model = make()
        together = [format_name for format_name in FORMATS if format_name != INT8]
        cells = exported(model, together) | exported(model, [INT8])
        rows[name] = {format_name: cells[format_name] for format_name in FORMATS}
        rows[name][HUGGING_FACE] = for_the_hub(model)
        print(name, rows[name], flush=True)
    line = "python -m experiments.lab.benchmarks.exports OUT"
    record = {"command": line, "commit": commit(), "rows": rows}
    write_record(out / "results.json", record)
    write_atomic(out / "README.md", "\n".join(report(record)).encode())
    return 0


def report(record: Mapping[str, Any]) -> list[str]:
    """Returns the lines of README.md: the table, and the reasons why formats are not supported.

    Args:
        record: content of results.json.
    """
    reasons: list[str] = []

    def numbered(cell: str) -> str:
        if " " not in cell or cell.startswith("with"):
            return cell
        if cell not in reasons:
            reasons.append(cell)
        return f"[{reasons.index(cell) + 1}]"

    head = ("head and model", *FORMATS, HUGGING_FACE)
    lines = [(name, *map(numbered, cells.values())) for name, cells in record["rows"].items()]
    about = (
        "A cell has the maximum difference between the outputs of an export and of the float32 "
        "network, relative to the maximum output, on difficult texts. The models are tiny and have "
        "random weights."
    )
    title = ["# Numerical errors of the export formats", "", f"`{record['command']}`"]
    title[-1] += f" at commit {record['commit']}. {about}"
    notes = [f"{index}. {reason}" for index, reason in enumerate(reasons, 1)]
    return [*title, "", *table(head, lines), "", *notes, ""]


if __name__ == "__main__":
    sys.exit(main())
