"""`translate evaluate`: a run's BLEU on any text."""

import argparse
import dataclasses
import json
import pathlib
import re
import time

from experiments.progress import track
from experiments.run import TranslationRun
from macaron_tf.data import read_pairs
from macaron_tf.data.files import write_aside
from macaron_tf.evaluation import evaluate_translations


def run(options: argparse.Namespace) -> None:
    """Translates, scores, prints, and writes scores and translations."""
    opened = TranslationRun.open(options.run)
    data = opened.recipe.data
    source = options.source or data.source
    split = options.split or data.validation_split
    pairs = read_pairs(
        source,
        split,
        data.source_language,
        data.target_language,
        options.data_dir,
        options.download,
    )
    checkpoint = opened.checkpoint(options.checkpoint).name
    decoding = opened.recipe.decoding
    if options.beam_size:
        decoding = dataclasses.replace(decoding, beam_size=options.beam_size)
    translator = opened.translator(options.checkpoint, decoding)
    began = time.monotonic()
    hypotheses = []
    chunks = translator.stream(line for line, _ in pairs)
    sized = ((len(chunk.hypotheses), chunk) for chunk in chunks)
    for translations in track(sized, len(pairs), "translating", "lines"):
        hypotheses.extend(translations.best)
    seconds = time.monotonic() - began
    scores = evaluate_translations(
        hypotheses, [reference for _, reference in pairs], opened.recipe.metric
    )
    print(scores)
    print(f"{len(pairs)} lines in {seconds:.1f} s, checkpoint {checkpoint}")
    folder = pathlib.Path(options.output) if options.output else opened.path / "scores"
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{source}-{split}-{checkpoint}").strip("-")
    record = {
        "run": str(opened.path),
        "checkpoint": checkpoint,
        "source": source,
        "split": split,
        "decoding": dataclasses.asdict(translator.config),
        "metric": dataclasses.asdict(opened.recipe.metric),
        "seconds": round(seconds, 2),
        **scores.as_dict(),
        "hypotheses": hypotheses,
        "references": [reference for _, reference in pairs],
    }
    path = folder / f"{name}.json"
    write_aside(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"scores and translations: {path}")
