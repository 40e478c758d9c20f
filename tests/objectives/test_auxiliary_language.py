"""L3 = L2 + lambda L1, against the formulas in NumPy."""

import numpy as np
import pytest

from macaron_tf.models import CausalChooser, CausalClassifier
from macaron_tf.objectives import AuxiliaryLanguageObjective, ClassificationObjective
from tests.harness import numpy_of
from tests.models.test_tasks import CONFIG, PAIRS, batch, built
from tests.objectives.toy import floats, nll_of

LABELS = np.array([0, 2, 1, 1, 2], "int32")
WEIGHTS = np.array([1, 1, 1, 1, 0], "float32")


def language_loss(model, token_ids) -> float:
    """L1 of one row: the mean over its tokens but the first and the last."""
    real = token_ids[token_ids != 0]
    logits = numpy_of(model.language_model({"token_ids": real[None]}))[0]
    return float(np.mean(nll_of(logits[:-2], real[1:-1])))


def examples(symmetric, choices):
    """A network and a batch whose fifth example, of padding, does not count."""
    rows, other = batch(PAIRS), batch([pair and pair[::-1] for pair in PAIRS])
    both = np.stack([rows["token_ids"], other["token_ids"]], axis=1)  # (B, 2, L)
    if choices:
        network, read = built(CausalChooser(CONFIG, 0.0)), both
        inputs = {"token_ids": both, "label": LABELS % 2}
    else:
        network = built(CausalClassifier(CONFIG, 3, 0.0, symmetric))
        read = both if symmetric else both[:, :1]
        inputs = {**rows, "label": LABELS}
    return network, read, {**inputs, "weight": WEIGHTS}


@pytest.mark.parametrize("symmetric, choices", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("language_weight", [0.5, 0.0])
def test_the_losses_are_the_papers(symmetric, choices, language_weight):
    network, read, inputs = examples(symmetric, choices)
    objective = AuxiliaryLanguageObjective(2 if choices else 3, language_weight)
    found = floats(objective(network, inputs, training=False))
    answers = nll_of(numpy_of(network(inputs)), inputs["label"])[:4].sum()
    language = sum(np.mean([language_loss(network, row) for row in rows]) for rows in read[:4])
    assert found["loss_sum"] == pytest.approx(answers + language_weight * language, rel=1e-4)
    assert found["weight"] == 4
    assert found["input_tokens"] == (inputs["token_ids"] != 0).sum()
    if language_weight:
        assert found["language_loss_sum"] == pytest.approx(language, rel=1e-4)
    else:
        plain = ClassificationObjective(objective.num_classes)(network, inputs, training=False)
        assert found == pytest.approx(floats(plain), rel=1e-6)
