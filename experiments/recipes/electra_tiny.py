"""ELECTRA, tiny: which tokens has a small generator replaced?

    python -m experiments.pretrain train electra_tiny runs/electra --data-dir DIR

Clark et al. 2020 in `bert_tiny`'s shapes, tokens and schedule, the discriminator's that is: the
generator is a quarter as wide, reads the same embeddings and learns masked tokens, 15% of them and
all masked; the discriminator judges every token, with weight 50.

Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (three seeds), loss of tokens 6.40
± 0.05 (the generator's); 0.6% of the replaced found; fine-tuned, SST-2 74.4 ± 4.6 and CoNLL-2003
36.1 ± 2.0; see
`experiments/results/slides_encoders`.
"""

import dataclasses

from experiments.recipes import bert_tiny
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="electra_tiny",
    objective="replaced_tokens",
    generator_width=0.25,
    masking=MaskingConfig(mask=1.0, random=0.0, round_up=True),
)
