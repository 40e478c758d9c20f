import math

import numpy as np
import pytest

from macaron_tf.layers import LearnedPositions, SinusoidalPositions
from tests.harness import check_layer, normal


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_sinusoids_are_section_3_5(layout):
    encoding = np.asarray(SinusoidalPositions(layout=layout)(np.zeros((1, 50, 8), "float32")))[0]
    for p in (0, 1, 7, 49):
        for i in range(4):
            angle = p / 10_000 ** (2 * i / 8)
            sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + 4)
            assert encoding[p, sine] == pytest.approx(math.sin(angle), abs=1e-5)
            assert encoding[p, cosine] == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("layer", [SinusoidalPositions(), LearnedPositions(10)], ids=str)
def test_a_start_index_continues_the_sequence(layer):
    x = normal(2, 6, 8)
    whole = np.asarray(layer(x))
    parts = [np.asarray(layer(x[:, t : t + 1], start_index=t)) for t in range(6)]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-6)


def test_contract():
    check_layer(SinusoidalPositions(), normal(2, 3, 8))
    check_layer(LearnedPositions(5), normal(2, 3, 8))


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="even hidden size"):
        SinusoidalPositions()(normal(1, 2, 7))
    with pytest.raises(ValueError, match="sequence of 6 positions is longer than the 5"):
        LearnedPositions(5)(normal(1, 6, 8))
    with pytest.raises(ValueError, match="layout"):
        SinusoidalPositions(layout="spiral")
