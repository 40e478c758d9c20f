"""Every block in every training system is built, trained, saved, loaded and exported."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.training.fit_model import FitModel
from tests.harness import check_checkpoint, check_model, numpy_of
from tests.toys.marks import slow, thorough
from tests.toys.systems import SYSTEMS

# `make test` runs one: tests/objectives trains every system, and tests/models checks the models.
FIRST = [("gpt2", "swish_rnn")]
LATER = [("t5", "swish_rnn")]
EVERY = [(name, block) for name, system in SYSTEMS.items() for block in system.blocks]
OTHERS = [pairing for pairing in EVERY if pairing not in (*FIRST, *LATER)]


@pytest.mark.parametrize(("name", "block"), [*FIRST, *thorough(*LATER), *slow(*OTHERS)])
def test_a_block_in_a_system(name, block, tmp_path):
    system = SYSTEMS[name]
    keras.utils.set_random_seed(1)
    network = system.network(block)
    if not network.built:
        network.build()
    before = [numpy_of(weight) for weight in network.trainable_weights]
    model = FitModel(network, system.objective)
    model.compile(keras.optimizers.Adam(1e-2))
    dataset = system.batches()
    history = model.fit(dataset, steps_per_epoch=3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    after = zip(network.trainable_weights, before, strict=True)
    unused = [weight.path for weight, old in after if np.all(numpy_of(weight) == old)]
    assert not unused, unused

    batch = next(iter(dataset))
    given = {name: x for name, x in batch.items() if name in (network.input_names or batch)}
    if not {"token_ids", "source"} & batch.keys():
        given = batch[system.inputs[0]]
    check_model(network, given, tmp_path)
    check_checkpoint(network, lambda network: network(given), tmp_path)
    inputs = {name: batch[name] for name in system.inputs if name in batch}
    expected = numpy_of(system.outputs(network, inputs))
    specs = {name: tf.TensorSpec((None, *ids.shape[1:]), ids.dtype) for name, ids in inputs.items()}
    archive = tf.Module()
    archive.weights = [weight.value for weight in network.weights]
    run = functools.partial(system.outputs, network)
    archive.run = tf.function(run, [specs], autograph=False)
    tf.saved_model.save(archive, tmp_path / "exported", signatures=archive.run)
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(numpy_of(exported.run(inputs)), expected, atol=1e-5)
