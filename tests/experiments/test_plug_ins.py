"""Tests of user-defined recipes, blocks, objectives and sources outside the project."""

import contextlib
import pathlib
import re
import sys
import types

import pytest

import macaron_tf
from experiments import registry
from experiments.commands import main
from experiments.compare import trainers
from experiments.compare.commands import main as compare
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.layers.blocks import MacaronBlock
from macaron_tf.models.catalog import build
from macaron_tf.models.stack import check_causal
from macaron_tf.runs.run import Run
from macaron_tf.runs.translation import TranslationRecipe
from tests.harness import refuses
from tests.toys.pretraining import flags, toy_settings
from tests.toys.tasks import validations

PARTS = '''
import dataclasses
import random

import keras
from macaron_tf.layers import Block, MacaronBlock as Ours
from macaron_tf.layers.mixer import Mixer
from macaron_tf.layers.scheme import Mix
from macaron_tf.objectives import MaskedLanguageObjective


class MacaronBlock(Block):
    """A name that the library has too: channels first, then tokens."""

    scheme = (Mix("channels", step_size=0.5), Mix("tokens"))


class Plain(Block):
    scheme = (Mix("tokens"), Mix("channels"))

    def channel_mixer(self, feed_forward_dim):
        return keras.layers.Dense(feed_forward_dim)


class Other:
    pass


class Neighbour(Mixer):
    def __init__(self, offset, **kwargs):
        super().__init__(**kwargs)

    def mix(self, x, context, state=None):
        return keras.ops.roll(x, -self.offset, axis=1), state


class Ahead(Block):
    scheme = (Mix("tokens"), Mix("channels"))

    def token_mixer(self):
        return Neighbour(3, name="neighbour")


class Zero(Neighbour):
    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=(), initializer="zeros")

    def mix(self, x, context, state=None):
        return self.scale * super().mix(x, context)[0], state


class ZeroAhead(Block):
    scheme = (Mix("tokens"), Mix("channels"))

    def token_mixer(self):
        return Zero(1, name="neighbour")


class Earlier(Mixer):
    def mix(self, x, context, state=None):
        return keras.ops.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1], state


class Behind(Block):
    scheme = (Mix("tokens"), Mix("channels"))

    def token_mixer(self):
        return Earlier(name="earlier")


@dataclasses.dataclass(frozen=True)
class Doubled(MaskedLanguageObjective):
    def __call__(self, network, batch, training):
        sums = super().__call__(network, batch, training)
        return {**sums, "loss_sum": 2 * sums["loss_sum"]}


class Scored(MaskedLanguageObjective):
    metric_names = ("loss", "nll", "perplexity", "accuracy", "z_loss")


def documents(split):
    draw = random.Random(1)
    for letter in "abcdefghij" * 6:
        yield "\\n".join(" ".join(letter * draw.randint(3, 8)) + " ." for _ in range(15))


def pairs(split):
    return [(f"{split} one", "eins"), ("two", "zwei")]


def broken(split):
    yield "text"
    raise KeyError("no more")
'''
RECIPES = '''
from experiments.recipes.bert import bert_tiny


def mine():
    """A BERT of the stranger's parts."""
    block = ("block", "stranger.parts:MacaronBlock")
    return bert_tiny().changed(
        model_options=(block,),
        objective="stranger.parts:Doubled",
        data=dict(sources="python:stranger.parts:documents"),
    )
'''
OWN = "stranger.parts:MacaronBlock"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Yields a working directory with a user's package."""
    package = tmp_path / "stranger"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text(PARTS)
    (package / "needy.py").write_text("import not_installed_here\n")
    (package / "broken.py").write_text("x = 1\nraise ValueError('half done')\n")
    (tmp_path / "mine.py").write_text(RECIPES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the working directory is added
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("stranger", "mine")]:
        del sys.modules[name]


def settings(steps: int = 10) -> list[str]:
    changes = [s for s in toy_settings("", steps) if not s.startswith("data.sources")]
    changes += ["training.schedule=inverse_sqrt", "training.validate_every=10"]
    return [*changes, "training.save_every_steps=10", "training.warmup_steps=5"]


@pytest.mark.slow
def test_a_strangers_block_goes_from_pre_training_to_a_task(outside, toy, ran):
    train = ["train", "./mine.py", "run"]
    ran(main, *train, *flags(settings(10)))
    ran(main, "train", "--resume", "run", "--set", "training.max_steps=20")
    assert [line["step"] for line in validations(outside / "run")] == [10, 20]
    [last] = validations(outside / "run")[1:]
    assert last["loss"] == pytest.approx(2 * last["nll"], rel=1e-4)  # the objective
    run = Run.open("run")
    assert run.recipe.model_config().block == OWN  # the run records the block's name
    block = macaron_tf.load("run").network.encoder.stack.blocks[0]
    assert (type(block).__module__, type(block).__name__) == ("stranger.parts", "MacaronBlock")
    assert [operator for operator, _ in block.sublayers] == ["channels", "tokens"]
    assert type(build("macaron_tiny").encoder.blocks[0]) is MacaronBlock  # built-ins are kept
    ran(main, "predict", "run", "a [MASK] a")

    tune = [
        "data.max_length=16",
        "data.batch_size=16",
        "training.max_steps=4",
        "training.validate_every=4",
    ]
    tune.append(f"data.source=tsv:{toy}/{{split}}.tsv")
    ran(main, "train", "finetune:sst2", "tuned", "--init", "run", *flags(tune))
    more = ["--resume", "tuned", "--set", "training.save_every_steps=2"]
    assert "stopped after step 4: " in ran(main, "train", *more).out


@pytest.mark.thorough
def test_code_that_changed_after_a_run_began_is_named(outside, ran):
    ran(main, "train", "./mine.py", "run", *flags(settings(10)))
    run, file = Run.open("run", trust_code=True), outside / "stranger" / "parts.py"
    assert run.changed_code() == []
    file.write_text(file.read_text() + "\n# another version\n")
    assert run.changed_code() == ["stranger/parts.py"]
    again = ran(main, "train", "--resume", "run", "--trust-code").err
    assert "warning: stranger/parts.py changed after run began" in again
    arms = types.SimpleNamespace(kind="pretraining", may_change=(), recipe=lambda *_: run.recipe)
    said = "parts.py has changed since run was trained: choose another folder, or restore"
    refuses(said, trainers.Trainer.check, arms, None, 1, pathlib.Path("run"))


def is_one_sentence(message: str, error: str) -> bool:
    """Returns whether `error`, below one line per import, is a line that matches."""
    imports, _, error = error.rpartition("error: ")
    matches = error.count("\n") == 1 and re.search(message, error)
    return bool(matches) and imports.count("\n") == imports.count("importing your code: ")


BLOCK = "model.block=stranger."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.block=nowhere.parts:X", "nowhere.parts cannot be imported, .* 'nowhere': run"),
        (f"{BLOCK}parts:Nothing", "parts:Nothing names no subclass of .*: write .*parts:Macaron"),
        (f"{BLOCK}parts:Other", "parts:Other names no subclass of .*Block: write"),
        (f"{BLOCK}needy:X", "raised ModuleNotFoundError: No module named 'not_installed_here'"),
        (f"{BLOCK}broken:X", "stranger.broken raised ValueError: half done .*broken.py, line 2"),
        (f"{BLOCK}parts:Plain", "Plain's .* are mixed by <Dense .*, no Mixer"),
        ("objective=stranger.parts:Other", "parts:Other names no subclass of .*Objective: write"),
    ],
)
def test_parts_that_do_not_fit_are_a_sentence(change, message, outside, capsys):
    changes = [change, "data.sources=python:stranger.parts:documents"]
    assert main(["train", "bert_tiny", "run", *flags([*settings(), *changes])]) == 2
    error = capsys.readouterr().err
    assert is_one_sentence(message, error), error
    assert not (outside / "run").exists()


@pytest.mark.parametrize("recipe", ["gpt_quick", "t5_tiny"])
def test_a_causal_model_whose_block_reads_ahead_is_refused(recipe, outside, capsys):
    for name, where in (("Ahead", "position 0 .* position 3"), ("ZeroAhead", "0 .* position 1")):
        block = f"{BLOCK}parts:{name}"
        train, arms = ["train", recipe, "run", *flags([block])], [recipe, f"own={recipe}:{block}"]
        for command, words in ((main, train), (compare, ["out", *arms])):
            assert command(words) == 2
            error = capsys.readouterr().err
            assert is_one_sentence(f"parts:{name} reads later positions .*{where}", error), error
    assert not (outside / "run").exists() and not (outside / "out").exists()
    check_causal(registry.load(recipe, settings=[f"{BLOCK}parts:Behind"]).model_config())
    check_causal(registry.load("bert_tiny", settings=[f"{BLOCK}parts:Ahead"]).model_config())


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (None, "./none.py", "there is no file ./none.py"),
        ("def f(:", "./own.py", "own.py raised SyntaxError: .*own.py, line 1"),
        (RECIPES + "def two(): pass", "./own.py", "write ./own.py:mine or ./own.py:two"),
        ("def f(): return {}[1]", "./own.py", "./own.py raised KeyError: 1 .*own.py, line 1"),
        ("def f(): return 1", "own:g", "own:g names no function: write own:f"),
    ],
)
def test_a_recipe_that_cannot_be_had_is_a_sentence(text, name, message, outside, capsys):
    if text is not None:
        (outside / "own.py").write_text(text)
    assert main(["train", name, "run"]) == 2
    error = capsys.readouterr().err
    sys.modules.pop("own", None)
    assert is_one_sentence(message, error), error


def test_the_direction_of_a_metric_of_ones_own_is_asked(outside):
    own = ["objective=stranger.parts:Scored", "training.best_metric=z_loss"]
    for mode, fits in (("None", False), ("min", True), ("max", True)):
        with contextlib.nullcontext() if fits else pytest.raises(UserError, match="best_mode=min"):
            registry.load("bert_tiny", settings=[*own, f"training.best_mode={mode}"])


def test_blocks_of_ones_own_fit_decoders_too(outside):
    recipe = registry.load("demo", TranslationRecipe, [f"model.block={OWN}"])
    network = build(recipe.model, vocab_size=20, block=recipe.model_config().block)
    assert type(network.decoder.blocks[0]).__module__ == "stranger.parts"


def test_sources_of_ones_own(outside):
    with pytest.raises(UserError, match=r"run the code of the module stranger.parts"):
        read_pairs("python:stranger.parts:pairs", "test", "en", "de")
    trusted = Tfds(trust_code=True)
    pairs = read_pairs("python:stranger.parts:pairs", "test", "en", "de", trusted)
    assert pairs[0] == ("test one", "eins")
    assert read_pairs("python:stranger.parts:pairs", "test", "en", "de") == pairs  # found before
    with pytest.raises(UserError, match=r"'stranger.parts:broken' was read from a file"):
        read_pairs("python:stranger.parts:broken", "test", "en", "de")


def test_a_recipe_of_ones_own_for_any_task(outside, ran, refused):
    refused(main, ["recipes", "./mine.py"], "./mine.py is your own recipe: edit its file")
    (outside / "mine.py").write_text(
        "from experiments.recipes.finetuning import finetune_bert\n\n"
        "def slow(task):\n    return finetune_bert(task).changed(training=dict(epochs=9.0))\n"
    )
    out = ran(main, "settings", "./mine.py:slow:rte", "epochs").out
    assert "\ntraining.epochs=9.0\n" in f"\n{out}" and "passes over the training set" in out


@pytest.mark.parametrize(
    "recipe", ["elmo_tiny", "tcn_jsb", "sentence_bert:stsb", "text_to_text:sst2"]
)
def test_the_settings_of_every_kind_of_recipe_are_listed(recipe, ran, refused):
    out = ran(main, "settings", recipe, "--set", "training.seed=7").out
    assert "\ntraining.seed=7\n    a whole number of at least 0: random seed for weight" in out
    assert "\nmodel.dropout=" in out
    wrong = ["settings", recipe, "--set", "training.sed=7"]
    refused(main, wrong, "perhaps you meant 'training.seed'")
    name, _, task = recipe.partition(":")
    refused(main, ["settings", f"{recipe}x"], f"perhaps you meant '{task or name}'")
