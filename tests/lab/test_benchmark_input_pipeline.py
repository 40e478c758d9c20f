"""All implementations in the input benchmark read equal tokens."""

import itertools

import numpy as np
import pytest

from experiments.lab.benchmarks import input_pipeline
from experiments.lab.benchmarks.harness import made_up_texts
from macaron_tf.text import WordPieceVocabulary

pytest.importorskip("tokenizers")
LENGTH, BATCH = 64, 32


def test_the_contenders_read_equal_tokens_and_count_them(tmp_path):
    texts = list(itertools.islice(made_up_texts(), 24))
    vocabulary = WordPieceVocabulary.train("\n".join(texts).split("\n"), 600)
    work = input_pipeline.Work(texts, vocabulary, LENGTH, BATCH, tmp_path)
    work.check()
    rows = np.concatenate(list(work.macaron_tf_rows()))
    assert work.tokens == (rows != 0).sum() > 10_000
    # Words of several pieces, commas and full stops occur.
    assert len(np.unique(rows)) > 300
    units = {name: run() for name, run in work.contenders(passes=3).items()}
    assert units[input_pipeline.REFERENCE] == units[input_pipeline.FROM_TEXT] == work.tokens
    assert units[input_pipeline.FROM_SHARDS] == pytest.approx(3 * work.tokens, rel=0.05)
