"""gMLP: matrices between positions and gates in place of attention, tiny.

    python -m experiments.pretrain train gmlp_tiny runs/gmlp --data-dir DIR

Liu et al. 2021 with `bert_tiny`'s width, tokens and schedule: six layers, which count as many
parameters as BERT's three; no positions but those of the matrices, one weight a distance.

Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (one seed), loss of tokens 4.73;
fine-tuned, SST-2 80.7 and CoNLL-2003 69.7; see `experiments/results/slides_encoders`.
"""

import dataclasses

from experiments.recipes import bert_tiny
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="gmlp_tiny",
    model_options=(("dropout", 0.0), ("attention_dropout", 0.0)),
    masking=MaskingConfig(),
)
