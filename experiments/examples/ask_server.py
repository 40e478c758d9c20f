# %% [markdown]
"""Asks a served model for answers over HTTP.

    macaron serve served/NAME &
    python -m experiments.examples.ask_server NAME "a line" "another line"

The server is `macaron serve` or TensorFlow Serving, whose paths are the same. The script needs
only the package requests. A model with several inputs, such as a question and a
context, takes a dict for each instance: `{"question": "Who?", "context": "Ann saw a cat."}`.
"""

# %%
import argparse

import requests
from urllib3.util import Retry

# %% tags=["active-ipynb"]
# import sys
#
# # A notebook has no command line: write the arguments here.
# sys.argv[1:] = ["NAME", "a line", "another line"]

# %%
parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("name", help="name of the served model")
parser.add_argument("lines", nargs="+", help="texts to send to the model, one per argument")
parser.add_argument("--url", default="http://127.0.0.1:8501", help="URL of the server")
args = parser.parse_args()

# %%
# While the server starts, loads the model or is busy (status 503), the session asks again, up to
# five times with longer and longer pauses. It does not repeat a request that timed out.
retry = Retry(5, read=0, status_forcelist=[503], allowed_methods=None, backoff_factor=0.5)
session = requests.Session()
session.mount(args.url, requests.adapters.HTTPAdapter(max_retries=retry))
for start in range(0, len(args.lines), 32):  # requests of at most 32 lines
    lines = args.lines[start : start + 32]
    path = f"{args.url}/v1/models/{args.name}:predict"
    response = session.post(path, json={"instances": lines}, timeout=60)
    if response.status_code != 200:
        raise SystemExit(f"status {response.status_code}: {response.json()['error']}")
    for line, prediction in zip(lines, response.json()["predictions"], strict=True):
        print(f"{line} -> {prediction}")
