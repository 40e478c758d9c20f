"""A fine-tuning run."""

import dataclasses
import json
import os

from etils import epath

from experiments.finetuning.prediction import Predictor
from experiments.finetuning.recipe import FinetuningRecipe
from experiments.run import Run
from macaron_tf.data import storage
from macaron_tf.data.encoder_vocabulary import PieceVocabulary, load_encoder_vocabulary
from macaron_tf.data.tasks import Task
from macaron_tf.models import EncoderClassifier

RESULT = "result.json"


@dataclasses.dataclass(frozen=True)
class FinetuningResult:
    """How a run ended; RUN/result.json.

    Attributes:
        reason: `"max_steps"`, `"max_minutes"`, `"early_stopping"` or `"diverged"`.
        step: updates done; None where the run diverged.
        best_step, best_score: of the best validation; None where none had a finite score.
        metrics: of that validation.
        seconds: wall-clock time; None where the run diverged.
    """

    reason: str
    step: int | None
    best_step: int | None
    best_score: float | None
    metrics: dict[str, float]
    seconds: float | None


def build_network(recipe: FinetuningRecipe, vocab_size: int) -> EncoderClassifier:
    """The recipe's classifier, in the recipe's dtype policy.

    Args:
        recipe: names the model, its options and the task.
        vocab_size: rows of the embedding.

    Raises:
        UserError: see `FinetuningRecipe.model_config`.
    """
    network = EncoderClassifier(
        recipe.model_config(vocab_size),
        recipe.described.num_classes,
        recipe.head_dropout,
        dtype=recipe.training.dtype_policy,
    )
    network.build()
    return network


@dataclasses.dataclass(frozen=True)
class FinetuningRun(Run):
    """A finished or running fine-tuning of a classifier."""

    recipe_class = FinetuningRecipe

    @staticmethod
    def load_vocabulary(directory: epath.Path) -> PieceVocabulary:
        return load_encoder_vocabulary(directory)

    def build_network(self) -> EncoderClassifier:
        return build_network(self.recipe, self.vocabulary.size)

    @property
    def task(self) -> Task:
        """What it was trained for."""
        return self.recipe.described

    def predictor(self, checkpoint: os.PathLike | str | None = None) -> Predictor:
        """Texts to outputs with a checkpoint's weights.

        Args:
            checkpoint: see `load_network`.
        """
        return Predictor(
            self.load_network(checkpoint),
            self.vocabulary,
            self.recipe.max_length,
            self.recipe.batch_size,
        )

    def write_result(self, result: FinetuningResult) -> None:
        """Records how the run ended."""
        text = json.dumps(dataclasses.asdict(result), indent=1) + "\n"
        storage.write_aside(self.path / RESULT, text.encode())

    def result(self) -> FinetuningResult | None:
        """How the run ended; None where it has not."""
        try:
            return FinetuningResult(**json.loads((self.path / RESULT).read_bytes()))
        except (*storage.FILE_ERRORS, ValueError, TypeError):
            return None
