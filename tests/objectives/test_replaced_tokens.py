import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf.models import GeneratorDiscriminator, generator_config
from macaron_tf.objectives import MaskingConfig, ReplacedTokenObjective
from macaron_tf.objectives.replaced_tokens import sample
from macaron_tf.training.updates import metrics_from_sums
from tests.harness import normal, numpy_of
from tests.objectives.toy import V, batches, floats, nll_of, tiny

MASKING = MaskingConfig(rate=0.3, mask=1.0, random=0.0, round_up=True)


def network_of(**options):
    config = tiny()
    network = GeneratorDiscriminator(config, generator_config(config, 0.5), **options)
    network.build()
    return network


@pytest.fixture(scope="module")
def network():
    return network_of()


def sampled(logits, draw):
    """The token that the inverse of the cumulative distribution gives, [PAD] left out."""
    p = np.exp(np.float64(logits[1:]) - logits[1:].max())
    return 1 + int(np.searchsorted(np.cumsum(p / p.sum()), draw, side="right"))


@pytest.mark.parametrize("skip", [True, False])
def test_sums_are_those_of_the_formula(network, skip):
    objective = ReplacedTokenObjective(skip_padding=skip)
    [batch] = batches(objective, MASKING, [20, 9, 1, None, 15])
    found = floats(objective(network, batch, training=False))

    data = {name: tensor.numpy() for name, tensor in batch.items()}
    assert ((data["sampling_draws"] >= 0) & (data["sampling_draws"] < 1)).all()
    hidden = numpy_of(network.generator.encoder({"token_ids": batch["token_ids"]}))
    original, corrupt = data["token_ids"].copy(), data["token_ids"].copy()
    nll = correct = weight = 0.0
    for row, place in zip(*np.nonzero(data["masked_weights"]), strict=True):
        position, label = data["masked_positions"][row, place], data["masked_labels"][row, place]
        logits = numpy_of(network.generator.masked_logits(hidden[row, position][None]))[0]
        nll += nll_of(logits, np.array(label))
        correct += logits.argmax() == label
        weight += 1
        original[row, position] = label
        corrupt[row, position] = sampled(logits, data["sampling_draws"][row, place])
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
    assert set(objective.metric_names) <= set(metrics)


def test_samples_follow_the_softmax_on_100_000_draws():
    logits = normal(1, 24)[:, : V // 2] * 1.5
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
    objective = ReplacedTokenObjective()
    [batch] = batches(objective, MASKING, [20, 9])
    kept = network.generator.masked_language.bias.numpy()
    label = batch["masked_labels"].numpy()[0, 0]
    # A generator that says nothing but this token.
    network.generator.masked_language.bias.assign(np.where(np.arange(V) == label, 1e4, 0.0))
    sums = floats(objective(network, batch, training=True))
    network.generator.masked_language.bias.assign(kept)
    labels = batch["masked_labels"].numpy()[batch["masked_weights"].numpy() > 0]
    assert sums["replaced_rate_sum"] == (labels != label).sum() < len(labels) == sums["weight"]
    assert "correct_sum" not in sums


def gradients_of(network, batch, weights):
    """Gradients by path of a weighted sum of the two losses."""
    generator, discriminator = weights
    objective = ReplacedTokenObjective()
    with tf.GradientTape() as tape:
        sums = objective(network, batch, training=True)
        both = sums["loss_sum"] - sums["nll_sum"]
        loss = generator * sums["nll_sum"] + discriminator * both
    variables = network.trainable_variables
    found = tape.gradient(loss, [variable.value for variable in variables])
    return {
        variable.path: 0.0 if one is None else float(np.abs(tf.convert_to_tensor(one)).max())
        for variable, one in zip(variables, found, strict=True)
    }


def test_no_gradient_flows_through_the_samples(network):
    """The discriminator's loss reaches the generator's own weights not at all."""
    [batch] = batches(ReplacedTokenObjective(), MASKING, [20, 9])
    shared = {weight.path for weight in network.encoder.embeddings.weights}
    own = {weight.path for weight in network.generator.weights} - shared
    of_discriminator = gradients_of(network, batch, (0.0, 1.0))
    assert max(of_discriminator[path] for path in own) == 0.0
    assert min(of_discriminator[path] for path in shared if "segments" not in path) > 0.0
    of_generator = gradients_of(network, batch, (1.0, 0.0))
    assert min(of_generator[path] for path in own if "masked_language" in path) > 0.0
    assert min(of_generator[path] for path in shared if "segments" not in path) > 0.0
    others = set(of_generator) - own - shared
    assert max(of_generator[path] for path in others) == 0.0


def test_halves_of_a_batch_add_up_to_it(network):
    """As replicas that share a batch do, uneven ones with a row of padding too."""
    objective = ReplacedTokenObjective()
    [batch] = batches(objective, MASKING, [20, 9, None, 3])
    whole = floats(objective(network, batch, training=False))
    halves = [
        floats(objective(network, {k: v[part] for k, v in batch.items()}, training=False))
        for part in (slice(0, 1), slice(1, 4))
    ]
    for name, value in whole.items():
        assert halves[0][name] + halves[1][name] == pytest.approx(value, rel=1e-4), name
