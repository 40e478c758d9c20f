"""Recipes: one frozen value holds every setting of a run and is saved in the run's folder."""

import contextlib
import dataclasses
import difflib
import json
import typing
from collections.abc import Iterable, Iterator

import keras

from macaron_tf.errors import UserError, nearest, parse_json
from macaron_tf.models import EncoderConfig, EncoderDecoderConfig, catalog
from macaron_tf.objectives import Objective
from macaron_tf.plug_ins import allow_within
from macaron_tf.settings import SettingDescription, Settings, describe, hints_of, parse
from macaron_tf.training.config import ENDING_SCHEDULES, TrainingConfig

# Settings of length, validation and saving, which may change when a run is resumed.
MAY_CHANGE = tuple(
    f"training.{name}"
    for name in (
        "max_steps",
        "max_minutes",
        "max_skipped_updates",
        "early_stopping_patience",
        "log_every",
        "validate_every",
        "save_every_steps",
        "save_every_minutes",
        "keep_last",
    )
)


# Settings that a model card shows whatever their values; others at their defaults it leaves out.
SHOWN = ("objective", "batch_size", "max_tokens", "vocabulary.kind", "vocabulary.size")
SHOWN += ("training.optimizer", "training.learning_rate", "training.schedule")
SHOWN += ("training.max_steps", "training.warmup_steps", "training.seed")

_MANY = 2**30  # ids of a network that is not built: more than any adaptive softmax cuts off


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """The settings that recipes of every kind share.

    Attributes:
        model: name in the model catalog.
        training: settings of training.
        model_options: fields of the model's configuration that differ, as (name, value) pairs.
    """

    # Name of the kind in a run's recipe.json, and the command that runs it.
    kind: typing.ClassVar[str] = ""
    command: typing.ClassVar[str] = ""
    # Settings, or beginnings of their paths that end in a dot, that a resumed run may change.
    may_change: typing.ClassVar[tuple[str, ...]] = MAY_CHANGE

    # Settings that an argument of the command decides, with its name.
    by_argument: typing.ClassVar[dict[str, str]] = {}

    model: str
    training: TrainingConfig
    model_options: tuple[tuple[str, typing.Any], ...] = ()

    def changed(self, **values) -> typing.Self:
        """The recipe with fields replaced; a dict replaces fields of the settings under its name:
        `bert_base().changed(model="bert_large", training=dict(learning_rate=2e-4))`.
        """
        return _changed(self, values)

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig | EncoderDecoderConfig:
        """The model's configuration, at a vocabulary's size."""
        options = dict(self.model_options)
        if "vocab_size" in options:
            raise UserError(
                "model.vocab_size follows from the vocabulary: set the vocabulary's size instead"
            )
        return self.catalog_config(vocab_size=vocab_size or 8, **options)

    def catalog_config(self, **options):
        """The catalog's configuration of the model, with fields replaced."""
        with naming("model"):
            return catalog.config(self.model, **options)

    @property
    def model_name(self) -> str:
        """The model's name, and its own sizes."""
        return catalog.sized_name(self.model, dict(self.model_options))

    def network(self, config) -> keras.Model:
        """The network of a model's configuration, in the recipe's dtype policy, not built."""
        return catalog.network(config, self.training.dtype_policy)

    def make_objective(self, static_shapes: bool = False) -> Objective:
        """The training objective; `static_shapes`: with none that depend on values, for a TPU."""
        raise NotImplementedError

    def usage(self) -> dict[str, typing.Any]:
        """Fields of `macaron_tf.pretrained.Pretrained` about the network's use."""
        unlisted = {*self.unread(), *self.may_change, *at_defaults(self)} - {*SHOWN}
        return {
            "model": self.model,
            "optimizer": self.training.optimizer,
            "unlisted": tuple(sorted(unlisted)),
        }

    def expect_model(self, config, kind: type, words: str) -> None:
        """Refuses a model whose configuration is of another class than `kind`.

        Args:
            words: the objection, such as "is no encoder"; the names of that class follow it.
        """
        if not isinstance(config, kind):
            known = ", ".join(catalog.names(kind))
            raise UserError(f"model: {self.model} {words}; there are {known}")

    def expect_positions(self, config, name: str, length: int) -> None:
        """Refuses the value `length` of the setting `name` if the model has fewer positions."""
        if config.longest is not None and config.longest < length:
            raise UserError(
                f"{name} is {length}, but the model has {config.longest} positions: set "
                f"{name}={config.longest} or less"
            )

    def follow(self, path: str) -> "Recipe":
        """The recipe after a setting was replaced, with others that follow from it."""
        return self

    def unread(self) -> dict[str, str]:
        """Settings without effect in this recipe, the model's aside, and what would read them.

        A path that ends in a dot stands for its whole section.
        """
        adam = self.training.optimizer == "adam"
        names = () if adam else ("beta_1", "beta_2", "epsilon")
        return {f"training.{name}": "training.optimizer=adam" for name in names}

    def check_metric(self, known: Iterable[str]) -> None:
        """Refuses a `training.best_metric` that is none of a validation's metrics."""
        if self.training.best_metric not in (known := tuple(known)):
            raise UserError(
                f"training.best_metric is {self.training.best_metric!r}: give one of "
                f"{', '.join(known)}"
            )

    def check_continues(
        self, before: "Recipe", where, may_change: Iterable[str] | None = None
    ) -> None:
        """Refuses to continue the run in the folder `where`, started by the recipe `before`."""
        free = self.may_change if may_change is None else may_change
        for name, (old, new) in before.differences(self).items():
            slope = name == "training.max_steps" and self.training.schedule in ENDING_SCHEDULES
            if slope or not is_among(name, free):
                raise UserError(
                    f"{where} was trained with {name}={old!r}, not {new!r}: "
                    "choose another folder, or give the recipe and settings it was started with, "
                    "as --resume does"
                )

    def differences(self, other: "Recipe") -> dict[str, tuple[typing.Any, typing.Any]]:
        """The settings in which two recipes differ, and both values, by path."""
        mine, theirs = ({path: value for path, value, _ in _leaves(one)} for one in (self, other))
        pairs = {path: (mine.get(path), theirs.get(path)) for path in mine | theirs}
        return {path: (one, two) for path, (one, two) in pairs.items() if one != two}

    def to_json(self) -> str:
        """The recipe as JSON; `recipe_from_json` reads it back."""
        return json.dumps({"kind": self.kind, **dataclasses.asdict(self)}, indent=2) + "\n"


def is_among(path: str, settings: Iterable[str]) -> bool:
    """Whether a setting is one of some, given by path or by a beginning that ends in a dot."""
    return any(path == one or (one.endswith(".") and path.startswith(one)) for one in settings)


@contextlib.contextmanager
def naming(settings: str) -> Iterator[None]:
    """Names the settings in a refusal of what they make."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{settings}: {error}") from error


def recipe_from_json(recipe_class: type[Recipe], text: str, where: str) -> Recipe:
    """Reads the output of `Recipe.to_json` in the file `where`."""
    try:
        values = parse_json(text)
        kind = str(values.pop("kind", recipe_class.kind))
        if kind == recipe_class.kind:
            return recipe_class(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{where} is not a recipe that this version wrote: {error}; train it again"
        ) from error
    kinds = (f"{'an' if name[:1] in 'ae' else 'a'} {name}" for name in (kind, recipe_class.kind))
    raise UserError("{} is the recipe of {} run, not of {} one".format(where, *kinds))


def override(
    recipe: Recipe, settings: Iterable[str], begun: TrainingConfig | None = None
) -> Recipe:
    """The recipe with settings replaced, each given as `path=value`.

    Settings take effect together: fewer steps and a shorter warm-up may come in either order.

    Args:
        settings: such as `training.max_steps=500`, `data.source=tsv:pairs.tsv`,
            `model.dropout=0.2` (a field of the model's configuration) or `model=macaron_small`.
        begun: of the run that is to go on, which keeps its warm-up, see `Run.begun`.
    """
    options, values, paths, settings = {}, {}, [], tuple(settings)
    allow_within(*settings)
    refuse_given(settings, recipe.by_argument)
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: write it as PATH=VALUE, such as training.seed=2")
        if path.startswith("model."):
            options[path.removeprefix("model.")] = text
        else:
            value, part = parse(path, text, _hint(recipe, type(recipe), path, setting)), values
            *parents, name = path.split(".")
            for parent in parents:
                part = part.setdefault(parent, {})
            part[name] = value
            paths.append(path)
    training = values.get("training", {})
    if "warmup_steps" not in training:
        steps = training.get("max_steps", recipe.training.max_steps)
        training["warmup_steps"] = _warm_up(recipe.training, steps)
        if begun and _warm_up(recipe.training, begun.max_steps) == begun.warmup_steps:
            training["warmup_steps"] = begun.warmup_steps
    recipe = _changed(recipe, {**values, "training": training})
    if options:
        chosen = dict(recipe.model_options)
        for name, text in options.items():
            config = type(recipe.catalog_config())
            hint = _hint(recipe, config, name, f"model.{name}={text}")
            chosen[name] = parse(f"model.{name}", text, hint)
        recipe = recipe.changed(model_options=tuple(sorted(chosen.items())))
    for path in paths:
        recipe = recipe.follow(path)
    if not begun:
        _check_warm_up(recipe.training)
    return recipe


def unread(recipe: Recipe, settings: Iterable[str]) -> dict[str, str]:
    """The settings of `override` that nothing in the recipe and its network reads, each with what
    would read it.
    """
    settings = tuple(settings)
    said = {name: f"{reader} reads it" for name, reader in recipe.unread().items()}
    if any(setting.startswith("model.") for setting in settings):
        network = recipe.network(recipe.model_config(_MANY))
        said |= {f"model.{name}": text for name, text in network.unread().items()}
    return {
        setting: text
        for setting in settings
        for name, text in said.items()
        if is_among(setting.partition("=")[0], (name,))
    }


def at_defaults(settings: Settings, path: str = "") -> Iterator[str]:
    """The paths of settings that have their default values."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Settings):
            yield from at_defaults(value, f"{path}{field.name}.")
        elif value == field.default:
            yield f"{path}{field.name}"


def refuse_unread(recipe: Recipe, settings: Iterable[str], *others: Recipe) -> None:
    """Refuses the settings of `override` that have no effect in the recipe nor in any of others."""
    for setting, said in unread(recipe, settings).items():
        if all(unread(other, [setting]) for other in others):
            path = setting.partition("=")[0].rstrip(".")
            raise UserError(f"{path} has no effect here: {said}; leave it out")


def refuse_given(settings: Iterable[str], options: dict[str, str]) -> None:
    """Refuses a `--set` of a setting that has an argument: `options`, by the setting's path."""
    for setting in settings:
        name = setting.partition("=")[0]
        if name in options:
            raise UserError(f"--set {setting}: give {options[name]} instead")


def _warm_up(training: TrainingConfig, steps: int) -> int:
    """The warm-up of a run of so many updates: its share, where all would take more than half."""
    whole = training.warmup_steps
    if _is_level(training):
        return whole
    short = steps < training.max_steps and 2 * whole > steps
    return whole * steps // training.max_steps if short else whole


def _is_level(training: TrainingConfig) -> bool:
    """Whether the rate does not rise, as T5's, whose warm-up says when it begins to fall."""
    level = training.warmup_start >= training.learning_rate
    return level and training.schedule not in ENDING_SCHEDULES


def _check_warm_up(training: TrainingConfig) -> None:
    """Refuses a run that would end before its learning rate is reached."""
    warm_up, steps = training.warmup_steps, training.max_steps
    if warm_up >= steps and warm_up and not _is_level(training):
        raise UserError(
            f"training.warmup_steps={warm_up} outlasts training.max_steps={steps}, so the run "
            f"would end before training.learning_rate={training.learning_rate:g} is reached: give "
            f"training.warmup_steps={steps // 10}, or more updates"
        )


def _changed(node, values: dict[str, typing.Any]):
    """A settings value with fields replaced, each part being made anew once."""
    made = {
        name: _changed(getattr(node, name), value) if isinstance(value, dict) else value
        for name, value in values.items()
    }
    return dataclasses.replace(node, **made)


def settings_of(recipe: Recipe) -> Iterator[tuple[str, str, str, str]]:
    """Every setting of a recipe: its path, its value, its range, and a text about it."""
    for path, value, item in (*_leaves(recipe), *_leaves(recipe.model_config(), "model.")):
        if path != "model_options":
            yield path, repr(value), item.range, item.text


def _leaves(node, path: str = "") -> Iterator[tuple[str, typing.Any, SettingDescription]]:
    """Every setting that has no parts: its path, its value and what it is."""
    known = describe(type(node))
    items = [(f"{path}{item.name}", getattr(node, item.name), item) for item in known]
    yield from (item for item in items if not dataclasses.is_dataclass(item[1]))
    for name, value, _ in items:
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{name}.")


def _nearest_path(recipe: Recipe, path: str) -> str:
    """`nearest` of a setting's path: by its last name first, wherever that stands."""
    leaves = (*_leaves(recipe), *_leaves(recipe.catalog_config(), "model."))
    last: dict[str, str] = {}
    for known, _, _ in leaves:
        last.setdefault(known.rpartition(".")[2], known)
    close = difflib.get_close_matches(path.rpartition(".")[2], last, 1)
    same = [known for known, _, _ in leaves if close and known.endswith(f".{close[0]}")]
    return nearest(path, same) or (f"; perhaps you meant {last[close[0]]!r}" if close else "")


def _hint(recipe: Recipe, cls, path: str, setting: str):
    """The annotation of the field at a dotted path, which must exist."""
    name, _, rest = path.partition(".")
    hints = hints_of(cls)
    if name not in hints:
        near = _nearest_path(recipe, setting.partition("=")[0])
        raise UserError(
            f"--set {setting}: there is no {name!r} here; there are {', '.join(hints)}{near}"
        )
    hint = hints[name]
    if dataclasses.is_dataclass(hint):
        if rest:
            return _hint(recipe, hint, rest, setting)
        inner = ", ".join(f"{name}.{field.name}" for field in dataclasses.fields(hint))
        raise UserError(f"--set {setting}: choose one of {inner}")
    if rest:
        raise UserError(f"--set {setting}: {name} has no parts, but {rest} follows")
    return hint
