"""XLNet, tiny: tokens in random order, each from those before it in the order.

    python -m experiments.pretrain train xlnet_tiny runs/xlnet --data-dir DIR
    python -m experiments.finetune train rte runs/rte --init runs/xlnet --data-dir DIR

Yang et al. 2019 in `bert_tiny`'s shapes, tokens and schedule: rows of 64 that go on from batch to
batch with a memory of 48 (the paper's 384 of 512), one token in 6 guessed, in spans of 1 to 5. Both
streams go through the same weights; the content stream is what is fine-tuned. Its loss, of tokens
that are guessed from the others and from each other, is no language model's perplexity.
`--set model.block=macaron` puts another block in; a recurrence would tell a token to itself.

Measured: in experiments/results/slides_decoders (whose settings differ) a validation
loss 5.19; Macaron 5.18.
"""

import dataclasses

from experiments.recipes import bert_tiny

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="xlnet_tiny",
    model_options=(("activation_dropout", 0.0), ("attention_dropout", 0.0), ("dropout", 0.0)),
    objective="permutation_language",
    partial_prediction=6.0,
    memory_length=48,
    corpus=dataclasses.replace(
        bert_tiny.RECIPE.corpus, packing="full_text", validation_every=50, validation_run=32
    ),
)
