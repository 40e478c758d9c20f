"""Parallel text in files: two aligned files, or one of two columns; plain or gzip."""

import contextlib
import gzip
import zlib
from collections.abc import Iterator

from etils import epath

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage

_WHOLE = ("train", "all")  # the splits of files whose names hold no {split}


def read_text(names: str, split: str) -> list[tuple[str, str]]:
    """Reads two aligned files.

    Args:
        names: "SOURCE_FILE,TARGET_FILE"; `{split}` in them stands for the split.
        split: the split.

    Returns:
        (source, target) lines.

    Raises:
        UserError: see `sources.read_pairs`.
    """
    source_path, target_path = text_paths(names, split)
    source = list(lines_of(source_path))
    target = list(lines_of(target_path))
    for path, lines in ((source_path, source), (target_path, target)):
        if not lines:
            raise UserError(f"{path} is empty: give a file with one sentence a line")
    if len(source) != len(target):
        raise UserError(
            f"{source_path} has {len(source)} lines but {target_path} has {len(target)}: "
            "line n of one must be the translation of line n of the other"
        )
    return list(zip(source, target, strict=True))


def read_tsv(name: str, split: str) -> list[tuple[str, str]]:
    """Reads a file of two tab-separated columns.

    Args:
        name: the file; `{split}` in it stands for the split.
        split: the split.

    Returns:
        (source, target) lines.

    Raises:
        UserError: see `sources.read_pairs`.
    """
    path = split_path("tsv", name, split)
    pairs = []
    for number, line in enumerate(lines_of(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}, line {number}: {len(columns)} columns, not 2; "
                "separate source and target by one tab"
            )
        pairs.append((columns[0], columns[1]))
    if not pairs:
        raise UserError(f"{path} is empty: give a file with one pair a line")
    return pairs


def text_paths(names: str, split: str) -> tuple[epath.Path, epath.Path]:
    """The two files of a `text:` source.

    Args:
        names: "SOURCE_FILE,TARGET_FILE".
        split: put in place of `{split}`.

    Returns:
        The paths.

    Raises:
        UserError: not two names, or names without `{split}` for another split than the whole.
    """
    parts = names.split(",")
    if len(parts) != 2 or not all(parts):
        raise UserError(
            f"the source 'text:{names}' names {len([p for p in parts if p])} files, not 2: "
            "give text:SOURCE_FILE,TARGET_FILE"
        )
    return split_path("text", parts[0], split), split_path("text", parts[1], split)


def split_path(kind: str, name: str, split: str) -> epath.Path:
    """The file of a split.

    Args:
        kind: the source's kind, for the message.
        name: the name, with or without `{split}`.
        split: put in place of `{split}`.

    Returns:
        The path.

    Raises:
        UserError: a name without `{split}` was asked for another split than the whole.
    """
    if "{split}" not in name and split not in _WHOLE:
        raise UserError(
            f"the source '{kind}:{name}' has no split {split!r}: put {{split}} in the file's name, "
            f"where {split!r} shall stand, or ask for the split 'all'"
        )
    return storage.as_path(name.replace("{split}", split)).expanduser()


def lines_of(path: epath.Path) -> Iterator[str]:
    """Lines of a file, cut at line feeds only: U+2028, NEL and form feeds stay inside a line.

    Args:
        path: plain or `.gz`.

    Yields:
        Each line without its end.

    Raises:
        UserError: the file cannot be read, is not UTF-8, or is no whole gzip file.
    """
    number = 0
    try:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(path.open("rb"))
            if path.suffix == ".gz":
                file = opened.enter_context(gzip.open(file))
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x}); "
            "convert the file to UTF-8"
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file: {error}; compress it again") from error
    except storage.FILE_ERRORS as error:
        raise _unreadable(path, error) from error


def _unreadable(path: epath.Path, error: Exception) -> UserError:
    return UserError(f"cannot read {path}: {storage.reason(error)}; check the path")
