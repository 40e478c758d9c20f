"""TCN on Penn Treebank's characters.

    python -m experiments.tcn ptb_characters out/characters --data ptb

The model is that of Bai et al. 2018's released code (k 3 x 3 x 450, the last block 100 wide, tied),
as are dropout, clipping and the windows of 400 characters of which the last 320 count. Half an hour
on two cores is about two epochs: Adam instead of SGD, its rate down to 0. The slide has 1.31
bits for the TCN and 1.36 for the LSTM, after 100 epochs; the recurrent models read the
same windows, each from an empty state.

Measured: not yet.
"""

from experiments.tcn.recipe import SequenceRecipe
from macaron_tf.training.config import TrainingConfig

RECIPE = SequenceRecipe(
    model="tcn_ptb_characters",
    task="ptb_characters",
    batch_size=32,
    recurrent=("training.clip_norm=1.0", "training.max_steps=500", "training.validate_every=100"),
    training=TrainingConfig(
        max_steps=1_000,
        learning_rate=1e-3,
        schedule="linear",
        warmup_steps=0,
        beta_2=0.999,
        validate_every=100,
        best_metric="bits",
        best_mode="min",
        keep_last=1,
        max_minutes=28.0,
        clip_norm=0.15,
    ),
)
