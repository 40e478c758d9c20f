"""What a prepared corpus says of itself."""

import json

from macaron_tf.data import storage
from macaron_tf.data.corpus_config import config_from_record
from macaron_tf.data.corpus_files import FORMAT, INDEX, PROGRESS, SPLITS, Shard
from macaron_tf.errors import UserError


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
