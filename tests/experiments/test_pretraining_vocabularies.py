"""Each kind of vocabulary by the command, and a corpus and a run with it."""

import pytest

from experiments.pretrain.__main__ import main
from experiments.pretrain.corpus import described
from macaron_tf.text import load_encoder_vocabulary
from tests.experiments.pretraining_toy import flags, toy_settings

TEXT = "the quick brown fox jumped over the lazy dog, and the Café was full of 12 dogs.\n" * 30


@pytest.mark.parametrize(
    ("kind", "size", "folded"),
    [("wordpiece", 80, True), ("sentencepiece", 50, False), ("unigram", 39, True)]
    + [("byte_bpe", 280, False)],
)
def test_every_kind_is_trained_and_used(kind, size, folded, tmp_path):
    (tmp_path / "text.txt").write_text(f"{TEXT}\n{TEXT}\n{TEXT}")
    settings = [*toy_settings(f"text:{tmp_path}/text.txt", steps=11), f"vocabulary.kind={kind}"]
    settings = flags([*settings, f"vocabulary.size={size}", "corpus.validation_every=2"])
    out = str(tmp_path / "vocabulary")
    assert main(["vocabulary", "bert_tiny", out, *settings]) == 0
    vocabulary = load_encoder_vocabulary(out)
    found = described(vocabulary)
    assert (found.kind, found.size, found.lower_case) == (kind, size, True)
    rows = vocabulary.encode_lines(["the café", "THE café", "the cafe"])
    assert rows[0] == rows[1]
    assert (rows[0] == rows[2]) is folded
    corpus, run = str(tmp_path / "corpus"), str(tmp_path / "run")
    assert main(["prepare", "bert_tiny", corpus, *settings]) == 0
    assert load_encoder_vocabulary(corpus).hash == vocabulary.hash
    if kind == "byte_bpe":  # the others are trained with elsewhere
        assert main(["train", "bert_tiny", run, "--corpus", corpus, *settings]) == 0
