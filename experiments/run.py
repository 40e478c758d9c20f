"""The folder of a run: `train` writes it and every other command reads it.

RUN/recipe.json          every setting, with those that `--set` replaced
RUN/model.json           the network without weights, see `Run.write`
RUN/code.json            signatures of the user's code that these two name, see `io.signatures`
RUN/data.json            fingerprint (SHA-256) and size of the training data
RUN/vocabulary/          the vocabulary and its settings
RUN/checkpoints/         step-00001000/ ..., best.json
RUN/average/             averaged weights, written by `translate average`
RUN/metrics.jsonl        a line for each log point; RUN/tensorboard/ has the same as curves
RUN/scores/              results of `evaluate`; comparison/ those of `compare`
RUN/result.json          result of a fine-tuning: step, reason for its end, scores
RUN/diverged.json        the reason, if the run diverged
"""

import abc
import dataclasses
import hashlib
import json
import os
import re
import typing
from collections.abc import Mapping, Sequence

import keras
from etils import epath

from experiments.recipe import Recipe, recipe_from_json
from macaron_tf.data.sources.names import Source
from macaron_tf.distribution.device_memory import refuse_oversize
from macaron_tf.errors import UserError, needs_vocabulary, parse_json
from macaron_tf.io import paths as storage
from macaron_tf.io.code_files import offer_code
from macaron_tf.io.signatures import allow_signed_code, sign_code
from macaron_tf.text import PieceVocabulary
from macaron_tf.training.checkpoints import CheckpointDirectory, find_checkpoint, is_saved
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.progress import finite
from macaron_tf.training.state import load_network
from macaron_tf.training.updates import FirstStage

DIVERGED = "diverged.json"
_DATA_DIR = "data_dir"
_HASH = "vocabulary"  # key of the hash of the vocabulary that made the fingerprint's ids


@dataclasses.dataclass(frozen=True)
class Run(abc.ABC):
    """A finished or running training: its folder, recipe and vocabulary.

    If `data_dir`, the folder of TensorFlow Datasets, is given, the run saves it in data.json, from
    which `kept_data_dir` reads it.

    Each command has a subclass that names the classes of its recipe and its vocabulary (None: it
    has no vocabulary) and builds the network.
    """

    recipe_class: typing.ClassVar[type[Recipe]]
    vocabulary_class: typing.ClassVar[type | None] = PieceVocabulary

    path: epath.Path
    recipe: Recipe
    vocabulary: typing.Any
    data_dir: str | os.PathLike | None = dataclasses.field(default=None, kw_only=True)

    @classmethod
    def open(cls, path: str | os.PathLike) -> typing.Self:
        """Reads a run's recipe and vocabulary from its folder, which may be in a `gs://` bucket."""
        path = storage.as_path(path)
        recipe, kind = cls._recipe(path), cls.vocabulary_class
        return cls(path, recipe, kind and kind.load(path / "vocabulary"))

    @classmethod
    def begun(cls, path: str | os.PathLike) -> TrainingConfig | None:
        """The training settings of the run in a folder; None if there is no run yet."""
        file = storage.as_path(path) / "recipe.json"
        return cls._recipe(file.parent).training if file.exists() else None

    @classmethod
    def _recipe(cls, path: epath.Path) -> Recipe:
        text = _recipe_text(path, f"`{cls.recipe_class.command} train`")
        allow_signed_code(path)
        offer_code(path)
        return recipe_from_json(cls.recipe_class, text, str(path / "recipe.json"))

    @classmethod
    def resume(cls, path: epath.Path, recipe: Recipe, *may_change: str) -> typing.Self | None:
        """The run in a folder that a training with `recipe` will continue; None if there is none.

        Args:
            path: folder of the run.
            recipe: the recipe to continue with.
            may_change: settings, or sections that end in a dot, that may differ from the run's,
                besides `recipe.may_change`.

        Raises:
            UserError: the folder cannot be continued with this recipe.
        """
        if not (path / "recipe.json").exists():
            if CheckpointDirectory(path).steps():
                raise UserError(
                    f"{path} has checkpoints but no recipe.json: restore that file, or choose "
                    "another folder"
                )
            return None
        if is_saved(path):
            raise UserError(
                f"{path} was written by save_pretrained and has no optimizer state to resume from: "
                "choose another folder, and start from this one by --init"
            )
        run = cls.open(path)
        recipe.check_continues(run.recipe, path, (*recipe.may_change, *may_change))
        return run

    def make_network(self) -> keras.Model:
        """The recipe's network for the run's vocabulary, not built."""
        return self.recipe.network(self.recipe.model_config(self.vocabulary.size))

    def build_network(self, saved: bool = False) -> keras.Model:
        """Builds the recipe's network, or with `saved` that of model.json, maybe quantized."""
        if saved:
            # Imported here: it loads the readers of other libraries, which training does not need.
            from macaron_tf.places import saved_network

            network = saved_network(self.path)
        else:
            network = self.make_network()
        if not network.built:
            network.build()
        return network

    def first_stage(self, network: keras.Model) -> FirstStage | None:
        """The network's first stage of training; None: every update trains all weights."""
        return None

    def memory(
        self, network: keras.Model, use: typing.Literal["training", "evaluation"] = "training"
    ) -> Sequence[keras.Variable]:
        """The network's variables of memory that persist from batch to batch, see `Updates`."""
        return ()

    def write(self, network: keras.Model, fingerprint: str, **counts: int | str) -> None:
        """Writes everything but checkpoints and metrics into the folder.

        model.json is for `macaron_tf.load`, which does not read recipes:

            {"kind": "pretraining",       the recipe's kind
             "network": {...},            output of keras.saving.serialize_keras_object, unbuilt
             "vocabulary": "vocabulary",  folder of the vocabulary in the run's folder, or null
             "save_every_steps": 1000,    see `find_checkpoint`
             "usage": {...}}              see `Recipe.usage`

        Args:
            network: the network to describe.
            fingerprint: SHA-256 of the training data; "": unknown, and not compared on resuming.
            counts: sizes and places to record in data.json as well.
        """
        folder = None
        if self.vocabulary is not None:
            folder = "vocabulary"
            self.vocabulary.save(self.path / folder)
        if fingerprint or self.data_dir is not None:
            if self.data_dir is not None:
                sets = storage.absolute(storage.as_path(self.data_dir).expanduser())
                counts = {**counts, _DATA_DIR: str(sets)}
            if self.vocabulary is not None:
                counts = {**counts, _HASH: self.vocabulary.hash}
            write_json(self.path / "data.json", {"sha256": fingerprint, **counts})
        model = {
            "kind": self.recipe.kind,
            "network": keras.saving.serialize_keras_object(network),
            "vocabulary": folder,
            "save_every_steps": self.recipe.training.save_every_steps,
            "usage": self.recipe.usage(),
        }
        write_json(self.path / "model.json", model)
        sign_code(self.path, model, dataclasses.asdict(self.recipe))
        # Written last, so that a folder with a recipe has all the other files.
        storage.write_aside(self.path / "recipe.json", self.recipe.to_json().encode())

    def check_data(
        self, fingerprint: str, mend: str = "restore the text, or start another run"
    ) -> None:
        """Raises if the training data's fingerprint is not the run's; `mend` ends the message."""
        record = self.data_record()
        if record["sha256"] != fingerprint:
            if self.vocabulary is not None and record.get(_HASH) != self.vocabulary.hash:
                raise UserError(
                    f"{self.path / 'vocabulary'} is not the vocabulary that the run was trained "
                    "with: restore it, or start another run"
                )
            raise UserError(f"the training text is not what {self.path} was trained on: {mend}")

    def data_record(self) -> dict[str, typing.Any]:
        """The contents of data.json: the training data's fingerprint, `sha256`, sizes, places."""
        known = _data_record(self.path)
        if "sha256" not in known:
            record = self.path / "data.json"
            raise UserError(f"{record} cannot be read: restore it, or start another run")
        return known

    def checkpoint(self, name: os.PathLike | str | None = None) -> os.PathLike:
        """The folder of a checkpoint by name, see `find_checkpoint`; a path is returned as is."""
        if isinstance(name, os.PathLike):
            return name
        return find_checkpoint(self.path, name, self.recipe.training.save_every_steps)

    def load_network(
        self, checkpoint: os.PathLike | str | None = None, saved: bool = True
    ) -> keras.Model:
        """Builds the network with the weights of a checkpoint.

        Args:
            checkpoint: path or name; None: see `find_checkpoint`.
            saved: whether to build the network that model.json describes instead of the recipe's.
        """
        with refuse_oversize(str(self.path)):
            network = self.build_network(saved)
        vocabulary_hash = self.vocabulary.hash if self.vocabulary else ""
        load_network(self.checkpoint(checkpoint), network, vocabulary_hash)
        return network


def at(run: str | os.PathLike, checkpoint: str | None) -> str:
    """The place of a run's checkpoint for `macaron_tf.load`, which chooses one if it is None."""
    return f"{os.fspath(run)}@{checkpoint}" if checkpoint else os.fspath(run)


def write_json(path: epath.Path, value) -> None:
    """Writes a JSON file in one step; NaN and infinity, which JSON lacks, become null."""
    text = json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False)
    storage.write_aside(path, f"{text}\n".encode())


def _recipe_text(path: epath.Path, writer: str) -> str:
    file = path / "recipe.json"
    try:
        return storage.read_bytes(file).decode()
    except (UserError, UnicodeDecodeError) as error:
        if path.suffix == ".keras":
            raise needs_vocabulary(path) from error
        mend = f"is not a run, because {file} cannot be read: give the folder that {writer} wrote"
        if is_saved(path):
            mend = (
                "was saved without a training recipe, which this command needs: give the run, or "
                "a folder to which save_pretrained saved a run"
            )
        raise UserError(f"{path} {mend}") from error


def kept_data_dir(path: str | os.PathLike) -> str | None:
    """The folder of TensorFlow Datasets that a run was trained with; None if it is unknown."""
    folder = _data_record(storage.as_path(path)).get(_DATA_DIR)
    return folder if isinstance(folder, str) and folder else None


def _data_record(path: epath.Path) -> dict[str, typing.Any]:
    """The contents of a run's data.json; {} if it cannot be read."""
    try:
        return storage.read_json(path / "data.json")
    except UserError:
        return {}


def read_kind(path: str | os.PathLike) -> str:
    """The kind of a run's recipe, such as "translation"; see `Recipe.kind`."""
    text = _recipe_text(storage.as_path(path), "a `train` command")
    try:
        return parse_json(text, kind=str)["kind"]
    except ValueError as error:
        raise UserError(
            f"{path}/recipe.json is not a recipe of this version, because it names no kind of run: "
            "train the run again"
        ) from error


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Formats metrics in a line, such as "score 0.9123  accuracy 0.9123"."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def default_splits(source: str | None, splits: list[str]) -> list[str]:
    """The splits that a source is scored on: `splits`, or "all" if the source has no splits."""
    return splits if not source or Source.of(source).has_splits else ["all"]


def write_scores(
    folder: str | os.PathLike, what: str, subject: str, settings: str, identity, record: dict
) -> None:
    """Writes scores to a JSON file and prints its path, in the form `what: path`.

    Args:
        folder: folder of the file.
        what: description of the scores.
        subject: source and splits; the file's name has their last 100 characters.
        settings: middle part of the file's name.
        identity: weights, texts and settings; a hash of their JSON ends the file's name, so that
            scores of others get another file.
        record: contents of the file.
    """
    words = re.sub(r"[^A-Za-z0-9.]+", "-", subject)[-100:].strip("-.")
    text = json.dumps(identity, sort_keys=True, default=lambda array: array.tolist())
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    path = storage.as_path(folder) / f"{words}-{settings}{digest}.json"
    write_json(path, record)
    print(f"{what}: {path}")
