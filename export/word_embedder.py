"""ELMo as a SavedModel: text in, the vectors of its words out."""

import os

import tensorflow as tf
from etils import epath

from experiments.elmo.run import ElmoRun
from export.texts import checked_text
from export.versions import write_version
from macaron_tf.models import Elmo
from macaron_tf.text.words import character_ids, split_words, with_ends


class WordEmbedderModule(tf.Module):
    """What a SavedModel holds: the network, as one signature; words need no vocabulary.

    Signature `serving_default`: `text (B,)` strings to `words (B, L)` strings, "" behind a text's
    last, `vectors (B, L, J, 2 P)` float32, the J layers of each word and 0 behind the last, and
    `lengths (B,)` int32. A text that is not UTF-8 is an InvalidArgumentError: a server's client
    gets a 400.

    Args:
        network: the trained language model.
    """

    def __init__(self, network: Elmo):
        super().__init__(name="word_embedder")
        self.network = network
        self.tracked = [weight.value for weight in network.weights]

    def embed(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The `serving_default` signature."""
        words = split_words(checked_text(text))
        lengths = tf.cast(words.row_lengths(), tf.int32)
        padded = with_ends(words).to_tensor("")  # (B, L + 2)
        characters = character_ids(padded, self.network.config.max_characters)
        layers = tf.cast(self.network(characters, training=False), tf.float32)
        # Without the marks of the two ends: (B, L + 2, J, 2 P) -> (B, L, J, 2 P)
        real = tf.sequence_mask(lengths, tf.shape(padded)[1] - 2, tf.float32)[:, :, None, None]
        vectors = layers[:, 1:-1] * real
        return {"words": words.to_tensor(""), "vectors": vectors, "lengths": lengths}

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The concrete functions by signature name."""
        text = tf.TensorSpec((None,), tf.string, "text")
        function = tf.function(self.embed, autograph=False)
        return {"serving_default": function.get_concrete_function(text)}


def export_word_embedder(
    run: ElmoRun,
    out: str | os.PathLike,
    checkpoint: str | None = None,
    version: int | None = None,
) -> epath.Path:
    """Writes a run's language model as a new version in a folder.

    Args:
        run: the run.
        out: the model's folder, `gs://` included, one subfolder a version; made when absent.
        checkpoint: which weights, see `ElmoRun.checkpoint`.
        version: number of the version; by default one more than the greatest there is.

    Returns:
        The version's folder. It appears under its name only when it is whole.

    Raises:
        UserError: the run has no such checkpoint, the version exists, or `out` cannot be written.
    """
    weights = run.checkpoint(checkpoint)
    module = WordEmbedderModule(run.load_network(weights))
    record = {"run": run.path.name, "checkpoint": weights.name}
    return write_version(module, run.vocabulary, record, out, version)
