"""Transformer-XL, tiny: the next token of texts that go on from row to row.

    python -m experiments.pretrain prepare transformer_xl_tiny corpora/xl --data-dir DIR
    python -m experiments.pretrain train transformer_xl_tiny runs/xl --corpus corpora/xl
    python -m experiments.pretrain evaluate runs/xl --corpus corpora/xl --memory 64 128 256 512

Dai et al. 2019 in `bert_tiny`'s shapes, tokens and schedule: 32 texts side by side, segments of 64
tokens (rows of 66, whose [CLS] and [SEP] fall away) and a memory of 64, as long as a segment, as in
the paper; gradients are clipped at its 0.25. Validation text is held out by 32 rows in succession,
2,048 tokens that a longer memory can look back on.
`--set model.block=macaron` or `swish_rnn` puts other blocks in.

Measured: in experiments/results/slides_decoders (whose settings differ) a validation
perplexity 103.7; Macaron 109.0; SwishRNN 101.8.
"""

import dataclasses

from experiments.recipes import bert_tiny

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="transformer_xl_tiny",
    model_options=(("activation_dropout", 0.0), ("dropout", 0.0)),
    objective="segment_language",
    memory_length=64,
    corpus=dataclasses.replace(
        bert_tiny.RECIPE.corpus,
        sequence_length=66,
        packing="full_text",
        validation_every=50,
        validation_run=32,
    ),
    training=dataclasses.replace(bert_tiny.RECIPE.training, clip_norm=0.25),
)
