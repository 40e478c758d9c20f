# %% [markdown]
"""Asks a served model for answers by REST and gRPC, with batches, retries and timeouts.

    python -m export.serve served/NAME &
    python -m experiments.examples.ask_server NAME "a line" "another line"

The server is `export.serve` or TensorFlow Serving. The script took 6 seconds of CPU time, mostly to
import TensorFlow for gRPC. With the classifier of the example `fine_tune`, the output included:

    REST, 3 lines in 0.102 s:
    I want my money back -> billing  billing=0.8321  delivery=0.0921  fault=0.0758
"""

# %%
import argparse
import json
import time
import urllib.request

from export.base_client import ClientError
from export.client import GrpcClient, RestClient, format_answer

# %% tags=["active-ipynb"]
# import sys
#
# # A notebook has no command line: write the arguments here.
# sys.argv[1:] = ["NAME", "a line", "another line"]

# %%
parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("name", help="name of the served model")
parser.add_argument("lines", nargs="+", help="texts to send to the model, one per argument")
parser.add_argument(
    "--url", default="http://127.0.0.1:8501", help="URL of the REST server (default: %(default)s)"
)
parser.add_argument(
    "--grpc", default="127.0.0.1:8500", help="address of the gRPC server (default: %(default)s)"
)
args = parser.parse_args()

# %% [markdown]
"""## The clients of this project

`RestClient` and `GrpcClient` ask the server for the inputs of the model, send `batch_size` lines in
each request and return the answers in order. `GrpcClient` needs grpcio and TensorFlow, and
`RestClient` needs neither of them. If the server is starting or busy, `RestClient` repeats the
request up to `retries` times. It waits `backoff` seconds before the first repetition and doubles
the wait before each further repetition.
"""

# %%
rest = RestClient(args.url, args.name, timeout=10, batch_size=2, retries=3, backoff=0.1)
grpc = GrpcClient(args.grpc, args.name, timeout=10, batch_size=2)
rest.wait_until_ready(seconds=30)
print(f"{args.name} takes {rest.signature.inputs} and gives {rest.signature.outputs}")
for protocol, client in [("REST", rest), ("gRPC", grpc)]:
    start = time.perf_counter()
    answers = client.answers(args.lines)
    seconds = time.perf_counter() - start
    print(f"\n{protocol}, {len(args.lines)} lines in {seconds:.3f} s:")
    for line, answer in zip(args.lines, answers, strict=True):
        print(f"{line} -> {format_answer(answer)}")

# %% [markdown]
"""## Plain HTTP

A program in any language can send this request to a model that has one text as input.
"""

# %%
body = json.dumps({"instances": args.lines[:1]}).encode()
with urllib.request.urlopen(
    f"{args.url}/v1/models/{args.name}:predict", body, timeout=10
) as response:
    print(json.loads(response.read())["predictions"][0])

# %% [markdown]
"""## Errors

A request that fails raises a `ClientError`. Its attribute `status` is the HTTP status or the name
of the gRPC status code, or `None` if a REST server did not answer. The clients do not repeat a
request that timed out, because the server may still be working on the request.
"""

# %%
failing_clients = {
    "an unknown model": RestClient(args.url, f"no-{args.name}"),
    "no server, two attempts": RestClient("http://127.0.0.1:9", args.name, retries=1),
    "an unknown version": GrpcClient(args.grpc, args.name, version=999),
    "a short timeout": GrpcClient(args.grpc, args.name, timeout=1e-6),
}
for reason, client in failing_clients.items():
    try:
        client.answers(args.lines)
    except ClientError as error:
        print(f"{reason}: {error} (status {error.status})")
