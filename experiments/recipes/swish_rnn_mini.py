"""SwishRNN, mini: `bert_rab_mini` with recurrences for feed-forwards, step sizes 1, 2, 4, 1.

    python -m experiments.pretrain train swish_rnn_mini runs/swish_rnn --data-dir DIR

All else is `bert_mini`.

Measured: not run to the end yet.
"""

import dataclasses

from experiments.recipes import bert_mini

RECIPE = dataclasses.replace(bert_mini.RECIPE, model="swish_rnn_mini")
