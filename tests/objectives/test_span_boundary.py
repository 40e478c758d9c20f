import pytest

from macaron_tf.models import PretrainingEncoder
from macaron_tf.objectives import MaskingConfig, SpanBoundaryObjective
from macaron_tf.training.updates import metrics_from_sums
from tests.harness import numpy_of
from tests.objectives.toy import batches, floats, nll_of, tiny

MASKING = MaskingConfig(rate=0.3, choice="spans", fate="span", round_up=True)


def network_of(**options):
    network = PretrainingEncoder(tiny(), span_boundary=True, **options)
    network.build()
    return network


@pytest.mark.parametrize("skip", [True, False])
def test_sums_are_those_of_the_formula(skip):
    network = network_of()
    objective = SpanBoundaryObjective(skip_padding=skip)
    [batch] = batches(objective, MASKING, [20, 9, 1, None, 15])
    found = floats(objective(network, batch, training=False))

    hidden = numpy_of(network.encoder({"token_ids": batch["token_ids"]}))
    hidden_ids = {name: tensor.numpy() for name, tensor in batch.items()}
    nll = boundary = correct = again = weight = 0.0
    for row in range(5):
        masked = hidden_ids["masked_positions"][row][hidden_ids["masked_weights"][row] > 0]
        labels = hidden_ids["masked_labels"][row]
        for place, position in enumerate(masked):
            first = last = position  # the span of masked positions around it
            while first - 1 in masked:
                first -= 1
            while last + 1 in masked:
                last += 1
            at = hidden[row, position][None]
            logits = numpy_of(network.masked_logits(at))
            around = [hidden[row, first - 1][None], hidden[row, last + 1][None]]
            second = numpy_of(network.span_boundary_logits(*around, [position - first]))
            nll += nll_of(logits, labels[place : place + 1])[0]
            boundary += nll_of(second, labels[place : place + 1])[0]
            correct += logits.argmax() == labels[place]
            again += second.argmax() == labels[place]
            weight += 1
    assert weight == 6 + 3 + 1 + 5
    expected = {
        "loss_sum": nll + boundary,
        "weight": weight,
        "nll_sum": nll,
        "span_boundary_loss_sum": boundary,
        "input_tokens": 23 + 12 + 4 + 18,
        "correct_sum": correct,
        "span_boundary_accuracy_sum": again,
    }
    assert found == pytest.approx(expected, rel=1e-4)
    assert set(objective.metric_names) <= set(metrics_from_sums({**found, "updates": 1.0}))


def test_masks_that_are_no_spans_are_refused():
    [batch] = batches(SpanBoundaryObjective(), MaskingConfig(), [9])
    with pytest.raises(ValueError, match='needs masks of choice="spans"'):
        SpanBoundaryObjective()(network_of(), batch, training=False)
