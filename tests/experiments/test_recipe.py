"""Tests of recipes and their settings, of runs made from recipes, and of the parsers."""

import ast
import dataclasses
import json
import math
import pathlib
import re
import sys

import keras
import pytest

from experiments import command_line, registry
from experiments.commands import main
from macaron_tf.distribution import STRATEGIES
from macaron_tf.errors import UserError
from macaron_tf.models import catalog
from macaron_tf.objectives import MaskingConfig, ReplacedTokenObjective
from macaron_tf.runs.recipe import override, recipe_from_json, settings_of, warn_unread
from macaron_tf.runs.run import Run, write_json
from macaron_tf.runs.translation import TranslationRecipe
from macaron_tf.training import checkpoints
from macaron_tf.training.config import ENDING_SCHEDULES
from macaron_tf.training.optimizer import WarmupSchedule, make_optimizer
from tests.harness import refuses
from tests.toys.processes import python

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).parents[2]
FAMILIES = ("bert", "bert_rab", "swish_rnn")


def test_every_public_function_of_a_family_is_listed():
    listed = {}
    for path in (ROOT / "experiments" / "recipes").glob("[a-z]*.py"):
        functions = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)]
        listed |= {f.name: path.stem for f in functions if not f.name.startswith("_")}
    assert listed == registry.FAMILY_OF


@pytest.mark.slow
def test_a_training_imports_its_own_family_alone():
    code = "import sys, macaron_tf.runs.pretraining; from experiments import registry; "
    code += "registry.load('bert_tiny'); print(*sys.modules)"
    imported = python("-c", code)
    assert "experiments.recipes.bert" in imported.split()
    others = r"macaron_tf\.(hub|tasks|decoding|runs\.(elmo|sequences|translation|finetuning))"
    assert not re.findall(rf"\b(?:{others})\S*", imported)


@pytest.mark.parametrize("name", registry.names())
def test_every_recipe_loads_round_trips_and_names_pages_that_exist(name, tmp_path):
    recipe = registry.load(name)
    assert recipe_from_json(recipe.to_json(), name) == recipe
    printed = tmp_path / f"{name}.py"
    printed.write_text(registry.source_code(name))
    assert registry.load(str(printed), type(recipe)) == recipe
    del sys.modules[name]
    catalog.config(recipe.model, **dict(recipe.model_options))
    pages = " ".join(registry.documentation(name))
    for page in re.findall(r"[\w/]+\.md|experiments/results/\w+", pages):
        assert (ROOT / page).exists() or (ROOT / "experiments" / "results" / page).exists(), page


def update_rows(recipe) -> int:
    return recipe.data.batch_size * recipe.training.accumulation_steps


@pytest.mark.parametrize(
    ("name", "rows", "rate", "warm_up", "steps"),
    [
        # Lei et al. 2022, table 3, and Lu et al. 2019 with their released code.
        *((f"{family}_base", 1024, 3e-4, 20_000, 300_000) for family in FAMILIES),
        *((f"{family}_large", 4096, 2e-4, 20_000, 300_000) for family in FAMILIES),
        ("macaron_bert_base", 256, 3e-4, 10_000, 800_000),
        # The papers of the other systems.
        ("roberta_base", 2048, 5e-4, 10_000, 125_000),
        ("roberta_8k_base", 8192, 6e-4, 24_000, 500_000),
        ("roberta_8k_large", 8192, 4e-4, 30_000, 500_000),
        ("span_bert_base", 256, 1e-4, 10_000, 2_400_000),
        ("electra_small", 128, 5e-4, 10_000, 1_000_000),
        ("electra_base", 256, 2e-4, 10_000, 766_000),
        ("gmlp_base", 256, 7e-4, 10_000, 1_000_000),
        ("xlnet_base", 256, 1e-4, 10_000, 1_000_000),
        ("xlnet_large", 8192, 4e-4, 40_000, 500_000),
    ],
)
def test_the_papers_updates(name, rows, rate, warm_up, steps):
    recipe = registry.load(name)
    training = recipe.training
    assert recipe.model == name.replace("_8k", "") and update_rows(recipe) == rows
    found = (training.learning_rate, training.warmup_steps, training.max_steps)
    assert found == (rate, warm_up, steps) and training.schedule == "linear"


def test_berts_two_phases_are_one_schedule():
    phases = [registry.load(f"bert_devlin_{length}") for length in (128, 512)]
    assert [phase.data.sequence_length for phase in phases] == [128, 512]
    whole = WarmupSchedule("linear", 1e-4, 1_000_000, 10_000, start=1e-7)
    for step in (0, 5_000, 10_000, 450_000, 899_999, 900_000, 950_000, 999_999):
        optimizer = make_optimizer(phases[step >= 900_000].training, [keras.Variable(0.0)])
        optimizer.iterations.assign(step - 900_000 * (step >= 900_000))
        found = optimizer.learning_rate
        assert float(found) == pytest.approx(float(whole(step)), rel=1e-4)
    assert {update_rows(phase) for phase in phases} == {256}


def masking(**changes) -> str:
    """Returns all settings of masking: those of BERT, with changes."""
    values = dataclasses.asdict(MaskingConfig(**changes))
    return " ".join(f"objective.masking.{name}={value}" for name, value in values.items())


BERT = f"data.pairs=next_sentence {masking(mask=0.8, random=0.1)}"
TRANSLATION = "training.warmup_steps=8000 training.clip_norm=None"
WMT = "training.weight_decay=0.0 task.decoding.beam_size=4 task.decoding.length_penalty=0.6 "
WMT += f"task.decoding.length_penalty_name=gnmt {TRANSLATION}"
READING = "data.batch_size=32 data.max_length=384"
# From the papers and their released code.
PAPERS = {
    **dict.fromkeys(
        [f"{family}_{size}" for family in FAMILIES for size in ("base", "large")],
        "training.beta_1=0.9 training.beta_2=0.98 training.weight_decay=0.01 data.pairs=none "
        f"data.sequence_length=512 {masking(rate=0.15, mask=1.0, random=0.0)}",
    ),
    # 256 rows of 512 tokens are the paper's 128 * 1024 tokens.
    "macaron_bert_base": f"data.sequence_length=512 training.epsilon=1e-6 model.norm=pre {BERT}",
    **dict.fromkeys(
        ["bert_devlin_128", "bert_devlin_512"],
        "training.clip_norm=1.0 training.beta_1=0.9 training.beta_2=0.999 training.epsilon=1e-6 "
        "training.weight_decay=0.01 training.decay_vectors=False data.vocabulary.size=30522 "
        f"model.dropout=0.1 model.attention_dropout=0.1 model.max_length=512 {BERT}",
    ),
    **dict.fromkeys(
        ["roberta_base", "roberta_8k_base", "roberta_8k_large"],
        "training.beta_2=0.98 training.epsilon=1e-6 data.vocabulary.kind=byte_bpe "
        f"data.vocabulary.size=50265 data.packing=full_sentences {masking()}",
    ),
    "albert_base": "data.pairs=sentence_order objective.masking.choice=ngrams",
    "span_bert_base": "data.vocabulary.kind=wordpiece data.vocabulary.lower_case=False "
    + masking(choice="spans", fate="span", round_up=True),
    "electra_base": f"objective.discriminator_weight=50.0 objective.generator_width={1 / 3} "
    + masking(mask=1.0, random=0.0, round_up=True),
    **dict.fromkeys(
        ["xlm_xnli", "xlm_tiny", "xlm_clm_tiny"],
        "data.language_alpha=0.5 data.batch_alpha=0.7 data.packing=full_text",
    ),
    "iwslt14_macaron_small": "data.batching.max_tokens=4096 training.accumulation_steps=1 "
    "training.learning_rate=1.5e-3 training.weight_decay=1e-4 model.dropout=0.3 "
    "model.hidden_dim=512 task.decoding.beam_size=5 task.decoding.length_penalty=1.0 "
    f"task.decoding.length_penalty_name=fairseq task.average_last=10 {TRANSLATION}",
    "wmt14_macaron_base": "data.batching.max_tokens=4096 training.accumulation_steps=8 "
    "training.learning_rate=1.5e-3 model.dropout=0.1 model.hidden_dim=512 "
    f"task.average_last=5 {WMT}",
    "wmt14_macaron_big": "data.batching.max_tokens=4096 training.accumulation_steps=64 "
    "training.learning_rate=3e-3 model.dropout=0.3 model.hidden_dim=1024 "
    f"task.average_last=20 {WMT}",
    "finetune:rte": "data.batch_size=32 training.epochs=3 data.max_length=128 "
    "training.learning_rate=5e-5 training.schedule=linear training.epsilon=1e-6 "
    "training.weight_decay=0.01",
    "finetune:squad": f"training.learning_rate=5e-5 training.epochs=3 {READING}",
    "finetune_bert:squad": f"training.learning_rate=3e-5 training.epochs=2 {READING} "
    "data.spans.doc_stride=128 data.spans.max_question=64 data.spans.max_answer=30",
    "finetune_bert:squad2": "training.learning_rate=3e-5 training.epochs=2 data.batch_size=48 "
    "data.max_length=384",
    "finetune_bert:conll2003": "training.learning_rate=5e-5 training.epochs=3 data.batch_size=32 "
    "data.max_length=128",
    "finetune_spanbert:squad2": "training.learning_rate=2e-5 training.epochs=4 "
    "data.batch_size=32 data.max_length=512",
    "sentence_bert:mnli": "training.learning_rate=2e-5 training.schedule=linear "
    "task.pooling=mean task.concatenation=u,v,|u-v|",
    "sentence_bert:stsb": "data.batch_size=16 training.epochs=4",
    "sentence_bert:triplets": "task.margin=1.0",
}


def values_of(recipe) -> dict[str, str]:
    """Returns a dict mapping the path of each setting to the value's `repr`."""
    return {path: value for path, value, *_ in settings_of(recipe)}


@pytest.mark.parametrize("name", PAPERS)
def test_settings_of_a_paper_change_nothing_in_its_recipe(name):
    recipe = registry.load(name)
    assert values_of(override(recipe, PAPERS[name].split())) == values_of(recipe)


# The papers' passes over a training set, as updates.
SWISH = {"warmup_steps": 1_000, "validate_every": 1_000, "schedule": "constant", "weight_decay": 0}
UPDATES = [
    ("finetune:rte", 2_490, {"max_steps": 234, "warmup_steps": 23, "validate_every": 78}),
    ("sentence_bert:mnli", 942_069, {"max_steps": 58_880, "warmup_steps": 5_888}),  # with SNLI
    ("sentence_bert:stsb", 5_749, {"max_steps": 1_440, "validate_every": 360}),
    ("finetune_swish_rnn:boolq", 9_427, {"max_steps": 50_000, **SWISH}),
    ("finetune_swish_rnn:mnli", 392_702, {"max_steps": 200_000, **SWISH}),
    ("finetune_swish_rnn:sst2", 67_349, {"max_steps": 80_000, **SWISH}),
    # The default for sets that no paper names.
    ("finetune_swish_rnn:copa", 400, {"max_steps": 20_000, **SWISH}),
]


@pytest.mark.parametrize(("name", "examples", "expected"), UPDATES)
def test_passes_are_so_many_updates(name, examples, expected):
    recipe = registry.load(name)
    training = recipe.resolved(examples).training
    assert {name: getattr(training, name) for name in expected} == expected
    short = override(recipe, ["training.max_steps=50"])
    assert short.resolved(examples).training.max_steps == 50
    if recipe.training.epochs:
        halved = override(recipe, ["training.accumulation_steps=2"]).resolved(examples)
        assert halved.training.max_steps == pytest.approx(expected["max_steps"] / 2, abs=1)


@pytest.mark.parametrize(
    ("recipe", "setting", "message"),
    [
        ("demo", "training.seed", "write PATH=VALUE"),
        (
            "demo",
            "trainin.seed=1",
            "perhaps you meant 'training.seed': choose one of model, .* training",
        ),
        ("demo", "model.intermediate_dim=64", "perhaps you meant 'model.feed_forward_dim'"),
        ("demo", "training=1", "choose one of max_steps"),
        ("demo", "training.seed.x=1", "names no single setting: choose one of max_steps"),
        # Settings of another objective.
        (
            "bert_tiny",
            "objective.deletion=0.9",
            "names no single setting.*: choose one of skip_padding",
        ),
        ("bert_tiny", "masking.rate=0.3", "perhaps you meant 'objective.masking.rate'"),
        (
            "gpt2_tiny",
            "objective.masking.mask=0.9",
            "objective.masking.mask=0.9 names no single setting",
        ),
        ("bert_tiny", "objective.sentence_pair=True", "follows from the recipe's name, --init or"),
        # Settings that do not go with others.
        ("bert_tiny", "model.max_length=8", "model.max_length is 8"),
        ("bert_tiny", "objective=span_boundary", "set objective.masking.choice=spans"),
        ("bert_tiny", "model.causal=True", "does not support model.causal=True"),
        ("t5_tiny", "model=bert_tiny", "bert_tiny does not fit: set model to bart_base"),
        (
            "t5_tiny",
            "data.isolate_documents=True",
            "an encoder-decoder or translation",
        ),
        ("transformer_xl_tiny", "data.isolate_documents=True", "a memory, .* join documents"),
        ("transformer_xl_tiny", "data.packing=doc_text", "data.packing=full_text"),
        ("transformer_xl_tiny", "model.positions=learned", "model.positions=transformer_xl"),
        ("xlnet_tiny", "model.block=swish_rnn", "would reveal each token to its own prediction"),
        (
            "gpt_tiny",
            "data.isolate_documents=True model.block=gmlp",
            "GatedMLP mixes packed documents",
        ),
    ],
)
def test_bad_settings_are_named(recipe, setting, message):
    refuses(message, lambda: registry.load(recipe, settings=setting.split()).model_config(99))


@pytest.mark.parametrize(
    ("recipe", "settings", "unread"),
    [
        (
            "finetune:rte",
            ["training.optimizer=adafactor"],
            ["training.beta_1=0.5", "data.spans.max_answer=9", "task.words.char_dim=9"],
        ),
        ("sentence_bert:stsb", [], ["task.margin=2.0", "task.concatenation=u"]),
        ("sentence_bert:snli", [], ["task.margin=2.0"]),
        ("tcn_adding", [], ["data.held_out=9", "data.path=x"]),
        ("t5_tiny", [], ["training.beta_1=0.5"]),
        ("gpt2_tiny", [], ["data.vocabulary.max_characters=9"]),
        ("multi30k_macaron_tiny", [], ["task.denoising.deletion=0.5"]),
        ("bert_tiny", [], ["model.clamp_length=9"]),
    ],
)
def test_a_setting_that_nothing_reads_is_warned_of(recipe, settings, unread, capsys):
    recipe = registry.load(recipe, settings=settings)
    read = ["task.concatenation=u,v"] if recipe.kind == "embedding" and len(unread) == 1 else []
    warn_unread(recipe, recipe.network(recipe.model_config(99)), [*unread, *read])
    sentence = "warning: {} has no effect, because no part of this model reads it\n"
    expected = [sentence.format(setting.partition("=")[0]) for setting in unread]
    assert capsys.readouterr().err == "".join(expected)


def test_another_objective_keeps_what_both_have():
    settings = ["objective.masking.round_up=True", "objective=replaced_tokens"]
    settings += ["objective.generator_width=0.5", "objective.skip_padding=False"]
    recipe = registry.load("bert_tiny", settings=settings)
    masking = MaskingConfig(mask=1.0, random=0.0, round_up=True)
    wanted = ReplacedTokenObjective(masking=masking, generator_width=0.5, skip_padding=False)
    assert recipe.objective == wanted == recipe.make_objective()
    assert recipe_from_json(recipe.to_json(), "here") == recipe
    assert not recipe.make_objective(static_shapes=True).skip_padding
    paths = values_of(recipe)
    assert paths["objective"] == "'replaced_tokens'" and "objective.name" not in paths
    assert paths["objective.masking.round_up"] == "True"


def test_an_objective_of_ones_own_adds_settings(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_masking.py").write_text(
        "import dataclasses\n"
        "from macaron_tf.objectives import MaskedLanguageObjective\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Noisy(MaskedLanguageObjective):\n"
        "    noise: float = 0.1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = ["objective=my_masking:Noisy", "objective.noise=0.2"]
    own = registry.load("bert_tiny", settings=settings)
    assert capsys.readouterr().err.startswith("importing your code: my_masking, ")
    assert (own.objective.noise, own.objective.masking.mask) == (0.2, 1.0)
    near, wrong = "perhaps you meant 'objective.noise'", [settings[0], "objective.noize=0.2"]
    refuses(near, registry.load, "bert_tiny", settings=wrong)
    assert own.names_code and own.card()["objective"] == "masked_language"
    assert recipe_from_json(own.to_json(), "here", trust_code=True) == own
    # An instance has its location as its name, so that a saved recipe names the class.
    assert type(own.objective)().name == own.objective.name == "my_masking:Noisy"
    changed = registry.load("bert_tiny").changed(objective="my_masking:Noisy")
    assert changed.objective.masking.mask == 1.0


def test_a_warm_up_that_outlasts_the_run_is_refused():
    settings = ["training.max_steps=1500", "training.warmup_steps=1500"]
    words = "not less than training.max_steps=1500: set training.warmup_steps=150, or raise trai"
    refuses(words, registry.load, "multi30k_macaron_tiny", settings=settings)
    settings = ["training.warmup_steps=50", "training.max_steps=60"]
    for both in (settings, settings[::-1]):  # settings are validated together
        assert registry.load("bert_tiny", settings=both).training.warmup_steps == 50


OF_TASKS = [f"{name}:rte" for name in registry.FAMILY_OF if name.startswith("finetune")]
OF_TASKS.append("sentence_bert:stsb")


@pytest.mark.parametrize("name", [*registry.names(), *OF_TASKS])
def test_the_warm_up_of_every_recipe_follows_a_shorter_run(name):
    whole = registry.load(name)
    short = override(whole, ["training.max_steps=10"])
    if whole.training.warmup_start == whole.training.learning_rate:  # T5's constant first part
        assert short.training.warmup_steps == 10_000
        return
    share = whole.training.warmup_steps / whole.training.max_steps
    if name in OF_TASKS:
        short = short.resolved(num_examples=2_240)
        share = whole.training.warmup_fraction or share
    assert short.training.warmup_steps == int(share * 10) <= 5
    # A resumed run keeps its warm-up.
    if short.training.schedule not in ENDING_SCHEDULES:
        for recipe, steps in ((short, 2), (whole, 20), (whole, whole.training.max_steps)):
            again = override(recipe, [f"training.max_steps={steps}"], lambda: short).training
            assert again.warmup_steps == short.training.warmup_steps


def test_sources_may_be_one_or_several():
    one = registry.load("bert_tiny", settings=["data.sources=text:a/*.gz"])
    assert [s.source for s in one.data.sources] == ["text:a/*.gz"]
    two = override(one, ["data.sources=['text:a', 'tfds:b']", "model.rnn_step_sizes=(1, 2)"])
    assert [s.source for s in two.data.sources] == ["text:a", "tfds:b"]
    assert recipe_from_json(two.to_json(), "a file") == two


def test_blocks_that_alternate_need_no_quotation_marks():
    text = "model.block=[gated_deltanet, gated_deltanet, transformer]"
    config = registry.load("gpt_tiny", settings=[text]).model_config()
    assert config.blocks == ("gated_deltanet", "gated_deltanet", "transformer")


def test_a_recipe_of_another_kind_is_refused():
    with pytest.raises(UserError, match="is a PretrainingRecipe, not a TranslationRecipe"):
        registry.load("bert_tiny", TranslationRecipe)
    with pytest.raises(UserError, match="is a recipe of kind 'pretraining'"):
        recipe_from_json(registry.load("bert_tiny").to_json(), "a file", kind="translation")


@pytest.mark.parametrize("text", ["", "[]", '{"model": 3}', '{"a": 1}'])
def test_damaged_recipe_files_are_named(text):
    with pytest.raises(UserError, match=r"run/recipe.json is not a recipe"):
        recipe_from_json(text, "run/recipe.json")


def make(path, step):
    """Makes a complete checkpoint folder with one dummy file."""
    directory = checkpoints.CheckpointDirectory(path)
    directory.save(step, lambda folder: (folder / "x").write_text("x"), {"vocabulary": ""})


def test_an_average_counts_until_a_later_regular_checkpoint(tmp_path, capsys):
    recipe = override(registry.load("demo"), ["training.save_every_steps=10"])
    run = Run(tmp_path, recipe, None)
    refuses("has no checkpoint yet: train the model first", run.checkpoint)
    for step in (10, 20):
        make(tmp_path, step)
    manifest = json.loads(
        (checkpoints.CheckpointDirectory(tmp_path).of_step(20) / "manifest.json").read_text()
    )
    checkpoints.save_whole(tmp_path / "average", lambda folder: None, {**manifest, "files": {}})
    make(tmp_path, 27)  # saved because of the time, so the average still counts
    assert run.checkpoint().name == "average"
    assert capsys.readouterr().err == ""
    make(tmp_path, 30)
    assert run.checkpoint().name == "step-00000030"
    assert "average again" in capsys.readouterr().err
    assert run.checkpoint("10").name == "step-00000010"
    refuses("has no checkpoint 11: choose among 10, 20, 27, 30, average", run.checkpoint, "11")


def test_a_run_with_only_damaged_checkpoints_is_refused(tmp_path):
    run = Run(tmp_path, registry.load("demo"), None)
    make(tmp_path, 10)
    (tmp_path / "checkpoints/step-00000010/x").write_text("y")
    for name in (None, "last"):
        refuses("every checkpoint in .*checkpoints is damaged: restore", run.checkpoint, name)


@pytest.mark.parametrize("best", ["{", '{"step": -3}', '{"step": 30, "metric": "x", "score": 1}'])
def test_other_weights_than_the_best_are_told(tmp_path, capsys, best):
    run = Run(tmp_path, registry.load("demo"), None)
    directory = checkpoints.CheckpointDirectory(tmp_path)
    make(tmp_path, 10)
    directory.save(20, lambda folder: None, {"vocabulary": "", "metrics": {"x": 1.0}})
    directory.mark_best(10, "x", 1.0)
    assert run.checkpoint().name == "step-00000010"
    assert capsys.readouterr().err == ""
    (tmp_path / "checkpoints" / "best.json").write_text(best)
    assert run.checkpoint().name == "step-00000020"
    assert "best.json is damaged, or its checkpoint is missing: the" in capsys.readouterr().err


def test_the_commands_offer_the_library_s_strategies():
    assert command_line.STRATEGIES == STRATEGIES


@pytest.mark.parametrize("recipe", ["multi30k_macaron_tiny", "bert_tiny", "elmo_tiny"])
def test_a_folder_of_another_run_is_noticed_before_missing_data(recipe, tmp_path, refused):
    (tmp_path / "recipe.json").write_text('{"kind": "sequence"}')
    words = ["train", recipe, tmp_path, "--data-dir", tmp_path / "none"]
    refused(main, words, "recipe.json is a recipe of kind 'sequence'", tmp_path)


def test_json_has_null_for_what_it_lacks(tmp_path):
    metrics = {"loss": math.nan, "of": [1.0, math.inf, {"part": (-math.inf, 2)}], "text": "naïve"}
    write_json(tmp_path / "scores.json", metrics)
    found = json.loads((tmp_path / "scores.json").read_bytes(), parse_constant=pytest.fail)
    assert found == {"loss": None, "of": [1.0, None, {"part": [None, 2]}], "text": "naïve"}
