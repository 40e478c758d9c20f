"""T5 and BART against Hugging Face's (PyTorch), with their weights."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.decoding import BeamSearchConfig, translate_ids
from macaron_tf.errors import UserError
from macaron_tf.interop.marian import read_bart
from macaron_tf.interop.t5 import read_t5, read_t5_state

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, LENGTH = 60, 12


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def shaken(model, scale=0.3):
    """The model with other than its first numbers in every place, which are drawn by `seeded`."""
    torch.manual_seed(0)
    model.eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(scale * torch.randn(weight.shape))
    return model


def t5(gated: bool, **options):
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=32,
        d_kv=6,
        d_ff=48,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
        decoder_start_token_id=0,
        **options,
    )
    model = transformers.T5ForConditionalGeneration(config)
    if gated:  # 1.1's output is a matrix of its own
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCAB, 32))
    # Unscaled products in the attention: at 0.3 theirs in float32 is 1.3e-4 from theirs in float64.
    return shaken(model, 0.15)


def bart(**options):
    config = transformers.BartConfig(
        vocab_size=VOCAB,
        d_model=32,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=20,
        **options,
    )
    model = shaken(transformers.BartForConditionalGeneration(config))
    model.final_logits_bias.normal_()
    return model


def sources(our_size, batch=5, length=15):
    """Our ids, each row an EOS and padding at its end."""
    rng = np.random.default_rng(0)
    rows = np.zeros((batch, length), np.int32)
    for b in range(batch):
        real = length - 1 - b % 3
        rows[b, :real] = rng.integers(4, our_size, real)
        rows[b, real] = 3
    return rows


def their_logits(model, ids, source, target):
    """Their scores of our ids, given rows of ours."""
    with torch.no_grad():
        found = model(
            input_ids=torch.tensor(ids[source]),
            attention_mask=torch.tensor(source != 0).long(),
            decoder_input_ids=torch.tensor(ids[target]),
            use_cache=False,
        )
    return found.logits.numpy()[..., ids]


@pytest.mark.parametrize("system", ["t5", "t5_1_1", "bart"])
def test_logits_and_greedy_decoding_agree(system, tmp_path):
    if system == "t5_1_1":
        theirs = t5(gated=True)
        state = {name: value.detach().numpy() for name, value in theirs.state_dict().items()}
        ours, ids = read_t5_state(state, theirs.config.to_dict())
        assert not ours.config.tied and not ours.config.scaled_logits
    else:
        theirs = t5(gated=False) if system == "t5" else bart()
        theirs.save_pretrained(tmp_path)
        ours, ids = (read_t5 if system == "t5" else read_bart)(tmp_path)
    special = [1, 3, 2, 2] if system == "bart" else [0, 2, 0, 1]
    np.testing.assert_array_equal(ids[:4], special)

    source = sources(len(ids))
    target = np.random.default_rng(1).integers(4, len(ids), (len(source), LENGTH))
    target[:, 0] = 2
    expected = their_logits(theirs, ids, source, target)
    logits = np.asarray(ours({"source": source, "target": target}, training=False))
    assert np.abs(expected).max() > 1
    print(system, "greatest difference of logits", np.abs(logits - expected).max())
    np.testing.assert_allclose(logits, expected, atol=3e-5)

    # Greedy: ours cached, theirs the whole model again at every step; PAD and BOS never.
    greedy = BeamSearchConfig(beam_size=1, max_length_ratio=0.0, max_length_offset=LENGTH)
    found = translate_ids(ours, tf.constant(source), greedy)["ids"].numpy()[:, 0]
    taken = np.full((len(source), 1), 2)
    for _ in range(LENGTH - 1):
        scores = their_logits(theirs, ids, source, taken)[:, -1]
        scores[:, [0, 2]] = -np.inf
        taken = np.concatenate([taken, scores.argmax(-1)[:, None]], axis=1)
    for ours_row, their_row in zip(found, taken[:, 1:], strict=True):
        length = min(int((ours_row != 0).sum()), LENGTH - 1)
        np.testing.assert_array_equal(ours_row[:length], their_row[:length])


def test_what_has_no_place_in_our_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="relative_attention_num_buckets=16: only 32"):
        read_t5_state(
            {"shared.weight": np.zeros((60, 32))},
            {**t5(False).config.to_dict(), "relative_attention_num_buckets": 16},
        )
    with pytest.raises(UserError, match="has no shared.weight"):
        read_t5_state({}, t5(False).config.to_dict())
    bart().config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="only 't5' can be read"):
        read_t5(tmp_path)
