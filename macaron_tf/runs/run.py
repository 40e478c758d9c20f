"""The folder of a run, which the command `train` writes and other commands read.

RUN/recipe.json          all settings, including values of `--set`
RUN/model.json           the network without weights; see `Run.write`
RUN/data.json            fingerprint (SHA-256), size and location of the training data
RUN/vocabulary/          the vocabulary and its settings
RUN/checkpoints/         checkpoints step-00001000/ ..., and best.json
RUN/average/             averaged weights, which `macaron average` writes
RUN/metrics.jsonl        metrics, with a line for each log step and each validation
RUN/timing.jsonl         seconds, speed, memory and FLOPs, with a line for each log step
RUN/tensorboard/         the same metrics for TensorBoard
RUN/scores/              results of `evaluate`
RUN/comparison.json      scores of the run in a comparison by `macaron compare`
RUN/comparison/          outputs of a translation run in a comparison
RUN/diverged.json        error message, if training diverged
"""

import argparse
import dataclasses
import hashlib
import json
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf
from etils import epath

from macaron_tf.data.sources.names import Source
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.code_files import code_digests, offer_code
from macaron_tf.models.model_parts import VOCABULARY, Card, ModelParts
from macaron_tf.objectives import Objective
from macaron_tf.runs.recipe import Recipe, recipe_from_json
from macaron_tf.runs.versions import versions
from macaron_tf.settings import Settings, hints_of
from macaron_tf.text import PieceVocabulary
from macaron_tf.training.checkpoints import CheckpointDirectory, find_checkpoint, is_saved
from macaron_tf.training.progress import finite
from macaron_tf.training.session import Validate
from macaron_tf.training.state import load_network
from macaron_tf.training.updates import FirstStage

DIVERGED = "diverged.json"
_DATA_DIR = "data_dir"
_HASH = "vocabulary"  # key in data.json of the vocabulary hash, on which the fingerprint depends


# Fields of `Inputs` that only some kinds of recipes read.
FLAGS = ("corpus", "vocabulary", "lower_case", "processes", "own_shards")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs of a training run other than its recipe, from the flags of `macaron train`.

    Attributes:
        tfds: access to TensorFlow Datasets; `None` means the default folder.
        corpus: folder of a prepared corpus.
        vocabulary: folder of a saved vocabulary.
        lower_case: whether the pre-trained model lower-cases text, if its files do not say so.
        processes: number of processes that tokenize; `None` means one per core.
        own_shards: whether each worker reads only its own shards of the corpus.
        resumes: whether the command continues a run by `--resume`.
        trust_code: whether to import user code that folders name.
    """

    devices: tf.distribute.Strategy = dataclasses.field(default_factory=tf.distribute.get_strategy)
    tfds: Tfds | None = None
    corpus: str | None = None
    vocabulary: str | os.PathLike | None = None
    lower_case: bool | None = None
    processes: int | None = None
    own_shards: bool = False
    resumes: bool = False
    trust_code: bool = False


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run in a folder, finished or not.

    Attributes:
        vocabulary: `None` before the data are read, or if runs of the recipe's kind have none.
        data_dir: folder of TensorFlow Datasets. The path of the folder is saved in data.json, where
            `saved_data_dir` reads it. `None` means that no path is saved.
        trust_code: whether `load_network` may import user code that model.json names.
        earlier: run that the folder had before the command, which this run continues.
        settings: values of `--set`. Training warns of those that nothing reads.
    """

    path: epath.Path
    recipe: Recipe
    vocabulary: typing.Any = None
    data_dir: str | os.PathLike | None = dataclasses.field(default=None, kw_only=True)
    trust_code: bool = dataclasses.field(default=False, kw_only=True)
    earlier: "Run | None" = dataclasses.field(default=None, kw_only=True)
    settings: Sequence[str] = dataclasses.field(default=(), kw_only=True)

    @classmethod
    def open(
        cls, path: str | os.PathLike, trust_code: bool = False, kind: str | None = None
    ) -> typing.Self:
        """Reads a run's recipe and vocabulary from its folder, which may be in a `gs://` bucket.

        Args:
            trust_code: whether to import user code that the run names; see `recipe_from_json`.
        """
        path = storage.as_path(path)
        file = path / "recipe.json"
        try:
            text = storage.read_bytes(file).decode()
        except (UserError, UnicodeDecodeError) as error:
            reason = f"is not a run, because {file} cannot be read: give the folder of a run"
            raise UserError(f"{path} {reason}") from error
        if trust_code:
            offer_code(path)
        recipe = recipe_from_json(text, str(file), trust_code, kind)
        vocabulary = recipe.vocabulary_class and recipe.vocabulary_class.load(path / VOCABULARY)
        return cls(path, recipe, vocabulary, trust_code=trust_code)

    @classmethod
    def existing(
        cls, path: epath.Path, trust_code: bool = False, kind: str | None = None
    ) -> typing.Self | None:
        """Opens the run in a folder as `open` does, or returns `None` if there is no run."""
        if not (path / "recipe.json").exists():
            if CheckpointDirectory(path).steps():
                raise UserError(f"{path} has checkpoints but no recipe.json: choose another folder")
            return None
        if is_saved(path):
            advice = f"choose another folder for the run, and start by --init {path}"
            raise UserError(f"{path} was written by save_pretrained: {advice}")
        return cls.open(path, trust_code, kind)

    def build_network(self, config: Settings | None = None) -> keras.Model:
        """Makes and builds the network with the configuration `config`, or that of the recipe.

        It must find padding and ends at the ids of the data.
        """
        network = self.recipe.network(config or self.recipe.sized_config(self.vocabulary))
        if isinstance(self.vocabulary, PieceVocabulary):
            special, known = self.vocabulary.special, hints_of(type(network.config))
            ids = {"pad_id": special.pad, "begin_id": special.begin, "end_id": special.end}
            for name, token_id in ids.items():
                if name in known and getattr(network.config, name) != token_id:
                    raise UserError(f"the vocabulary differs: give --set model.{name}={token_id}")
        if not network.built:
            network.build()
        return network

    def write(self, network: keras.Model, fingerprint: str, **counts: int | str) -> None:
        """Writes the vocabulary, data.json, model.json and recipe.json.

        `macaron_tf.load` builds the network from model.json, without the recipe. Its fields are
        those of `ModelParts.record`, `save_every_steps` (see `find_checkpoint`), the `versions`
        that started the run, and hashes of the user's `code` (see `changed_code`).

        Args:
            fingerprint: SHA-256 of the training data. An empty string turns off the check that a
                resumed run reads the same data.
            counts: sizes and locations of the training data, which are written to data.json.
        """
        if self.data_dir is not None:
            data_dir = storage.absolute(storage.as_path(self.data_dir).expanduser())
            counts[_DATA_DIR] = str(data_dir)
        if self.vocabulary is not None:
            self.vocabulary.save(self.path / VOCABULARY)
            counts[_HASH] = self.vocabulary.hash
        if fingerprint or self.data_dir is not None:
            write_json(self.path / "data.json", {"sha256": fingerprint, **counts})
        settings, card = self.recipe.task_settings(), Card(**self.recipe.card())
        record = {
            **ModelParts(network, self.vocabulary, settings, card).record(),
            "save_every_steps": self.recipe.training.save_every_steps,
            "versions": (self.earlier and saved_field(self.path, "versions")) or versions(),
            "code": saved_field(self.path, "code")
            if self.earlier
            else code_digests(dataclasses.asdict(self.recipe)),
        }
        write_json(self.path / "model.json", record)
        # Written last, so that a folder with recipe.json has all other files.
        storage.write_atomic(self.path / "recipe.json", self.recipe.to_json().encode())

    def changed_code(self) -> list[str]:
        """Returns the user's files that have changed since the run began."""
        saved = saved_field(self.path, "code")
        code = code_digests(dataclasses.asdict(self.recipe))
        return [path for path, digest in saved.items() if code.get(path) != digest]

    def check_data(self, fingerprint: str) -> None:
        """Raises a `UserError` if the data or the vocabulary have changed since the run began.

        The method also raises if data.json is missing or has no fingerprint.
        """
        record = self.data_record()
        if record["sha256"] != fingerprint:
            if self.vocabulary is not None and record.get(_HASH) != self.vocabulary.hash:
                raise UserError(f"{self.path}/vocabulary is not the run's vocabulary: restore it")
            mend = "restore the data, or start another run"
            raise UserError(f"the training data differ from those of {self.path}: {mend}")

    def data_record(self) -> dict[str, typing.Any]:
        """Returns the contents of data.json, which describe the training data of the run."""
        record = storage.read_optional(self.path / "data.json")
        if "sha256" not in record:
            file = self.path / "data.json"
            raise UserError(f"{file} has no fingerprint of the data (sha256): restore it")
        return record

    def checkpoint(self, name: os.PathLike | str | None = None) -> os.PathLike:
        """Returns the folder of the checkpoint `name`, such as "best", or a path unchanged."""
        if isinstance(name, os.PathLike):
            return name
        return find_checkpoint(self.path, name, self.recipe.training.save_every_steps)

    def load_network(
        self, checkpoint: os.PathLike | str | None = None, saved: bool = True
    ) -> keras.Model:
        """Builds the network and loads the weights of a checkpoint.

        Args:
            checkpoint: path or name; `None` means the default of `find_checkpoint`.
            saved: whether to build the network that model.json describes, which may be quantized,
                instead of the network that the recipe describes.
        """
        # Imported late, because `loading` imports readers for formats of other libraries, which
        # training does not need.
        from macaron_tf.runs.loading import saved_network

        network = saved_network(self.path, self.trust_code) if saved else self.build_network()
        vocabulary_hash = self.vocabulary.hash if self.vocabulary else ""
        load_network(self.checkpoint(checkpoint), network, vocabulary_hash)
        return network


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """All that the training loop needs, which each kind of training prepares by `Recipe.plan`.

    Attributes:
        config: configuration of the network; `None` means that the recipe knows it.
        batches: function that returns an endless dataset of batches. Its argument is the index of
            the first micro-batch.
        validation: function that makes the validation function of a network; see
            `macaron_tf.training.train`.
        fingerprint: SHA-256 of the data, which must not change when the run is resumed. An empty
            string turns this check off.
        counts: sizes and locations of the data for data.json, such as `{"pairs": 29_000}`.
        per_worker: whether each worker process makes its own batches; see `FitModel`.
        initialize: function that loads pre-trained weights into the built network, and returns the
            names of parts that it lacks. It is not called if the run has a checkpoint.
        first_stage: function that returns the first stage of training in two stages, if there are.
        note: end of the printed line about the model, such as ", from runs/bert".
        best: format string of the printed line about the best checkpoint, with the fields {metric},
            {score} and {step}.
        next: format strings of commands to try next, with the fields {run} (folder of the run) and
            {data} (the flag `--data-dir` with its value, or "" if the flag is not set).
        ended: function that is called after training. It returns other values of `best` and `next`,
            or `None` to keep them.
    """

    run: Run
    config: Settings | None = None
    batches: Callable[[int], tf.data.Dataset]
    validation: Callable[[keras.Model], Validate]
    fingerprint: str = ""
    counts: dict[str, int | str] = dataclasses.field(default_factory=dict)
    per_worker: bool = False
    initialize: Callable[[keras.Model], Sequence[str] | None] = lambda network: None
    objective: Objective | None = None
    first_stage: Callable[[keras.Model], FirstStage | None] = lambda network: None
    note: str = ""
    best: str = "best validation {metric} {score:.4f} at step {step:,}"
    next: Sequence[str] = ()
    ended: Callable[[], tuple[str, Sequence[str]] | None] = lambda: None


def refuse_flags(
    options: Inputs | argparse.Namespace,
    names: Sequence[str],
    allowed: Sequence[str],
    subject: str,
) -> None:
    """Raises a `UserError` if a flag of `names` is set that does not apply to the `subject`."""
    for name in names:
        default = False if name in ("own_shards", "backward") else None
        if vars(options)[name] is not default and name not in allowed:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} does not apply to {subject}: leave {flag} out")


def write_json(path: epath.Path, value) -> None:
    """Writes a JSON file atomically. NaN and infinity become null."""
    text = json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False)
    storage.write_atomic(path, f"{text}\n".encode())


def saved_data_dir(path: str | os.PathLike) -> str | None:
    """Returns the TensorFlow Datasets folder recorded in data.json; `None` if none is recorded."""
    folder = storage.read_optional(storage.as_path(path) / "data.json").get(_DATA_DIR)
    return folder if isinstance(folder, str) and folder else None


def saved_field(path: str | os.PathLike, name: str) -> dict[str, str]:
    """Returns the field "versions" or "code" of a run's model.json, or {} if it has none."""
    return storage.read_optional(storage.as_path(path) / "model.json").get(name, {})


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Formats metrics as text without a line end, such as "score 0.9123  accuracy 0.9123"."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def default_splits(source: str | None, splits: list[str]) -> list[str]:
    """Returns `splits`, or `["all"]` if the source has no splits."""
    return splits if not source or Source.of(source).has_splits else ["all"]


def save_scores(
    output: str | None, run: epath.Path, subject: str, checkpoint: str | None = None, **record
) -> None:
    """Writes scores to a JSON file, and prints the path of the file.

    The name of the file is the end of `subject` (at most 100 characters, with hyphens in place of
    special characters) and a hash of the record without its field `seconds`, so that other scores,
    settings or outputs give another file. The folder is `output` or, if `output` is `None`, the
    folder `scores` of the run. With the name of a `checkpoint`, the record has the fields `run` and
    `checkpoint`.
    """
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", subject)[-100:].strip("-.")
    text = json.dumps({**record, "seconds": None}, sort_keys=True)
    name = f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    path = storage.as_path(output or run / "scores") / name
    origin = {"run": str(run), "checkpoint": checkpoint} if checkpoint else {}
    write_json(path, {**origin, **record})
    print(f"scores: {path}")
