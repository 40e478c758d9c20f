"""Promises of every objective of pre-training: exact resuming, static shapes, learning."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import (
    GeneratorDiscriminator,
    LanguageModel,
    PretrainingEncoder,
    generator_config,
)
from macaron_tf.objectives import (
    CausalLanguageObjective,
    DenoisingObjective,
    MaskedLanguageObjective,
    MaskingConfig,
    PermutationObjective,
    ReplacedTokenObjective,
    SpanBoundaryObjective,
    SpanCorruptionObjective,
)
from tests.objectives.toy import CHOICES, TEXT_VOCABULARY, fitted, full_rows, tiny

SPANS = MaskingConfig(rate=0.3, choice="spans", fate="span", round_up=True)
ELECTRA = MaskingConfig(rate=0.3, mask=1.0, random=0.0, round_up=True)
PREPARED = {
    **{name: (MaskedLanguageObjective(), MaskingConfig(choice=name)) for name in CHOICES},
    "replaced": (ReplacedTokenObjective(), ELECTRA),
    "permutation": (PermutationObjective(), MaskingConfig()),
    "span_corruption": (SpanCorruptionObjective(), MaskingConfig()),
    "denoising": (DenoisingObjective(), MaskingConfig()),
}


def prepared(name, count, seed=1, start=0):
    """Batches of the same four rows."""
    objective, masking = PREPARED[name]
    rows = tf.data.Dataset.from_tensors({"token_ids": full_rows(4, 64)}).repeat()
    dataset = objective.dataset(rows, masking, TEXT_VOCABULARY, seed, start).take(count)
    return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize("name", PREPARED)
def test_a_batch_is_of_its_seed_and_number_and_a_resumed_run_is_the_uninterrupted_one(name):
    whole, resumed = prepared(name, 5), prepared(name, 2, start=3)
    for expected, batch in zip(whole[3:], resumed, strict=True):
        assert batch.keys() == expected.keys()
        for feature in batch:
            np.testing.assert_array_equal(batch[feature], expected[feature])
    [other], decisive = prepared(name, 1, seed=2), ("masked_positions", "source")
    if name == "replaced":
        decisive = ("sampling_draws",)
    [feature] = [feature for feature in decisive if feature in other]
    seen = [*whole, other]
    for number, one in enumerate(seen):
        for another in seen[:number]:  # no row is masked, permuted or corrupted alike
            assert one[feature].shape == another[feature].shape
            assert (one[feature] != another[feature]).any(axis=1).all()


TRAINED = {  # network, objective, masking, losses
    "causal": (
        lambda: LanguageModel(tiny(causal=True)),
        CausalLanguageObjective(skip_padding=False),
        MaskingConfig(),
        ("nll",),
    ),
    "span_boundary": (
        lambda: PretrainingEncoder(tiny(), span_boundary=True, dtype="mixed_bfloat16"),
        SpanBoundaryObjective(skip_padding=False),
        SPANS,
        ("loss", "nll", "span_boundary_loss"),
    ),
    "replaced": (
        lambda: GeneratorDiscriminator(
            tiny(), generator_config(tiny(), 0.5), dtype="mixed_bfloat16"
        ),
        ReplacedTokenObjective(skip_padding=False),
        ELECTRA,
        ("loss", "nll", "replaced_loss"),
    ),
}


@pytest.mark.parametrize("name", TRAINED)
def test_trains_compiled_with_static_shapes(name):
    make, objective, masking, losses = TRAINED[name]
    keras.utils.set_random_seed(1)
    network = make()
    network.build()
    model, history = fitted(network, objective, masking, jit_compile=True)
    assert model.traces["train"] == 1
    for loss in losses:
        assert history[loss][1] < history[loss][0], loss
