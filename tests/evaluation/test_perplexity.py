import math

import pytest

from macaron_tf.evaluation import perplexity


def test_uniform_model_has_the_vocabularys_size():
    assert perplexity([4 * math.log(1 / 50), math.log(1 / 50)], [4, 1]) == pytest.approx(50)


def test_no_tokens():
    with pytest.raises(ValueError, match="token"):
        perplexity([], [])
