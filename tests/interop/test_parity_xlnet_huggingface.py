"""XLNet against Hugging Face (PyTorch): content stream, permutation masks, both streams, memory."""

import numpy as np
import pytest

from macaron_tf.errors import UserError
from macaron_tf.interop import read_xlnet
from tests.harness import numpy_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

L, B, V = 9, 2, 29
SHAPES = {"vocab_size": V, "d_model": 32, "d_inner": 48, "n_layer": 3, "n_head": 4, "mem_len": 6}


def make(folder, name="XLNetLMHeadModel", **options):
    torch.manual_seed(1)
    config = transformers.XLNetConfig(**{**SHAPES, "initializer_range": 0.3, **options})
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():  # what starts at 0 or 1 too
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder)
    return model


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, V, (B, L))
    order = np.full((B, L), -1)
    positions = np.array([[1, 4, 6], [0, 5, 8]])
    for row in range(B):
        order[row, positions[row]] = rng.permutation(3)
    segment_ids = (np.arange(L) > np.array([[4], [6]])).astype("int32")
    return {
        "token_ids": ids.astype("int32"),
        "segment_ids": segment_ids,
        "order": order.astype("int32"),
        "masked_positions": positions.astype("int32"),
    }


def hidden_states(theirs, read, batch, **more):
    with torch.no_grad():
        return theirs(
            input_ids=torch.tensor(read.ids[batch["token_ids"]]),
            token_type_ids=torch.tensor(batch["segment_ids"]),
            **more,
        )


@pytest.mark.parametrize(("options", "padded"), [({}, 0), ({"clamp_len": 4}, 0), ({}, 3)])
def test_the_content_stream_is_the_encoder_s_and_nobody_sees_padding(tmp_path, options, padded):
    theirs = make(tmp_path, "XLNetModel", **options)
    read, batch = read_xlnet(tmp_path), drawn()
    batch["token_ids"][1, L - padded :] = 0
    real = batch["token_ids"] != 0
    mask = torch.tensor(real.astype("float32"))
    expected = hidden_states(theirs, read, batch, attention_mask=mask).last_hidden_state.numpy()
    inputs = {name: batch[name] for name in ("token_ids", "segment_ids")}
    found = numpy_of(read.network.encoder(inputs))
    np.testing.assert_allclose(found[real], expected[real], atol=1e-4)


def test_both_streams_with_a_permutation_and_a_memory(tmp_path):
    theirs = make(tmp_path)
    read = read_xlnet(tmp_path)
    mems, past = None, read.network.init_memory(B)
    for seed in range(3):  # the second and third segment look back
        batch = drawn(seed)
        order, positions = batch["order"], batch["masked_positions"]
        # Theirs: 1 where i may not see j; a content always sees itself.
        hidden = order[:, None, :] >= order[:, :, None]
        hidden &= order[:, None, :] >= 0
        mapping = np.eye(L, dtype="float32")[positions]  # (B, P, L)
        found = hidden_states(
            theirs,
            read,
            batch,
            perm_mask=torch.tensor(hidden.astype("float32")),
            target_mapping=torch.tensor(mapping),
            mems=mems,
            use_mems=True,
            output_hidden_states=True,
        )
        outputs = read.network({**batch, "memory": past})
        mems, past = found.mems, outputs["memory"]
        content, query = found.hidden_states[-2:]  # of the last layer
        np.testing.assert_allclose(numpy_of(outputs["content"]), content.numpy(), atol=2e-5)
        np.testing.assert_allclose(numpy_of(outputs["query"]), query.numpy(), atol=2e-5)
        logits = numpy_of(outputs["masked_language"])[..., : len(read.ids)]
        np.testing.assert_allclose(logits, found.logits.numpy()[..., read.ids], atol=5e-5)
        scores = numpy_of(outputs["masked_language"])
        assert (scores[..., len(read.ids) :] < -1e3).all()


@pytest.mark.parametrize(
    ("options", "reason"), [({"attn_type": "uni"}, "attn_type"), ({"bi_data": True}, "bi_data")]
)
def test_what_has_no_place_in_our_model_is_refused(options, reason, tmp_path):
    make(tmp_path, "XLNetModel", **options)
    with pytest.raises(UserError, match=f"{reason}="):
        read_xlnet(tmp_path)
