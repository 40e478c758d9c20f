"""The SwishRNN model of Lei et al. 2022, large: inner width 2,752, step sizes 1, 2 and 4 in turn.

    python -m experiments.pretrain train swish_rnn_large runs/swish_rnn_large --corpus corpora/512

All else is `bert_large`. Paper, table 1, average of ten tasks: 88.4, against 86.3 (BERT-rab) and
87.8 (BERT-orig).

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import bert_large

RECIPE = dataclasses.replace(bert_large.RECIPE, model="swish_rnn_large")
