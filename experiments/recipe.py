"""Recipes: a frozen dataclass holds every setting of a run and is saved in the run's folder."""

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

# Settings of a training's length, validation and saving: they may change when a run is resumed.
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

# Settings that a model card always shows; it leaves out others that have their default values.
SHOWN = ("objective", "batch_size", "max_tokens", "vocabulary.kind", "vocabulary.size")
SHOWN += ("training.optimizer", "training.learning_rate", "training.schedule")
SHOWN += ("training.max_steps", "training.warmup_steps", "training.seed")

_MANY = 2**30  # vocabulary size of a network that is not built, above all adaptive cutoffs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """The settings that recipes of every kind share.

    Attributes:
        model: name in the model catalog.
        training: settings of training.
        model_options: fields of the model's configuration that differ from the catalog's, as
            (name, value) pairs.
    """

    # Name of the kind in a run's recipe.json, and the command that runs it.
    kind: typing.ClassVar[str] = ""
    command: typing.ClassVar[str] = ""
    # Settings that may change when a run is resumed. A path that ends in a dot is a whole section.
    may_change: typing.ClassVar[tuple[str, ...]] = MAY_CHANGE

    # Settings that an argument of the command decides, and the argument's name.
    by_argument: typing.ClassVar[dict[str, str]] = {}

    model: str
    training: TrainingConfig
    model_options: tuple[tuple[str, typing.Any], ...] = ()

    def changed(self, **values) -> typing.Self:
        """Returns the recipe with fields replaced. A dict replaces fields of nested settings:
        `bert_base().changed(model="bert_large", training=dict(learning_rate=2e-4))`.
        """
        return _changed(self, values)

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig | EncoderDecoderConfig:
        """The model's configuration with `model_options`; without `vocab_size`, of 8 ids."""
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
        """The catalog's name of the model, followed by sizes that `model_options` change."""
        return catalog.sized_name(self.model, dict(self.model_options))

    def network(self, config) -> keras.Model:
        """The unbuilt network of a model's configuration, in the recipe's dtype policy."""
        return catalog.network(config, self.training.dtype_policy)

    def make_objective(self, static_shapes: bool = False) -> Objective:
        """The training objective; with `static_shapes`, no shape depends on values (for a TPU)."""
        raise NotImplementedError

    def usage(self) -> dict[str, typing.Any]:
        """Keyword arguments of `macaron_tf.pretrained.Pretrained` that follow from the recipe."""
        unlisted = {*self.unread(), *self.may_change, *at_defaults(self)} - {*SHOWN}
        return {
            "model": self.model,
            "optimizer": self.training.optimizer,
            "unlisted": tuple(sorted(unlisted)),
        }

    def expect_model(self, config, kind: type, words: str) -> None:
        """Raises if the model's configuration is not of the class `kind`.

        Args:
            config: the model's configuration.
            kind: class that the recipe needs.
            words: the objection, such as "is no encoder"; the message goes on with the names of the
                catalog's models of that class.
        """
        if not isinstance(config, kind):
            known = ", ".join(catalog.names(kind))
            raise UserError(f"model: {self.model} {words}: give one of {known}")

    def expect_positions(self, config, name: str, length: int) -> None:
        """Raises if `length`, the value of the setting `name`, exceeds the model's positions."""
        if config.longest is not None and config.longest < length:
            raise UserError(
                f"{name} is {length}, but the model has {config.longest} positions: set "
                f"{name}={config.longest} or less"
            )

    def follow(self, path: str) -> "Recipe":
        """Returns the recipe with other settings adapted, after the setting `path` was replaced."""
        return self

    def unread(self) -> dict[str, str]:
        """Settings without effect in this recipe, and the setting or task that would use each.

        A path that ends in a dot stands for its whole section. The model's settings are not
        included.
        """
        adam = self.training.optimizer == "adam"
        names = () if adam else ("beta_1", "beta_2", "epsilon")
        return {f"training.{name}": "training.optimizer=adam" for name in names}

    def check_metric(self, known: Iterable[str]) -> None:
        """Raises if `training.best_metric` is not one of the validation's metrics, `known`."""
        if self.training.best_metric not in (known := tuple(known)):
            raise UserError(
                f"training.best_metric is {self.training.best_metric!r}: give one of "
                f"{', '.join(known)}"
            )

    def check_continues(
        self, before: "Recipe", where, may_change: Iterable[str] | None = None
    ) -> None:
        """Raises if this recipe cannot continue the run in `where`, started with `before`.

        Args:
            before: the recipe that the run was started with.
            where: folder of the run.
            may_change: settings that may differ; None: `self.may_change`.
        """
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
        """The settings that differ between two recipes: path to (own value, other's value)."""
        mine, theirs = ({path: value for path, value, _ in _leaves(one)} for one in (self, other))
        pairs = {path: (mine.get(path), theirs.get(path)) for path in mine | theirs}
        return {path: (one, two) for path, (one, two) in pairs.items() if one != two}

    def to_json(self) -> str:
        """The recipe as JSON; `recipe_from_json` reads it back."""
        return json.dumps({"kind": self.kind, **dataclasses.asdict(self)}, indent=2) + "\n"


def is_among(path: str, settings: Iterable[str]) -> bool:
    """Whether the setting `path` is in `settings`, where "training." stands for a whole section."""
    return any(path == one or (one.endswith(".") and path.startswith(one)) for one in settings)


@contextlib.contextmanager
def naming(settings: str) -> Iterator[None]:
    """Turns a `ValueError` of the block into a `UserError` that begins with `settings`."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{settings}: {error}") from error


def recipe_from_json(recipe_class: type[Recipe], text: str, where: str) -> Recipe:
    """Reads the output of `Recipe.to_json`; error messages name the file `where`."""
    try:
        values = parse_json(text)
        kind = str(values.pop("kind", recipe_class.kind))
        if kind == recipe_class.kind:
            return recipe_class(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{where} is not a recipe of this version ({error}): train the run again"
        ) from error
    kinds = (f"{'an' if name[:1] in 'ae' else 'a'} {name}" for name in (kind, recipe_class.kind))
    raise UserError("{} is the recipe of {} run, not of {} one".format(where, *kinds))


def override(
    recipe: Recipe, settings: Iterable[str], begun: TrainingConfig | None = None
) -> Recipe:
    """Returns the recipe with settings replaced, each given as `path=value`.

    Settings take effect together: fewer steps and a shorter warm-up may come in either order.

    Args:
        recipe: the recipe to change.
        settings: such as `training.max_steps=500`, `data.source=tsv:pairs.tsv`,
            `model.dropout=0.2` (a field of the model's configuration) or `model=macaron_small`.
        begun: training settings of the run to resume, whose warm-up stays, see `Run.begun`; None:
            a new run.
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
    """The settings of `override` that neither the recipe nor its network uses.

    Each is mapped to a text that says what would use it.
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
    """Yields the paths of settings that have their default values."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Settings):
            yield from at_defaults(value, f"{path}{field.name}.")
        elif value == field.default:
            yield f"{path}{field.name}"


def refuse_unread(recipe: Recipe, settings: Iterable[str], *others: Recipe) -> None:
    """Raises if one of the settings of `override` has no effect in `recipe` or any of `others`."""
    for setting, said in unread(recipe, settings).items():
        if all(unread(other, [setting]) for other in others):
            path = setting.partition("=")[0].rstrip(".")
            raise UserError(f"{path} has no effect here: {said}; leave it out")


def refuse_given(settings: Iterable[str], options: dict[str, str]) -> None:
    """Raises if `--set` gives a setting that has an argument; `options` maps paths to arguments."""
    for setting in settings:
        name = setting.partition("=")[0]
        if name in options:
            raise UserError(f"--set {setting}: give {options[name]} instead")


def _warm_up(training: TrainingConfig, steps: int) -> int:
    """The warm-up of a run of `steps` updates.

    If the recipe's warm-up would take more than half of a shortened run, it is shortened in the
    same proportion.
    """
    whole = training.warmup_steps
    if _is_level(training):
        return whole
    short = steps < training.max_steps and 2 * whole > steps
    return whole * steps // training.max_steps if short else whole


def _is_level(training: TrainingConfig) -> bool:
    """Whether the learning rate is constant during warm-up and then falls, as T5's."""
    level = training.warmup_start >= training.learning_rate
    return level and training.schedule not in ENDING_SCHEDULES


def _check_warm_up(training: TrainingConfig) -> None:
    """Raises if the warm-up is longer than the run."""
    warm_up, steps = training.warmup_steps, training.max_steps
    if warm_up >= steps and warm_up and not _is_level(training):
        raise UserError(
            f"training.warmup_steps={warm_up} is not less than training.max_steps={steps}, so the "
            f"run would never reach training.learning_rate={training.learning_rate:g}: give "
            f"training.warmup_steps={steps // 10}, or more updates"
        )


def _changed(node, values: dict[str, typing.Any]):
    """Replaces fields of nested settings all at once, so that only the final values are checked."""
    made = {
        name: _changed(getattr(node, name), value) if isinstance(value, dict) else value
        for name, value in values.items()
    }
    return dataclasses.replace(node, **made)


def settings_of(recipe: Recipe) -> Iterator[tuple[str, str, str, str]]:
    """Yields (path, value, range, meaning) of every setting of a recipe and its model."""
    for path, value, item in (*_leaves(recipe), *_leaves(recipe.model_config(), "model.")):
        if path != "model_options":
            yield path, repr(value), item.range, item.text


def _leaves(node, path: str = "") -> Iterator[tuple[str, typing.Any, SettingDescription]]:
    """Yields (path, value, description) of every setting that is not itself a section."""
    known = describe(type(node))
    items = [(f"{path}{item.name}", getattr(node, item.name), item) for item in known]
    yield from (item for item in items if not dataclasses.is_dataclass(item[1]))
    for name, value, _ in items:
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{name}.")


def _nearest_path(recipe: Recipe, path: str) -> str:
    """The ending of an error that suggests the setting closest to `path`, as `nearest` does.

    The last name of the path is compared, whichever section it is in.
    """
    leaves = (*_leaves(recipe), *_leaves(recipe.catalog_config(), "model."))
    last: dict[str, str] = {}
    for known, _, _ in leaves:
        last.setdefault(known.rpartition(".")[2], known)
    close = difflib.get_close_matches(path.rpartition(".")[2], last, 1)
    same = [known for known, _, _ in leaves if close and known.endswith(f".{close[0]}")]
    return nearest(path, same) or (f"; perhaps you meant {last[close[0]]!r}" if close else "")


def _hint(recipe: Recipe, cls, path: str, setting: str):
    """The annotation of the field at the dotted `path`; raises if there is none.

    Args:
        recipe: recipe whose settings the error message suggests.
        cls: settings class that `path` starts at.
        path: dotted path of the field.
        setting: the whole `path=value`, for the error message.
    """
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
        raise UserError(f"--set {setting}: {name} is no section of settings: leave out .{rest}")
    return hint
