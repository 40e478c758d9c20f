"""What a sentence encoder is judged by."""

import numpy as np
import tensorflow as tf

from experiments.embed.recipe import TRIPLETS, EmbeddingRecipe, pair_task
from experiments.embed.sentence_encoder import SentenceEncoder
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.encoding import EncodedSentences
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import decide, score
from macaron_tf.evaluation.similarity import similarity_metrics, triplet_accuracy
from macaron_tf.models.siamese import SiameseEncoder
from macaron_tf.training import FitModel


def check_scored(task: str, network: SiameseEncoder) -> None:
    """Refuses a task that the network's vectors cannot be judged by.

    Args:
        task: a task's name, or "triplets".
        network: the encoder; its classifier, where it has one, judges classes.

    Raises:
        UserError: a task of other classes than the network was trained on, or not of pairs.
    """
    described = None if task == TRIPLETS else pair_task(task)
    if described and not described.regression and network.num_classes != described.num_classes:
        raise UserError(
            f"{task} has {described.num_classes} classes, and this encoder was trained on "
            f"{network.num_classes or 'none'}: give --task stsb, which is scored by the cosine"
        )


def measure(
    task: str, network: SiameseEncoder, vectors: np.ndarray, labels: np.ndarray | None
) -> dict[str, float]:
    """Metrics of vectors.

    Args:
        task: a task's name, or "triplets"; see `check_scored`.
        network: its classifier decides classes.
        vectors: (N, S, D).
        labels: (N,); None for triplets.

    Returns:
        "spearman" and "pearson" of cosines against scores, the task's metrics of classes, or the
        "accuracy" of triplets; NaN where vectors are not finite.
    """
    if task == TRIPLETS:
        return {"accuracy": triplet_accuracy(*np.moveaxis(vectors, 1, 0))}  # (N, S, D) -> (S, N, D)
    described = get_task(task)
    if described.regression:
        return similarity_metrics(vectors[:, 0], vectors[:, 1], labels)
    logits = network.pair_logits(tf.constant(vectors[:, 0]), tf.constant(vectors[:, 1]))  # (N, C)
    found = tf.cast(logits, tf.float32).numpy()
    finite = bool(np.isfinite(found).all())
    # The argmax of a diverged model would score like the first class.
    metrics = score(described, decide(described, found if finite else np.zeros_like(found)), labels)
    return metrics if finite else dict.fromkeys(metrics, float("nan"))


def metric_names(recipe: EmbeddingRecipe) -> tuple[str, ...]:
    """What a validation of a recipe may be judged by."""
    names = {
        "softmax": ("score", *getattr(recipe.described, "metrics", ())),
        "cosine": ("spearman", "pearson"),
        "triplet": ("accuracy",),
    }
    return (*names[recipe.objective], "loss")


class EmbeddingValidation:
    """Loss and metrics of a development set.

    Args:
        recipe: names the task and the objective.
        encoder: of the network that is being trained.
        data: the development set.
    """

    def __init__(self, recipe: EmbeddingRecipe, encoder: SentenceEncoder, data: EncodedSentences):
        self.recipe = recipe
        self.encoder = encoder
        self.data = data

    def __call__(self, model: FitModel, step: int) -> dict[str, float]:
        """The metrics, as `train` asks of a validation."""
        vectors = vectors_of(self.encoder, self.data)
        labels = None if self.data.labels is None else tf.constant(self.data.labels)
        network = self.encoder.network
        loss = self.recipe.make_objective().loss(network, tf.constant(vectors), labels)  # (N,)
        metrics = measure(self.recipe.task, network, vectors, self.data.labels)
        return {"loss": float(tf.reduce_mean(loss)), **metrics}


def vectors_of(encoder: SentenceEncoder, data: EncodedSentences) -> np.ndarray:
    """Vectors `(N, S, D)` of examples, with the encoder's weights of this moment.

    Args:
        encoder: the encoder.
        data: N tokenized examples of S sentences.
    """
    # (N S, D) -> (N, S, D)
    return encoder.of_rows(data.rows).reshape(-1, data.count, encoder.width)
