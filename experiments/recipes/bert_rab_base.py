"""BERT-rab of the SwishRNN paper, base: BERT with T5's relative attention bias in every layer.

    python -m experiments.pretrain train bert_rab_base runs/bert_rab_base --corpus corpora/512

All else is `bert_base`, whose documentation names the source of each number (Lei et al. 2022).

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import bert_base

RECIPE = dataclasses.replace(bert_base.RECIPE, model="bert_rab_base")
