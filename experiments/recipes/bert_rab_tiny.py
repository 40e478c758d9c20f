"""BERT-rab, tiny: `bert_tiny` with T5's relative attention bias in every layer.

    python -m experiments.pretrain train bert_rab_tiny runs/bert_rab --data-dir DIR

All else is `bert_tiny`.

Measured: not run to the end yet.
"""

import dataclasses

from experiments.recipes import bert_tiny

RECIPE = dataclasses.replace(bert_tiny.RECIPE, model="bert_rab_tiny")
