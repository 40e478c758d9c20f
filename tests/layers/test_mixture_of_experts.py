"""Tests of `MixtureOfExperts` against its formula and Mixtral, and of its loss in training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.layers import FeedForward, MixtureOfExperts
from macaron_tf.models import EncoderConfig
from macaron_tf.objectives import PRETRAINING, CausalLanguageObjective
from macaron_tf.training import TrainingConfig, build_fit_model
from tests.harness import ids, normal, numpy_of, randomized, rejects, softmax

D, F, E = 8, 6, 4
MASK = np.arange(5)[None] < np.array([[5], [3]])


@pytest.mark.parametrize("gated", [False, True])
def test_a_token_gets_the_weighted_outputs_of_its_experts(gated):
    options = {"activation": "silu", "gated": gated}
    layer, x = randomized(MixtureOfExperts(F, E, **options), (2, 5, D)), normal(2, 5, D)
    probabilities = softmax(x @ numpy_of(layer.router.kernel))
    expected = np.zeros_like(x)
    for index in range(E):
        expert = FeedForward(F, use_bias=False, **options)
        expert.build(x.shape)
        expert.set_weights([numpy_of(layer.inner)[index], numpy_of(layer.outer)[index]])
        chosen = np.argsort(-probabilities, axis=-1)[..., :2]
        largest = np.take_along_axis(probabilities, chosen, axis=-1)
        weight = np.where((chosen == index).any(-1), probabilities[..., index], 0) / largest.sum(-1)
        expected += weight[..., None] * numpy_of(expert(x))
    np.testing.assert_allclose(numpy_of(layer(x)), expected, atol=1e-5)
    assert not layer.losses
    layer(x, mask=MASK, training=True)
    counts = (chosen[..., None] == np.arange(E)).sum(-2)
    loss = 0.01 * E * counts[MASK].mean(0) @ probabilities[MASK].mean(0)
    np.testing.assert_allclose(layer.losses, [loss], rtol=1e-5)


def test_experts_are_initialized_one_by_one():
    layer = MixtureOfExperts(64, E)
    layer.build((None, None, 64))
    limit = np.sqrt(6 / (64 + 64))  # of Glorot's initializer for one expert
    for kernel in (numpy_of(layer.inner), numpy_of(layer.outer)):
        assert 0.95 * limit < np.abs(kernel).max() <= limit
        assert len(np.unique(kernel[:, 0, 0])) == E


def test_a_token_needs_enough_experts():
    rejects("experts_per_token=5 exceeds 4 experts", MixtureOfExperts, F, E, 5)
    sizes = {"num_experts": 1, "experts_per_token": 2}
    rejects("num_experts=1 is below experts_per_token", EncoderConfig, 8, 8, 8, 2, 1, **sizes)


def fitted(remat: bool, router_loss: float) -> tuple[dict, list[np.ndarray]]:
    keras.utils.set_random_seed(1)
    sizes = {"num_experts": E, "router_loss": router_loss, "remat": remat}
    config = EncoderConfig(24, 16, 32, 2, 2, causal=True, norm="pre", **sizes)
    network = CausalLanguageObjective().network(config)
    network.build()
    training = TrainingConfig(max_steps=2, warmup_steps=1)
    model = build_fit_model(network, CausalLanguageObjective(), training)
    rows = tf.data.Dataset.from_tensors({"token_ids": ids(2, 9, vocab_size=24)}).repeat(2)
    return model.fit(rows, verbose=0).history, network.get_weights()


@pytest.mark.thorough
def test_the_loss_counts_in_training_also_with_remat():
    history, weights = fitted(False, 0.5)
    # The least loss of a mixture is 2, the number of experts per token, and there are two.
    assert 0.9 * 0.5 * 4 < history["loss"][0] - history["nll"][0] < 0.5 * 4 * E
    again, same = fitted(True, 0.5)
    np.testing.assert_allclose(again["loss"], history["loss"], rtol=1e-6)
    for one, other in zip(weights, same, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    without, others = fitted(False, 0.0)
    np.testing.assert_allclose(without["loss"], without["nll"], rtol=1e-6)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(weights, others, strict=True))


def test_a_step_counts_its_own_losses():
    """A Transformer-XL is trained by a method other than `__call__`."""
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "positions": "transformer_xl"}
    config = EncoderConfig(24, 16, 32, 2, 2, causal=True, num_experts=E, **plain)
    network = PRETRAINING["segment_language"]().network(config)
    network.build()

    def objective(network, batch, training):
        network.with_memory(batch, network.init_memory(2), training=training)
        return {"loss_sum": tf.constant(0.0), "weight": tf.constant(1.0)}

    model = build_fit_model(network, objective, TrainingConfig(max_steps=2, warmup_steps=1))
    batch = {"token_ids": ids(2, 9, vocab_size=24)}
    losses = [float(model.sums(batch, "train")[0]) for _ in range(2)]
    assert losses[0] > 0
    assert losses[0] == losses[1]


@pytest.mark.thorough
def test_parity_with_mixtral():
    torch = pytest.importorskip("torch")
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    sizes = {"hidden_size": D, "intermediate_size": F, "num_local_experts": E}
    theirs = mixtral.MixtralSparseMoeBlock(mixtral.MixtralConfig(**sizes)).eval()
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    arrays = {name: value.detach().numpy() for name, value in theirs.named_parameters()}
    layer = MixtureOfExperts(F, E, router_loss=1.0, activation="silu", gated=True)
    layer.build((None, None, D))
    layer.router.kernel.assign(arrays["gate.weight"].T)
    layer.inner.assign(arrays["experts.gate_up_proj"].transpose(0, 2, 1))
    layer.outer.assign(arrays["experts.down_proj"].transpose(0, 2, 1))
    x = normal(2, 5, D)
    expected = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(numpy_of(layer(x, mask=MASK, training=True)), expected, atol=1e-5)
    logits, mask = theirs.gate(torch.tensor(x))[0], torch.tensor(MASK)
    loss = mixtral.load_balancing_loss_func((logits,), E, 2, mask)
    np.testing.assert_allclose(layer.losses, [loss.item()], rtol=1e-5)
