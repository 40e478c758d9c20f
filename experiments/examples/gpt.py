# %% [markdown]
"""Trains a byte-level GPT with Macaron blocks by `model.fit`, and generates text with a KV cache.

    python -m experiments.examples.gpt 'text:novels/*.txt.gz'
    python -m experiments.examples.gpt tfds:pg19 --data-dir DIR

The source consists of text files, plain or `.gz`, or of a prepared dataset of TensorFlow Datasets.
1,000 updates on 8 novels of pg19 took 13 minutes of CPU time. The loss on held-out text was 1.81
nats per byte. The model wrote "He staid in the mones sort of the oxelf and alming alway".
"""

# %%
import argparse

import keras
import tensorflow as tf
from keras import ops

from macaron_tf import layers
from macaron_tf.data.sources.readers import documents
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.decoding import GenerationConfig, TextGenerator
from macaron_tf.layers.mixer import Context
from macaron_tf.text.byte_pairs import BYTE_ALPHABET, BytePairVocabulary

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
    ("--documents", 8, "maximum number of documents to read"),
    ("--length", 128, "row length in bytes"),
    ("--width", 128, "hidden size"),
    ("--depth", 4, "number of blocks"),
    ("--steps", 1000, "number of training updates"),
    ("--prompt", "The old man", "prompt that the GPT continues"),
):
    text += " (default: %(default)s)"
    parser.add_argument(flag, type=type(default), default=default, help=text)
args = parser.parse_args()
keras.utils.set_random_seed(1)

# %% [markdown]
"""## Text to ids

A byte-level BPE vocabulary without merges has five special pieces and one piece for each byte. The
last 5% of the ids are for validation. Rows start at random positions of the text.
"""

# %%
vocabulary = BytePairVocabulary(BYTE_ALPHABET, merges=[])
texts = documents(args.source, tfds=Tfds(args.data_dir))
texts = [text for text, _ in zip(texts, range(args.documents), strict=False)]
ids = tf.constant(vocabulary.encode_rows(texts).ids, "int32")
held_out = len(ids) // 20
print(f"{len(ids):,} bytes of {len(texts)} documents, such as {texts[0].strip()[:60]!r}")


def rows(ids: tf.Tensor) -> tf.data.Dataset:
    """Returns endless batches of inputs `(32, length)` and of targets, which are one byte later."""

    def row(start):
        return ids[start : start + args.length], ids[start + 1 : start + args.length + 1]

    starts = tf.data.Dataset.random(seed=1).map(lambda n: n % (len(ids) - args.length))
    return starts.map(row).batch(32).prefetch(1)


# %% [markdown]
"""## The model

Training uses `call`. Sampling uses the other methods. Each block has a cache with the keys and
values of earlier bytes, so that `mix` computes only the new positions.
"""


# %%
class GPT(keras.Model):
    """A language model that maps ids `(B, L)` to logits `(B, L, V)` of the next ids."""

    def __init__(self, vocab_size: int, length: int, width: int, depth: int):
        super().__init__()
        self.tokens = layers.TiedEmbedding(vocab_size, width, scale=False)
        self.positions = layers.LearnedPositions(length)
        options = dict(num_heads=4, feed_forward_dim=4 * width, activation="gelu", dropout=0.1)
        self.blocks = [layers.MacaronBlock(causal=True, **options) for _ in range(depth)]
        self.norm = keras.layers.LayerNormalization()

    def call(self, ids, training=None):
        x = self.positions(self.tokens(ids))  # (B, L, D)
        for block in self.blocks:
            x = block(x, training=training)
        return self.tokens.logits(self.norm(x))

    can_prefill = True  # `prefill` reads a prompt in one pass

    def init_decode(self, batch_size, samples, max_length=None):
        """Returns an empty context, and empty caches for K = `samples` texts per prompt."""
        return {}, [block.init_cache(batch_size, samples, None) for block in self.blocks]

    def decode_step(self, tokens, index, context, cache):
        """Returns logits `(B, K, V)` of the next ids, and the new cache.

        `tokens` are the ids `(B, K)` at position `index`, of K texts for each of B prompts. The
        context is empty, and the cache has the earlier positions.
        """
        x, cache = self.mix(ops.reshape(tokens, (-1, 1)), index, cache)  # (B K, 1, D)
        logits = self.tokens.logits(self.norm(x))
        return ops.reshape(logits, (*ops.shape(tokens), logits.shape[-1])), cache

    def prefill(self, tokens, index, context, cache):
        """Returns the cache after prompts of ids `(B, L)`, which begin at position `index`."""
        return self.mix(tokens, index, cache)[1]

    def mix(self, ids, index, cache):
        """Applies the blocks to ids `(B, L)`, and returns hidden states `(B, L, D)` and a cache."""
        x = self.positions(self.tokens(ids), index + ops.arange(ops.shape(ids)[1]))
        new_cache = []
        for block, block_cache in zip(self.blocks, cache, strict=True):
            x, block_cache = block.mix(x, Context(training=False), block_cache)
            new_cache.append(block_cache)
        return x, new_cache


# %%
model = GPT(vocabulary.size, args.length, args.width, args.depth)
schedule = keras.optimizers.schedules.CosineDecay(
    0.0, args.steps, warmup_target=2e-3, warmup_steps=args.steps // 10, alpha=0.05
)
model.compile(
    keras.optimizers.AdamW(schedule, beta_2=0.99, clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
epochs = min(5, args.steps)
model.fit(
    rows(ids[:-held_out]),
    validation_data=rows(ids[-held_out:]),
    validation_steps=10,
    epochs=epochs,
    steps_per_epoch=args.steps // epochs,
    verbose=2,
)

# %% [markdown]
"""## Sampling: with the cache, each step computes only the position of the new byte"""

# %%
generator = TextGenerator(model, vocabulary, longest=args.length, starts=False)
config = GenerationConfig(max_tokens=args.length, temperature=0.7, num_samples=2)
for completion in generator.complete([args.prompt], config, seed=1)[0]:
    print(f"\n{args.prompt}{completion.text}")
