"""Task heads saved as Hugging Face folders and loaded again give the same predictions."""

import dataclasses
import json

import keras
import pytest

import macaron_tf
from macaron_tf import models
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.hub.families.bert import BERT
from macaron_tf.model import Model
from macaron_tf.tasks import LabelledSettings, Limits, SpanLimits
from macaron_tf.text import WordPieceVocabulary
from macaron_tf.text.byte_pairs import BYTE_ALPHABET, BytePairVocabulary
from tests.harness import refuses, run_card
from tests.toys.decoders import language_model
from tests.toys.hugging_face import FORMAT, random, read_back
from tests.toys.marks import slow

pytest.importorskip("safetensors")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b", "##c"]
TEXTS = ["a bc d", "e", "f g h a b c d e f"]
# Dict mapping model_type to our options.
FAMILIES = {
    "bert": {},
    "albert": {"sharing": "all", "embedding_dim": 16, "activation": "relu"},
    "electra": {"embedding_dim": 16},
    "roberta": {"num_segments": 0},
    "xlnet": {"positions": "transformer_xl", "embedding_norm": False},
    "macaron": {"block": "macaron"},
}


def vocabulary_of(family: str):
    if family == "roberta":
        return BytePairVocabulary(BYTE_ALPHABET, [], pair_separators=2)
    return WordPieceVocabulary(WORDS)


def _own(name: str, **columns):
    return TableSettings(**columns).described(get_task(name, own=True))


PAIRS = [("a bc d", "e"), ("f", "g h a")]
CONTEXTS = [("a b", "c d e f g h a b"), ("h", "a b c")]
CHOICES = [("a b", "c", "d e", "f", ""), ("g", "h", "a", "", "b c d")]
MNLI = dataclasses.replace(get_task("mnli"), labels=("x", "y", "z"))
STSB = dataclasses.replace(get_task("stsb"), mean=2.5, deviation=1.5)
TAG = _own("tag", classes=("O", "B-x", "I-x"))
COLUMNS = dict(text=("context",), text_b=("question",), choices=("one", "two", "three"))
CHOOSE = _own("choose", **COLUMNS, classes=("1", "2", "3"))
# Dict mapping task to (network, task description, texts, pipeline of transformers).
TASKS = {
    "classes": (lambda c: models.EncoderClassifier(c, 3), MNLI, PAIRS, "text-classification"),
    "scores": (lambda c: models.EncoderClassifier(c, 1), STSB, PAIRS, "text-classification"),
    "tags": (lambda c: models.EncoderTokenClassifier(c, 3), TAG, TEXTS, "token-classification"),
    "spans": (models.EncoderQuestionAnswering, get_task("squad2"), CONTEXTS, "question-answering"),
    "choices": (models.EncoderMultipleChoice, CHOOSE, CHOICES, "multiple-choice"),
}
CASES = [
    *(("bert", task) for task in TASKS if task != "choices"),
    ("macaron", "scores"),
    ("xlnet", "scores"),
    ("electra", "tags"),
    *slow(("macaron", "classes"), ("xlnet", "spans"), ("roberta", "classes")),
]


def trained(family: str, task: str) -> Model:
    """Returns a model with random weights and a task description."""
    make, described, *_ = TASKS[task]
    vocabulary = vocabulary_of(family)
    config = models.EncoderConfig(vocabulary.size, 32, 128, 4, 2, max_length=40, **FAMILIES[family])
    network = random(make(config))
    limits = Limits(24, SpanLimits(max_question=8))
    settings = LabelledSettings(task=described, limits=limits)
    return Model(network, vocabulary=vocabulary, settings=settings)


ENDS = {"bos_token_id", "eos_token_id"}


def check_near(ours, theirs) -> None:
    """Asserts that two numbers differ by at most 1e-6, or that other values are equal."""
    assert ours == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(("family", "task"), CASES)
def test_a_model_answers_the_same_after_the_way_there_and_back(family, task, tmp_path):
    made, texts = trained(family, task), TASKS[task][2]
    read = read_back(made, tmp_path / "out")
    assert type(read.network) is type(made.network) and read.card.unread in ((), ("mask_emb",))
    assert read.task.texts == made.task.texts
    keras.tree.map_structure(check_near, made.predict(texts), read.predict(texts))
    read.save_pretrained(tmp_path / "again", format=FORMAT)
    first, again = (
        json.loads((tmp_path / place / "config.json").read_text()) for place in ("out", "again")
    )
    # Only a vocabulary that was trained here says which ids begin and end a text.
    assert {**first, **again} == first and first.keys() - again.keys() <= ENDS


@pytest.mark.parametrize(
    ("family", "task"), [("bert", "spans"), ("bert", "choices"), ("macaron", "tags"), (None, None)]
)
def test_the_lines_of_a_model_card_run(family, task, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    made = trained(family, task) if family else language_model()
    made.save_pretrained(tmp_path / "out", format=FORMAT)
    names = run_card(tmp_path / "out", monkeypatch)
    assert names["model"] and names["tokenizer"]


@pytest.mark.parametrize("task", slow(*TASKS, but=TASKS.keys() - {"spans"}))
def test_the_lines_of_a_card_of_our_own_run(task, tmp_path, monkeypatch):
    trained("bert", task).save_pretrained(tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert f"pipeline_tag: {TASKS[task][-1]}\n" in card and "model.predict(" in card
    assert run_card(tmp_path / "out", monkeypatch)["model"].card.name == "out"


def test_a_head_of_transformers_holds_no_task_of_another_kind():
    made = trained("bert", "classes")
    task = dataclasses.replace(made.settings.task, kind="ordering")
    other = dataclasses.replace(made, settings=dataclasses.replace(made.settings, task=task))
    message = "no head of transformers answers a task of kind 'ordering'"
    refuses(message, BERT.head_fields, other)


def test_a_damaged_head_is_one_sentence(tmp_path):
    trained("bert", "classes").save_pretrained(tmp_path / "out", format=FORMAT)
    fields = json.loads((tmp_path / "out/config.json").read_text())
    (tmp_path / "out/config.json").write_text(json.dumps({**fields, "id2label": ["x"]}))
    sentence = "config.json is damaged.*correct its fields architectures and"
    refuses(sentence, macaron_tf.load, f"hugging-face:{tmp_path / 'out'}")


def test_a_task_is_known_by_its_name_and_has_the_labels_of_the_head(tmp_path):
    trained("bert", "classes").save_pretrained(tmp_path / "out", format=FORMAT)
    fields = json.loads((tmp_path / "out/config.json").read_text())
    assert fields["finetuning_task"] == "mnli"
    fields["id2label"]["2"] = "other"
    for name, texts in (("mnli", ("first", "second")), ("mine", ("text",))):
        fields["finetuning_task"] = name
        (tmp_path / "out/config.json").write_text(json.dumps(fields))
        read = macaron_tf.load(f"hugging-face:{tmp_path / 'out'}")
        assert read.settings.task.labels == ("x", "y", "other") and read.task.texts == texts
