"""BART's translation: a source of another vocabulary through an encoder of its own."""

import numpy as np
import pytest
from keras import ops

from macaron_tf.models import catalog
from macaron_tf.models.encoder_decoder import first_stage_variables
from tests.harness import ids

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def small(name="bart_tiny", **options):
    shapes = {"hidden_dim": 16, "feed_forward_dim": 48, "num_heads": 2, "num_encoder_layers": 2}
    given = {"num_source_layers": 2, "source_vocab_size": 40, "num_decoder_layers": 1, **options}
    return catalog.build(name, vocab_size=24, **shapes, **NO_DROPOUT, **given)


@pytest.mark.parametrize("name", ["bart_tiny", "t5_tiny"])
@pytest.mark.parametrize("block", ["transformer", "macaron", "swish_rnn"])
def test_its_output_stands_where_the_tokens_embeddings_would(name, block):
    model = small(name, block=block)
    source, target = ids(2, 7, vocab_size=40), ids(2, 5)
    source[-1, 4:] = 0
    read = model.source_encoder({"token_ids": source})
    x = model.source_embeddings(source, vectors=read)
    expected = model.encoder(x, mask=ops.not_equal(source, 0))
    np.testing.assert_allclose(np.asarray(model.encode(source)), np.asarray(expected), atol=1e-6)
    logits = model({"source": source, "target": target})
    assert tuple(logits.shape) == (2, 5, 24)
    # Cached decoding reads the source the same way.
    context, cache = model.init_decode(source, 1, 5)
    for t in range(5):
        step, cache = model.decode_step(target[:, t : t + 1], t, context, cache)
        np.testing.assert_allclose(np.asarray(step[:, 0]), np.asarray(logits[:, t]), atol=1e-4)


def test_without_it_the_model_has_no_other_weights():
    assert small(num_source_layers=0).source_encoder is None
    plain, more = small(num_source_layers=0), small()
    own = {id(weight) for weight in more.source_encoder.weights}
    rest = [tuple(weight.shape) for weight in more.weights if id(weight) not in own]
    assert rest == [tuple(weight.shape) for weight in plain.weights]
    assert len(own) == len(more.weights) - len(plain.weights)


@pytest.mark.parametrize("block", ["transformer", "macaron"])
def test_the_first_stage_is_the_papers(block):
    model = small(block=block)
    rest = [
        variable
        for variable in first_stage_variables(model)
        if "source_encoder" not in variable.path
    ]
    assert len(model.source_encoder.trainable_variables) == len(first_stage_variables(model)) - len(
        rest
    )
    tables, (kernel, bias) = rest[:2], rest[2:]
    assert [tuple(table.shape) for table in tables] == [(256, 16), (256, 16)]
    assert tuple(kernel.shape) == (16, 48) and tuple(bias.shape) == (48,)
    first, second = ({id(v) for v in model.encoder.blocks[n].trainable_variables} for n in range(2))
    assert {id(kernel), id(bias)} <= first - second
