"""GPT-2, tiny: a pre-norm GPT over bytes, for two cores.

    python -m experiments.pretrain train gpt2_tiny runs/gpt2 --data-dir DIR
    python -m experiments.generate complete runs/gpt2 "The story of"

Radford et al. 2019, section 2, in `gpt_tiny`'s shapes, tokens and schedule: a LayerNorm before each
sub-layer and one at the end, last matrices that start 1/sqrt(sub-layers) as wide, byte-level BPE
with case, so that no text has an unknown piece. GPT-3 (Brown et al. 2020) is this at larger sizes.

Measured: in experiments/results/slides_decoders (whose settings differ) a validation
perplexity 134.0; Macaron 141.9; SwishRNN 106.7.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import gpt_tiny

RECIPE = dataclasses.replace(
    gpt_tiny.RECIPE,
    model="gpt2_tiny",
    vocabulary=VocabularyConfig(kind="byte_bpe", size=4_000, lower_case=False),
)
