"""Saves copies of user code in a folder of `save_pretrained`, so that others can open the model.

DIR/code/mine.py    the module of `mine:Block`, and beside it the user's modules that it imports

This code only runs if whoever opens the folder gives `--trust-code` or `trust_code=True`.
"""

import ast
import pathlib
import re
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from etils import epath

from macaron_tf import plug_ins
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.signatures import allowed_places

CODE = "code"
_OURS = ("macaron_tf", "experiments", "export")


def take_code(folder: epath.Path, record: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Copies the files of the user code that a record names into `folder/code`.

    Sources of text and modules of installed packages are not copied. `FILE.py:Name` becomes
    `FILE:Name` in the record, because a folder must not name a FILE.py.

    Returns:
        The record with the new names, and the paths of the copies, relative to the folder.
    """
    names, files = {}, {}
    for place in allowed_places(record, sources=False):
        module, _, name = place.partition(":")
        if module.endswith(".py"):
            names[place] = f"{pathlib.Path(module).stem}:{name}"
        elif not _is_code(module, name):
            continue
        files |= (found := _files_of(place))
        if not found and not _is_installed(plug_ins.origin_of(place)):
            print(f"warning: {place} has no file that can be saved with the model", file=sys.stderr)
    for name, file in files.items():
        copy = folder / CODE / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
        print(f"note: {CODE}/{name} is saved with the model: a copy of {file}", file=sys.stderr)

    def renamed(value: Any) -> Any:
        place, bracket, rest = value.partition("(") if isinstance(value, str) else (value, "", "")
        return names[place] + bracket + rest if place in names else value

    record = tf.nest.map_structure(renamed, record) if names else record
    return record, [f"{CODE}/{name}" for name in files]


def offer_code(folder: epath.Path) -> None:
    """Makes modules in a folder's `code` importable, if imports of any module are allowed.

    Raises:
        UserError: Python would import another module of the same name instead.
    """
    code = folder / CODE
    if not plug_ins.trusts_code() or not code.is_dir():
        return
    if storage.is_remote(code):
        raise UserError(f"{code} has code: copy the folder from its bucket to a local disk first")
    code = pathlib.Path(code).resolve()
    for file in sorted(code.rglob("*.py")):
        name = ".".join(file.relative_to(code).with_suffix("").parts).removesuffix(".__init__")
        origin = plug_ins.origin_of(name)
        if origin and not _equal(origin, file):
            raise UserError(
                f"{folder} has a module {name}, but Python finds another one of that name first, "
                f"{origin}: load the folder in a new process and in another working directory"
            )
    if str(code) not in sys.path:
        sys.path.append(str(code))


def _equal(origin: str, file: pathlib.Path) -> bool:
    return storage.is_file(origin) and storage.read_bytes(origin) == storage.read_bytes(file)


def _is_code(module: str, name: str) -> bool:
    """Whether a module is imported, or its file defines a name. A source `text:FILE` is no code."""
    origin = plug_ins.origin_of(module) or ""
    text = pathlib.Path(origin).read_text("utf-8", "replace") if origin.endswith(".py") else ""
    return module in sys.modules or bool(
        re.search(rf"^(class|def) {re.escape(name)}\b", text, re.M)
    )


def _is_installed(origin: str | None) -> bool:
    """Whether a file belongs to an installed package or to Python itself."""
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}
    return bool(origin) and any(map(pathlib.Path(origin).is_relative_to, places))


def _files_of(place: str) -> dict[str, pathlib.Path]:
    """Finds the file of a module, and files below the same root folder that it imports.

    Args:
        place: `package.module:Name` or `FILE.py:Name`.

    Returns:
        The files by their paths relative to the root folder.
    """
    origin = plug_ins.origin_of(place)
    if not origin or not origin.endswith(".py") or _is_installed(origin):
        return {}
    file, name = pathlib.Path(origin).resolve(), place.partition(":")[0]
    if name.endswith(".py"):
        root, name = file.parent, file.stem
    else:
        root = file.parents[name.count(".") + (file.name == "__init__.py")]
    found, waiting = {}, [name]
    while waiting:
        parts = waiting.pop().split(".")
        for end in range(1, len(parts) + 1):  # packages are imported before their modules
            base = root.joinpath(*parts[:end])
            for one in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                path = one.relative_to(root).as_posix()
                if path not in found and one.is_file() and parts[0] not in _OURS:
                    found[path] = one
                    package = parts[:end] if one.name == "__init__.py" else parts[: end - 1]
                    waiting += _imports(one, package)
    return found


def _imports(file: pathlib.Path, package: list[str]) -> Iterator[str]:
    """Yields the names that a file imports; each may be a module or an object in a module.

    Args:
        file: the file.
        package: names of the packages that contain it, for relative imports.
    """
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
