"""Copies of user code in a folder that `save_pretrained` writes.

With these copies, a person who does not have the user code can load the model.

For example, a model with the user's block `mine:Block` has a copy of mine.py in DIR/code. DIR/code
also has copies of the user's modules that mine.py imports.

The code runs only if the person who loads the model gives `--trust-code` or `trust_code=True`.
"""

import ast
import hashlib
import pathlib
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from etils import epath

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io import plug_ins

CODE = "code"
_PROJECT_PACKAGES = ("macaron_tf", "experiments", "export")


def take_code(folder: epath.Path, record: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Copies the files of the user's classes that a record names into `folder/code`.

    Only imported classes outside of installed packages count. In the returned record,
    `FILE.py:Name` becomes `FILE:Name`. The second result are the paths of the copies relative to
    `folder`.
    """
    names, files = {}, {}
    for import_path in plug_ins.imported_names(record):
        module, _, name = import_path.partition(":")
        if module.endswith(".py"):
            names[import_path] = f"{pathlib.Path(module).stem}:{name}"
        files |= _files_of(import_path)
    for name, file in files.items():
        copy = folder / CODE / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
        print(f"note: the model is saved with {CODE}/{name}, a copy of {file}", file=sys.stderr)

    def renamed(value: Any) -> Any:
        name, bracket, rest = value.partition("(") if isinstance(value, str) else ("", "", "")
        return f"{names[name]}{bracket}{rest}" if name in names else value

    return tf.nest.map_structure(renamed, record), [f"{CODE}/{name}" for name in files]


def code_digests(values: Any) -> dict[str, str]:
    """Returns the SHA-256 (hex) of each file of the user's whose code nested values name."""
    names = (*plug_ins.imported_names(values), *plug_ins.source_names(values))
    files = {path: file for name in names for path, file in _files_of(name).items()}
    return {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in files.items()}


def offer_code(folder: epath.Path) -> None:
    """Makes the modules in `folder/code`, if there are any, importable in this process."""
    code = folder / CODE
    if not code.is_dir():
        return
    if storage.is_remote(code):
        raise UserError(f"{code} is in a bucket: copy the folder to a local disk first")
    code = pathlib.Path(code).resolve()
    for file in sorted(code.rglob("*.py")):
        name = ".".join(file.relative_to(code).with_suffix("").parts).removesuffix(".__init__")
        # Python's own modules may be "built-in" or "frozen", without a file.
        origin = pathlib.Path(plug_ins.origin_of(name) or file)
        if not (origin.is_file() and origin.read_bytes() == file.read_bytes()):
            conflict = f"{folder} has its own module {name}, but Python imports {origin}"
            raise UserError(f"{conflict}: change folders")
    if str(code) not in sys.path:
        sys.path.append(str(code))


def _files_of(import_path: str) -> dict[str, pathlib.Path]:
    """Finds the file of a module, and those of the user's modules that it imports, by their paths.

    The search includes indirect imports, but only files below the root folder: the folder of
    `FILE.py`, or that of the top-level package. The result is empty for an installed package.
    """
    origin, name = plug_ins.origin_of(import_path) or "", import_path.partition(":")[0]
    is_project = name.partition(".")[0] in _PROJECT_PACKAGES
    library_folders = {sysconfig.get_path(key) for key in ("purelib", "platlib", "stdlib")}
    is_installed = any(map(pathlib.Path(origin).is_relative_to, library_folders))
    if is_project or is_installed or not origin.endswith(".py"):
        return {}
    file = pathlib.Path(origin).resolve()
    name = file.stem if name.endswith(".py") else name
    root = file.parents[name.count(".") + (file.name == "__init__.py")]
    files, queue = {}, [name]
    while queue:
        parts = queue.pop().split(".")
        for end in range(1, len(parts) + 1):  # Python imports a package before its modules
            base = root.joinpath(*parts[:end])
            for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                path = candidate.relative_to(root).as_posix()
                if path not in files and candidate.is_file() and parts[0] not in _PROJECT_PACKAGES:
                    files[path] = candidate
                    package = parts[:end] if candidate.name == "__init__.py" else parts[: end - 1]
                    queue += _imports(candidate, package)
    return files


def _imports(file: pathlib.Path, package: list[str]) -> Iterator[str]:
    """Yields the full name of each module or object that a Python file imports."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
