"""Code of the user's own, which a setting or a command names: `package.module:Name`.

Where a class is made, arguments may follow: `package.module:Name(rate=0.1)`.

A run records the name, never the code, and every process that opens the run imports it again: the
module must be found from the working directory or on PYTHONPATH.

A folder may come from a stranger, so only these names are imported: a name in the words that the
user wrote, on the command line or in Python (`allow`); a name that this user's own training signed
(`macaron_tf.io.signatures`); any module with `--trust-code` or `trust_code=True` (`trusting`).
"""

import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from macaron_tf.errors import USER_FILES, UserError, sentence_of


class _Trust:
    """The code that this process may import; shared by its threads."""

    places: ClassVar[set[str]] = set()
    texts: ClassVar[set[str]] = set()  # written by the user, such as words of the command line
    everything = False


_files: dict[pathlib.Path, types.ModuleType] = {}  # modules made of FILE.py


def is_place(name: str) -> bool:
    """Whether a name is `package.module:Name` or `FILE.py[:Name]`, and none of ours."""
    return ":" in name or name.endswith(".py")


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """The NAME and the arguments of `NAME` or `NAME(key=value, ...)`.

    Raises:
        UserError: it is no such form, or a value is no literal.
    """
    name, bracket, rest = text.partition("(")
    if not bracket:
        return name, {}
    with contextlib.suppress(SyntaxError, ValueError, MemoryError, RecursionError):
        call = ast.parse(f"_({rest}", mode="eval").body
        plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
        if name and plain and all(word.arg for word in call.keywords):
            return name, {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    raise UserError(
        f"{text!r}: write NAME(key=value, ...), where a value is a number, a text in quotes, True, "
        "False, None or a tuple of these"
    )


def find(place: str, base: type | None = None) -> Any:
    """The object that `package.module:Name` or `FILE.py:Name` names.

    Args:
        place: without a Name, the only one that the module defines.
        base: the class that it must be a subclass of; None = a function.

    Raises:
        UserError: there is no such module or name, its import raises, it is no such object, or
            the name comes out of a file and nobody has said that its code may run.
    """
    name, _, attribute = place.partition(":")
    # A class of a module that Python code has imported runs nothing.
    there = base and attribute in vars_of(sys.modules.get(name), base)
    if not there:
        check_allowed(place)
    allow(place)
    module = import_module(name)
    known = vars_of(module, base)
    if not attribute and len(known) == 1:
        [attribute] = known
    if attribute not in vars(module):
        raise UserError(
            f"{place}: {name} has {', '.join(known) or 'nothing of that kind'}"
            f"{f' and no {attribute!r}' if attribute else ''}: write {name}:NAME"
        )
    found = vars(module)[attribute]
    if not _is_kind(found, base):
        wanted = f"a subclass of {base.__module__}.{base.__name__}" if base else "a function"
        raise UserError(f"{place} is no {base.__name__ if base else 'function'}: name {wanted}")
    return found


def allow(*places: str) -> None:
    """Lets places be imported, `package.module:Name`."""
    _Trust.places.update(place.removeprefix("python:") for place in places)


def allow_within(*texts: str) -> None:
    """Lets the places be imported that stand in texts which the user wrote.

    Args:
        texts: such as `model.block=mine:Block`, `python:mine:rows`, or the `repr` of a recipe that
            code of the user's has made. A whole word is none: `lambada:dev` names no code.
    """
    _Trust.texts.update(texts)


@contextlib.contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Lets any module be imported within the `with`, whoever names it; False changes nothing."""
    before, _Trust.everything = _Trust.everything, trust or _Trust.everything
    try:
        yield
    finally:
        _Trust.everything = before


def trusts_code() -> bool:
    """Whether any module may be imported, see `trusting`."""
    return _Trust.everything


def is_allowed(place: str) -> bool:
    """Whether a place may be imported; FILE.py and `~` only where the user wrote or signed them."""
    if place in _Trust.places or (_Trust.everything and not _is_file(place)):
        return True
    within = re.compile(rf"(?:python:|[=,(\[\s'\"]){re.escape(place)}(?:$|[,()\]\s'\"])")
    return any(map(within.search, _Trust.texts))


def _is_file(place: str) -> bool:
    return place.partition(":")[0].endswith(".py") or "~" in place


def check_allowed(place: str) -> None:
    """Raises a UserError where a place may not be imported."""
    name = place.partition(":")[0]
    if is_allowed(place):
        return
    if _is_file(place):
        raise UserError(
            f"{place!r} comes out of a file, and no FILE.py that a file names is run: write "
            f"{place} in the command, or make it a module, {pathlib.Path(name).stem}:Name"
        )
    raise UserError(
        f"{place!r} comes out of a file: the module {name} would be imported, and its code run. If "
        f"you trust it, give --trust-code (in Python trust_code=True, or plug_ins.allow({place!r}))"
    )


def origin_of(place: str) -> str | None:
    """The file that a place's module would be imported from; None = it is not found.

    Nothing is imported, not the packages above it either.
    """
    name = place.partition(":")[0]
    # Modules are found in the working directory, as by `python -m`; a script does not look there.
    if (here := str(pathlib.Path.cwd())) not in sys.path:
        sys.path.append(here)
    strange = (ImportError, ValueError, AttributeError, OSError, RuntimeError)  # of any text
    with contextlib.suppress(*strange):
        if name.endswith(".py"):
            file = pathlib.Path(name).expanduser().resolve()
            return str(file) if file.is_file() else None
        top, *below = name.split(".")
        spec = importlib.util.find_spec(top)
        for number in range(len(below)):
            full = ".".join([top, *below[: number + 1]])
            spec = importlib.machinery.PathFinder.find_spec(full, spec.submodule_search_locations)
        return spec.origin
    return None


def file_of(place: str) -> pathlib.Path:
    """The file of the function that a place names."""
    return pathlib.Path(find(place).__code__.co_filename)


def vars_of(module: types.ModuleType | None, base: type | None = None) -> dict[str, Any]:
    """The public functions (or subclasses of `base`) that a module defines, by name."""
    return {
        name: value
        for name, value in sorted(vars(module).items() if module else ())
        if not name.startswith("_")
        and _is_kind(value, base)
        and value.__module__ == module.__name__
    }


def _is_kind(value: Any, base: type | None) -> bool:
    if base is None:
        return inspect.isfunction(value)
    return isinstance(value, type) and issubclass(value, base)


def import_module(name: str) -> types.ModuleType:
    """Imports `package.module`, from the working directory too, or a file `FOLDER/NAME.py`.

    Each is executed once in a process, and named on stderr then.
    """
    if name.endswith(".py"):
        file = pathlib.Path(name).expanduser().resolve()
        if not file.is_file():
            raise UserError(f"there is no file {name}: check the path")
        module, load = _files.get(file), lambda: _import_file(file)
    else:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"{name!r} is no name of a module: write package.module:Name")
        module, load = sys.modules.get(name), lambda: _import_name(name)
    if module is None:
        if origin := origin_of(name):
            print(f"importing code of yours: {name}, {origin}", file=sys.stderr, flush=True)
        with clear_errors(name):
            module = load()
    USER_FILES.add(module.__file__ or "")
    return module


def _import_name(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports one that is not
        raise UserError(
            f"{name}: there is no module {error.name!r}: run the command in the folder that holds "
            "it, or add that folder to PYTHONPATH"
        ) from error


def _import_file(file: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up there.
    before = sys.modules.setdefault(file.stem, module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is module:
            del sys.modules[file.stem]
        raise
    _files[file] = module
    return module


@contextlib.contextmanager
def clear_errors(place: str) -> Iterator[None]:
    """Turns an error of the user's code within the `with` into a `UserError` of one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(sentence_of(error, place)) from error


def called(place: str, function: Callable, *arguments) -> Any:
    """The result of a function of the user's; see `clear_errors`."""
    with clear_errors(place):
        return function(*arguments)
