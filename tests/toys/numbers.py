"""Pairs of texts that spell the same digits in English and in German."""

import pathlib

import numpy as np

NUMBERS = {
    "zero": "null", "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf",
    "six": "sechs", "seven": "sieben", "eight": "acht", "nine": "neun",
}  # fmt: skip


def number_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Returns distinct pairs of an English and a German text that spell the same 2 to 5 digits.

    A model learns to translate the pairs within seconds.
    """
    rng = np.random.default_rng(seed)
    pairs = {}
    while len(pairs) < count:
        words = rng.choice(list(NUMBERS), rng.integers(2, 6))
        pairs[" ".join(words)] = " ".join(NUMBERS[word] for word in words)
    return list(pairs.items())


def write_numbers(folder: pathlib.Path, train: int, validation: int, step: int = 1) -> str:
    """Writes number pairs as splits "train" and "validation"; returns their `tsv:` source.

    Args:
        folder: folder for the two files.
        train: number of training pairs.
        validation: number of validation pairs.
        step: 1 puts English into the first column; -1 puts German into the first column.
    """
    for split, count, seed in (("train", train, 1), ("validation", validation, 2)):
        lines = "".join("\t".join(pair[::step]) + "\n" for pair in number_pairs(count, seed))
        (folder / f"{split}.tsv").write_text(lines, encoding="utf-8")
    return f"tsv:{folder}/{{split}}.tsv"


def number_settings(source: str, steps: int = 300) -> list[str]:
    """Returns settings with which a translation recipe trains on number pairs in seconds."""
    settings = {
        "data.source": source,
        "data.vocabulary_size": 40,
        "data.source_language": "en",
        "data.target_language": "de",
        "data.batching.max_tokens": 512,
        "data.batching.shapes": 2,
        "model.hidden_dim": 32,
        "model.feed_forward_dim": 64,
        "model.num_heads": 2,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.dropout": 0.0,
        "training.max_steps": steps,
        "training.learning_rate": 0.01,
        "training.warmup_steps": min(30, steps // 2),
        "training.validate_every": 150,
        "training.save_every_steps": 25,
        "training.log_every": 25,
        "training.keep_last": 6,
        "training.max_minutes": None,
        "task.average_last": 2,
    }
    return [f"{name}={value}" for name, value in settings.items()]
