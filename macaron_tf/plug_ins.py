"""Code of the user's own, which a setting or a command names: `package.module:Name`.

A run records the name, never the code, and every process that opens the run imports it again: the
module must be found from the working directory or on PYTHONPATH.
"""

import contextlib
import importlib
import importlib.util
import inspect
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from macaron_tf.errors import USER_FILES, UserError, sentence_of


def is_place(name: str) -> bool:
    """Whether a name is `package.module:Name` or `FILE.py[:Name]`, and none of ours."""
    return ":" in name or name.endswith(".py")


def find(place: str, base: type | None = None) -> Any:
    """The object that `package.module:Name` or `FILE.py:Name` names.

    Args:
        place: without a Name, the only one that the module defines.
        base: the class that it must be a subclass of; None = a function.

    Raises:
        UserError: there is no such module or name, its import raises, or it is no such object.
    """
    name, _, attribute = place.partition(":")
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


def file_of(place: str) -> pathlib.Path:
    """The file of the function that a place names."""
    return pathlib.Path(find(place).__code__.co_filename)


def vars_of(module: types.ModuleType, base: type | None = None) -> dict[str, Any]:
    """The public functions (or subclasses of `base`) that a module defines, by name."""
    return {
        name: value
        for name, value in sorted(vars(module).items())
        if not name.startswith("_")
        and _is_kind(value, base)
        and value.__module__ == module.__name__
    }


def _is_kind(value: Any, base: type | None) -> bool:
    if base is None:
        return inspect.isfunction(value)
    return isinstance(value, type) and issubclass(value, base)


def import_module(name: str) -> types.ModuleType:
    """Imports `package.module`, from the working directory too, or a file `FOLDER/NAME.py`."""
    file = pathlib.Path(name).expanduser()
    if file.suffix == ".py" and not file.is_file():
        raise UserError(f"there is no file {file}: check the path")
    with clear_errors(name):
        module = _import_file(file.resolve()) if file.suffix == ".py" else _import_name(name)
    USER_FILES.add(module.__file__ or "")
    return module


def _import_name(name: str) -> types.ModuleType:
    if (here := str(pathlib.Path.cwd())) not in sys.path:
        sys.path.append(here)  # as `python -m` does; a console script does not
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"{name!r} is no name of a module: write package.module:Name")
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
