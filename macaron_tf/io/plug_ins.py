"""Import of user code that a setting or a command names.

The name has the form `package.module:Name` or `FILE.py:Name`. If the name is a class to
instantiate, arguments may follow: `package.module:Name(rate=0.1)`.

A run records the name and not the code. Every process that opens the run imports the module. A
`package.module` must be in the working directory or on PYTHONPATH.

A model folder may come from a stranger. Therefore, `find` imports a name only if its caller passes
`trust_code=True`: the user wrote the name in this process's command or call, or trusts the folder
(`--trust-code`, `load(..., trust_code=True)`). Without `trust_code`, `find` returns only what this
process has already imported. No state of the process allows imports, so that threads with different
trust do not see each other.
"""

import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import pathlib
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from macaron_tf.errors import UserError

_files: dict[pathlib.Path, types.ModuleType] = {}  # maps each imported FILE.py to its module
_files_lock = threading.RLock()  # so that two threads do not execute the same FILE.py
_functions: set[Callable] = set()  # functions that `find` has returned
# Errors of a search for a module or file whose name may be any text.
_LOOKUP_ERRORS = (ImportError, ValueError, AttributeError, OSError, RuntimeError)


def is_import_path(name: str) -> bool:
    """Returns whether a name has the form `package.module:Name` or `FILE.py[:Name]`."""
    return ":" in name or name.endswith(".py")


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Parses `NAME` or `NAME(key=value, ...)` into NAME and its keyword arguments (literals)."""
    name, bracket, rest = text.partition("(")
    if not bracket:
        return name, {}
    with contextlib.suppress(SyntaxError, ValueError, MemoryError, RecursionError):
        call = ast.parse(f"_({rest}", mode="eval").body
        plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
        if name and plain and all(keyword.arg for keyword in call.keywords):
            return name, {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    raise UserError(f"{text!r} is not NAME or NAME(key=value, ...) with numbers, 'text' or tuples")


def find(import_path: str, base: type | None = None, trust_code: bool = False) -> Any:
    """Finds the object that `package.module:Name` or `FILE.py:Name` names, or raises a UserError.

    `:Name` may be omitted if the module defines only one suitable object: a subclass of `base`, or
    a function without `base`. `trust_code=False` means that the name was read from a file: then it
    must name a class of a module that is already imported, or a function that was found before with
    True.
    """
    name, _, attribute = import_path.partition(":")
    if not (trust_code or is_imported(import_path, base)):
        raise UserError(
            f"{import_path!r} was read from a file and would run the code of the module {name}: if "
            "you trust the code, give --trust-code (in Python trust_code=True)"
        )
    module = import_module(name)
    candidates = vars_of(module, base)
    if not attribute and len(candidates) == 1:
        [attribute] = candidates
    value = vars(module).get(attribute)
    if not _is_suitable(value, base):
        expected = f"subclass of {base.__module__}.{base.__name__}" if base else "function"
        names = " or ".join(f"{name}:{candidate}" for candidate in candidates)
        mend = f"write {names}" if names else f"define one in {name} and write {name}:NAME"
        raise UserError(f"{import_path} names no {expected}: {mend}")
    if base is None:
        _functions.add(value)
    return value


def is_imported(import_path: str, base: type | None = None) -> bool:
    """Returns whether `find` needs no `trust_code`, because the object is already imported.

    A function counts only if `find` has returned it before: a file that names `shutil:rmtree` must
    not have it called, although many programs import `shutil`.
    """
    name, _, attribute = import_path.partition(":")
    module = _files.get(_path_of(name)) if name.endswith(".py") else sys.modules.get(name)
    if module is None:
        return False
    found = [vars(module).get(attribute)] if attribute else list(vars_of(module, base).values())
    is_known = (_is_suitable(value, base) and (base or value in _functions) for value in found)
    return bool(found) and all(is_known)


def imported_names(values: Any) -> list[str]:
    """Returns the names of imported classes in nested dicts, lists and tuples."""
    names = {text.partition("(")[0] for text in _texts(values)}
    return sorted(name for name in names if is_import_path(name) and is_imported(name, object))


def source_names(values: Any) -> list[str]:
    """Returns the names of functions in the `python:` sources in nested dicts, lists and tuples."""
    texts = (text for text in _texts(values) if text.startswith("python:"))
    return [text.removeprefix("python:") for text in texts]


def find_sources(values: Any) -> None:
    """Finds the functions of all `python:` sources in nested values that the user wrote."""
    for name in source_names(values):
        find(name, trust_code=True)


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict | list | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _texts(value)


def origin_of(import_path: str) -> str | None:
    """Returns the path of the source file that `import_module` would run, without any import."""
    name = import_path.partition(":")[0]
    # `python -m` searches the working directory for modules, but an installed script does not.
    if (here := str(pathlib.Path.cwd())) not in sys.path:
        sys.path.append(here)
    if name.endswith(".py"):
        file = _path_of(name)
        return str(file) if file else None
    with contextlib.suppress(*_LOOKUP_ERRORS):
        top, *submodules = name.split(".")
        spec, find = importlib.util.find_spec(top), importlib.machinery.PathFinder.find_spec
        for submodule in submodules:
            spec = find(f"{spec.name}.{submodule}", spec.submodule_search_locations)
        return spec.origin
    return None


def _path_of(name: str) -> pathlib.Path | None:
    with contextlib.suppress(*_LOOKUP_ERRORS):
        file = pathlib.Path(name).expanduser().resolve()
        return file if file.is_file() else None
    return None


def vars_of(module: types.ModuleType, base: type | None = None) -> dict[str, Any]:
    """Returns the public functions, or subclasses of `base`, that a module itself defines."""
    public = ((name, value) for name, value in sorted(vars(module).items()) if name[:1] != "_")
    suitable = ((name, value) for name, value in public if _is_suitable(value, base))
    return {name: value for name, value in suitable if value.__module__ == module.__name__}


def _is_suitable(value: Any, base: type | None) -> bool:
    if base is None:
        return inspect.isfunction(value)
    return isinstance(value, type) and issubclass(value, base)


def import_module(name: str) -> types.ModuleType:
    """Imports a module by its name or from a file `FOLDER/NAME.py`, or raises a UserError.

    The search path includes the working directory. The first import prints name and file to stderr.
    """
    file = _path_of(name) if name.endswith(".py") else None
    if file is None and name.endswith(".py"):
        raise UserError(f"there is no file {name}: check the path")
    is_known = file in _files if file else name in sys.modules
    if not is_known and (origin := origin_of(name)):
        print(f"importing your code: {name}, {origin}", file=sys.stderr, flush=True)
    with clear_errors(name):
        try:
            # Waits if another thread imports the module.
            module = _import_file(file) if file else importlib.import_module(name)
        except ModuleNotFoundError as error:
            if file or not error.name or not f"{name}.".startswith(f"{error.name}."):
                raise  # the user's module exists, but a module that it imports does not
            raise UserError(
                f"{name} cannot be imported, because there is no module {error.name!r}: run the "
                "command in the folder that contains the module, or add that folder to PYTHONPATH"
            ) from error
    return module


def _import_file(file: pathlib.Path) -> types.ModuleType:
    with _files_lock:
        if file not in _files:
            spec = importlib.util.spec_from_file_location(file.stem, file)
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(file.stem, module)  # in which dataclasses look up their module
            spec.loader.exec_module(module)
            _files[file] = module
        return _files[file]


@contextlib.contextmanager
def clear_errors(import_path: str) -> Iterator[None]:
    """Turns exceptions of user code in the `with` block into a `UserError` of one sentence.

    A `UserError` is raised unchanged. `import_path` names the user's module or function.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        description = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        frame = traceback.extract_tb(error.__traceback__)[-1]
        # The message of a SyntaxError already ends with the file and line.
        is_syntax = isinstance(error, SyntaxError)
        where = "" if is_syntax else f" ({frame.filename}, line {frame.lineno})"
        raise UserError(f"{import_path} raised {description}{where}") from error
