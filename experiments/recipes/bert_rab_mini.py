"""BERT-rab, mini: `bert_mini` with T5's relative attention bias in every layer.

    python -m experiments.pretrain train bert_rab_mini runs/bert_rab --data-dir DIR

All else is `bert_mini`.

Measured: not run to the end yet.
"""

import dataclasses

from experiments.recipes import bert_mini

RECIPE = dataclasses.replace(bert_mini.RECIPE, model="bert_rab_mini")
