"""Our Transformer against one of KerasHub's layers, with KerasHub's weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from macaron_tf.decoding import BeamSearchConfig, translate_ids
from macaron_tf.errors import UserError
from macaron_tf.interop import copy_keras_hub
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
from tests.harness import ids

keras_hub = pytest.importorskip("keras_hub")

VOCAB, WIDTH, INNER, HEADS, LAYERS = 40, 32, 64, 4, 3


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(0, 0.3, shape).astype("float32")


class KerasHubModel:
    """An encoder-decoder of KerasHub layers, with random weights in every place."""

    def __init__(self, pre_norm: bool):
        options = {"intermediate_dim": INNER, "num_heads": HEADS, "normalize_first": pre_norm}
        self.table = normal(0, VOCAB, WIDTH)
        self.positions = keras_hub.layers.SinePositionEncoding()
        self.encoder = [keras_hub.layers.TransformerEncoder(**options) for _ in range(LAYERS)]
        self.decoder = [keras_hub.layers.TransformerDecoder(**options) for _ in range(LAYERS)]
        self.norms = [keras.layers.LayerNormalization(epsilon=1e-5) for _ in range(2)]
        self.pre_norm = pre_norm
        for layer in self.norms + self.encoder:
            layer.build((None, None, WIDTH))
        for layer in self.decoder:
            layer.build((None, None, WIDTH), (None, None, WIDTH))
        for seed, layer in enumerate(self.encoder + self.decoder + self.norms):
            rng = np.random.default_rng(seed)
            layer.set_weights([w + rng.normal(0, 0.2, w.shape) for w in layer.get_weights()])

    def embed(self, tokens):
        x = ops.take(self.table, tokens, axis=0) * WIDTH**0.5
        return x + self.positions(x)

    def __call__(self, source, target):
        mask = ops.not_equal(source, 0)
        memory, x = self.embed(source), self.embed(target)
        for layer in self.encoder:
            memory = layer(memory, padding_mask=mask)
        memory = self.norms[0](memory) if self.pre_norm else memory
        for layer in self.decoder:
            x = layer(x, memory, encoder_padding_mask=mask)
        x = self.norms[1](x) if self.pre_norm else x
        return np.array(ops.matmul(x, ops.transpose(self.table)))

    def greedy(self, source, length):
        """Argmax of the whole model again at every step; PAD and BOS are never taken."""
        target = np.full((len(source), 1), 2)
        ended = np.zeros(len(source), bool)
        for step in range(length):
            scores = self(source, target)[:, -1]
            scores[:, [0, 2]] = -np.inf
            following = np.where(ended, 0, scores.argmax(-1))
            if step == length - 1:
                following = np.where(ended, 0, 3)
            target = np.concatenate([target, following[:, None]], axis=1)
            ended |= following == 3
        return target[:, 1:]


def our_model(**options):
    model = EncoderDecoder(
        EncoderDecoderConfig(
            VOCAB, WIDTH, INNER, HEADS, LAYERS, LAYERS, block="transformer", **options
        )
    )
    model.build()
    return model


@pytest.mark.parametrize("pre_norm", [True, False])
def test_logits_and_greedy_decoding_agree(pre_norm):
    theirs = KerasHubModel(pre_norm)
    ours = our_model(norm="pre" if pre_norm else "post")
    norms = [norm.get_weights() for norm in theirs.norms] if pre_norm else None
    copy_keras_hub(ours, theirs.table, theirs.encoder, theirs.decoder, norms)

    source, target = ids(6, 11, vocab_size=VOCAB), ids(6, 9, vocab_size=VOCAB, seed=1)
    source[1, 7:] = 0
    source[4, 3:] = 0
    expected = theirs(source, target)
    logits = np.asarray(ours({"source": source, "target": target}, training=False))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits, expected, atol=1e-4)

    config = BeamSearchConfig(beam_size=1, max_length_ratio=0.0, max_length_offset=12)
    found = translate_ids(ours, tf.constant(source), config)["ids"].numpy()[:, 0]
    np.testing.assert_array_equal(found, theirs.greedy(source, 12))


def test_weights_of_another_shape_are_refused():
    theirs = KerasHubModel(pre_norm=False)
    with pytest.raises(UserError, match=r"embedding/table has shape \(40, 32\)"):
        copy_keras_hub(our_model(norm="post"), theirs.table[:9], theirs.encoder, theirs.decoder)
