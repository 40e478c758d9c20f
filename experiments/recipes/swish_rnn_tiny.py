"""SwishRNN, tiny: `bert_rab_tiny` with recurrences for feed-forwards, step sizes 1, 2, 4.

    python -m experiments.pretrain train swish_rnn_tiny runs/swish_rnn --data-dir DIR

All else is `bert_tiny`.

Measured: not run to the end yet.
"""

import dataclasses

from experiments.recipes import bert_tiny

RECIPE = dataclasses.replace(bert_tiny.RECIPE, model="swish_rnn_tiny")
