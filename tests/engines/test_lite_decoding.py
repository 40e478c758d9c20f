"""Tests of decoding in LiteRT against the graph: continuations, samples, beam search, streams."""

import concurrent.futures
import json

import numpy as np
import pytest
import tensorflow as tf

from export.server.servable import Servable
from macaron_tf.decoding import (
    BeamSearchConfig,
    GenerationConfig,
    Prompts,
    Rules,
    first_state,
    generate,
)
from macaron_tf.decoding.translator import translate_ids
from macaron_tf.engines import certificate
from macaron_tf.engines.lite_decoding import DECODER, RECORD, LiteDecoder, convert_decoder
from macaron_tf.io.serving import CONTROLS, failed_check
from macaron_tf.model import Model
from macaron_tf.models import EncoderConfig, EncoderDecoder, LanguageModel, catalog
from macaron_tf.models.model_parts import Card
from macaron_tf.tasks import TranslationSettings
from macaron_tf.text import PairVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary
from tests.harness import int8_error, refuses
from tests.toys.decoding import shaken
from tests.toys.marks import slow

pytest.importorskip("ai_edge_litert")

LONGEST = 90  # more than the cache size of 64
VOCABULARY = WordPieceVocabulary.train(["a b c d e f g h"] * 50, size=21)


def language_model(**changes) -> LanguageModel:
    sizes = dict(vocab_size=VOCABULARY.size, hidden_dim=32, feed_forward_dim=64, num_heads=2)
    config = EncoderConfig(
        **sizes, num_layers=2, causal=True, norm="pre", max_length=LONGEST, **changes
    )
    return shaken(LanguageModel(config), seed=0)


def translator(name: str = "transformer_tiny", **changes) -> EncoderDecoder:
    sizes = dict(vocab_size=32, hidden_dim=32, feed_forward_dim=64, num_heads=2, max_length=40)
    sizes |= dict(num_encoder_layers=1, num_decoder_layers=2) | changes
    return shaken(EncoderDecoder(catalog.config(name, **sizes)), 0.15, seed=0)


@pytest.fixture(scope="module")
def gpt():
    network = language_model()
    return network, {kind: convert_decoder(network, kind) for kind in ("fp32", "int8")}


@pytest.fixture(scope="module")
def pair():
    network = translator()
    return network, {kind: convert_decoder(network, kind) for kind in ("fp32", "int8")}


def continued(model, lengths, new: int, temperature: float = 0.0, samples: int = 1):
    """Continues random prompts by up to `new` tokens; returns the arrays of `generate`.

    Args:
        model: model that `generate` decodes.
        lengths: number of tokens of each prompt.
        new: maximum number of new tokens.
        temperature: sampling temperature; 0 means greedy decoding.
        samples: number of continuations per prompt.
    """
    rng = np.random.default_rng(len(lengths))
    count = len(lengths)
    prompts = Prompts(
        tf.constant(rng.integers(5, VOCABULARY.size, (count, max(lengths))), tf.int32),
        tf.constant(lengths),
        tf.fill([count], new),
        tf.reshape(tf.range(count * samples), (count, samples)),
    )
    rules = Rules(GenerationConfig(temperature=temperature), end_id=3)

    @tf.function(autograph=False)
    def run():
        begun = model.init_decode(count, samples)
        prefill = model.prefill if model.can_prefill else None
        state = first_state(prompts, *begun, prefill)
        return generate(model.decode_step, state, begun[0], prompts, rules, new)

    return {name: value.numpy() for name, value in run().items()}


def translated(model, count: int, length: int, config):
    rng = np.random.default_rng(count)
    source = np.zeros((count, length), np.int32)
    for row, end in enumerate(np.linspace(length - 1, length // 2, count).astype(int)):
        source[row, :end], source[row, end] = rng.integers(4, 32, end), 3
    search = tf.function(
        lambda ids: translate_ids(model, ids, config, 30),
        input_signature=[tf.TensorSpec((None, None), tf.int32)],
        autograph=False,
    )
    return {name: value.numpy() for name, value in search(source).items()}


def assert_equal(found, expected):
    np.testing.assert_array_equal(found["ids"], expected["ids"])
    np.testing.assert_allclose(found["log_probs"], expected["log_probs"], rtol=1e-4, atol=1e-4)


# One token; several chunks, two cache sizes and rows that wait; one chunk of 16; the last position.
@pytest.mark.parametrize(
    "lengths, new", [([1], 9), ([70, 60, 3], 15), *slow(([17], 5), ([80], 10))]
)
def test_continuations_are_the_graphs(gpt, lengths, new):
    network, decoders = gpt
    assert_equal(continued(decoders["fp32"], lengths, new), continued(network, lengths, new))


@pytest.mark.slow
def test_rotary_positions_and_shared_keys_are_the_graphs():
    options = dict(positions="rotary", num_kv_heads=1, norm_type="rms", use_bias=False, tied=False)
    network = language_model(gated=True, **options)
    decoder = convert_decoder(network, "fp32")
    for asked in (([1], 5), ([70, 3], 9)):
        assert_equal(continued(decoder, *asked), continued(network, *asked))


def test_int8_scores_are_close(gpt):
    network, decoders = gpt
    context, cache = network.init_decode(2, 1, 8)
    lite_context, lite_cache = decoders["int8"].init_decode(2, 1)
    for index in range(6):
        tokens = tf.constant([[5 + index], [12 - index]])
        expected, cache = network.decode_step(tokens, index, context, cache)
        given = tokens, tf.constant(index), lite_context, lite_cache
        found, lite_cache = decoders["int8"].decode_step(*given)
        # Queries, keys, values, outputs and two of the feed-forward network; embeddings and logits.
        bound = int8_error(2 * 6 + 2) * np.std(expected)
        assert 0 < np.abs(found - expected).max() < bound


@pytest.mark.parametrize(
    "count, config",
    [
        (1, BeamSearchConfig(max_length_offset=8)),
        (5, BeamSearchConfig(beam_size=3, n_best=2, max_length_offset=8)),
        (5, BeamSearchConfig(beam_size=1, max_length_offset=2)),
        (1, BeamSearchConfig(max_length=8)),
    ],
    ids=["one", "batch", "greedy", "long"],
)
def test_translations_are_the_graphs(pair, count, config):
    network, decoders = pair
    length = 300 if config.max_length == 8 else 20
    found, expected = (translated(m, count, length, config) for m in (decoders["fp32"], network))
    assert_equal(found, expected)


@pytest.mark.slow
def test_a_source_beyond_the_positions_is_refused_in_a_sentence():
    network = translator(positions="learned", max_length=12)
    decoder = convert_decoder(network, "fp32")
    config = BeamSearchConfig(beam_size=2, max_length=5)
    assert_equal(translated(decoder, 2, 12, config), translated(network, 2, 12, config))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        translated(decoder, 2, 13, config)
    assert failed_check(caught.value.message) == (
        "a source has more than the 12 ids that the model reads: shorten the source"
    )


@pytest.mark.slow
def test_a_recurrence_reads_prompts_token_by_token():
    network = language_model(block="swish_rnn")
    decoder = convert_decoder(network, "fp32")
    assert not decoder.can_prefill
    assert_equal(continued(decoder, [9, 4], 8), continued(network, [9, 4], 8))


def test_models_answer_and_stream_as_without():
    model = Model(language_model(), vocabulary=VOCABULARY, card=Card(name="made"))
    lite = model.with_lite()
    texts, options = ["a b c", "", "h g f e d c b a"], {"temperature": 0.8, "max_tokens": 12}
    expected = model.predict(texts, **options)
    for found, wanted in zip(lite.predict(texts, **options), expected, strict=True):
        assert found["completion"] == wanted["completion"]
        assert found["log_prob"] == pytest.approx(wanted["log_prob"], abs=1e-3)
    # A stream continues while other texts are answered, from several threads too.
    stream = lite.stream(texts[0], seed=1, **options)
    parts = [next(stream)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        [*pool.map(lite.predict, [texts] * 3)]
    parts += stream
    assert "".join(parts) == expected[0]["completion"]
    assert lite.score("a b") == model.score("a b")
    refuses("text 2: a text has more than 131072 bytes", lite.predict, ["a", "a " * 70_000])


def test_many_streams_take_turns_and_are_freed(gpt):
    network, decoders = gpt
    decoder = decoders["fp32"]
    begun = [(*decoder.init_decode(1, 1), *network.init_decode(1, 1, 8)) for _ in range(7)]
    for index in range(2):
        for number, (context, cache, own, state) in enumerate(begun):
            given = tf.constant([[5 + number]]), tf.constant(index)
            found, cache = decoder.decode_step(*given, context, cache)
            expected, state = network.decode_step(*given, own, state)
            np.testing.assert_allclose(found, expected, atol=1e-4)
            begun[number] = (context, cache, own, state)
    assert len(decoder._searches) >= 7
    del begun, context, cache
    with decoder.alone():
        continued(decoder, [3], 2)
        assert len(decoder._searches) == 1
    assert not decoder._searches


def test_refusals(tmp_path):
    windowed = language_model(attention_windows=(4,))
    refuses("LiteRT cannot decode with windows", convert_decoder, windowed, "fp32")
    (tmp_path / DECODER).write_bytes(b"no")
    (tmp_path / RECORD).write_text(
        '{"kind": "fp32", "rows": 1, "caches": [], "sizes": [], "vocab_size": 9, "longest": 9, '
        '"special": {}}'
    )
    refuses("is damaged", LiteDecoder, tmp_path)
    model = Model(windowed, vocabulary=VOCABULARY, card=Card(name="made"))
    refuses("LiteRT cannot decode with windows", model.export, tmp_path / "out", lite="fp32")
    assert not [*(tmp_path / "out").glob("*")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["generator", "translator"])
def test_exports_decode_in_lite(tmp_path, monkeypatch, kind):
    if kind == "generator":
        model = Model(language_model(), vocabulary=VOCABULARY, card=Card(name="made"))
        options = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 3, "max_tokens": 9}
    else:
        settings = TranslationSettings({"beam_size": 2, "n_best": 2, "max_length_offset": 4})
        network, both = translator(vocab_size=VOCABULARY.size), (VOCABULARY, VOCABULARY)
        model = Model(network, PairVocabulary(*both), settings, Card(name="made"))
        options = {}
    monkeypatch.setattr(certificate, "TEXTS", ("a b c d e f", "b" * 99, ""))
    measured = [{"rows": 4, "lite": 1.0, "graph": 2.0}]
    monkeypatch.setattr(certificate, "break_even", lambda *_: measured)
    texts = ["a b c", "", "h g f e d"]
    version = model.export(tmp_path, lite="fp32")
    record = json.loads((version / "assets.extra" / "export.json").read_text())
    assert record["lite"]["kind"] == "fp32" and record["lite"]["measured"] == measured
    [_, row] = record["certificate"]
    assert row["difference"] < 1e-4
    opened = Servable(version, 1)
    dtypes = {name: dtype.as_numpy_dtype for name, dtype in model.task.inputs.items()}
    given = {name: [value] * len(texts) for name, value in {**CONTROLS, **options}.items()}
    given["text"] = [*map(str.encode, texts)]
    inputs = {name: np.array(given[name], dtype) for name, dtype in dtypes.items()}
    graph = opened._model.run("serving_default", inputs)
    lite = opened.small_engine.serve(inputs)
    for name, values in graph.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(lite[name], values, atol=1e-3)
        else:
            np.testing.assert_array_equal(lite[name], values)
    for row, text in enumerate(graph.get("completion", ())):  # a translator does not stream
        one = {name: column[row : row + 1] for name, column in inputs.items()}
        assert "".join(opened.texts.stream(one)) == text.decode()
    many = {name: np.repeat(column, 22) for name, column in inputs.items()}  # never measured
    assert opened.small_engine.answer(many) is None
    assert len(opened.run("serving_default", many)[next(iter(graph))]) == 66
