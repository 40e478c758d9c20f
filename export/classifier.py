"""A fine-tuned classifier as a SavedModel: text in, label and probabilities out."""

import tensorflow as tf

from export.texts import checked_text
from macaron_tf.data.causal_encoding import row_encoder
from macaron_tf.data.encoder_vocabulary import PieceVocabulary
from macaron_tf.data.tasks import Task


class ClassifierModule(tf.Module):
    """What a SavedModel holds: the vocabulary and the network, as one signature.

    Signature `serving_default`: `text (B,)` strings, or `first (B,)` and `second (B,)` for a task
    on two texts, to `label (B,)` strings and `probabilities (B, C)` float32, the classes in the
    task's order; to `score (B,)` float32 for a regression task. A text too long is cut as in
    training. One that is not UTF-8 is an InvalidArgumentError: a server's client gets a 400.

    Args:
        network: the trained `EncoderClassifier` or `CausalClassifier`.
        vocabulary: the one it was trained with.
        task: names the classes.
        max_length: longest row, special ids included.
    """

    def __init__(self, network, vocabulary: PieceVocabulary, task: Task, max_length: int):
        super().__init__(name="classifier")
        self.network = network
        self.vocabulary = vocabulary
        self.task = task
        self.max_length = max_length
        # What a SavedModel restores: variables and the tokenizer's resource.
        self.tracked = [*(weight.value for weight in network.weights), *vocabulary.trackables()]

    def classify(self, first: tf.Tensor, second: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Texts `(B,)` to the outputs of `serving_default`."""
        first = checked_text(first)
        second = None if second is None else checked_text(second)
        encode = row_encoder(self.network.config.causal)
        inputs = encode(self.vocabulary, first, second, self.max_length)
        logits = tf.cast(self.network(inputs, training=False), tf.float32)  # (B, C)
        if self.task.regression:
            scores = logits[:, 0]  # (B,)
            if self.task.score_range:
                scores = tf.clip_by_value(scores, *self.task.score_range)
            return {"score": scores}
        return {
            "label": tf.gather(tf.constant(self.task.labels), tf.argmax(logits, axis=1)),
            "probabilities": tf.nn.softmax(logits),
        }

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The concrete functions by signature name."""
        names = ("first", "second") if self.task.second else ("text",)
        texts = [tf.TensorSpec((None,), tf.string, name) for name in names]

        def of_one(text):
            return self.classify(text)

        def of_two(first, second):
            return self.classify(first, second)

        function = tf.function(of_two if self.task.second else of_one, autograph=False)
        return {"serving_default": function.get_concrete_function(*texts)}
