import pytest

from macaron_tf.errors import UserError
from macaron_tf.objectives import MaskingConfig


@pytest.mark.parametrize(
    ("n", "nearest", "up"),
    [(0, 0, 0), (1, 1, 1), (9, 1, 2), (10, 2, 2), (20, 3, 3), (22, 3, 4), (126, 19, 19)],
)
def test_how_many_of_n_tokens_are_masked(n, nearest, up):
    assert MaskingConfig().counts(200)[n] == nearest
    assert MaskingConfig(round_up=True).counts(200)[n] == up


def test_rounding_errors_mask_no_token_more():
    config = MaskingConfig(rate=0.07, round_up=True)  # 0.07 * 100 > 7
    assert config.counts(100)[100] == 7
    assert config.positions(100) == 8
    for length in (20, 53, 512):
        assert config.counts(length).max() <= config.positions(length)


@pytest.mark.parametrize(
    "settings, field",
    [
        ({"rate": 0.0}, "rate"),
        ({"rate": 1.5}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"mask": -0.1}, "mask"),
        ({"random": "0.1"}, "random"),
        ({"mask": 0.9, "random": 0.2}, r"mask=0.9 and masking\.random=0.2 must"),
        ({"choice": "words"}, "choice"),
        ({"fate": "word"}, "fate"),
        ({"round_up": 1}, "round_up"),
        ({"duplicates": 0}, "duplicates"),
        ({"duplicates": 2.0}, "duplicates"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, field):
    with pytest.raises(UserError, match=rf"^masking\.{field}"):
        MaskingConfig(**settings)


def test_shares_that_add_up_to_one_in_decimals_are_accepted():
    for mask in range(11):
        MaskingConfig(mask=mask / 10, random=round(1 - mask / 10, 1))
