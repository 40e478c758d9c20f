"""T5, tiny: spans give way to sentinels, and an encoder-decoder says what stood there.

    python -m experiments.pretrain train t5_tiny runs/t5 --data-dir DIR

Raffel et al. 2020 in `bert_tiny`'s shapes, rows and tokens, in each of the two stacks: 15% of the
tokens in spans of 3 on average, T5's relative bias, root-mean-square norms, no biases, no dropout,
and the paper's optimizer: Adafactor at 1/sqrt(max(n, 10^4)), so 0.01 to the end of this run.
`--set model.block=macaron` or `swish_rnn` puts other blocks of as many numbers into both stacks.

Measured: in experiments/results/slides_decoders (whose settings differ) a validation
loss 4.29 ± 0.01; Macaron 4.38 ± 0.07; SwishRNN 3.98 ± 0.03 (three seeds).
"""

import dataclasses

from experiments.recipes import bert_tiny

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="t5_tiny",
    model_options=(("dropout", 0.0), ("attention_dropout", 0.0), ("activation_dropout", 0.0)),
    objective="span_corruption",
    training=dataclasses.replace(
        bert_tiny.RECIPE.training,
        optimizer="adafactor",
        learning_rate=0.01,
        schedule="inverse_sqrt",
        warmup_steps=10_000,
        warmup_start=0.01,
        weight_decay=0.0,
    ),
)
