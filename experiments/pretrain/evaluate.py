"""`pretrain evaluate` and `fill`: a run's loss on a corpus, and its words for each [MASK]."""

import argparse
import dataclasses
import sys

import numpy as np
import scipy.special

from experiments.pretrain.run import PretrainingRun
from experiments.pretrain.train import check_corpus, validation_batches
from experiments.run import write_json
from experiments.train_run import measured
from macaron_tf.cli.program import decoded
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import Progress
from macaron_tf.models import PretrainingEncoder
from macaron_tf.objectives import PRETRAINING
from macaron_tf.pretrained import load, locate
from macaron_tf.text.base import PieceVocabulary, check_vocabulary
from macaron_tf.training import build_fit_model
from macaron_tf.training.checkpoints import weights_record

MASK = "[MASK]"


def run(options: argparse.Namespace) -> None:
    """Evaluates, prints, and writes the scores."""
    opened = PretrainingRun.open(options.run)
    recipe, has_memory = opened.recipe, opened.recipe.learnt.has_memory
    if (options.memory or options.clamp) and not has_memory:
        raise UserError(
            f"--memory, --clamp: {opened.path} was trained without a memory; leave them out"
        )
    corpus = PretrainingCorpus.open(options.corpus)
    check_vocabulary(opened.vocabulary.hash, corpus.vocabulary.hash, opened.path)
    checkpoint = opened.checkpoint(options.checkpoint)
    lengths = options.memory or [recipe.memory_length]
    rows = corpus.rows("validation")
    if has_memory:
        # Segments may have any length: the memory holds the text before them.
        texts = min(recipe.batch_size, rows)
        recipe, rest = recipe.changed(corpus=corpus.config, batch_size=texts), rows % texts
        if rest:
            rows -= rest
            print(f"{rest:,} rows at the end are left out: {texts} texts of equal length are read")
    check_corpus(recipe, corpus, "paired")
    languages = recipe.corpus.languages
    if languages != corpus.config.languages:
        raise UserError(
            f"{corpus.folder} is in {', '.join(corpus.config.languages) or 'no named language'}, "
            f"{opened.path} was trained on {', '.join(languages) or 'none'}: give a corpus of the "
            "same languages in that order"
        )
    if options.clamp is not None:
        changed = {**dict(recipe.model_options), "clamp_length": options.clamp}
        recipe = recipe.changed(model_options=tuple(sorted(changed.items())))
    records = []
    for memory_length in lengths:
        chosen = recipe.changed(
            validation_batches=None,
            memory_length=memory_length,
            training=dict(accumulation_steps=1),  # no memory of an update's micro-batches
        )
        with options.devices.scope():
            asked = dataclasses.replace(opened, recipe=chosen)
            network = asked.load_network(checkpoint, saved=not has_memory)
            model = build_fit_model(network, chosen.make_objective(), chosen.training)
        with Progress("evaluating"):
            metrics = measured(model, validation_batches(chosen, corpus))
        memory = {}
        if has_memory:
            memory = {"memory": memory_length, "clamp": options.clamp}
            print(f"{'memory':24} {memory_length}")
        for name, value in metrics.items():
            print(f"{name:24} {value:.4f}")
        records.append(
            {
                "run": str(opened.path),
                **weights_record(checkpoint),
                "corpus": str(options.corpus),
                "fingerprint": corpus.fingerprint,
                "rows": rows,
                **memory,
                **metrics,
            }
        )
    ending = "".join(f"-{length}" for length in ["memory", *lengths]) if has_memory else ""
    name = f"{corpus.fingerprint[:8]}-{checkpoint.name}{ending}.json"
    path = storage.as_path(options.output) if options.output else opened.path / "scores" / name
    write_json(path, records if len(records) > 1 else records[0])
    print(f"scores: {path}")


def fill(
    network: PretrainingEncoder, vocabulary: PieceVocabulary, text: str, top: int, longest: int
) -> list[list[tuple[str, float]]]:
    """The likeliest pieces for each [MASK] of a text.

    Args:
        longest: length of the training's rows; later positions are untrained.

    Returns:
        For each [MASK] pairs (piece, probability), the likeliest first; a piece that continues a
        word begins with "##".
    """
    if MASK not in text:
        raise UserError(f"{text[:60]!r} has no {MASK}: write it where a word is to be found")
    parts = vocabulary.encode_lines([part.strip() for part in text.split(MASK)])
    ids = [vocabulary.cls_id, *parts[0]]
    for part in parts[1:]:
        ids += [vocabulary.mask_id, *part]
    ids.append(vocabulary.sep_id)
    if len(ids) > longest:
        raise UserError(
            f"the text has {len(ids)} tokens, more than the {longest} of the rows that the model "
            "was trained on: shorten it"
        )
    token_ids = np.array([ids], np.int32)  # (1, L)
    positions = np.flatnonzero(token_ids[0] == vocabulary.mask_id)[None]  # (1, P)
    outputs = network({"token_ids": token_ids, "masked_positions": positions}, training=False)
    logits = np.asarray(outputs["masked_language"], np.float64)[0, :, : vocabulary.pieces]  # (P, V)
    logits[:, list(vocabulary.special_ids)] = -np.inf
    probabilities = scipy.special.softmax(logits, axis=-1)
    best = np.argsort(-probabilities, axis=-1)[:, :top]  # (P, top)
    words = vocabulary.decode_lines([[i] for i in best.reshape(-1)])
    starts = vocabulary.word_starts()[best.reshape(-1)]
    words = [word if begins else f"##{word}" for word, begins in zip(words, starts, strict=True)]
    return [
        [(words[p * best.shape[1] + n], float(row[i])) for n, i in enumerate(best[p])]
        for p, row in enumerate(probabilities)
    ]


def run_fill(options: argparse.Namespace) -> None:
    """Fills in the texts given, or the lines of stdin."""
    if locate(options.run).without_recipe:
        opened = load(options.run, options.lower_case)
        if not opened.has_masked_language or opened.vocabulary is None:
            raise UserError(
                f"{options.run} has no head over masked tokens, or no tokenizer: it fills no {MASK}"
            )
        network, longest = opened.network, opened.config.longest or 512
    else:
        opened = PretrainingRun.open(options.run)
        if opened.recipe.learnt.encoder_decoder:
            raise UserError(
                f"{opened.path} is an encoder-decoder and fills no {MASK}: give a run of an encoder"
            )
        if not opened.recipe.learnt.fills_masks:
            known = ", ".join(name for name, kind in PRETRAINING.items() if kind.fills_masks)
            raise UserError(
                f"{opened.path} has learnt by {opened.recipe.objective!r} and fills no {MASK}: "
                f"give a run of {known}"
            )
        network = opened.load_network(options.checkpoint)
        longest = opened.recipe.corpus.sequence_length
    for text in options.text or decoded(sys.stdin.buffer):
        print(text)
        for answers in fill(network, opened.vocabulary, text, options.top, longest):
            print("   " + "  ".join(f"{word} {share:.1%}" for word, share in answers))
