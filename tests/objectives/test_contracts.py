"""Tests of every objective: additive sums, equal results under XLA, exact resumption."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf import objectives
from macaron_tf.training.config import LOWER_IS_BETTER
from tests.toys.marks import slow, thorough
from tests.toys.objectives import CHOICES, VOCABULARY, floats, full_rows, loss_and_gradients
from tests.toys.systems import SYSTEMS


def case(name, block=None):
    """Returns the network, the objective and the first batch of a system."""
    system = SYSTEMS[name]
    keras.utils.set_random_seed(1)
    network = system.network(block or system.blocks[0])
    if not network.built:
        network.build()
    return network, system.objective, next(iter(system.batches()))


def static(objective):
    """Returns the objective without `skip_padding`, so that all shapes are static."""
    if hasattr(objective, "skip_padding"):
        return dataclasses.replace(objective, skip_padding=False)
    return objective


def fresh(network, batch):
    """Resets the memory of a network that has memory; returns the network."""
    if hasattr(network, "create_memory"):
        network.create_memory(len(batch["token_ids"]))
    return network


# Systems with an objective of their own.
NAMES = [name for name in SYSTEMS if name not in ("roberta", "xlm", "gpt2")]


# Validation metrics of which a greater value is better.
HIGHER_IS_BETTER = {
    *("accuracy", "pair_accuracy", "span_boundary_accuracy"),
    *("replaced_accuracy", "replaced_rate", "replaced_recall", "replaced_precision"),
}


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_has_a_direction(name):
    for metric in SYSTEMS[name].objective.metric_names:
        assert (metric in LOWER_IS_BETTER) != (metric in HIGHER_IS_BETTER)


# Their parts are those of all objectives.
FIRST = ("albert", "gpt", "transformer_xl", "t5", "electra", "question_answering", "tagging")
FIRST += ("sentence_classes", "regression", "translation", "elmo", "tcn")


@pytest.mark.parametrize("name", thorough(*NAMES, but=FIRST))
def test_sums_add_up_over_rows_and_padding_adds_nothing(name):
    """An objective's sums for parts of a batch add up to its sums for the batch.

    Therefore replicas may split a batch. Rows of padding add nothing.
    """
    network, objective, batch = case(name)
    padding = {key: tf.zeros_like(x[:1]) for key, x in batch.items()}
    if name == "elmo":
        padding["words"] -= 1

    def sums(objective, batch):
        return floats(objective(fresh(network, batch), batch, training=False))

    whole = sums(objective, batch)
    halves = [{key: x[rows] for key, x in batch.items()} for rows in (slice(1), slice(1, None))]
    parts = [sums(objective, half) for half in halves]
    added = {key: sum(part[key] for part in parts) for key in whole}
    assert added == pytest.approx(whole, rel=1e-4)
    assert set(sums(objective, padding).values()) == {0.0}
    padded = {key: tf.concat([batch[key], padding[key]], axis=0) for key in batch}
    assert sums(static(objective), padded) == pytest.approx(whole, rel=1e-4)
    pair = [
        loss_and_gradients(one, fresh(network, rows), rows, training=True)
        for one, rows in ((objective, batch), (static(objective), padded))
    ]
    for plain, with_padding in zip(*pair, strict=True):
        np.testing.assert_allclose(with_padding, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_ids_may_have_any_integer_type(name):
    network, objective, batch = case(name)

    def sums(kind):
        def of_kind(x):
            x = np.asarray(x)
            fits = x.dtype.kind == "i" and not (kind == "uint16" and x.min() < 0)
            return x.astype(kind) if fits else x

        typed = {key: of_kind(x) for key, x in batch.items()}
        return floats(objective(fresh(network, typed), typed, training=True))

    expected = sums("int32")
    for kind in ("int64", "uint16", int):
        assert sums(kind) == expected, kind


COMPILED = [("triplets", "transformer"), ("tcn", "tcn"), ("roberta", "amlp")]
LONG = [("gpt", "transformer"), ("question_answering", "transformer"), ("tcn", "gru")]
LONG += [("transformer_xl", "swish_rnn"), ("translation", "macaron"), ("elmo", None)]
LONG += [("albert", "transformer"), ("roberta", "gmlp")]
LONG += [(name, None) for name in sorted(set(NAMES) - {name for name, _ in COMPILED + LONG})]


@pytest.mark.parametrize(("name", "block"), [*COMPILED, *slow(*LONG)])
def test_xla_gives_the_same_loss_and_gradients(name, block):
    network, objective, batch = case(name, block)

    def step():
        return loss_and_gradients(static(objective), network, batch, training=True)

    fresh(network, batch)
    compiled = tf.function(step, autograph=False, jit_compile=True)()
    fresh(network, batch)
    for ours, plain in zip(compiled, step(), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


PREPARED = {
    **{
        name: objectives.MaskedLanguageObjective(masking=objectives.MaskingConfig(choice=name))
        for name in CHOICES
    },
    "replaced": objectives.ReplacedTokenObjective(),
    "permutation": objectives.PermutationObjective(),
    "span_corruption": objectives.SpanCorruptionObjective(),
    "denoising": objectives.DenoisingObjective(),
}


def prepared(name, count, seed=1, start=0, kind="int32"):
    """Returns `count` batches that an objective makes from the same four rows."""
    rows = tf.data.Dataset.from_tensors({"token_ids": full_rows(4, 64).astype(kind)}).repeat()
    dataset = PREPARED[name].dataset(rows, VOCABULARY, seed, start).take(count)
    return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize(
    "name", thorough(*PREPARED, but=("tokens", "spans", "replaced", "permutation"))
)
def test_a_batch_is_of_its_seed_and_number_and_a_resumed_run_is_the_uninterrupted_one(name):
    whole, resumed = prepared(name, 5), prepared(name, 2, start=3)
    for expected, batch in zip(whole[3:], resumed, strict=True):
        np.testing.assert_equal(batch, expected)
    for kind in ("int64", "uint16"):
        [batch] = prepared(name, 1, kind=kind)
        for feature in batch:
            np.testing.assert_array_equal(batch[feature], whole[0][feature], strict=True)
    [other], decisive = prepared(name, 1, seed=2), ("masked_positions", "source")
    if name == "replaced":
        decisive = ("sampling_draws",)
    [feature] = [feature for feature in decisive if feature in other]
    seen = [*whole, other]
    for number, one in enumerate(seen):
        for another in seen[:number]:  # no two rows are masked, permuted or corrupted equally
            assert one[feature].shape == another[feature].shape
            assert (one[feature] != another[feature]).any(axis=1).all()
