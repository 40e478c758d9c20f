"""Shards of a corpus, and the record in its folder that lists them."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from etils import epath

from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.rows import RecordFormat
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage

FORMAT = 2  # increase this number if the layout or the meaning of the files changes
INDEX = "corpus.json"  # a folder with this file is a finished corpus
PROGRESS = "progress.json"  # settings and state of an unfinished corpus
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class Shard:
    """A TFRecord file of rows in the folder of a corpus.

    Attributes:
        name: name of the file.
        rows: number of rows in the file.
        sha256: SHA-256 (hex) of the file.
        languages: language ids of the first and the second half of a row. All rows of the file
            have the same two ids, which differ only for translation pairs. The tuple is empty for a
            validation file, and if the corpus has no `batch_alpha`.
    """

    name: str
    rows: int
    sha256: str
    languages: tuple[int, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "languages", tuple(self.languages))  # a list if read from JSON


def check_shards(
    folder: epath.Path,
    shards: Iterable[Shard],
    record_format: RecordFormat,
    verify: bool,
    mend: str,
) -> None:
    """Raises a UserError if a shard is missing, unreadable or has the wrong size.

    Args:
        folder: folder of the corpus.
        shards: shards of the corpus in `folder`.
        record_format: layout of the rows.
        verify: whether to check the SHA-256 of each shard as well.
        mend: end of the error message, which says what the user can do.
    """
    for shard in shards:
        path = folder / shard.name
        try:
            is_intact = storage.size(path) == shard.rows * record_format.file_bytes
            is_intact = is_intact and (not verify or storage.file_digest(path) == shard.sha256)
        except tf.errors.NotFoundError:
            is_intact = False
        except storage.FILE_ERRORS as error:
            raise UserError(
                f"cannot read {path} ({storage.reason(error)}): check the access to the folder"
            ) from error
        if not is_intact:
            raise UserError(f"{path} is missing or damaged: {mend}")


@dataclasses.dataclass(frozen=True)
class CorpusState:
    """The state of a corpus after its last complete block, from which preparation can resume.

    Attributes:
        documents: number of documents that were packed.
        counted: sum of `PackedBlock.counted`, the rows among which validation rows are chosen.
        tokens: number of ids without padding.
        train: training files.
        validation: validation files. While a corpus of running text is unfinished, each block has
            its own file. A corpus of segment pairs has validation files only when it is finished.
    """

    documents: int = 0
    counted: int = 0
    tokens: int = 0
    train: tuple[Shard, ...] = ()
    validation: tuple[Shard, ...] = ()

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.train + self.validation)


def read_record(path: epath.Path, mend: str) -> tuple[CorpusConfig, dict[str, Any], CorpusState]:
    """Reads the record of a corpus.

    Args:
        path: path of the record, a JSON file.
        mend: end of the error message, which says what the user can do.

    Returns:
        The configuration of the corpus, all its settings (see `writing.corpus_settings`), and its
        state.

    Raises:
        UserError: the file cannot be read, is damaged or has another format.
    """
    with storage.refuse_damage(path, mend):
        record = storage.read_json(path, mend=mend, state=dict, settings=dict)
        if record["format"] != FORMAT:
            raise UserError(
                f"{path} has corpus format {record['format']}, not {FORMAT}: use the version of "
                f"macaron_tf that prepared the corpus, or {mend}"
            )
        state, settings = record["state"], record["settings"]
        settings["vocabulary"]  # what lacks it is damaged; `open` compares it with the files
        shards = {split: tuple(Shard(**shard) for shard in state[split]) for split in SPLITS}
        return CorpusConfig(**settings["config"]), settings, CorpusState(**{**state, **shards})


def read_index(folder: epath.Path) -> tuple[CorpusConfig, dict[str, Any], CorpusState]:
    """Reads `corpus.json`, the record of a finished corpus.

    Raises:
        UserError: the folder has no finished corpus, or the record cannot be read, is damaged or
            has another format.
    """
    path = folder / INDEX
    if not path.exists():
        if (folder / PROGRESS).exists():
            raise UserError(f"the corpus in {folder} is not finished: prepare it again")
        raise UserError(
            f"{folder} contains no corpus ({INDEX}): give the folder of a prepared corpus"
        )
    return read_record(path, "remove the file and prepare the corpus again")
