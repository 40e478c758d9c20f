import numpy as np
import pytest

from macaron_tf.models import LanguageModel, PretrainingEncoder
from macaron_tf.objectives import CausalLanguageObjective, MaskingConfig
from tests.harness import numpy_of
from tests.objectives.toy import batches, floats, nll_of, tiny


def network_of(**overrides):
    network = LanguageModel(tiny(causal=True, **overrides))
    network.build()
    return network


@pytest.mark.parametrize("skip", [True, False])
def test_sums_are_those_of_the_next_tokens(skip):
    network, objective = network_of(), CausalLanguageObjective(skip_padding=skip)
    [batch] = batches(objective, MaskingConfig(), [20, 9, None])
    assert set(batch) == {"token_ids"}
    found = floats(objective(network, batch, training=False))
    token_ids = batch["token_ids"].numpy()
    logits = numpy_of(network(batch))
    nll = correct = weight = 0.0
    for row in range(3):
        for column in range(23):
            label = token_ids[row, column + 1]
            if label:
                nll += nll_of(logits[row, column], np.array(label))
                correct += logits[row, column].argmax() == label
                weight += 1
    assert weight == 22 + 11  # [CLS] is given
    expected = {
        "loss_sum": nll,
        "nll_sum": nll,
        "weight": weight,
        "correct_sum": correct,
        "input_tokens": 23 + 12,
    }
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_network_that_sees_the_answers_is_refused():
    network = PretrainingEncoder(tiny())
    network.build()
    [batch] = batches(CausalLanguageObjective(), MaskingConfig(), [9])
    with pytest.raises(ValueError, match="causal=True"):
        CausalLanguageObjective()(network, batch, training=True)
