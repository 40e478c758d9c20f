import pytest

from macaron_tf.errors import UserError
from macaron_tf.training.config import TrainingConfig


@pytest.mark.parametrize(
    "field, value",
    [
        ("max_steps", 0),
        ("max_steps", 1.5),
        ("seed", -1),
        ("warmup_steps", -1),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("warmup_start", -1e-7),
        ("beta_2", 1.0),
        ("ema_decay", 1.5),
        ("clip_norm", 0),
        ("accumulation_steps", 0),
        ("accumulation_steps", True),
        ("schedule", "exponential"),
        ("dtype_policy", "float16"),
        ("best_mode", "best"),
        ("save_every_minutes", 0),
        ("early_stopping_patience", 0),
        ("max_minutes", "15"),
    ],
)
def test_a_bad_value_names_its_field(field, value):
    with pytest.raises(UserError, match=f"training.{field}="):
        TrainingConfig(**{field: value})


def test_linear_schedule_needs_steps_after_warmup():
    with pytest.raises(UserError, match="warmup_steps"):
        TrainingConfig(schedule="linear", max_steps=100, warmup_steps=100)
