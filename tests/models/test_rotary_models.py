"""Tests of models with rotary positions, such as Llama and ModernBERT."""

import numpy as np
import pytest

from macaron_tf.layers import MultiHeadAttention, RotaryAttention
from macaron_tf.layers.packing import packing_scope
from macaron_tf.layers.rotary import frequencies
from macaron_tf.models import Encoder, EncoderDecoder, LanguageModel, catalog
from macaron_tf.models.pretraining import generator_config
from macaron_tf.variables import spec_of
from tests.harness import built, ids, int8_error, numpy_of

V = 40
SIZES = {"vocab_size": V, "hidden_dim": 16, "feed_forward_dim": 24, "num_heads": 4}
ROTARY = {**SIZES, "positions": "rotary", "num_kv_heads": 2, "dropout": 0.0}


def llama(**options) -> LanguageModel:
    config = catalog.config("llama_tiny", **SIZES, num_layers=2, tied=False, **options)
    return built(LanguageModel, config, noise=0.2)


def answers(model, length: int = 7) -> np.ndarray:
    return numpy_of(model({"token_ids": ids(2, length, vocab_size=V)}))


def test_queries_and_keys_are_parts_of_their_own():
    model = llama()
    specs = {w.path.partition("block_0/")[2]: spec_of(w) for w in model.weights}
    found = {n.split("/")[-2]: (s.axes, s.parts) for n, s in specs.items() if "attention/" in n}
    joined = ("embed", "heads")
    assert found == {"query": (joined, 1), "key_value": (joined, 2), "output": (joined[::-1], 1)}


@pytest.mark.slow
def test_lora_and_int8_answer_alike():
    model = llama()
    expected = answers(model)
    attention = model.encoder.stack.blocks[0].mixers("tokens")[0]
    attention.query.enable_lora(2)
    np.testing.assert_allclose(answers(model), expected, atol=1e-6)  # LoRA starts at 0
    model = llama()
    model.quantize("int8")
    rounded = answers(model)
    # Queries, keys, values, outputs and three of the feed-forward network; embeddings and logits.
    bound = int8_error(2 * 7 + 2) * np.std(expected)
    assert 0 < np.abs(rounded - expected).max() < bound
    context, cache = model.init_decode(2, 1, 7)
    for t, tokens in enumerate(ids(2, 7, vocab_size=V).T):
        logits, cache = model.decode_step(tokens[:, None], t, context, cache)
        np.testing.assert_allclose(numpy_of(logits)[:, 0], rounded[:, t], atol=bound)


@pytest.mark.parametrize("block", ["macaron", "swish_rnn", "amlp"])
def test_any_attention_turns(block):
    """Shifting all rotary positions changes nothing; scaling the positions changes outputs."""
    options = {**ROTARY, "num_kv_heads": None if block == "amlp" else 2, "num_layers": 2}
    plain = dict(block=block, num_segments=0, toeplitz=True, max_length=16, activation="gelu")
    model = built(Encoder, catalog.config("bert_tiny", **options, **plain), noise=0.2)
    given = ids(2, 7, vocab_size=V)
    given[1, 5:] = 0
    expected = numpy_of(model({"token_ids": given}))
    places = np.tile(np.arange(7), (2, 1))
    moved = numpy_of(model({"token_ids": given, "position_ids": places + 30}))
    np.testing.assert_allclose(moved, expected, atol=2e-5)
    turned = numpy_of(model({"token_ids": given, "position_ids": places * 3}))
    assert np.abs(turned - expected).max() > 1e-3
    with packing_scope():
        packed = numpy_of(model({"token_ids": given}))
    real = given != 0
    np.testing.assert_allclose(packed[real], expected[real], atol=2e-5)


def test_attention_to_a_source_is_not_turned():
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = built(EncoderDecoder, catalog.config("transformer_tiny", **ROTARY, **sizes))
    [encoder], [decoder] = model.encoder.blocks, model.decoder.blocks
    turning = [type(one) for one in (*encoder.mixers("tokens"), *decoder.mixers("tokens"))]
    assert turning == [RotaryAttention] * 2
    assert [type(one) for one in decoder.mixers("memory")] == [MultiHeadAttention]


def test_a_generator_shares_its_fewer_heads_of_keys():
    config = catalog.config("bert_tiny", **{**ROTARY, "num_heads": 12, "hidden_dim": 96})
    generator = generator_config(config)
    assert (generator.num_heads, generator.num_kv_heads) == (3, 1)


BLOCKS = ("transformer", "macaron", "swish_rnn")


def config(**options):
    return catalog.config("modern_bert_tiny", **{**SIZES, "attention_windows": (0, 4), **options})


def rows():
    given = ids(2, 9, vocab_size=V)
    given[1, 6:] = 0
    return given


@pytest.mark.parametrize("block", BLOCKS)
def test_padding_packing_and_documents_change_nothing(block):
    model, given = built(Encoder, config(block=block), noise=0.2), rows()
    expected, real = numpy_of(model(given)), given != 0
    np.testing.assert_allclose(numpy_of(model(given[1:, :6])), expected[1:, :6], atol=2e-5)
    with packing_scope():
        packed = numpy_of(model(given))
    np.testing.assert_allclose(packed[real], expected[real], atol=2e-5)
    joined = {
        "token_ids": np.concatenate([given[:1], given[1:, :6]], axis=1),
        "document_ids": np.array([[1] * 9 + [2] * 6]),
    }
    found = numpy_of(model(joined))[0]
    np.testing.assert_allclose(found, expected[real], atol=2e-5)


def test_layers_with_the_same_window_share_their_weights_but_for_the_first():
    model = Encoder(config(num_layers=5, sharing="all"))
    blocks = model.stack.blocks
    kinds = [[*map(id, block.mixers())] for block in blocks]
    assert kinds[1] == kinds[3] != kinds[2] == kinds[4]
    assert kinds[0] not in kinds[1:]


def test_a_part_of_a_head_turns_and_slowed_angles_are_llama_3_s():
    given = frequencies(8, 100.0)
    np.testing.assert_allclose(frequencies(8, 100.0, (4.0,)), given / 4)
    # Turns in 100 positions: 15.9, 5.0, 1.6, 0.5.
    found = frequencies(8, 100.0, (4.0, 1.0, 9.0, 100.0))
    shares = (100 * given / (2 * np.pi) - 1) / 8
    mixed = given * (shares + (1 - shares) / 4)
    np.testing.assert_allclose(found, [given[0], mixed[1], mixed[2], given[3] / 4])
    layer = RotaryAttention(2, 6, rotary_dim=4)
    layer.build((1, 5, 12))
    x = np.ones((1, 2, 5, 6), "float32")
    query, _ = layer.rotate(x, x, np.arange(5))
    np.testing.assert_array_equal(numpy_of(query)[..., 4:], 1.0)
    assert (numpy_of(query)[0, 0, 1:, :4] != 1.0).all()
