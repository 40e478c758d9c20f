# %% [markdown]
"""Compares a user-defined block with the Macaron block at an equal number of matrix weights.

    python -m experiments.examples.own_block 'text:novels/*.txt.gz'
    python -m experiments.examples.own_block tfds:pg19 --data-dir DIR

A splitting scheme defines a block. Both blocks in this example are Strang-Marchuk splittings: half
a step of one operator, a full step of the other operator, and half a step of the first operator.
The Macaron block takes half steps of the feed-forward layer, and the user-defined block takes half
steps of attention. On a novel of pg19, the script took 5 minutes of CPU time. The difference
between the blocks is smaller than the standard deviation over the Macaron seeds:

    | block | validation loss, mean ± standard deviation |
    |---|---|
    | MacaronBlock | 2.297 ± 0.024 |
    | HalvedAttentionBlock | 2.304 ± 0.008 |
"""

# %%
import argparse
import itertools

import keras
import numpy as np
import tensorflow as tf

from macaron_tf import layers
from macaron_tf.data.sources.readers import documents
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.layers import Mix

# %% tags=["active-ipynb"]
# import sys
#
# sys.argv[1:] = ["tfds:pg19"]  # a notebook has no command line: write the arguments here

# %%
parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("source", help="source of documents, as text:FILES or tfds:NAME")
parser.add_argument(
    "--data-dir",
    help="folder with TensorFlow Datasets (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)",
)
for flag, default, text in (
    ("--seeds", 3, "number of random seeds for each block"),
    ("--steps", 300, "number of training updates"),
    ("--length", 64, "row length in bytes"),
    ("--width", 64, "hidden size"),
):
    text += " (default: %(default)s)"
    parser.add_argument(flag, type=int, default=default, help=text)
args = parser.parse_args()

# %% [markdown]
"""## The block

The Macaron block takes half a step of a feed-forward layer, a step of attention, and half a step of
another feed-forward layer. The block below halves attention instead of the feed-forward layer. With
`again=True`, the second half uses the weights of the first half again, so both blocks have equally
many attention weights.

To add a new operator, write another `token_mixer` or `channel_mixer`: see docs/own_block.md.
"""


# %%
class HalvedAttentionBlock(layers.Block):
    """A block with half a step of attention before and after a full feed-forward step."""

    scheme = (
        Mix("tokens", step_size=0.5),
        Mix("channels"),
        Mix("tokens", step_size=0.5, again=True),
    )


BLOCKS = [layers.MacaronBlock, HalvedAttentionBlock]

# %% [markdown]
"""## Text

The models predict the next byte. The training text is the first 90% of one document, and the rest
is for validation.
"""

# %%
text = next(documents(args.source, tfds=Tfds(args.data_dir)))
ids = np.frombuffer(text.encode(), np.uint8).astype("int32")
rows = ids[: -(len(ids) % (args.length + 1)) or None].reshape(-1, args.length + 1)
cut = len(rows) * 9 // 10
train, validation = (
    tf.data.Dataset.from_tensor_slices((part[:, :-1], part[:, 1:]))
    for part in (rows[:cut], rows[cut:])
)


# %%
def build(block: type[layers.Block]) -> keras.Model:
    """Builds a causal model with two blocks, from bytes `(B, L)` to logits `(B, L, 256)`."""
    inputs = keras.Input((None,), dtype="int32")
    x = layers.SinusoidalPositions()(keras.layers.Embedding(256, args.width)(inputs))
    for _ in range(2):
        x = block(num_heads=4, feed_forward_dim=4 * args.width, activation="gelu", causal=True)(x)
    return keras.Model(inputs, keras.layers.Dense(256)(keras.layers.LayerNormalization()(x)))


def loss_after(block: type[layers.Block], seed: int) -> tuple[int, float]:
    """Trains a model, and returns its parameter count and validation loss in nats per byte."""
    keras.utils.set_random_seed(seed)
    model = build(block)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, args.steps, warmup_target=3e-3, warmup_steps=args.steps // 10
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule, clipnorm=1.0), loss)
    batches = train.shuffle(len(rows), seed=seed).repeat().batch(32)
    model.fit(batches, steps_per_epoch=args.steps, verbose=0)
    return model.count_params(), model.evaluate(validation.batch(128), verbose=0)


# %% [markdown]
"""## The table

The matrices of both blocks have equally many weights. The second feed-forward layer of the Macaron
block also has biases. Losses vary with the seed, so a difference between blocks counts only if it
is larger than the standard deviation.
"""

# %%
losses_by_block = {block: [] for block in BLOCKS}
for seed, block in itertools.product(range(1, args.seeds + 1), BLOCKS):
    parameters, loss = loss_after(block, seed)
    losses_by_block[block].append(loss)
    print(f"seed {seed}, {block.__name__} of {parameters:,} parameters: {loss:.3f}")
print("\n| block | validation loss, mean ± standard deviation |\n|---|---|")
for block, losses in losses_by_block.items():
    deviation = np.std(losses, ddof=1) if len(losses) > 1 else 0.0
    print(f"| {block.__name__} | {np.mean(losses):.3f} ± {deviation:.3f} |")
