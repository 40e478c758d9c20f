"""Checkpoints as whole directories: written aside, checksummed, renamed, rotated.

RUN/checkpoints/step-00001000/model.weights.h5     the network, for `network.load_weights`
                              ema.weights.h5       its moving average, where one is kept
                              training_state.npz   what a resume needs besides
                              manifest.json        step, checksums, vocabulary, metrics
RUN/checkpoints/best.json                          which step is best
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Mapping

from macaron_tf.errors import UserError

FORMAT = 1
WEIGHTS = "model.weights.h5"
EMA_WEIGHTS = "ema.weights.h5"
STATE = "training_state.npz"
MANIFEST = "manifest.json"
BEST = "best.json"

_NAME = re.compile(r"step-(\d{8,})")
_ASIDE = ".tmp-"  # being written, or being deleted
_REPLACED = ".old-"  # the old one of a step that is being written again


class CheckpointDirectory:
    """The checkpoints of a run.

    Args:
        run_dir: the run's directory; checkpoints are in its subdirectory `checkpoints`.
    """

    def __init__(self, run_dir: str | os.PathLike):
        self.path = pathlib.Path(run_dir) / "checkpoints"

    def steps(self, every: int | None = None) -> list[int]:
        """The steps with a checkpoint, whole or not, in ascending order.

        Args:
            every: only multiples of it: those saved for the time or at an interruption are not
                regular. None = all.
        """
        if not self.path.is_dir():
            return []
        matches = (_NAME.fullmatch(entry.name) for entry in self.path.iterdir())
        steps = sorted(int(match[1]) for match in matches if match)
        return [step for step in steps if step % (every or 1) == 0]

    def of_step(self, step: int) -> pathlib.Path:
        """The directory of a step's checkpoint, which need not exist."""
        return self.path / f"step-{step:08d}"

    def clean(self) -> None:
        """Removes what an interrupted save left; only the one writer of a run may call this.

        Raises:
            UserError: the directory cannot be changed.
        """
        if not self.path.is_dir():
            return
        with _clear_errors(f"cannot clean {self.path}"):
            for entry in sorted(self.path.iterdir()):
                if entry.name.startswith(_REPLACED):
                    # Killed between the two renames of a save: the old one is whole.
                    final = self.path / entry.name.removeprefix(_REPLACED)
                    if not final.exists():
                        os.replace(entry, final)
                        continue
                if entry.name.startswith((_ASIDE, _REPLACED)):
                    _remove(entry)

    def save(
        self,
        step: int,
        write: Callable[[pathlib.Path], None],
        manifest: Mapping[str, object] | None = None,
    ) -> pathlib.Path:
        """Makes the checkpoint of `step`, all of it or none of it.

        Args:
            step: updates done.
            write: writes every file but the manifest into the directory it is given.
            manifest: further fields of `manifest.json`.

        Returns:
            The checkpoint's directory.

        Raises:
            UserError: it cannot be written (disk full, no permission); the older ones are intact.
        """
        final = self.of_step(step)
        save_whole(final, write, {"step": step, **(manifest or {})})
        return final

    def latest(self) -> pathlib.Path | None:
        """The newest whole checkpoint, or None; says in a line on stderr which ones are damaged."""
        for step in reversed(self.steps()):
            damage = find_damage(self.of_step(step))
            if damage is None:
                return self.of_step(step)
            print(f"warning: skipping a damaged checkpoint: {damage}", file=sys.stderr)
        return None

    def rotate(self, keep_last: int) -> None:
        """Deletes all but the newest `keep_last` checkpoints and the best one.

        Raises:
            UserError: the directory cannot be changed.
        """
        best = self.best()
        keep = {*self.steps()[-keep_last:], best["step"] if best else None}
        with _clear_errors(f"cannot remove old checkpoints in {self.path}"):
            for step in self.steps():
                if step not in keep:
                    # Renamed first: a directory of that name is never half deleted.
                    aside = self.path / f"{_ASIDE}{self.of_step(step).name}"
                    os.replace(self.of_step(step), aside)
                    _remove(aside)

    def best(self) -> dict | None:
        """`{"step", "metric", "score"}` of the best checkpoint; None where there is none."""
        try:
            best = json.loads((self.path / BEST).read_text())
        except (OSError, ValueError):
            return None
        usable = isinstance(best, dict) and isinstance(best.get("step"), int)
        return best if usable and self.of_step(best["step"]).is_dir() else None

    def mark_best(self, step: int, metric: str, score: float) -> None:
        """Points `best.json` at a step's checkpoint, which rotation then never deletes.

        Raises:
            UserError: the file cannot be written.
        """
        with _clear_errors(f"cannot write {self.path / BEST}"):
            text = json.dumps({"step": step, "metric": metric, "score": score}) + "\n"
            write_atomically(self.path / BEST, text)


def save_whole(
    final: pathlib.Path,
    write: Callable[[pathlib.Path], None],
    manifest: Mapping[str, object],
) -> None:
    """Makes a checkpoint directory, all of it or none of it; an old one of its name is replaced.

    Args:
        final: where it goes.
        write: writes every file but the manifest into the directory it is given.
        manifest: fields of `manifest.json`, which gets the format and the checksums besides.

    Raises:
        UserError: it cannot be written (disk full, no permission); nothing else was touched.
    """
    aside = final.with_name(f"{_ASIDE}{final.name}")
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    try:
        with _clear_errors(
            f"cannot write checkpoint {final}",
            "older checkpoints are intact; check its permissions and the free space",
        ):
            final.parent.mkdir(parents=True, exist_ok=True)
            _remove(aside)
            aside.mkdir()
            write(aside)
            files = {entry.name: _fingerprint(entry) for entry in sorted(aside.iterdir())}
            content = {"format": FORMAT, **manifest, "files": files}
            (aside / MANIFEST).write_text(json.dumps(content, indent=1) + "\n")
            for entry in (*aside.iterdir(), aside):
                sync(entry)
            if final.exists():
                _remove(replaced)
                os.replace(final, replaced)
            os.replace(aside, final)
            sync(final.parent)
            _remove(replaced)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(aside)
        raise


def read_manifest(checkpoint: str | os.PathLike) -> dict:
    """The manifest of a checkpoint, after the checksums of its files were verified.

    Raises:
        UserError: there is no such checkpoint, or it is damaged, or of a later format.
    """
    damage = find_damage(checkpoint)
    if damage is not None:
        raise UserError(f"cannot use a damaged checkpoint: {damage}")
    manifest = json.loads((pathlib.Path(checkpoint) / MANIFEST).read_text())
    if manifest["format"] > FORMAT:
        raise UserError(
            f"{checkpoint} has format {manifest['format']}, newer than this program's {FORMAT}: "
            "update the program"
        )
    return manifest


def find_damage(checkpoint: str | os.PathLike) -> str | None:
    """What is wrong with a checkpoint's files, or None where all are as they were written."""
    path = pathlib.Path(checkpoint)
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        files, _, _ = manifest["files"], manifest["step"], manifest["format"]
        for name, written in files.items():
            if _fingerprint(path / name) != written:
                return f"{path / name} is not as it was written"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{path / MANIFEST} is not as it was written"
    return None


def weights_file(checkpoint: str | os.PathLike) -> pathlib.Path:
    """The weights to evaluate with: the moving average's where one was kept."""
    average = pathlib.Path(checkpoint) / EMA_WEIGHTS
    return average if average.exists() else average.with_name(WEIGHTS)


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Replaces a small text file, durably and all at once."""
    aside = path.with_name(f"{_ASIDE}{path.name}")
    aside.write_text(text)
    sync(aside)
    os.replace(aside, path)
    sync(path.parent)


def sync(path: pathlib.Path) -> None:
    """Waits until a file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fingerprint(path: pathlib.Path) -> dict:
    with open(path, "rb") as file:
        return {
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
            "bytes": os.fstat(file.fileno()).st_size,
        }


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _clear_errors(what: str, mend: str = "check its permissions and the free space"):
    try:
        yield
    # h5py reports a full disk as a RuntimeError in some of its calls.
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"{what}: {reason}; {mend}") from error
