"""An encoder of sentences as a SavedModel: text in, unit vector out."""

import os

import tensorflow as tf
from etils import epath

from experiments.embed.sentence_encoder import SentenceEncoder
from experiments.embed.start import open_encoder
from export.texts import checked_text
from export.versions import write_version
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.io.paths import as_path
from macaron_tf.models.siamese import unit_length


class EmbedderModule(tf.Module):
    """What a SavedModel holds: the vocabulary and the network, as one signature.

    Signature `serving_default`: `text (B,)` strings to `vector (B, D)` float32 of length 1, so that
    a dot product is the cosine. A text too long is cut as in training. One that is not UTF-8 is an
    InvalidArgumentError: a server's client gets a 400.

    Args:
        encoder: the network, its vocabulary and its longest row.
    """

    def __init__(self, encoder: SentenceEncoder):
        super().__init__(name="embedder")
        self.network = encoder.network
        self.vocabulary = encoder.vocabulary
        self.max_length = encoder.max_length
        # What a SavedModel restores: variables and the tokenizer's resource.
        self.tracked = [
            *(weight.value for weight in self.network.weights),
            *self.vocabulary.trackables(),
        ]

    def embed(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The `serving_default` signature."""
        inputs = encode_pairs(self.vocabulary, checked_text(text), None, self.max_length)
        vectors = self.network({"token_ids": inputs["token_ids"]}, training=False)  # (B, D)
        return {"vector": unit_length(vectors)}

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The concrete functions by signature name."""
        text = tf.TensorSpec((None,), tf.string, "text")
        function = tf.function(self.embed, autograph=False)
        return {"serving_default": function.get_concrete_function(text)}


def export_embedder(
    given: str,
    out: str | os.PathLike,
    checkpoint: str | None = None,
    version: int | None = None,
) -> epath.Path:
    """Writes an encoder of sentences as a new version in a folder.

    Args:
        given: a run's folder, or `hugging-face:DIR` of a sentence-transformers directory.
        out: the model's folder, `gs://` included, one subfolder a version; made when absent.
        checkpoint: of a run, which weights, see `EmbeddingRun.checkpoint`.
        version: number of the version; by default one more than the greatest there is.

    Returns:
        The version's folder. It appears under its name only when it is whole.

    Raises:
        UserError: there is no such run, directory or checkpoint, the version exists, or `out`
            cannot be written.
    """
    encoder, run = open_encoder(f"{given}@{checkpoint}" if checkpoint else str(given))
    record = {
        "run": as_path(given).name,
        "checkpoint": run.checkpoint(checkpoint).name if run else None,
        "pooling": encoder.network.pooling,
        "max_length": encoder.max_length,
    }
    return write_version(EmbedderModule(encoder), encoder.vocabulary, record, out, version)
