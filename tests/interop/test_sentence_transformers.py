"""Sentence-transformers directories: pooling, normalization, length, and what is refused."""

import pytest

from macaron_tf.errors import UserError
from macaron_tf.interop import read_sentence_transformer
from tests.interop.bert_directory import MODULES, write_bert, write_modules

pytest.importorskip("safetensors")


def read(directory, **changes):
    write_modules(write_bert(directory), **changes)
    return read_sentence_transformer(directory)


def test_pooling_normalization_and_length_are_read(tmp_path):
    found = read(tmp_path, sentence={"max_seq_length": 9})
    assert (found.pooling, found.normalize, found.max_length) == ("mean", True, 9)
    assert found.network.config.num_layers == 2
    found = read(tmp_path, kinds=MODULES[:2], sentence={"max_seq_length": 99})
    assert (found.normalize, found.max_length) == (False, 12)  # the positions that there are
    assert read(tmp_path, sentence={}).max_length == 12


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True, "word_embedding_dimension": 8}, "max"),
        ({"pooling_mode": "mean", "embedding_dimension": 8}, "mean"),
    ],
)
def test_each_pooling_has_our_name(config, expected, tmp_path):
    assert read(tmp_path, pooling=config).pooling == expected


TWO = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kinds": ["Transformer", "Pooling", "Dense"]}, "Transformer, Pooling, Dense: only"),
        ({"kinds": ["Transformer"]}, "has the modules Transformer: only"),
        ({"pooling": {"pooling_mode_mean_sqrt_len_tokens": True}}, "by mean_sqrt_len_tokens: only"),
        ({"pooling": TWO}, "by cls_token and max_tokens: only one"),
        ({"pooling": {"pooling_mode_cls_token": False}}, "pools by nothing"),
        ({"sentence": {"do_lower_case": True}}, "do_lower_case=True"),
        ({"sentence": {"max_seq_length": "9"}}, "max_seq_length='9'"),
    ],
)
def test_what_has_no_place_in_ours_is_refused(changes, reason, tmp_path):
    with pytest.raises(UserError, match=reason):
        read(tmp_path, **changes)


def test_missing_files_are_named(tmp_path):
    read(tmp_path)
    for file, reason in (
        ("1_Pooling/config.json", r"1_Pooling/config\.json is missing"),
        ("modules.json", r"it has no modules\.json"),
    ):
        (tmp_path / file).unlink()
        with pytest.raises(UserError, match=reason):
            read_sentence_transformer(tmp_path)
