"""The fine-tuning settings of the two papers, by name.

macaron: Lu et al. 2019, appendix B.3, and its released code: batches of 16 or 32, 3 to 5 epochs,
learning rate 5e-5 (code; the paper's text prints 5e-3) or 3e-5, 10% warm-up, then linearly to 0,
Adam with epsilon 1e-6, weight decay 0.01, the best on the development set kept. Betas and head are
BERT's. Judged once an epoch.

swish_rnn: Lei et al. 2022, appendix B: batches of 32, Adam without weight decay, 1,000 updates of
warm-up, then a constant learning rate out of {1e-5, 5e-6, 3e-6, 2e-6}, judged every 1,000 updates,
at most the updates of its table 4; 3 runs, their mean reported. Betas are its pre-training's.
"""

from collections.abc import Callable

from experiments.finetuning.recipe import FinetuningRecipe
from macaron_tf.data.tasks import Task
from macaron_tf.errors import UserError
from macaron_tf.training.config import TrainingConfig

# Table 4 of Lei et al. 2022.
_SWISH_RNN_STEPS = {
    "boolq": 50_000,
    "cola": 50_000,
    "mnli": 200_000,
    "mrpc": 20_000,
    "multirc": 50_000,
    "qnli": 100_000,
    "qqp": 150_000,
    "rte": 20_000,
    "sst2": 80_000,
    "stsb": 30_000,
    # Not in the table: as many as its smallest sets have.
    "wnli": 20_000,
}
_SHARED = dict(
    warmup_start=0.0,
    epsilon=1e-6,
    best_metric="score",
    # Its files are 3 times the model; what counts is the best one, which is kept besides.
    keep_last=1,
)


def preset(name: str, task: Task, model: str = "bert_base") -> FinetuningRecipe:
    """A paper's recipe for a task.

    Args:
        name: one of `PRESETS`.
        task: the task.
        model: a name of the model catalog.

    Raises:
        UserError: no such preset.
    """
    if name not in PRESETS:
        raise UserError(f"no preset is called {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name](task, model)


def _macaron(task: Task, model: str) -> FinetuningRecipe:
    return FinetuningRecipe(
        model=model,
        task=task.name,
        source=task.source,
        # Steps and warm-up follow from the epochs.
        training=TrainingConfig(
            learning_rate=5e-5,
            schedule="linear",
            warmup_steps=0,
            beta_2=0.999,
            weight_decay=0.01,
            **_SHARED,
        ),
    )


def _swish_rnn(task: Task, model: str) -> FinetuningRecipe:
    return FinetuningRecipe(
        model=model,
        task=task.name,
        source=task.source,
        epochs=None,
        warmup_fraction=None,
        validate_epochs=None,
        max_length=512,
        training=TrainingConfig(
            max_steps=_SWISH_RNN_STEPS[task.name],
            learning_rate=1e-5,
            schedule="constant",
            warmup_steps=1_000,
            validate_every=1_000,
            **_SHARED,
        ),
    )


PRESETS: dict[str, Callable[[Task, str], FinetuningRecipe]] = {
    "macaron": _macaron,
    "swish_rnn": _swish_rnn,
}
