# %% [markdown]
"""Judges a block of your own against the Transformer's, in a small GPT with three random seeds.

    python -m experiments.examples.own_block homeassistant:en
    python -m experiments.examples.own_block 'text:novels/*.txt.gz' --rates 1e-3 2e-3 4e-3

The second command tries several learning rates. `macaron compare --help` lists all options. The
first command takes three minutes on two cores, and its verdict on the block below is *better*:

    | arm | validation loss |
    |---|---|
    | transformer | 4.551 ± 0.012 |
    | own | 4.418 ± 0.019 |
"""

# %% tags=["active-ipynb"]
# # Write the address of the repository in place of ADDRESS, or the path of a wheel in place of
# # git+ADDRESS. In a checkout, leave this cell out.
# %pip install --quiet "macaron_tf[studies] @ git+ADDRESS"

# %%
import argparse
import pathlib

from macaron_tf.cli.launcher import main

# %% tags=["active-ipynb"]
# import sys
#
# sys.argv[1:] = ["homeassistant:en"]  # a notebook has no command line: write the arguments here

# %%
parser = argparse.ArgumentParser(description="Judges the block in my_block.py.")
parser.add_argument("source", help="source of documents, as homeassistant:en or text:FILES")
parser.add_argument("--out", default="runs/own_block", help="folder for the runs and the report")
args, options = parser.parse_known_args()

# %% [markdown]
"""## The block

A splitting scheme defines a block. This block takes half a step of the feed-forward layer, and then
a step of attention. If you have a file my_block.py, its class `Mine` is judged instead.
docs/own_block.md has the notation of schemes, and says how to add an operator.
"""

# %%
BLOCK = """
from macaron_tf.layers import Block
from macaron_tf.layers.scheme import Mix


class Mine(Block):
    scheme = (Mix("channels", step_size=0.5), Mix("tokens"))
"""
file = pathlib.Path("my_block.py")
if not file.exists():
    file.write_text(BLOCK)

# %% [markdown]
"""## The verdict

Both arms read the same batches. The verdict comes from a paired test over the seeds.
"""

# %%
if main(
    ["compare", args.out, "own=my_block.py:Mine", "--set", f"data.sources={args.source}", *options]
):
    raise SystemExit(2)

# %% tags=["active-ipynb"]
# from IPython.display import Image
#
# Image(f"{args.out}/compare.png")
