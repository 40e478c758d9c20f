import numpy as np
import pytest

from macaron_tf.models import TemporalConfig, TemporalModel
from macaron_tf.objectives import SequenceObjective
from macaron_tf.training.fit_model import FitModel
from tests.harness import normal, numpy_of
from tests.objectives.objective_toy import floats, nll_of


def network(**changes):
    model = TemporalModel(TemporalConfig(5, (6,), input_dim=4, **changes))
    model.build()
    return model


def batch(targets, weight):
    return {
        "inputs": normal(*weight.shape[:1], 7, 4),
        "targets": targets,
        "weight": weight.astype("float32"),
    }


WEIGHT = np.arange(7)[None] < np.array([[7], [3]])


@pytest.mark.parametrize("skip", [True, False])
def test_keys_are_summed_in_a_frame_and_frames_counted(skip):
    pressed = (normal(2, 7, 5, seed=1) > 0).astype("float32")
    model, given = network(), batch(pressed, WEIGHT)
    sums = floats(SequenceObjective("bernoulli", skip)(model, _tensors(given), training=True))
    p = 1 / (1 + np.exp(-numpy_of(model(given["inputs"])).astype("float64")))
    nll = -(pressed * np.log(p) + (1 - pressed) * np.log(1 - p)).sum(-1)
    assert sums["weight"] == 10 and set(sums) == {"loss_sum", "weight"}
    assert sums["loss_sum"] == pytest.approx((nll * WEIGHT).sum(), rel=1e-5)


@pytest.mark.parametrize("skip", [True, False])
def test_classes(skip):
    labels = np.random.default_rng(0).integers(0, 5, (2, 7)).astype("int32")
    model, given = network(), batch(labels, WEIGHT)
    sums = floats(SequenceObjective("classes", skip)(model, _tensors(given), training=False))
    scores = numpy_of(model(given["inputs"]))
    expected = (nll_of(scores, labels) * WEIGHT).sum()
    assert sums["loss_sum"] == sums["nll_sum"] == pytest.approx(expected, rel=1e-5)
    assert sums["correct_sum"] == ((scores.argmax(-1) == labels) * WEIGHT).sum()


def test_one_answer_a_sequence_is_a_mean_square_of_its_numbers():
    targets, weight = normal(2, 5, seed=1), np.array([1.0, 0.0])
    model, given = network(last_only=True), batch(targets, weight)
    sums = floats(SequenceObjective("squared_error")(model, _tensors(given), training=True))
    error = ((numpy_of(model(given["inputs"])) - targets) ** 2).mean(-1)
    assert sums["loss_sum"] == pytest.approx(error[0], rel=1e-5)
    assert sums["weight"] == 1


def test_an_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="loss='hinge' must be one of"):
        SequenceObjective("hinge")


def test_the_loss_falls():
    tf = pytest.importorskip("tensorflow")
    pressed = (normal(2, 7, 5, seed=1) > 0).astype("float32")
    dataset = tf.data.Dataset.from_tensors(_tensors(batch(pressed, WEIGHT))).repeat()
    model = FitModel(network(dropout=0.1), SequenceObjective("bernoulli"))
    model.compile("adam")
    losses = model.fit(dataset, steps_per_epoch=20, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]


def _tensors(given):
    tf = pytest.importorskip("tensorflow")
    return {name: tf.constant(value) for name, value in given.items()}


@pytest.mark.parametrize("mixer", ["tcn", "gru"])
def test_an_update_compiles_under_xla(mixer):
    tf = pytest.importorskip("tensorflow")
    model, objective = network(mixer=mixer), SequenceObjective("bernoulli", skip_padding=False)
    given = _tensors(batch((normal(2, 7, 5, seed=1) > 0).astype("float32"), WEIGHT))

    def gradients(batch):
        with tf.GradientTape() as tape:
            loss = objective(model, batch, training=True)["loss_sum"]
        return loss, *tape.gradient(loss, [w.value for w in model.trainable_variables])

    compiled = tf.function(gradients, autograph=False, jit_compile=True)(given)
    for ours, theirs in zip(compiled, gradients(given), strict=True):
        np.testing.assert_allclose(numpy_of(ours), numpy_of(theirs), rtol=1e-4, atol=1e-4)
