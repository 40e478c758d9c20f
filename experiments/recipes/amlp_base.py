"""aMLP: gMLP with one small head of attention in every layer, base.

    python -m experiments.pretrain prepare amlp_base corpora/512 --data-dir DIR --download
    python -m experiments.pretrain train amlp_base runs/amlp --corpus corpora/512

Liu et al. 2021, section 4: 36 layers and an attention of 64, D 512, F 3072; trained as `gmlp_base`.
`--set model=amlp_large` takes the large size.

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import gmlp_base

RECIPE = dataclasses.replace(gmlp_base.RECIPE, model="amlp_base")
