"""Training: the fit-able model, schedules, checkpoints, and the loop around `model.fit`."""

from macaron_tf.training.build import build_fit_model
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel
from macaron_tf.training.train import TrainingResult, train

__all__ = ["FitModel", "TrainingConfig", "TrainingResult", "build_fit_model", "train"]
