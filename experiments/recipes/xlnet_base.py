"""XLNet base: 12 layers, D 768, 12 heads, 117 million parameters.

    python -m experiments.pretrain prepare xlnet_base corpora/xlnet --data-dir DIR --download
    python -m experiments.pretrain train xlnet_base runs/xlnet --corpus corpora/xlnet

Yang et al. 2019, section 3.4 (the ablation on BERT's data): as `xlnet_large`, but the shapes, and
K = 6 or 7 (`--set partial_prediction=7.0`); updates of 256 rows as BERT base's are chosen here.
The slides state for K = 7 and 6: SQuAD 2.0 F1 81.3 and 81.0, MNLI 85.8 and 85.6, SST-2 92.7 and
93.4, RACE 66.1 and 66.7.

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import xlnet_large

RECIPE = dataclasses.replace(
    xlnet_large.RECIPE,
    model="xlnet_base",
    batch_size=32,
    training=dataclasses.replace(xlnet_large.RECIPE.training, accumulation_steps=8),
)
