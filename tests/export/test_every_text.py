"""Runs and their exports in plain TensorFlow agree on 200 varied texts.

Weights are random and large, so that answers differ from text to text without near ties.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from experiments import registry
from export.saved_model import main
from macaron_tf.data.tasks.tags import at_spaces
from macaron_tf.decoding import GenerationConfig
from macaron_tf.decoding.spans import decide_answered
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import decide
from macaron_tf.evaluation.similarity import unit_vectors
from macaron_tf.io.paths import as_path
from macaron_tf.runs.elmo import ElmoRecipe
from macaron_tf.runs.finetuning import load_labelled_task
from macaron_tf.runs.pretraining import PretrainingRecipe
from macaron_tf.runs.recipe import override
from macaron_tf.runs.run import Run
from macaron_tf.runs.text_to_text import recipe_of_model
from macaron_tf.runs.translation import TranslationRecipe
from macaron_tf.text import (
    NormalizationConfig,
    PairVocabulary,
    PieceVocabulary,
    SentencePieceVocabulary,
)
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary
from macaron_tf.text.words import WordVocabulary, character_ids, split_words, with_ends
from tests.export.serving_toys import ask_elsewhere
from tests.toys.hard_texts import hard_texts
from tests.toys.marks import slow
from tests.toys.numbers import number_settings
from tests.toys.pretraining import toy_settings
from tests.toys.tasks import READING, outputs_of, write_run, write_untrained

TEXTS = hard_texts()
ROWS = 29  # texts per request
REFUSED = ("leaves no room to continue", "tokens: shorten the text", "more than 256 tokens")
GREEDY = GenerationConfig(0.0, max_tokens=12)
DRAWN = GenerationConfig(1.3, 40, 0.95, max_tokens=12)
LONG = {"data.max_length": 48, "model.max_length": 48}

# A number passes through some 12 sums of at most 96 float32 terms. Another order of the terms moves
# a sum by sqrt(96) roundings of 6e-8, so 12 sums by sqrt(12 * 96) * 6e-8 = 2e-6 of its size; of
# the 10,000 numbers compared, the largest difference lies below 5 standard deviations.
ROUNDING = 1e-5


def vocabulary_of(kind: str):
    """Returns a vocabulary of the given type, trained on the texts.

    Except for "bytes", many characters of the texts are not in the vocabulary.
    """
    train = functools.partial(SentencePieceVocabulary.train, TEXTS, character_coverage=0.98)
    cleaned = NormalizationConfig(punctuation=True, remove_nonprinting=True)
    if kind in ("uncased", "cased"):
        size = {"size": 700, "max_characters": 250}
        return WordPieceVocabulary.train(TEXTS, lower_case=kind == "uncased", **size)
    if kind == "bytes":
        return BytePairVocabulary.train(TEXTS, 300)
    if kind == "unigram":
        lower = NormalizationConfig(lower_case=True)
        return train(200, model_type="unigram", fold_accents=True, normalization=lower)
    if kind == "pieces":
        return train(900)
    sides = ("fr", "de")
    joint = train(900, masks=False, normalization=cleaned, languages=sides)
    if kind == "joint":
        return joint
    target = SentencePieceVocabulary.train(TEXTS[:120], 600, masks=False, languages=sides)
    return PairVocabulary(joint, target, NormalizationConfig(), sides)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of export.

    Attributes:
        vocabulary: name of the vocabulary.
        write: function that writes the run into a folder with `vocabulary`.
        expected: function from (path, columns) to the run's own answers, one per row; a string
            stands for a text that the run refuses or truncates.
        columns: names of the text inputs.
        inputs: further inputs, equal for each row.
    """

    vocabulary: str
    write: Callable
    expected: Callable
    columns: tuple[str, ...] = ("text",)
    inputs: dict = dataclasses.field(default_factory=dict)


def fine_tuned(task: str, model: str = "bert_tiny", **settings) -> Callable:
    def write(path, vocabulary):
        recipe = registry.load(f"finetune:{task}")
        write_run(path, recipe, vocabulary.parent, model, **{**LONG, **settings})

    return write


def rows_of(**columns) -> list[dict]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def classes(path, columns):
    run = Run.open(path)
    outputs = outputs_of(load_labelled_task(run), *columns)
    task = run.recipe.task_definition
    if task.regression:
        return rows_of(score=decide(task, outputs))
    labels = [task.labels[label] for label in decide(task, outputs)]
    names = [task.labels] * len(labels)
    return rows_of(label=labels, probabilities=tf.nn.softmax(outputs).numpy(), classes=names)


def spans(path, columns):
    found = outputs_of(load_labelled_task(Run.open(path)), *columns)
    judged = decide_answered(found.answers, found.threshold)
    judged = {name: np.asarray(value) for name, value in judged.items()}
    start, end = (np.where(judged["answered"], found.answers[n], 0) for n in ("start", "end"))
    texts = np.where(judged["answered"], np.array(found.texts, object), "")
    return rows_of(answer=texts, start=start, end=end, probability=judged["probability"])


def tags(path, columns):
    task = load_labelled_task(Run.open(path))
    outputs = outputs_of(task, *columns)
    return rows_of(
        words=map(at_spaces, columns[0]),
        tags=task.decide(outputs),
        probabilities=[found.max(axis=1) for found in outputs],
    )


def vectors(path, columns):
    encoder = macaron_tf.load(path).task
    return rows_of(vector=unit_vectors(encoder.encode(*columns)))


def layers(path, columns):
    network, words = Run.open(path).load_network(), split_words(tf.constant(columns[0]))
    padded = [with_ends(words[n : n + 1]).to_tensor("") for n in range(len(columns[0]))]
    found = [network(character_ids(row, 9))[0, 1:-1].numpy() for row in padded]
    words = [[word.decode() for word in row] for row in words.to_list()]
    return rows_of(words=words, vectors=found, lengths=map(len, words))


def completions(draw: GenerationConfig):
    def answer(path, columns):
        generator = macaron_tf.load(path).task.generator
        found = []
        for text in columns[0]:
            try:
                generator.row(text)
                found.append(None)
            except UserError as error:
                found.append(str(error))
        for part in parts_of(found):
            if not isinstance(found[part[0]], str):
                answers = generator.complete([columns[0][i] for i in part], draw)
                for i, [one] in zip(part, answers, strict=True):
                    values = {"completion": one.text, "tokens": one.length}
                    found[i] = {**values, "log_prob": one.log_prob}
        return found

    return answer


def translations(path, columns):
    task = macaron_tf.load(path).task
    found = task.lines(dataclasses.replace(task.decoding, n_best=2))
    answers = found.translate(*columns)
    rows = [
        {"translations": [one.text for one in row], "scores": [one.score for one in row]}
        for row in answers.hypotheses
    ]
    for warning in answers.warnings:
        rows[int(warning.split()[1]) - 1] = warning
    return rows


def write_elmo(path, vocabulary):
    options = {"lstm_dim": 12, "projection_dim": 8, "max_characters": 9}
    settings = [f"model.{name}={value}" for name, value in options.items()]
    settings += ["model.filters=((1,4),(2,4))", "data.sources=text:x"]
    recipe = registry.load("elmo_tiny", ElmoRecipe, settings)
    words = WordVocabulary(("<UNK>", "<S>", "</S>", "the", "漢字"))
    write_untrained(Run(as_path(path), recipe, words))


def language_model(model: str, *settings: str) -> Callable:
    def write(path, vocabulary):
        two_stacks = model if model.startswith(("t5", "bart")) else ""
        every = [*toy_settings("text:x", recipe=two_stacks), *settings]
        every = [one for one in every if not one.startswith("data.sequence_length")]
        if model == "t5_tiny":  # 10,000 characters with one head halve the memory
            every.append("model.num_heads=1")
        else:
            every += ["model.initializer_range=0.9", "model.max_length=256"]
        recipe = registry.load(model, PretrainingRecipe, [*every, "data.sequence_length=256"])
        write_untrained(Run(as_path(path), recipe, PieceVocabulary.load(vocabulary)))

    return write


LIMITS = ("task.decoding.min_length=4", "task.decoding.no_repeat_ngram_size=2")


def text_to_text(model: str, task: str, *settings: str) -> Callable:
    def write(path, vocabulary):
        before = path.with_name(f"{path.name}-start")
        language_model(model)(before, vocabulary)
        start = macaron_tf.load(before)
        recipe = recipe_of_model(registry.load(f"text_to_text:{task}"), start)
        recipe = override(recipe, ["data.max_source=250", "data.max_target=14", *settings])
        write_untrained(Run(as_path(path), recipe, start.vocabulary))

    return write


def write_translator(path, vocabulary):
    settings = [*number_settings("tsv:x-{split}.tsv"), "model.initializer_range=0.9"]
    settings = [one for one in settings if "language" not in one]
    settings += [
        "data.source_language=fr",
        "data.target_language=de",
        "task.decoding.max_length=12",
    ]
    found = PieceVocabulary.load(vocabulary)
    if isinstance(found, PairVocabulary):  # the source has its own encoder
        settings.append("model.num_source_layers=1")
    recipe = registry.load("multi30k_macaron_tiny", TranslationRecipe, settings)
    write_untrained(Run(as_path(path), recipe, found))


def write_embedder(path, vocabulary):
    given = (registry.load("sentence_bert:stsb"), vocabulary.parent, "swish_rnn_tiny")
    write_run(path, *given, **LONG)


def generates(vocabulary, write, draw) -> Kind:
    inputs = {name: getattr(draw, name) for name in ("temperature", "top_k", "top_p")}
    inputs |= {"seed": 1, "max_tokens": draw.max_tokens}
    return Kind(vocabulary, write, completions(draw), inputs=inputs)


PAIR = ("first", "second")
READ = ("question", "context")
KINDS = {
    "classes": Kind("uncased", fine_tuned("sst2"), classes),
    "classes_cased": Kind("cased", fine_tuned("mrpc"), classes, PAIR),
    "classes_unigram": Kind(
        "unigram",
        # With TINY's 0.9, rounding of the shared weights changes the logits of one text by 5e-4.
        fine_tuned("mrpc", "albert_tiny", **{"model.initializer_range": 0.4}),
        classes,
        PAIR,
    ),
    "classes_causal": Kind("bytes", fine_tuned("mrpc", "gpt2_tiny"), classes, PAIR),
    "scores": Kind(
        "pieces",
        # With 0.9, rounding changes the score of one text by 1.6e-5.
        fine_tuned("stsb", "swish_rnn_tiny", **{"model.initializer_range": 0.4}),
        classes,
        PAIR,
    ),
    "spans": Kind("uncased", fine_tuned("squad2", **READING), spans, READ),
    "spans_bytes": Kind("bytes", fine_tuned("squad", "roberta_tiny", **READING), spans, READ),
    "spans_pieces": Kind("pieces", fine_tuned("squad", "xlm_tiny", **READING), spans, READ),
    "tags": Kind("cased", fine_tuned("conll2003", **READING), tags),
    "tags_bytes": Kind("bytes", fine_tuned("conll2003", "roberta_tiny", **READING), tags),
    "vectors": Kind("unigram", write_embedder, vectors),
    "elmo": Kind("uncased", write_elmo, layers),
    "continues": generates("bytes", language_model("gpt2_tiny"), DRAWN),
    "continues_words": generates("cased", language_model("gpt2_tiny"), GREEDY),
    "continues_memory": generates(
        "bytes",
        language_model(
            "transformer_xl_tiny", "model.block=swish_rnn", "model.adaptive_cutoffs=9,16"
        ),
        DRAWN,
    ),
    "continues_pieces": generates("pieces", language_model("gpt2_tiny"), DRAWN),
    "fills_t5": generates("unigram", language_model("t5_tiny"), DRAWN),
    "fills_bart": generates("pieces", language_model("bart_tiny"), GREEDY),
    "answers_t5": generates("unigram", text_to_text("t5_tiny", "summarization", *LIMITS), GREEDY),
    "answers_bart": generates("bytes", text_to_text("bart_tiny", "mrpc"), DRAWN),
    "translates": Kind("joint", write_translator, translations),
    "translates_pair": Kind("pair", write_translator, translations),
}


NAMES = slow(*KINDS, but=("classes",))


def columns_of(kind: Kind, rows) -> list[list[str]]:
    """Returns texts of rows as columns; for pairs, a second column has the texts rotated by 37."""
    columns = [TEXTS, TEXTS[37:] + TEXTS[:37]][: len(kind.columns)]
    return [[column[row] for row in rows] for column in columns]


def inputs_of(kind: Kind, rows: list[int]) -> dict[str, list]:
    repeated = {name: [value] * len(rows) for name, value in kind.inputs.items()}
    return {**dict(zip(kind.columns, columns_of(kind, rows), strict=True)), **repeated}


def parts_of(expected: list) -> list[list[int]]:
    """Groups row indices into requests; a refused or very long text is alone in its request."""
    alone = [i for i, one in enumerate(expected) if isinstance(one, str) or len(TEXTS[i]) > 1000]
    others = [i for i in range(len(expected)) if i not in alone]
    return [others[i : i + ROWS] for i in range(0, len(others), ROWS)] + [[i] for i in alone]


def write(folder, name: str) -> None:
    """Writes a run of an export type, and its vocabulary if the folder has none."""
    kind = KINDS[name]
    vocabulary = folder / kind.vocabulary / "vocabulary"
    if not vocabulary.exists():
        vocabulary_of(kind.vocabulary).save(vocabulary)
    kind.write(folder / name, vocabulary)


def export(folder, name: str) -> None:
    """Writes a run of an export type, and exports its SavedModel."""
    write(folder, name)
    more = ["--n-best", "2"] if KINDS[name].expected is translations else []
    assert main([str(folder / name), str(folder / "served" / name), *more]) == 0


@pytest.fixture(scope="module")
def names(request) -> list[str]:
    """Returns the export types of the tests that run."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params["name"] for item in items}
    return [name for name in KINDS if name in asked]


@pytest.fixture(scope="module")
def folder(names, tmp_path_factory):
    """Returns a folder with a run of each type and its SavedModel under `served`."""
    folder = tmp_path_factory.mktemp("every")
    for name in names:
        export(folder, name)
    return folder


@pytest.fixture(scope="module")
def expected(names, folder):
    """Returns a dict mapping export types to the answers of the runs."""
    every = range(len(TEXTS))
    return {n: KINDS[n].expected(folder / n, columns_of(KINDS[n], every)) for n in names}


@pytest.fixture(scope="module")
def elsewhere(names, folder, expected, tmp_path_factory):
    """Computes the answers of all exports in one process that does not import this project.

    Returns a dict mapping export types to lists of answers.
    """
    asked = {}
    for name in names:
        place = str(folder / "served" / name / "1")
        asked[name] = [
            (place, "serving_default", inputs_of(KINDS[name], part))
            for part in parts_of(expected[name])
        ]
    calls = itertools.chain.from_iterable(asked.values())
    found = iter(ask_elsewhere(tmp_path_factory.mktemp("elsewhere"), *calls))
    return {name: [next(found) for _ in asked[name]] for name in names}


def largest_difference(expected: dict, found: dict, row: int, where: str) -> float:
    """Asserts that two answers have equal texts; returns the largest difference of their numbers.

    Differences are relative for values above 1.
    """
    largest = 0.0
    for name, value in expected.items():
        own = found[name if name in found else ""][row]
        value, own = (np.atleast_1d(np.array(one, object)) for one in (value, own))
        assert len(own) >= len(value), f"{where}, {name}"
        assert not any(own[len(value) :].ravel()), f"{where}, {name}: {own} goes on after the end"
        for one, other in zip(value.ravel(), own[: len(value)].ravel(), strict=True):
            if isinstance(one, str):
                assert one == other, f"{where}, {name}: {one!r} is not {other!r}"
            else:
                assert np.isfinite(float(other)), f"{where}, {name}: {other}"
                largest = max(largest, abs(float(one) - float(other)) / max(1.0, abs(float(one))))
    return largest


def check(name: str, expected: list, found: list[dict], way: str) -> float:
    """Asserts that refused texts are refused; returns the largest difference over all other texts.

    Args:
        name: export type.
        expected: answers of the run; a string stands for a refused text.
        found: answers of the export, one dict per request.
        way: description of how the export ran, for messages.
    """
    largest, worst = 0.0, None
    for part, answer in zip(parts_of(expected), found, strict=True):
        for row, i in enumerate(part):
            where = f"{name} {way} text {i} {TEXTS[i][:50]!r}"
            if isinstance(expected[i], str):
                assert any(words in answer.get("error", "") for words in REFUSED), (
                    f"{where}: {expected[i]}, and {answer}"
                )
                continue
            assert "error" not in answer, f"{where}: {answer}"
            difference = largest_difference(expected[i], answer, row, where)
            if difference > largest:
                largest, worst = difference, where
    print(f"{name} {way}: {largest:.1e} {worst}")  # shown by -rP
    return largest


@pytest.mark.parametrize("name", NAMES)
def test_the_export_says_what_the_run_says(name, expected, elsewhere):
    answers = [one for one in expected[name] if not isinstance(one, str)]
    assert len(answers) > 150
    assert len({json.dumps(one, default=str) for one in answers}) > 40
    assert check(name, expected[name], elsewhere[name], "alone") < ROUNDING
