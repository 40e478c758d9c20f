"""Adam with decoupled weight decay, the released Macaron Net's, and Adafactor, T5's."""

from collections.abc import Sequence

import keras

from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fused_adam import FusedAdam, FusedAdamW
from macaron_tf.training.schedules import make_schedule


def make_optimizer(
    config: TrainingConfig, variables: Sequence[keras.Variable] = ()
) -> keras.optimizers.Optimizer:
    """The configuration's optimizer on its schedule; of Adam AdamW where there is a decay.

    One update of Adam, with `t` the updates done before it plus one and `lr` the schedule's value:

        p -= lr * weight_decay * p                                   (decoupled, before Adam's)
        m += (1 - beta_1) * (g - m);   v += (1 - beta_2) * (g^2 - v)
        p -= lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    This is fairseq's form. PyTorch's own Adam adds epsilon to the bias-corrected root,
    `sqrt(v / (1 - beta_2^t)) + epsilon`: its epsilon weighs `1 / sqrt(1 - beta_2^t)` times less
    (7 times at the first update with beta_2 = 0.98, no difference after a few hundred).

    Adafactor is Keras's, without momentum, its other settings T5's: with `a = max(1e-3, rms(p))`,
    `p -= lr * a * u / max(1, rms(u))`, `u = g / sqrt(v)`, v being factored into its rows' and its
    columns' means, with decay `1 - t^-0.8`. It takes a rate above 1/sqrt(t) for that.

    Args:
        config: the optimizer, the learning rate, schedule, betas, epsilon and weight decay.
            Clipping and accumulation are not the optimizer's but the `FitModel`'s.
        variables: the model's trainable variables; needed only where `decay_vectors` is false, to
            leave out those of rank below 2 (biases, normalization scales and offsets).

    Raises:
        ValueError: `decay_vectors` is false and no variables are given.

    References: Kingma and Ba 2015; Loshchilov and Hutter 2019, "Decoupled Weight Decay
    Regularization"; Shazeer and Stern 2018 (Adafactor), algorithm 4.
    """
    schedule, decay = make_schedule(config), config.weight_decay
    if config.optimizer == "adafactor":
        optimizer = keras.optimizers.Adafactor(
            schedule, relative_step=False, weight_decay=decay or None
        )
    else:
        adam = {"beta_1": config.beta_1, "beta_2": config.beta_2, "epsilon": config.epsilon}
        optimizer = FusedAdamW(schedule, decay, **adam) if decay else FusedAdam(schedule, **adam)
    if decay and not config.decay_vectors:
        if not variables:
            raise ValueError("decay_vectors=False needs the model's trainable variables")
        vectors = [variable for variable in variables if len(variable.shape) < 2]
        optimizer.exclude_from_weight_decay(var_list=vectors)
    return optimizer
