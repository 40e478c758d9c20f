"""The files of a prepared corpus: records of one size in shards, and what is recorded of them."""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from macaron_tf.data.corpus.config import CorpusConfig, config_from_record
from macaron_tf.data.corpus.packing import Rows
from macaron_tf.data.sources.documents import identify_source
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import same_contents
from macaron_tf.text.base import PieceVocabulary

FORMAT = 1  # raise it when the files' layout or meaning changes
INDEX = "corpus.json"
PROGRESS = "progress.json"
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """How a row lies in a record: L ids, and behind them the numbers that the corpus's rows have.

    Args:
        sequence_length: L.
        columns: names of those numbers: "boundary", where the second half begins, "pair_label",
            "language" and "second_language".
        wide: four bytes a number instead of two.
    """

    sequence_length: int
    columns: tuple[str, ...]
    wide: bool

    @classmethod
    def of(cls, config: CorpusConfig, vocabulary_size: int) -> "RecordFormat":
        """The format of a corpus: two bytes a number where that suffices.

        Args:
            config: the corpus.
            vocabulary_size: V.

        Returns:
            The format.
        """
        wanted = {
            "boundary": config.paired or config.has_translations,
            "pair_label": config.paired,
            "language": bool(config.languages),
            "second_language": config.has_translations,
        }
        columns = tuple(name for name, is_wanted in wanted.items() if is_wanted)
        wide = max(config.sequence_length + 1, vocabulary_size) > 1 << 16
        return cls(config.sequence_length, columns, wide)

    @property
    def numbers(self) -> int:
        """Numbers of a record."""
        return self.sequence_length + len(self.columns)

    @property
    def file_bytes(self) -> int:
        """Bytes that a record takes in its file; TFRecord adds 16 of length and checksums."""
        return self.numbers * (4 if self.wide else 2) + 16

    def encoded(self, rows: Rows, languages: np.ndarray) -> list[bytes]:
        """Rows as records.

        Args:
            rows: N rows.
            languages: (N, 2) the languages of the halves.

        Returns:
            N records.
        """
        known = {
            "boundary": rows.boundaries,
            "pair_label": rows.pair_label,
            "language": languages[:, 0],
            "second_language": languages[:, 1],
        }
        columns = [known[name][:, None] for name in self.columns]
        table = np.concatenate([rows.token_ids, *columns], axis=1)  # (N, numbers)
        return [row.tobytes() for row in table.astype("<i4" if self.wide else "<u2")]

    def table(self, records: tf.Tensor) -> tf.Tensor:
        """Records as the numbers they hold, in-graph.

        Args:
            records: (N,) string tensor.

        Returns:
            (N, numbers) uint16, or int32 where `wide`.
        """
        table = tf.io.decode_raw(records, tf.int32 if self.wide else tf.uint16)
        return tf.ensure_shape(table, [None, self.numbers])

    def features(self, table: tf.Tensor) -> dict[str, tf.Tensor]:
        """Rows of a table as a batch, in-graph.

        Args:
            table: (B, numbers) of `table`.

        Returns:
            {"token_ids": (B, L) int32, "segment_ids": (B, L) int32, 1 in the second half} and, of
            pairs, "pair_label" (B,) int32; of several languages "language_ids" (B, L) int32; with
            translation pairs "position_ids" (B, L) int32, which begin at 0 again in the second
            half (Conneau and Lample 2019, section 3.4).
        """
        table = tf.cast(table, tf.int32)
        token_ids, *columns = tf.split(table, [self.sequence_length, *[1] * len(self.columns)], 1)
        column = dict(zip(self.columns, columns, strict=True))  # each (B, 1)
        places = tf.range(self.sequence_length)
        boundaries = column.get("boundary", self.sequence_length)
        second = (places >= boundaries) & tf.ones_like(token_ids, tf.bool)  # (B, L)
        batch = {
            "token_ids": token_ids,
            "segment_ids": tf.cast(second & (token_ids != 0), tf.int32),
        }
        if "pair_label" in column:
            batch["pair_label"] = column["pair_label"][:, 0]
        if "language" in column:
            first = column["language"]
            batch["language_ids"] = tf.where(second, column.get("second_language", first), first)
        if "second_language" in column:
            batch["position_ids"] = places - tf.where(second, boundaries, 0)
        return batch


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of records.

    Args:
        name: its name in the corpus's folder.
        rows: number of its records.
        sha256: of its bytes, hex.
    """

    name: str
    rows: int
    sha256: str


def write_shard(folder: str, name: str, records: Iterable[bytes]) -> Shard:
    """Writes a shard aside, then renames it into its place.

    Args:
        folder: the corpus's folder.
        name: the shard's name.
        records: its records.

    Returns:
        What is recorded of it.

    Raises:
        UserError: the place cannot be written.
    """
    path = storage.join(folder, name)
    rows = 0
    with storage.renamed_aside(path) as aside:
        with tf.io.TFRecordWriter(aside) as writer:
            for record in records:
                writer.write(record)
                rows += 1
        digest = storage.file_digest(aside)
    return Shard(name, rows, digest)


def read_records(folder: str, shards: Iterable[Shard]) -> Iterator[bytes]:
    """The records of shards, one after another.

    Args:
        folder: the corpus's folder.
        shards: the shards.

    Yields:
        Records.
    """
    paths = [storage.join(folder, shard.name) for shard in shards if shard.rows]
    if paths:
        for batch in tf.data.TFRecordDataset(paths).batch(1024).as_numpy_iterator():
            yield from batch


def is_whole(folder: str, shard: Shard, record: RecordFormat, verify: bool) -> bool:
    """Whether a shard is there and what it was.

    Args:
        folder: the corpus's folder.
        shard: what was recorded of it.
        record: the corpus's format.
        verify: compare the SHA-256 too, not the size alone.

    Returns:
        True where it is.
    """
    path = storage.join(folder, shard.name)
    try:
        if tf.io.gfile.stat(path).length != shard.rows * record.file_bytes:
            return False
        return not verify or storage.file_digest(path) == shard.sha256
    except tf.errors.OpError:
        return False


def read_index(folder: str) -> dict:
    """Reads what a prepared folder says of itself.

    Args:
        folder: the folder.

    Returns:
        {"config": CorpusConfig, "vocabulary": hash, "settings": dict, "shards": dict of tuples}.

    Raises:
        UserError: there is no finished corpus, or its index is damaged.
    """
    path = storage.join(folder, INDEX)
    if not storage.exists(path):
        if storage.exists(storage.join(folder, PROGRESS)):
            raise UserError(
                f"the corpus in {folder} is not finished: give the command that prepares it "
                "again, and it goes on"
            )
        raise UserError(f"no corpus in {folder}: there is no {INDEX}; prepare one there")
    try:
        record = json.loads(storage.read_bytes(path))
        if record["format"] != FORMAT:
            raise UserError(
                f"{path} is of format {record['format']}, not {FORMAT}: prepare the corpus again"
            )
        settings = record["settings"]
        return {
            "config": config_from_record(settings["config"]),
            "vocabulary": settings["vocabulary"],
            "settings": settings,
            "shards": {
                split: tuple(Shard(**shard) for shard in record["shards"][split])
                for split in SPLITS
            },
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: remove it and prepare the corpus again") from error


@dataclasses.dataclass(frozen=True)
class PreparationState:
    """How far a preparation has come: after a kill it goes on from the last one written.

    Args:
        documents: documents in the shards.
        counted: rows that were numbered for the choice of validation rows.
        tokens: ids without padding.
        train: the shards.
        validation: the validation rows of each of them, in files of their own; of pairs none.
    """

    documents: int = 0
    counted: int = 0
    tokens: int = 0
    train: tuple[Shard, ...] = ()
    validation: tuple[Shard, ...] = ()

    @property
    def rows(self) -> int:
        """Rows in the shards, those of the validation included."""
        return sum(shard.rows for shard in self.train + self.validation)


def corpus_settings(
    config: CorpusConfig, vocabulary: PieceVocabulary, data_dir: str | os.PathLike | None
) -> dict:
    """What decides every byte of a corpus, as JSON gives it back.

    Args:
        config: what it is made of.
        vocabulary: what cuts it.
        data_dir: TFDS's folder.

    Returns:
        The settings; of each file of the sources its stamp, see `content_stamps`.

    Raises:
        UserError: a source is missing.
    """
    record = {
        "config": dataclasses.asdict(config),
        "vocabulary": vocabulary.hash,
        "sources": [identify_source(source, data_dir) for source in config.sources],
    }
    if config.languages:
        record["languages"] = config.languages  # a place is an id
    if config.paired:
        record["held_out"] = "documents"  # rows, as of running text, in corpora of earlier versions
    return json.loads(json.dumps(record))


def check_settings(found: dict, wanted: dict, out: str) -> None:
    """Refuses to go on with a corpus of other settings.

    Args:
        found: the settings of the corpus.
        wanted: those asked for.
        out: the corpus's folder.

    Raises:
        UserError: they differ; the sentence names where.
    """
    if found.get("vocabulary") != wanted["vocabulary"]:
        raise UserError(
            f"vocabulary mismatch: the corpus in {out} is cut with vocabulary "
            f"{str(found.get('vocabulary'))[:12]} but this one is {wanted['vocabulary'][:12]}; "
            "take the vocabulary saved there or another folder"
        )
    # In this version's words, as JSON has them.
    theirs = dataclasses.asdict(config_from_record(found["config"]))
    theirs = json.loads(json.dumps(theirs))
    for name, value in wanted["config"].items():
        # Where files lie may have changed: their stamps tell whether they are the same.
        placed = _unplaced if name == "sources" else lambda setting: setting
        if placed(theirs[name]) != placed(value):
            raise UserError(
                f"the corpus in {out} has {name} {theirs[name]!r}, not {value!r}: "
                "take another folder or remove that one"
            )
    if found.get("held_out") != wanted.get("held_out"):
        raise UserError(
            f"the corpus of pairs in {out} is of an earlier version, which held out rows and not "
            "documents: take another folder or remove that one"
        )
    stamps = zip(found["sources"], wanted["sources"], strict=True)
    if not all(same_contents(known, now) for known, now in stamps):
        raise UserError(
            f"the files of the sources are not those that the corpus in {out} was begun with: "
            "take another folder or remove that one"
        )


def _unplaced(sources: list[dict]) -> list[dict]:
    """Sources of a record, text files without their folders."""
    found = []
    for source in sources:
        kind, _, names = source["source"].partition(":")
        if kind not in ("tfds", "homeassistant"):
            names = ",".join(name.rpartition("/")[2] for name in names.split(","))
        found.append({**source, "source": f"{kind}:{names}"})
    return found


def begun_state(out: str, settings: dict, record: RecordFormat) -> PreparationState:
    """Reads the state to go on from.

    Args:
        out: the corpus's folder.
        settings: those asked for.
        record: the corpus's format.

    Returns:
        The state; a new one where nothing was begun.

    Raises:
        UserError: what was begun has other settings, or is damaged.
    """
    path = storage.join(out, PROGRESS)
    if not storage.exists(path):
        return PreparationState()
    try:
        found = json.loads(storage.read_bytes(path))
        kept = found["settings"]
        state = dict(found["state"])
        for split in ("train", "validation"):
            state[split] = tuple(Shard(**shard) for shard in state[split])
        state = PreparationState(**state)
        known = found["format"] == FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: remove it, and the corpus begins anew") from error
    if not known:
        raise UserError(f"{path} is of another version: take another folder or remove that one")
    check_settings(kept, settings, out)
    for shard in state.train + state.validation:
        if not is_whole(out, shard, record, verify=True):
            raise UserError(
                f"{storage.join(out, shard.name)} is missing or damaged: remove {path}, and the "
                "corpus begins anew"
            )
    return state


def write_state(out: str, settings: dict, state: PreparationState) -> None:
    """Records what the shards hold that are in their places.

    Args:
        out: the corpus's folder.
        settings: the corpus's.
        state: how far it has come.

    Raises:
        UserError: the folder cannot be written.
    """
    record = {"format": FORMAT, "settings": settings, "state": dataclasses.asdict(state)}
    storage.write_aside(storage.join(out, PROGRESS), (json.dumps(record) + "\n").encode())


def remove_leftovers(out: str) -> None:
    """Removes what only an unfinished corpus needs; a kill may leave it beside a finished one.

    Args:
        out: the corpus's folder.
    """
    for pattern in ("part-*.tfrecord", ".tmp-*.tfrecord-*"):
        for path in storage.matching(out, pattern):
            storage.remove(path)
    storage.remove(storage.join(out, PROGRESS))
