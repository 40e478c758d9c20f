"""Every block in every system of encoders: built, trained, saved, loaded again and exported."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.layers.blocks import BLOCKS
from macaron_tf.models import (
    CausalClassifier,
    EncoderClassifier,
    LanguageModel,
    PretrainingEncoder,
)
from macaron_tf.models.generator_discriminator import GeneratorDiscriminator, generator_config
from macaron_tf.models.siamese import SiameseEncoder
from macaron_tf.models.span_reader import EncoderSpanReader
from macaron_tf.models.tagger import EncoderTagger
from macaron_tf.objectives import (
    AuxiliaryLanguageObjective,
    CausalLanguageObjective,
    ClassificationObjective,
    MaskedLanguageObjective,
    MaskingConfig,
    ReplacedTokenObjective,
    SpanBoundaryObjective,
    SpanObjective,
    TaggingObjective,
)
from macaron_tf.objectives.similarity import CosineObjective
from macaron_tf.training.fit_model import FitModel
from tests.harness import numpy_of
from tests.objectives.masking_toy import ragged_rows
from tests.objectives.objective_toy import VOCABULARY, rows, tiny

LENGTH, ROWS = 24, 4
LENGTHS = (20, 5, 17, 9)
IDS = ragged_rows(LENGTHS, LENGTH)
SEGMENTS = np.cumsum(np.roll(IDS == 3, 1, axis=1), axis=1).clip(0, 1).astype("int32")
WEIGHT = np.ones(ROWS, "float32")


def pretrained(make, objective, masking=None, **more):
    """A system whose batches an objective makes out of rows."""
    masking = masking or MaskingConfig()

    def batches():
        return objective.dataset(rows(LENGTHS, **more), masking, VOCABULARY, seed=0)

    return make, objective, batches


def fine_tuned(make, objective, **batch):
    """A system whose batches are rows and their labels."""
    rows_of = {"token_ids": IDS, "weight": WEIGHT, **batch}
    return make, objective, lambda: tf.data.Dataset.from_tensors(rows_of).repeat()


def albert(config):
    return PretrainingEncoder(config, sentence_pair=True)


def electra(config):
    return GeneratorDiscriminator(config, generator_config(config, 0.5))


LANGUAGES = {
    "language_ids": SEGMENTS,
    "position_ids": np.tile(np.arange(LENGTH, dtype="int32") % 10, (ROWS, 1)),
}
PAIRS = {"segment_ids": SEGMENTS, "pair_label": np.array([0, 1, 1, 0], "int32")}
NGRAMS, SPANS = MaskingConfig(choice="ngrams"), MaskingConfig(choice="spans", fate="span")
ELECTRA = MaskingConfig(mask=1.0, random=0.0, round_up=True)
# A change of the encoder; then the network, its objective and its batches.
SYSTEMS = {
    "roberta": ({"num_segments": 0}, pretrained(PretrainingEncoder, MaskedLanguageObjective())),
    "albert": (
        {"sharing": "all", "embedding_dim": 8},
        pretrained(albert, MaskedLanguageObjective(sentence_pair=True), NGRAMS, **PAIRS),
    ),
    "span_bert": (
        {"num_segments": 0},
        pretrained(
            lambda config: PretrainingEncoder(config, span_boundary=True),
            SpanBoundaryObjective(),
            SPANS,
        ),
    ),
    "xlm": (
        {"num_segments": 0, "num_languages": 2},
        pretrained(PretrainingEncoder, MaskedLanguageObjective(), **LANGUAGES),
    ),
    "xlm_causal": (
        {"num_segments": 0, "num_languages": 2, "causal": True},
        pretrained(LanguageModel, CausalLanguageObjective(), **LANGUAGES),
    ),
    "gpt": (
        {"num_segments": 0, "causal": True, "embedding_norm": False},
        pretrained(LanguageModel, CausalLanguageObjective()),
    ),
    "gpt2": (
        {
            "num_segments": 0,
            "causal": True,
            "norm": "pre",
            "embedding_norm": False,
            "scaled_outputs": True,
        },
        pretrained(LanguageModel, CausalLanguageObjective()),
    ),
    "gpt_classification": (
        {"num_segments": 0, "causal": True, "embedding_norm": False},
        fine_tuned(
            lambda config: CausalClassifier(config, 3, symmetric=True),
            AuxiliaryLanguageObjective(3),
            segment_ids=SEGMENTS,
            label=np.array([0, 2, 1, 0], "int32"),
        ),
    ),
    "electra": ({}, pretrained(electra, ReplacedTokenObjective(), ELECTRA)),
    "classification": (
        {},
        fine_tuned(
            lambda config: EncoderClassifier(config, 3),
            ClassificationObjective(3),
            segment_ids=SEGMENTS,
            label=np.array([0, 2, 1, 0], "int32"),
        ),
    ),
    "question_answering": (
        {},
        fine_tuned(
            EncoderSpanReader,
            SpanObjective(),
            segment_ids=SEGMENTS,
            label=np.array([[0, 0], [5, 6], [11, 12], [7, 7]], "int32"),
        ),
    ),
    "tagging": (
        {},
        fine_tuned(
            lambda config: EncoderTagger(config, 5),
            TaggingObjective(5),
            label=np.where(IDS > 4, IDS % 5 + 1, 0).astype("int32"),
        ),
    ),
    "sentence_bert": (
        {},
        fine_tuned(
            SiameseEncoder,
            CosineObjective(0.0, 5.0),
            token_ids=np.stack([IDS, IDS[::-1]], axis=1),
            label=np.array([0.0, 1.0, 4.0, 5.0], "float32"),
        ),
    ),
}
MIXTURE = ("transformer", "gmlp", "swish_rnn")
PAIRINGS = [(system, block) for system in SYSTEMS for block in (*BLOCKS, MIXTURE)]


def check(system: str, block, path) -> None:
    changes, (make, objective, batches) = SYSTEMS[system]
    keras.utils.set_random_seed(1)
    layers = 3 if block == MIXTURE else 2
    network = make(tiny(block=block, num_layers=layers, **changes))
    network.build()
    before = [numpy_of(weight) for weight in network.trainable_weights]
    model = FitModel(network, objective)
    model.compile(keras.optimizers.Adam(1e-2))
    dataset = batches()
    history = model.fit(dataset, steps_per_epoch=3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    moved = [
        np.any(numpy_of(w) != old) for w, old in zip(network.trainable_weights, before, strict=True)
    ]
    unused = {w.path for w, it in zip(network.trainable_weights, moved, strict=True) if not it}
    assert not unused, unused

    batch = next(iter(dataset))
    names = ("token_ids", "segment_ids", "language_ids", "position_ids")
    inputs = {name: batch[name] for name in names if name in batch}
    expected = numpy_of(network.encoder(_flat(inputs)))
    network.save(path / "network.keras")
    loaded = keras.saving.load_model(path / "network.keras")
    for weight, twin in zip(network.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(numpy_of(weight), numpy_of(twin))
    np.testing.assert_array_equal(numpy_of(loaded.encoder(_flat(inputs))), expected)
    specs = {name: tf.TensorSpec((None, LENGTH), tf.int32) for name in inputs}
    encode = tf.function(
        lambda inputs: network.encoder(inputs, training=False), input_signature=[specs]
    )
    archive = tf.Module()
    archive.encoder, archive.encode = network.encoder, encode
    tf.saved_model.save(archive, path / "exported", signatures=encode)
    exported = tf.saved_model.load(path / "exported")
    served = numpy_of(exported.encode(_flat(inputs)))
    np.testing.assert_allclose(served, expected, atol=1e-5)


def _flat(inputs: dict) -> dict:
    """(B, S, L) -> (B S, L): sentences of an example are rows to the encoder."""
    return {name: tf.reshape(ids, (-1, LENGTH)) for name, ids in inputs.items()}


# Each system and each block once here, all pairs in `make test-slow`.
@pytest.mark.parametrize(
    ("system", "block"),
    [(system, (*BLOCKS, MIXTURE)[i % (len(BLOCKS) + 1)]) for i, system in enumerate(SYSTEMS)],
)
def test_a_block_in_a_system(system, block, tmp_path):
    check(system, block, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("system", "block"), PAIRINGS)
def test_every_block_in_every_system(system, block, tmp_path):
    check(system, block, tmp_path)
