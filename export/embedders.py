"""Encoders of sentences and of words as SavedModels: text in, vectors out."""

from typing import Any

import tensorflow as tf

from experiments.embed.run import SentenceEncoder, open_encoder
from export.module import ExportedModule
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.io.paths import as_path
from macaron_tf.models.tasks import unit_length
from macaron_tf.text.words import character_ids, split_words, with_ends
from macaron_tf.training.checkpoints import weights_record


class SentenceModule(ExportedModule):
    """An encoder of sentences.

    Signature `serving_default`: `text (B,)` strings to `vector (B, D)` float32 of length 1, so that
    a dot product is the cosine. A long text is truncated as in training.
    """

    def __init__(self, encoder: SentenceEncoder):
        super().__init__(encoder.network, encoder.vocabulary)
        self.max_length = encoder.max_length

    def serve(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = encode_pairs(self.vocabulary, text, None, self.max_length)
        vectors = self.network({"token_ids": inputs["token_ids"]}, training=False)  # (B, D)
        return {"vector": unit_length(vectors)}


class WordModule(ExportedModule):
    """ELMo, an encoder of words in context, and its `WordVocabulary`.

    Signature `serving_default`: `text (B,)` strings to `words (B, L)` strings, padded with "",
    `vectors (B, L, J, 2 P)` float32, the J layers of each word, padded with 0, and `lengths (B,)`
    int32.
    """

    def serve(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        words = split_words(text)
        lengths = tf.cast(words.row_lengths(), tf.int32)
        padded = with_ends(words).to_tensor("")  # (B, L + 2)
        characters = character_ids(padded, self.network.config.max_characters)
        layers = tf.cast(self.network(characters, training=False), tf.float32)
        # Drop the begin and end marks: (B, L + 2, J, 2 P) -> (B, L, J, 2 P)
        real = tf.sequence_mask(lengths, tf.shape(padded)[1] - 2, tf.float32)[:, :, None, None]
        vectors = layers[:, 1:-1] * real
        return {"words": words.to_tensor(""), "vectors": vectors, "lengths": lengths}


def sentence_module(place: str, checkpoint: str | None) -> tuple[ExportedModule, dict[str, Any]]:
    """An encoder of sentences and the record of its export; see `export.places.open_module`.

    Args:
        place: a run's folder, or `hugging-face:DIR` of a sentence-transformers directory.
    """
    encoder, run = open_encoder(f"{place}@{checkpoint}" if checkpoint else place)
    record = {
        "run": as_path(place).name,
        **(weights_record(run.checkpoint(checkpoint)) if run else {"checkpoint": None}),
        "pooling": encoder.network.pooling,
        "max_length": encoder.max_length,
    }
    return SentenceModule(encoder), record
