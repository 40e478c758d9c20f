"""Serves an exported model on this machine, with TensorFlow Serving's REST and gRPC contract.

    python -m export.serve OUT

OUT holds one folder a version (`1/`, `2/`, ...), as `python -m export.saved_model` writes them.
The newest is served; a newer one that appears is taken up without a restart. Ctrl-C or SIGTERM
ends the server after the requests in flight.
"""

import argparse
import logging
import os
import re
import signal
import sys
import threading

from export.server.config import ServerConfig
from export.server.folders import check_base_path
from macaron_tf.errors import UserError, exit_on_user_error


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line's settings."""
    parser = argparse.ArgumentParser(
        prog="python -m export.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("out", metavar="OUT", help="folder of the exported versions")
    add("--name", help="the model's name in URLs (default: the folder's name)")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 = all (%(default)s)")
    add("--rest-port", type=_port, default=8501, help="REST port; 0 = any free (%(default)s)")
    add("--grpc-port", type=_port, default=8500, help="gRPC port; 0 = any free (%(default)s)")
    add(
        "--max-batch-size",
        type=_positive,
        default=32,
        help="rows that concurrent requests are merged to (%(default)s)",
    )
    add(
        "--batch-timeout-ms",
        type=_not_negative,
        default=5.0,
        help="milliseconds a request waits for others to join it (%(default)s)",
    )
    add(
        "--poll-seconds",
        type=_seconds,
        default=2.0,
        help="seconds between looks for new versions (%(default)s)",
    )
    add("--workers", type=_positive, default=2, help="batches run at once (%(default)s)")
    add(
        "--max-queue",
        type=_positive,
        default=1024,
        help="requests that may wait; more are refused with 503 (%(default)s)",
    )
    return parser.parse_args(arguments)


def run(arguments: argparse.Namespace, stop: threading.Event) -> None:
    """Serves until `stop` is set.

    Raises:
        UserError: OUT cannot be served, or a port is in use.
    """
    check_base_path(arguments.out)
    name = arguments.name or os.path.basename(os.path.abspath(arguments.out))
    if not re.fullmatch(r"[^/:?#%\s]+", name):
        raise UserError(f"the name {name!r} cannot stand in a URL; give another with --name")

    # Imported late: TensorFlow takes seconds, and what is wrong above is said at once.
    from export.server.model_server import ModelServer

    config = ServerConfig(
        base_path=arguments.out,
        name=name,
        host=arguments.host,
        rest_port=arguments.rest_port,
        grpc_port=arguments.grpc_port,
        max_batch_size=arguments.max_batch_size,
        batch_timeout_ms=arguments.batch_timeout_ms,
        poll_seconds=arguments.poll_seconds,
        workers=arguments.workers,
        max_queue=arguments.max_queue,
    )
    with ModelServer(config) as server:
        print(
            f"ready: {name} version {server.versions.current} on {server.url} "
            f"(gRPC {config.host}:{server.grpc_port}); try: {server.example()}",
            flush=True,
        )
        stop.wait()
        logging.info("stopping: finishing the requests in flight")


@exit_on_user_error
def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parsed = parse_arguments(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    # TensorFlow's start-up notes, and its advice against the session that TensorFlow Serving uses.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run(parsed, stop)
    return 0


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
