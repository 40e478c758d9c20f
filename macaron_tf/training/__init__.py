"""Training loops, optimizers, learning rate schedules, checkpoints and resumable runs."""

from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel, build_fit_model
from macaron_tf.training.session import Interrupted, TrainingResult, TrainingSession, train
from macaron_tf.training.trained_model import Diverged, TrainedModel
