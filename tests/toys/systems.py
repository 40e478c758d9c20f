"""Tiny versions of every training system: a network with a choice of blocks, and its batches."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from macaron_tf import models, objectives
from macaron_tf.layers.blocks import BLOCKS
from macaron_tf.models import Elmo
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from tests.harness import normal
from tests.toys.objectives import VOCABULARY, V, ragged_rows, rows

# Block types of successive layers: `ANY` lists all blocks, `DECODING` those that can decode step by
# step, and `APART` those whose tokens interact only in attention.
MIXTURE = ("transformer", "gmlp", "swish_rnn")
ANY = (*BLOCKS, MIXTURE)
DECODING = ("transformer", "macaron", "swish_rnn", ("swish_rnn", "macaron"))
APART = ("transformer", "macaron", ("macaron", "transformer"))
INPUTS = ("token_ids", "segment_ids", "language_ids", "position_ids")


class System(NamedTuple):
    """A tiny training system.

    Attributes:
        network: function that builds the network from a block name, or from a tuple with a block
            name for each layer.
        objective: training objective.
        batches: function that returns an endless dataset of batches.
        outputs: function from a built network and its inputs to the outputs that tests compare.
        inputs: names of the batch features that `outputs` reads.
        blocks: arguments of `network` to test.
    """

    network: Callable[[str | tuple[str, ...]], keras.Model]
    objective: Callable
    batches: Callable[[], tf.data.Dataset]
    outputs: Callable
    inputs: tuple[str, ...] = INPUTS
    blocks: tuple[str | tuple[str, ...], ...] = ANY


LENGTH, ROWS = 24, 4
LENGTHS = (20, 5, 17, 9)
IDS = ragged_rows(LENGTHS, LENGTH)
SEGMENTS = np.cumsum(np.roll(IDS == 3, 1, axis=1), axis=1).clip(0, 1).astype("int32")
WEIGHT = np.ones(ROWS, "float32")


def config(family: str, block, **changes):
    """Returns a configuration of the catalog in tiny sizes, without dropout.

    A name of a block stands for 2 layers, and a tuple for 3. An encoder-decoder has one less.
    """
    depth = 2 if isinstance(block, str) else 3
    if family in ("t5", "bart", "transformer"):
        layers = dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), depth - 1)
    else:
        layers = {"num_layers": depth}
    sizes = {"vocab_size": V, "hidden_dim": 16, "feed_forward_dim": 32, "num_heads": 2}
    drops = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    scale = {} if family in ("t5", "transformer") else {"initializer_range": 0.3}
    given = {**sizes, **drops, **layers, **scale, **changes}
    return models.catalog.config(f"{family}_tiny", block=block, max_length=LENGTH, **given)


def encode(network, inputs):
    """Returns the encoder's output; `(B, S, L)` sentences become `(B S, L)` rows."""
    flat = {name: tf.reshape(ids, (-1, LENGTH)) for name, ids in inputs.items()}
    return network.encoder(flat, training=False)


def encoder(family, make, objective, batches, **changes) -> System:
    """Returns a system whose network is an encoder with a head, which `make` builds."""
    return System(lambda block: make(config(family, block, **changes)), objective, batches, encode)


def pretrained(family, make, objective, changes=None, **more) -> System:
    """Returns a pre-training system, whose batches the objective makes from token rows."""

    def batches():
        return objective.dataset(rows(LENGTHS, **more), VOCABULARY, seed=0)

    return encoder(family, make, objective, batches, **(changes or {}))


def fine_tuned(make, objective, family="bert", **batch) -> System:
    """Returns a system whose batches are token rows and their labels."""
    features = {"token_ids": IDS, "weight": WEIGHT, **batch}
    return encoder(family, make, objective, tf.data.Dataset.from_tensors(features).repeat)


def remembering(family, make, objective, outputs, blocks, names=("token_ids",)) -> System:
    """Returns a system with Transformer-XL memory.

    Each row continues the same row of the previous batch, except row 1, where a new text begins.
    """
    features = {
        "token_ids": IDS,
        "segment_ids": SEGMENTS,
        "previous_ids": IDS,
        "starts": np.arange(ROWS) == 1,
    }

    def network(block):
        model = make(config(family, block), memory_length=10)
        model.build()
        model.create_memory(ROWS)
        return model

    def batches():
        endless = tf.data.Dataset.from_tensors(features).repeat()
        return objective.dataset(endless, VOCABULARY, seed=0)

    return System(network, objective, batches, outputs, names, blocks)


def encoder_decoder(family, objective, batches, vocab_size=V) -> System:
    """Returns a system whose network is a tiny encoder-decoder."""

    def network(block):
        return models.EncoderDecoder(config(family, block, vocab_size=vocab_size))

    return System(network, objective, batches, scores, ("source", "target"), DECODING)


def corrupting(family, objective, sentinel_rows=0) -> System:
    """Returns a system whose encoder-decoder learns to restore corrupted text."""

    def batches():
        return objective.dataset(rows(LENGTHS), VOCABULARY, seed=0)

    return encoder_decoder(family, objective, batches, V + sentinel_rows)


def without_blocks(make, objective, feature, mixers=(None,), **batch) -> System:
    """Returns a system without blocks, whose network reads only the feature `feature`."""
    batches = tf.data.Dataset.from_tensors(batch).repeat
    return System(
        make,
        objective,
        batches,
        lambda network, inputs: network(inputs[feature]),
        (feature,),
        mixers,
    )


def scores(network, inputs):
    """Returns a model's logits for all tokens."""
    return network(inputs, training=False)


ELMO = models.ElmoConfig(
    vocab_size=11,
    lstm_dim=12,
    projection_dim=5,
    clip=0.4,
    dropout=0.0,
    max_characters=8,
    char_dim=4,
    filters=((1, 3), (2, 4), (3, 6)),
)
READER = models.WordEncoderConfig(ELMO, 6, 5, 4, ((2, 3),), max_characters=8, dropout=0.0)


def words(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns random ids of words with 1 to 6 characters: `(*shape, 8)`, padded with 0."""
    rng = np.random.default_rng(seed)
    characters = rng.integers(1, 261, (*shape, 8)).astype("int32")
    characters[np.arange(8) >= rng.integers(1, 7, shape)[..., None]] = 0
    return characters


LANGUAGES = {
    "language_ids": SEGMENTS,
    "position_ids": np.tile(np.arange(LENGTH, dtype="int32") % 10, (ROWS, 1)),
}
PAIRS = {"segment_ids": SEGMENTS, "pair_label": np.array([0, 1, 1, 0], "int32")}
MASKED, CAUSAL = objectives.MaskedLanguageObjective(), objectives.CausalLanguageObjective()
NGRAMS = objectives.MaskingConfig(choice="ngrams")
SPANS = objectives.MaskingConfig(choice="spans", fate="span")
SYSTEMS = {
    "roberta": pretrained("roberta", models.PretrainingEncoder, MASKED),
    "modern_bert": pretrained(
        "modern_bert",
        models.PretrainingEncoder,
        MASKED,
        {"local_rotary_base": 100.0, "attention_windows": (0, 4)},
    )._replace(blocks=DECODING),
    "albert": pretrained(
        "albert",
        lambda config: models.PretrainingEncoder(config, sentence_pair=True),
        objectives.MaskedLanguageObjective(masking=NGRAMS, sentence_pair=True),
        {"embedding_dim": 8},
        **PAIRS,
    ),
    "span_bert": pretrained(
        "span_bert",
        lambda config: models.PretrainingEncoder(config, span_boundary=True),
        objectives.SpanBoundaryObjective(masking=SPANS),
    ),
    "xlm": pretrained("xlm", models.PretrainingEncoder, MASKED, **LANGUAGES),
    "prefix_lm": pretrained(
        "bert", models.PretrainingEncoder, objectives.PrefixLanguageObjective()
    )._replace(blocks=DECODING),
    "gpt": pretrained("gpt", models.LanguageModel, CAUSAL),
    "gpt2": pretrained("gpt2", models.LanguageModel, CAUSAL),
    "gpt_classification": fine_tuned(
        lambda config: models.CausalClassifier(config, 3, 0.0, symmetric=True),
        objectives.AuxiliaryLanguageObjective(3),
        "gpt",
        segment_ids=SEGMENTS,
        label=np.array([0, 2, 1, 0], "int32"),
    ),
    "transformer_xl": remembering(
        "transformer_xl",
        models.SegmentLanguageModel,
        objectives.SegmentLanguageObjective(),
        scores,
        DECODING,
    ),
    "xlnet": remembering(
        "xlnet",
        models.TwoStreamModel,
        objectives.PermutationObjective(),
        lambda network, inputs: scores(network, inputs)["masked_language"],
        APART,
        ("token_ids", "segment_ids", "order", "masked_positions"),
    ),
    "t5": corrupting("t5", objectives.SpanCorruptionObjective(), SENTINEL_ROWS),
    "bart": corrupting("bart", objectives.DenoisingObjective()),
    "electra": pretrained(
        "electra",
        lambda config: models.GeneratorDiscriminator(config, models.generator_config(config, 0.5)),
        objectives.ReplacedTokenObjective(),
    ),
    "classification": fine_tuned(
        lambda config: models.EncoderClassifier(config, 3, 0.0),
        objectives.ClassificationObjective(3),
        segment_ids=SEGMENTS,
        label=np.array([0, 2, 1, 0], "int32"),
    ),
    "question_answering": fine_tuned(
        models.EncoderQuestionAnswering,
        objectives.SpanObjective(),
        segment_ids=SEGMENTS,
        label=np.array([[0, 0], [5, 6], [11, 12], [7, 7]], "int32"),
    ),
    "tagging": fine_tuned(
        lambda config: models.EncoderTokenClassifier(config, 5, 0.0),
        objectives.TaggingObjective(5),
        label=np.where(IDS > 4, IDS % 5 + 1, 0).astype("int32"),
    ),
    "sentence_bert": fine_tuned(
        models.SiameseEncoder,
        objectives.CosineObjective(0.0, 5.0),
        token_ids=np.stack([IDS, IDS[::-1]], axis=1),
        label=np.array([0.0, 1.0, 4.0, 5.0], "float32"),
    ),
    "sentence_classes": fine_tuned(
        lambda config: models.SiameseEncoder(config, num_classes=3),
        objectives.PairClassificationObjective(3),
        token_ids=np.stack([IDS, IDS[::-1]], axis=1),
        label=np.array([0, 1, 2, 0], "int32"),
    ),
    "triplets": fine_tuned(
        models.SiameseEncoder,
        objectives.TripletObjective(),
        token_ids=np.stack([IDS, IDS[::-1], IDS + 1], axis=1),
    ),
    "regression": fine_tuned(
        lambda config: models.EncoderClassifier(config, 1, 0.0),
        objectives.ClassificationObjective(1),
        label=np.array([0.0, 2.0, 1.0, 0.5], "float32"),
    ),
    "translation": encoder_decoder(
        "transformer",
        objectives.TranslationObjective(),
        tf.data.Dataset.from_tensors({"source": IDS, "target": IDS[::-1, 1:]}).repeat,
    ),
    "elmo": without_blocks(
        lambda _: models.Elmo(ELMO),
        objectives.BidirectionalLanguageObjective(),
        "characters",
        characters=words(ROWS, 6),
        words=np.arange(ROWS * 6, dtype="int32").reshape(ROWS, 6) % 11,
    ),
    "tcn": without_blocks(
        lambda mixer: models.TemporalModel(models.TemporalConfig(5, (6,), mixer, input_dim=4)),
        objectives.SequenceObjective("bernoulli"),
        "inputs",
        ("tcn", "lstm", "gru", "rnn"),
        inputs=normal(ROWS, 7, 4),
        targets=(normal(ROWS, 7, 5, seed=1) > 0).astype("float32"),
        weight=np.float32(np.arange(7) < np.array([[7], [3], [5], [1]])),
    ),
    "word_tagging": without_blocks(
        lambda _: models.EncoderTokenClassifier(READER, 4, 0.0),
        objectives.TaggingObjective(4),
        "token_ids",
        token_ids=words(ROWS, 6),
        label=1 + words(ROWS, 6)[:, :, 1] % 4,
    ),
}


def drawn_elmo(**changes) -> Elmo:
    """Returns a model with random weights large enough that clipping matters."""
    model = Elmo(dataclasses.replace(ELMO, **changes))
    model.build()
    model.set_weights([0.6 * normal(*w.shape, seed=i) for i, w in enumerate(model.weights)])
    return model
