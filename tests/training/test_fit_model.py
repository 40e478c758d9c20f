import contextlib
import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import EncoderClassifier, EncoderConfig
from macaron_tf.objectives import ClassificationObjective
from macaron_tf.training import build_fit_model
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel
from macaron_tf.training.updates import FirstStage
from tests.harness import refuses
from tests.toys.marks import slow
from tests.toys.training import (
    SIGNATURE,
    merged_batch,
    scaled,
    toy_batch,
    toy_dataset,
    toy_network,
    toy_objective,
)


def toy_model(seed=0, dropout=0.0, optimizer=None, **settings):
    keras.utils.set_random_seed(seed)
    model = FitModel(toy_network(dropout), toy_objective, TrainingConfig(**settings))
    model.compile(optimizer or keras.optimizers.SGD(0.5))
    return model


def weights_of(model):
    return [weight.numpy() for weight in model.network.weights]


def assert_same_weights(one, other, atol):
    for a, b in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=0)


def dataset_of(*batches):
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=SIGNATURE)


# Data that end within an update make a smaller update.
@pytest.mark.parametrize(("clip_norm", "end"), [(None, 8), (0.01, 8), (None, 6)])
def test_accumulated_micro_batches_equal_one_big_batch(clip_norm, end):
    accumulated = toy_model(accumulation_steps=4, clip_norm=clip_norm)
    whole = toy_model(clip_norm=clip_norm)
    a = accumulated.fit(toy_dataset(0, end), verbose=0).history
    batches = merged_batch(range(4)), merged_batch(range(4, end))
    b = whole.fit(dataset_of(*batches), verbose=0).history
    assert accumulated.step == whole.step == 2
    assert_same_weights(accumulated, whole, 1e-6)
    for name in ("loss", "accuracy", "tokens", "gradient_norm"):
        assert a[name] == pytest.approx(b[name], rel=1e-5), name


@pytest.mark.thorough
@pytest.mark.parametrize("steps_per_call", [4, *slow(1)])
def test_micro_batches_are_read_in_order_where_activations_are_recomputed(steps_per_call):
    """Micro-batches are read in order, although `remat` could swap the first two.

    Without the safeguard in `Updates.accumulate`, a third of the updates swapped these two
    micro-batches.
    """
    keras.utils.set_random_seed(1)
    network = EncoderClassifier(EncoderConfig(16, 16, 32, 2, 2, remat=True), 3)
    network.build()
    objective, read = ClassificationObjective(3), keras.Variable(0, dtype="int64")

    def counting(network, batch, training):
        sums = objective(network, {name: batch[name] for name in ("token_ids", "label")}, training)
        sums["out_of_place"] = tf.cast(read.value != batch["number"], tf.float32)
        read.assign(read + 1)
        return sums

    example = {"token_ids": np.ones((4, 12), "int32"), "label": np.ones(4, "int32")}
    data = tf.data.Dataset.range(10**9).map(lambda number: {**example, "number": number})
    config = TrainingConfig(accumulation_steps=4, steps_per_call=steps_per_call)
    model = build_fit_model(network, counting, config)
    calls = 20 // steps_per_call
    history = model.fit(data.prefetch(4), steps_per_epoch=calls, verbose=0).history
    assert history["out_of_place"] == [0.0]


def in_one_program(model, **options):
    """Returns a `tf.function` that runs a whole update as one program, as on a TPU.

    All micro-batches must have the same shape.
    """
    model.prepare()
    updates = model.updates
    return tf.function(
        lambda *parts: updates.update_of(updates.micro_step, parts), autograph=False, **options
    )


@pytest.mark.parametrize("indices", [(0,), (0, 4, 8)])
def test_an_update_in_one_program_is_the_same_update(indices):
    batches = [toy_batch(index) for index in indices]
    drawn, given = (toy_model(accumulation_steps=len(batches), clip_norm=0.01) for _ in range(2))
    drawn.fit(dataset_of(*batches), verbose=0)
    in_one_program(given)(*batches)
    assert_same_weights(drawn, given, 1e-7)


def test_clips_the_gradient_of_the_mean():
    model = toy_model(clip_norm=0.01, optimizer=keras.optimizers.SGD(1.0))
    before = weights_of(model)
    history = model.fit(toy_dataset(0, 1), verbose=0).history
    change = [a - b for a, b in zip(weights_of(model), before, strict=True)]
    assert np.sqrt(sum(np.sum(one**2) for one in change)) == pytest.approx(0.01, rel=1e-3)
    assert history["gradient_norm"][0] > 0.1


def test_metrics_are_means_over_tokens():
    model = toy_model(optimizer=keras.optimizers.SGD(0.0))
    history = model.fit(toy_dataset(0, 4), verbose=0).history
    expected = toy_objective(model.network, merged_batch(range(4)), training=False)
    expected = {name: float(value) for name, value in expected.items()}
    loss = expected["loss_sum"] / expected["weight"]
    assert history["loss"][0] == pytest.approx(loss, rel=1e-5)
    assert history["perplexity"][0] == pytest.approx(np.exp(loss), rel=1e-5)
    assert history["accuracy"][0] == pytest.approx(expected["correct_sum"] / expected["weight"])
    assert history["tokens"][0] == expected["weight"] / 4
    evaluated = model.evaluate(toy_dataset(0, 4), verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(loss, rel=1e-5)


def of_third_batch(batch):
    """Returns NaN for batches of the length of batch 2, and else 1."""
    length = toy_batch(2)["source"].shape[1]
    return tf.where(tf.shape(batch["source"])[1] == length, np.nan, 1.0)


def test_an_update_with_a_nan_changes_nothing_and_is_counted():
    keras.utils.set_random_seed(0)
    objective = scaled(of_third_batch)
    model = FitModel(toy_network(), objective, TrainingConfig(ema_decay=0.9))
    model.compile(keras.optimizers.Adam(0.01))
    seen = []

    def look(batch, logs):
        seen.append([*weights_of(model), *(shadow.numpy() for shadow in model.ema.shadows)])

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    history = model.fit(toy_dataset(0, 4), callbacks=[callback], verbose=0).history
    np.testing.assert_equal(seen[1], seen[2])
    assert not np.array_equal(seen[2][0], seen[3][0])
    assert history["skipped"] == [1.0]
    assert np.isfinite(history["loss"][0])
    assert (model.step, int(model.optimizer.iterations)) == (4, 3)


def test_moving_average_follows_its_formula():
    model = toy_model(ema_decay=0.5)
    trail = [weights_of(model)]
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: trail.append(weights_of(model))
    )
    model.fit(toy_dataset(0, 12), callbacks=[look], verbose=0)
    expected = trail[0]
    for t, weights in enumerate(trail[1:], start=1):
        decay = min(0.5, (1 + t) / (10 + t))
        expected = [decay * e + (1 - decay) * w for e, w in zip(expected, weights, strict=True)]
    with model.ema_weights():
        for e, w in zip(expected, weights_of(model), strict=True):
            np.testing.assert_allclose(e, w, atol=1e-6)
    np.testing.assert_equal(trail[-1], weights_of(model))


@pytest.mark.parametrize("stopped", [True, False])
def test_a_fit_that_was_stopped_leaves_no_trace_in_the_next(stopped):

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = stopped
            if not stopped:
                raise RuntimeError

    model = toy_model(steps_per_call=4)
    data = dataset_of(*[toy_batch(0)] * 9).repeat()
    with contextlib.suppress(RuntimeError):
        model.fit(data, steps_per_epoch=8, callbacks=[Stop()], verbose=0)
    assert model.step == 4
    model.fit(data, steps_per_epoch=1, verbose=0)
    assert model.step == int(model.optimizer.iterations) == 5


def test_builds_a_network_that_was_not_built():
    network = keras.Sequential([keras.layers.Embedding(16, 4), keras.layers.Dense(16)])
    model = FitModel(network, toy_objective)
    model.compile(keras.optimizers.Adam(0.01))
    model.fit(toy_dataset(0, 3), verbose=0)
    assert model.step == 3
    assert model._update.experimental_get_tracing_count() == 1


def test_bfloat16_keeps_float32_variables():
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        network = toy_network()
    finally:
        keras.config.set_dtype_policy("float32")
    config = TrainingConfig(learning_rate=0.02, warmup_steps=0, schedule="constant")
    model = build_fit_model(network, toy_objective, config)
    history = model.fit(toy_dataset(), steps_per_epoch=20, epochs=4, verbose=0).history
    assert network.get_layer("hidden").compute_dtype == "bfloat16"
    assert {weight.dtype for weight in network.weights} == {"float32"}
    assert history["loss"][-1] < 0.6 * history["loss"][0]


def test_xla_only_where_asked_for():
    model = toy_model()
    assert model.jit_compile is False
    model.compile(keras.optimizers.SGD(0.5), jit_compile="auto")
    assert model.jit_compile is False
    plain = toy_model()
    model.compile(keras.optimizers.SGD(0.5), jit_compile=True)
    model.fit(toy_dataset(0, 2), verbose=0)
    plain.fit(toy_dataset(0, 2), verbose=0)
    assert_same_weights(model, plain, 1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        {"optimizer": keras.optimizers.SGD(0.1, global_clipnorm=1.0)},
        {"optimizer": keras.optimizers.Adam(0.1, gradient_accumulation_steps=2)},
        {"optimizer": keras.optimizers.Adam(0.1, use_ema=True)},
        {"loss": "mse"},
    ],
)
def test_refuses_what_is_not_the_optimizers(arguments):
    with pytest.raises((TypeError, ValueError)):
        FitModel(toy_network(), toy_objective).compile(**arguments)


STAGE = 3
STAGED = TrainingConfig(learning_rate=0.01, warmup_steps=0, weight_decay=0.1, clip_norm=0.5)


def staged(steps=STAGE, **changes):
    keras.utils.set_random_seed(1)
    network = toy_network()
    part = network.get_layer("hidden").trainable_variables
    config = dataclasses.replace(STAGED, **changes)
    stage = FirstStage(steps, part) if steps else None
    return build_fit_model(network, toy_objective, config, first_stage=stage)


def named_weights(model):
    return {weight.path: weight.numpy() for weight in model.network.weights}


@pytest.mark.parametrize("changes", [{}, {"accumulation_steps": 2}, {"steps_per_call": 2}])
@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_all_else_stays_to_the_bit_and_then_moves(optimizer, changes):
    model = staged(optimizer=optimizer, **changes)
    before = named_weights(model)
    model.fit(toy_dataset(0, STAGE * model.config.accumulation_steps), verbose=0)
    after = named_weights(model)
    for path, value in before.items():
        moved = np.abs(after[path] - value).max()
        assert (moved > 0) == ("hidden" in path), path
    model.fit(toy_dataset(9, 9 + model.config.accumulation_steps), verbose=0)
    last = named_weights(model)
    assert all(np.abs(last[path] - value).max() > 0 for path, value in after.items())


def test_it_compiles_under_xla():
    model, compiled = staged(steps=1), staged(steps=1)
    model.fit(dataset_of(toy_batch(0), toy_batch(0)), verbose=0)
    update = in_one_program(compiled, jit_compile=True)
    for _ in range(2):
        update(toy_batch(0))
    assert_same_weights(model, compiled, 1e-6)


def test_the_first_stage_is_training_that_part_alone():
    """Training the first stage equals training with all other layers frozen.

    Gradient norm, clipping and update are equal.
    """
    model, alone = staged(), staged(steps=0)
    for name in ("embedding", "head"):
        alone.network.get_layer(name).trainable = False
    for one in (model, alone):
        one.fit(toy_dataset(0, STAGE), verbose=0)
    assert_same_weights(model, alone, 1e-7)


def test_frozen_weights_stay_to_the_bit_and_have_no_state():
    config = TrainingConfig(frozen=("embedding/", "head/bias"), ema_decay=0.9, weight_decay=0.1)
    model = build_fit_model(toy_network(), toy_objective, config)
    before = named_weights(model)
    model.fit(toy_dataset(0, 3), verbose=0)
    after = named_weights(model)
    kept = {name for name in before if np.array_equal(before[name], after[name])}
    assert kept == {name for name in before if "embedding/" in name or "head/bias" in name}
    assert not any("embedding" in v.path for v in model.optimizer.variables)


def test_what_is_frozen_is_a_part_of_the_network_and_of_no_first_stage():
    def build(part, **options):
        build_fit_model(network, toy_objective, TrainingConfig(frozen=(part,)), **options)

    network = toy_network()
    stage = FirstStage(2, network.get_layer("embedding").weights)
    refuses("'norm'", build, "norm")
    said = "^training.frozen=.* freezes all weights of the first"
    refuses(said, build, "embedding/", first_stage=stage)
    refuses("freezes all weights: ", build, "")
