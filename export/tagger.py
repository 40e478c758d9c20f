"""A fine-tuned tagger as a SavedModel: a sentence in, a tag for each word out."""

import tensorflow as tf

from export.texts import checked_text
from macaron_tf.data.encoder_vocabulary import PieceVocabulary
from macaron_tf.data.tagging_windows import encode_words, word_probabilities
from macaron_tf.data.tasks import Task


class TaggerModule(tf.Module):
    """What a SavedModel holds: the vocabulary and the network, as one signature.

    Signature `serving_default`: `text (B,)` strings, words with white space between, to `words
    (B, W)` and `tags (B, W)` strings, "" beyond a sentence's last word, and `probabilities (B, W)`
    float32, of those tags. A text that is not UTF-8 is an InvalidArgumentError: a server's client
    gets a 400.

    Args:
        network: the trained `EncoderTagger`.
        vocabulary: the one it was trained with.
        task: names the tags.
        max_length: longest row, special ids included; longer sentences are read through windows.
    """

    def __init__(self, network, vocabulary: PieceVocabulary, task: Task, max_length: int):
        super().__init__(name="tagger")
        self.network = network
        self.vocabulary = vocabulary
        self.task = task
        self.max_length = max_length
        # What a SavedModel restores: variables and the tokenizer's resource.
        self.tracked = [*(weight.value for weight in network.weights), *vocabulary.trackables()]

    def tag(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Texts `(B,)` to the outputs of `serving_default`."""
        words = tf.strings.split(checked_text(text))  # (B, None)
        inputs, places = encode_words(self.vocabulary, words, self.max_length)
        found = word_probabilities(self.network(inputs, training=False), places)  # (N, C), N words
        tags = tf.gather(tf.constant(self.task.labels), tf.argmax(found, axis=1))  # (N,)
        return {
            "words": words.to_tensor(),
            "tags": words.with_values(tags).to_tensor(),
            "probabilities": words.with_values(tf.reduce_max(found, axis=1)).to_tensor(),
        }

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The concrete functions by signature name."""
        function = tf.function(lambda text: self.tag(text), autograph=False)
        text = tf.TensorSpec((None,), tf.string, "text")
        return {"serving_default": function.get_concrete_function(text)}
