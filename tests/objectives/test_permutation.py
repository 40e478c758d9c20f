import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models.two_stream import TwoStreamModel
from macaron_tf.objectives import MaskingConfig
from macaron_tf.objectives.permutation import PermutationObjective, permute_tokens
from macaron_tf.training.fit_model import FitModel
from tests.harness import numpy_of
from tests.objectives.toy import SPECIAL, VOCABULARY, floats, full_rows, nll_of, ragged_rows, tiny


def permuted(ids, partial=6.0, seed=(0, 0)):
    batch = permute_tokens({"token_ids": tf.constant(ids)}, tf.constant(seed), partial, VOCABULARY)
    return {name: tensor.numpy() for name, tensor in batch.items()}


def test_what_is_guessed_and_in_which_order():
    ids = ragged_rows([20, 5, 0, 17], 32)
    found = permuted(ids)
    for row, count in enumerate([20, 5, 0, 17]):
        order = found["order"][row]
        columns = np.flatnonzero(order >= 0)
        assert len(columns) == (max(1, round(count / 6)) if count else 0)
        assert not np.isin(ids[row, columns], SPECIAL).any()
        assert sorted(order[columns]) == list(range(len(columns)))
        assert (order[order < 0] == -1).all()
        used = found["masked_weights"][row] > 0
        np.testing.assert_array_equal(found["masked_positions"][row][used], columns)
        np.testing.assert_array_equal(found["masked_labels"][row][used], ids[row, columns])
        assert not found["masked_labels"][row][~used].any()
    assert (found["token_ids"] == ids).all()  # nothing is masked


@pytest.mark.parametrize("partial", [6.0, 7.0])
def test_laws_on_100_000_draws(partial):
    rows, length = 1600, 64
    ids = full_rows(rows, length)
    found = permuted(ids, partial)
    guessed = found["order"] >= 0
    count = round((length - 2) / partial)
    np.testing.assert_array_equal(guessed.sum(-1), count)
    # Every ordinary place alike, but for the ends, which fewer spans reach.
    places = guessed.mean(0)[1:-1]
    assert guessed[:, [0, -1]].sum() == 0
    assert np.abs(places[8:-8] / places[8:-8].mean() - 1).max() < 0.25
    # Each order of two guesses is as likely: which of a row's first two comes first.
    columns = found["masked_positions"][:, :2]
    first = np.take_along_axis(found["order"], columns, 1)
    assert abs((first[:, 0] < first[:, 1]).mean() - 0.5) < 0.05
    # And every rank at every place among the guessed.
    ranks = np.take_along_axis(found["order"], found["masked_positions"][:, :count], 1)
    assert np.abs(ranks.mean(0) - (count - 1) / 2).max() < 0.3
    # 102,400 tokens; p(n) ~ 1/n on 1 to 5, of which the last ones of a row are cut off.
    edges = np.diff(np.pad(guessed.astype(int), ((0, 0), (1, 1))), axis=1)
    runs = np.flatnonzero(edges.ravel() == -1) - np.flatnonzero(edges.ravel() == 1)
    assert 1.5 < runs.mean() < 3.5 and (runs == 1).mean() > (runs == 2).mean()


def network_of(rows, block="transformer"):
    keras.utils.set_random_seed(1)
    options = {"positions": "transformer_xl", "embedding_norm": False, "num_layers": 2}
    network = TwoStreamModel(tiny(block=block, **options), 6)
    network.build()
    network.keep_memory(rows)
    return network


def batches(rows=4, length=24):
    ids = full_rows(rows, length)
    features = {"token_ids": ids, "previous_ids": ids, "starts": np.zeros(rows, bool)}
    return tf.data.Dataset.from_tensors(features).repeat()


@pytest.mark.parametrize("skip", [True, False])
def test_sums_are_those_of_the_guessed_tokens(skip):
    network, objective = network_of(4), PermutationObjective(skip_padding=skip)
    [batch] = objective.dataset(batches(), MaskingConfig(), VOCABULARY, seed=0).take(1)
    found = floats(objective(network, batch, training=False))
    logits = numpy_of(network(batch)["masked_language"])
    weights = batch["masked_weights"].numpy()
    nll = nll_of(logits, batch["masked_labels"].numpy()) * weights
    assert found["nll_sum"] == pytest.approx(nll.sum(), rel=1e-4)
    assert found["weight"] == weights.sum() == 4 * 4


@pytest.mark.slow
@pytest.mark.parametrize("block", ["transformer", "macaron"])
def test_it_trains_compiled_with_memory(block):
    network, objective = network_of(4, block), PermutationObjective(skip_padding=False)
    data = objective.dataset(batches(), MaskingConfig(), VOCABULARY, seed=0)
    model = FitModel(network, objective)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=True)
    history = model.fit(data, steps_per_epoch=8, epochs=3, verbose=0).history
    assert model.traces["train"] == 1 and history["nll"][-1] < history["nll"][0]
    assert numpy_of(network.memories["training"].variables[0]).any()
