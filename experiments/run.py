"""A run's folder, which a training writes and every other command reads.

RUN/recipe.json          every setting, overrides included
RUN/model.json           the network, without weights: see `Run.write`
RUN/code.json            signatures of the user's code that they name: see `io.signatures`
RUN/data.json            the training text, as a fingerprint of its ids
RUN/vocabulary/          the vocabulary and its settings
RUN/checkpoints/         step-00001000/ ..., best.json
RUN/average/             averaged weights, once `translate average` has made them
RUN/metrics.jsonl        one line a log point; RUN/tensorboard/ the same as curves
RUN/scores/              evaluations; comparison/ for `compare`
RUN/result.json          the end of a fine-tuning: step, reason, scores
RUN/diverged.json        the reason, of a run that diverged
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
_HASH = "vocabulary"  # of the ids that the fingerprint is of


@dataclasses.dataclass(frozen=True)
class Run(abc.ABC):
    """A finished or running training: its folder, recipe and vocabulary.

    A training that is given TensorFlow Datasets' folder, `data_dir`, keeps it in data.json, where
    `kept_data_dir` finds it.

    A command's own subclass names the classes of its recipes and of its vocabulary (None = it has
    none), and builds the network.
    """

    recipe_class: typing.ClassVar[type[Recipe]]
    vocabulary_class: typing.ClassVar[type | None] = PieceVocabulary

    path: epath.Path
    recipe: Recipe
    vocabulary: typing.Any
    data_dir: str | os.PathLike | None = dataclasses.field(default=None, kw_only=True)

    @classmethod
    def open(cls, path: str | os.PathLike) -> typing.Self:
        """Reads a run's recipe and vocabulary from its folder, `gs://` included."""
        path = storage.as_path(path)
        recipe, kind = cls._recipe(path), cls.vocabulary_class
        return cls(path, recipe, kind and kind.load(path / "vocabulary"))

    @classmethod
    def begun(cls, path: str | os.PathLike) -> TrainingConfig | None:
        """The settings of training of the run in a folder; None = no run yet."""
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
        """The run in a folder, for a training with `recipe` to continue; None = no run yet.

        Args:
            may_change: beginnings of settings that may differ, besides those of the recipe.
        """
        if not (path / "recipe.json").exists():
            if CheckpointDirectory(path).steps():
                raise UserError(
                    f"{path} holds checkpoints and no recipe.json: restore it, or choose another "
                    "folder"
                )
            return None
        if is_saved(path):
            raise UserError(
                f"{path} is of save_pretrained and holds no state to train on from: choose another "
                "folder, and start from this one by --init"
            )
        run = cls.open(path)
        recipe.check_continues(run.recipe, path, (*recipe.may_change, *may_change))
        return run

    def make_network(self) -> keras.Model:
        """The recipe's network at the vocabulary's size, not built."""
        return self.recipe.network(self.recipe.model_config(self.vocabulary.size))

    def build_network(self, saved: bool = False) -> keras.Model:
        """`make_network`, built; or the `saved` one of model.json, which may be quantized."""
        if saved:
            # Readers of other libraries and all tasks, which a training does without.
            from macaron_tf.places import saved_network

            network = saved_network(self.path)
        else:
            network = self.make_network()
        if not network.built:
            network.build()
        return network

    def first_stage(self, network: keras.Model) -> FirstStage | None:
        """The network's first stage of training; None = every update trains all weights."""
        return None

    def memory(
        self, network: keras.Model, use: typing.Literal["training", "evaluation"] = "training"
    ) -> Sequence[keras.Variable]:
        """The network's variables that carry texts from batch to batch, see `Updates`."""
        return ()

    def write(self, network: keras.Model, fingerprint: str, **counts: int | str) -> None:
        """Writes everything but checkpoints and metrics into the folder.

        model.json is for `macaron_tf.load`, which knows no recipes:

            {"kind": "pretraining",       the recipe's kind
             "network": {...},            of keras.saving.serialize_keras_object, unbuilt
             "vocabulary": "vocabulary",  the vocabulary's folder in the run's, or null
             "save_every_steps": 1000,    see `find_checkpoint`
             "usage": {...}}              see `Recipe.usage`

        Args:
            fingerprint: SHA-256 of the training data; "" = none, which is not compared.
            counts: sizes and places to record beside it.
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
        # Last: a folder with a recipe has all the other files.
        storage.write_aside(self.path / "recipe.json", self.recipe.to_json().encode())

    def check_data(
        self, fingerprint: str, mend: str = "restore the text, or start another run"
    ) -> None:
        """Refuses training data of another fingerprint than the run's."""
        record = self.data_record()
        if record["sha256"] != fingerprint:
            if self.vocabulary is not None and record.get(_HASH) != self.vocabulary.hash:
                raise UserError(
                    f"{self.path / 'vocabulary'} is not the vocabulary that the run was trained "
                    "with: restore it, or start another run"
                )
            raise UserError(f"the training text is not what {self.path} was trained on: {mend}")

    def data_record(self) -> dict[str, typing.Any]:
        """The fingerprint of the training data, `sha256`, and the sizes and places beside it."""
        known = _data_record(self.path)
        if "sha256" not in known:
            record = self.path / "data.json"
            raise UserError(f"{record} cannot be read: restore it, or start another run")
        return known

    def checkpoint(self, name: os.PathLike | str | None = None) -> os.PathLike:
        """The folder of a checkpoint, see `find_checkpoint`; a path is one already."""
        if isinstance(name, os.PathLike):
            return name
        return find_checkpoint(self.path, name, self.recipe.training.save_every_steps)

    def load_network(
        self, checkpoint: os.PathLike | str | None = None, saved: bool = True
    ) -> keras.Model:
        """The network with the weights of a checkpoint, given by path or name.

        Args:
            saved: the network as it was saved, not as this recipe makes it.
        """
        with refuse_oversize(str(self.path)):
            network = self.build_network(saved)
        vocabulary_hash = self.vocabulary.hash if self.vocabulary else ""
        load_network(self.checkpoint(checkpoint), network, vocabulary_hash)
        return network


def at(run: str | os.PathLike, checkpoint: str | None) -> str:
    """The place of a run's checkpoint for `macaron_tf.load`; None = that which it chooses."""
    return f"{os.fspath(run)}@{checkpoint}" if checkpoint else os.fspath(run)


def write_json(path: epath.Path, value) -> None:
    """Writes a JSON file that is never half-written; NaN and infinity, which it lacks, as null."""
    text = json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False)
    storage.write_aside(path, f"{text}\n".encode())


def _recipe_text(path: epath.Path, writer: str) -> str:
    file = path / "recipe.json"
    try:
        return storage.read_bytes(file).decode()
    except (UserError, UnicodeDecodeError) as error:
        if path.suffix == ".keras":
            raise needs_vocabulary(path) from error
        mend = f"is not a run: cannot read {file}; give the folder that {writer} wrote"
        if is_saved(path):
            mend = (
                "was saved without the recipe of a training, which this command needs: give the "
                "run, or a folder that save_pretrained wrote of one"
            )
        raise UserError(f"{path} {mend}") from error


def kept_data_dir(path: str | os.PathLike) -> str | None:
    """TensorFlow Datasets' folder that a run was trained with; None where it is not known."""
    folder = _data_record(storage.as_path(path)).get(_DATA_DIR)
    return folder if isinstance(folder, str) and folder else None


def _data_record(path: epath.Path) -> dict[str, typing.Any]:
    """The contents of a run's data.json; {} where it cannot be read."""
    try:
        return storage.read_json(path / "data.json")
    except UserError:
        return {}


def read_kind(path: str | os.PathLike) -> str:
    """The kind of the recipe of a run's folder, such as "translation"; see `Recipe.kind`."""
    text = _recipe_text(storage.as_path(path), "a `train` command")
    try:
        return parse_json(text, kind=str)["kind"]
    except ValueError as error:
        raise UserError(
            f"{path}/recipe.json is not a recipe that this version wrote: it names no kind of run"
        ) from error


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Metrics in a line, such as "score 0.9123  accuracy 0.9123"."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def default_splits(source: str | None, splits: list[str]) -> list[str]:
    """The splits that a source is scored on; "all" for a file that is not cut into splits."""
    return splits if not source or Source.of(source).has_splits else ["all"]


def write_scores(
    folder: str | os.PathLike, what: str, subject: str, settings: str, identity, record: dict
) -> None:
    """Writes scores, and prints `what` they are and where.

    Args:
        subject: the source and splits; the file's name takes the last 100 characters.
        settings: for the name.
        identity: weights, texts and settings, as JSON has them; others have another name.
    """
    words = re.sub(r"[^A-Za-z0-9.]+", "-", subject)[-100:].strip("-.")
    text = json.dumps(identity, sort_keys=True, default=lambda array: array.tolist())
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    path = storage.as_path(folder) / f"{words}-{settings}{digest}.json"
    write_json(path, record)
    print(f"{what}: {path}")
