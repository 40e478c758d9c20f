"""Parameters of the papers' language models, without allocating any."""

import keras
import pytest

from macaron_tf.models import LanguageModel, catalog

# Exact, of Hugging Face's openai-gpt and gpt2, which are not padded to a multiple of 8 pieces.
EXACT = {
    "gpt_base": (40_478, 116_534_784),
    "gpt2_base": (50_257, 124_439_808),
    "gpt2_medium": (50_257, 354_823_168),
    "gpt2_large": (50_257, 774_030_080),
    "gpt2_xl": (50_257, 1_557_611_200),
}
# Brown et al. 2020, table 2.1, in millions.
GPT3 = {
    "small": 125,
    "medium": 350,
    "large": 760,
    "xl": 1_300,
    "2.7b": 2_700,
    "6.7b": 6_700,
    "13b": 13_000,
    "175b": 175_000,
}


def parameters(name: str, **changes) -> int:
    with keras.StatelessScope(initialize_variables=False):
        model = LanguageModel(catalog.config(name, **changes))
        model.build()
        return model.count_params()


@pytest.mark.parametrize("name", EXACT)
def test_gpt_and_gpt2_count_as_published(name):
    pieces, count = EXACT[name]
    assert parameters(name, vocab_size=pieces) == count
    assert catalog.config(name).vocab_size == -(-pieces // 8) * 8


@pytest.mark.parametrize("size", GPT3)
def test_gpt3_counts_as_its_table(size):
    assert parameters(f"gpt3_{size}") / 1e6 == pytest.approx(GPT3[size], rel=0.02)


def test_gpt2_normalizes_before_and_gpt_after():
    for name, before in (("gpt2_tiny", True), ("gpt_tiny", False)):
        model = LanguageModel(catalog.config(name, vocab_size=16))
        model.build()
        assert (model.encoder.stack.final_norm is not None) == before
        assert model.encoder.embeddings.layer_norm is None
