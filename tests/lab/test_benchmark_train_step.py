import dataclasses
import json

import keras
import numpy as np
import pytest
import tf_keras

from experiments.lab.benchmarks import encoder_step, keras_encoders, train_step
from experiments.lab.benchmarks.workers import Worker
from macaron_tf.hub.arrays import Arrays, Raw, assign_weights
from macaron_tf.models import PretrainingEncoder

TINY = encoder_step.StepSetting(2, 32, 96, 4, 3, 16, vocab_size=50, dropout=0.0)


TOY = "tests.toys.steps:contenders"
OTHERS = "tests.toys.steps:others"


def test_a_worker_runs_its_contenders_and_counts_their_cpu_time():
    with Worker(TOY, {"hidden_dim": 7}, {}) as worker:
        assert worker.parameters == {"toy": 7}
        assert worker.run("toy", 3) == 1.5
        assert 0 < worker.cpu_seconds < 60


@pytest.mark.parametrize("name", encoder_step.SETTINGS)
def test_blocks_have_equal_matrices(name):
    for config in keras_encoders.block_configs(encoder_step.SETTINGS[name]).values():
        assert 2 * config.feed_forward_dim % (3 * 64) == 0  # no rounding of SwishRNN's width
        assert config.num_layers == encoder_step.SETTINGS[name].num_layers
        assert config.dropout == config.attention_dropout == 0.1
        assert config.feed_forward_dim == {"small": 960}.get(name, 3072)


def test_our_step_learns_and_keras_peers_have_as_many_parameters():
    setting = dataclasses.replace(TINY, num_layers=1)

    def check_learns(contender) -> None:
        first, later = contender.run_steps(1), [contender.run_steps(5) for _ in range(4)][-1]
        assert first == pytest.approx(np.log(TINY.vocab_size), abs=0.1)
        assert later < first - 0.01

    config = keras_encoders.bert_config(setting)
    check_learns(ours := keras_encoders.training_step(setting, config))
    models = keras_encoders.keras_hub_model, keras_encoders.model_garden_model
    for library, make in zip((keras, tf_keras), models, strict=True):
        plain, xla = keras_encoders.peer_contenders(setting, "peer", library, make).values()
        check_learns(plain)
        # No segments.
        assert plain.parameters == xla.parameters == ours.parameters - 2 * TINY.hidden_dim


# The names of an `SdpaEncoder`'s weights.
SDPA_ENCODER = {
    "encoder/embeddings/tokens": "tokens",
    "encoder/embeddings/positions": "positions",
    "encoder/embeddings/segments": Raw("segments.weight"),
    "encoder/embeddings/norm": "norm",
    "block_{}/attention_0/attention/query_key_value": "encoder.layers.{}.self_attn.in_proj",
    "block_{}/attention_0/attention/output": "encoder.layers.{}.self_attn.out_proj",
    "block_{}/attention_0/norm": "encoder.layers.{}.norm1",
    "block_{}/feed_forward_1/feed_forward/inner": "encoder.layers.{}.linear1",
    "block_{}/feed_forward_1/feed_forward/outer": "encoder.layers.{}.linear2",
    "block_{}/feed_forward_1/norm": "encoder.layers.{}.norm2",
    "masked_language/dense": "dense",
    "masked_language/norm": "head_norm",
    "masked_language/bias": Raw("bias"),
}


def test_losses_equal_pytorchs_on_the_same_weights():
    torch = pytest.importorskip("torch")

    from experiments.lab.benchmarks import torch_encoders

    torch.manual_seed(0)
    model = torch_encoders.SdpaEncoder(TINY)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))  # no bias 0, no LayerNorm the identity
    network = PretrainingEncoder(keras_encoders.bert_config(TINY))
    network.build()
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    state = {name.replace("in_proj_", "in_proj."): value for name, value in state.items()}
    assign_weights(network, Arrays(state), SDPA_ENCODER)
    ours = keras_encoders.training_step(TINY, network.config, network)
    theirs = torch_encoders.training_step(TINY, model, model)
    assert ours.parameters == theirs.parameters
    for _ in range(3):  # before the first update, and after AdamW's updates
        assert ours.run_steps(1) == pytest.approx(theirs.run_steps(1), abs=1e-4)


def test_hugging_faces_step_does_the_same_work():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from experiments.lab.benchmarks import torch_encoders

    by_hand = torch_encoders.SdpaEncoder(TINY)
    model = torch_encoders.hugging_face(TINY)
    places = torch.tensor([2, 17, 40])
    ids = torch.from_numpy(encoder_step.random_batch(TINY)["token_ids"]).long()
    step = torch_encoders.training_step(TINY, model, by_hand)
    assert step.parameters == sum(weight.numel() for weight in by_hand.parameters())
    logits = torch_encoders.hugging_face_logits(model, ids, places)
    expected = model(ids).logits.flatten(0, 1)[places]
    torch.testing.assert_close(logits, expected)


def test_a_whole_run_writes_its_report(monkeypatch, tmp_path):
    monkeypatch.setitem(encoder_step.SETTINGS, "small", TINY)
    monkeypatch.setitem(train_step.AGAINST, "peers", TOY)
    monkeypatch.setitem(train_step.PEERS, "torch", OTHERS)
    rounds = ["--rounds", "2", "--steps", "2", "--out", str(tmp_path)]
    assert train_step.main(["--against", "peers", "--peers", "torch", *rounds]) == 0
    written = json.loads((tmp_path / "results.json").read_text())
    rows = written["rows"]
    assert [row["name"] for row in rows] == ["toy", "other"]
    assert rows[0]["units"] == 2 * 3 * 16
    assert rows[1]["ratio"] == [1.0, 1.0, 1.0]
    assert {"python", "numpy", "tensorflow"} <= {*written["machine"]["versions"]}
    text = (tmp_path / "results.md").read_text()
    assert "| toy |" in text and "threads per contender: " in text
