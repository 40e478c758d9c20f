"""Language models in fine-tuning: from a run of pre-training to answers."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.finetune.__main__ import main
from experiments.finetune.run import FinetuningRun
from experiments.pretrain import __main__ as pretrain
from experiments.pretrain.run import PretrainingRun
from export.saved_model import export
from macaron_tf.errors import UserError
from macaron_tf.models import CausalChooser, CausalClassifier
from macaron_tf.training.progress import read_lines
from tests.experiments.pretraining_toy import flags, toy_settings
from tests.experiments.task_toys import (
    BLAME,
    FILLERS,
    PRAISE,
    not_yet_trained,
    scores_in,
    sentences,
    toy_flags,
    train_toy,
    validations,
    write_table,
)


@pytest.fixture(scope="module")
def gpt(toy, tmp_path_factory):
    """A run of pre-training on the task's own sentences, a few updates long."""
    folder = tmp_path_factory.mktemp("gpt")
    text = "\n".join(sentence for sentence, _ in sentences(400, seed=5))
    (folder / "text.txt").write_text(text)
    settings = toy_settings(f"text:{folder}/text.txt", 4)
    settings += ["training.validate_every=4", "training.warmup_steps=1", "model.num_layers=1"]
    settings = flags([*settings, "model.max_length=16"])
    vocabulary = ["--vocabulary", str(toy / "vocabulary")]
    assert pretrain.main(["train", "gpt2_tiny", str(folder / "run"), *vocabulary, *settings]) == 0
    return folder / "run"


def test_a_run_of_pre_training_gives_its_scores_too(gpt):
    _, recipe, network = not_yet_trained(str(gpt), name="gpt")
    assert (recipe.training.learning_rate, recipe.language_weight) == (6.25e-5, 0.5)
    assert recipe.limits.causal
    assert isinstance(network, CausalClassifier) and not network.symmetric
    inputs = {"token_ids": np.array([[2, 5, 6, 7]], "int32")}
    run = PretrainingRun.open(gpt)
    pretrained = run.load_network(run.checkpoint(None))
    np.testing.assert_array_equal(
        np.asarray(network.language_model(inputs)), np.asarray(pretrained(inputs))
    )


def test_it_is_fine_tuned_by_the_command_that_any_encoder_is(gpt, toy, tmp_path):
    run = tmp_path / "run"
    training = ("max_steps=60", "validate_every=30", "log_every=20", "learning_rate=0.01")
    training = [f"training.{one}" for one in (*training, "schedule=constant")]
    chosen = flags([*training, "batch_size=16", "max_length=16"])
    source = ["--source", f"tsv:{toy}/{{split}}.tsv"]
    assert main(["train", "sst2", str(run), "--init", str(gpt), *source, *chosen]) == 0
    lines = read_lines(run / "metrics.jsonl")
    assert lines[-1]["kind"] == "validation" and lines[-1]["score"] > 0.9
    trained = [line for line in lines if "language_loss" in line]
    assert trained[-1]["language_loss"] < trained[0]["language_loss"]
    given, out = tmp_path / "given", tmp_path / "answers"
    given.write_text("the film was good\nthe plot was awful\n")
    assert main(["predict", str(run), "--input", str(given), "--output", str(out)]) == 0
    answers = [line.split("\t")[0] for line in out.read_text().splitlines()]
    assert answers == ["positive", "negative"]
    served = tf.saved_model.load(str(export(run, tmp_path / "out")))
    said = served.signatures["serving_default"](text=tf.constant(["the film was good"]))
    assert said["label"].numpy().tolist() == [b"positive"]


def test_choices_are_fine_tuned(toy, tmp_path, refused):
    """The right ending has the context's mood."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 200), ("validation", 40)):
        rows = []
        for _ in range(count):
            good, first = rng.integers(2, size=2)
            right, wrong = (PRAISE, BLAME) if good else (BLAME, PRAISE)
            endings = [str(rng.choice(right)), str(rng.choice(wrong))]
            context = f"{rng.choice(FILLERS)} {rng.choice(right)}"
            rows.append((context, *(endings if first else endings[::-1]), 1 if first else 2))
        path = tmp_path / f"{split}.tsv"
        write_table(path, rows, "context\tending1\tending2\tlabel")
    run, source = tmp_path / "run", f"tsv:{tmp_path}/{{split}}.tsv"
    settings = {"source": source, "model": "gpt_tiny", "training__max_steps": 120}
    train_toy(toy, run, "story_cloze", training__validate_every=60, **settings)
    opened = FinetuningRun.open(run)
    assert isinstance(opened.build_network(), CausalChooser)
    assert validations(run)[-1]["accuracy"] > 0.8
    assert main(["evaluate", str(run), "--output", str(tmp_path / "scores")]) == 0
    assert scores_in(tmp_path / "scores")["metrics"]["accuracy"] == opened.result().best_score
    (tmp_path / "lines").write_text("film good\tgood\n")
    arguments = ["predict", str(run), "--input", str(tmp_path / "lines")]
    refused(main, arguments, "line 1: 2 columns, not 3")
    with pytest.raises(UserError, match="whose choices no signature takes"):
        export(opened.path, tmp_path / "out")
    bert = toy_flags(toy, source, max_length=16)
    arguments = ["train", "story_cloze", str(tmp_path / "bert"), *bert]
    refused(main, arguments, "only a causal model is fine-tuned on")
