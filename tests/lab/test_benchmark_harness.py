import importlib
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from experiments.lab.benchmarks import decoding, peers
from experiments.lab.benchmarks.harness import compare, interleave
from macaron_tf.decoding import GenerationConfig, TextGenerator, translate_ids
from macaron_tf.models import catalog


def test_contenders_take_turns_after_their_warm_up():
    turns = []
    contenders = {name: lambda name=name: turns.append(name) or 5 for name in "abc"}
    rows = interleave(contenders, rounds=3, warm_up=2)
    assert "".join(turns) == "aabbcc" + "abc" + "bca" + "cab"
    assert all(len(row["seconds"]) == len(row["cpu_seconds"]) == 3 for row in rows)


def test_ratios_are_for_a_unit_and_paired_by_round():
    times = {key: [1.0, 10.0, 100.0] for key in ("seconds", "cpu_seconds")}
    rows = [{"name": "a", "units": 10, **times}, {"name": "b", "units": 20, **times}]
    a, b = compare(rows)
    assert a["ratio"] == [1.0, 1.0, 1.0]
    assert b["ratio"] == b["cpu_ratio"] == [0.5, 0.5, 0.5]
    assert b["rate"][1] == 2.0
    assert compare(rows, "b")[0]["ratio"] == [2.0, 2.0, 2.0]


def test_a_marian_says_other_tokens_for_other_texts_and_ours_says_the_same():
    for name in ("torch", "transformers"):
        pytest.importorskip(name)
    peer = peers.MarianPeer(catalog.config("transformer_tiny", vocab_size=2000))
    source = np.random.default_rng(0).integers(5, 2000, (4, 9), dtype=np.int32)
    found = peer.generate(source, 8, suppress_tokens=[0, 2])
    assert len({row.tobytes() for row in found}) > 2
    assert np.mean([len(set(row)) for row in found]) > 4
    # Greedy, because in beam search Hugging Face's forced EOS has probability 1, unlike ours.
    config = peers.exact_search(8, beam_size=1)
    ours = translate_ids(peer.as_macaron_tf(), tf.constant(source), config)["ids"][:, 0]
    np.testing.assert_array_equal(ours, found)


def test_a_gpt2_says_the_same_in_ctranslate2(tmp_path):
    for name in ("torch", "transformers", "ctranslate2"):
        pytest.importorskip(name)
    peer = peers.GPT2Peer(catalog.config("gpt2_tiny", num_layers=1, vocab_size=400))
    read = peer.as_macaron_tf(tmp_path)
    rows = np.random.default_rng(0).integers(5, 300, (2, 5))
    greedy = GenerationConfig(temperature=0.0, max_tokens=4, min_tokens=4)
    expected = peer.generate(rows, 4, pad_token_id=399)
    for kind in peers.COMPUTE_TYPES:
        found = peers.ctranslate2_generator(peer, 1, kind, 4)(rows)
        assert found.shape == (2, 4) and (kind == "int8" or (found == expected).all())
    generator = TextGenerator(read.network, read.vocabulary, 64)
    np.testing.assert_array_equal(decoding.completed(generator, greedy, rows), expected)


def test_make_bench_gives_options_that_there_are():
    makefile = pathlib.Path(__file__).parents[2].joinpath("Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"\$\(BENCH\)\.(\w+) (.*)", makefile)
    assert len(commands) == 6
    for name, words in commands:
        module = importlib.import_module(f"experiments.lab.benchmarks.{name}")
        module.command.parse_args(words.split())
