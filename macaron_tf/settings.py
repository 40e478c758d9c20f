"""Frozen dataclasses that check their fields against type and range annotations.

    @dataclasses.dataclass(frozen=True)
    class ClipConfig(Settings):
        norm: Annotated[float, Gt(0)] | None = None

`ClipConfig(norm=0)` raises a `SettingError`: "norm=0 must be a number above 0 or None".
"""

import ast
import contextlib
import dataclasses
import functools
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import docstring_parser
from annotated_types import Ge, Gt, Le, Lt

from macaron_tf.errors import ALIASES, UserError, nearest
from macaron_tf.io.plug_ins import find, is_import_path, parse_call

INT32 = Lt(2**31)  # limit of shapes, counters and seeds in TensorFlow
Count = Annotated[int, Ge(1), INT32]
Natural = Annotated[int, Ge(0), INT32]
Depth = Annotated[int, Ge(1), Le(1000)]  # number of layers; each layer is a Python object
Fraction = Annotated[float, Ge(0), Le(1)]
Dropout = Annotated[float, Ge(0), Lt(1)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]


_GREATEST_FLOAT = 3.4e38  # maximum of float32
_CONTROL = re.compile(r"[\0-\x08\x0a-\x1f\x7f]")  # control characters except tabs


class SettingError(UserError, ValueError):
    """Error for a setting with an invalid value, or for settings that exclude each other."""


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Annotation for a value that must be one of `choices`.

    In contrast to `Literal`, the choices may be computed at run time.

    Attributes:
        choices: accepted values.
        base: base class of user classes. The name of a subclass, `package.module:Name` or
            `FILE.py:Name`, is also accepted; see `macaron_tf.io.plug_ins`. `None` means that only
            `choices` are accepted.
        takes_arguments: whether arguments may follow the value, as in `NAME(key=value)`.
    """

    choices: tuple[str, ...]
    base: type | None = None
    takes_arguments: bool = False


@dataclasses.dataclass(frozen=True)
class Variants(OneOf):
    """Annotation for nested settings whose class their field `name` chooses.

    Attributes:
        choices: dict mapping each name to its class.
        base: base class of these classes and of user classes.
    """

    choices: Mapping[str, "type[Settings]"]

    def read(self, value: Any, trust_code: bool) -> Any:
        """Makes settings of a name, or of a dict of fields from a file; or raises `_Mismatch`."""
        if isinstance(value, self.base):
            return value
        fields = value if isinstance(value, dict) else {"name": value}
        name = fields.get("name")
        if type(name) is str:
            own = is_import_path(name)
            cls = find(name, self.base, trust_code) if own else self.choices.get(name)
            if cls and fields.keys() <= hints_of(cls).keys():
                return cls(**fields, trust_code=trust_code)
        raise _Mismatch


@dataclasses.dataclass(frozen=True)
class ReadIf:
    """Annotation for a field, or a section of fields, that only some recipes read.

    Attributes:
        condition: function of the whole recipe that returns whether the field is read.
    """

    condition: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base class of frozen dataclasses that hold settings.

    The constructor checks every field against its annotation. It supports int, float, bool, str,
    `Literal`, `Annotated` with `Ge`, `Gt`, `Le`, `Lt` or `OneOf`, other settings classes, and
    tuples and unions of these types. It converts an int to a float, a list or a single value to a
    tuple, and a dict to a settings class, if the annotation asks for that type. A str must not
    contain control characters except tabs. Finally, the constructor calls `check`.

    Args:
        trust_code: whether to import user code that the values name, such as a block (see
            `plug_ins.find`). Values that were read from a file need `False`.

    Attributes:
        section: prefix of field names in error messages, such as `model` in `model.hidden_dim`.
    """

    section: ClassVar[str] = ""

    trust_code: dataclasses.InitVar[bool] = dataclasses.field(default=True, kw_only=True)

    def __init_subclass__(cls, in_models: bool = True, **kwargs):
        super().__init_subclass__(**kwargs)
        if in_models:  # Keras saves these settings with a network; other settings need no Keras
            import keras

            package = cls.__module__.partition(".")[0]
            keras.saving.register_keras_serializable(package=package)(cls)

    def __new__(cls, *args, **kwargs):
        for name in sorted(kwargs.keys() - hints_of(cls).keys() - {"trust_code"}):
            near = nearest(name, (*hints_of(cls), ALIASES.get(name, "")))
            raise SettingError(f"{cls.__name__} has no setting {name!r}{near}")
        return super().__new__(cls)

    def __post_init__(self, trust_code: bool):
        for name, value in self.converted(vars(self), trust_code).items():
            object.__setattr__(self, name, value)
        self.check()

    @classmethod
    def converted(cls, values: Mapping[str, Any], trust_code: bool) -> dict[str, Any]:
        """Converts the values of fields to the annotated types, and finds the user code they name.

        Names in `values` that are not fields are left out.
        """
        result = {}
        for name, hint in hints_of(cls).items():
            if name in values:
                try:
                    result[name] = _convert(values[name], hint, trust_code)
                except _Mismatch:
                    raise cls.error(_refusal(name, values[name], hint)) from None
        return result

    def check(self) -> None:
        """Checks rules that involve several fields. The base class has no such rules.

        Subclasses override this method, and raise `self.error(...)` for invalid combinations.
        """

    @classmethod
    def error(cls, sentence: str) -> SettingError:
        """Returns a `SettingError` whose message begins with the full name of a setting.

        `sentence` begins with a field name, before which `section` and a dot are inserted.
        """
        return SettingError(f"{cls.section}.{sentence}" if cls.section else sentence)

    def get_config(self) -> dict[str, Any]:
        return self.options(*hints_of(type(self)))

    def options(self, *names: str) -> dict[str, Any]:
        """Returns a dict mapping each name in `names` to the value of the field."""
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> typing.Self:
        import keras
        from keras.src.saving.serialization_lib import in_safe_mode  # no public name

        # Nested settings and tuples of settings are objects of Keras's format, too.
        deserialize = keras.saving.deserialize_keras_object
        values = {k: deserialize(v) if isinstance(v, dict | list) else v for k, v in config.items()}
        # Keras passes no argument, but keeps `safe_mode` for each call and each thread.
        return cls(**values, trust_code=in_safe_mode() is False)


class _Mismatch(Exception):
    """Error for a value that does not have the type or range of an annotation."""


@functools.cache
def hints_of(cls: type[Settings]) -> dict[str, Any]:
    """Returns a dict mapping the field names of a settings class to their annotations."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _convert(value, hint, trust_code: bool):
    """Converts a value to the annotated type, or raises `_Mismatch` if the value does not fit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        is_list = type(value) is list
        return tuple(_convert(item, Any, trust_code) for item in value) if is_list else value
    if origin is Annotated and isinstance(arguments[1], Variants):
        return arguments[1].read(value, trust_code)
    if origin is Annotated:
        value = _convert(value, arguments[0], trust_code)
        if all(_satisfies(value, constraint, trust_code) for constraint in arguments[1:]):
            return value
    elif origin in (types.UnionType, typing.Union):
        for member in arguments:
            try:
                return _convert(value, member, trust_code)
            except _Mismatch:
                continue
    elif origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
    elif origin is tuple:
        items = tuple(value) if isinstance(value, list | tuple) else (value,)
        if arguments[-1] is Ellipsis:
            return tuple(_convert(item, arguments[0], trust_code) for item in items)
        if len(items) == len(arguments):
            return tuple(_convert(*pair, trust_code) for pair in zip(items, arguments, strict=True))
    elif isinstance(value, dict) and dataclasses.is_dataclass(hint):
        if value.keys() <= hints_of(hint).keys():
            with contextlib.suppress(TypeError):  # a field without a default is missing
                trust = {"trust_code": trust_code} if issubclass(hint, Settings) else {}
                return hint(**value, **trust)
    elif hint is float:
        if type(value) in (int, float) and abs(value) < _GREATEST_FLOAT:
            return float(value)
    elif hint is str:
        if type(value) is str and not _CONTROL.search(value):
            return value
    elif type(value) is hint or (hint not in (int, bool) and isinstance(value, hint)):
        return value
    raise _Mismatch


def parse(name: str, text: str, hint) -> Any:
    """Parses the value of a field on a command line, and converts it to the annotated type.

    `text` is a Python literal, such as `3` or `(1, 2)`, a list of words, or plain text. A value for
    a nested settings class is returned unconverted, and the constructor of the enclosing class
    converts it.
    """
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        # A list may have words without quotation marks, as in `[macaron, transformer]`.
        is_list = text[:1] + text[-1:] in ("[]", "()")
        literal = [part.strip() for part in text[1:-1].split(",")] if is_list else text
    for value in (text,) if isinstance(literal, str) else (literal, text):
        try:
            return _convert(value, hint, trust_code=True)
        except _Mismatch:
            pass
    members = [member for member in typing.get_args(hint) if isinstance(member, type)]
    is_section = any(map(dataclasses.is_dataclass, members)) and not _choices(hint)
    if type(literal) in (str, tuple, list) and is_section:
        return literal  # the settings class that holds this field converts it
    raise SettingError(_refusal(name, literal, hint))


def _refusal(name: str, value, hint) -> str:
    suggestion = nearest(value, _choices(hint)) if isinstance(value, str) else ""
    return f"{name}={value!r} must be {describe_hint(hint)}{suggestion}"


def _choices(hint) -> list[str]:
    """Returns the strings that a `Literal` or `OneOf` in an annotation allows."""
    if isinstance(hint, OneOf):
        return list(hint.choices)
    if typing.get_origin(hint) is Literal:
        return [choice for choice in typing.get_args(hint) if isinstance(choice, str)]
    return [choice for part in typing.get_args(hint) for choice in _choices(part)]


# Attribute, comparison and wording of each constraint.
_CONSTRAINTS = {
    Ge: ("ge", operator.ge, "of at least"),
    Gt: ("gt", operator.gt, "above"),
    Le: ("le", operator.le, "at most"),
    Lt: ("lt", operator.lt, "below"),
}


def _satisfies(value, constraint, trust_code: bool) -> bool:
    if isinstance(constraint, ReadIf):
        return True
    if isinstance(constraint, OneOf):
        if constraint.takes_arguments:
            value, _ = parse_call(value)
        if constraint.base and is_import_path(value):
            return bool(find(value, constraint.base, trust_code))
        return value in constraint.choices
    field, compare, _ = _CONSTRAINTS[type(constraint)]
    return compare(value, getattr(constraint, field))


_NOUNS = {int: "a whole number", float: "a number", bool: "True or False", str: "a line of text"}


def describe_hint(hint) -> str:
    """Describes an annotation in words, such as "a whole number of at least 1"."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _describe_range(arguments[0], arguments[1:])
    if origin in (types.UnionType, typing.Union):
        *members, last = map(describe_hint, arguments)
        return f"{', '.join(members)} or {last}"
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"one or several of: {describe_hint(arguments[0])}"
        return f"({', '.join(map(describe_hint, arguments))})"
    name = getattr(hint, "__name__", str(hint))
    return "None" if hint is type(None) else _NOUNS.get(hint, name)


def _describe_range(value_type, constraints) -> str:
    ranges = []
    for constraint in constraints:
        if isinstance(constraint, OneOf):
            extra = ", or your own class as package.module:Name" if constraint.base else ""
            extra += " (with arguments: NAME(key=value))" if constraint.takes_arguments else ""
            return f"one of {', '.join(map(repr, constraint.choices))}{extra}"
        if constraint == INT32 or isinstance(constraint, ReadIf):
            continue  # only the error for a greater number mentions the limit
        field, _, phrase = _CONSTRAINTS[type(constraint)]
        ranges.append(f"{phrase} {getattr(constraint, field)}")
    return f"{describe_hint(value_type)} {' and '.join(ranges)}".rstrip()


@dataclasses.dataclass(frozen=True)
class SettingDescription:
    """Name, range, default and description of a setting, for display."""

    name: str
    range: str
    default: str
    text: str


def describe(cls: type[Settings]) -> list[SettingDescription]:
    """Describes the settings of a class.

    The ranges come from the annotations. The texts come from the section `Attributes:` in the
    docstrings of the class and its base classes.
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for item in docstring_parser.parse(base.__doc__ or "").params:
            for name in item.arg_name.split(", "):
                texts[name] = " ".join((item.description or "").split())
    return [
        SettingDescription(
            field.name,
            describe_hint(hints_of(cls)[field.name]),
            "" if field.default is dataclasses.MISSING else repr(field.default),
            texts.get(field.name, ""),
        )
        for field in dataclasses.fields(cls)
    ]
