"""Locations of trained networks: a run, a folder of another library, or a repository of a hub."""

import dataclasses

from etils import epath

from macaron_tf.errors import UserError
from macaron_tf.io import paths
from macaron_tf.io.hub import HUB, download
from macaron_tf.io.paths import read_json
from macaron_tf.training.checkpoints import is_saved

RECIPE = "recipe.json"
HUGGING_FACE, KERAS_HUB, MODEL_GARDEN = "hugging-face", "keras-hub", "model-garden"
LIBRARIES = (HUGGING_FACE, KERAS_HUB, MODEL_GARDEN)


@dataclasses.dataclass(frozen=True)
class Location:
    """Folder of a network that `load` accepts.

    Attributes:
        argument: argument `location` of `load`.
        folder: folder of the network's files. For another library's format, the path is local and
            absolute.
        library: name in `LIBRARIES` of the library whose format the files have, or "" for
            macaron_tf's own format.
        checkpoint: checkpoint name from `RUN@CHECKPOINT`, or `None`.
    """

    argument: str
    folder: epath.Path
    library: str = ""
    checkpoint: str | None = None

    @property
    def without_recipe(self) -> bool:
        """Whether the folder holds a model without recipe.json, as of another library."""
        recipe = self.folder / RECIPE
        return bool(self.library) or (is_saved(self.folder) and not recipe.exists())


def locate(location: str) -> Location:
    """Parses the argument `location` of `load`, and downloads a network `hub:NAME`."""
    prefix, _, directory = location.partition(":")
    if prefix in LIBRARIES and directory:
        if paths.is_remote(directory):
            raise UserError(f"{location} is in a bucket: copy the folder to a local disk first")
        return Location(location, paths.as_path(directory).expanduser().absolute(), prefix)
    if prefix == HUB:
        folder = paths.as_path(download(location))
        return Location(location, folder, _library_of(folder))
    folder = paths.as_path(location)
    if not folder.exists() and "@" in location:
        run, _, checkpoint = location.rpartition("@")
        return Location(location, paths.as_path(run), checkpoint=checkpoint or None)
    return Location(location, folder)


def _library_of(folder: epath.Path) -> str:
    """Returns the name in `LIBRARIES` for a folder's format, or "" for macaron_tf's own format."""
    if is_saved(folder):
        return ""
    if (folder / "bert_config.json").exists() and list(folder.glob("*.index")):
        return MODEL_GARDEN
    config = folder / "config.json"
    preset = config.exists() and "registered_name" in read_json(config)
    return KERAS_HUB if preset else HUGGING_FACE
