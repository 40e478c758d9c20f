"""GPT, tiny: the next token of running text, for two cores.

    python -m experiments.pretrain train gpt_tiny runs/gpt --data-dir DIR
    python -m experiments.generate complete runs/gpt "The story of"
    python -m experiments.finetune train sst2 runs/gpt-sst2 --init runs/gpt --preset gpt

Radford et al. 2018 in `bert_tiny`'s shapes, tokens and schedule: a causal post-norm Transformer
with learned positions, whose table of lower-cased BPE pieces scores the next one too. Rows are full
and go on with the next document, as its contiguous sequences do. Every token of a row is learnt
from, seven times as many as of a row with 15% masked. `--set model.block=macaron` or
`--set model.block=swish_rnn` are the papers' blocks at equal matrices.

Measured: in experiments/results/slides_decoders (whose settings differ) a validation
perplexity 116.7 ± 0.4; Macaron 121.9 ± 0.9; SwishRNN 111.8 ± 1.2.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import bert_tiny

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="gpt_tiny",
    objective="causal_language",
    corpus=dataclasses.replace(bert_tiny.RECIPE.corpus, packing="full_text"),
    vocabulary=VocabularyConfig(kind="sentencepiece", size=4_000),
)
