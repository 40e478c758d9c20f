"""Tests of the probes, of the command `probe`, and of the card that `bench` writes."""

import argparse
import itertools
import json

import numpy as np
import pytest

from experiments import studies
from experiments.commands import main
from experiments.compare import bench, probing
from experiments.compare.arms import Arm
from experiments.compare.choices import equalize_parameters
from experiments.compare.commands import main as compare
from experiments.compare.probes import KEPT, LENGTHS, PROBES, recall
from experiments.recipes.language_models import gpt_probe
from tests.toys.marks import slow
from tests.toys.studies import is_figure

ROWS = 16


def first_pairs(ids, labels):
    """Yields the expected label of each position of `recall`."""
    pairs = len(ids) // 8
    values = dict(zip(ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2], strict=True))
    assert len(values) == pairs == sum(label > 0 for label in labels)
    for position, (token, label) in enumerate(zip(ids, labels, strict=True)):
        assert label == 0 or position >= 2 * pairs
        yield values[token] if label else 0


def repeated_keys(ids, labels):
    """Yields the labels of keys (1 to 8) before values (9 to 16); greater ids are noise."""
    values = {}
    for position, token in enumerate(ids):
        if token > 8:
            yield 0
            continue
        yield values.get(token, 0)
        values[token] = ids[position + 1]


def repeated_motifs(ids, labels):
    values, result, key = {}, [], ()
    for is_value, group in itertools.groupby(ids, lambda token: token > 8):
        group = tuple(group)
        if is_value:
            known = values.setdefault(key, group) is not group
            # The last id of a key predicts the first id of its value.
            result += [*(group if known else [0] * len(group)), 0]
        else:
            key = group
            result += [0] * (len(group) - 1)
    # Within the last motif, the row may end.
    return [*result, *labels][: len(ids)][: len(result) - 1] + labels[len(result) - 1 :]


def copied(ids, labels):
    symbols = [token for token in ids if token <= 16]
    return [0] * (len(ids) - 4) + symbols


def facts(ids, labels):
    known = dict(zip(*(column.ravel() for column in drawn("memorization", 4)), strict=True))
    known = {key: value for key, value in known.items() if value}
    yield 0
    for before in ids[:-1]:
        yield known.get(before, 0) if before <= 128 else 0


def drawn(name, seed, factor=1):
    probe = PROBES[name]
    ids, labels = probe.draw(np.random.default_rng(seed), 512, factor * probe.length)
    return ids[:, :-1], labels[:, 1:]


def kept(ids, labels):
    return [0] * (len(ids) - KEPT) + [*ids[-KEPT:]]


def followers(ids, labels):
    seen = None
    for position, token in enumerate(ids):
        yield seen or 0 if token == 17 else 0
        if token == 17:
            assert seen in (None, ids[position + 1])
            seen = ids[position + 1]


def parities(ids, labels):
    return [3 + sum(bit == 2 for bit in ids[: n + 1]) % 2 for n in range(len(ids))]


def places(ids, labels):
    pairs, place = [None, *itertools.combinations(range(5), 2)], 0
    for token in ids:
        pair = pairs[token - 1]
        if pair and place in pair:
            place = sum(pair) - place
        yield 12 + place


ORACLES = {
    "recall": first_pairs,
    "in_context_recall": repeated_keys,
    "noisy_recall": repeated_keys,
    "fuzzy_recall": repeated_motifs,
    "selective_copying": copied,
    "memorization": facts,
    "compression": kept,
    "induction": followers,
    "parity": parities,
    "s5": places,
}


@pytest.mark.parametrize("name", PROBES)
def test_labels_follow_from_the_ids(name):
    probe = PROBES[name]
    for factor in LENGTHS:
        length = factor * probe.length
        ids, labels = probe.draw(np.random.default_rng(factor), ROWS, length)
        assert ids.shape == labels.shape == (ROWS, length)
        assert (
            ids.min() >= 1 and labels.min() >= 0 and max(ids.max(), labels.max()) < probe.vocab_size
        )
        assert len(np.unique(labels[labels > 0])) <= probe.answers
        for row in zip(ids.tolist(), labels.tolist(), strict=True):
            assert [*ORACLES[name](*row)] == row[1]


def test_the_distance_of_queries_follows_a_power_law():
    rows = 20_000
    _, labels = recall(
        np.random.default_rng(0), rows, 8
    )  # one pair, and three places for its query
    found = np.bincount(labels.argmax(axis=1), minlength=8)[2::2] / rows
    expected = np.arange(1.0, 4.0) ** (0.01 - 1)
    expected /= expected.sum()
    assert (np.abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / rows)).all()


def test_the_seed_and_the_step_determine_a_batch():
    recipe = gpt_probe().changed(data=dict(batch_size=2))
    batches = [*probing._batches(PROBES["parity"], recipe, 3).take(2)]
    resumed = next(iter(probing._batches(PROBES["parity"], recipe, 4)))
    other = next(iter(probing._batches(PROBES["parity"], recipe.changed(training=dict(seed=2)), 4)))
    assert (resumed["token_ids"] == batches[1]["token_ids"]).numpy().all()
    assert not (resumed["token_ids"] == other["token_ids"]).numpy().all()


SMALL = (
    *("model.hidden_dim=8", "model.num_heads=1", "model.feed_forward_dim=8", "data.batch_size=8"),
    *("training.max_steps=2", "training.warmup_steps=1", "training.validate_every=1"),
)


def test_a_model_is_trained_on_a_probe(tmp_path, capsys):
    run, sets = str(tmp_path / "run"), studies.flags("--set", *SMALL)
    assert main(["probe", "gpt_probe", "compression", run, *sets]) == 0
    assert "at length 32" in capsys.readouterr().out
    metrics = studies.validations(run)[-1]
    assert {"accuracy", "accuracy_x2", "accuracy_x4"} < metrics.keys()
    assert main(["probe", "gpt_probe", "parity", run, *sets]) == 2
    assert "has a run on the probe compression" in capsys.readouterr().err
    assert main(["probe", "gpt_probe", "parties", run, *sets]) == 2
    assert main(["probe", "bert_tiny", "parity", run, *sets]) == 2


def test_only_causal_language_models_are_compared_on_probes(tmp_path, capsys):
    arms = ["a=bert_tiny", "b=bert_tiny:model.norm=pre"]
    assert compare([str(tmp_path), *arms, "--probes", "parity"]) == 2
    assert "a: --probes needs a causal language model" in capsys.readouterr().err


def test_a_block_without_feed_forward_layers_keeps_its_parameters(capsys):
    trainer = probing.Probes(
        argparse.Namespace(set=[], trust_code=False, download=False, data_dir=None)
    )
    full = Arm("a", "gpt_probe", (), task="parity")
    bare = Arm("b", "gpt_probe", ("model.scheme=tokens",), task="parity")
    assert equalize_parameters(trainer, [full, bare]) == [full, bare]
    assert "b keeps its 34,304 parameters" in capsys.readouterr().err


def pretend(recipe, probe, run, *arguments):
    """Stands for `macaron probe`: macaron is right, gmlp wrong, and the others are half right."""
    settings = [text for flag, text in itertools.pairwise(arguments) if flag == "--set"]
    seed = int(settings[-1].rpartition("=")[2])
    block = next(text for text in settings if text.startswith("model.block="))
    level = {"macaron": 0.9, "gmlp": 0.0}.get(block.partition("=")[2], 0.5 + seed / 1000)
    line = {"step": 2, "kind": "validation", "loss": 1.0, "accuracy": level}
    line |= {f"accuracy_x{factor}": level for factor in LENGTHS[1:]}
    timing = {
        "step": 2,
        "kind": "train",
        "seconds": 1.0,
        "memory_mib": 1.0,
        "flops_per_update": 2e9,
    }
    for name, record in (("metrics.jsonl", line), ("timing.jsonl", timing)):
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record) + "\n")
    (run / "model.json").write_text(json.dumps({"parameters": 9, "versions": {}, "code": {}}))


def test_blocks_get_a_card(tmp_path, monkeypatch, capsys):
    def command(name, recipe, probe, run, *arguments, log=None):
        pretend(recipe, probe, tmp_path.__class__(run), *arguments)

    monkeypatch.setattr(studies, "command", command)
    monkeypatch.setattr(bench, "PARTS", {"probes": bench.PARTS["probes"]})
    assert main(["bench", "macaron", "gmlp", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "bench.md").read_text()
    # The Transformer is at the chance level of parity, 50%.
    better = ", ".join(name for name in bench.QUICK_PROBES if name != "parity")
    assert f"- **macaron**: better in {better}; no verdict in parity." in page
    assert f"- **gmlp**: no verdict in {', '.join(bench.QUICK_PROBES)}." in page
    assert is_figure(tmp_path / "bench.png")
    capsys.readouterr()
    assert main(["bench", "gpt_quick", "--out", str(tmp_path)]) == 2
    assert "gpt_quick is no block" in capsys.readouterr().err


LOCAL = "model.attention_windows=[2]"
LSTM = ("model.block=tests.toys.blocks:LSTMBlock", "training.learning_rate=0.01")
SOLVED = {
    **dict.fromkeys(("recall", "in_context_recall", "noisy_recall", "induction"), ((), (LOCAL,))),
    **dict.fromkeys(("fuzzy_recall", "selective_copying", "compression"), ((), (LOCAL,))),
    "memorization": ((), ("model.attention_windows=[1]",)),
    **dict.fromkeys(("parity", "s5"), (LSTM, ())),
}


# Probes that take more than the 600 updates of gpt_probe to be solved.
HARD = ("noisy_recall", "selective_copying", "compression", "s5")


@pytest.mark.parametrize("name", slow(*PROBES))
def test_a_known_block_solves_a_probe_and_another_fails(name, tmp_path):
    steps = ("training.max_steps=2500",) if name in HARD else ()
    solved, failed = (
        _accuracy(name, tmp_path / str(number), (*settings, *steps))
        for number, settings in enumerate(SOLVED[name])
    )
    # After 2,500 updates, attention tells 68% of the symbols of `compression`, and attention to the
    # last two positions in two layers 42%: it sees three of the eight. No block here solves it.
    least, most = (0.6, 0.5) if name == "compression" else (0.8, 0.65)
    assert solved > least and failed < most


def _accuracy(name, run, settings):
    assert main(["probe", "gpt_probe", name, str(run), *studies.flags("--set", *settings)]) == 0
    return studies.validations(run)[-1]["accuracy"]
