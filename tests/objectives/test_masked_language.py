import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import EncoderConfig, PretrainingEncoder
from macaron_tf.objectives import MaskedLanguageObjective, MaskingConfig, mask_tokens
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel
from macaron_tf.training.updates import metrics_from_sums
from tests.harness import normal
from tests.objectives.toy import ToyVocabulary, check_compiles, nll_of, ragged_rows

V, D = 64, 16
SEED = (0, 1)


class ToyNetwork:
    """Hidden states that are a variable; notes how many of them are projected."""

    def __init__(self, rows, length):
        self.hidden = tf.Variable(normal(rows, length, D))
        self.table = tf.constant(normal(D, V, seed=1))
        self.pair = tf.constant(normal(D, 2, seed=2))
        self.projected = None

    def hidden_states(self, inputs, training=None):
        assert set(inputs) == {"token_ids", "segment_ids"}
        return tf.convert_to_tensor(self.hidden)

    def masked_logits(self, hidden):
        self.projected = int(hidden.shape[0])
        return hidden @ self.table

    def pair_logits(self, hidden):
        return hidden[:, 0] @ self.pair


def batch_of(lengths, length=24, seed=SEED):
    """A masked batch; a length of None is a row of padding."""
    ids = ragged_rows([count or 0 for count in lengths], length)
    ids[[count is None for count in lengths]] = 0
    rng = np.random.default_rng(0)
    batch = {
        "token_ids": tf.constant(ids),
        "segment_ids": tf.constant((np.cumsum(ids == 3, axis=1) == 1).astype("int32")),
        "pair_label": tf.constant(rng.integers(0, 2, len(lengths)).astype("int32")),
    }
    return mask_tokens(batch, seed, MaskingConfig(rate=0.3), ToyVocabulary())


def expected_sums(batch, hidden, masked_logits, pair_logits):
    """The sums in NumPy."""
    batch = {name: tensor.numpy() for name, tensor in batch.items()}
    rows, places = np.nonzero(batch["masked_weights"])
    labels, weight = batch["masked_labels"][rows, places], len(rows)
    masked = masked_logits(hidden[rows, batch["masked_positions"][rows, places]])
    nll, correct = nll_of(masked, labels).sum(), (np.argmax(masked, axis=-1) == labels).sum()
    real = (batch["token_ids"] != 0).any(axis=1)
    logits = np.asarray(pair_logits(hidden))
    pair_nll = nll_of(logits, batch["pair_label"])[real].sum()
    return {
        "loss_sum": nll + weight / real.sum() * pair_nll,
        "weight": weight,
        "nll_sum": nll,
        "correct_sum": correct,
        "input_tokens": (batch["token_ids"] != 0).sum(),
        "pair_loss_sum": pair_nll,
        "pair_loss_weight": real.sum(),
        "pair_accuracy_sum": (logits.argmax(-1) == batch["pair_label"])[real].sum(),
        "pair_accuracy_weight": real.sum(),
    }


@pytest.mark.parametrize("skip", [True, False])
def test_sums_are_those_of_numpy(skip):
    batch, network = batch_of([20, 9, 1, None, 15]), ToyNetwork(5, 24)
    sums = MaskedLanguageObjective(sentence_pair=True, skip_padding=skip)(
        network, batch, training=False
    )
    expected = expected_sums(
        batch, network.hidden.numpy(), network.masked_logits, network.pair_logits
    )
    assert {name: float(value) for name, value in sums.items()} == pytest.approx(expected, rel=1e-5)
    assert all(value.dtype == tf.float32 for value in sums.values())
    metrics = metrics_from_sums({name: float(value) for name, value in sums.items()})
    mean = expected["nll_sum"] / expected["weight"]
    assert metrics["nll"] == pytest.approx(mean, rel=1e-5)
    assert metrics["loss"] == pytest.approx(mean + expected["pair_loss_sum"] / 4, rel=1e-5)
    assert metrics["pair_accuracy"] == expected["pair_accuracy_sum"] / 4


def test_without_sentence_pair_the_loss_is_that_of_the_masked_tokens():
    sums = MaskedLanguageObjective()(ToyNetwork(2, 24), batch_of([20, 9]), training=True)
    assert set(sums) == {"loss_sum", "weight", "nll_sum", "input_tokens"}
    assert float(sums["loss_sum"]) == float(sums["nll_sum"]) > 0


def test_only_masked_positions_reach_the_projection_and_the_gradient():
    batch = batch_of([20, 9, None])
    masked = int(tf.reduce_sum(batch["masked_weights"]))
    assert masked == 6 + 3
    gradients = []
    for skip, rows in ((True, masked), (False, 3 * 8)):
        network = ToyNetwork(3, 24)
        with tf.GradientTape() as tape:
            sums = MaskedLanguageObjective(skip_padding=skip)(network, batch, training=True)
        gradients.append(tf.convert_to_tensor(tape.gradient(sums["loss_sum"], network.hidden)))
        assert network.projected == rows
    reached = np.abs(gradients[0]).sum(axis=-1) > 0
    expected = np.zeros((3, 24), bool)
    for row, place in zip(*np.nonzero(batch["masked_weights"]), strict=True):
        expected[row, batch["masked_positions"][row, place]] = True
    np.testing.assert_array_equal(reached, expected)
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-6)


def test_a_batch_without_masked_tokens_counts_nothing():
    sums = MaskedLanguageObjective(sentence_pair=True)(
        ToyNetwork(2, 24), batch_of([None, None]), training=False
    )
    assert {float(value) for value in sums.values()} == {0.0}


@pytest.fixture(scope="module")
def network():
    keras.utils.set_random_seed(0)
    config = EncoderConfig(
        V, D, 32, 2, 1, dropout=0.0, attention_dropout=0.0, initializer_range=0.2
    )
    model = PretrainingEncoder(config, sentence_pair=True)
    model.build()
    return model


def test_the_pretraining_encoder_learns_by_it(network):
    batch = batch_of([20, 9, 1, 15])
    sums = MaskedLanguageObjective(sentence_pair=True)(network, batch, training=False)
    hidden = network.hidden_states(batch, training=False).numpy()
    expected = expected_sums(
        batch, hidden, network.masked_logits, lambda hidden: network.pair_logits(hidden)
    )
    assert {name: float(value) for name, value in sums.items()} == pytest.approx(expected, rel=1e-4)
    with tf.GradientTape() as tape:
        sums = MaskedLanguageObjective(sentence_pair=True)(network, batch, training=True)
    variables = [variable.value for variable in network.trainable_variables]
    assert all(gradient is not None for gradient in tape.gradient(sums["loss_sum"], variables))


def test_static_shapes_compile_under_xla(network):
    objective = MaskedLanguageObjective(sentence_pair=True, skip_padding=False)
    check_compiles(objective, network, batch_of([20, 9, 1, None]))


def test_bfloat16_computes_the_loss_in_float32():
    network = ToyNetwork(2, 24)
    network.table = tf.cast(network.table, tf.bfloat16)
    seen = []

    def masked_logits(hidden):
        seen.append(tf.cast(hidden, tf.bfloat16) @ network.table)
        return seen[-1]

    network.masked_logits = masked_logits
    batch = batch_of([20, 9])
    sums = MaskedLanguageObjective()(network, batch, training=False)
    [logits] = [tf.cast(rounded, tf.float64).numpy() for rounded in seen]
    labels = batch["masked_labels"][batch["masked_weights"] > 0]
    nll = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels]
    # In bfloat16 the logarithm and the sum would be off by 0.15%.
    assert float(sums["loss_sum"]) == pytest.approx(nll.sum(), rel=1e-5)


def test_uneven_micro_batches_equal_the_batch_that_joins_them(network):
    parts = [batch_of([20, 9]), batch_of([4, 1])]
    whole = {name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]}
    before = network.get_weights()
    changes = []
    for batches in (parts, [whole]):
        network.set_weights(before)
        model = FitModel(
            network, MaskedLanguageObjective(), TrainingConfig(accumulation_steps=len(batches))
        )
        model.compile(keras.optimizers.SGD(1.0))
        dataset = tf.data.Dataset.from_generator(
            lambda batches=batches: iter(batches),
            output_signature={
                name: tf.TensorSpec([None] * len(tensor.shape), tensor.dtype)
                for name, tensor in whole.items()
            },
        )
        with pytest.warns(UserWarning, match="no gradient reaches"):
            model.fit(dataset, steps_per_epoch=1, verbose=0)
        changes.append([a - b for a, b in zip(network.get_weights(), before, strict=True)])
        assert model.step == 1
    network.set_weights(before)
    assert max(np.abs(change).max() for change in changes[0]) > 1e-3
    for a, b in zip(*changes, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)

    # The next sentence's mean weights each micro-batch by its masked tokens.
    sums = [
        MaskedLanguageObjective(sentence_pair=True)(network, part, training=True) for part in parts
    ]
    weights = [float(one["weight"]) for one in sums]
    assert weights[0] > 2 * weights[1]
    means = [float(one["pair_loss_sum"] / one["pair_loss_weight"]) for one in sums]
    loss = sum(float(one["loss_sum"]) for one in sums) / sum(weights)
    nll = sum(float(one["nll_sum"]) for one in sums) / sum(weights)
    assert loss == pytest.approx(nll + np.average(means, weights=weights), rel=1e-5)


def test_fits_on_a_masked_dataset_in_one_trace(network):
    rows = {"token_ids": ragged_rows([20] * 4, 24), "pair_label": np.array([0, 1, 0, 1])}
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(2, drop_remainder=True).repeat()
    dataset = MaskedLanguageObjective().dataset(dataset, MaskingConfig(), ToyVocabulary(), 0)
    before = network.get_weights()
    model = FitModel(
        network, MaskedLanguageObjective(sentence_pair=True), TrainingConfig(accumulation_steps=2)
    )
    model.compile(keras.optimizers.Adam(1e-2))
    history = model.fit(dataset, steps_per_epoch=8, epochs=2, verbose=0).history
    network.set_weights(before)
    assert model.traces["train"] == 1
    assert history["loss"][1] < history["loss"][0]
    assert history["input_tokens"] == [2 * 2 * 23] * 2
