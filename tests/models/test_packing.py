"""Packed rows: without padding in memory, and of several documents each."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf import models
from macaron_tf.data.corpus.packing import pack_rows, token_ids_of
from macaron_tf.data.corpus.reading import with_documents
from macaron_tf.layers.packing import packing_scope
from macaron_tf.models.segment_memory import SegmentLanguageModel
from macaron_tf.objectives import CausalLanguageObjective, MaskedLanguageObjective
from macaron_tf.settings import SettingError
from macaron_tf.special import Special
from macaron_tf.text.token_rows import TokenRows
from tests.harness import built, ids, numpy_of, rejects
from tests.toys.marks import thorough
from tests.toys.objectives import CLS, SEP, VOCABULARY, V, loss_and_gradients, tiny

ROW_LENGTHS = (5, 0, 7, 1)


def padded_batch(lengths=ROW_LENGTHS, width=7):
    rng = np.random.default_rng(0)
    real = np.arange(width) < np.array(lengths)[:, None]
    ids = rng.integers(1, 30, real.shape) * real
    segments = rng.integers(0, 2, real.shape) * real
    return {"token_ids": ids.astype("int32"), "segment_ids": segments.astype("int32")}, real


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"norm": "pre", "block": "macaron", "positions": "sinusoidal"},
        {"block": "swish_rnn", "relative_bias": "per_layer", "rnn_step_sizes": (2,)},
        {"block": "gmlp"},
        {"block": "amlp"},
        {"positions": "transformer_xl"},
        {"embedding_dim": 6, "sharing": "all", "gated": True},
        {"adaptive_cutoffs": (10, 20), "num_segments": 0},
        {"scheme": "tokens by heun, channels/2, channels/2 again"},
        {"positions": "rotary", "num_kv_heads": 1, "attention_windows": (0, 4)},
    ],
    ids=str,
)
def test_packed_encoders_equal_padded_ones(options):
    config = models.EncoderConfig(30, 8, 12, 2, 2, max_length=7, initializer_range=0.5, **options)
    encoder = models.Encoder(config)
    inputs, real = padded_batch()
    if not config.num_segments:
        del inputs["segment_ids"]
    expected = np.array(encoder(inputs))

    @tf.function(autograph=False, reduce_retracing=True)
    def packed(inputs):
        with packing_scope():
            return encoder(inputs)

    found = packed(inputs).numpy()
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)
    assert not found[~real].any()


def test_a_mask_of_attention_goes_over_the_padded_rows():
    encoder = models.Encoder(models.EncoderConfig(30, 8, 12, 2, 2, initializer_range=0.5))
    inputs, real = padded_batch()
    inputs["attention_mask"] = np.tril(np.ones((4, 7, 7), "int32"))
    expected = np.array(encoder(inputs))
    with packing_scope():
        found = np.array(encoder(inputs))
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


def test_nothing_but_padding_is_nothing():
    encoder = models.Encoder(models.EncoderConfig(30, 8, 12, 2, 2))
    with packing_scope():
        for ids in (np.zeros(shape, "int32") for shape in ((2, 3), (0, 3), (2, 0))):
            found = np.array(encoder(ids))
            assert found.shape == (*ids.shape, 8) and not found.any()
        assert not np.allclose(encoder(np.ones((1, 3), "int32"), training=True), 0.0)


LENGTH = 21
DOCUMENTS = [[*ids(n, seed=n)] for n in (5, 9, 3, 7, 4, 2)]  # three fill a row; three leave padding
SYSTEMS = {
    "attention": {"attention_windows": (0, 4), "num_layers": 2},
    "macaron": {"block": "macaron", "positions": "sinusoidal", "norm": "pre", "remat": True},
    "swish_rnn": {
        "block": "swish_rnn",
        "rnn_step_sizes": (1, 3),
        "num_layers": 2,
        "relative_bias": "shared",
        "positions": "none",
    },
    "rotary": {
        "positions": "rotary",
        "num_kv_heads": 1,
        "scheme": "channels/2, tokens, channels/2",
    },
    "distances": {"positions": "transformer_xl", "scheme": "tokens & channels"},
}


def batches(cross_documents: bool) -> dict:
    """Returns a batch of `DOCUMENTS`.

    With `cross_documents`, two packed rows hold all documents, and tokens have document ids.
    Otherwise, each document has its own row.
    """
    documents = [TokenRows.from_lists([document], V) for document in DOCUMENTS]
    rows = token_ids_of(pack_rows(documents, LENGTH, cross_documents), LENGTH, Special())
    assert len(rows) == (2 if cross_documents else len(DOCUMENTS))
    dataset = tf.data.Dataset.from_tensors({"token_ids": rows})
    dataset = with_documents(dataset, SEP) if cross_documents else dataset
    made = CausalLanguageObjective().dataset(dataset, VOCABULARY, 0)
    return next(iter(made))


def padded(rows) -> np.ndarray:
    return np.array([np.pad(row, (0, LENGTH - len(row))) for row in rows], "int32")


def equal(found, expected):
    """Asserts that arrays agree within 1e-6 plus 1e-5 times the largest absolute expected value.

    The tolerance is not relative to each value, because some gradients are near 0.
    """
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 + 1e-5 * np.abs(other).max())


@pytest.mark.parametrize("system", thorough(*SYSTEMS, but=("swish_rnn",)))
def test_a_language_model_learns_what_it_learns_from_unpacked_rows(system):
    """Packed and unpacked rows give equal losses and gradients if documents are isolated."""
    network = built(models.LanguageModel, tiny(**SYSTEMS[system], causal=True), noise=0.1)
    objective = CausalLanguageObjective(skip_padding=False)
    packed, unpacked = batches(True), batches(False)
    expected = loss_and_gradients(objective, network, unpacked, training=True)
    found = loss_and_gradients(objective, network, packed, training=True)
    equal(found, expected)
    seen = {"token_ids": packed["token_ids"], "labels": packed["labels"]}
    [together] = loss_and_gradients(objective, network, seen)[:1]
    assert abs(together - expected[0]) > 1e-3 * expected[0]


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_encoder_sees_a_document_alone(system):
    """A packed document has the same hidden states, losses and gradients as an unpacked document.

    [SEP] ends each document, and each row has one [CLS].
    """
    options = {**SYSTEMS[system], "attention_windows": (0,)}
    network = built(models.PretrainingEncoder, tiny(**options), noise=0.1)
    alone = [[CLS] * (n % 3 == 0) + one + [SEP] for n, one in enumerate(DOCUMENTS)]
    packed = padded([np.concatenate(alone[:3]), np.concatenate(alone[3:])])
    [batch] = with_documents(tf.data.Dataset.from_tensors({"token_ids": packed}), SEP)
    apart = {"token_ids": padded(alone)}
    hidden = []
    for given in (batch, apart):
        token_ids = np.asarray(given["token_ids"])
        # Each document's last id is guessed.
        places = np.nonzero(token_ids == SEP)[1].reshape(len(token_ids), -1) - 1
        given["masked_positions"] = places
        given["masked_weights"] = np.ones(places.shape, "float32")
        given["masked_labels"] = np.arange(6, 12).reshape(places.shape)
        hidden.append(numpy_of(network.hidden_states(given))[token_ids != 0])
    np.testing.assert_allclose(*hidden, atol=1e-5)
    objective = MaskedLanguageObjective(skip_padding=False)
    equal(*(loss_and_gradients(objective, network, given) for given in (batch, apart)))


def test_what_cannot_keep_documents_apart_says_so():
    given = {"token_ids": ids(2, 6), "document_ids": np.zeros((2, 6), "int32")}
    network = built(models.Encoder, tiny(block="gmlp"))
    with pytest.raises(SettingError, match="GatedMLP mixes packed documents"):
        network(given)
    config = tiny(causal=True, positions="transformer_xl")
    network = built(SegmentLanguageModel, config, memory_length=3)
    rejects("and a memory exclude each other", network.with_memory, given, network.init_memory(2))
