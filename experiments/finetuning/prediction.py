"""Texts to a classifier's outputs, and those to metrics."""

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.classification_data import ClassificationData, encode_examples
from macaron_tf.data.encoder_vocabulary import PieceVocabulary
from macaron_tf.data.task_data import Examples
from macaron_tf.data.tasks import Task
from macaron_tf.distribution.replica_map import ReplicaMap
from macaron_tf.evaluation.glue import decide, score
from macaron_tf.models import EncoderClassifier


class Predictor:
    """Outputs of a classifier, text by text or of tokenized examples.

    One `tf.function` with a relaxed signature serves all shapes: it is traced once. The network's
    weights are those of the moment. Replicas of the strategy in whose scope it is made share the
    batches.

    Args:
        network: the classifier, built.
        vocabulary: the one it was trained with.
        max_length: longest row.
        batch_size: examples at once.
    """

    def __init__(
        self,
        network: EncoderClassifier,
        vocabulary: PieceVocabulary,
        max_length: int,
        batch_size: int = 32,
    ):
        self.network = network
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.batch_size = batch_size
        rows = tf.TensorSpec((None, None), tf.int32)
        # A partial: TensorFlow counts the traces of a method over all of its objects, and would
        # warn of a grid's one trace a network.
        forward = functools.partial(_forward, network)
        logits = tf.function(forward, input_signature=[rows, rows], autograph=False)
        self._logits = ReplicaMap(tf.distribute.get_strategy(), logits)

    def outputs(self, data: ClassificationData) -> np.ndarray:
        """Logits `(N, C)`, or scores `(N, 1)`, in the order of the examples.

        Args:
            data: N tokenized examples.
        """
        found = np.empty((len(data), self.network.num_classes), np.float32)
        places: list[np.ndarray] = []  # of (B,), -1 in rows of padding

        def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for batch in data.evaluation_dataset().as_numpy_iterator():
                places.append(batch["index"])
                yield batch["token_ids"], batch["segment_ids"]

        for number, result in enumerate(self._logits(rows())):
            index = places[number]
            found[index[index >= 0]] = result["logits"][index >= 0]
        return found

    def of_examples(self, examples: Examples) -> np.ndarray:
        """`outputs` of texts.

        Args:
            examples: of the task; their labels are not looked at.
        """
        encoded = encode_examples(self.vocabulary, examples, self.max_length)
        return self.outputs(ClassificationData(encoded, self.batch_size))

    def of_texts(self, first: Sequence[str], second: Sequence[str] | None = None) -> np.ndarray:
        """`outputs` of texts that are no examples of a set.

        Args:
            first: N texts.
            second: N texts, for a task on two.
        """
        second = None if second is None else list(second)
        return self.of_examples(Examples(list(first), second, None, np.arange(len(first)), None))


def _forward(
    network: EncoderClassifier, token_ids: tf.Tensor, segment_ids: tf.Tensor
) -> dict[str, tf.Tensor]:
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
    return {"logits": tf.cast(network(inputs, training=False), tf.float32)}  # (B, C)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The softmax over classes: `(N, C)` to `(N, C)`."""
    return tf.nn.softmax(logits).numpy()


def measure(
    task: Task, outputs: Mapping[str, np.ndarray], examples: Mapping[str, Examples]
) -> dict[str, float]:
    """Metrics of development sets: the first one's by their names, others' with the split's before.

    Args:
        task: the task.
        outputs: logits or scores of each split; where one is not finite, its metrics are NaN.
        examples: the splits themselves.
    """
    measured = {}
    for place, (split, found) in enumerate(outputs.items()):
        known = examples[split]
        finite = bool(np.isfinite(found).all())
        # The argmax of a diverged model would score like the first class.
        decided = decide(task, found if finite else np.zeros_like(found))
        metrics = score(task, decided, known.labels, known.groups)
        prefix = f"{split}_" if place else ""
        measured.update(
            (prefix + name, value if finite else float("nan")) for name, value in metrics.items()
        )
    return measured
