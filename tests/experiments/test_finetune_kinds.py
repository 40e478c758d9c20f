"""Tests of fine-tuning commands on question answering, tagging, choices and classification.

The choice and classification tests fine-tune a language model that was pre-trained briefly.
"""

import itertools
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from experiments import registry
from experiments.commands import main
from macaron_tf import models
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.model import Pretrained, load
from macaron_tf.models.model_parts import Card
from macaron_tf.runs.finetuning import TaskData, by_split, load_labelled_task
from macaron_tf.runs.run import Run
from macaron_tf.runs.starts import start_of
from macaron_tf.tasks import labelled
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.text import load_encoder_vocabulary
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from tests.harness import built, refuses
from tests.toys import tasks as toys
from tests.toys.marks import slow
from tests.toys.pretraining import flags, toy_settings

READING = ("squad2", "conll2003")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with SQuAD and CoNLL files, and with a trained run for each task."""
    folder = tmp_path_factory.mktemp("reading")
    toys.write_reading(folder, unanswerable=True)
    for task in READING:
        toys.train_toy(folder, folder / task, task)
    return folder


def test_the_chance_level_is_that_of_the_best_constant_answer(folder, toy):
    def level(task, source):
        data = TaskData(get_task(task), source)
        return data.chance_level(), next(iter(data.validation.values()))

    found, examples = level("sst2", f"tsv:{toy}/{{split}}.tsv")
    assert found == np.bincount(examples.labels).max() / len(examples)
    found, _ = level("stsb", f"tsv:{toy}/stsb-{{split}}.tsv")
    assert found == 0.0
    found, questions = level("squad2", f"squad:{folder}/{{split}}.json")
    assert found == pytest.approx(np.mean([not answers for answers in questions.labels]))
    found, sentences = level("conll2003", f"conll:{folder}/{{split}}.txt")
    # With B-X for every word, the right entities are those of one word.
    tags, labels = get_task("conll2003").labels, [[*row, 0] for row in sentences.labels]
    following = [*itertools.chain(*map(itertools.pairwise, labels))]
    begun = [(tags[one], tags[two]) for one, two in following if tags[one][0] == "B"]
    right = [one[2:] for one, two in begun if two != f"I-{one[2:]}"]
    expected = [2 * right.count(name) / (len(following) + len(begun)) for name in {*right}]
    assert found == pytest.approx(max(expected, default=0.0))


def test_they_learn_and_evaluate_writes_what_official_scripts_read(folder, tmp_path, ran):
    said, output = {}, ""
    for task in READING:
        lines = toys.validations(folder / task)
        names = {*get_task(task).metrics, *get_task(task).more_metrics}
        assert names <= set(lines[-1]) and lines[-1]["score"] > 0.9 and lines[-1]["loss"] < 1
        best = toys.result_in(folder / task)["best_score"]
        assert best == max(line["score"] for line in lines)
        output += ran(main, "evaluate", folder / task, "--output", tmp_path / task).out
        said[task] = toys.scores_in(tmp_path / task)
        assert said[task]["metrics"]["score"] == best
    assert "60 examples of validation" in output and "60 examples of dev" in output
    # At the development set's best threshold, F1 equals the best F1.
    metrics = said["squad2"]["metrics"]
    assert metrics["f1"] == pytest.approx(metrics["best_f1"])
    answers = said["squad2"]["predictions"]["validation"]
    assert set(answers) == {f"q{number}" for number in range(60)}
    assert {answer.lower() for answer in answers.values()} >= {"", *toys.NAMES}
    assert said["conll2003"]["metrics"]["PER_f1"] > 0.8
    assert len(said["conll2003"]["predictions"]["dev"]) == 60


def test_predict_answers_out_of_the_text_as_it_was_given(folder, answered):
    lines = [
        "Who?\t\u201cthe old  Ann saw, in Rome.",
        "Where?\tthe dog and Eve in O\u0301slo and the cat",
        "Where?\t" + "the old cat " * 40 + "BONN " + "saw the dog " * 30,
        "Who?\t",
    ]
    found = answered(main, "predict", folder / "squad2", text="\n".join(lines))
    rows = [line.split("\t") for line in found.splitlines()]
    assert [row[0] for row in rows] == ["Ann", "O\u0301slo", "BONN", ""]
    for line, (answer, probability, start, end) in zip(lines, rows, strict=True):
        assert line.split("\t")[1][int(start) : int(end)] == answer
        assert 0 < float(probability) <= 1
    answered(main, "predict", folder / "squad2", text="{Who?\tAnn saw Rome.")


@pytest.mark.slow
def test_rows_that_end_with_cls_are_read_too(folder, tmp_path, answered, refused):
    """Question answering and tagging work with [CLS] at the end of a row, as in XLNet."""
    words = (*toys.NAMES, "the", "old", "cat")
    lines = [" ".join(rows) for rows in itertools.permutations(words, 3)]
    made = SentencePieceVocabulary.train(lines, 20, model_type="unigram")
    proto, lower = made.proto, NormalizationConfig(lower_case=True)
    vocabulary = SentencePieceVocabulary(proto, normalization=lower, cls_last=True)
    vocabulary.save(tmp_path / "vocabulary")
    for task in ("squad", "conll2003"):
        given = (registry.load(f"finetune:{task}"), tmp_path, "xlnet_tiny")
        toys.write_run(tmp_path / task, *given, **toys.READING, **{"model.summary": "last"})
    flags = toys.toy_flags(folder, "squad2", model="xlnet_tiny")
    flags = [*toys.without(flags, "--vocabulary"), "--vocabulary", tmp_path / "vocabulary"]
    first = ["train", "finetune:squad2", tmp_path / "new", *flags]
    refused(main, first, "has [CLS] at the end: give --set model.summary=last", tmp_path)
    line = "Who?\tthe old  Ann saw the Cat"
    answer, _, start, end = answered(main, "predict", tmp_path / "squad", text=line).split("\t")
    assert answer and line.split("\t")[1][int(start) : int(end)].split() == answer.split()
    found = answered(main, "predict", tmp_path / "conll2003", text="old Ann and the cat " * 8)
    assert len(found.split()) == 2 * 40


def test_predict_tags_every_word(folder, answered):
    lines = ["old red Bobs saw the Oslo", "", "\u200b cat", "cat " * 60 + "Anns"]
    found = answered(main, "predict", folder / "conll2003", text="\n".join(lines))
    found = found.removesuffix("\n\n").split("\n\n")
    found = [[row.split("\t") for row in text.split("\n") if row] for text in found]
    expected = [line.split() for line in lines if line]
    assert [[word for word, _ in rows] for rows in found if rows] == expected
    assert [tag for _, tag in found[0]] == ["O", "O", "B-PER", "O", "B-ORG", "I-ORG"]
    assert found[-1][-1] == ["Anns", "B-PER"]
    assert ["\u200b", "O"] in [row for rows in found for row in rows]


@pytest.mark.parametrize("task", ["sst2", "squad"])
def test_another_kinds_run_gives_its_encoder(task, folder):
    given = str(folder / "conll2003")
    init, _, network = toys.not_yet_trained(given, f"finetune_bert:{task}", "spans.max_question=4")
    toys.assert_same_weights(network.encoder, init.source.network.encoder)


def test_a_diverged_models_outputs_score_nan(folder):
    examples = Examples((["a"] * 3, ["b"] * 3), np.array([0, 1, 2], np.int32))
    outputs = {"validation_matched": np.full((3, 3), np.nan), "validation_mismatched": np.eye(3)}
    task = labelled(get_task("mnli"))
    metrics = by_split({split: task.measure(found, examples) for split, found in outputs.items()})
    assert np.isnan(metrics["score"]) and metrics["validation_mismatched_accuracy"] == 1
    for name, split in zip(READING, ("validation", "dev"), strict=True):
        run = Run.open(folder / name)
        task = load_labelled_task(run)
        examples = labelled(run.recipe.task_definition).read(split, None, run.recipe.source)
        if name == "conll2003":
            outputs = SetOutputs(task, 8).compute(examples)
            outputs[3][0, 0] = np.nan
        else:
            for weight in task.network.head.weights:
                weight.assign(weight * np.nan)
            outputs = SetOutputs(task, 8).compute(examples)
        metrics = task.measure(outputs, examples)
        assert all(np.isnan(value) for value in metrics.values())


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("train squad", "the task squad2"),
        ("train squad2 --set source=squad:FOLDER/wrong.json", "is not at character 7"),
        ("train squad --set max_length=7", "max_length is 7, but squad needs at least 8"),
        ("train conll2003 --set source=conll:FOLDER/wrong.txt", "txt, line 2: the tag 'B-CAT'"),
        ("predict RUNS/squad2 --input FOLDER/pairs", "line 2 has 1 column: write"),
        ("submit RUNS/squad2 FOLDER", "which the GLUE server does not score"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(command, error, folder, tmp_path, refused):
    answers = [{"text": "cat", "answer_start": 7}]
    asked = {"context": "the old cat", "qas": [{"id": "q", "question": "Who?", "answers": answers}]}
    (tmp_path / "wrong.json").write_text(json.dumps({"data": [{"paragraphs": [asked]}]}))
    (tmp_path / "wrong.txt").write_text("the O\ncat B-CAT\n")
    (tmp_path / "pairs").write_text("Who?\ta\nWho? a\n")
    name, *given = toys.split_command(command, RUNS=folder, FOLDER=tmp_path)
    if name == "train":
        task, *more = given
        given = [toys.recipe_of(task), tmp_path / "run", *toys.toy_flags(folder, task), *more]
    refused(main, [name, *given], error, tmp_path)


@pytest.fixture(scope="module")
def gpt(toy, tmp_path_factory):
    """Returns a GPT-2 run that was pre-trained for 4 updates on the toy sentences."""
    folder = tmp_path_factory.mktemp("gpt")
    text = "\n".join(sentence for sentence, _ in toys.sentences(400, seed=5))
    (folder / "text.txt").write_text(text)
    settings = toy_settings(f"text:{folder}/text.txt", 4)
    settings += ["training.validate_every=4", "training.warmup_steps=1", "model.num_layers=1"]
    settings = flags([*settings, "model.max_length=16"])
    vocabulary = ["--vocabulary", str(toy / "vocabulary")]
    assert main(["train", "gpt2_tiny", str(folder / "run"), *vocabulary, *settings]) == 0
    return folder / "run"


def test_a_run_of_pre_training_gives_its_scores_too(gpt):
    _, recipe, network = toys.not_yet_trained(str(gpt), "finetune_gpt:sst2")
    assert (recipe.training.learning_rate, recipe.language_weight) == (6.25e-5, 0.5)
    assert recipe.limits.causal
    assert isinstance(network, models.CausalClassifier) and not network.symmetric
    inputs = {"token_ids": np.array([[2, 5, 6, 7]], "int32")}
    run = Run.open(gpt)
    pretrained = run.load_network(run.checkpoint(None))
    np.testing.assert_array_equal(
        np.asarray(network.language_model(inputs)), np.asarray(pretrained(inputs))
    )


def test_an_adaptive_softmax_is_a_start(toy):
    """A task model initialized from a model with an adaptive softmax keeps that model's logits."""
    vocabulary = load_encoder_vocabulary(toy / "vocabulary")
    options = {"num_layers": 1, "adaptive_cutoffs": (6, 8), "adaptive_divisor": 2}
    config = models.catalog.config("transformer_xl_tiny", vocab_size=vocabulary.size, **options)
    network = built(models.SegmentLanguageModel, config, 4, noise=0.2)
    start = Pretrained(network, vocabulary=vocabulary, card=Card(model="transformer_xl_tiny"))
    init, task = start_of("xl", start, ["encoder"]), models.CausalClassifier(config, 2)
    task.build()
    init.copy_to(task)
    inputs = {"token_ids": np.array([[2, 5, 6, 7]], "int32")}
    np.testing.assert_array_equal(task.language_model(inputs), network(inputs))


@pytest.fixture(scope="module", params=["bert_tiny", *slow("gpt_tiny")])
def choosing(request, toy, tmp_path_factory):
    """Returns a run that chooses the ending that has the same sentiment as the context."""
    folder, rng = tmp_path_factory.mktemp("choices"), np.random.default_rng(0)
    for split, count in (("train", 200), ("validation", 40)):
        rows = []
        for _ in range(count):
            good, first = rng.integers(2, size=2)
            right, wrong = (toys.PRAISE, toys.BLAME) if good else (toys.BLAME, toys.PRAISE)
            endings = [str(rng.choice(right)), str(rng.choice(wrong))]
            context = f"{rng.choice(toys.FILLERS)} {rng.choice(right)}"
            rows.append((context, *(endings if first else endings[::-1]), 1 if first else 2))
        toys.write_table(folder / f"{split}.tsv", rows, "context\tending1\tending2\tlabel")
    settings = {"source": f"tsv:{folder}/{{split}}.tsv", "model": request.param}
    settings |= {"training__max_steps": 80, "training__validate_every": 40}
    toys.train_toy(toy, folder / "run", "story_cloze", **settings)
    return folder / "run"


def test_choices_are_learnt_and_evaluated(choosing, tmp_path):
    opened = Run.open(choosing)
    kinds = {"gpt_tiny": models.CausalMultipleChoice}
    kind = kinds.get(opened.recipe.model, models.EncoderMultipleChoice)
    assert isinstance(opened.build_network(), kind)
    assert toys.validations(choosing)[-1]["accuracy"] > 0.8
    assert main(["evaluate", str(choosing), "--output", str(tmp_path / "scores")]) == 0
    scores = toys.scores_in(tmp_path / "scores")["metrics"]
    assert scores["accuracy"] == toys.result_in(choosing)["best_score"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("film good\tgood\n", "line 1 has 2 columns: write"),
        ("film good\tgood\tbad\nfilm good\t\tbad\n", "line 2: fewer than two choices: give two"),
    ],
)
def test_fewer_than_two_choices_are_refused(choosing, text, words, tmp_path, refused):
    (tmp_path / "lines").write_text(text)
    refused(main, ["predict", str(choosing), "--input", str(tmp_path / "lines")], words)


@pytest.mark.slow
def test_an_export_chooses_as_predict_does(choosing, tmp_path, answered):
    lines = ["the film great\tgood\tbad", "very film great\tbad\tgood"]
    found = answered(main, "predict", choosing, text="\n".join(lines))
    rows = [line.split("\t") for line in found.splitlines()]
    assert {row[0] for row in rows} <= {"1", "2"}
    served = tf.saved_model.load(str(load(choosing).export(tmp_path / "out")))
    serve, names = served.signatures["serving_default"], ("context", "choice1", "choice2")
    columns = zip(*(line.split("\t") for line in lines), strict=True)
    said = serve(**dict(zip(names, map(tf.constant, columns), strict=True)))
    assert said["classes"].numpy().tolist() == [[b"1", b"2"]] * 2
    assert [label.decode() for label in said["label"].numpy()] == [row[0] for row in rows]
    shown = [[float(part) for part in row[1:]] for row in rows]
    np.testing.assert_allclose(said["probabilities"], shown, atol=1e-4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="fewer than two choices"):
        alone = {"context": ["film great"], "choice1": ["good"], "choice2": [" "]}
        serve(**{name: tf.constant(text) for name, text in alone.items()})


def test_a_run_without_its_recipe_is_not_resumed(folder, tmp_path):
    run = shutil.copytree(folder / "conll2003", tmp_path / "run")
    (run / "recipe.json").unlink()
    refuses("has checkpoints but no recipe.json", Run.existing, run)
