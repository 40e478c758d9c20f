"""The SwishRNN model of Lei et al. 2022, base: BERT-rab with recurrences for feed-forwards.

    python -m experiments.pretrain train swish_rnn_base runs/swish_rnn_base --corpus corpora/512

Inner width 2,048, step sizes 1, 2 and 4 in turn (`--set model.rnn_step_sizes=1` for the paper's
first row of table 2). All else is `bert_base`, whose documentation names the source of each number.
Paper, table 1, average of ten tasks: 84.0, against 81.0 (BERT-rab) and 81.9 (BERT-orig).

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import bert_base

RECIPE = dataclasses.replace(bert_base.RECIPE, model="swish_rnn_base")
