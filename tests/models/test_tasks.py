"""Tests of task and pre-training models: masks, text pairs, sentence vectors, heads, ELECTRA."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf import models
from macaron_tf.layers import BLOCKS
from macaron_tf.models.tasks import answer_mask, unit_length
from macaron_tf.objectives import ClassificationObjective
from tests.harness import built, ids, normal, numpy_of, rejects
from tests.toys.pairs import CONFIG, PAIRS, batch


def last_vectors(model, token_ids):
    """Returns the last hidden vector of each row `(N, L)`, computed without padding."""
    found = []
    for row_ids in token_ids:
        real = row_ids[row_ids != 0][None]
        hidden = numpy_of(model.encoder({"token_ids": real})) if real.size else np.zeros((1, 1, 16))
        found.append(hidden[0, -1])
    return np.array(found)


def linear(model, vectors):
    kernel, bias = (numpy_of(weight) for weight in model.head.weights)
    return vectors @ kernel + bias


def test_both_orders_are_added():
    model = built(models.CausalClassifier, CONFIG, 1, head_dropout=0.0, symmetric=True, noise=0.2)
    inputs, other = batch(PAIRS[:4]), batch([pair[::-1] for pair in PAIRS[:4]])
    vectors = sum(last_vectors(model, rows["token_ids"]) for rows in (inputs, other))
    np.testing.assert_allclose(numpy_of(model(inputs)), linear(model, vectors), atol=1e-5)
    np.testing.assert_allclose(numpy_of(model(inputs)), numpy_of(model(other)), atol=1e-5)


def test_each_choice_is_scored():
    model = built(models.CausalMultipleChoice, CONFIG, head_dropout=0.0, noise=0.2)
    rows = batch(PAIRS[:4])["token_ids"].reshape(2, 2, 10)
    expected = linear(model, last_vectors(model, rows.reshape(4, 10))).reshape(2, 2)
    np.testing.assert_allclose(numpy_of(model({"token_ids": rows})), expected, atol=1e-5)


ENCODER = models.EncoderConfig(24, 16, 32, 2, 1, max_length=12, initializer_range=0.3)


BART = models.EncoderDecoderConfig(
    24, 16, 32, 2, 1, 1, max_length=12, positions="learned", block="transformer", norm="post",
    initializer_range=0.3,
)  # fmt: skip


@pytest.mark.parametrize("kind", [models.EncoderMultipleChoice, models.CausalMultipleChoice])
def test_a_choice_that_is_not_there_is_never_chosen(kind):
    config = CONFIG if kind is models.CausalMultipleChoice else ENCODER
    model = built(kind, config, head_dropout=0.0, noise=0.2)
    given = batch([*PAIRS[:3], None])
    given = {name: rows.reshape(2, 2, 10) for name, rows in given.items()}
    found = numpy_of(model(given))
    assert found.shape == (2, 2) and found[1, 1] == np.float32(-1e9)
    alone = {name: rows[1:, :1] for name, rows in given.items()}
    np.testing.assert_allclose(numpy_of(model(alone)), found[1:, :1], atol=1e-5)
    if kind is models.EncoderMultipleChoice:
        flat = {name: rows.reshape(4, 10) for name, rows in given.items()}
        scores = numpy_of(model.classifier(flat)).reshape(2, 2)
        np.testing.assert_allclose(found[0], scores[0], atol=1e-5)


@pytest.mark.parametrize("kind", [models.EncoderMultipleChoice, models.CausalMultipleChoice])
def test_an_example_of_padding_has_numbers_in_float16(kind):
    config = CONFIG if kind is models.CausalMultipleChoice else ENCODER
    model = kind(config, head_dropout=0.0, dtype="mixed_float16")
    given = {name: rows.reshape(2, 2, 10) for name, rows in batch(PAIRS[:4]).items()}
    given["token_ids"][1] = 0
    found = {**given, "label": np.array([1, 1]), "weight": np.array([1.0, 0.0], "float32")}
    sums = ClassificationObjective(2)(model, found, training=True)
    assert 0 < float(sums["loss_sum"]) < 20 and sums["weight"] == 1
    assert (numpy_of(model(given))[1] == np.float32(-1e9)).all()


def inputs():
    tokens = ids(3, 10)
    segments = np.zeros_like(tokens)
    for row, (boundary, length) in enumerate(((3, 10), (2, 6), (4, 5))):
        tokens[row, length:] = 0
        segments[row, boundary:length] = 1
    return {"token_ids": tokens, "segment_ids": segments}


def test_an_answer_lies_in_the_context():
    given = inputs()
    allowed = np.asarray(answer_mask(given["token_ids"], given["segment_ids"]))
    assert [np.flatnonzero(row).tolist() for row in allowed] == [
        [0, 3, 4, 5, 6, 7, 8],
        [0, 2, 3, 4],
        [0],  # an empty context: [SEP] alone
    ]
    logits = numpy_of(built(models.EncoderQuestionAnswering, ENCODER)(given))
    assert ((logits > -1e8) == allowed[:, None]).all()


WORDS = {"lstm_dim": 4, "word_dim": 4, "filters": ((2, 4),), "max_characters": 5}
WORDS = models.WordEncoderConfig(**WORDS, dropout=0.0)
SWISH = dataclasses.replace(ENCODER, block="swish_rnn", dropout=0.0)
# A model with an input for each mask, the shape of its ids, and the rank of a row's positions.
MASKED = {
    **{
        f"{kind.__name__}_{name}": (kind, (config, *options), (2, 8), 2)
        for kind, options in (
            (models.EncoderClassifier, (3, 0.0)),
            (models.EncoderTokenClassifier, (3, 0.0)),
            (models.EncoderQuestionAnswering, ()),
        )
        for name, config in (("encoder", ENCODER), ("swish", SWISH), ("decoder", BART))
    },
    "words": (models.EncoderClassifier, (WORDS, 3, 0.0), (2, 8, 5), 2),
    "tagged_words": (models.EncoderTokenClassifier, (WORDS, 3, 0.0), (2, 8, 5), 2),
    "choices": (models.EncoderMultipleChoice, (ENCODER, 0.0), (2, 2, 8), 3),
    "decoder_choices": (models.EncoderMultipleChoice, (BART, 0.0), (2, 2, 8), 3),
    "sentence": (models.SiameseEncoder, (ENCODER,), (2, 8), 2),
    "sentences": (models.SiameseEncoder, (ENCODER, "max"), (2, 2, 8), 3),
    "encoder": (models.Encoder, (ENCODER,), (2, 8), 2),
    "pretraining": (models.PretrainingEncoder, (ENCODER, True), (2, 8), 2),
    "language_model": (models.LanguageModel, (CONFIG,), (2, 8), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "arguments", "shape"),
    [
        (models.EncoderMultipleChoice, (ENCODER,), (2, 2, 6)),
        (models.CausalMultipleChoice, (CONFIG,), (2, 2, 6)),
        (models.EncoderQuestionAnswering, (WORDS,), (2, 6, 5)),
        (models.CausalClassifier, (CONFIG, 3, 0.0, True), (2, 6)),
    ],
)
def test_a_model_that_was_never_called_is_exported_with_its_ids(kind, arguments, shape, tmp_path):
    model, segments = built(kind, *arguments), np.int32([[0, 0, 0, 0, 1, 1]] * 2)
    given = {"token_ids": ids(*shape), "segment_ids": segments}
    given = dict([*given.items()][: model.num_required])
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(given), numpy_of(model(given)), atol=1e-5)


@pytest.mark.parametrize("case", MASKED)
def test_a_mask_says_what_padding_would(case):
    kind, arguments, shape, rank = MASKED[case]
    model, tokens = built(kind, *arguments), ids(*shape)
    real = np.ones(shape[:rank], bool)
    real[0, ..., 5:] = real[1, ..., 6:] = False
    real[-1, -1] = real[-1, -1] & (rank == 2)  # a choice or sentence of padding alone
    attends = np.broadcast_to(real[..., None, :], (*shape[:rank], shape[rank - 1]))
    masks = [
        {"padding_mask": real.astype("int32")},
        {"attention_mask": real},
        {"attention_mask": real.astype("float32").tolist()},
    ]
    if len(shape) == rank:
        masks.append({"attention_mask": attends.astype("int32")})
    if shape == (2, 8):
        masks += [{"attention_mask": attends[:, None]}, {"attention_mask": real[:, None, None]}]
    more = {}
    if kind is models.EncoderQuestionAnswering:
        more = {"segment_ids": np.tile(np.repeat([0, 1], [3, 5]), (2, 1))}
    padded = np.where(real[..., None] if shape[rank:] else real, tokens, 0)
    expected = model({"token_ids": padded, **more})
    for mask in masks:
        found = model({"token_ids": tokens, **mask, **more})
        for one, other in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
            one, other = numpy_of(one), numpy_of(other)
            if one.shape[:rank] == real.shape and kind is not models.EncoderMultipleChoice:
                one, other = one[real], other[real]
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_texts_of_one_row_do_not_see_each_other():
    """An attention mask isolates texts in the encoder, in cross-attention and in the decoder."""
    model, tokens = built(models.EncoderTokenClassifier, BART, 3, 0.0), ids(1, 8)
    text = np.repeat([0, 1], [3, 5])
    attends = (text[:, None] == text)[None]
    other = np.where(text == 0, 23 - tokens, tokens)
    found, changed = (
        numpy_of(model({"token_ids": rows, "attention_mask": attends})) for rows in (tokens, other)
    )
    # The second text's first position contains the token before it.
    np.testing.assert_allclose(found[:, 4:], changed[:, 4:], atol=1e-6)
    assert np.abs(found - changed)[:, :3].max() > 1e-3


@pytest.mark.parametrize("kind", [models.EncoderClassifier, models.EncoderMultipleChoice])
def test_a_causal_models_first_position_is_not_classified(kind):
    options = () if kind is models.EncoderMultipleChoice else (3,)
    rejects("summary='first' sees one position", kind, CONFIG, *options)
    kind(dataclasses.replace(CONFIG, summary="last"), *options)


def test_dropout_is_the_taggers_own():
    network = built(models.EncoderTokenClassifier, ENCODER, 5, 0.2)
    assert network.pooler is None and built(models.EncoderClassifier, ENCODER, 3).pooler is not None
    one, other = (numpy_of(network(inputs(), training=True)) for _ in range(2))
    assert not np.allclose(one, other)


# The concatenations of Sentence-BERT's table 6.
CONCATENATIONS = ("u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", "u,v,|u-v|", "u,v,|u-v|,u*v")
SENTENCES = models.EncoderConfig(24, 16, 48, 2, 2, max_length=16, initializer_range=0.2)


def pairs(count=3, length=7):
    """Returns token ids `(B, 2, L)`, with padding in some rows."""
    tokens = ids(count, 2, length)
    tokens[0, 1, 3:] = 0
    tokens[-1, 0, 2:] = 0
    return tokens


@pytest.mark.parametrize(
    "block, pooling",
    [*((block, "mean") for block in BLOCKS), ("transformer", "max"), ("transformer", "cls")],
)
def test_a_sentence_has_one_vector_wherever_it_stands(block, pooling):
    model, tokens = (
        built(models.SiameseEncoder, dataclasses.replace(SENTENCES, block=block), pooling),
        pairs(),
    )
    together = numpy_of(model({"token_ids": tokens}))
    assert together.shape == (3, 2, 16)
    swapped = numpy_of(model({"token_ids": tokens[:, ::-1]}))
    np.testing.assert_allclose(swapped[:, ::-1], together, atol=1e-5)
    alone = numpy_of(model({"token_ids": tokens[0, 1, None, :3]}))  # and without its padding
    np.testing.assert_allclose(alone[0], together[0, 1], atol=1e-5)
    assert np.abs(together[0, 0] - together[0, 1]).max() > 0.1


@pytest.mark.parametrize("concatenation", CONCATENATIONS)
def test_the_classifier_sees_what_the_table_says(concatenation):
    model = built(models.SiameseEncoder, SENTENCES, num_classes=3, concatenation=concatenation)
    u, v = normal(4, 16), normal(4, 16, seed=1)
    found = numpy_of(model.pair_logits(u, v))
    parts = {"u": u, "v": v, "|u-v|": abs(u - v), "u*v": u * v}
    features = np.concatenate([parts[name] for name in concatenation.split(",")], axis=1)
    kernel, bias = (numpy_of(w) for w in (model.head.dense.kernel, model.head.dense.bias))
    np.testing.assert_allclose(found, features @ kernel + bias, atol=1e-5)
    if "u," not in concatenation:
        np.testing.assert_allclose(numpy_of(model.pair_logits(v, u)), found, atol=1e-6)


def test_unit_vectors_if_asked():
    tokens = pairs()
    plain = numpy_of(built(models.SiameseEncoder, SENTENCES)({"token_ids": tokens}))
    found = numpy_of(built(models.SiameseEncoder, SENTENCES, normalize=True)({"token_ids": tokens}))
    expected = plain / np.linalg.norm(plain, axis=-1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(numpy_of(unit_length(np.zeros((2, 3), "float32"))), 0)


def test_vectors_are_float32_under_every_policy():
    model = built(models.SiameseEncoder, SENTENCES, num_classes=2, dtype="mixed_bfloat16")
    vectors = model({"token_ids": pairs()})
    assert vectors.dtype == "float32"
    assert keras.backend.standardize_dtype(model.encoder.compute_dtype) == "bfloat16"


AT = np.array([[1, 4, 6], [0, 2, 2]])
SPANS = {
    "masked_positions": AT,
    "left_boundaries": np.array([[0, 3, 5], [0, 1, 1]]),
    "right_boundaries": np.array([[2, 5, 6], [1, 3, 3]]),
    "span_positions": np.array([[0, 0, 0], [0, 1, 2]]),
}


def tiny(**overrides):
    options = {"max_length": 16, "dropout": 0.0, "initializer_range": 0.5, **overrides}
    return models.EncoderConfig(24, 16, 32, 2, 2, **options)


def test_only_masked_positions_are_scored():
    model, tokens = built(models.PretrainingEncoder, tiny()), ids(2, 7)
    everywhere = numpy_of(model({"token_ids": tokens})["masked_language"])
    some = model({"token_ids": tokens, "masked_positions": AT})["masked_language"]
    expected = np.take_along_axis(everywhere, AT[..., None], axis=1)
    np.testing.assert_allclose(numpy_of(some), expected, atol=1e-5)


def test_spans_are_scored_from_what_is_around_them():
    model = built(models.PretrainingEncoder, tiny(embedding_dim=8), span_boundary=True)
    inputs = {"token_ids": ids(2, 7), **SPANS}
    hidden = numpy_of(model.encoder(inputs["token_ids"]))
    around = [
        np.take_along_axis(hidden, SPANS[name][..., None], axis=1)
        for name in ("left_boundaries", "right_boundaries")
    ]
    expected = model.span_boundary_logits(*around, SPANS["span_positions"])
    found = model(inputs)["span_boundary"]
    np.testing.assert_allclose(numpy_of(found), numpy_of(expected), atol=1e-5)


ELECTRA = models.EncoderConfig(24, 32, 64, 4, 2, max_length=16, embedding_dim=16)


def electra() -> models.GeneratorDiscriminator:
    return built(models.GeneratorDiscriminator, ELECTRA, models.generator_config(ELECTRA, 0.5))


@pytest.mark.parametrize(
    ("width", "inner", "heads", "fraction", "expected"),
    # ELECTRA small, base and large: table 6 of the paper.
    [
        (256, 1024, 4, 1 / 4, (64, 256, 1)),
        (768, 3072, 12, 1 / 3, (256, 1024, 4)),
        (1024, 4096, 16, 1 / 4, (256, 1024, 4)),
    ],
)
def test_a_generator_is_as_narrow_as_the_papers(width, inner, heads, fraction, expected):
    config = models.EncoderConfig(30_522, width, inner, heads, 12)
    narrow = models.generator_config(config, fraction)
    assert (narrow.hidden_dim, narrow.feed_forward_dim, narrow.num_heads) == expected
    assert (narrow.num_layers, narrow.embedding_width) == (12, width)


def test_embeddings_are_shared_and_every_weight_counted_once():
    model = electra()
    assert model.generator.encoder.embeddings is model.encoder.embeddings
    assert len({weight.path for weight in model.weights}) == len(model.weights)
    alone = [built(models.PretrainingEncoder, model.generator_config)]
    alone += [built(models.Encoder, model.config)]
    head = 32 * 32 + 32 + 32 + 1
    twice = model.encoder.embeddings.count_params()
    assert model.count_params() == sum(one.count_params() for one in alone) - twice + head


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocab_size", 32), ("embedding_dim", 8), ("max_length", 8), ("num_segments", 0)],
)
def test_embeddings_that_differ_are_refused(field, value):
    other = dataclasses.replace(models.generator_config(ELECTRA, 0.5), **{field: value})
    rejects(f"{field}=.* must be the generator", models.GeneratorDiscriminator, ELECTRA, other)
