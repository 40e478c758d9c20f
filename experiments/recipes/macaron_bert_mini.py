"""Macaron-BERT, mini: `bert_mini` with Macaron blocks of 384 + 384, pre-norm.

    python -m experiments.pretrain train macaron_bert_mini runs/macaron --data-dir DIR

All else is `bert_mini`.

Measured: not run to the end yet.
"""

import dataclasses

from experiments.recipes import bert_mini

RECIPE = dataclasses.replace(bert_mini.RECIPE, model="macaron_bert_mini")
