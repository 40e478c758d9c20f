"""Questions and entities that a tiny encoder learns in seconds, and their files."""

import json
import pathlib

import numpy as np

from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.experiments.finetuning_toy import toy_flags

NAMES, PLACES = ("ann", "bob", "eve"), ("rome", "oslo", "bonn")
FILLERS = ("the", "saw", "red", "cat", "in", "and", "old", "dog")
PIECES = ("##s", "?", ".", "who", "where")


def write_reading(folder: pathlib.Path, unanswerable: bool = False) -> None:
    """SQuAD files and CoNLL files of two splits, and their vocabulary in vocabulary/."""
    for split, count, seed in (("train", 240, 1), ("validation", 60, 2)):
        text = json.dumps(questions(count, seed, unanswerable))
        (folder / f"{split}.json").write_text(text, encoding="utf-8")
    for split, count, seed in (("train", 240, 3), ("dev", 60, 4)):
        text = "\n\n".join(
            "\n".join(f"{word} X {tag}" for word, tag in sentence)
            for sentence in tagged(count, seed)
        )
        (folder / f"{split}.txt").write_text(f"-DOCSTART- -X- O\n\n{text}\n", encoding="utf-8")
    words = (*SPECIAL_PIECES, *NAMES, *PLACES, *FILLERS, *PIECES)
    WordPieceVocabulary(words).save(folder / "vocabulary")


def questions(count: int, seed: int, unanswerable: bool) -> dict:
    """SQuAD's JSON: "Who?" asks for the context's one name, "Where?" for its one place.

    Contexts have up to 30 words. Where some are unanswerable, a third of them has no name.
    """
    rng = np.random.default_rng(seed)
    paragraphs = []
    for number in range(count):
        words = list(rng.choice(FILLERS, rng.integers(3, 29)))
        asked = {"Where?": str(rng.choice(PLACES)).title()}
        if not unanswerable or number % 3:
            asked["Who?"] = str(rng.choice(NAMES)).title()
        for word in asked.values():
            words.insert(rng.integers(len(words)), word)
        context = "\u201c" + " ".join(words) + "."
        question = "Who?" if number % 2 else "Where?"
        answers = []
        if question in asked:
            text = asked[question]
            answers = [{"text": text, "answer_start": context.index(text)}]
        paragraphs.append(
            {
                "context": context,
                "qas": [{"id": f"q{number}", "question": question, "answers": answers}],
            }
        )
    return {"version": "v2.0", "data": [{"title": "toy", "paragraphs": paragraphs}]}


def tagged(count: int, seed: int) -> list[list[tuple[str, str]]]:
    """Sentences of up to 22 words: names are people, "the" and a place an organization (IOB1)."""
    rng = np.random.default_rng(seed)
    sentences = []
    for _ in range(count):
        sentence = [(str(word), "O") for word in rng.choice(FILLERS[1:], rng.integers(2, 21))]
        at = int(rng.integers(len(sentence)))
        if rng.random() < 0.5:
            sentence[at:at] = [(str(rng.choice(NAMES)).title() + "s", "I-PER")]
        else:
            sentence[at:at] = [("the", "I-ORG"), (str(rng.choice(PLACES)), "I-ORG")]
        sentences.append(sentence)
    return sentences


def reading_flags(folder: pathlib.Path, task: str, **settings) -> list[str]:
    """From nothing to a task in seconds, through windows."""
    tags = task == "conll2003"
    return toy_flags(
        folder,
        f"conll:{folder}/{{split}}.txt" if tags else f"squad:{folder}/{{split}}.json",
        **{
            "training__max_steps": 60 if tags else 200,
            "training__validate_every": 30 if tags else 100,
            "training__learning_rate": 0.005,
            "model__num_layers": 2,
            "spans__max_question": 4,
            "spans__doc_stride": 6,
            **settings,
        },
    )
