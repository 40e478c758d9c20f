"""Tests of models that are initialized from the weights of other models."""

import dataclasses

import numpy as np
import pytest

from macaron_tf import models
from macaron_tf.model import Model
from macaron_tf.models.model_parts import Card
from macaron_tf.runs import starts
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.harness import built, ids, normal, refuses
from tests.toys.marks import thorough

BASE = models.EncoderDecoderConfig(99, 64, 64, 4, 3, 3, dropout=0.0)
SMALL = models.EncoderConfig(24, 16, 48, 2, 2, max_length=12, dropout=0.0, initializer_range=0.3)


def started(config, parts=starts.PARTS, languages=(0, 0)):
    """Returns an encoder with random weights, and an encoder-decoder initialized from it."""
    encoder = built(models.Encoder, config)
    encoder.set_weights([normal(*w.shape, seed=i) for i, w in enumerate(encoder.weights)])
    network = built(models.EncoderDecoder, starts.config_from_encoder(config, BASE, parts))
    starts.copy_encoder(network, encoder, parts, languages)
    return encoder, network


SPLIT = {"scheme": "tokens/2, channels, tokens/2"}
KINDS = [
    {"block": block, "positions": positions}
    for block in ("transformer", "macaron", "swish_rnn", ("macaron", "swish_rnn"))
    for positions in ("learned", "sinusoidal", "none")
]
FIRST = [KINDS[0], KINDS[10]]  # learned positions of a transformer, sinusoidal ones of a mixture


@pytest.mark.parametrize(
    "options",
    [
        *thorough(*KINDS, but=FIRST),
        {"positions": "none", **SPLIT},
    ],
)
def test_it_encodes_what_the_encoder_encodes(options):
    config = dataclasses.replace(SMALL, num_segments=0, num_languages=3, **options)
    encoder, network = started(config, languages=(2, 1))
    source = ids(3, 7)
    source[-1, 4:] = 0
    expected = encoder({"token_ids": source, "language_ids": np.full_like(source, 2)})
    real = source != 0
    np.testing.assert_allclose(
        np.asarray(network.encode(source))[real], np.asarray(expected)[real], atol=1e-5
    )
    other = encoder({"token_ids": source, "language_ids": np.full_like(source, 1)})
    assert np.abs(np.asarray(network.encode(source)) - np.asarray(other)).max() > 0.01
    languages = network.target_embeddings.languages
    np.testing.assert_array_equal(languages[0], encoder.embeddings.languages[1])


def test_a_segment_of_bert_is_added_and_its_bias_is_the_encoders():
    config = dataclasses.replace(SMALL, norm="pre", relative_bias="per_layer", gated=True)
    encoder, network = started(config)
    source = ids(2, 7)
    expected = np.asarray(encoder({"token_ids": source}))
    np.testing.assert_allclose(np.asarray(network.encode(source)), expected, atol=1e-5)
    # The decoder's relative-position buckets differ, so its bias keeps random weights.
    biases = encoder.stack.biases[0], network.decoder.biases[0]
    [encoder_bias], [decoder_bias] = (bias.get_weights() for bias in biases)
    assert np.abs(encoder_bias - decoder_bias).max() > 0.1


@pytest.mark.parametrize("options", [{}, *thorough(SPLIT)])
def test_a_decoder_of_a_language_model_has_its_weights_and_its_bias(options):
    config = dataclasses.replace(SMALL, causal=True, relative_bias="shared", num_segments=0)
    config = dataclasses.replace(config, **options)
    encoder, network = started(config, ("decoder",))
    found = [
        [residual.get_weights() for operator, residual in block.sublayers if operator != "memory"]
        for block in network.decoder.blocks
    ]
    np.testing.assert_equal(
        found, [[one.get_weights() for _, one in block.sublayers] for block in encoder.stack.blocks]
    )
    same(network.decoder.biases[0], encoder.stack.biases[0])
    assert network.config.num_encoder_layers == BASE.num_encoder_layers
    assert network.config.num_decoder_layers == config.num_layers


@pytest.mark.parametrize("scaled", [True, *thorough(False)])
def test_a_pre_norm_decoder_without_its_new_attention_is_the_language_model(scaled):
    config = dataclasses.replace(SMALL, causal=True, norm="pre", num_segments=0, block="macaron")
    config = dataclasses.replace(config, embedding_scale=scaled)
    encoder, network = started(config, ("decoder",))
    for block in network.decoder.blocks:
        output = block.cross_attention_1.sublayer.output_projection
        output.set_weights([np.zeros_like(weight) for weight in output.get_weights()])
    target = ids(2, 6, seed=1)
    hidden = network.hidden_states({"source": ids(2, 5), "target": target})
    expected = encoder({"token_ids": target})
    np.testing.assert_allclose(np.asarray(hidden), np.asarray(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block": "gmlp"}, "block='gmlp' must be one of 'transformer', 'macaron'"),
        ({"embedding_dim": 8}, "embedding_dim=8 is not supported in an encoder-decoder: use 16"),
        ({"positions": "transformer_xl"}, "positions='transformer_xl'"),
    ],
)
def test_what_does_not_fit_is_named(change, reason):
    with pytest.raises(ValueError, match=reason):
        starts.config_from_encoder(dataclasses.replace(SMALL, **change), BASE, starts.PARTS)


VOCABULARY = WordPieceVocabulary((*SPECIAL_PIECES, *"abcdefghij"))


def start(network, **facts) -> starts.Start:
    """Returns the `Start` that initializes other models from a network and `VOCABULARY`."""
    kinds = [*starts.KINDS]
    return starts.start_of("runs/x", Model(network, VOCABULARY, card=Card(**facts)), kinds)


def bert(**changes):
    """Returns a BERT with a sentence-pair head and noise in all weights."""
    config = dataclasses.replace(SMALL, **changes)
    return built(models.PretrainingEncoder, config, sentence_pair=True, noise=0.2)


def same(one, other):
    np.testing.assert_equal(one.get_weights(), other.get_weights())


def test_each_kind_of_network_takes_what_it_shares():
    """A network is initialized with all parts that it shares with a network of another type."""
    source = bert()
    task = built(models.EncoderClassifier, SMALL, 3)
    assert start(source).copy_to(task) == []
    same(task.encoder, source.encoder)
    same(task.pooler, source.pooler)
    single = built(models.PretrainingEncoder, SMALL, sentence_pair=False)
    assert start(source).copy_to(single) == []
    same(single.masked_language, source.masked_language)
    pairs = bert()
    assert start(single).copy_to(pairs) == ["pooler", "sentence_pair"]
    same(pairs.encoder, single.encoder)
    assert start(source.encoder).copy_to(pairs) == ["masked_language", "pooler", "sentence_pair"]
    relu = built(models.EncoderClassifier, SMALL, 3, pooler_activation="relu")
    weights = relu.pooler.get_weights()
    assert start(source).copy_to(relu) == ["pooler"]  # its activation differs
    np.testing.assert_equal(relu.pooler.get_weights(), weights)
    plain = built(models.PretrainingEncoder, SMALL, head_options={"transform": False})
    assert start(source).copy_to(plain) == []  # a head with fewer weights
    np.testing.assert_array_equal(plain.masked_language.bias, source.masked_language.bias)


def test_a_bart_reads_the_texts_of_a_task():
    config = models.catalog.config("bart_tiny", vocab_size=24)
    pair = built(models.EncoderDecoder, config, noise=0.2)
    task, other = (built(models.EncoderClassifier, config, 3) for _ in range(2))
    start(pair, objective="denoising").copy_to(task)
    same(task.encoder_decoder, pair)
    start(task).copy_to(other)  # a model of a task is a start, too
    same(other.encoder_decoder, pair)


def test_models_with_a_memory_give_their_encoder_and_their_logits():
    config = dataclasses.replace(SMALL, positions="transformer_xl", embedding_norm=False)
    streams, task = built(models.TwoStreamModel, config, 4), models.EncoderClassifier(config, 3)
    task.build()
    start(streams).copy_to(task)
    same(task.encoder, streams.encoder)
    adaptive = {"adaptive_cutoffs": (6, 8), "adaptive_divisor": 2}
    config = dataclasses.replace(config, causal=True, num_segments=0, **adaptive)
    writer, task = built(models.SegmentLanguageModel, config, 4), models.CausalClassifier(config, 2)
    task.build()
    start(writer).copy_to(task)
    inputs = {"token_ids": ids(2, 4)}
    np.testing.assert_array_equal(task.language_model(inputs), writer(inputs))


def test_a_network_that_cannot_be_filled_is_refused():
    task = built(models.EncoderClassifier, dataclasses.replace(SMALL, hidden_dim=32), 3)
    refuses("the weights for .* have shape ", start(bert()).copy_to, task)
    pair = built(models.EncoderDecoder, starts.config_from_encoder(SMALL, BASE, ()))
    refuses("cannot initialize ", start(bert()).copy_to, pair)
    other = bert(scheme="channels, tokens")
    refuses("needs model.scheme=None, not 'channels, tokens'", start(bert()).copy_to, other)
    refuses("but must be an encoder", starts.start_of, "runs/x", Model(pair), ["encoder"])
