"""GPT-2, its smallest size: 124 million parameters.

    python -m experiments.pretrain prepare gpt2_base corpora/gpt2 --data-dir DIR --download
    python -m experiments.pretrain train gpt2_base runs/gpt2_base --corpus corpora/gpt2

Radford et al. 2019, section 2.3: 50,257 byte-level pieces, 1,024 positions, batches of 512
sequences. It says neither its learning rate nor its number of updates: these, the betas, the
clipping and the decay are those of GPT-3's model of this size (Brown et al. 2020, table 2.1 and
appendix B: 6e-4, Adam(0.9, 0.95), norm 1, decay 0.1, a warm-up of 375 million tokens, here 715
updates, and 300 billion tokens in all; its cosine ends at a tenth of the peak, this one at 0), and
it drops out 0.1 as GPT does. WebText is not to be had: `tfds:c4` stands in for it. The other sizes:
`--set model=gpt2_medium`, `gpt2_large`, `gpt2_xl`, or `gpt3_small` to `gpt3_175b` with
`--set corpus.sequence_length=2048`. 32 micro-batches of 16 rows make an update on one device.

Measured: not run at this size.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import gpt_base
from macaron_tf.data.corpus.config import CorpusConfig

RECIPE = dataclasses.replace(
    gpt_base.RECIPE,
    model="gpt2_base",
    corpus=CorpusConfig(("tfds:c4/en",), sequence_length=1024, packing="full_text"),
    vocabulary=VocabularyConfig(
        kind="byte_bpe", size=50_257, lower_case=False, max_documents=1_000_000
    ),
    batch_size=16,
    training=dataclasses.replace(
        gpt_base.RECIPE.training,
        max_steps=572_000,
        learning_rate=6e-4,
        warmup_steps=715,
        beta_2=0.95,
        weight_decay=0.1,
        clip_norm=1.0,
        accumulation_steps=32,
    ),
)
