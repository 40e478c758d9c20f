"""Parameters of T5 and BART against the papers' and the released models', allocating none."""

import keras
import pytest

from macaron_tf.models import EncoderDecoder, catalog

# Those of Hugging Face's models of these shapes, counted from its configurations; the papers print
# 60M, 220M, 770M, 2.8B and 11B (Raffel et al. 2020, section 3.7).
RELEASED = {
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "t5_large": 737_668_096,
    "t5_3b": 2_851_598_336,
    "t5_11b": 11_307_321_344,
    "t5_1_1_small": 76_961_152,
    "t5_1_1_base": 247_577_856,
    "t5_1_1_large": 783_150_080,
    "t5_1_1_xl": 2_849_757_184,
    "t5_1_1_xxl": 11_135_332_352,
}


def parameters(name: str, **changes) -> int:
    with keras.StatelessScope(initialize_variables=False):
        model = EncoderDecoder(catalog.config(name, **changes))
        model.build()
        return model.count_params()


@pytest.mark.parametrize(("name", "count"), RELEASED.items())
def test_t5_has_exactly_the_released_models_parameters(name, count):
    assert parameters(name) == count


@pytest.mark.parametrize(("name", "millions"), [("bart_base", 139), ("bart_large", 406)])
def test_bart_has_the_released_models_parameters(name, millions):
    # Hugging Face keeps two unused positions in each of the two tables.
    assert round(parameters(name, vocab_size=50_265) / 1e6) == millions


@pytest.mark.parametrize("name", ["t5_tiny", "bart_tiny"])
def test_tiny_models_have_as_many_numbers_in_matrices_with_every_block(name):
    counts = set()
    for block in ("transformer", "macaron", "swish_rnn"):
        with keras.StatelessScope(initialize_variables=False):
            model = EncoderDecoder(catalog.config(name, block=block))
            model.build()
            sizes = [weight.shape for weight in model.weights if len(weight.shape) == 2]
        counts.add(sum(rows * columns for rows, columns in sizes))
    assert len(counts) == 1
