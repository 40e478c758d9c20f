"""Sentences to vectors, many at once."""

import functools
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import Buckets, choose_lengths
from macaron_tf.data.tasks.encoding import encode_sentences
from macaron_tf.distribution.replicas import ReplicaMap
from macaron_tf.io.progress import track
from macaron_tf.models.siamese import SiameseEncoder
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows

# Lengths of batches. Of STS-B's positions 9% are padding; with multiples of 8 it would be 24%.
_SHAPES = 16
_LONG = 2_000  # sentences from which on a person would like to see how far it is


class SentenceEncoder:
    """Vectors of sentences, those of about one length together.

    One `tf.function` with a relaxed signature serves all shapes: it is traced once. The network's
    weights are those of the moment. Replicas of the strategy in whose scope it is made share the
    batches.

    Args:
        network: built.
        vocabulary: the one it was trained with.
        max_length: longest row, special ids included; longer sentences are cut.
        max_tokens: padded tokens of a batch.
    """

    def __init__(
        self,
        network: SiameseEncoder,
        vocabulary: PieceVocabulary,
        max_length: int,
        max_tokens: int = 8192,
    ):
        self.network = network
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.max_tokens = max(max_tokens, max_length)
        # A partial: TensorFlow counts the traces of a method over all of its objects.
        forward = functools.partial(_forward, network)
        rows = tf.TensorSpec((None, None), tf.int32)
        vectors = tf.function(forward, input_signature=[rows], autograph=False)
        self._vectors = ReplicaMap(tf.distribute.get_strategy(), vectors)

    @property
    def width(self) -> int:
        """D."""
        return self.network.config.hidden_dim

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors `(N, D)` float32, in the order of the sentences.

        Args:
            texts: N sentences; an empty one is encoded too, as its two special ids. Those too long
                are cut, with one warning for all on stderr.
        """
        rows, cut = encode_sentences(self.vocabulary, texts, self.max_length)
        warn_cut(cut, len(texts), self.max_length)
        return self.of_rows(rows)

    def of_rows(self, rows: TokenRows) -> np.ndarray:
        """Vectors `(N, D)` of tokenized sentences.

        Args:
            rows: N rows, special ids included, none longer than `max_length`.
        """
        found = np.empty((len(rows.lengths), self.width), np.float32)
        if not len(found):
            return found
        lengths = choose_lengths(rows.lengths, _SHAPES, multiple=1)
        plan = Buckets(lengths, self.max_tokens).plan(rows.lengths, None)
        # The last batch alone has rows of padding: of one short query they would be 500.
        places = [batch.rows[batch.rows >= 0] for batch in plan]

        def batches() -> Iterator[tuple[np.ndarray]]:
            for own, batch in zip(places, plan, strict=True):
                yield (rows.padded(own, batch.length),)

        results = zip(places, self._vectors(batches()), strict=True)
        if len(found) >= _LONG:
            sized = ((len(own), (own, result)) for own, result in results)
            results = track(sized, len(found), "encoding", "sentences")
        for own, result in results:
            found[own] = result["vectors"]
        return found

    def identity(self) -> str:
        """SHA-256 (hex) over all that a sentence's vector depends on."""
        settings = {**self.network.get_config(), "max_length": self.max_length}
        digest = hashlib.sha256(f"{self.vocabulary.hash}\n".encode())
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        for weight in self.network.get_weights():
            digest.update(np.ascontiguousarray(weight))
        return digest.hexdigest()


def warn_cut(cut: int, total: int, max_length: int) -> None:
    """Says on stderr, once, that sentences were too long.

    Args:
        cut: how many. total: of how many. max_length: longest row.
    """
    if cut:
        print(
            f"warning: {cut:,} of {total:,} sentences have more than {max_length - 2} tokens: "
            "what comes after is not read",
            file=sys.stderr,
        )


def _forward(network: SiameseEncoder, token_ids: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"vectors": network({"token_ids": token_ids}, training=False)}  # (B, L) -> (B, D)
