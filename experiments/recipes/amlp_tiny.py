"""aMLP: gMLP with one small head of attention in every layer, tiny.

    python -m experiments.pretrain train amlp_tiny runs/amlp --data-dir DIR

Liu et al. 2021 with `bert_tiny`'s width, tokens and schedule: six layers, which count as many
parameters as BERT's three; no positions but those of the matrices, one weight a distance.

Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (one seed), loss of tokens 4.65;
fine-tuned, SST-2 81.1 and CoNLL-2003 69.5; see `experiments/results/slides_encoders`.
"""

import dataclasses

from experiments.recipes import gmlp_tiny

RECIPE = dataclasses.replace(gmlp_tiny.RECIPE, model="amlp_tiny")
