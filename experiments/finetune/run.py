"""A fine-tuning run."""

import dataclasses
import json
import os

import keras
from etils import epath

from experiments.finetune.kinds import kind_of
from experiments.finetune.prediction import Predictor
from experiments.finetune.recipe import FinetuningRecipe
from experiments.run import Run
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.io import paths as storage
from macaron_tf.text import PieceVocabulary, load_encoder_vocabulary
from macaron_tf.training.checkpoints import read_manifest

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


def build_network(recipe: FinetuningRecipe, vocab_size: int) -> keras.Model:
    """The recipe's encoder with the head of its task's kind, in the recipe's dtype policy.

    Args:
        recipe: names the model, its options and the task.
        vocab_size: rows of the embedding.

    Raises:
        UserError: see `FinetuningRecipe.model_config`.
    """
    network = kind_of(recipe.described).network(
        recipe.model_config(vocab_size), recipe.head_dropout, recipe.training.dtype_policy
    )
    network.build()
    return network


@dataclasses.dataclass(frozen=True)
class FinetuningRun(Run):
    """A finished or running fine-tuning."""

    recipe_class = FinetuningRecipe

    @staticmethod
    def load_vocabulary(directory: epath.Path) -> PieceVocabulary:
        return load_encoder_vocabulary(directory)

    def build_network(self) -> keras.Model:
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
        if not isinstance(checkpoint, os.PathLike):
            checkpoint = self.checkpoint(checkpoint)
        return Predictor(
            self.load_network(checkpoint),
            self.vocabulary,
            self.task,
            self.recipe.limits,
            self.recipe.batch_size,
            self.tuned(checkpoint),
        )

    @staticmethod
    def tuned(checkpoint: os.PathLike) -> dict[str, float]:
        """Metrics of the validation of a checkpoint's weights; none where there was none.

        Args:
            checkpoint: its folder.
        """
        return read_manifest(checkpoint).get("metrics") or {}

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
