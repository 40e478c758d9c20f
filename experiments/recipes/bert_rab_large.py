"""BERT-rab of the SwishRNN paper, large: `bert_large` with T5's relative attention bias.

    python -m experiments.pretrain train bert_rab_large runs/bert_rab_large --corpus corpora/512

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import bert_large

RECIPE = dataclasses.replace(bert_large.RECIPE, model="bert_rab_large")
