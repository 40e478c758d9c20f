"""Our Transformer against Hugging Face's MarianMTModel (PyTorch), with its weights."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.decoding import BeamSearchConfig, translate_ids
from macaron_tf.errors import UserError
from macaron_tf.interop import read_marian, read_marian_state

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, LENGTH = 60, 12


def marian(activation="relu", **options):
    """A random MarianMTModel with Marian's own special ids: padding is the decoder's start."""
    config = transformers.MarianConfig(
        vocab_size=VOCAB,
        d_model=32,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        activation_function=activation,
        **{"scale_embedding": True, **options},
        pad_token_id=VOCAB - 1,
        decoder_start_token_id=VOCAB - 1,
        eos_token_id=0,
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" not in name:
                weight.add_(0.2 * torch.randn(weight.shape))
    return model


def sources(our_size, batch=5, length=9):
    """Our ids, each row an EOS and padding at its end."""
    rng = np.random.default_rng(0)
    rows = np.zeros((batch, length), np.int32)
    for b in range(batch):
        real = length - 1 - b % 3
        rows[b, :real] = rng.integers(4, our_size, real)
        rows[b, real] = 3
    return rows


def generate(model, source, ids, **options):
    """Hugging Face's generate on our source ids, its answer in our ids without the start."""
    theirs = torch.tensor(ids[source])
    found = model.generate(
        input_ids=theirs,
        attention_mask=torch.tensor(source != 0).long(),
        do_sample=False,
        max_new_tokens=LENGTH,
        suppress_tokens=[VOCAB - 1],
        **options,
    ).numpy()[:, 1:]
    ours = {int(their): our for our, their in reversed(list(enumerate(ids)))}
    return np.array([[ours[int(token)] for token in row] for row in found])


@pytest.mark.parametrize(
    ("activation", "safe"),
    [("relu", True), ("swish", True), ("swish", False), ("gelu", True), ("gelu_new", True)],
)
def test_logits_and_greedy_decoding_agree(activation, safe, tmp_path):
    theirs = marian(activation)
    theirs.save_pretrained(tmp_path)
    if not safe:
        (tmp_path / "model.safetensors").unlink()
        torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    ours, ids = read_marian(tmp_path)
    np.testing.assert_array_equal(ids[:4], [VOCAB - 1, 1, VOCAB - 1, 0])

    source = sources(len(ids))
    target = np.random.default_rng(1).integers(4, len(ids), (len(source), 7))
    target[:, 0] = 2
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor(ids[source]),
            attention_mask=torch.tensor(source != 0).long(),
            decoder_input_ids=torch.tensor(ids[target]),
        ).logits.numpy()[..., ids]
    logits = np.asarray(ours({"source": source, "target": target}, training=False))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits, expected, atol=1e-4)

    config = BeamSearchConfig(beam_size=1, max_length_ratio=0.0, max_length_offset=LENGTH)
    found = translate_ids(ours, tf.constant(source), config)["ids"].numpy()[:, 0]
    expected = generate(theirs, source, ids, num_beams=1)
    for ours_row, their_row in zip(found, expected, strict=True):
        # At the limit ours must end and theirs just stops.
        length = min(int((ours_row != 0).sum()), LENGTH - 1)
        np.testing.assert_array_equal(ours_row[:length], their_row[:length])
        assert length == LENGTH - 1 or their_row[length - 1] == 3


def test_beam_search_of_a_fixed_length_agrees():
    """What the benchmark times: the same number of steps, and the same best tokens."""
    theirs = marian()
    ours, ids = read_marian_state(
        {name: value.numpy() for name, value in theirs.state_dict().items()},
        theirs.config.to_dict(),
    )
    source = sources(len(ids))
    config = BeamSearchConfig(
        max_length_ratio=0.0, max_length_offset=LENGTH, min_length=LENGTH - 1, length_penalty=0.0
    )
    found = translate_ids(ours, tf.constant(source), config)["ids"].numpy()[:, 0]
    expected = generate(
        theirs, source, ids, num_beams=4, min_new_tokens=LENGTH, forced_eos_token_id=0
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scale_embedding": False}, "scale_embedding=False"),
        ({"activation": "quick_gelu"}, "activation_function='quick_gelu'"),
        ({"d_model": "32"}, "configuration has d_model='32': it must be a whole number"),
        ({"pad_token_id": None}, "has pad_token_id=None"),
        ({"decoder_vocab_size": 70}, "decoder_vocab_size=70"),
    ],
)
def test_what_has_no_place_in_our_model_is_refused(options, reason):
    config = {**marian().config.to_dict(), **options}
    config["activation_function"] = config.pop("activation", "relu")
    with pytest.raises(UserError, match=reason):
        read_marian_state({}, config)


def test_a_wrong_directory_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        read_marian(tmp_path)
    marian().config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="holds no weights"):
        read_marian(tmp_path)
