"""`translate evaluate`: a run's BLEU on any text."""

import argparse
import dataclasses
import hashlib
import json
import re
import time

from experiments.translate.run import TranslationRun
from macaron_tf.data.sources.names import PAIRS, parse_source
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.decoding import LineTranslator
from macaron_tf.evaluation import evaluate_translations
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import track
from macaron_tf.training.checkpoints import read_manifest


def run(options: argparse.Namespace) -> None:
    """Translates, scores, prints, and writes scores and translations."""
    opened = TranslationRun.open(options.run)
    data, metric, decoding = opened.recipe.data, opened.recipe.metric, opened.recipe.decoding
    source = options.source or data.source
    languages = [
        options.source_language or data.source_language,
        options.target_language or data.target_language,
    ]
    has_splits = parse_source(source, PAIRS).has_splits
    split = options.split or (data.validation_split if has_splits else "all")
    pairs = read_pairs(source, split, *languages, options.data_dir, options.download)
    checkpoint = opened.checkpoint(options.checkpoint)
    manifest = read_manifest(checkpoint)
    steps = manifest.get("averaged_steps", [manifest["step"]])
    if options.beam_size:
        decoding = dataclasses.replace(decoding, beam_size=options.beam_size)
    if options.lowercase is not None:
        metric = dataclasses.replace(metric, lowercase=options.lowercase)
    with options.devices.scope():
        translator = opened.translator(checkpoint, decoding)

    began = time.monotonic()
    hypotheses = _translated(translator, [line for line, _ in pairs])
    seconds = time.monotonic() - began
    references = [reference for _, reference in pairs]
    scores = evaluate_translations(hypotheses, references, metric)
    print(scores)
    print(f"{len(pairs)} lines in {seconds:.1f} s, checkpoint {checkpoint.name} ({_listed(steps)})")
    conditions = {
        "source": source,
        "split": split,
        "languages": languages,
        "decoding": dataclasses.asdict(translator.config),
        "metric": dataclasses.asdict(metric),
    }
    record = {
        "run": str(opened.path),
        "checkpoint": checkpoint.name,
        "steps": steps,
        **conditions,
        "seconds": round(seconds, 2),
        **dataclasses.asdict(scores),
        "hypotheses": hypotheses,
        "references": references,
    }
    folder = storage.as_path(options.output) if options.output else opened.path / "scores"
    digest = _digest([conditions, manifest["files"], pairs])
    # Words for people, the end of a long path where it must be cut; the digest tells apart.
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{source}-{split}")[-100:].strip("-.")
    path = folder / f"{words}-{checkpoint.name}-beam{decoding.beam_size}-{digest}.json"
    storage.write_aside(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"scores and translations: {path}")


def _translated(translator: LineTranslator, lines: list[str]) -> list[str]:
    chunks = translator.stream(lines)
    sized = ((len(chunk.hypotheses), chunk) for chunk in chunks)
    hypotheses = []
    for translations in track(sized, len(lines), "translating", "lines"):
        hypotheses.extend(translations.best)
    return hypotheses


def _listed(steps: list[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]:,}"
    return f"the mean of steps {', '.join(map(str, steps))}"


def _digest(value) -> str:
    """Eight hex digits over weights, text and settings: another evaluation has another name."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]
