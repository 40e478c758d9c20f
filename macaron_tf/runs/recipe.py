"""Recipes, which are frozen dataclasses that hold every setting of a run.

Each run saves its recipe in the file recipe.json of its folder.
"""

import contextlib
import dataclasses
import difflib
import json
import operator
import pkgutil
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import keras

from macaron_tf.errors import ALIASES, UserError, nearest, parse_json, warn
from macaron_tf.io.plug_ins import find_sources, imported_names, source_names
from macaron_tf.models import EncoderConfig, catalog
from macaron_tf.objectives import Objective
from macaron_tf.settings import ReadIf, Settings, Variants, describe, hints_of, parse
from macaron_tf.text import PieceVocabulary
from macaron_tf.training.config import ENDING_SCHEDULES, TrainingConfig

if typing.TYPE_CHECKING:
    from macaron_tf.models.model_parts import TaskSettings
    from macaron_tf.runs.run import Inputs, Plan, Run

# Class of each kind of recipe.
_CLASSES = {
    "pretraining": "macaron_tf.runs.pretraining:PretrainingRecipe",
    "finetuning": "macaron_tf.runs.finetuning:FinetuningRecipe",
    "embedding": "macaron_tf.runs.embedding:EmbeddingRecipe",
    "text_to_text": "macaron_tf.runs.text_to_text:TextRecipe",
    "translation": "macaron_tf.runs.translation:TranslationRecipe",
    "elmo": "macaron_tf.runs.elmo:ElmoRecipe",
    "sequence": "macaron_tf.runs.sequences:SequenceRecipe",
}

# Settings of training length, validation and saving, which may differ when a run is resumed.
_LENGTHS = ("max_steps", "max_minutes", "max_skipped_updates", "early_stopping_patience")
_INTERVALS = ("log_every", "validate_every", "save_every_steps", "save_every_minutes", "keep_last")
MAY_CHANGE = tuple(f"training.{name}" for name in (*_LENGTHS, *_INTERVALS))

# Settings that a model card always shows. A card shows other settings only if they are not
# defaults.
CARD_SETTINGS = ("objective.name", "data.batch_size", "data.vocabulary.kind")
CARD_SETTINGS += ("data.vocabulary.size", "data.batching.max_tokens")
CARD_SETTINGS += ("training.optimizer", "training.learning_rate", "training.schedule")
CARD_SETTINGS += ("training.max_steps", "training.warmup_steps", "training.seed")

_Recipe = typing.TypeVar("_Recipe", bound="Recipe")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """Base class of recipes: the settings of a kind of training, and what the kind does with them.

    A subclass adds the settings of its `task` (in pre-training, its `objective`) and of its `data`.
    It says how a run starts (`read_start`, `started`), what it trains on (`plan`), and what its
    network and its objective are.

    Attributes:
        model: name of the model in the catalog.
        training: training settings.
        data: settings of what is read: sources, lengths of rows and sizes of batches.
        init: pre-trained model to start from, in a form that `macaron_tf.load` accepts; `None`
            means random weights.
        model_options: pairs of a configuration field and a value, for fields that differ from the
            catalog.
    """

    # Type of the recipe in a run's recipe.json.
    kind: typing.ClassVar[str] = ""
    # Settings that may differ when a run is resumed. A path that ends in a dot is a whole section.
    may_change: typing.ClassVar[tuple[str, ...]] = MAY_CHANGE
    # Settings that the run takes from its data, which are not known before the data are read.
    from_data: typing.ClassVar[tuple[str, ...]] = ()
    # Dict mapping a setting to the path of a setting that it replaces, and to the new text of this
    # setting; `None` means the same text.
    implied: typing.ClassVar[dict[str, tuple[str, str | None]]] = {}
    # Settings that follow from the name of the recipe, from `init` or from other settings.
    derived: typing.ClassVar[tuple[str, ...]] = ()
    # Settings that determine the pre-trained model from which training starts.
    start_settings: typing.ClassVar[tuple[str, ...]] = ("init",)
    # Settings that an evaluation may change. A path that ends in a dot is a whole section.
    evaluation_settings: typing.ClassVar[tuple[str, ...]] = ()
    # Classes of the configurations that the recipe supports, and the settings with numbers of
    # tokens that must not exceed the model's positions.
    configs: typing.ClassVar[tuple[type, ...]] = (EncoderConfig,)
    lengths: typing.ClassVar[tuple[str, ...]] = ()
    # Fields of `Inputs` that `read_start` and `plan` read, among those that not all kinds read.
    training_flags: typing.ClassVar[tuple[str, ...]] = ()
    trains_on_jax: typing.ClassVar[bool] = False
    # Class of the vocabulary in the folder of a run; `None` for runs without a vocabulary.
    vocabulary_class: typing.ClassVar[type | None] = PieceVocabulary

    model: str
    training: TrainingConfig
    data: Settings
    init: str | None = None
    model_options: tuple[tuple[str, typing.Any], ...] = ()

    def changed(self, **values) -> typing.Self:
        """Returns a copy of the recipe with fields replaced. A dict replaces fields of a section.

        Example: `bert_base().changed(model="bert_large", training=dict(learning_rate=2e-4))`.
        """
        return _changed(self, values)

    def model_config(self, vocab_size: int | None = None) -> typing.Any:
        """Returns the model's configuration with `model_options` applied.

        Args:
            vocab_size: vocabulary size; `None` means 8, for callers that do not use the vocabulary
                size.
        """
        options = dict(self.model_options)
        if "vocab_size" in options:
            raise UserError("model.vocab_size is the size of the vocabulary: leave it out")
        with as_user_errors("model"):
            config = catalog.config(self.model, vocab_size=vocab_size or 8, **options)
        self.expect_model(config, *self.configs)
        for name in self.lengths if config.longest is not None else ():
            length, longest = operator.attrgetter(name)(self), config.longest
            if longest < length:
                raise UserError(f"{name} is {length}, but the model has {longest} positions")
        return config

    @property
    def names_code(self) -> bool:
        """Whether the recipe names user code, so that its run is opened with `--trust-code`."""
        record = dataclasses.asdict(self)
        return bool(imported_names(record) or source_names(record))

    def read_start(self, inputs: "Inputs", earlier: "Run | None") -> typing.Any:
        """Loads the pre-trained model that `init` names, for `started` and `plan`.

        The recipe has no settings of the pre-trained model yet. `earlier` is the run that the
        command resumes. The base class returns `None`, which means random weights.
        """
        return None

    def started(self, start: typing.Any) -> typing.Self:
        """Returns the recipe with the settings of the pre-trained model `start`."""
        return self.changed(**start.settings)

    def plan(self, run: "Run", start: typing.Any, inputs: "Inputs") -> "Plan":
        """Reads the data of a run with this recipe, and returns all that training needs.

        Every subclass must define this method.
        """
        raise NotImplementedError

    def network(self, config) -> keras.Model:
        """Makes, but does not build, the network that `config` describes."""
        return catalog.network(config, self.training.dtype_policy)

    def sized_config(self, vocabulary: typing.Any) -> typing.Any:
        """Returns the model's configuration for a vocabulary."""
        return self.model_config(vocabulary and vocabulary.size)

    def adapt(self, network: keras.Model) -> None:
        """Prepares a network with initial weights for training."""

    def memory(
        self, network: keras.Model, use: typing.Literal["training", "evaluation"] = "training"
    ) -> Sequence[keras.Variable]:
        """Returns the variables of the network that keep state from batch to batch, if any."""
        return ()

    def make_objective(self, static_shapes: bool = False) -> Objective:
        """Makes the training objective. Every subclass must define this method.

        Args:
            static_shapes: whether no tensor shape may depend on tensor values, as for TPUs and JAX.
        """
        raise NotImplementedError

    def task_settings(self) -> "TaskSettings | None":
        """Returns the settings of the trained model's task; `None` means the defaults."""
        return None

    def card(self) -> dict[str, typing.Any]:
        """Returns the fields of the trained model's `Card` that the recipe sets."""
        defaults = (leaf.path for leaf in _leaves(self) if leaf.value == leaf.field.default)
        unlisted = {*_unread(self), *self.may_change, *defaults} - {*CARD_SETTINGS}
        return {
            "recipe": {"kind": self.kind},
            "model": self.model,
            "optimizer": self.training.optimizer,
            "unlisted": tuple(sorted(unlisted)),
        }

    def expect_model(self, config, *classes: type) -> None:
        """Raises a `UserError` if the model's configuration has none of the classes."""
        if not isinstance(config, classes):
            choices = ", ".join(catalog.names(classes[0]))
            raise UserError(f"the model {self.model} does not fit: set model to {choices}")

    def check_metric(self, metric_names: Iterable[str]) -> None:
        """Raises a `UserError` if `training.best_metric` is not in `metric_names`."""
        metric, names = self.training.best_metric, tuple(metric_names)
        if metric not in names:
            raise UserError(f"training.best_metric is {metric!r}, not one of {', '.join(names)}")

    def check_continues(
        self, before: "Recipe", where, may_change: Iterable[str], unknown: Iterable[str] = ()
    ) -> None:
        """Raises a `UserError` if this recipe cannot continue a run that `before` started.

        The two recipes must agree in all settings except `may_change` and `unknown`. They must also
        agree in `training.max_steps`, unless it is `unknown`, if the schedule is linear or cosine.
        """
        if self.training.schedule in ENDING_SCHEDULES:
            may_change = {*may_change} - {"training.max_steps"}
        for name, (old, new) in before.differences(self).items():
            if not is_among(name, (*may_change, *unknown)):
                found = f"{where} was trained with {name}={old!r}, not {new!r}"
                advice = f"continue the run with its own settings by `train --resume {where}`"
                raise UserError(f"{found}: choose another folder, or {advice}")

    def differences(self, other: "Recipe") -> dict[str, tuple[typing.Any, typing.Any]]:
        """Returns the settings that differ between two recipes.

        The result maps a path to a pair: the value in this recipe, and the value in `other`. `None`
        stands for the value of a setting that a recipe does not have.
        """
        values, other_values = (
            {leaf.path: leaf.value for leaf in _leaves(recipe)} for recipe in (self, other)
        )
        paths = values | other_values
        pairs = {path: (values.get(path), other_values.get(path)) for path in paths}
        return {path: (first, second) for path, (first, second) in pairs.items() if first != second}

    def to_json(self) -> str:
        """Returns the recipe and its kind as JSON text, which `recipe_from_json` reads."""
        return json.dumps({"kind": self.kind, **dataclasses.asdict(self)}, indent=2) + "\n"


def is_among(path: str, settings: Iterable[str]) -> bool:
    """Returns whether `settings` contain `path` or, as in "training.", its whole section."""
    return any(
        path == entry or (entry.endswith(".") and path.startswith(entry)) for entry in settings
    )


@contextlib.contextmanager
def as_user_errors(prefix: str) -> Iterator[None]:
    """Turns a `ValueError` in the `with` block into a `UserError` that begins with `prefix`."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{prefix}: {error}") from error


def recipe_class(kind: str) -> type[Recipe]:
    """Returns the class of recipes whose `kind` is `kind`."""
    return pkgutil.resolve_name(_CLASSES[kind])


def recipe_from_json(
    text: str, where: str, trust_code: bool = False, kind: str | None = None
) -> Recipe:
    """Reads the output of `Recipe.to_json`.

    Args:
        where: path of the file, for error messages.
        trust_code: whether to import the user's objective, optimizer and blocks that the recipe
            names.
        kind: kind that the recipe must have; `None` means any.
    """
    try:
        values = parse_json(text)
        found = str(values.pop("kind", None))
        if kind in (None, found):
            recipe = recipe_class(found)(**values, trust_code=trust_code)
            # `model_config` checks the fields of the model as if the user had written them.
            config_class = type(catalog.config(recipe.model))
            config_class.converted(dict(recipe.model_options), trust_code)
            return recipe
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{where} is not a recipe of this version ({error})") from error
    raise UserError(f"{where} is a recipe of kind {found!r}, not {kind!r}: give another run")


def override(
    recipe: _Recipe,
    settings: Iterable[str],
    read_saved: Callable[[], "Recipe | None"] = lambda: None,
) -> _Recipe:
    """Returns a copy of the recipe with settings replaced, and imports the user code they name.

    All replacements take effect together. Fewer steps and a shorter warm-up, for example, may be
    given in either order. If `settings` shorten the run but not the warm-up, the warm-up may be
    shortened too; see `_warm_up`.

    Args:
        settings: strings of the form `path=value`, such as `training.max_steps=500`,
            `data.source=tsv:pairs.tsv`, `model.dropout=0.2` (a field of the model's configuration)
            or `model=macaron_small`.
        read_saved: function that returns the recipe of the run to resume, or `None` for a new run.
            The function is called after the settings are parsed, because the run may name the same
            user code. The saved run keeps its warm-up unless `settings` give another.
    """
    settings, texts = tuple(settings), {}
    for setting in settings:
        path, equals, texts[path] = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting} contains no '=': write PATH=VALUE")
        if path in recipe.derived:
            why = "it follows from the recipe's name, --init or other settings"
            raise UserError(f"--set {setting} is not possible, because {why}: leave it out")
    for path, (implied, text) in recipe.implied.items():
        if path in texts:
            texts[implied] = text or texts[path]
    # Settings of new classes, which replace sections of the recipe.
    chosen = {
        name: parse(name, texts[name], hint)
        for name, hint in _variants(type(recipe)).items()
        if name in texts
    }
    with as_user_errors("model"):
        config = catalog.config(texts.get("model", recipe.model))
    leaves = (*_leaves(recipe, replaced=chosen), *_leaves(config, "model."))
    hints = {leaf.path: hints_of(leaf.owner)[leaf.field.name] for leaf in leaves}
    values: dict[str, typing.Any] = {}
    model_options = {}
    for path, text in texts.items():
        *sections, name = path.split(".")
        if path in chosen:
            continue
        if path not in hints:
            raise _unknown(path, text, [*hints], ("model_options", *recipe.derived))
        value, section = parse(path, text, hints[path]), values
        if sections == ["model"]:
            model_options[name] = value
            continue
        find_sources(value)
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    for path, start in chosen.items():
        values[path] = _changed(getattr(recipe, path), values.get(path, {}), start)
    if model_options:
        options = {**dict(recipe.model_options), **model_options}
        values["model_options"] = tuple(sorted(options.items()))
    saved, given, changes = read_saved(), recipe.training, values.setdefault("training", {})
    if "warmup_steps" not in changes:
        shortened = _warm_up(given, changes.get("max_steps", given.max_steps))
        changes["warmup_steps"] = saved.training.warmup_steps if saved else shortened
    recipe = recipe.changed(**values)
    training = recipe.training
    warm_up, steps = training.warmup_steps, training.max_steps
    if not saved and warm_up >= steps and not _has_constant_warm_up(training):
        found = f"training.warmup_steps={warm_up} is not less than training.max_steps={steps}"
        advice = f"set training.warmup_steps={steps // 10}, or raise training.max_steps"
        raise UserError(f"{found}: {advice}")
    return recipe


def named_settings(cls: type[Settings], texts: Iterable[str]) -> dict[str, typing.Any]:
    """Parses values of `--set` of the form NAME=VALUE as fields of `cls`, and drops `None`."""
    values: dict[str, typing.Any] = {}
    hints = hints_of(cls)
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in hints or not equals:
            known = f"NAME=VALUE with one of the names {', '.join(hints)}"
            raise UserError(f"--set {text} is not {known}{nearest(name, hints)}")
        values[name] = parse(name, value, hints[name])
    cls(**values)  # checks the ranges
    return {name: value for name, value in values.items() if value is not None}


def warn_unread(recipe: Recipe, network: keras.Model, settings: Iterable[str]) -> None:
    """Warns on stderr of settings that no part of the built model reads."""
    unread = [*_unread(recipe), *(f"model.{name}" for name in network.unread())]
    for path in dict.fromkeys(setting.partition("=")[0] for setting in settings):
        if path in unread:
            warn(f"{path} has no effect, because no part of this model reads it")


def _unread(recipe: Recipe) -> list[str]:
    """Returns the paths of settings, apart from the model's, whose `ReadIf` does not hold."""
    return [
        leaf.path
        for leaf in _leaves(recipe)
        if not all(reader.condition(recipe) for reader in leaf.readers)
    ]


def refuse_argument_settings(settings: Iterable[str], by_argument: dict[str, str]) -> None:
    """Raises a `UserError` if `--set` has a setting that `by_argument` maps to another argument."""
    for setting in settings:
        name = setting.partition("=")[0]
        if name in by_argument:
            advice = f"give {by_argument[name]} instead"
            raise UserError(f"--set {setting} is not allowed in this command: {advice}")


def _warm_up(training: TrainingConfig, steps: int) -> int:
    """Returns the number of warm-up updates for a run of `steps` updates.

    If the recipe's warm-up takes more than half of a shortened run, the warm-up is shortened in
    proportion. For example, 1,000 warm-up updates in 10,000 updates become 100 in 1,000. A warm-up
    with a constant learning rate is not shortened.
    """
    warmup_steps = training.warmup_steps
    if _has_constant_warm_up(training):
        return warmup_steps
    is_shortened = steps < training.max_steps and 2 * warmup_steps > steps
    return warmup_steps * steps // training.max_steps if is_shortened else warmup_steps


def _has_constant_warm_up(training: TrainingConfig) -> bool:
    """Returns whether the learning rate does not rise in the warm-up, as in T5.

    The result is false for the linear and cosine schedules, whose decay has a fixed end.
    """
    is_constant = training.warmup_start >= training.learning_rate
    return is_constant and training.schedule not in ENDING_SCHEDULES


def _changed(node, values: Mapping[str, typing.Any], start: Settings | None = None):
    """Returns nested settings with fields replaced; only the final values are validated.

    With `start`, settings of another class, the result is `start` with the fields that it shares
    with `node`, and then `values`.
    """
    fields = {}
    if start is not None:
        shared = hints_of(type(start)).keys() & hints_of(type(node)).keys() - {"name"}
        fields, node = node.options(*shared), start
    variants = _variants(type(node))
    for name, value in values.items():
        before = fields.get(name, getattr(node, name))
        if isinstance(value, dict):
            value = _changed(before, value)
        elif name in variants and isinstance(value, str):
            value = _changed(before, {}, parse(name, value, variants[name]))
        fields[name] = value
    return dataclasses.replace(node, **fields)


def _variants(cls: type[Settings]) -> dict[str, typing.Any]:
    """Returns the annotations of fields whose class a name chooses, such as `objective`."""
    return {
        name: hint
        for name, hint in hints_of(cls).items()
        if any(isinstance(part, Variants) for part in typing.get_args(hint))
    }


class _Leaf(typing.NamedTuple):
    """A single setting: its dotted path, its value, and its field in the class `owner`.

    The setting is read if all conditions in `readers` hold, its own and those of its sections.
    """

    path: str
    value: typing.Any
    owner: type[Settings]
    field: dataclasses.Field
    readers: tuple[ReadIf, ...]


def settings_of(recipe: Recipe) -> Iterator[tuple[str, str, str, str]]:
    """Yields (path, `repr` of the value, range, meaning) for all settings but `model_options`."""
    leaves = [*_leaves(recipe), *_leaves(recipe.model_config(), "model.")]
    owners = {leaf.owner for leaf in leaves}
    items = {(owner, item.name): item for owner in owners for item in describe(owner)}
    for path, value, owner, field, _ in leaves:
        if path != "model_options":
            item = items[owner, field.name]
            yield path, repr(value), item.range, item.text


def _leaves(
    node: Settings,
    path: str = "",
    replaced: Mapping[str, Settings] = {},
    readers: tuple[ReadIf, ...] = (),
) -> Iterator[_Leaf]:
    """Yields all settings in nested settings, with the sections `replaced` in place of the node's.

    `path` is a prefix such as "model.", and `readers` has the conditions of the outer sections.
    """
    values, hints, leaves = {**vars(node), **replaced}, hints_of(type(node)), []
    for field in dataclasses.fields(node):
        parts = typing.get_args(hints[field.name])
        own = (part for part in parts if isinstance(part, ReadIf))
        value = values[field.name]
        leaves.append(_Leaf(f"{path}{field.name}", value, type(node), field, (*readers, *own)))
    yield from (leaf for leaf in leaves if not dataclasses.is_dataclass(leaf.value))
    variants = _variants(type(node))
    for leaf in leaves:
        if dataclasses.is_dataclass(leaf.value):
            for inner in _leaves(leaf.value, f"{leaf.path}.", readers=leaf.readers):
                names_class = leaf.field.name in variants and inner.path == f"{leaf.path}.name"
                yield leaf._replace(value=inner.value) if names_class else inner


def _unknown(path: str, text: str, known: Sequence[str], hidden: Iterable[str]) -> UserError:
    """Returns the error for `--set path=text` if no setting in `known` has the path.

    The error suggests a setting whose last name is similar, also one of another section. It does
    not list the settings in `hidden`.
    """
    last_names = {name: name.rpartition(".")[2] for name in known}
    last, section = path.rpartition(".")[2], path
    similar = difflib.get_close_matches(ALIASES.get(last, last), last_names.values(), 1)
    matches = [name for name in known if last_names[name] in similar]
    closest = difflib.get_close_matches(path, matches, 1, cutoff=0.0)
    suggestion = "".join(f"; perhaps you meant {name!r}" for name in closest)
    while section and not any(name.startswith(f"{section}.") for name in known):
        section = section.rpartition(".")[0]
    start = f"{section}." if section else ""
    inner = (name for name in known if name.startswith(start) and name not in hidden)
    choices = dict.fromkeys(name.removeprefix(start).partition(".")[0] for name in inner)
    # The suggestion comes first, because the list may be long.
    setting = f"--set {path}={text} names no single setting{suggestion}"
    return UserError(f"{setting}: choose one of {', '.join(choices)}")
