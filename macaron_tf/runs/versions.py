"""The version and the commit of this package, which runs and reports record."""

import os
import pathlib
import subprocess

from macaron_tf import __version__

_TIMEOUT = 10  # seconds
# Variables with which a caller, such as a git hook, makes git read another repository.
_LOCATIONS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")
_ROOT = pathlib.Path(__file__).parents[2]  # the repository, or the folder of installed packages


def versions() -> dict[str, str]:
    """Returns the version and commit of this package, and the commit of the user's repository.

    A commit is "" if there is no repository.
    """
    is_checkout, here = (_ROOT / ".git").exists(), pathlib.Path()
    repository = _git(here, "rev-parse", "--show-toplevel")
    has_user_repository = repository and not (is_checkout and os.path.samefile(repository, _ROOT))
    return {
        "version": __version__,
        "commit": commit() if is_checkout else "",
        "your_commit": commit(here) if has_user_repository else "",
    }


def commit(folder: pathlib.Path = _ROOT) -> str:
    """Returns the abbreviated hash of the commit that is checked out in a folder.

    The hash ends in `-dirty` if tracked files differ from the commit. Files in
    `experiments/results` are not compared, because studies write their results to that folder.
    Without a repository or without git, the result is an empty string.
    """
    short = _git(folder, "rev-parse", "--short", "HEAD")
    compared = "--untracked-files=no", "--", ":/", ":(top,exclude)experiments/results"
    return short and short + "-dirty" * bool(_git(folder, "status", "--porcelain", *compared))


def _git(folder: pathlib.Path, *arguments: str) -> str:
    """Runs git without the variables in `_LOCATIONS`, and returns the output, "" if git fails."""
    environment = {name: os.environ[name] for name in os.environ if name not in _LOCATIONS}
    options = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL, "timeout": _TIMEOUT}
    try:
        text = subprocess.check_output(["git", *arguments], stderr=subprocess.DEVNULL, **options)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or too slow a disk
        return ""
    return os.fsdecode(text).removesuffix("\n")
