"""Tests of XLNet, saved as a Hugging Face folder, read back, and opened by transformers."""

import json

import numpy as np
import pytest

import macaron_tf
from macaron_tf.models import EncoderConfig
from macaron_tf.models.segment_memory import TwoStreamModel
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import WordPieceVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from tests.harness import numpy_of, refuses
from tests.toys.hugging_face import noise

pytest.importorskip("safetensors")

LINES = ["the cat sat on the mat", "a dog ran", "hello world, the world", "a café 1 2 3"] * 5
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b", "##c"]
VOCABULARIES = {
    "words": lambda: WordPieceVocabulary(WORDS),
    "pieces": lambda: SentencePieceVocabulary.train(LINES, 40, character_coverage=1.0),
    "unigrams": lambda: SentencePieceVocabulary.train(
        LINES, 30, model_type="unigram", character_coverage=1.0
    ),
    "none": lambda: None,
}


def two_streams(kind: str, **options) -> Pretrained:
    vocabulary = VOCABULARIES[kind]()
    size = vocabulary.size if vocabulary else 24
    given = {"positions": "transformer_xl", "embedding_norm": False, **options}
    network = TwoStreamModel(EncoderConfig(size, 32, 48, 4, 2, **given), memory_length=6)
    network.build()
    for seed, weight in enumerate(network.weights):
        weight.assign_add(noise(seed, weight.shape))
    return Pretrained(network, vocabulary=vocabulary, has_masked_language=True)


def batch(pieces: int) -> dict[str, np.ndarray]:
    """Returns the features of two rows; each row predicts three tokens in a random order."""
    rng = np.random.default_rng(0)
    order = np.full((2, 7), -1)
    positions = np.array([[1, 4, 6], [0, 3, 5]])
    for row, places in zip(order, positions, strict=True):
        row[places] = rng.permutation(3)
    return {
        "token_ids": rng.integers(5, pieces, (2, 7)).astype("int32"),
        "segment_ids": np.repeat([[0, 0, 0, 0, 1, 1, 1]], 2, axis=0).astype("int32"),
        "order": order.astype("int32"),
        "masked_positions": positions.astype("int32"),
    }


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("options", [{}, {"summary": "last", "clamp_length": 3}])
def test_an_xlnet_is_read_back(kind, options, tmp_path):
    made = two_streams(kind, **options)
    made.save_pretrained(tmp_path / "out", format="hugging-face")
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'out'}")
    assert read.unread == () and read.has_masked_language
    assert read.network.memory_length == 6
    assert read.config.summary == made.config.summary
    pieces = made.vocabulary.pieces if made.vocabulary else made.config.vocab_size
    assert read.special.rows == pieces
    if made.vocabulary:
        assert read.vocabulary.encode_lines(LINES[:4]) == made.vocabulary.encode_lines(LINES[:4])
    rows = batch(pieces)
    ours, back = (numpy_of(one.network(rows)["masked_language"]) for one in (made, read))
    np.testing.assert_allclose(back[..., :pieces], ours[..., :pieces], atol=1e-6)


def test_an_xlnet_of_other_blocks_is_refused(tmp_path):
    made = two_streams("words", block="macaron")
    refuses(
        "block='macaron' has no counterpart", made.save_pretrained, tmp_path / "out", "hugging-face"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["words", "unigrams"])
def test_pytorch_s_xlnet_scores_the_same(kind, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    made = two_streams(kind)
    made.save_pretrained(tmp_path / "out", format="hugging-face")
    assert json.loads((tmp_path / "out/config.json").read_text())["pad_token_id"] == 0
    theirs, info = transformers.XLNetLMHeadModel.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = made.vocabulary.encode_lines(LINES[:4])
    assert tokenizer(LINES[:4], add_special_tokens=False)["input_ids"] == expected
    rows = batch(made.vocabulary.pieces)
    order, positions = rows["order"], rows["masked_positions"]
    # Hugging Face: 1 where i must not see j; the content stream always sees itself.
    hidden = (order[:, None, :] >= order[:, :, None]) & (order[:, None, :] >= 0)
    inputs = {
        "input_ids": torch.tensor(rows["token_ids"]).long(),
        "token_type_ids": torch.tensor(rows["segment_ids"]).long(),
    }
    streams = {
        "perm_mask": torch.tensor(hidden.astype("float32")),
        "target_mapping": torch.tensor(np.eye(7, dtype="float32")[positions]),
    }
    with torch.no_grad():
        guessed, plain = (theirs.eval()(**inputs, **more).logits for more in (streams, {}))
    pieces = made.vocabulary.pieces
    ours = numpy_of(made.network(rows)["masked_language"])[..., :pieces]
    np.testing.assert_allclose(ours, guessed.numpy(), atol=1e-5)
    content = made.encoder({name: rows[name] for name in ("token_ids", "segment_ids")})
    ours = numpy_of(made.network.logits(content))[..., :pieces]
    np.testing.assert_allclose(ours, plain.numpy(), atol=1e-5)
