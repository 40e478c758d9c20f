"""Sentence-transformers directories: pooling, normalization, length, and what is refused."""

import json

import pytest

from macaron_tf.errors import UserError
from macaron_tf.interop import read_sentence_transformer
from tests.interop.bert_directory import write_bert

pytest.importorskip("safetensors")

MODULES = ["Transformer", "Pooling", "Normalize"]


def write(directory, kinds=MODULES, pooling=None, sentence=None):
    write_bert(directory)
    folders = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for i, (folder, kind) in enumerate(zip(folders, kinds, strict=False))
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    pooling = pooling or {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (directory / "1_Pooling/config.json").write_text(json.dumps(pooling))
    if sentence is not None:
        (directory / "sentence_bert_config.json").write_text(json.dumps(sentence))
    return directory


def test_pooling_normalization_and_length_are_read(tmp_path):
    read = read_sentence_transformer(write(tmp_path, sentence={"max_seq_length": 9}))
    assert (read.pooling, read.normalize, read.max_length) == ("mean", True, 9)
    assert read.network.config.num_layers == 2
    read = read_sentence_transformer(write(tmp_path, MODULES[:2], sentence={"max_seq_length": 99}))
    assert (read.normalize, read.max_length) == (False, 12)  # the positions that there are
    assert read_sentence_transformer(write(tmp_path, sentence={})).max_length == 12


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True, "word_embedding_dimension": 8}, "max"),
        ({"pooling_mode": "mean", "embedding_dimension": 8}, "mean"),
    ],
)
def test_each_pooling_has_our_name(config, expected, tmp_path):
    assert read_sentence_transformer(write(tmp_path, pooling=config)).pooling == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kinds": ["Transformer", "Pooling", "Dense"]}, "Transformer, Pooling, Dense: only"),
        ({"kinds": ["Transformer"]}, "has the modules Transformer: only"),
        ({"pooling": {"pooling_mode_mean_sqrt_len_tokens": True}}, "by mean_sqrt_len_tokens: only"),
        (
            {"pooling": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}},
            "by cls_token and max_tokens: only one",
        ),
        ({"pooling": {"pooling_mode_cls_token": False}}, "pools by nothing"),
        ({"sentence": {"do_lower_case": True}}, "do_lower_case=True"),
        ({"sentence": {"max_seq_length": "9"}}, "max_seq_length='9'"),
    ],
)
def test_what_has_no_place_in_ours_is_refused(changes, reason, tmp_path):
    with pytest.raises(UserError, match=reason):
        read_sentence_transformer(write(tmp_path, **changes))


def test_missing_files_are_named(tmp_path):
    write(tmp_path)
    (tmp_path / "1_Pooling/config.json").unlink()
    with pytest.raises(UserError, match=r"1_Pooling/config\.json is missing"):
        read_sentence_transformer(tmp_path)
    (tmp_path / "modules.json").unlink()
    with pytest.raises(UserError, match=r"it has no modules\.json"):
        read_sentence_transformer(tmp_path)
