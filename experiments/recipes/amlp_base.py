"""aMLP: gMLP with one small head of attention in every layer, base.

    python -m experiments.pretrain prepare amlp_base corpora/512 --data-dir DIR --download
    python -m experiments.pretrain train amlp_base runs/amlp --corpus corpora/512

Liu et al. 2021, section 4: 36 layers and an attention of 64, D 512, F 3072, rows of 512, 256 of
them an update, a million updates, Adam with epsilon 1e-6, peak learning rate 7e-4 after 10,000,
linear to 0, weight decay 0.01. The paper's text is C4; Wikipedia and books stand in. 8
micro-batches of 32 rows make an update on one device. `--set model=amlp_large` takes the large
size.

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import gmlp_base

RECIPE = dataclasses.replace(gmlp_base.RECIPE, model="amlp_base")
