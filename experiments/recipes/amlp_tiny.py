"""aMLP: gMLP with one small head of attention in every layer, tiny.

    python -m experiments.pretrain train amlp_tiny runs/amlp --data-dir DIR

Liu et al. 2021 with `bert_tiny`'s width, tokens and schedule: six layers, which count as many
parameters as BERT's three; no positions but those of the matrices, one weight a distance.

Measured: not yet; `python -m experiments.slides encoders` compares the tiny encoders.
"""

import dataclasses

from experiments.recipes import gmlp_tiny

RECIPE = dataclasses.replace(gmlp_tiny.RECIPE, model="amlp_tiny")
