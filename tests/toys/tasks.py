"""Toy tasks that a tiny encoder learns in seconds, with their files and training runs."""

import json
import pathlib

import keras
import numpy as np
import pytest

from experiments import registry
from experiments.commands import main
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.tasks.questions import Questions
from macaron_tf.data.tasks.tags import TaggedSentences, at_spaces
from macaron_tf.io.paths import as_path
from macaron_tf.runs.recipe import override, recipe_from_json
from macaron_tf.runs.run import Run
from macaron_tf.runs.starts import read_start
from macaron_tf.tasks import LabelledTask, QuestionAnswering, TokenClassification
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.text import load_encoder_vocabulary
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from macaron_tf.training import checkpoints
from macaron_tf.training.progress import read_lines
from macaron_tf.training.state import weight_table

# Sentiment classification: one word tells praise from blame. For pair tasks, two sentences are
# similar if their classes are equal.
PRAISE, BLAME = ("good", "great", "fun"), ("bad", "awful", "dull")
FILLERS = ("film", "plot", "actor", "the", "was", "very")
# Question answering and named entities.
NAMES, CITIES = ("ann", "bob", "eve"), ("rome", "oslo", "bonn")
READ_FILLERS = ("the", "saw", "red", "cat", "in", "and", "old", "dog")
READ_PIECES = ("##s", "?", ".", "who", "where")
PAIR_HEADER = "sentence1\tsentence2\tlabel"
HEADERS = {"stsb": PAIR_HEADER, "mrpc": PAIR_HEADER, "triplets": "anchor\tpositive\tnegative"}
SHRUNK = {
    "data.max_length": 16,
    "model.hidden_dim": 32,
    "model.feed_forward_dim": 96,
    "model.num_layers": 1,
    "model.max_length": 16,
    "model.initializer_range": 0.1,
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "training.log_every": 10,
    "training.schedule": "constant",
    "training.max_steps": 40,
    "training.validate_every": 20,
    "data.batch_size": 16,
}
READING = {"data.spans.max_question": 4, "data.spans.doc_stride": 6}
# Settings for entity tagging with windows over long sentences.
TAGGING_SETTINGS = {
    "training.max_steps": 60,
    "training.validate_every": 30,
    "training.learning_rate": 0.005,
    "task.head_dropout": 0.0,
    "model.num_layers": 2,
}
QUESTION_SETTINGS = {
    **TAGGING_SETTINGS,
    "training.max_steps": 200,
    "training.validate_every": 100,
    **READING,
}


def toy_flags(
    folder: pathlib.Path,
    task: str = "sst2",
    source: str | None = None,
    model: str = "bert_tiny",
    **settings,
) -> list[str]:
    """Returns the flags of a training run from scratch on a toy task.

    Args:
        folder: folder of the task's files and the vocabulary.
        task: task name.
        source: source of the examples; `None` means the toy task's files.
        model: model name.
        settings: recipe settings, with "__" in place of a dot.
    """
    if task in HEADERS:
        toy_source = f"tsv:{folder}/{task}-{{split}}.tsv"
        changes = {"training.learning_rate": 0.005}
    elif task == "conll2003":
        toy_source, changes = f"conll:{folder}/{{split}}.txt", TAGGING_SETTINGS
    elif task in ("squad", "squad2"):
        toy_source, changes = f"jsonl:{folder}/{{split}}.jsonl", QUESTION_SETTINGS
    else:
        toy_source = f"tsv:{folder}/{{split}}.tsv"
        changes = {"training.learning_rate": 0.01, "task.head_dropout": 0.0}
    given = {setting.replace("__", "."): value for setting, value in settings.items()}
    chosen = {"model": model, "data.source": source or toy_source, **SHRUNK, **changes, **given}
    flags = ["--vocabulary", str(folder / "vocabulary")]
    return flags + [word for item in chosen.items() for word in ("--set", "{}={}".format(*item))]


def recipe_of(task: str) -> str:
    """Returns the name of the recipe for a toy task."""
    return f"sentence_bert:{task}" if task in HEADERS else f"finetune:{task}"


def without(flags: list[str], *names: str) -> list[str]:
    """Removes the flags, and the `--set` settings, in `names` from a list of flags and values."""
    pairs = zip(flags[::2], flags[1::2], strict=True)
    kept = [pair for pair in pairs if not {pair[0], pair[1].split("=")[0]} & {*names}]
    return [argument for pair in kept for argument in pair]


def not_yet_trained(location: str, recipe: str = "finetune:sst2", *settings: str):
    """Prepares fine-tuning without training; returns a `Start`, the recipe and the network.

    The network has the weights of the model in the `Start`.

    Args:
        location: model or run that fine-tuning starts from.
        recipe: name of the recipe.
        settings: recipe settings besides `max_length=16`.
    """
    init = read_start(location)
    recipe = registry.load(recipe, settings=["data.max_length=16", *settings])
    recipe = recipe.changed(**init.settings)
    recipe = recipe_from_json(recipe.to_json(), "recipe.json")
    init.check(recipe.model_config(init.vocabulary.size))
    network = Run(None, recipe, init.vocabulary).build_network()
    init.copy_to(network)
    return init, recipe, network


def write_untrained(run, seed: int = 1, metrics: dict | None = None):
    """Writes a run with one checkpoint of random weights; returns the network.

    Args:
        run: run object, which defines the folder and the network.
        seed: seed of the weights.
        metrics: validation metrics that the checkpoint records.
    """
    keras.utils.set_random_seed(seed)
    network = run.build_network()
    record = {"vocabulary": run.vocabulary.hash, "metrics": metrics or {}}
    checkpoints.CheckpointDirectory(run.path).save(
        1,
        lambda directory: network.save_weights(str(directory / checkpoints.WEIGHTS)),
        {**record, "weights": weight_table(network)},
    )
    run.write(network, "start")
    return network


def assert_same_weights(one, other, atol: float = 0.0) -> None:
    for ours, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


def train_toy(folder: pathlib.Path, run: pathlib.Path, task: str = "sst2", **options) -> None:
    """Trains on a toy task; `options` are arguments of `toy_flags`."""
    flags = toy_flags(folder, task, **options)
    assert main(["train", recipe_of(task), str(run), *flags]) == 0


def best_in(run: pathlib.Path) -> dict:
    """Returns the step and the score of the best checkpoint of a run."""
    return json.loads((run / "checkpoints" / "best.json").read_text())


def validations(run: pathlib.Path) -> list[dict]:
    """Returns the validation records of a run's metrics file, in order."""
    return [line for line in read_lines(run / "metrics.jsonl") if line["kind"] == "validation"]


def scores_in(folder: pathlib.Path) -> dict:
    """Returns the content of the folder's only JSON file."""
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def write_table(path: pathlib.Path, rows: list[tuple], header: str = "sentence\tlabel") -> None:
    """Writes a tab-separated table with a header."""
    lines = [header, *("\t".join(map(str, row)) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_toy(folder: pathlib.Path) -> str:
    """Writes sentiment tables and a vocabulary; returns the `tsv:` source of the tables.

    The files TASK-train.tsv and TASK-validation.tsv hold sentence pairs or triplets of other tasks.
    """
    for split, count, seed in (("train", 240, 1), ("validation", 50, 2), ("test", 10, 3)):
        write_table(folder / f"{split}.tsv", sentences(count, seed))
    for task, header in HEADERS.items():
        for split, count, seed in (("train", 240, 1), ("validation", 60, 2)):
            write_table(folder / f"{task}-{split}.tsv", related(task, count, seed), header)
    _save_vocabulary(folder, *PRAISE, *BLAME, *FILLERS)
    return f"tsv:{folder}/{{split}}.tsv"


def write_reading(folder: pathlib.Path, unanswerable: bool = False) -> None:
    """Writes questions and CoNLL files with two splits, and their vocabulary."""
    for split, count, seed in (("train", 240, 1), ("validation", 60, 2)):
        lines = map(json.dumps, questions(count, seed, unanswerable))
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for split, count, seed in (("train", 240, 3), ("dev", 60, 4)):
        lines = ([f"{word} X {tag}" for word, tag in words] for words in tagged(count, seed))
        text = "\n\n".join(map("\n".join, lines))
        (folder / f"{split}.txt").write_text(f"-DOCSTART- -X- O\n\n{text}\n", encoding="utf-8")
    _save_vocabulary(folder, *NAMES, *CITIES, *READ_FILLERS, *READ_PIECES)


def _save_vocabulary(folder: pathlib.Path, *words: str) -> None:
    WordPieceVocabulary((*SPECIAL_PIECES, *words)).save(folder / "vocabulary")


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Returns (sentence, SST-2 class name) pairs."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        label = int(rng.integers(2))
        words = list(rng.choice(FILLERS, rng.integers(2, 6)))
        words.insert(rng.integers(len(words)), str(rng.choice(PRAISE if label else BLAME)))
        pairs.append((" ".join(words), ("negative", "positive")[label]))
    return pairs


def related(task: str, count: int, seed: int) -> list[tuple]:
    """Returns table rows of STS-B, MRPC or a triplet task.

    Two sentences count as similar if they have the same sentiment.
    """
    rng, rows = np.random.default_rng(seed), []
    pool = sentences(200, seed)
    while len(rows) < count:
        (a, label_a), (b, label_b) = (pool[i] for i in rng.integers(len(pool), size=2))
        same = label_a == label_b
        if task == "stsb":
            rows.append((a, b, 5.0 if same else 0.0))
        elif task == "mrpc":
            rows.append((a, b, ("not_equivalent", "equivalent")[same]))
        elif same:
            negatives = [text for text, label in pool if label != label_a]
            rows.append((a, b, negatives[rng.integers(len(negatives))]))
    return rows


def questions(count: int, seed: int, unanswerable: bool) -> list[dict]:
    """Returns questions with the fields of SQuAD.

    The question "Who?" asks for the only name in the context, and "Where?" asks for the only place.
    Contexts have up to 30 words. With `unanswerable`, every third context has no name.
    """
    rng = np.random.default_rng(seed)
    records = []
    for index in range(count):
        words = list(rng.choice(READ_FILLERS, rng.integers(3, 29)))
        answers_by_question = {"Where?": str(rng.choice(CITIES)).title()}
        if not unanswerable or index % 3:
            answers_by_question["Who?"] = str(rng.choice(NAMES)).title()
        for word in answers_by_question.values():
            words.insert(rng.integers(len(words)), word)
        context = "\u201c" + " ".join(words) + "."
        question = "Who?" if index % 2 else "Where?"
        text = answers_by_question.get(question)
        starts = [context.index(text)] if text else []
        answers = {"text": [text] * len(starts), "answer_start": starts}
        record = {"id": f"q{index}", "question": question, "context": context, "answers": answers}
        records.append(record)
    return records


def tagged(count: int, seed: int) -> list[list[tuple[str, str]]]:
    """Returns sentences of up to 22 words with IOB1 tags.

    A name is tagged as a person. "the" and the place after it are tagged as an organization.
    """
    rng = np.random.default_rng(seed)
    tagged_sentences = []
    for _ in range(count):
        sentence = [(str(word), "O") for word in rng.choice(READ_FILLERS[1:], rng.integers(2, 21))]
        index = int(rng.integers(len(sentence)))
        if rng.random() < 0.5:
            sentence[index:index] = [(str(rng.choice(NAMES)).title() + "s", "I-PER")]
        else:
            sentence[index:index] = [("the", "I-ORG"), (str(rng.choice(CITIES)), "I-ORG")]
        tagged_sentences.append(sentence)
    return tagged_sentences


def outputs_of(task: LabelledTask, *columns: list[str]):
    """Returns the outputs that `SetOutputs` computes for examples made of `columns` of texts."""
    if isinstance(task, QuestionAnswering):
        examples = Questions([*map(str, range(len(columns[0])))], *columns, None)
    elif isinstance(task, TokenClassification):
        examples = TaggedSentences([at_spaces(line) for line in columns[0]], None)
    else:
        examples = Examples(columns, None)
    return SetOutputs(task, 8).compute(examples)


def write_tfds(folder, features, **splits):
    """Writes a TFDS data set glue/toy with the given features and splits."""
    tfds = pytest.importorskip("tensorflow_datasets")
    tfds.dataset_builders.store_as_tfds_dataset(
        name="glue",
        config="toy",
        version="1.0.0",
        data_dir=folder,
        features=tfds.features.FeaturesDict(features),
        split_datasets={name: list(enumerate(split)) for name, split in splits.items()},
    )


# Large weights, whose outputs differ from text to text.
TINY = {**SHRUNK, "model.initializer_range": 0.9}


def write_run(path, recipe, vocabulary, model="bert_tiny", **more) -> None:
    """Writes a run folder with random weights: an encoder or a task model."""
    given = {"model": model, **TINY, **more}
    recipe = override(recipe, [f"{name}={value}" for name, value in given.items()])
    vocabulary = load_encoder_vocabulary(vocabulary / "vocabulary")
    run = Run(as_path(path), recipe, vocabulary)
    write_untrained(run, metrics={"best_f1_thresh": -0.5})
