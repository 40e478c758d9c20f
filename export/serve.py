"""Serves an exported model on this machine, with TensorFlow Serving's REST and gRPC contract.

    python -m export.serve OUT
    python -m export.serve --model_config_file models.config

OUT holds one folder per version (`1/`, `2/`, ...), as `python -m export.saved_model` writes them.
The newest is served; a newer one that appears is taken up without a restart. Ctrl-C or SIGTERM
ends the server after the requests in flight. A configuration file of TensorFlow Serving names
several models, the versions to serve of each, and labels of versions.
"""

import gc
import logging
import os
import signal
import sys
import threading

from export.server.config import ServerConfig
from macaron_tf.cli.arguments import Parser, place
from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.errors import check_path
from macaron_tf.settings import describe, hints_of, parse


def parse_arguments(arguments: list[str] | None = None) -> ServerConfig:
    """The command line's settings."""
    parser = Parser(prog="python -m export.serve", description=__doc__)
    place("base_path OUT", "folder of the exported versions", nargs="?")(parser)
    parser.add_argument("--name", help="the model's name in URLs (default: the folder's name)")
    for setting in describe(ServerConfig)[2:]:
        flags = [f"--{setting.name.replace('_', '-')}"]
        if setting.name.startswith("model_config"):  # as TensorFlow Serving's
            flags.append(f"--{setting.name}")
        parser.add_argument(
            *flags,
            metavar="VALUE",
            type=check_path if setting.name == "model_config_file" else None,
            default=setting.default.strip("'"),
            help=f"{setting.text.rstrip('.')} (%(default)s)",
        )
    given = vars(parser.parse_args(arguments))
    path, name = given.pop("base_path"), given.pop("name")
    if path is None and given["model_config_file"] == "None":
        parser.error("give OUT, a model's folder, or --model_config_file")
    if path is not None:
        name = name or os.path.basename(os.path.abspath(path))
    hints = hints_of(ServerConfig)
    return ServerConfig(
        path or "", name or "", **{k: parse(k, text, hints[k]) for k, text in given.items()}
    )


def run(config: ServerConfig, stop: threading.Event) -> None:
    """Serves until `stop` is set."""
    # Imported late: `--help` answers without TensorFlow, and without gRPC.
    from export.server.model_server import ModelServer

    # A collection of garbage that visits TensorFlow's 500,000 objects stops all threads for 0.3 s.
    gc.freeze()
    with ModelServer(config) as server:
        shown = ", ".join(
            f"{name} version{'s' * (len(manager.served) > 1)} {', '.join(map(str, manager.served))}"
            for name, manager in server.models.items()
        )
        print(
            f"ready: {shown} on {server.url} "
            f"(gRPC {config.host}:{server.grpc_port}); try: {server.example()}",
            flush=True,
        )
        stop.wait()
        logging.info("stopping: finishing the requests in flight")


@exit_on_user_error
def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    config = parse_arguments(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    # TensorFlow advises against the session that its own server uses.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run(config, stop)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
