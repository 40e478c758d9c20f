"""How far the preparation of a corpus has come, and whether a folder belongs to it."""

import dataclasses
import json
import os

from macaron_tf.data import storage
from macaron_tf.data.corpus_config import CorpusConfig, config_from_record
from macaron_tf.data.corpus_files import FORMAT, PROGRESS, RecordFormat, Shard, is_whole
from macaron_tf.data.corpus_sources import identify_source
from macaron_tf.data.file_stamps import same_contents
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.errors import UserError


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
