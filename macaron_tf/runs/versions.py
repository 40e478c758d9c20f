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
    repository = _git(here, "rev-parse", "--show-toplevel")[1]
    has_user_repository = repository and not (is_checkout and os.path.samefile(repository, _ROOT))
    commits = commit() if is_checkout else "", commit(here) if has_user_repository else ""
    return dict(zip(("version", "commit", "your_commit"), (__version__, *commits), strict=True))


def commit(folder: pathlib.Path = _ROOT) -> str:
    """Returns the abbreviated hash of the commit that is checked out in a folder.

    The hash ends in `-dirty` if tracked files differ from the commit. Files in
    `experiments/results` are not compared, because studies write their results to that folder.
    Without a repository or without git, the result is an empty string.
    """
    short = _git(folder, "rev-parse", "--short", "HEAD")[1]
    edits = "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)experiments/results"
    return short and short + "-dirty" * (_git(folder, *edits)[0] == 1)


def _git(folder: pathlib.Path, *arguments: str) -> tuple[int, str]:
    """Runs git without the variables in `_LOCATIONS`, and returns the exit status and the output.

    If git fails, the output is empty.
    """
    environment = {name: os.environ[name] for name in os.environ if name not in _LOCATIONS}
    try:
        process = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired):  # there is no git, or its disk is too slow
        return -1, ""
    output = os.fsdecode(process.stdout).removesuffix("\n")
    return process.returncode, "" if process.returncode else output
