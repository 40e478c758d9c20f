"""Serves an exported model on this machine, with TensorFlow Serving's REST API.

    macaron serve OUT

OUT is the folder that `macaron export` wrote, with a subfolder for each version
(`1/`, `2/`, ...). The server serves the newest version, and switches to newer versions without a
restart. After Ctrl-C or SIGTERM, the server finishes the requests in flight, for up to
--grace-seconds, and exits.
"""

import argparse
import gc
import logging
import os
import signal
import sys
import threading

from export.server.config import ServerConfig
from macaron_tf.cli.arguments import Layout, path_argument
from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.settings import describe, hints_of, parse


def parse_arguments(arguments: list[str] | None = None) -> ServerConfig:
    """Parses the command line."""
    parser = argparse.ArgumentParser("macaron serve", description=__doc__, formatter_class=Layout)
    path_argument(
        "base_path OUT", "folder of an exported model, with a subfolder for each version"
    )(parser)
    parser.add_argument("--name", help="name of the model in URLs (default: the name of OUT)")
    settings = {f"--{item.name.replace('_', '-')}": item for item in describe(ServerConfig)[2:]}
    for flag, setting in settings.items():
        parser.add_argument(
            flag,
            metavar=setting.name.rpartition("_")[2].upper(),
            default=setting.default.strip("'"),
            help=f"{setting.text.rstrip('.')} (default: %(default)s)",
        )
    values, hints = vars(parser.parse_args(arguments)), hints_of(ServerConfig)
    for flag, setting in settings.items():
        values[setting.name] = parse(flag, values[setting.name], hints[setting.name])
    name = values.pop("name") or os.path.basename(os.path.abspath(values["base_path"]))
    return ServerConfig(name=name, **values)


def run(config: ServerConfig, stop: threading.Event) -> bool:
    """Serves the model until the event `stop` is set; returns whether all requests ended."""
    # Imported here so that `--help` works without TensorFlow and Starlette.
    from export.server.model_server import ModelServer

    # Without the freeze, each garbage collection visits TensorFlow's 500,000 objects and blocks all
    # threads for 0.3 s.
    gc.freeze()
    server = ModelServer(config)
    server.start()
    version = server.versions.current.version
    print(f"ready: {config.name} version {version} on {server.url}", flush=True)
    print(f"try:   {server.example()}", flush=True)
    stop.wait()
    logging.info("stopping: finishing the requests in flight")
    return server.stop()


@exit_on_user_error
def main(arguments: list[str] | None = None) -> int:
    config = parse_arguments(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    stop = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: stop.set())
    if not run(config, stop):
        logging.warning("requests did not end within %g s", config.grace_seconds)
        os._exit(0)  # Python would wait for the threads that compute them
    return 0
