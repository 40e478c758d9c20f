"""BART, tiny: the whole text from its sentences in random order and its spans behind masks.

    python -m experiments.pretrain train bart_tiny runs/bart --data-dir DIR

Lewis et al. 2020 in `bert_tiny`'s shapes, rows, tokens and optimizer, in each of the two stacks:
text infilling of 30% of the words in spans of 3 on average (Poisson), sentences shuffled. The
paper's other noises: `--set denoising.rotation=1.0`, `denoising.masking=0.15`,
`denoising.deletion=0.15`, alone with `denoising.infilling=0` and `denoising.shuffling=0`.
`--set model.block=macaron` or `swish_rnn` puts other blocks of as many numbers into both stacks.

Measured: in experiments/results/slides_decoders (whose settings differ) a validation
loss 3.56; Macaron 3.48; SwishRNN 1.97.
"""

import dataclasses

from experiments.recipes import bert_tiny

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="bart_tiny",
    objective="denoising",
)
