import math

import keras
import pytest

from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import WarmupSchedule, make_schedule


@pytest.mark.parametrize("step", [0, 1, 4000, 7999, 8000, 8001, 32000, 800000])
def test_inverse_sqrt_is_fairseqs(step):
    schedule = make_schedule(TrainingConfig())
    if step < 8000:
        expected = 1e-7 + step * (1.5e-3 - 1e-7) / 8000
    else:
        expected = 1.5e-3 * 8000**0.5 * step**-0.5
    assert float(schedule(step)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "name, step, expected",
    [
        ("linear", 0, 1e-7),
        ("linear", 100, 1e-3),
        ("linear", 550, 5e-4),
        ("linear", 1000, 0.0),
        ("linear", 1100, 0.0),
        ("cosine", 100, 1e-3),
        ("cosine", 400, 1e-3 * 0.5 * (1 + math.cos(math.pi / 3))),
        ("cosine", 550, 5e-4),
        ("cosine", 1100, 0.0),
        ("constant", 50, 5.0005e-4),
        ("constant", 900, 1e-3),
    ],
)
def test_other_schedules(name, step, expected):
    config = TrainingConfig(
        schedule=name, learning_rate=1e-3, warmup_steps=100, warmup_start=1e-7, max_steps=1000
    )
    assert float(make_schedule(config)(step)) == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_no_warmup():
    assert float(WarmupSchedule("inverse_sqrt", 1e-3)(0)) == pytest.approx(1e-3)
    assert float(WarmupSchedule("inverse_sqrt", 1e-3)(4)) == pytest.approx(5e-4)


@pytest.mark.parametrize("decay", ["constant", "inverse_sqrt", "linear", "cosine"])
def test_serializes(decay):
    schedule = WarmupSchedule(decay, 1e-3, 100, 10, 1e-7)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert copy.decay == decay
    assert float(copy(7)) == float(schedule(7))
    assert float(copy(50)) == float(schedule(50))
