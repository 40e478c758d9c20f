"""Macaron-BERT, tiny: `bert_tiny` with Macaron blocks of 192 + 192, pre-norm.

    python -m experiments.pretrain train macaron_bert_tiny runs/macaron --data-dir DIR

All else is `bert_tiny`.

Measured: not run to the end yet.
"""

import dataclasses

from experiments.recipes import bert_tiny

RECIPE = dataclasses.replace(bert_tiny.RECIPE, model="macaron_bert_tiny")
