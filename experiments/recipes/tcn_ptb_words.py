"""TCN on Penn Treebank's words: the next of 10,000.

    python -m experiments.tcn ptb_words out/words --data ptb

The model is that of Bai et al. 2018 (k 3 x 4 x 600, tied), as are the windows of 80 words of which
the last 40 count. Half an hour on two cores is one epoch, 1,452 updates of 16 windows: hence
little dropout, Adam instead of SGD, and a perplexity far from the slide's 88.68, which is
`--set training.max_steps=145200 --set model.dropout=0.45 --set model.embedding_dropout=0.25
--set training.max_minutes=None`. The recurrent models read the same windows, each from an empty
state; with tied scores one layer of free width comes before one of 600.

Measured: not yet.
"""

from experiments.tcn.recipe import SequenceRecipe
from macaron_tf.training.config import TrainingConfig

RECIPE = SequenceRecipe(
    model="tcn_ptb_words",
    model_options=(("dropout", 0.1), ("embedding_dropout", 0.1)),
    task="ptb_words",
    batch_size=16,
    recurrent=("training.clip_norm=1.0",),
    training=TrainingConfig(
        max_steps=1_452,
        learning_rate=1e-3,
        schedule="linear",
        warmup_steps=0,
        beta_2=0.999,
        validate_every=242,
        best_metric="perplexity",
        best_mode="min",
        keep_last=1,
        max_minutes=28.0,
        clip_norm=0.35,
    ),
)
