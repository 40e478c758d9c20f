"""Tests of the objectives of BERT, ELECTRA, XLNet and SpanBERT."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf import models
from macaron_tf.objectives import (
    MaskedLanguageObjective,
    MaskingConfig,
    PermutationObjective,
    ReplacedTokenObjective,
    SpanBoundaryObjective,
)
from macaron_tf.objectives.permutation import permute_tokens
from macaron_tf.objectives.replaced_tokens import sample
from macaron_tf.training.updates import metrics_from_sums
from tests.harness import built, normal, numpy_of
from tests.toys import objectives as toy


def batch_of(lengths):
    """Returns a masked batch of rows with `lengths`; `None` means a row of padding."""
    labels = np.arange(len(lengths), dtype="int32") % 2
    segments = np.zeros((len(lengths), 24), "int32")
    pairs = {"pair_label": labels, "segment_ids": segments}
    [batch] = toy.batches(
        MaskedLanguageObjective(masking=MaskingConfig(rate=0.3)), lengths, **pairs
    )
    return batch


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_sums_are_those_of_numpy(dtype):
    """In bfloat16, the logarithm and the sum would be off by 0.15%."""
    batch = batch_of([20, 9, 1, None, 15])
    network = built(models.PretrainingEncoder, toy.tiny(), sentence_pair=True, dtype=dtype)
    sums = toy.floats(MaskedLanguageObjective(sentence_pair=True)(network, batch, training=False))
    inputs = {name: batch[name] for name in ("token_ids", "segment_ids")}
    hidden = numpy_of(network.hidden_states(inputs))
    rows, positions, labels = toy.of_masks(batch, "masked_positions", "masked_labels")
    nll, correct, weight = toy.scored(
        numpy_of(network.masked_logits(hidden[rows, positions])), labels
    )
    pairs = numpy_of(network.pair_logits(hidden)), batch["pair_label"]
    pair_nll, pair_correct, real = toy.scored(*pairs, np.any(batch["token_ids"], axis=1))
    expected = {
        "loss_sum": nll + weight / real * pair_nll,
        "weight": weight,
        "nll_sum": nll,
        "correct_sum": correct,
        "input_tokens": np.count_nonzero(batch["token_ids"]),
        "pair_loss_sum": pair_nll,
        "pair_loss_weight": real,
        "pair_accuracy_sum": pair_correct,
        "pair_accuracy_weight": real,
    }
    assert sums == pytest.approx(expected, rel=1e-5)
    metrics = metrics_from_sums(sums)
    assert metrics["loss"] == pytest.approx(nll / weight + pair_nll / 4, rel=1e-5)
    assert metrics["pair_accuracy"] == pair_correct / 4


@pytest.mark.parametrize(("skips", "rows"), [(True, 6 + 3), (False, 3 * 8)])
def test_only_masked_positions_reach_the_projection(skips, rows, monkeypatch):
    network, seen = built(models.PretrainingEncoder, toy.tiny()), []
    project = network.masked_logits
    monkeypatch.setattr(network, "masked_logits", lambda x: seen.append(len(x)) or project(x))
    MaskedLanguageObjective(skip_padding=skips)(network, batch_of([20, 9, None]), training=True)
    assert seen == [rows]


SPANS = MaskingConfig(rate=0.3, choice="spans", fate="span", round_up=True)


def test_sums_of_span_boundaries_are_those_of_the_formula():
    network = built(models.PretrainingEncoder, toy.tiny(), span_boundary=True)
    objective = SpanBoundaryObjective(masking=SPANS)
    [batch] = toy.batches(objective, [20, 9, 1, None, 15])
    found = toy.floats(objective(network, batch, training=False))

    hidden = numpy_of(network.encoder({"token_ids": batch["token_ids"]}))
    rows, positions, labels = toy.of_masks(batch, "masked_positions", "masked_labels")
    nll, correct, weight = toy.scored(network.masked_logits(hidden[rows, positions]), labels)
    assert weight == 6 + 3 + 1 + 5
    # test_masking.py compares these features with the masked positions.
    sides = ("left_boundaries", "right_boundaries", "span_positions")
    _, left, right, places = toy.of_masks(batch, *sides)
    logits = network.span_boundary_logits(hidden[rows, left], hidden[rows, right], places)
    boundary, again, _ = toy.scored(logits, labels)
    expected = {
        "loss_sum": nll + boundary,
        "weight": weight,
        "nll_sum": nll,
        "span_boundary_loss_sum": boundary,
        "input_tokens": 23 + 12 + 4 + 18,
        "correct_sum": correct,
        "span_boundary_accuracy_sum": again,
    }
    assert found == pytest.approx(expected, rel=1e-4)
    assert set(objective.metric_names) <= set(metrics_from_sums({**found, "updates": 1.0}))


ELECTRA = ReplacedTokenObjective(
    masking=MaskingConfig(rate=0.3, mask=1.0, random=0.0, round_up=True)
)


@pytest.fixture(scope="module")
def network():
    small = models.generator_config(toy.tiny(), 0.5)
    return built(models.GeneratorDiscriminator, toy.tiny(), small)


def sampled(logits, draw):
    """Samples a token other than [PAD] from logits by the inverse cumulative distribution."""
    p = np.exp(np.float64(logits[1:]) - logits[1:].max())
    return 1 + int(np.searchsorted(np.cumsum(p / p.sum()), draw, side="right"))


def test_sums_of_replaced_tokens_are_those_of_the_formula(network):
    [batch] = toy.batches(ELECTRA, [20, 9, 1, None, 15])
    found = toy.floats(ELECTRA(network, batch, training=False))

    features = ("masked_positions", "masked_labels", "sampling_draws")
    rows, positions, labels, draws = toy.of_masks(batch, *features)
    assert ((draws >= 0) & (draws < 1)).all()
    hidden = numpy_of(network.generator.encoder({"token_ids": batch["token_ids"]}))
    logits = numpy_of(network.generator.masked_logits(hidden[rows, positions]))
    nll, correct, weight = toy.scored(logits, labels)
    original, corrupt = (np.array(batch["token_ids"]) for _ in range(2))
    original[rows, positions] = labels
    corrupt[rows, positions] = list(map(sampled, logits, draws))
    real, replaced = original != 0, original != corrupt
    assert 0 < replaced.sum() <= weight == 6 + 3 + 1 + 5
    answers = np.float64(numpy_of(network.replaced_logits({"token_ids": corrupt})))
    loss = np.logaddexp(0, np.where(replaced, -answers, answers))[real]
    said = answers > 0
    expected = {
        "loss_sum": nll + 50 * weight * loss.mean(),
        "weight": weight,
        "nll_sum": nll,
        "correct_sum": correct,
        "input_tokens": real.sum(),
        "replaced_loss_sum": loss.sum(),
        "replaced_accuracy_sum": (said == replaced)[real].sum(),
        "replaced_rate_sum": replaced.sum(),
        "replaced_recall_sum": (said & replaced).sum(),
        "replaced_precision_sum": (said & replaced).sum(),
        "replaced_recall_weight": replaced.sum(),
        "replaced_precision_weight": (said & real).sum(),
        **{f"replaced_{name}_weight": real.sum() for name in ("loss", "accuracy", "rate")},
    }
    assert found == pytest.approx(expected, rel=1e-4)
    metrics = metrics_from_sums(found)
    assert metrics["loss"] == pytest.approx(metrics["nll"] + 50 * metrics["replaced_loss"], 1e-4)
    assert set(ELECTRA.metric_names) <= set(metrics)


def test_samples_follow_the_softmax_on_100_000_draws():
    logits = normal(1, 24)[:, : toy.V // 2] * 1.5
    uniform = np.random.default_rng(0).random(100_000, dtype="float32")
    drawn = sample(tf.repeat(tf.constant(logits), 100_000, axis=0), tf.constant(uniform)).numpy()
    p = np.exp(np.float64(logits[0, 1:]))
    counts = np.bincount(drawn, minlength=logits.shape[1])
    assert counts[0] == 0  # [PAD]
    assert scipy.stats.chisquare(counts[1:], 100_000 * p / p.sum()).pvalue > 1e-4


def test_the_extreme_draws_are_tokens_that_can_be():
    logits = np.full((2, 30_000), -50.0, "float32")
    logits[:, [7, 29_000]] = 0.0
    drawn = sample(tf.constant(logits), tf.constant([0.0, 1.0 - 2.0**-24]))
    assert drawn.numpy()[1] == 29_000
    assert 1 <= drawn.numpy()[0] <= 7


def test_a_sample_that_is_the_original_counts_as_real(network):
    [batch] = toy.batches(ELECTRA, [20, 9])
    bias = network.generator.masked_language.bias
    kept = bias.numpy()
    _, labels = toy.of_masks(batch, "masked_labels")
    label = labels[0]
    bias.assign(np.where(np.arange(toy.V) == label, 1e4, 0.0))  # always predicts this token
    sums = toy.floats(ELECTRA(network, batch, training=True))
    bias.assign(kept)
    assert sums["replaced_rate_sum"] == (labels != label).sum() < len(labels) == sums["weight"]
    assert "correct_sum" not in sums


def test_no_gradient_flows_through_the_samples(network):
    """The discriminator's loss has no gradient for weights that belong only to the generator."""
    [batch] = toy.batches(ELECTRA, [20, 9])
    with tf.GradientTape(persistent=True) as tape:
        sums = ELECTRA(network, batch, training=True)
        losses = {"generator": sums["nll_sum"], "discriminator": sums["loss_sum"] - sums["nll_sum"]}

    def slopes(name, weights):
        """Returns the largest absolute gradient of each weight."""
        values = [weight.value for weight in weights]
        found = tape.gradient(losses[name], values, unconnected_gradients="zero")
        return [np.abs(tf.convert_to_tensor(one)).max() for one in found]

    shared = [w for w in network.encoder.embeddings.weights if "segments" not in w.path]
    embeddings = {weight.path for weight in network.encoder.embeddings.weights}
    own = [w for w in network.generator.trainable_variables if w.path not in embeddings]
    known = embeddings | {weight.path for weight in own}
    others = [w for w in network.trainable_variables if w.path not in known]
    assert max(slopes("discriminator", own)) == max(slopes("generator", others)) == 0.0
    head = [weight for weight in own if "masked_language" in weight.path]
    assert min(slopes("generator", head)) > 0.0
    assert min(slopes("generator", shared)) > 0.0 and min(slopes("discriminator", shared)) > 0.0


def permuted(ids, partial=6.0, seed=(0, 0)):
    given = {"token_ids": tf.constant(ids)}
    batch = permute_tokens(given, tf.constant(seed), partial, toy.VOCABULARY)
    return {name: tensor.numpy() for name, tensor in batch.items()}


def test_what_is_guessed_and_in_which_order():
    ids = toy.ragged_rows([20, 5, 0, 17], 32)
    found = permuted(ids)
    order, guessed = found["order"], found["order"] >= 0
    assert guessed.sum(axis=1).tolist() == [3, 1, 0, 3]  # a sixth, but at least one
    assert not np.isin(ids[guessed], toy.SPECIAL).any() and (order[~guessed] == -1).all()
    for row in order:
        assert sorted(row[row >= 0]) == list(range((row >= 0).sum()))
    rows, positions, labels = toy.of_masks(found, "masked_positions", "masked_labels")
    np.testing.assert_array_equal((rows, positions), np.nonzero(guessed))
    np.testing.assert_array_equal(labels, ids[guessed])
    unused = found["masked_weights"] == 0
    assert not found["masked_labels"][unused].any()
    assert (found["masked_positions"][unused] == -1).all()
    assert (found["token_ids"] == ids).all()  # nothing is masked


@pytest.mark.parametrize("partial", [6.0, 7.0])
def test_laws_on_100_000_draws(partial):
    rows, length = 1600, 64
    ids = toy.full_rows(rows, length)
    found = permuted(ids, partial)
    guessed = found["order"] >= 0
    count = round((length - 2) / partial)
    np.testing.assert_array_equal(guessed.sum(-1), count)
    # Inner positions are equally likely; fewer spans reach the ends.
    places = guessed.mean(0)[1:-1]
    assert guessed[:, [0, -1]].sum() == 0
    assert np.abs(places[8:-8] / places[8:-8].mean() - 1).max() < 0.25
    # Both orders of a row's first two predictions are equally likely.
    columns = found["masked_positions"][:, :2]
    first = np.take_along_axis(found["order"], columns, 1)
    assert abs((first[:, 0] < first[:, 1]).mean() - 0.5) < 0.05
    # Every rank is equally likely at every predicted position.
    ranks = np.take_along_axis(found["order"], found["masked_positions"][:, :count], 1)
    assert np.abs(ranks.mean(0) - (count - 1) / 2).max() < 0.3
    # 102,400 tokens; p(n) ~ 1/n for 1 to 5, and the last spans of a row are truncated.
    edges = np.diff(np.pad(guessed.astype(int), ((0, 0), (1, 1))), axis=1)
    runs = np.flatnonzero(edges.ravel() == -1) - np.flatnonzero(edges.ravel() == 1)
    assert 1.5 < runs.mean() < 3.5 and (runs == 1).mean() > (runs == 2).mean()


def test_sums_are_those_of_the_guessed_tokens():
    config = toy.tiny(positions="transformer_xl", embedding_norm=False, num_layers=2)
    network, objective = built(models.TwoStreamModel, config, 6), PermutationObjective()
    network.create_memory(4)
    ids = toy.full_rows(4, 24)
    features = {"token_ids": ids, "previous_ids": ids, "starts": np.zeros(4, bool)}
    rows = tf.data.Dataset.from_tensors(features)
    [batch] = objective.dataset(rows, toy.VOCABULARY, seed=0)
    found = toy.floats(objective(network, batch, training=False))
    logits = numpy_of(network(batch)["masked_language"])
    nll, _, weight = toy.scored(logits, batch["masked_labels"], batch["masked_weights"])
    assert found["nll_sum"] == pytest.approx(nll, rel=1e-4)
    assert found["weight"] == weight == 4 * 4
