"""Multi30k English-German with a tiny Transformer: the peer of multi30k_macaron_tiny.

    python -m experiments.translate train multi30k_transformer_tiny runs/peer --data-dir DIR

Everything but the block is multi30k_macaron_tiny's; see there for the source of each number.

Measured: experiments/results/multi30k.md.
"""

import dataclasses

from experiments.recipes import multi30k_macaron_tiny

RECIPE = dataclasses.replace(multi30k_macaron_tiny.RECIPE, model="transformer_tiny")
