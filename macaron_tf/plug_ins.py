"""Import of user code that a setting or a command names.

The name has the form `package.module:Name` or `FILE.py:Name`. If the name is a class to
instantiate, arguments may follow: `package.module:Name(rate=0.1)`.

A run records the name and not the code. Every process that opens the run imports the module. A
`package.module` must be in the working directory or on PYTHONPATH.

A model folder may come from a stranger. Therefore, this module imports a name only in three cases:

- The user wrote the name on the command line or in Python (see `allow` and `allow_within`).
- The folder has a signature of the name by the same user (see `macaron_tf.io.signatures`).
- The user gave `--trust-code` or `trust_code=True` (see `trusting`), and the name is not a
  FILE.py.
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
    """Record of the user code that this process may import. All threads share the record."""

    import_paths: ClassVar[set[str]] = set()
    texts: ClassVar[set[str]] = set()  # texts that the user wrote, such as arguments of a command
    everything = False


_files: dict[pathlib.Path, types.ModuleType] = {}  # maps each imported FILE.py to its module


def is_import_path(name: str) -> bool:
    """Returns whether a name has the form `package.module:Name` or `FILE.py[:Name]`."""
    return ":" in name or name.endswith(".py")


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Parses `NAME` or `NAME(key=value, ...)` into NAME and its keyword arguments.

    Raises:
        UserError: the text has another form, or a value is not a literal.
    """
    name, bracket, rest = text.partition("(")
    if not bracket:
        return name, {}
    with contextlib.suppress(SyntaxError, ValueError, MemoryError, RecursionError):
        call = ast.parse(f"_({rest}", mode="eval").body
        plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
        if name and plain and all(keyword.arg for keyword in call.keywords):
            return name, {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    raise UserError(
        f"{text!r} is not NAME or NAME(key=value, ...): give every argument with its name, as a "
        "number, quoted text, True, False, None or a tuple"
    )


def find(import_path: str, base: type | None = None) -> Any:
    """Imports the object that `package.module:Name` or `FILE.py:Name` names.

    This function also allows later imports of the same name (see `allow`).

    Args:
        import_path: name of the object. `:Name` may be omitted if the module defines only one
            suitable object.
        base: class of which the object must be a subclass. `None` means that the object must be a
            function.

    Raises:
        UserError: the module or object does not exist, the import fails, the object has another
            type, or the name was read from a file and the user has not allowed the import.
    """
    name, _, attribute = import_path.partition(":")
    # Taking a class from a module that is already imported runs no code.
    is_imported = base and attribute in vars_of(sys.modules.get(name), base)
    if not is_imported:
        check_allowed(import_path)
    allow(import_path)
    module = import_module(name)
    candidates = vars_of(module, base)
    if not attribute and len(candidates) == 1:
        [attribute] = candidates
    expected = f"a subclass of {base.__module__}.{base.__name__}" if base else "a function"
    if attribute not in vars(module):
        noun = "classes" if base else "functions"
        problem = (
            f"{name} defines {f'several suitable {noun}' if candidates else f'no suitable {noun}'}"
        )
        if attribute:
            problem = f"{name} does not define {attribute!r}"
        if candidates:
            raise UserError(
                f"{problem}: write {' or '.join(f'{name}:{candidate}' for candidate in candidates)}"
            )
        raise UserError(f"{problem}: define {expected} in {name} and write {name}:NAME")
    value = vars(module)[attribute]
    if not _is_suitable(value, base):
        raise UserError(f"{import_path} is not {expected}: give {expected}")
    return value


def allow(*import_paths: str) -> None:
    """Allows imports of user code by name, such as `package.module:Name`."""
    _Trust.import_paths.update(import_path.removeprefix("python:") for import_path in import_paths)


def allow_within(*texts: str) -> None:
    """Allows imports of user code whose names occur in texts that the user wrote.

    Args:
        texts: texts such as `model.block=mine:Block`, `python:mine:rows`, or the `repr` of a
            recipe. A text that consists only of a name allows no import, because such a text may be
            a data source: `lambada:dev` has the form of a name.
    """
    _Trust.texts.update(texts)


@contextlib.contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Allows imports of all modules within the `with` block, for all threads.

    A name of the form `FILE.py:Name` still needs the user's permission (see `is_allowed`).

    Args:
        trust: whether to allow the imports. `False` changes nothing.
    """
    previous, _Trust.everything = _Trust.everything, trust or _Trust.everything
    try:
        yield
    finally:
        _Trust.everything = previous


def trusts_code() -> bool:
    """Returns whether any thread is in a `with` block of `trusting(True)`."""
    return _Trust.everything


def is_allowed(import_path: str) -> bool:
    """Returns whether this process may import the user code that a name stands for.

    For a `FILE.py`, or a name that contains `~`, `trusting` is not sufficient. The user must have
    written or signed such a name.
    """
    if import_path in _Trust.import_paths or (_Trust.everything and not _is_file(import_path)):
        return True
    within = re.compile(rf"(?:python:|[=,(\[\s'\"]){re.escape(import_path)}(?:$|[,()\]\s'\"])")
    return any(map(within.search, _Trust.texts))


def _is_file(import_path: str) -> bool:
    return import_path.partition(":")[0].endswith(".py") or "~" in import_path


def check_allowed(import_path: str) -> None:
    """Raises a UserError if `is_allowed` returns `False` for a name."""
    name = import_path.partition(":")[0]
    if is_allowed(import_path):
        return
    if _is_file(import_path):
        raise UserError(
            f"{import_path!r} was read from a file, but only a command may name a FILE.py: give "
            f"{import_path} in the command, or write "
            f"{pathlib.Path(name).stem}:{import_path.partition(':')[2] or 'NAME'} in the file"
        )
    raise UserError(
        f"{import_path!r} was read from a file and would run the code of the module {name}: if you "
        "trust the code, give --trust-code (in Python trust_code=True or "
        f"plug_ins.allow({import_path!r}))"
    )


def origin_of(import_path: str) -> str | None:
    """Returns the path of the source file that `import_module` would run.

    `None` means that the module does not exist or has no source file. This function imports
    nothing, not even the packages that contain the module.
    """
    name = import_path.partition(":")[0]
    # `python -m` searches the working directory for modules, but an installed script does not.
    if (here := str(pathlib.Path.cwd())) not in sys.path:
        sys.path.append(here)
    lookup_errors = (ImportError, ValueError, AttributeError, OSError, RuntimeError)  # for any text
    with contextlib.suppress(*lookup_errors):
        if name.endswith(".py"):
            file = pathlib.Path(name).expanduser().resolve()
            return str(file) if file.is_file() else None
        top, *submodules = name.split(".")
        spec = importlib.util.find_spec(top)
        for depth in range(len(submodules)):
            full = ".".join([top, *submodules[: depth + 1]])
            spec = importlib.machinery.PathFinder.find_spec(full, spec.submodule_search_locations)
        return spec.origin
    return None


def file_of(import_path: str) -> pathlib.Path:
    """Imports the function that `package.module:Name` names, and returns its source file."""
    return pathlib.Path(find(import_path).__code__.co_filename)


def vars_of(module: types.ModuleType | None, base: type | None = None) -> dict[str, Any]:
    """Returns a dict of the public functions that a module defines, not of imported functions.

    If `base` is not `None`, the dict contains the public subclasses of `base` that the module
    defines. The keys are the names in the module.
    """
    return {
        name: value
        for name, value in sorted(vars(module).items() if module else ())
        if not name.startswith("_")
        and _is_suitable(value, base)
        and value.__module__ == module.__name__
    }


def _is_suitable(value: Any, base: type | None) -> bool:
    if base is None:
        return inspect.isfunction(value)
    return isinstance(value, type) and issubclass(value, base)


def import_module(name: str) -> types.ModuleType:
    """Imports a module by its name or from a file `FOLDER/NAME.py`.

    The search path includes the working directory. On the first import of a module, this function
    prints the module's name and file to stderr. Later imports do not execute the module again. This
    function does not check whether the import is allowed (see `check_allowed`).

    Raises:
        UserError: the module or file does not exist, `name` is not a module name, or the module
            raises an exception.
    """
    if name.endswith(".py"):
        file = pathlib.Path(name).expanduser().resolve()
        if not file.is_file():
            raise UserError(f"there is no file {name}: check the path")
        module, load = _files.get(file), lambda: _import_file(file)
    else:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UserError(
                f"{name!r} is not a module name: write package.module:Name with names of letters, "
                "digits and underscores"
            )
        module, load = sys.modules.get(name), lambda: _import_name(name)
    if module is None:
        if origin := origin_of(name):
            print(f"importing your code: {name}, {origin}", file=sys.stderr, flush=True)
        with clear_errors(name):
            module = load()
    USER_FILES.add(module.__file__ or "")
    return module


def _import_name(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{name}.".startswith(f"{error.name}."):
            raise  # the user's module exists, but a module that it imports does not
        raise UserError(
            f"{name} cannot be imported, because there is no module {error.name!r}: run the "
            "command in the folder that contains the module, or add that folder to PYTHONPATH"
        ) from error


def _import_file(file: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module in sys.modules.
    registered = sys.modules.setdefault(file.stem, module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if registered is module:
            del sys.modules[file.stem]
        raise
    _files[file] = module
    return module


@contextlib.contextmanager
def clear_errors(import_path: str) -> Iterator[None]:
    """Turns exceptions of user code in the `with` block into a `UserError` of one sentence.

    A `UserError` is raised unchanged.

    Args:
        import_path: name of the user's module or function, for the message.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(sentence_of(error, import_path)) from error


def call_user_code(import_path: str, function: Callable, *arguments) -> Any:
    """Calls a user's function. Exceptions of the function become a `UserError`."""
    with clear_errors(import_path):
        return function(*arguments)
