"""The version and the commit of this package, which runs and reports record."""

import os
import pathlib
import subprocess

from macaron_tf import __version__

_ROOT = pathlib.Path(__file__).parents[1]  # the repository, or the folder of an installed wheel


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
    short = _git(folder, "describe", "--always", "--exclude", "*")[1]
    edits = "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)experiments/results"
    return short and short + "-dirty" * (_git(folder, *edits)[0] == 1)


def _git(folder: pathlib.Path, *arguments: str) -> tuple[int, str]:
    """Runs git in a folder, and returns the exit status and the output."""
    try:
        process = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    except OSError as error:  # there is no git
        return error.errno or -1, ""
    return process.returncode, process.stdout.strip()
