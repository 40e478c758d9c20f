"""What a recipe is: one frozen value that holds every setting of a run."""

import ast
import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Iterator

from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig, EncoderDecoderConfig, catalog
from macaron_tf.settings import Settings
from macaron_tf.training.config import ENDING_SCHEDULES, TrainingConfig

# How long a run lasts, how it is judged and how often it is saved may change when it goes on.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the recipes of all kinds share.

    Attributes:
        model: a name of the model catalog.
        training: see its class.
        model_options: fields of the model's configuration that differ, as (name, value) pairs.
    """

    # Name of the kind in a run's recipe.json, and the command that runs it.
    kind: typing.ClassVar[str] = ""
    command: typing.ClassVar[str] = ""
    # Settings, or beginnings of their paths that end in a dot, that a resumed run may change.
    may_change: typing.ClassVar[tuple[str, ...]] = MAY_CHANGE

    model: str
    training: TrainingConfig
    model_options: tuple[tuple[str, typing.Any], ...] = ()

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig | EncoderDecoderConfig:
        """The model's configuration, at a vocabulary's size.

        Raises:
            UserError: there is no such model or option, or a value is out of its range.
        """
        options = dict(self.model_options)
        if "vocab_size" in options:
            raise UserError(
                "model.vocab_size follows from the vocabulary: set the vocabulary's size instead"
            )
        try:
            return catalog.config(self.model, vocab_size=vocab_size or 8, **options)
        except ValueError as error:
            raise UserError(f"model: {error}") from error

    def follow(self, path: str) -> "Recipe":
        """The recipe with what follows from a setting that was just replaced."""
        return self

    def check_metric(self, known: Iterable[str]) -> None:
        """Refuses a `training.best_metric` that is none of a validation's metrics.

        Raises:
            UserError: it is not; the sentence lists them.
        """
        if self.training.best_metric not in (known := tuple(known)):
            raise UserError(
                f"training.best_metric is {self.training.best_metric!r}: give one of "
                f"{', '.join(known)}"
            )

    def check_continues(self, before: "Recipe", where) -> None:
        """Refuses to go on with a run that was started by another recipe.

        Args:
            before: the recipe of the run in the folder `where`.

        Raises:
            UserError: a setting outside of `may_change` differs; the sentence names it.
        """
        check_same(before, self, where, self.may_change)

    def to_json(self) -> str:
        """The recipe as JSON; `recipe_from_json` reads it back."""
        return json.dumps({"kind": self.kind, **dataclasses.asdict(self)}, indent=2) + "\n"


def recipe_from_json(recipe_class: type[Recipe], text: str, where: str) -> Recipe:
    """Reads what `Recipe.to_json` wrote.

    Args:
        recipe_class: the kind of recipe.
        text: the JSON.
        where: the file's name, for errors.

    Raises:
        UserError: the text is not such a recipe.
    """
    try:
        values = json.loads(text)
        kind = values.pop("kind", recipe_class.kind)
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(
            f"{where} is not a recipe that this version wrote: {error}; train it again"
        ) from error
    if kind != recipe_class.kind:
        raise UserError(f"{where} is the recipe of a {kind} run, not of a {recipe_class.kind} one")
    try:
        return _from_dict(recipe_class, values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{where} is not a recipe that this version wrote: {error}; train it again"
        ) from error


def _from_dict(cls, values: dict):
    hints = typing.get_type_hints(cls)
    fields = {}
    for name, value in values.items():
        hint = hints.get(name)
        element = (typing.get_args(hint) or (None,))[0]  # of a tuple
        if dataclasses.is_dataclass(hint):
            value = _from_dict(hint, value)
        elif dataclasses.is_dataclass(element) and isinstance(value, list):
            value = tuple(_from_dict(element, item) for item in value)
        fields[name] = _tuples(value)
    return cls(**fields)


def _tuples(value):
    """Lists, as JSON has them, as the tuples they were."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def override(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """The recipe with settings replaced, each given as `path=value`.

    They take effect together: fewer steps and a shorter warm-up may come in either order.

    Args:
        recipe: where to start.
        settings: such as `training.max_steps=500`, `data.source=tsv:pairs.tsv`,
            `model.dropout=0.2` (a field of the model's configuration) or `model=macaron_small`.

    Raises:
        UserError: no such path, or a value of another type; it lists what exists.
    """
    options, values = dict(recipe.model_options), {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: write it as PATH=VALUE, such as training.seed=2")
        if path.startswith("model."):
            options[path.removeprefix("model.")] = _tuples(_literal(text))
        else:
            values[path] = _value(recipe, path.split("."), text, setting)
    values["model_options"] = tuple(sorted(options.items()))
    recipe = _replace(recipe, values)
    for path in values:
        recipe = recipe.follow(path)
    return recipe


def check_same(before: Recipe, now: Recipe, where, may_change: Iterable[str]) -> None:
    """Refuses to go on with a run under other settings than it was started with.

    Args:
        before: the run's recipe. now: the one given.
        where: the run's folder, for the message.
        may_change: paths, or beginnings of paths that end in a dot, that may differ.

    Raises:
        UserError: another setting differs; the sentence names it.
    """
    free = tuple(may_change)
    for name, old, new in _differences(before, now):
        allowed = name in free or name.startswith(tuple(f for f in free if f.endswith(".")))
        slope = name == "training.max_steps" and now.training.schedule in ENDING_SCHEDULES
        if not allowed or slope:
            raise UserError(
                f"{where} was trained with {name}={old!r}, not {new!r}: choose another folder, "
                "or give the recipe and settings it was started with"
            )


def _differences(before, now, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(now, field.name)
        if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new):
            yield from _differences(old, new, f"{prefix}{field.name}.")
        elif old != new:
            yield f"{prefix}{field.name}", old, new


def _value(node, path: list[str], text: str, setting: str):
    """What a setting's text stands for at its path, which must exist."""
    names = [field.name for field in dataclasses.fields(node)]
    if path[0] not in names:
        raise UserError(
            f"--set {setting}: there is no {path[0]!r} here; there are {', '.join(names)}"
        )
    current = getattr(node, path[0])
    if dataclasses.is_dataclass(current):
        if len(path) == 1:
            inner = ", ".join(f"{path[0]}.{field.name}" for field in dataclasses.fields(current))
            raise UserError(f"--set {setting}: choose one of {inner}")
        return _value(current, path[1:], text, setting)
    if len(path) > 1:
        raise UserError(
            f"--set {setting}: {path[0]} has no parts, but {'.'.join(path[1:])} follows"
        )
    hint = typing.get_type_hints(type(node))[path[0]]
    if isinstance(node, Settings):  # it checks types itself
        return text if str in (hint, *typing.get_args(hint)) else _literal(text)
    return _convert(text, hint, setting)


def _replace(node, values: dict[str, typing.Any]):
    """The value with those at dotted paths replaced, each part being made anew once."""
    parts: dict[str, dict] = {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        parts.setdefault(name, {})[rest] = value
    return dataclasses.replace(
        node,
        **{
            name: inner[""] if "" in inner else _replace(getattr(node, name), inner)
            for name, inner in parts.items()
        },
    )


def _convert(text: str, hint, setting: str):
    """The text as a value of the annotated type: str, bool, int, float, tuple, or those or None."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if str in kinds:
        return text
    value = _literal(text)
    if typing.get_origin(hint) is tuple:
        return _tuples(value) if isinstance(value, list | tuple) else (value,)
    if value is None and type(None) in kinds:
        return None
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) in kinds:
        return value
    wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    raise UserError(f"--set {setting}: the value must be {wanted}")


def _literal(text: str):
    """`3`, `0.1`, `True`, `None` as what they are, any other text as itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
