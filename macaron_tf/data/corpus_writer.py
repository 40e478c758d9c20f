"""The shards of a corpus: what of a block of documents is trained on, and what is held out."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence

import numpy as np

from macaron_tf.data import storage
from macaron_tf.data.corpus_blocks import CorpusDocument, running_rows
from macaron_tf.data.corpus_config import CorpusConfig
from macaron_tf.data.corpus_files import (
    FORMAT,
    INDEX,
    RecordFormat,
    read_records,
    write_shard,
)
from macaron_tf.data.corpus_state import PreparationState, remove_leftovers, write_state
from macaron_tf.data.packing import Rows
from macaron_tf.data.pair_packing import pack_pairs
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.errors import UserError

_TOO_FEW = {
    "next_sentence": (
        "sentence pairs need four documents or more with text, two of them to hold out: "
        "half of the pairs take their second segment from another document of their split; "
        "give more documents, or separate them (text-paragraphs:, text-lines:)"
    ),
    "sentence_order": (
        "sentence pairs need two documents or more with text, one of them to hold out: "
        "give more documents, or separate them (text-paragraphs:)"
    ),
}


class CorpusWriter:
    """Packs blocks of documents, writes their shards and records each step.

    Running text is held out by the row, which goes into files of its own beside each shard, and
    all are gathered at the end. Pairs are held out by the document: those documents are kept in
    memory, in ids one in `validation_every` of the corpus, and paired among each other at the end.

    Args:
        config: what the corpus is made of.
        vocabulary: what it is cut with.
        out: its folder.
        settings: recorded beside it.
        record: its rows' format.
        state: how far it has come.
    """

    def __init__(
        self,
        config: CorpusConfig,
        vocabulary: PieceVocabulary,
        out: str,
        settings: dict,
        record: RecordFormat,
        state: PreparationState,
    ):
        self._config = config
        self._special = (vocabulary.cls_id, vocabulary.sep_id)
        self._out = out
        self._settings = settings
        self._record = record
        self.state = state
        self._kept_documents: list[CorpusDocument] = []
        # Only documents that come again can bring a validation row into the training rows.
        self._kept_rows: set[bytes] | None = None
        if config.repeats:
            self._kept_rows = set(read_records(out, state.validation))

    def hold_out(self, documents: Iterable[CorpusDocument]) -> None:
        """Keeps the documents that are held out, each once, for the pairs of the validation.

        Args:
            documents: these and others, in their order.
        """
        self._kept_documents += [
            document for document in documents if document.held_out and not document.repeated
        ]

    def write(self, block: Sequence[CorpusDocument]) -> None:
        """Writes a block's shard.

        Args:
            block: documents.

        Raises:
            UserError: the folder cannot be written, or too few documents to pair.
        """
        state, number = self.state, len(self.state.train)
        counted, held_out = 0, None
        if self._config.paired:
            self.hold_out(block)
            rows, kept = self._pairs([d for d in block if not d.held_out], [number])
        else:
            rows = running_rows(block, self._config, *self._special)
            kept, held_out, counted = self._divided(block, rows)
        train = (*state.train, write_shard(self._out, f"train-{number:05d}.tfrecord", kept))
        validation = state.validation
        if held_out is not None:
            part = write_shard(self._out, f"part-{number:05d}.tfrecord", held_out)
            validation = (*validation, part)
        self.state = PreparationState(
            documents=state.documents + len(block),
            counted=state.counted + counted,
            tokens=state.tokens + _tokens(rows),
            train=train,
            validation=validation,
        )
        write_state(self._out, self._settings, self.state)

    def finish(self) -> None:
        """Writes the validation rows and the index, which makes the corpus valid.

        Raises:
            UserError: no text at all, or too few documents to pair.
        """
        tokens = self.state.tokens
        if self._config.paired:
            # The training shards' numbers have no second part.
            rows, held_out = self._pairs(self._kept_documents, [0, 1])
            records, tokens = iter(held_out), tokens + _tokens(rows)
        elif self.state.rows:
            records = read_records(self._out, self.state.validation)
        else:
            raise UserError("the sources hold no text that the vocabulary can cut: give others")
        validation = []
        while chunk := list(itertools.islice(records, self._config.rows_per_shard)):
            name = f"validation-{len(validation):05d}.tfrecord"
            validation.append(write_shard(self._out, name, chunk))
        shards = {"train": self.state.train, "validation": validation}
        record = {
            "format": FORMAT,
            "settings": self._settings,
            "documents": self.state.documents,
            "tokens": tokens,
            "shards": {split: [dataclasses.asdict(s) for s in shards[split]] for split in shards},
        }
        storage.write_aside(storage.join(self._out, INDEX), _json(record))
        remove_leftovers(self._out)

    def _divided(
        self, block: Sequence[CorpusDocument], rows: Rows
    ) -> tuple[list[bytes], list[bytes], int]:
        """Training records, validation records, and how many of them were counted for that."""
        records = self._encoded(block, rows)
        repeated = np.array([document.repeated for document in block])[rows.owners]
        places = self.state.counted + np.cumsum(~repeated) - 1
        runs = places // self._config.validation_run
        chosen = ~repeated & (runs % self._config.validation_every == 0)
        held_out = [records[i] for i in np.flatnonzero(chosen)]
        kept = [records[i] for i in np.flatnonzero(~chosen)]
        if self._kept_rows is not None:
            self._kept_rows.update(held_out)
            again = repeated[~chosen]
            kept = [
                record
                for record, known in zip(kept, again, strict=True)
                if not (known and record in self._kept_rows)
            ]
        return kept, held_out, int((~repeated).sum())

    def _pairs(
        self, documents: Sequence[CorpusDocument], numbers: list[int]
    ) -> tuple[Rows, list[bytes]]:
        """Rows of pairs and their records."""
        pairs = self._config.pairs
        least = 2 if pairs == "next_sentence" else 1
        if sum(len(document.sentences.ids) > 0 for document in documents) < least:
            raise UserError(_TOO_FEW[pairs])
        rows = pack_pairs(
            [document.sentences for document in documents],
            self._config.sequence_length,
            *self._special,
            np.random.default_rng([self._config.seed, *numbers]),
            pairs,
            single_sentences=self._config.row_packing == "sentence_pair",
        )
        return rows, self._encoded(documents, rows)

    def _encoded(self, documents: Sequence[CorpusDocument], rows: Rows) -> list[bytes]:
        languages = np.array([document.languages for document in documents])  # (documents, 2)
        return self._record.encoded(rows, languages[rows.owners])


def _tokens(rows: Rows) -> int:
    return int((rows.token_ids != 0).sum())


def _json(record: dict) -> bytes:
    return (json.dumps(record, indent=1) + "\n").encode()
