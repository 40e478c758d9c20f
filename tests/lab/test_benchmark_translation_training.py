import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from experiments.lab.benchmarks import translation_race, translation_training
from experiments.lab.benchmarks.translation_race import JoeyTrainer, Trainer
from experiments.translate.run import TranslationRun
from macaron_tf.data.translation import BatchingConfig, TranslationData
from macaron_tf.evaluation.translation import TranslationMetric
from macaron_tf.special_ids import EOS
from macaron_tf.text import SentencePieceVocabulary
from tests.conftest import number_pairs, number_settings
from tests.harness import refuses


@pytest.fixture(scope="module")
def vocabulary():
    lines = [line for pair in number_pairs(200, seed=3) for line in pair]
    return SentencePieceVocabulary.train(
        lines, 40, masks=False, languages=("en", "de"), character_coverage=1.0
    )


@pytest.fixture
def recipe(number_text):
    settings = [*number_settings(number_text), "model.dropout=0.2"]
    return translation_race.equal_recipe(settings, dropout=0.2)


def test_the_configuration_is_the_recipes(recipe, tmp_path):
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load(translation_race.joey_config(recipe, tmp_path, 4096, 5, 10))
    assert (config["training"]["logging_freq"], config["training"]["validation_freq"]) == (5, 10)
    assert config["data"]["train"] == str(tmp_path / "train")
    training, model = config["training"], recipe.model_config()
    assert (training["batch_type"], training["batch_size"]) == ("token", 4096)
    assert training["normalization"] == "tokens"
    assert training["learning_rate"] == recipe.training.learning_rate
    assert training["learning_rate_warmup"] == recipe.training.warmup_steps
    assert training["label_smoothing"] == recipe.label_smoothing
    assert config["model"]["tied_embeddings"] and config["model"]["tied_softmax"]
    encoder, decoder = (config["model"][side] for side in ("encoder", "decoder"))
    layers = encoder.pop("num_layers"), decoder.pop("num_layers")
    assert layers == (model.num_encoder_layers, model.num_decoder_layers)
    assert encoder == decoder
    assert (encoder["ff_size"], encoder["num_heads"]) == (model.feed_forward_dim, model.num_heads)
    embeddings = {"embedding_dim": model.hidden_dim, "scale": True, "dropout": 0.2}
    assert encoder["embeddings"] == embeddings and encoder["dropout"] == 0.2
    assert encoder["layer_norm"] == "pre" and encoder["hidden_size"] == model.hidden_dim


@pytest.mark.parametrize(
    "setting", ["model.attention_dropout=0.0", "model=macaron_tiny", "training.schedule=constant"]
)
def test_a_model_that_joey_nmt_lacks_is_refused(number_text, tmp_path, setting):
    settings = [*number_settings(number_text), "model.dropout=0.2", setting]
    recipe = translation_race.equal_recipe(settings, dropout=0.2)
    refuses(
        "does not support the model", translation_race.joey_config, recipe, tmp_path, 4096, 5, 10
    )


def test_pieces_are_written_for_joey_nmt_and_read_back(vocabulary, tmp_path):
    lines = ["one two three", "nine"]
    rows = [[*ids, EOS] for ids in vocabulary.encode_lines(lines)]
    translation_race.write_pieces(tmp_path / "text", rows, vocabulary)
    written = (tmp_path / "text").read_text(encoding="utf-8").splitlines()
    assert [len(line.split(" ")) for line in written] == [len(row) - 1 for row in rows]
    assert translation_race.read_pieces(tmp_path / "text", vocabulary) == lines
    translation_race.write_vocabulary(tmp_path / "vocabulary", vocabulary)
    names = (tmp_path / "vocabulary").read_text(encoding="utf-8").splitlines()
    assert len(set(names)) == len(names) == vocabulary.size - 4
    assert set(" ".join(written).split(" ")) <= set(names)


def test_updates_are_counted_as_its_sampler_makes_them():
    # Four rows of 4 or two of 8 reach 16 tokens. In a mixed batch, the longest row counts.
    assert translation_race.updates_per_epoch(np.full(10, 4), tokens=16, seed=1) == 3
    assert translation_race.updates_per_epoch(np.full(10, 8), tokens=16, seed=1) == 5
    mixed = translation_race.updates_per_epoch(np.array([4, 8] * 50), tokens=16, seed=1)
    assert 25 + 25 / 2 < mixed <= 50


def test_updates_hold_equally_many_target_tokens(number_text, vocabulary):
    pairs = number_pairs(500, seed=4)
    data = TranslationData.from_pairs(pairs, vocabulary, batching=BatchingConfig(512, 2, 1, 1))
    theirs = data.target_tokens / translation_race.updates_per_epoch(data.row_lengths, 512, seed=1)
    budget = translation_race.equal_budget(data, theirs)
    ours = translation_race.mean_target_tokens(data, budget)
    assert budget < 512  # Joey NMT pads more
    assert ours == pytest.approx(theirs, rel=0.05)
    again = TranslationData(data.tokens, BatchingConfig(budget, 2, 1, 1))
    assert again.lengths == data.lengths
    assert ours == data.target_tokens / again.steps_per_epoch


def joey_trainer(run, vocabulary, references) -> JoeyTrainer:
    about = {"vocabulary": vocabulary, "references": references, "metric": TranslationMetric()}
    return JoeyTrainer(command=[], run=run, environment={}, **about)


def test_logs_are_read(tmp_path):
    line = (
        "2026-01-01 00:00:00,000 - INFO - joeynmt.training - Epoch   1, Step:     1240, Batch "
        "Loss:     6.120, Batch Acc: 0.1, Tokens per Sec:     1360, Lr: 0.000312"
    )
    best = "... - Best validation result (greedy) at step 20: 1.0"
    assert re.findall(JoeyTrainer.log_pattern, f"{line}\n{best}\n") == ["1240"]
    lines = '{"step": 15, "kind": "train"}\n{"step": 20, "kind": "validation", "bleu": 2}\n'
    assert re.findall(Trainer.log_pattern, lines) == ["15"]
    ours = Trainer(command=[], run=tmp_path, environment={})
    (tmp_path / "metrics.jsonl").write_text(lines)
    assert ours.validated_steps() == [20] and ours.bleu(20) == 2


def test_both_systems_get_the_same_text_and_much_the_same_batches(number_text, tmp_path):
    given = ["--data-dir", str(tmp_path), "--joey", "python", "--tokens", "512", "--dropout", "0.2"]
    settings = [*number_settings(number_text), "model.dropout=0.2"]
    given += [word for setting in settings for word in ("--set", setting)]
    trainers = translation_race.prepare(translation_training.command.parse_args(given), tmp_path)
    assert list(trainers) == [*translation_race.POLICIES, translation_race.REFERENCE]
    ours, _, theirs = trainers.values()
    assert ours.target_tokens == pytest.approx(theirs.target_tokens, rel=0.15)
    assert theirs.padded_tokens == 512
    assert "training.dtype_policy=float32" in ours.command and "model.dropout=0.2" in ours.command
    assert f"data.batching.max_tokens={ours.padded_tokens}" in ours.command
    assert (tmp_path / "joeynmt" / "config.yaml").is_file()
    held_out = tmp_path / "joeynmt" / "validation.de"
    assert translation_race.read_pieces(held_out, theirs.vocabulary) == theirs.references


# A stand-in for a training command, which logs a line every 20 ms.
TICKER = """
import itertools, json, sys, time
for step in itertools.count(5, 5):
    time.sleep(0.02)
    with open(sys.argv[1], "a") as log:
        log.write(json.dumps({"step": step, "kind": "train"}) + "\\n")
"""


def test_a_trainer_runs_in_its_turns_only(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    command = [sys.executable, "-c", TICKER, str(run / "metrics.jsonl")]
    trainer = Trainer(command=command, run=run, environment={})
    try:
        assert trainer.cpu_seconds() == 0.0
        trainer.run_updates(10)
        assert trainer.cpu_seconds() >= 0.0
        halted = trainer.updates
        assert halted >= 10
        before = (run / "metrics.jsonl").read_bytes()
        subprocess.run(["sleep", "0.2"], check=True)
        assert (run / "metrics.jsonl").read_bytes() == before
        trainer.run_updates(5)
        assert trainer.updates >= halted + 5
    finally:
        trainer.kill()


def test_a_command_that_ends_is_one_sentence(tmp_path):
    command = [sys.executable, "-c", "print('no such thing')"]
    trainer = Trainer(command=command, run=tmp_path / "run", environment={})
    refuses("ended with exit status 0 .*'no such thing'", trainer.run_updates, 1)


def test_translations_are_scored_once_they_are_whole(vocabulary, tmp_path):
    references = ["eins zwei drei vier", "neun acht sieben sechs"]
    trainer = joey_trainer(tmp_path, vocabulary, references)
    rows = vocabulary.encode_lines(references)
    translation_race.write_pieces(tmp_path / "20.hyps", rows, vocabulary)
    translation_race.write_pieces(tmp_path / "10.hyps", rows[:1], vocabulary)
    assert trainer.validated_steps() == [20]
    assert trainer.bleu(20) == pytest.approx(100.0)


def test_curves_are_reported_and_kept(tmp_path, monkeypatch):
    names = [*translation_race.POLICIES, translation_race.REFERENCE]
    given = {"command": [], "environment": {}, "target_tokens": 1800.0, "padded_tokens": 4096}
    trainers = {name: Trainer(run=tmp_path / name, **given) for name in names}
    point = {"updates": 500, "minutes": 2.5, "bleu": 7.0, "target_tokens": 900_000.0}
    ran = []

    def curve(trainer, minutes):
        return ran.append(trainer.run.name) or [point]

    monkeypatch.setattr(translation_training, "bleu_curve", curve)
    facts = {"cpu": "c", "cpus": 2, "threads": 2, "load_at_start": 0.0, "versions": {}}

    def report(minutes: str) -> str:
        given = ["--data-dir", "none", "--out", str(tmp_path), "--bleu-minutes", minutes]
        options = translation_training.command.parse_args(given)
        return translation_training.bleu_curves(trainers, options, facts)

    text = report("5")
    for name in names:
        assert f"| {name} | 500 | 900,000 | 2.5 | 7.0 |" in text
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert report("5") == text and ran == names
    report("6")
    assert ran == 2 * names


PARAMETERS = """
import pathlib, sys
from joeynmt.config import load_config, parse_global_args
from joeynmt.prediction import prepare
config = load_config(pathlib.Path(sys.argv[1]))
pathlib.Path(config["model_dir"]).mkdir()
model, *_ = prepare(parse_global_args(config, rank=0, mode="train"), rank=0, mode="train")
print(sum(parameter.numel() for parameter in model.parameters()))
"""


def test_both_models_have_as_many_parameters(recipe, vocabulary, tmp_path):
    python = pathlib.Path(".venv-joeynmt/bin/python").absolute()
    if not python.exists():
        pytest.skip("Joey NMT is not installed: make .venv-joeynmt/installed")
    config = translation_race.joey_config(recipe, tmp_path, 512, 5, 10)
    translation_race.write_vocabulary(tmp_path / "vocabulary.txt", vocabulary)
    sides = zip(*number_pairs(20, seed=5), strict=True)
    for language, lines in zip(("en", "de"), sides, strict=True):
        for name in ("train", "validation"):
            rows = vocabulary.encode_lines(lines)
            translation_race.write_pieces(tmp_path / f"{name}.{language}", rows, vocabulary)
    (tmp_path / "config.yaml").write_text(config)
    said = subprocess.run(
        [python, "-c", PARAMETERS, str(tmp_path / "config.yaml")],
        check=True, capture_output=True, text=True, env={},
    )  # fmt: skip
    network = TranslationRun(None, recipe, vocabulary).build_network()
    assert int(said.stdout.split()[-1]) == network.count_params()
