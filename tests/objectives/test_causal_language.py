"""Tests of next-token prediction: GPT, memory, bidirectional models (ELMo), auxiliary loss."""

import math

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf import models
from macaron_tf.objectives import (
    AuxiliaryLanguageObjective,
    BidirectionalLanguageObjective,
    CausalLanguageObjective,
    ClassificationObjective,
    PrefixLanguageObjective,
    SegmentLanguageObjective,
)
from macaron_tf.objectives.causal_language import (
    log_probability,
    log_uniform,
    sampled_cross_entropy,
)
from macaron_tf.training import TrainingConfig, build_fit_model
from tests.harness import built, ids, numpy_of, refuses
from tests.toys.objectives import (
    CLS,
    SEP,
    VOCABULARY,
    batches,
    floats,
    loss_and_gradients,
    nll_of,
    scored,
    tiny,
)
from tests.toys.pairs import CONFIG, PAIRS
from tests.toys.pairs import batch as task_rows
from tests.toys.systems import drawn_elmo as elmo
from tests.toys.systems import words


def test_sums_are_those_of_the_next_tokens():
    network, objective = built(models.LanguageModel, tiny(causal=True)), CausalLanguageObjective()
    [batch] = batches(objective, [20, 9, None])
    assert set(batch) == {"token_ids"}
    found = floats(objective(network, batch, training=False))
    labels = batch["token_ids"].numpy()[:, 1:]
    nll, correct, weight = scored(numpy_of(network(batch))[:, :-1], labels, labels)
    assert weight == 22 + 11  # [CLS] is not predicted
    expected = {
        "loss_sum": nll,
        "nll_sum": nll,
        "weight": weight,
        "correct_sum": correct,
        "input_tokens": 23 + 12,
    }
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_network_that_sees_the_answers_is_refused():
    [batch] = batches(CausalLanguageObjective(), [9])
    with pytest.raises(ValueError, match="causal=True"):
        CausalLanguageObjective()(built(models.PretrainingEncoder, tiny()), batch, training=True)


def test_a_prefix_is_read_both_ways_and_the_rest_forwards():
    objective = PrefixLanguageObjective()
    network = built(objective.network, tiny(num_layers=2))
    [batch] = batches(objective, [20, 9, 1, None] * 40)
    ids, mask, labels = (batch[n].numpy() for n in ("token_ids", "attention_mask", "labels"))
    prefixes = mask[:, 0].sum(axis=1)
    for row, prefix in enumerate(prefixes):
        allowed = [[key < prefix or key <= query for key in range(24)] for query in range(24)]
        np.testing.assert_array_equal(mask[row], allowed)
        count = (ids[row] != 0).sum()
        assert 1 <= prefix <= max(count - 1, 1)
        np.testing.assert_array_equal(labels[row, : prefix - 1], 0)
        np.testing.assert_array_equal(labels[row, prefix - 1 :], ids[row, prefix:])
    assert {*prefixes[1::4]} == {*range(1, 12)}  # these rows have 12 ids

    found = floats(objective(network, batch, training=False))
    inputs = {name: batch[name] for name in ("token_ids", "attention_mask")}
    logits = numpy_of(network(inputs)["masked_language"])
    nll, correct, weight = scored(logits[:, :-1], labels, labels)
    expected = {"loss_sum": nll, "nll_sum": nll, "weight": weight, "correct_sum": correct}
    expected["input_tokens"] = (ids != 0).sum()
    assert found == pytest.approx(expected, rel=1e-4)

    [row] = np.flatnonzero((prefixes == 6) & (np.arange(160) % 4 == 0))[:1]
    for changed in (3, 12):  # in the prefix, and after it
        other = np.where(np.arange(24) == changed, 5 + ids % 7, ids)
        new = numpy_of(network({**inputs, "token_ids": other})["masked_language"])[row]
        differs = np.abs(new - logits[row]).max(axis=-1) > 1e-5
        sees = np.arange(24) >= (0 if changed == 3 else changed)
        np.testing.assert_array_equal(differs[:23], sees[:23])


def test_blocks_without_attention_cannot_hide_the_tokens_after_a_prefix():
    objective, spec = PrefixLanguageObjective(), {"token_ids": None, "document_ids": None}
    refuses("by attention: replace gmlp", objective.network, tiny(block="gmlp"))
    refuses("omit data.isolate_documents", objective.preparation, spec, None)


BATCH, SEGMENT = 4, 8


def remembering(memory_length, turns=1) -> models.SegmentLanguageModel:
    """Returns a segment language model with memory for `turns` micro-batches per update."""
    config = tiny(causal=True, positions="transformer_xl", num_segments=0, num_layers=2)
    network = built(models.SegmentLanguageModel, config, memory_length)
    network.create_memory(BATCH // turns, turns)
    return network


def streams(count, padded=False) -> tf.data.Dataset:
    """Returns `count` batches in which each row continues the same row of the previous batch.

    With `padded`, the rows of batch 1 end with padding.
    """
    text = ids(BATCH, count * SEGMENT, vocab_size=60)
    rows = np.zeros((count, BATCH, SEGMENT + 2), "int32")
    rows[:, :, 0], rows[:, :, -1] = CLS, SEP
    rows[:, :, 1:-1] = text.reshape(BATCH, count, SEGMENT).transpose(1, 0, 2)
    if padded:
        rows[1, :, 4:] = 0
        rows[1, :, 4] = SEP
    previous = np.concatenate([np.zeros_like(rows[:1]), rows[:-1]])
    starts = np.arange(count)[:, None] == np.zeros(BATCH, int)
    slices = {"token_ids": rows, "previous_ids": previous, "starts": starts}
    return tf.data.Dataset.from_tensor_slices(slices)


def segments(count, padded=False) -> tf.data.Dataset:
    rows = streams(count, padded)
    return SegmentLanguageObjective().dataset(rows, VOCABULARY, seed=0)


def test_segments_are_the_text_and_the_token_before_each():
    rows = list(streams(4, padded=True).as_numpy_iterator())
    found = list(segments(4, padded=True).as_numpy_iterator())
    for row, batch in zip(rows, found, strict=True):
        np.testing.assert_array_equal(batch["labels"], row["token_ids"][:, 1:-1])
        np.testing.assert_array_equal(batch["token_ids"][:, 1:], batch["labels"][:, :-1])
    np.testing.assert_array_equal(found[0]["token_ids"][:, 0], CLS)
    np.testing.assert_array_equal(found[1]["token_ids"][:, 0], found[0]["labels"][:, -1])
    np.testing.assert_array_equal(found[2]["token_ids"][:, 0], SEP)  # after padding


@pytest.mark.parametrize("training", [True, False])
def test_sums_are_those_of_one_long_text(training):
    network, objective = remembering(64), SegmentLanguageObjective()
    batches = list(segments(3))
    whole = np.concatenate([batch["token_ids"] for batch in batches], 1)
    labels = np.concatenate([batch["labels"] for batch in batches], 1)
    logits = numpy_of(network({"token_ids": whole}))
    for t, batch in enumerate(batches):
        part = slice(t * SEGMENT, (t + 1) * SEGMENT)
        found = floats(objective(network, batch, training=training))
        nll = nll_of(logits[:, part], labels[:, part]).sum()
        assert found["nll_sum"] == pytest.approx(nll, rel=1e-4)
        assert found["weight"] == BATCH * SEGMENT


def test_evaluation_leaves_the_memory_of_training_alone():
    network, objective = remembering(8), SegmentLanguageObjective()
    first, second = segments(2)
    objective(network, first, training=True)
    kept = [numpy_of(v) for v in network.memories["training"].variables]
    assert any(value.any() for value in kept)
    for batch in (first, second):
        objective(network, batch, training=False)
    for before, after in zip(kept, network.memories["training"].variables, strict=True):
        np.testing.assert_array_equal(before, numpy_of(after))
    again = floats(objective(network, first, training=False))
    fresh = floats(objective(remembering(8), first, training=False))
    assert again["loss_sum"] == fresh["loss_sum"]  # a new text has no memory


@pytest.mark.thorough
def test_an_update_s_micro_batches_have_texts_of_their_own():
    """With memory, updates on two micro-batches equal updates on one batch of the same rows."""

    def trained(turns):
        network, batch = remembering(8, turns), BATCH // turns
        config = TrainingConfig(
            max_steps=3, learning_rate=0.01, warmup_steps=0, schedule="constant",
            accumulation_steps=turns, epsilon=0.01,  # Adam normalizes small gradients
        )  # fmt: skip
        model = build_fit_model(network, SegmentLanguageObjective(), config)
        model.fit(segments(3).rebatch(batch), steps_per_epoch=3, verbose=0)
        return network

    one, two = trained(1), trained(2)
    before = remembering(8)
    for a, b, start in zip(one.weights, two.weights, before.weights, strict=True):
        np.testing.assert_allclose(numpy_of(a), numpy_of(b), atol=1e-6, err_msg=a.path)
        assert np.abs(numpy_of(a) - numpy_of(start)).max() > 0.001
    held = [model.memories["training"].variables for model in (one, two)]
    for a, b in zip(*held, strict=True):
        assert tuple(b.shape[:2]) == (2, 2)
        # `(2, 2, ...) -> (4, ...)`: the second micro-batch has the last two texts.
        parts = np.concatenate([numpy_of(b)[:, 0], numpy_of(b)[:, 1]]) * 1.0
        np.testing.assert_allclose(parts, numpy_of(a)[:, 0] * 1.0, atol=1e-5)


LABELS = np.array([0, 2, 1, 1, 2], "int32")
WEIGHTS = np.array([1, 1, 1, 1, 0], "float32")


def language_loss(model, token_ids) -> float:
    """Returns L1, the auxiliary language-modeling loss of GPT, for one row.

    The loss is the mean over all tokens between the first and the last token.
    """
    real = token_ids[token_ids != 0]
    logits = numpy_of(model.language_model({"token_ids": real[None]}))[0]
    return float(np.mean(nll_of(logits[:-2], real[1:-1])))


def examples(symmetric, choices):
    """Returns a network, its token ids `(B, N, L)`, and a batch whose fifth example is padding.

    N is 2 for multiple choice and for a symmetric classifier, and otherwise 1.
    """
    rows, other = task_rows(PAIRS), task_rows([pair and pair[::-1] for pair in PAIRS])
    both = np.stack([rows["token_ids"], other["token_ids"]], axis=1)  # `(B, 2, L)`
    if choices:
        network, read = built(models.CausalMultipleChoice, CONFIG, 0.0, noise=0.2), both
        inputs = {"token_ids": both, "label": LABELS % 2}
    else:
        network = built(models.CausalClassifier, CONFIG, 3, 0.0, symmetric, noise=0.2)
        read = both if symmetric else both[:, :1]
        inputs = {**rows, "label": LABELS}
    return network, read, {**inputs, "weight": WEIGHTS}


@pytest.mark.parametrize("symmetric, choices", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("language_weight", [0.5, 0.0])
def test_the_losses_are_the_papers(symmetric, choices, language_weight):
    network, read, inputs = examples(symmetric, choices)
    objective = AuxiliaryLanguageObjective(2 if choices else 3, language_weight)
    found = floats(objective(network, inputs, training=False))
    given = {name: x for name, x in inputs.items() if name in network.input_names}
    answers = nll_of(numpy_of(network(given)), inputs["label"])[:4].sum()
    language = sum(np.mean([language_loss(network, row) for row in rows]) for rows in read[:4])
    assert found["loss_sum"] == pytest.approx(answers + language_weight * language, rel=1e-4)
    assert found["weight"] == 4
    assert found["input_tokens"] == (inputs["token_ids"] != 0).sum()
    if language_weight:
        assert found["language_loss_sum"] == pytest.approx(language, rel=1e-4)
    else:
        plain = ClassificationObjective(objective.num_classes)(network, inputs, training=False)
        assert found == pytest.approx(floats(plain), rel=1e-6)


def sentences() -> dict[str, tf.Tensor]:
    """Returns the characters and the word ids of three sentences; the third sentence is shorter."""
    characters = words(3, 6)
    answers = np.random.default_rng(1).integers(0, 11, (3, 6)).astype("int32")
    characters[2, 4:], answers[2, 4:] = 0, -1
    return {"characters": tf.constant(characters), "words": tf.constant(answers)}


def test_each_direction_answers_for_its_neighbour():
    model, given = elmo(), sentences()
    sums = floats(BidirectionalLanguageObjective()(model, given, training=False))
    answers = given["words"].numpy()
    real = (answers[:, 1:] >= 0) & (answers[:, :-1] >= 0)
    hidden = model.hidden_states(given["characters"])
    forward, backward = (numpy_of(model.logits(direction)) for direction in hidden)
    onwards, correct, _ = scored(forward[:, :-1], answers[:, 1:], real)
    back, correct_back, _ = scored(backward[:, 1:], answers[:, :-1], real)
    expected = {
        **dict.fromkeys(("loss_sum", "nll_sum"), onwards + back),
        "weight": 26,
        "correct_sum": correct + correct_back,
        "forward_sum": onwards,
        "backward_sum": back,
        **dict.fromkeys(("forward_weight", "backward_weight"), 5 + 5 + 3),
    }
    assert {name: sums[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    wide = {**given, "words": tf.cast(given["words"], tf.int64)}  # NumPy's default
    assert floats(BidirectionalLanguageObjective()(model, wide, training=False)) == sums


@pytest.mark.slow
def test_a_sampled_update_compiles_too_and_a_batch_decides_its_draws():
    objective, network = BidirectionalLanguageObjective(6), elmo(num_layers=1)
    compiled = tf.function(
        lambda batch: loss_and_gradients(objective, network, batch, training=True),
        autograph=False,
        jit_compile=True,
    )
    # XLA's random numbers differ from TensorFlow's for the same seed.
    first, *slopes = compiled(sentences())
    assert np.isfinite(first) and all(np.isfinite(numpy_of(s)).all() for s in slopes)
    assert compiled(sentences())[0] == first
    other = sentences()
    assert compiled({**other, "words": tf.reverse(other["words"], [1])})[0] != first


@pytest.mark.parametrize("classes", [5, 1000])
def test_classes_are_drawn_as_often_as_said(classes):
    drawn = log_uniform([3, 4], 100_000, classes).numpy()
    assert drawn.min() == 0 and drawn.max() < classes
    k = np.arange(classes)
    expected = np.log((k + 2) / (k + 1)) / math.log(classes + 1)
    assert expected.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(np.exp(log_probability(k, classes)), expected, rtol=1e-5)
    frequency = np.bincount(drawn, minlength=classes) / len(drawn)
    # Five standard deviations of a frequency from 100,000 draws.
    assert (abs(frequency - expected) <= 5 * np.sqrt(expected / len(drawn))).all()
    assert (log_uniform([3, 4], 100_000, classes).numpy() == drawn).all()


RANDOM = np.random.default_rng(0)
HIDDEN, KERNEL, BIAS = (RANDOM.normal(size=shape) for shape in ((4, 3), (3, 7), 7))
SCORES, ANSWERS = HIDDEN @ KERNEL + BIAS, np.array([0, 6, 2, 2], "int32")


def loss(draw: np.ndarray) -> np.ndarray:
    given = (tf.constant(x, tf.float32) for x in (HIDDEN, KERNEL, BIAS))
    return sampled_cross_entropy(*given, tf.constant(ANSWERS), draw).numpy()


def test_each_draw_stands_for_a_part_of_its_class():
    draw = np.array([1, 6, 1, 3, 2], "int32")
    hits = len(draw) * np.log((draw + 2) / (draw + 1)) / math.log(8)
    others = np.where(draw == ANSWERS[:, None], 0, np.exp(SCORES[:, draw]) / hits)
    answer = SCORES[np.arange(4), ANSWERS]
    expected = np.log(np.exp(answer) + others.sum(1)) - answer
    np.testing.assert_allclose(loss(draw), expected, atol=1e-5)
